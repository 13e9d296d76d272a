//! How a side waits: without end, asleep until it is rung, spinning a while first, by the clock, or
//! by whichever of them costs least within bounds.
//!
//! Nothing here sleeps or reads a clock: time is an argument, in nanoseconds of any monotonic clock,
//! and the answer is a [`Step`] for the caller to take. Only [`Costs`] measures, once, by [`wake_ups`].
//!
//! | module | holds |
//! |---|---|
//! | [`costs`] | what a wake-up costs here |
//! | [`spinner`] | how long to spin before sleep |
//! | [`clock`] | ticks, and what became of them |
//! | [`auto`] | the controller |
//! | [`wake_ups`] | how long a thread sleeps on after it is rung |
#![forbid(unsafe_code)]

mod aside;
pub mod auto;
pub mod clock;
pub mod costs;
mod gaps;
mod imagined;
pub mod spinner;
pub mod wake_ups;

pub use auto::{Bounds, Controller, Found, Next, Throttled};
pub use clock::Clock;
pub use costs::Costs;
pub use spinner::Spinner;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again at once.
    Look,
    /// Stay awake without looking, until then.
    Spin {
        /// When to look.
        until: u64,
    },
    /// Announce sleep, look once more, and sleep until rung.
    Rung,
    /// Sleep until then, and be rung by what is urgent alone.
    Unrung {
        /// When to look.
        until: u64,
    },
}
