//! Confidence intervals of things that were measured side by side, round by round.
//!
//! The method is a circular block bootstrap: a resample has as many rounds as were measured, drawn
//! as blocks of successive rounds, of which the last continues with the first. A round is drawn
//! whole, so the trials of a pair stay together. Blocks keep the resemblance of neighbouring
//! rounds, which a noisy machine causes: single rounds would give intervals that are too narrow.

use fastrand::Rng;

use crate::report::Row;

/// Resamples.
pub(crate) const RESAMPLES: usize = 1000;
/// The part of the resamples that lies inside of an interval.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// A value and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// Returns a row whose spread is the interval.
    pub(crate) fn row(
        self,
        name: &str,
        parameters: &[(&str, f64)],
        unit: &str,
        samples: usize,
    ) -> Row {
        let row = Row::new(name, parameters, unit, &[self.value]);
        Row { spread: [self.low, self.high], samples, ..row }
    }
}

/// Returns the number of rounds of a block: the cube root of all, rounded up.
pub(crate) fn block(rounds: usize) -> usize {
    (1..).find(|block| block * block * block >= rounds).unwrap_or(1)
}

/// Returns `statistic` of all rounds, with the intervals of its values. `statistic` gets the
/// numbers of the rounds that count, with repetitions.
pub(crate) fn intervals<const N: usize>(
    rounds: usize,
    seed: u64,
    mut statistic: impl FnMut(&[usize]) -> [f64; N],
) -> [Interval; N] {
    let all: Vec<usize> = (0..rounds).collect();
    let values = statistic(&all);
    let mut random = Rng::with_seed(seed);
    let mut drawn = [const { Vec::new() }; N];
    let mut places = Vec::with_capacity(rounds);
    for _ in 0..RESAMPLES {
        places.clear();
        while places.len() < rounds {
            let first = random.usize(..rounds);
            let block = block(rounds).min(rounds - places.len());
            places.extend((first..first + block).map(|place| place % rounds));
        }
        for (drawn, value) in drawn.iter_mut().zip(statistic(&places)) {
            drawn.push(value);
        }
    }
    let outside = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
    let mut of_each = drawn.into_iter().zip(values).map(|(mut drawn, value)| {
        drawn.sort_by(f64::total_cmp);
        Interval { value, low: drawn[outside], high: drawn[RESAMPLES - 1 - outside] }
    });
    std::array::from_fn(|_| of_each.next().expect("as many as there are values"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(values: &[f64], places: &[usize]) -> f64 {
        places.iter().map(|place| values[*place]).sum::<f64>() / places.len() as f64
    }

    /// Of many samples of one distribution, about 95 of 100 intervals hold its mean.
    #[test]
    fn intervals_hold_the_true_value_as_often_as_they_say() {
        let mut random = Rng::with_seed(7);
        let mut held = 0;
        for seed in 0..200 {
            let values: Vec<f64> = (0..400).map(|_| random.u32(..1000).into()).collect();
            let [one] = intervals(values.len(), seed, |places| [mean(&values, places)]);
            assert!(one.low <= one.value && one.value <= one.high);
            held += usize::from(one.low <= 499.5 && 499.5 <= one.high);
        }
        assert!((176..=199).contains(&held), "{held} of 200");
    }

    /// Rounds that resemble their neighbours are worth less than as many independent ones.
    #[test]
    fn blocks_widen_the_interval_of_rounds_that_resemble_each_other() {
        let mut random = Rng::with_seed(3);
        let single: Vec<f64> = (0..1000).map(|_| random.u32(..1000).into()).collect();
        let slow: Vec<f64> = (0..1000).map(|place| single[place / 20 * 20]).collect();
        let width = |values: &[f64]| {
            let [one] = intervals(values.len(), 1, |places| [mean(values, places)]);
            one.high - one.low
        };
        assert!(width(&slow) > 2.0 * width(&single), "{} {}", width(&slow), width(&single));
    }

    #[test]
    fn values_that_do_not_vary_have_a_narrow_interval() {
        let [one, other] = intervals(9, 1, |places| [2.0, places.len() as f64]);
        assert_eq!((one.low, one.value, one.high), (2.0, 2.0, 2.0));
        assert_eq!(other.value, 9.0, "a resample has as many rounds");
        assert_eq!([1, 8, 9, 1000, 5120].map(block), [1, 2, 3, 10, 18]);
        let row = Interval { value: 1.0, low: 0.5, high: 1.5 }.row("r", &[], "ratio", 9);
        assert_eq!((row.spread, row.samples), ([0.5, 1.5], 9));
    }
}
