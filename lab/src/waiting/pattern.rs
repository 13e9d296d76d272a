//! Times at which frames are sent: patterns that a wait strategy must handle.

use std::time::Duration;

use fastrand::Rng;

/// Returns an exponentially distributed gap between independent frames.
fn gap(random: &mut Rng, mean_ns: f64) -> f64 {
    -mean_ns * (1.0 - random.f64()).ln()
}

/// One of the patterns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// Evenly, this many per second.
    Even(f64),
    /// At random times, this many per second.
    Steady(f64),
    /// This many together, this many times per second.
    Bursts { frames: u32, per_s: f64 },
    /// Steady for the first part of each period, and nothing in the rest.
    OnOff { per_s: f64, on_ms: f64, off_ms: f64 },
    /// Steps of a twentieth to a fifth of a second, each steady or in bursts, by a seed.
    Steps(u64),
}

impl Pattern {
    /// Returns the times of frames, in nanoseconds from the start.
    pub(crate) fn times(&self, window: Duration) -> Vec<u64> {
        let end = window.as_nanos() as f64;
        let mut random = Rng::with_seed(0x70_77);
        let mut times = Vec::new();
        match *self {
            Pattern::Even(per_s) => {
                let count = (end / 1e9 * per_s) as u64;
                times.extend((0..count).map(|number| (number as f64 * 1e9 / per_s) as u64));
            }
            Pattern::Steady(per_s) => steady(&mut random, 0.0, end, per_s, &mut times),
            Pattern::Bursts { frames, per_s } => {
                bursts(&mut random, 0.0, end, (frames, per_s), &mut times);
            }
            Pattern::OnOff { per_s, on_ms, off_ms } => {
                let mut at = 0.0;
                while at < end {
                    steady(&mut random, at, (at + on_ms * 1e6).min(end), per_s, &mut times);
                    at += (on_ms + off_ms) * 1e6;
                }
            }
            Pattern::Steps(seed) => {
                let mut random = Rng::with_seed(seed);
                let mut at = 0.0;
                while at < end {
                    let until = (at + 50e6 + random.f64() * 150e6).min(end);
                    // From 100 to 100 000 per second, each order of magnitude equally often.
                    let per_s = 10_f64.powf(2.0 + 3.0 * random.f64());
                    if random.f64() < 0.5 {
                        steady(&mut random, at, until, per_s, &mut times);
                    } else {
                        let frames = 2 + (random.f64() * 30.0) as u32;
                        let bursts_per_s = per_s / f64::from(frames);
                        bursts(&mut random, at, until, (frames, bursts_per_s), &mut times);
                    }
                    at = until;
                }
            }
        }
        times
    }
}

fn steady(random: &mut Rng, start: f64, end: f64, per_s: f64, times: &mut Vec<u64>) {
    let mut at = start;
    loop {
        at += gap(random, 1e9 / per_s);
        if at >= end {
            return;
        }
        times.push(at as u64);
    }
}

fn bursts(
    random: &mut Rng,
    start: f64,
    end: f64,
    (frames, per_s): (u32, f64),
    times: &mut Vec<u64>,
) {
    let mut at = start;
    loop {
        at += gap(random, 1e9 / per_s);
        if at >= end {
            return;
        }
        times.extend((0..frames).map(|_| at as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_keep_their_rates_and_repeat() {
        let window = Duration::from_secs(2);
        let rate = |pattern: &Pattern| pattern.times(window).len() as f64 / 2.0;
        assert_eq!(rate(&Pattern::Even(1000.0)), 1000.0);
        assert!((rate(&Pattern::Steady(10_000.0)) - 10_000.0).abs() < 300.0);
        let bursts = Pattern::Bursts { frames: 32, per_s: 100.0 };
        assert!((rate(&bursts) - 3200.0).abs() < 700.0);
        let half = Pattern::OnOff { per_s: 10_000.0, on_ms: 50.0, off_ms: 50.0 };
        assert!((rate(&half) - 5000.0).abs() < 300.0);
        for seed in 1..=20 {
            let times = Pattern::Steps(seed).times(window);
            assert_eq!(times, Pattern::Steps(seed).times(window));
            assert!(times.is_sorted() && times.len() > 100, "{seed}");
            assert_ne!(times, Pattern::Steps(seed + 1).times(window));
        }
    }
}
