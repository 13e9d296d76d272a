//! SYN cookies (RFC 4987, 3.6): once the table of half-open connections is full, the initial number
//! of our answer holds all that the connection needs, and the stack keeps nothing.
//!
//! The number has 27 bits of a keyed hash over the tuple, the peer's number and the time in units of
//! 64 s, 3 bits for the segment size, and 2 bits for the time. If the peer uses timestamps, the lowest bits of
//! ours hold the other options, as Linux does it.

use std::time::Duration;

use super::half_open::Agreement;
use super::sequence::Seq;
use super::tuple::Tuple;
use crate::Instant;
use crate::random::Random;

/// Segment sizes that a cookie can hold; the next lower one stands for the peer's.
const SIZES: [u16; 8] = [48, 536, 1220, 1300, 1360, 1440, 1460, 8960];
/// The unit of a cookie's age. A cookie is valid in its own unit and in the next one.
const UNIT: Duration = Duration::from_secs(64);
/// The shift that stands for "no scaling" in a timestamp.
const NO_SHIFT: u32 = 15;
/// The bits of a timestamp that hold options.
const OPTION_BITS: u32 = 6;
const OPTIONS: u32 = (1 << OPTION_BITS) - 1;

/// The makers of cookies.
#[derive(Debug, Default)]
pub(super) struct Cookies {
    /// The time of the last cookie sent. Only while cookies are in use does an acknowledgement
    /// without a connection count as an answer to one.
    last: Option<Instant>,
}

fn unit(now: Instant) -> u64 {
    now.as_micros() / UNIT.as_micros() as u64
}

fn number(random: &Random, tuple: &Tuple, theirs: Seq, unit: u64, size: u32) -> Seq {
    let hash = random.keyed(&("cookie", tuple, theirs, unit, size)) as u32;
    Seq((hash << 5) | size << 2 | (unit as u32 & 3))
}

impl Cookies {
    /// Returns `true` if a cookie was sent that may still be answered.
    pub(super) fn are_in_use(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.since(last) < 2 * UNIT)
    }

    /// Returns our initial number for a connection, with the segment size that it holds.
    pub(super) fn make(
        &mut self,
        now: Instant,
        random: &Random,
        tuple: &Tuple,
        theirs: Seq,
        mss: Option<u16>,
    ) -> Seq {
        self.last = Some(now);
        let mss = mss.unwrap_or(536);
        let size = SIZES.iter().rposition(|&size| size <= mss).unwrap_or(0) as u32;
        number(random, tuple, theirs, unit(now), size)
    }

    /// Returns what a cookie holds, if an acknowledgement answers one. `echo`: the peer's clock,
    /// and the echo of ours.
    pub(super) fn read(
        &self,
        now: Instant,
        random: &Random,
        tuple: &Tuple,
        theirs: Seq,
        ours: Seq,
        echo: Option<(u32, u32)>,
    ) -> Option<Agreement> {
        if !self.are_in_use(now) {
            return None;
        }
        let size = ours.0 >> 2 & 7;
        let present = unit(now);
        let valid = [Some(present), present.checked_sub(1)]
            .into_iter()
            .flatten()
            .any(|unit| number(random, tuple, theirs, unit, size) == ours);
        if !valid {
            return None;
        }
        let options = echo.map(|(_, echo)| echo & OPTIONS);
        let shift = options.map(|bits| bits & 15).filter(|&shift| shift != NO_SHIFT);
        Some(Agreement {
            theirs,
            ours,
            mss: Some(SIZES[size as usize]),
            shift: shift.map(|shift| (shift as u8).min(super::options::MAX_SHIFT)),
            selective: options.is_some_and(|bits| bits & 16 != 0),
            clock: echo.map(|(clock, _)| clock),
            ecn: options.is_some_and(|bits| bits & 32 != 0),
            window: 0,
        })
    }
}

/// Returns the largest value of our clock, up to `clock`, that holds the options.
pub(super) fn stamp(clock: u32, agreement: &Agreement) -> u32 {
    let bits = agreement.shift.map_or(NO_SHIFT, u32::from)
        | u32::from(agreement.selective) << 4
        | u32::from(agreement.ecn) << 5;
    let stamp = (clock & !OPTIONS) | bits;
    if stamp.wrapping_sub(clock) as i32 > 0 { stamp.wrapping_sub(1 << OPTION_BITS) } else { stamp }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        Tuple { local: ([10, 0, 0, 1], 80).into(), remote: ([10, 0, 0, 2], port).into() }
    }

    #[test]
    fn a_cookie_returns_what_it_holds_and_no_other_does() {
        let random = Random::new(1);
        let mut cookies = Cookies::default();
        let (now, theirs) = (Instant::from_millis(100_000), Seq(77));
        assert!(cookies.read(now, &random, &tuple(1), theirs, Seq(5), None).is_none());
        for (mss, held) in [(None, 536), (Some(1460), 1460), (Some(1459), 1440), (Some(9), 48)] {
            let ours = cookies.make(now, &random, &tuple(1), theirs, mss);
            let read = |port, theirs, ours, seconds| {
                let now = now + Duration::from_secs(seconds);
                cookies.read(now, &random, &tuple(port), theirs, ours, None)
            };
            let agreement = read(1, theirs, ours, 1).unwrap();
            assert_eq!((agreement.mss, agreement.shift), (Some(held), None));
            assert!(read(1, theirs, ours, 60).is_some());
            assert!(read(1, theirs, ours, 130).is_none(), "too old");
            assert!(read(2, theirs, ours, 1).is_none(), "another peer");
            assert!(read(1, theirs + 1, ours, 1).is_none(), "another number");
            let forged = (0..32).filter(|bit| read(1, theirs, Seq(ours.0 ^ 1 << bit), 1).is_some());
            assert_eq!(forged.count(), 0);
        }
    }

    #[test]
    fn timestamps_hold_the_options() {
        let random = Random::new(1);
        let mut cookies = Cookies::default();
        let now = Instant::ZERO;
        let ours = cookies.make(now, &random, &tuple(1), Seq(0), Some(1460));
        for shift in [None, Some(0), Some(7), Some(14)] {
            for (selective, ecn) in [(false, false), (true, false), (true, true)] {
                let plain = cookies.read(now, &random, &tuple(1), Seq(0), ours, None).unwrap();
                let wanted = Agreement { shift, selective, ecn, clock: Some(9), ..plain };
                for clock in [0, 63, 64, 1000, u32::MAX] {
                    let stamp = stamp(clock, &wanted);
                    assert!(clock.wrapping_sub(stamp) < 64, "{clock} {stamp}");
                    let echo = Some((9, stamp));
                    let read = cookies.read(now, &random, &tuple(1), Seq(0), ours, echo);
                    assert_eq!(read, Some(wanted));
                }
            }
        }
    }
}
