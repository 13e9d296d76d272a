//! The contents of a picture: series of points on two axes. [`svg`](crate::svg) draws them.

use serde::{Deserialize, Serialize};

/// The most points of a series: a picture could not show more, and reports stay small.
pub const MOST_POINTS: usize = 100;

/// One axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The quantity.
    pub label: String,
    /// The unit; empty for plain counts and ratios.
    pub unit: String,
    /// `true` if equal distances are equal ratios.
    pub log: bool,
}

impl Axis {
    /// Makes an axis on which equal distances are equal differences.
    #[must_use]
    pub fn linear(label: &str, unit: &str) -> Axis {
        Axis { label: label.to_owned(), unit: unit.to_owned(), log: false }
    }

    /// Makes an axis on which equal distances are equal ratios. It leaves out values that are not
    /// above zero.
    #[must_use]
    pub fn log(label: &str, unit: &str) -> Axis {
        Axis { log: true, ..Axis::linear(label, unit) }
    }

    /// Returns label and unit.
    #[must_use]
    pub fn text(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{} [{}]", self.label, self.unit)
        }
    }
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// The points, in the order in which lines join them.
    pub points: Vec<[f64; 2]>,
    /// `true` if lines join them; else they are only marked.
    pub joined: bool,
    /// The interval of each point's second value, from low to high; empty if the points have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<[f64; 2]>,
}

impl Series {
    /// Makes a series of points joined by lines.
    #[must_use]
    pub fn line(name: &str, points: Vec<[f64; 2]>) -> Series {
        Series {
            name: name.to_owned(),
            points: thinned(points),
            joined: true,
            intervals: Vec::new(),
        }
    }

    /// Makes a series of single points.
    #[must_use]
    pub fn dots(name: &str, points: Vec<[f64; 2]>) -> Series {
        let (name, points) = (name.to_owned(), thinned(points));
        Series { name, points, joined: false, intervals: Vec::new() }
    }

    /// Makes a series of one point with an interval.
    #[must_use]
    pub fn interval(name: &str, point: [f64; 2], interval: [f64; 2]) -> Series {
        Series { intervals: vec![interval], ..Series::dots(name, vec![point]) }
    }
}

/// Returns evenly spaced points, with the first and the last.
fn thinned(points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    if points.len() <= MOST_POINTS {
        return points;
    }
    let step = (points.len() - 1) as f64 / (MOST_POINTS - 1) as f64;
    (0..MOST_POINTS).map(|place| points[(place as f64 * step).round() as usize]).collect()
}

/// A picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Part of the file's name: letters, digits and hyphens.
    pub name: String,
    /// The picture's title.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From the bottom up.
    pub y: Axis,
    /// The series.
    pub series: Vec<Series>,
}

impl Figure {
    /// Makes a picture without series.
    #[must_use]
    pub fn new(name: &str, title: &str, x: Axis, y: Axis) -> Figure {
        Figure { name: name.to_owned(), title: title.to_owned(), x, y, series: Vec::new() }
    }

    /// Adds a series.
    #[must_use]
    pub fn with(mut self, series: Series) -> Figure {
        self.series.push(series);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_both_ends() {
        let many: Vec<_> = (0..5000).map(|n| [f64::from(n), 1.0]).collect();
        let series = Series::line("many", many);
        assert_eq!(series.points.len(), MOST_POINTS);
        assert_eq!((series.points[0][0], series.points[MOST_POINTS - 1][0]), (0.0, 4999.0));
        assert!(series.points.windows(2).all(|pair| pair[0][0] < pair[1][0]));
        assert_eq!(Series::dots("few", vec![[1.0, 2.0]]).points, [[1.0, 2.0]]);
    }
}
