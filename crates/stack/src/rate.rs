//! A token bucket that limits how often the stack sends something.

use crate::Instant;
use crate::random::Random;

/// A token in the bucket's unit.
const TOKEN: u64 = 1_000_000;

/// A bucket that holds the tokens of half a second, at least one.
///
/// All senders share it. If each answer took one token, a sender could find out whether segments
/// that it forged in another one's name were answered: by how many answers are left for itself (Man
/// et al., "DNS Cache Poisoning Attack Reloaded", 2020). So an answer takes one token only on
/// average, as on Linux (`icmp_global_consume` in net/ipv4/icmp.c).
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
        (u64::from(per_second) * TOKEN / 2).max(TOKEN)
    }

    /// Takes no token, one or two. Returns `false` if there is none.
    pub(crate) fn take(&mut self, now: Instant, random: &mut Random) -> bool {
        let micros = now.since(self.updated).as_micros().min(1_000_000) as u64;
        self.updated = now;
        let full = Self::full(self.per_second);
        self.tokens = (self.tokens + micros * u64::from(self.per_second)).min(full);
        if self.tokens < TOKEN {
            return false;
        }
        self.tokens = self.tokens.saturating_sub(random.next() % 3 * TOKEN);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_and_the_count_tells_nothing() {
        let counts = [1, 2, 3].map(|seed| {
            let (mut rate, mut random) = (Rate::new(1000, Instant::ZERO), Random::new(seed));
            let mut taken = |now| (0..5000).filter(|_| rate.take(now, &mut random)).count();
            let first = taken(Instant::ZERO);
            // The tokens of a tenth of a second.
            let second = taken(Instant::from_millis(100));
            assert!((400..600).contains(&first) && (60..140).contains(&second));
            first
        });
        assert!(counts[0] != counts[1] || counts[1] != counts[2], "{counts:?}");
    }
}
