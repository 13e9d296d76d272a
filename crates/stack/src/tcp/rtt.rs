//! The round trip time, and the retransmission timeout that follows from it (RFC 6298).

use std::time::Duration;

use crate::Instant;

/// The timeout before the first measurement (RFC 6298, 2.1).
const FIRST: Duration = Duration::from_secs(1);
/// The same after the loss of a SYN (RFC 6298, 5.7).
const CAREFUL: Duration = Duration::from_secs(3);
/// The least that the timeout exceeds the round trip time. Linux has the same (`TCP_RTO_MIN` in
/// `include/net/tcp.h`). RFC 6298, 2.4, asks for a timeout of a second, for coarse clocks; the
/// margin must be longer than peers delay an acknowledgement.
const MARGIN: Duration = Duration::from_millis(200);
/// The longest timeout (RFC 6298, 2.5).
const LONGEST: Duration = Duration::from_secs(60);
/// The time for which a least round trip time counts. Paths change.
const MINIMUM_LASTS: Duration = Duration::from_secs(30);
const MAX_BACKOFF: u8 = 16;

/// See the module. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rtt {
    /// The smoothed round trip time (SRTT).
    smoothed: u32,
    /// Its variation (RTTVAR).
    variation: u32,
    /// The least sample of the present and of the former period.
    least: [u32; 2],
    period: Instant,
    /// The number of times that the timeout was doubled.
    backoff: u8,
    measured: bool,
    /// `true` if the first timeout is three seconds instead of one.
    careful: bool,
}

impl Rtt {
    /// Adds a sample (RFC 6298, 2.2 and 2.3).
    pub(super) fn measure(&mut self, now: Instant, sample: Duration) {
        let sample = u32::try_from(sample.as_micros()).unwrap_or(u32::MAX).clamp(1, 1 << 30);
        if !self.measured {
            self.measured = true;
            self.smoothed = sample;
            self.variation = sample / 2;
            self.least = [sample; 2];
            self.period = now;
            return;
        }
        let off = self.smoothed.abs_diff(sample);
        self.variation = (self.variation * 3 + off) / 4;
        self.smoothed = ((u64::from(self.smoothed) * 7 + u64::from(sample)) / 8) as u32;
        if now.since(self.period) > MINIMUM_LASTS {
            self.period = now;
            self.least = [sample, self.least[0]];
        }
        self.least[0] = self.least[0].min(sample);
    }

    /// Returns the smoothed round trip time, if one was measured.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.measured.then(|| Duration::from_micros(self.smoothed.into()))
    }

    /// Returns the least round trip time of the last minute, or zero without a measurement.
    pub(super) fn least(&self) -> Duration {
        Duration::from_micros(self.least[0].min(self.least[1]).into())
    }

    /// Returns the timeout, with its doublings.
    pub(super) fn timeout(&self) -> Duration {
        let once = if self.measured {
            let variation = Duration::from_micros(self.variation.into()) * 4;
            Duration::from_micros(self.smoothed.into()) + variation.max(MARGIN)
        } else {
            if self.careful { CAREFUL } else { FIRST }
        };
        (once * (1 << self.backoff)).min(LONGEST)
    }

    /// Makes the timeout before the first measurement longer.
    pub(super) fn be_careful(&mut self) {
        self.careful = true;
    }

    /// Doubles the timeout (RFC 6298, 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Ends the doubling: new data was acknowledged.
    pub(super) fn progress(&mut self) {
        self.backoff = 0;
    }

    /// Returns the number of doublings.
    pub(super) fn backoff(&self) -> u8 {
        self.backoff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_timeout_follows_the_path_and_doubles() {
        let mut rtt = Rtt::default();
        assert_eq!((rtt.timeout(), rtt.smoothed()), (ms(1000), None));
        rtt.back_off();
        assert_eq!(rtt.timeout(), ms(2000));
        rtt.progress();
        rtt.measure(Instant::ZERO, ms(400));
        assert_eq!(rtt.timeout(), ms(400 + 4 * 200));
        for _ in 0..200 {
            rtt.measure(Instant::ZERO, ms(100));
        }
        assert!(rtt.timeout() >= ms(300) && rtt.timeout() < ms(301), "{:?}", rtt.timeout());
        for _ in 0..40 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(), LONGEST);
    }

    #[test]
    fn the_least_time_is_forgotten() {
        let mut rtt = Rtt::default();
        rtt.measure(Instant::ZERO, ms(10));
        for second in 1..=100 {
            rtt.measure(Instant::from_millis(second * 1000), ms(50));
            if second < 30 {
                assert_eq!(rtt.least(), ms(10));
            }
        }
        assert_eq!(rtt.least(), ms(50));
    }
}
