//! The difference of two variants whose trials were measured in pairs.
//!
//! As in the paper, a trial counts if it is among the lowest 4000 of 5120 of its variant, or as
//! large a part of another number. A pair counts if both of its trials do.

use super::rounds::SEED;
use super::variant::Trial;
use crate::interval::{Interval, intervals};
use crate::latency::lowest;
use crate::statistics::Summary;

/// Parts of a run, each of which has a lowest trial of its own.
const PARTS: usize = 10;
/// The quantile that stands for the tail.
const TAIL: f64 = 0.99;

/// The second round trips of two variants, in nanoseconds; the same place is the same round.
pub(super) struct Paired {
    on: Vec<u32>,
    off: Vec<u32>,
}

/// Returns the second round trips, which count.
pub(super) fn second(trials: &[Trial]) -> Vec<u32> {
    trials.iter().map(|[_, second]| *second).collect()
}

/// Returns the `rank`-th lowest of the drawn trials, counted from 0. `memory` spares an allocation.
fn ranked(trials: &[u32], places: &[usize], rank: usize, memory: &mut Vec<u32>) -> u32 {
    memory.clear();
    memory.extend(places.iter().map(|place| trials[*place]));
    *memory.select_nth_unstable(rank.min(places.len() - 1)).1
}

impl Paired {
    pub(super) fn new(on: &[Trial], off: &[Trial]) -> Paired {
        Paired { on: second(on), off: second(off) }
    }

    /// Returns the mean difference of the pairs that count, in microseconds, and the ratio of their
    /// means.
    pub(super) fn difference(&self) -> [Interval; 2] {
        let mut memory = Vec::new();
        intervals(self.on.len(), SEED, |places| {
            let last = lowest(places.len()) - 1;
            let limits = [&self.on, &self.off].map(|of| ranked(of, places, last, &mut memory));
            let (mut on, mut off, mut pairs) = (0, 0, 0_u64);
            for place in places {
                let pair = [self.on[*place], self.off[*place]];
                if pair[0] <= limits[0] && pair[1] <= limits[1] {
                    on += u64::from(pair[0]);
                    off += u64::from(pair[1]);
                    pairs += 1;
                }
            }
            [(on as f64 - off as f64) / pairs as f64 / 1e3, on as f64 / off as f64]
        })
    }

    /// Returns the ratio of the tails.
    pub(super) fn tails(&self) -> Interval {
        let mut memory = Vec::new();
        let [tails] = intervals(self.on.len(), SEED, |places| {
            let rank = (places.len() as f64 * TAIL) as usize;
            let [on, off] = [&self.on, &self.off].map(|of| ranked(of, places, rank, &mut memory));
            [f64::from(on) / f64::from(off)]
        });
        tails
    }

    /// Returns the ratio of the lowest trials, and the number of parts of the run over whose ratios
    /// the interval reaches: a bootstrap knows nothing of an extreme value.
    pub(super) fn lowest(&self) -> (Interval, usize) {
        let ratio = |on: &[u32], off: &[u32]| {
            let [on, off] = [on, off].map(|of| of.iter().min().copied().unwrap_or_default());
            f64::from(on) / f64::from(off)
        };
        let part = self.on.len().div_ceil(PARTS);
        let parts = self.on.chunks(part).zip(self.off.chunks(part));
        let ratios: Vec<_> = parts.map(|(on, off)| ratio(on, off)).collect();
        let Summary { lowest: low, highest: high, .. } = Summary::of(&ratios);
        (Interval { value: ratio(&self.on, &self.off), low, high }, ratios.len())
    }

    pub(super) fn len(&self) -> usize {
        self.on.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// Makes pairs that share the machine's noise; `on` takes `more` longer.
    fn pairs(count: usize, more: u32) -> Paired {
        let mut random = Rng::with_seed(5);
        let mut on = Vec::new();
        let mut off = Vec::new();
        for _ in 0..count {
            let noise = random.u32(..20_000);
            let hit = if random.u32(..20) == 0 { 1_000_000 } else { 0 };
            on.push([0, 100_000 + noise + random.u32(..100) + more]);
            off.push([0, 100_000 + noise + random.u32(..100) + hit]);
        }
        Paired::new(&on, &off)
    }

    /// The noise that both trials of a pair share does not hide a difference a hundred times
    /// smaller, and neither do moments in which the machine does something else.
    #[test]
    fn pairs_show_a_difference_that_is_smaller_than_the_noise() {
        let [difference, ratio] = pairs(1000, 200).difference();
        assert!(0.15 < difference.low && difference.high < 0.25, "{difference:?}");
        assert!(1.001 < ratio.low && ratio.high < 1.003, "{ratio:?}");
        let [none, same] = pairs(1000, 0).difference();
        assert!(none.low < 0.0 && 0.0 < none.high, "{none:?}");
        assert!(same.low < 1.0 && 1.0 < same.high, "{same:?}");
    }

    #[test]
    fn a_run_of_the_fewest_trials_has_pairs_that_count() {
        let on: Vec<Trial> = (0..8).map(|n| [0, 100 + n]).collect();
        let off: Vec<Trial> = (0..8).map(|n| [0, 107 - n]).collect();
        let [difference, ratio] = Paired::new(&on, &off).difference();
        assert!(difference.value.is_finite() && ratio.value.is_finite());
    }

    #[test]
    fn the_lowest_trials_and_the_tails_are_compared() {
        let all = pairs(1000, 10_000);
        let (lowest, parts) = all.lowest();
        assert_eq!(parts, 10);
        assert!(lowest.low <= lowest.value && lowest.value <= lowest.high);
        assert!((1.08..1.12).contains(&lowest.value), "{lowest:?}");
        // One of twenty trials of `off` is hit.
        assert!(all.tails().high < 0.2, "{:?}", all.tails());
        let (few, parts) = pairs(3, 0).lowest();
        assert!(parts == 3 && few.value.is_finite());
    }
}
