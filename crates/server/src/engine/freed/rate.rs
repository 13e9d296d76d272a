//! The limit of answers.

/// Answers per second, as of a host's stack (`Limits::errors_per_second`), and Linux' `icmp_msgs_per_sec`.
const PER_SECOND: u64 = 1_000;
/// The answers that the bucket holds: those of half a second.
const BURST: u64 = PER_SECOND / 2;
/// A token, in the bucket's unit: a nanosecond's part of the rate.
const TOKEN: u64 = 1_000_000_000;

/// A token bucket. An answer takes none, one or two tokens, so that no sender learns from its own answers whether others
/// got some (as on Linux, `icmp_global_consume` in net/ipv4/icmp.c).
#[derive(Debug)]
pub(super) struct Rate {
    tokens: u64,
    updated: u64,
    random: u64,
}

impl Rate {
    pub(super) fn new(seed: u64) -> Rate {
        Rate { tokens: BURST * TOKEN, updated: 0, random: seed | 1 }
    }

    /// Takes the tokens of an answer. Returns `false` if there are none.
    pub(super) fn take(&mut self, now: u64) -> bool {
        let passed = now.saturating_sub(self.updated).min(TOKEN);
        self.updated = now;
        self.tokens = (self.tokens + passed * PER_SECOND).min(BURST * TOKEN);
        if self.tokens < TOKEN {
            return false;
        }
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.tokens = self.tokens.saturating_sub(self.random % 3 * TOKEN);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds() {
        let mut rate = Rate::new(7);
        let mut taken = |now| (0..5_000).filter(|_| rate.take(now)).count();
        assert!((400..600).contains(&taken(1)));
        assert!((60..140).contains(&taken(100_000_001)), "the tokens of a tenth of a second");
        assert_eq!(taken(100_000_001), 0);
    }
}
