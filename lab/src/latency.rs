//! Times of many trials: a histogram with the precision of three digits, and the papers' statistics
//! of sorted values.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::Row;
use crate::statistics::Summary;

/// The longest time that the histogram tells apart.
const LONGEST: Duration = Duration::from_secs(10);

/// A histogram of times, from a nanosecond to ten seconds, to three digits.
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> anyhow::Result<Latency> {
        Ok(Latency(Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3)?))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos().max(1) as u64);
    }

    /// Adds the times of another histogram.
    pub(crate) fn add(&mut self, other: &Latency) -> anyhow::Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    /// Returns a quantile, in microseconds.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Returns rows of the median and the tail.
    pub(crate) fn rows(&self, name: &str, parameters: &[(&str, f64)]) -> Vec<Row> {
        [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)]
            .map(|(tail, quantile)| {
                let value = [self.quantile_us(quantile)];
                let row = Row::new(&format!("{name}, {tail}"), parameters, "us", &value);
                Row { samples: self.0.len() as usize, ..row }
            })
            .into()
    }
}

/// Returns the lowest 4000 of 5120 trials, or as large a part of any other number, sorted.
pub(crate) fn lowest_part(times: &[Duration]) -> Vec<f64> {
    let mut sorted: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.truncate(lowest(sorted.len()));
    sorted
}

/// Returns the number of trials that [`lowest_part`] keeps: at least one.
pub(crate) fn lowest(trials: usize) -> usize {
    (trials * 4000 / 5120).max(1)
}

/// Returns the mean of [`lowest_part`], in microseconds.
pub(crate) fn mean_of_lowest_us(times: &[Duration]) -> f64 {
    let lowest = lowest_part(times);
    lowest.iter().sum::<f64>() / lowest.len() as f64
}

/// Returns the median, in microseconds.
pub(crate) fn median_us(times: &[Duration]) -> f64 {
    let values: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    Summary::of(&values).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_mean_leaves_the_tail_out() {
        let mut times: Vec<_> = (1..=5120).map(Duration::from_micros).collect();
        times.reverse();
        assert_eq!(lowest_part(&times).len(), 4000);
        assert!((mean_of_lowest_us(&times) - 2000.5).abs() < 1e-9);
        assert_eq!(lowest_part(&times[..100]).len(), 78);
        assert_eq!(mean_of_lowest_us(&[Duration::from_micros(7)]), 7.0);
        assert!(mean_of_lowest_us(&[]).is_nan());
        assert_eq!(median_us(&times), 2560.5);
    }

    #[test]
    fn quantiles() {
        let mut latency = Latency::new().unwrap();
        (1..=1000).for_each(|us| latency.record(Duration::from_micros(us)));
        latency.record(Duration::from_secs(1000));
        assert!((latency.quantile_us(0.5) - 500.0).abs() < 2.0);
        let rows = latency.rows("trip", &[]);
        assert_eq!(rows[1].name, "trip, p99");
        assert!((rows[1].value - 990.0).abs() < 3.0 && rows[1].samples == 1001);
    }
}
