//! Sequence numbers (RFC 9293, 3.4), initial ones (RFC 6528), and the origin of timestamps.

use std::ops::{Add, Sub};

use super::tuple::Tuple;
use crate::Instant;
use crate::random::Random;

/// A sequence number: a position in one direction of a connection, modulo 2^32. Comparisons hold
/// for positions less than 2^31 apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seq(pub(crate) u32);

impl Seq {
    /// Returns the distance from `earlier` to this number.
    pub(crate) fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns `true` if this number comes before `other`.
    pub(crate) fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns `true` if this number comes after `other`.
    pub(crate) fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// Returns the later one of two numbers.
    pub(crate) fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier one of two numbers.
    pub(crate) fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    fn add(self, count: u32) -> Seq {
        Seq(self.0.wrapping_add(count))
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    fn sub(self, count: u32) -> Seq {
        Seq(self.0.wrapping_sub(count))
    }
}

/// Returns the initial sequence number of a connection that starts now. It advances with the clock
/// by one every four microseconds, so that a reopened connection starts above the old one's
/// numbers; a secret function of the tuple determines its start (RFC 6528, 3).
pub(super) fn initial(now: Instant, random: &Random, tuple: &Tuple) -> Seq {
    Seq(((now.as_micros() / 4) as u32).wrapping_add(random.keyed(tuple) as u32))
}

/// Returns the timestamp clock's origin toward a peer. The clock ticks once per millisecond, within
/// the range of RFC 7323, 5.4. The same two addresses always have the same origin, so that a peer's
/// TIME-WAIT entry recognizes a newer connection (RFC 6191); it is secret, since the clock would
/// otherwise tell how long this host runs (RFC 7323, 7.1).
pub(super) fn timestamp_origin(random: &Random, tuple: &Tuple) -> u32 {
    random.keyed(&("timestamps", tuple.local.ip(), tuple.remote.ip())) as u32
}

/// Returns the timestamp clock's value.
pub(super) fn timestamp(now: Instant, origin: u32) -> u32 {
    ((now.as_micros() / 1000) as u32).wrapping_add(origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_hold_across_the_wrap() {
        for start in [0, 1, 0x7fff_fff0, 0x8000_0000, 0xffff_fff0_u32] {
            let (early, late) = (Seq(start), Seq(start) + 100);
            assert!(early.before(late) && late.after(early) && !late.before(early));
            assert_eq!((late.since(early), early.max(late), early.min(late)), (100, late, early));
            assert_eq!(late - 100, early);
        }
    }

    #[test]
    fn initial_numbers_advance_with_the_clock_and_differ_per_tuple() {
        let random = Random::new(5);
        let tuple = |port| Tuple {
            local: ([10, 0, 0, 1], port).into(),
            remote: ([10, 0, 0, 2], 80).into(),
        };
        let at = |micros, port| initial(Instant::from_micros(micros), &random, &tuple(port));
        assert_eq!(at(4_000, 1).since(at(0, 1)), 1000);
        assert_ne!(at(0, 1), at(0, 2));
        assert_ne!(initial(Instant::ZERO, &Random::new(6), &tuple(1)), at(0, 1));
    }
}
