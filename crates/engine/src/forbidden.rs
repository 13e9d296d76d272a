//! The limit of packets that a session's rights forbid (the policy's
//! `forbidden-packets-per-second`).

const SECOND_NS: u64 = 1_000_000_000;

/// Counts the forbidden packets of a session within one second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forbidden {
    most: u32,
    count: u32,
    /// The begin of the second in which the packets are counted, in nanoseconds.
    since: u64,
}

impl Forbidden {
    /// Permits `most` forbidden packets per second.
    pub(crate) fn new(most: u32) -> Forbidden {
        Forbidden { most, count: 0, since: 0 }
    }

    /// Counts a packet. Returns `true` if it exceeds the limit.
    pub(crate) fn exceeds(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.since) >= SECOND_NS {
            (self.since, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count > self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_for_each_second() {
        let mut forbidden = Forbidden::new(2);
        let begin = 5 * SECOND_NS;
        let at = |forbidden: &mut Forbidden, ms: u64| forbidden.exceeds(begin + ms * 1_000_000);
        assert!(!at(&mut forbidden, 0) && !at(&mut forbidden, 999));
        assert!(!at(&mut forbidden, 1000) && !at(&mut forbidden, 1001), "another second");
        assert!(at(&mut forbidden, 1002) && at(&mut forbidden, 1999));
        assert!(!at(&mut forbidden, 2000));
        assert!(Forbidden::new(0).exceeds(begin), "none is permitted");
    }
}
