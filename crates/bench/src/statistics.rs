//! Medians, spreads and pairs.

/// What some values come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The one in the middle.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
}

impl Summary {
    /// Of these values; without any, not a number.
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

/// Two things measured in turn.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// What it is about.
    pub ours: Vec<f64>,
    /// What it is compared with.
    pub base: Vec<f64>,
}

impl Pairs {
    /// Measures in turn, each first in every other pair, so that what drifts hits both alike. One
    /// pair more is measured first and thrown away: pages and caches are cold in it.
    ///
    /// # Errors
    /// The first of either.
    pub fn measure(
        count: usize,
        mut ours: impl FnMut() -> anyhow::Result<f64>,
        mut base: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Pairs> {
        ours()?;
        base()?;
        let mut pairs = Pairs::default();
        for number in 0..count {
            if number % 2 == 0 {
                pairs.ours.push(ours()?);
                pairs.base.push(base()?);
            } else {
                pairs.base.push(base()?);
                pairs.ours.push(ours()?);
            }
        }
        Ok(pairs)
    }

    /// Each pair's ratio: ours by the other.
    #[must_use]
    pub fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.base).map(|(ours, base)| ours / base).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_one() {
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
}
