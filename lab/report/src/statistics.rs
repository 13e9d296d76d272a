//! Medians, spreads and pairs.

/// The summary of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle value.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
}

impl Summary {
    /// Summarises these values; without values, all fields are NaN.
    #[must_use]
    pub fn of(values: &[f64]) -> Summary {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(lowest), Some(highest)) = (sorted.first(), sorted.last()) else {
            return Summary { median: f64::NAN, lowest: f64::NAN, highest: f64::NAN };
        };
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Summary { median, lowest: *lowest, highest: *highest }
    }
}

/// The 97.5 % quantiles of Student's t, for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Returns the 97.5 % quantile of Student's t: times a standard error, half the width of a 95 %
/// confidence interval. Not a number without a degree of freedom.
#[must_use]
pub fn student(degrees: usize) -> f64 {
    match degrees.checked_sub(1) {
        None => f64::NAN,
        // From here on less than 2.5 % above the normal distribution's 1.96.
        Some(place) => STUDENT.get(place).copied().unwrap_or(2.0),
    }
}

/// Returns the mean of some values, and half the width of its 95 % confidence interval.
#[must_use]
pub fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let free = values.len().saturating_sub(1);
    (mean, student(free) * (squares / free as f64 / count).sqrt())
}

/// One measurement: a value, or the reason for its absence.
pub type Measured<'a, T = f64> = &'a mut dyn FnMut() -> anyhow::Result<T>;

/// Measures several things in turn, as [`Pairs::measure`] does two: every other round in reverse
/// order. An additional first round is dropped. Returns the values of each.
///
/// # Errors
/// The first error of any.
pub fn in_turn<T: Clone>(
    count: usize,
    things: &mut [Measured<'_, T>],
) -> anyhow::Result<Vec<Vec<T>>> {
    for thing in &mut *things {
        thing()?;
    }
    let mut values = vec![Vec::with_capacity(count); things.len()];
    for round in 0..count {
        for place in 0..things.len() {
            let place = if round % 2 == 0 { place } else { things.len() - 1 - place };
            values[place].push(things[place]()?);
        }
    }
    Ok(values)
}

/// Returns the ratios of values that were measured in the same rounds.
#[must_use]
pub fn ratios(ours: &[f64], base: &[f64]) -> Vec<f64> {
    ours.iter().zip(base).map(|(ours, base)| ours / base).collect()
}

/// Two things measured in turn.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// The values of the subject.
    pub ours: Vec<f64>,
    /// The values of the comparison.
    pub base: Vec<f64>,
}

impl Pairs {
    /// Measures two things in turn, each first in every other pair, so that drift affects both
    /// alike. An additional first pair is dropped: it warms pages and caches.
    ///
    /// # Errors
    /// The first error of either.
    pub fn measure(
        count: usize,
        mut ours: impl FnMut() -> anyhow::Result<f64>,
        mut base: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Pairs> {
        let mut values = in_turn(count, &mut [&mut ours, &mut base])?.into_iter();
        let (ours, base) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
        Ok(Pairs { ours, base })
    }

    /// Returns each pair's ratio: ours divided by the base.
    #[must_use]
    pub fn ratios(&self) -> Vec<f64> {
        ratios(&self.ours, &self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_the_median() {
        let one = Summary::of(&[3.0, 1.0, 2.0]);
        assert_eq!((one.lowest, one.median, one.highest), (1.0, 2.0, 3.0));
        assert_eq!(Summary::of(&[4.0, 1.0]).median, 2.5);
        assert!(Summary::of(&[]).median.is_nan());
    }

    #[test]
    fn the_mean_has_a_confidence_interval() {
        // The standard deviation is 2, of five values.
        let (mean, margin) = super::mean(&[8.0, 8.0, 10.0, 12.0, 12.0]);
        assert_eq!(mean, 10.0);
        assert!((margin - 2.776 * 2.0 / 5.0_f64.sqrt()).abs() < 1e-9, "{margin}");
        assert!(super::mean(&[1.0]).1.is_nan() && student(0).is_nan());
        assert_eq!((student(1), student(30), student(1000)), (12.706, 2.042, 2.0));
    }

    #[test]
    fn pairs_are_taken_in_turn() {
        let order = std::cell::RefCell::new(String::new());
        let one = |name: char, value: f64| {
            order.borrow_mut().push(name);
            Ok(value)
        };
        let pairs = Pairs::measure(3, || one('a', 3.0), || one('b', 2.0)).unwrap();
        assert_eq!(pairs.ratios(), [1.5; 3]);
        assert_eq!(order.into_inner(), "abab".to_owned() + "ba" + "ab");
    }

    #[test]
    fn three_are_taken_in_turn() {
        let order = std::cell::RefCell::new(String::new());
        let one = |name: char| {
            let mut value = 0.0;
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                value += 1.0;
                Ok(value)
            }
        };
        let values = in_turn(2, &mut [&mut one('a'), &mut one('b'), &mut one('c')]).unwrap();
        assert_eq!(values, [[2.0, 3.0]; 3], "the first of each is thrown away");
        assert_eq!(order.into_inner(), "abcabccba");
    }
}
