//! The times of answers: how long they take, and when packets are sent again without one.

use super::{FIRST_TIMEOUT_NS, Requester};

/// The shortest and the longest time until packets are sent again without an answer, in nanoseconds.
const LEAST_TIMEOUT_NS: u64 = 16_000_000;
const MOST_TIMEOUT_NS: u64 = 1_000_000_000;

impl Requester {
    /// Smooths the time that answers take (RFC 6298, section 2).
    pub(super) fn measure(&mut self, time: u64) {
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(time), time / 2);
            return;
        };
        self.variation = (3 * self.variation + smoothed.abs_diff(time)) / 4;
        self.smoothed = Some((7 * smoothed + time) / 8);
    }

    pub(super) fn usual_timeout(&self) -> u64 {
        let Some(smoothed) = self.smoothed else { return FIRST_TIMEOUT_NS };
        (smoothed + 4 * self.variation).clamp(LEAST_TIMEOUT_NS, MOST_TIMEOUT_NS)
    }

    /// Sends what is under way again if the peer has not answered for too long. Returns `true` if
    /// so.
    pub(crate) fn check_time(&mut self, now: u64) -> bool {
        if self.timeout_at().is_none_or(|at| now < at) {
            return false;
        }
        self.goes_back = false;
        self.go_back(now);
        self.timeout = (self.timeout * 2).min(MOST_TIMEOUT_NS);
        true
    }

    fn timeout_at(&self) -> Option<u64> {
        (self.oldest != self.next).then_some(self.since + self.timeout)
    }

    /// Returns the time at which there is something to do without a packet of the peer, in
    /// nanoseconds. `is_paced`: the next packet waits for another time.
    #[must_use]
    pub fn next_due(&self, is_paced: bool) -> Option<u64> {
        let not_ready = self.not_ready_until.filter(|_| !is_paced);
        not_ready.or_else(|| self.timeout_at())
    }

    /// Returns since when the peer's queue has had no room, in nanoseconds.
    #[must_use]
    pub(crate) fn not_ready_since(&self) -> Option<u64> {
        self.not_ready_since
    }

    /// Sends what is under way again. Returns `false` if that has begun already.
    pub(super) fn go_back(&mut self, now: u64) -> bool {
        if std::mem::replace(&mut self.goes_back, true) {
            return false;
        }
        self.next = self.oldest;
        self.since = now;
        self.timed = None;
        true
    }
}
