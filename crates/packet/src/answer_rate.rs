//! The limit of answers per second, such as resets and ICMP errors.

/// One token, in the bucket's unit: billionths of a token. The bucket gains its rate per second in each nanosecond.
const TOKEN: u64 = 1_000_000_000;

/// A token bucket that holds the answers of half a second, at least one.
///
/// All senders share the bucket. If each answer took one token, a sender could forge segments in the
/// name of another host, and count the answers that are left for itself. The count would tell whether
/// the forged segments were answered (Man et al., "DNS Cache Poisoning Attack Reloaded", 2020). So an
/// answer takes one token only on average, as on Linux (`icmp_global_consume` in net/ipv4/icmp.c).
///
/// ```
/// let mut rate = towpath_packet::AnswerRate::new(1_000, 0);
/// assert!(rate.take(0, 1));
/// ```
#[derive(Debug)]
pub struct AnswerRate {
    per_second: u32,
    tokens: u64,
    updated: u64,
}

impl AnswerRate {
    /// Returns a full bucket for `per_second` answers at the time `now_ns`, in nanoseconds.
    #[must_use]
    pub fn new(per_second: u32, now_ns: u64) -> AnswerRate {
        AnswerRate { per_second, tokens: Self::full(per_second), updated: now_ns }
    }

    fn full(per_second: u32) -> u64 {
        (u64::from(per_second) * TOKEN / 2).max(TOKEN)
    }

    /// Takes no token, one or two, by the number `random`. Returns `false` if the bucket has no token: the caller
    /// must not answer. `now_ns`: the time in nanoseconds.
    pub fn take(&mut self, now_ns: u64, random: u64) -> bool {
        let passed = now_ns.saturating_sub(self.updated).min(TOKEN);
        self.updated = now_ns;
        let full = Self::full(self.per_second);
        self.tokens = (self.tokens + passed * u64::from(self.per_second)).min(full);
        if self.tokens < TOKEN {
            return false;
        }
        self.tokens = self.tokens.saturating_sub(random % 3 * TOKEN);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn the_rate_holds_and_the_count_tells_nothing() {
        let counts = [1u64, 2, 3].map(|seed| {
            let (mut rate, mut random) = (AnswerRate::new(1000, 0), Rng::with_seed(seed));
            let mut taken = |now| (0..5000).filter(|_| rate.take(now, random.u64(..))).count();
            let first = taken(0);
            // The tokens of a tenth of a second.
            let second = taken(100_000_000);
            assert!((400..600).contains(&first) && (60..140).contains(&second));
            assert_eq!(taken(100_000_000), 0);
            first
        });
        assert!(counts[0] != counts[1] || counts[1] != counts[2], "{counts:?}");
    }
}
