//! A token bucket that limits how often the stack sends something.

use crate::Instant;

/// A bucket that holds the tokens of half a second, at least one.
pub(crate) struct Rate {
    per_second: u32,
    /// Millionths of a token.
    tokens: u64,
    updated: Instant,
}

impl Rate {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Rate { per_second, tokens: Self::full(per_second), updated: now }
    }

    fn full(per_second: u32) -> u64 {
        (u64::from(per_second) * 500_000).max(1_000_000)
    }

    /// Takes a token. Returns `false` if there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let micros = now.since(self.updated).as_micros().min(1_000_000) as u64;
        self.updated = now;
        let full = Self::full(self.per_second);
        self.tokens = (self.tokens + micros * u64::from(self.per_second)).min(full);
        if self.tokens < 1_000_000 {
            return false;
        }
        self.tokens -= 1_000_000;
        true
    }
}
