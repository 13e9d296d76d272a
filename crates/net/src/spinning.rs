//! Spinning before a sleep, in a thread of the application that drives.
//!
//! A thread that awaits an answer to what it wrote spins as long as that has recently cost less than
//! the wake-ups that it saved ([`Spinner`]). A stream in one direction keeps itself going, and its
//! threads need the processors. The library's thread does not spin: it would do so beside the
//! threads for which it works.

use towpath_stack::Instant;
use towpath_waiting::{Costs, Spinner};

/// When a thread of the application that drives spins.
#[derive(Debug)]
pub(crate) struct Spinning {
    spinner: Spinner,
    /// `true` if the thread has slept since it last had work.
    slept: bool,
}

impl Default for Spinning {
    /// A thread spins for at most the time of two wake-ups: while it is awake, the engine need not
    /// wake it, nor the peer wait for that. Their time is the usual one, since to measure it takes
    /// longer than some programs run.
    fn default() -> Spinning {
        Spinning { spinner: Spinner::new(2 * Costs::USUAL.wake_up), slept: false }
    }
}

impl Spinning {
    /// Records that a round had work.
    pub(crate) fn found(&mut self, now: Instant) {
        self.spinner.found(now.as_micros() * 1000, std::mem::take(&mut self.slept));
    }

    /// Returns `true` if the thread is to look for work again instead of a sleep.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        let goes_on = self.spinner.poll_again(now.as_micros() * 1000);
        self.slept |= !goes_on;
        goes_on
    }
}
