//! CUBIC (RFC 9438). Windows are in segments here.

use std::time::Duration;

use crate::Instant;

/// The multiplicative decrease (RFC 9438, 4.6).
const BETA: f32 = 0.7;
/// The scale of the cubic function, in segments per second cubed (RFC 9438, 5).
const C: f32 = 0.4;
/// The growth per window that is as fair as Reno's (RFC 9438, 4.3).
const ALPHA: f32 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// The window before the last reduction, or less for fast convergence.
    w_max: f32,
    /// The window before the last reduction.
    prior: f32,
    /// The time of the cubic function at which it reaches `w_max`, in seconds.
    k: f32,
    /// The start of the present growth.
    epoch: Option<Instant>,
    /// The window that Reno would have.
    reno: f32,
    /// The part of a byte by which the window has still to grow.
    rest: f32,
    last: Instant,
}

impl Cubic {
    /// Returns the window after an acknowledgement of `bytes` (RFC 9438, 4.2 to 4.5).
    pub(super) fn acknowledged(
        &mut self,
        now: Instant,
        bytes: u32,
        window: u32,
        segment: u32,
        round_trip: Duration,
    ) -> u32 {
        let segment = segment as f32;
        let (acknowledged, cwnd) = (bytes as f32 / segment, window as f32 / segment);
        if self.epoch.is_none() {
            self.epoch = Some(now);
            self.reno = cwnd;
            if self.w_max <= cwnd {
                self.w_max = cwnd;
                self.k = 0.0;
            } else {
                self.k = ((self.w_max - cwnd) / C).cbrt();
            }
        }
        self.last = now;
        let t = now.since(self.epoch.unwrap_or(now)).as_secs_f32();
        let cubic = |t: f32| C * (t - self.k).powi(3) + self.w_max;
        let alpha = if self.reno >= self.prior { 1.0 } else { ALPHA };
        self.reno += alpha * acknowledged / cwnd;
        let grown = if cubic(t) < self.reno {
            self.reno.max(cwnd)
        } else {
            let target = cubic(t + round_trip.as_secs_f32()).clamp(cwnd, 1.5 * cwnd);
            cwnd + (target - cwnd) / cwnd * acknowledged
        };
        let bytes = (grown - cwnd) * segment + self.rest;
        self.rest = bytes.fract();
        window.saturating_add(bytes as u32)
    }

    /// Returns the window after a loss, in bytes (RFC 9438, 4.6 and 4.7).
    pub(super) fn reduce(&mut self, window: u32, segment: u32) -> u32 {
        let cwnd = window as f32 / segment as f32;
        self.prior = cwnd;
        self.w_max = if cwnd < self.w_max { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        self.epoch = None;
        self.rest = 0.0;
        (window as f32 * BETA) as u32
    }

    /// Lets the growth after a timeout begin at the window of that time (RFC 9438, 4.8).
    pub(super) fn forget(&mut self) {
        self.w_max = 0.0;
    }

    /// Begins a new growth from the present window.
    pub(super) fn restart(&mut self) {
        self.epoch = None;
    }

    /// Lets the time since the last acknowledgement not count: the window was not used
    /// (RFC 9438, 4.2: "application-limited").
    pub(super) fn unused(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            *epoch = *epoch + now.since(self.last);
        }
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window returns to its former size after K seconds, and then grows beyond.
    #[test]
    fn the_window_follows_the_cubic_function() {
        let mut cubic = Cubic::default();
        let mut window = 1_000_000;
        window = cubic.reduce(window, 1000);
        assert_eq!(window, 700_000);
        // K = cbrt((1000 - 700) / 0.4) = 9.09 s.
        let rtt = Duration::from_millis(100);
        let mut at = Vec::new();
        for round in 0..140u64 {
            let now = Instant::from_millis(round * 100);
            window = cubic.acknowledged(now, window, window, 1000, rtt);
            at.push(window);
        }
        assert!((980_000..1_010_000).contains(&at[91]), "{}", at[91]);
        assert!(at[120] > 1_000_000 && at[45] < 990_000 && at[45] > 900_000, "{}", at[45]);
        assert!(at.windows(2).all(|two| two[0] <= two[1]));
    }

    /// On short paths CUBIC grows at least as Reno does.
    #[test]
    fn short_paths_grow_as_reno_does() {
        let mut cubic = Cubic::default();
        let mut window = cubic.reduce(20_000, 1000);
        let rtt = Duration::from_millis(1);
        for round in 0..100u64 {
            let now = Instant::from_millis(round);
            window = cubic.acknowledged(now, window, window, 1000, rtt);
        }
        // 14 segments, and at least 0.53 per round until 20, then one per round.
        assert!(window >= 90_000, "{window}");
    }

    #[test]
    fn a_second_loss_below_the_last_window_gives_way() {
        let mut cubic = Cubic::default();
        let window = cubic.reduce(100_000, 1000);
        cubic.reduce(window, 1000);
        assert!((cubic.w_max - 59.5).abs() < 0.1, "{}", cubic.w_max);
    }

    /// After a timeout the window does not climb back to its former size (RFC 9438, 4.8).
    #[test]
    fn growth_after_a_timeout_begins_flat() {
        let grown = |timed_out: bool| {
            let mut cubic = Cubic::default();
            let mut window = cubic.reduce(1_000_000, 1000);
            if timed_out {
                cubic.forget();
            }
            for round in 0..20u64 {
                let now = Instant::from_millis(round * 100);
                window = cubic.acknowledged(now, window, window, 1000, Duration::from_millis(100));
            }
            window
        };
        assert!(
            grown(false) > 800_000 && grown(true) < 730_000,
            "{} {}",
            grown(false),
            grown(true)
        );
    }
}
