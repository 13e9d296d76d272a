//! Slow start that ends when the round trip time grows, before the queue of the path overflows:
//! HyStart++ (RFC 9406).

use std::time::Duration;

use super::super::sequence::Seq;
use super::report::Report;

/// The bounds of the growth of the round trip time that counts (RFC 9406, 4.3).
const LEAST_GROWTH: Duration = Duration::from_millis(4);
const MOST_GROWTH: Duration = Duration::from_millis(16);
/// The part of the round trip time by which it has to grow.
const PART: u32 = 8;
/// The number of samples of a round before they count.
const SAMPLES: u8 = 8;
/// The divisor of the growth in conservative slow start, and its rounds.
const SLOWER: u32 = 4;
const ROUNDS: u8 = 5;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowStart {
    /// The end of the data in flight when the present round began.
    round: Option<Seq>,
    /// The least sample of the former round, and of the present one.
    former: Option<Duration>,
    present: Option<Duration>,
    samples: u8,
    /// In conservative slow start: the least sample at its start, and the rounds left.
    conservative: Option<(Duration, u8)>,
}

impl SlowStart {
    /// Returns the bytes by which the window grows, and `true` if slow start ends.
    pub(super) fn acknowledged(&mut self, report: &Report) -> (u32, bool) {
        if self.round.is_none_or(|end| !report.acknowledged.before(end)) {
            self.round = Some(report.sent_to);
            self.former = self.present.take();
            self.samples = 0;
            if let Some((_, left)) = &mut self.conservative {
                *left -= 1;
                if *left == 0 {
                    self.conservative = None;
                    return (report.bytes / SLOWER, true);
                }
            }
        }
        if let Some(sample) = report.sample {
            self.present = Some(self.present.map_or(sample, |present| present.min(sample)));
            self.samples = self.samples.saturating_add(1);
        }
        if let (Some(present), Some(former)) = (self.present, self.former)
            && self.samples >= SAMPLES
        {
            match self.conservative {
                None => {
                    let growth = (former / PART).clamp(LEAST_GROWTH, MOST_GROWTH);
                    if present >= former + growth {
                        self.conservative = Some((present, ROUNDS));
                    }
                }
                // The growth was a passing one.
                Some((baseline, _)) if present < baseline => self.conservative = None,
                Some(_) => {}
            }
        }
        let divisor = if self.conservative.is_some() { SLOWER } else { 1 };
        (report.bytes / divisor, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(slow_start: &mut SlowStart, number: u32, millis: u64) -> (u32, bool) {
        let mut total = (0, false);
        for step in 0..10 {
            let report = Report {
                bytes: 1000,
                sample: Some(Duration::from_millis(millis)),
                smoothed: Duration::ZERO,
                acknowledged: Seq(number * 100 + step),
                sent_to: Seq((number + 1) * 100),
            };
            let (grow, leave) = slow_start.acknowledged(&report);
            total = (total.0 + grow, total.1 | leave);
        }
        total
    }

    #[test]
    fn a_growing_round_trip_time_ends_slow_start() {
        let mut slow_start = SlowStart::default();
        assert_eq!(round(&mut slow_start, 0, 40), (10_000, false));
        assert_eq!(round(&mut slow_start, 1, 42), (10_000, false));
        let (grown, _) = round(&mut slow_start, 2, 60);
        assert!(grown < 10_000, "conservative from the eighth sample on");
        for number in 3..7 {
            assert_eq!(round(&mut slow_start, number, 60), (2500, false), "{number}");
        }
        assert!(round(&mut slow_start, 7, 60).1);
    }

    #[test]
    fn a_passing_delay_does_not() {
        let mut slow_start = SlowStart::default();
        round(&mut slow_start, 0, 40);
        round(&mut slow_start, 1, 60);
        round(&mut slow_start, 2, 40);
        assert_eq!(round(&mut slow_start, 3, 40), (10_000, false));
    }
}
