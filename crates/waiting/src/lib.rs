//! Wait strategies: a side polls, sleeps until a notification, spins before that, is timer-driven,
//! or takes the cheapest of these within bounds.
//!
//! The strategies neither sleep nor read a clock: time is an argument, in nanoseconds of any
//! monotonic clock, and the result is a [`Step`] for the caller to take. Only [`Costs`] measures,
//! once, by [`wake_ups`].
//!
//! | module | holds |
//! |---|---|
//! | [`costs`] | the cost of a wake-up on this machine |
//! | [`spinner`] | how long to spin before sleep |
//! | [`clock`] | ticks, and their counts |
//! | [`auto`] | the controller |
//! | [`wake_ups`] | the time from a notification until the thread runs |
#![forbid(unsafe_code)]

pub mod auto;
pub mod clock;
pub mod costs;
mod gaps;
mod imagined;
mod preemption;
pub mod spinner;
pub mod wake_ups;

pub use auto::{Bounds, Controller, Found, Next, Throttled};
pub use clock::Clock;
pub use costs::Costs;
pub use spinner::Spinner;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Poll again at once.
    Poll,
    /// Stay awake without polling, until then.
    Spin {
        /// When to poll.
        until: u64,
    },
    /// Announce sleep, check once more, and sleep until a notification.
    Block,
    /// Sleep until then; only urgent work causes a notification.
    SleepUntil {
        /// When to poll.
        until: u64,
    },
}
