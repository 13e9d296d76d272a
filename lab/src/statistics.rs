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

/// One measurement: a value, or the reason for its absence.
pub type Measured<'a> = &'a mut dyn FnMut() -> anyhow::Result<f64>;

/// Measures several things in turn, as [`Pairs::measure`] does two: every other round in reverse
/// order. An additional first round is dropped. Returns the values of each.
///
/// # Errors
/// The first error of any.
pub fn in_turn(count: usize, things: &mut [Measured<'_>]) -> anyhow::Result<Vec<Vec<f64>>> {
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
