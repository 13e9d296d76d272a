//! Congestion control: how much may be in flight (RFC 5681, RFC 6928).

mod cubic;
mod report;
mod slow_start;

use std::time::Duration;

use self::cubic::Cubic;
pub(super) use self::report::Report;
use self::slow_start::SlowStart;
use crate::Instant;
use crate::config::CongestionControl;

/// The initial window, in segments (RFC 6928, 2).
const INITIAL_SEGMENTS: u32 = 10;
/// The largest window, in bytes: half of the sequence numbers that may be in flight.
const MAX_WINDOW: u32 = 1 << 30;

/// The growth of the window beyond slow start.
#[derive(Clone, Debug)]
enum Algorithm {
    Cubic(Cubic),
    /// Reno (RFC 5681, 3.1): the bytes acknowledged since the window grew.
    Reno(u32),
    /// The window stays at its largest.
    Unlimited,
}

/// See the module. Windows are in bytes.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u32,
    threshold: u32,
    segment: u32,
    algorithm: Algorithm,
    slow_start: SlowStart,
    /// Window, threshold and algorithm before the last reduction.
    before: Option<(u32, u32, Algorithm)>,
}

impl Congestion {
    pub(super) fn new(control: CongestionControl, segment: u32) -> Congestion {
        let algorithm = match control {
            CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionControl::Reno => Algorithm::Reno(0),
            CongestionControl::None => Algorithm::Unlimited,
        };
        let window = match algorithm {
            Algorithm::Unlimited => MAX_WINDOW,
            _ => initial(segment),
        };
        Congestion {
            window,
            threshold: MAX_WINDOW,
            segment,
            algorithm,
            slow_start: SlowStart::default(),
            before: None,
        }
    }

    /// Returns the number of bytes that may be in flight.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    pub(super) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Sets the size of a segment, in payload bytes. Before the first data, the window is still the
    /// initial one.
    pub(super) fn set_segment(&mut self, segment: u32, is_fresh: bool) {
        self.segment = segment;
        // A window below one segment would hold everything back.
        self.window = self.window.max(segment);
        if is_fresh && !self.is_unlimited() {
            self.window = initial(segment);
        }
    }

    fn is_unlimited(&self) -> bool {
        matches!(self.algorithm, Algorithm::Unlimited)
    }

    /// Begins with one segment, since SYNs were lost.
    pub(super) fn begin_small(&mut self) {
        let segment = self.segment;
        self.set_window(segment);
    }

    /// Lets the window grow. The caller calls this only if the window limited the sender.
    pub(super) fn acknowledged(&mut self, now: Instant, report: &Report) {
        let segment = self.segment;
        let mut bytes = report.bytes;
        if self.window < self.threshold {
            let (grow, leave) = self.slow_start.acknowledged(report);
            // Growth beyond the threshold follows the algorithm.
            let most = self.threshold - self.window;
            self.window += grow.min(most);
            if leave {
                self.threshold = self.window;
            }
            if grow < most {
                return;
            }
            bytes = bytes.saturating_sub(most);
        }
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => {
                self.window = cubic.acknowledged(now, bytes, self.window, segment, report.smoothed);
            }
            Algorithm::Reno(acknowledged) => {
                *acknowledged += bytes;
                while *acknowledged >= self.window {
                    *acknowledged -= self.window;
                    self.window += segment;
                }
            }
            Algorithm::Unlimited => {}
        }
        self.window = self.window.min(MAX_WINDOW);
    }

    /// Reduces the threshold, since the path lost or marked packets while `flight` bytes were not
    /// acknowledged: a window that was not in use says nothing of the path (RFC 5681, 3.1,
    /// equation 4; RFC 9438, 4.6). The caller then sets the window, at once or step by step.
    pub(super) fn reduce(&mut self, flight: u32) {
        let used = self.window.min(flight);
        self.before = Some((self.window, self.threshold, self.algorithm.clone()));
        self.slow_start = SlowStart::default();
        let least = 2 * self.segment;
        self.threshold = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.reduce(used, self.segment).max(least),
            Algorithm::Reno(acknowledged) => {
                *acknowledged = 0;
                (used / 2).max(least)
            }
            Algorithm::Unlimited => MAX_WINDOW,
        };
    }

    /// Sets the window during recovery.
    pub(super) fn set_window(&mut self, bytes: u32) {
        if !self.is_unlimited() {
            self.window = bytes.clamp(self.segment, MAX_WINDOW);
        }
    }

    /// Begins again with one segment after a timeout (RFC 5681, 3.1, equation 4) of `flight` bytes.
    /// `again`: an earlier timeout of the same data reduced the threshold already.
    pub(super) fn timed_out(&mut self, flight: u32, again: bool) {
        if !again {
            self.reduce(flight);
        }
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.forget();
        }
        self.slow_start = SlowStart::default();
        self.set_window(self.segment);
    }

    /// Takes the last reduction back: nothing was lost.
    pub(super) fn restore(&mut self) {
        if let Some((window, threshold, algorithm)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
            self.algorithm = algorithm;
        }
    }

    /// Ends recovery: the window is the threshold.
    pub(super) fn recovered(&mut self) {
        let threshold = self.threshold;
        self.set_window(threshold);
        self.before = None;
    }

    /// Shrinks the window after a pause, because the path may have changed (RFC 5681, 4.1). It halves
    /// per retransmission timeout, as Linux does (RFC 2861).
    pub(super) fn paused(&mut self, pause: Duration, timeout: Duration) {
        if self.is_unlimited() {
            return;
        }
        let halves = (pause.as_micros() / timeout.as_micros().max(1)).min(31) as u32;
        let least = initial(self.segment).min(self.window);
        if halves > 0 && self.window > least {
            self.threshold = self.threshold.max(self.window / 4 * 3);
            self.window = (self.window >> halves).max(least);
            if let Algorithm::Cubic(cubic) = &mut self.algorithm {
                cubic.restart();
            }
        }
    }

    /// Tells CUBIC that time passed without use of the window.
    pub(super) fn unused(&mut self, now: Instant) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.unused(now);
        }
    }
}

/// Returns the initial window (RFC 6928, 2): ten segments, at most 14 600 bytes or two segments.
fn initial(segment: u32) -> u32 {
    (INITIAL_SEGMENTS * segment).min(14_600.max(2 * segment))
}

#[cfg(test)]
mod tests {
    use super::super::sequence::Seq;
    use super::*;

    fn report(bytes: u32) -> Report {
        Report {
            bytes,
            sample: None,
            smoothed: Duration::from_millis(20),
            acknowledged: Seq(0),
            sent_to: Seq(0),
        }
    }

    #[test]
    fn the_initial_window_is_that_of_rfc_6928() {
        for (segment, bytes) in [(536, 5360), (1460, 14_600), (8960, 17_920), (1000, 10_000)] {
            assert_eq!(Congestion::new(CongestionControl::Reno, segment).window(), bytes);
        }
    }

    #[test]
    fn reno_doubles_then_adds_one_segment_per_window() {
        let mut reno = Congestion::new(CongestionControl::Reno, 1000);
        reno.acknowledged(Instant::ZERO, &report(10_000));
        assert_eq!(reno.window(), 20_000);
        reno.reduce(20_000);
        assert_eq!(reno.threshold(), 10_000);
        reno.recovered();
        for _ in 0..10 {
            assert_eq!(reno.window(), 10_000);
            reno.acknowledged(Instant::ZERO, &report(1000));
        }
        assert_eq!(reno.window(), 11_000);
        reno.restore();
        assert_eq!(reno.window(), 11_000, "recovered for good");
    }

    #[test]
    fn a_window_holds_at_least_one_segment() {
        let mut reno = Congestion::new(CongestionControl::Reno, 500);
        reno.timed_out(5000, false);
        reno.set_segment(1448, false);
        assert_eq!(reno.window(), 1448);
    }

    #[test]
    fn a_timeout_begins_with_one_segment_and_can_be_taken_back() {
        let mut reno = Congestion::new(CongestionControl::Reno, 1000);
        reno.timed_out(10_000, false);
        reno.timed_out(10_000, true);
        assert_eq!((reno.window(), reno.threshold()), (1000, 5000));
        reno.restore();
        assert_eq!((reno.window(), reno.threshold()), (10_000, MAX_WINDOW));
    }

    #[test]
    fn a_pause_halves_the_window_down_to_the_initial_one() {
        let mut reno = Congestion::new(CongestionControl::Reno, 1000);
        reno.acknowledged(Instant::ZERO, &report(90_000));
        let second = Duration::from_secs(1);
        reno.paused(second / 2, second);
        assert_eq!(reno.window(), 100_000);
        reno.paused(second * 2, second);
        assert_eq!(reno.window(), 25_000);
        reno.paused(second * 100, second);
        assert_eq!(reno.window(), 10_000);
    }
}
