//! The results in `lab/results`, and the rows that prose refers to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};

use crate::Experiment;
use crate::report::{Report, Row};

/// The fewest values on which a gain or a loss is based.
const FEWEST_SAMPLES: usize = 5;
/// The value of a parameter that a row does not have.
const NONE: &str = "none";

/// The last full run of each experiment, in the order of [`Experiment::ALL`].
#[derive(Clone, Debug, Default)]
pub struct Results(pub Vec<Report>);

impl Results {
    /// Reads `NAME.json` of each experiment from a directory. An experiment without a file is left
    /// out.
    ///
    /// # Errors
    /// If a file is not readable or no report, or if there is no report at all.
    pub fn read(directory: &Path) -> anyhow::Result<Results> {
        let mut reports = Vec::new();
        for experiment in Experiment::ALL {
            let path = directory.join(experiment.name()).with_extension("json");
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).context(path.display().to_string()),
            };
            let report: Report =
                serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            reports.push(report);
        }
        ensure!(
            !reports.is_empty(),
            "no results in {}; run this in the repository, or name it with --repository",
            directory.display()
        );
        Ok(Results(reports))
    }

    /// Finds the report of an experiment.
    ///
    /// # Errors
    /// If there is none.
    pub fn report(&self, experiment: &str) -> anyhow::Result<&Report> {
        let mut reports = self.0.iter();
        reports
            .find(|report| report.experiment == experiment)
            .with_context(|| format!("there is no result of the experiment {experiment}"))
    }

    /// Returns the figure that a reference names.
    ///
    /// # Errors
    /// If the reference names no row, or more than one.
    pub fn measured(&self, reference: &Reference) -> anyhow::Result<Measured> {
        let rows = self.rows(reference)?;
        ensure!(rows.len() == 1, "{reference}: {} rows, not one", rows.len());
        Ok(Measured::of(rows[0]))
    }

    /// Returns the lowest and the highest median of the rows that a reference names.
    ///
    /// # Errors
    /// If the reference names no row.
    pub fn range(&self, reference: &Reference) -> anyhow::Result<[f64; 2]> {
        let rows = self.rows(reference)?;
        let values = rows.iter().map(|row| row.value);
        Ok([values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max)])
    }

    fn rows(&self, reference: &Reference) -> anyhow::Result<Vec<&Row>> {
        let report = self.report(&reference.experiment)?;
        let rows: Vec<_> = report
            .rows
            .iter()
            .chain(&report.context)
            .chain(&report.limits)
            .filter(|row| matches(&reference.name, &row.name) && reference.admits(row))
            .collect();
        ensure!(!rows.is_empty(), "{reference}: there is no such row");
        Ok(rows)
    }
}

/// The identity of a figure: an experiment, the name of a row, some of the row's parameters, and
/// its unit where rows differ in nothing else. A `*` in a name stands for any text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reference {
    /// The experiment's name.
    pub experiment: String,
    /// The row's name.
    pub name: String,
    /// Parameters that the row has, or with `None` has not; it may have others.
    pub parameters: BTreeMap<String, Option<f64>>,
    /// The row's unit, if that matters.
    pub unit: Option<String>,
}

impl Reference {
    fn admits(&self, row: &Row) -> bool {
        let unit = self.unit.as_ref().is_none_or(|unit| *unit == row.unit);
        let mut parameters = self.parameters.iter();
        unit && parameters.all(|(key, value)| row.parameters.get(key) == value.as_ref())
    }
}

impl FromStr for Reference {
    type Err = anyhow::Error;

    /// Reads `EXPERIMENT; ROW; KEY=VALUE, KEY=none, unit=UNIT`; the last part may be missing.
    fn from_str(text: &str) -> anyhow::Result<Reference> {
        let parts: Vec<_> = text.split(';').map(str::trim).collect();
        let (experiment, name, parameters) = match parts[..] {
            [experiment, name] => (experiment, name, ""),
            [experiment, name, parameters] => (experiment, name, parameters),
            _ => bail!("`{text}` is not `experiment; row; parameters`"),
        };
        let mut reference =
            Reference { experiment: experiment.into(), name: name.into(), ..Reference::default() };
        for parameter in parameters.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let (key, value) = parameter
                .split_once('=')
                .with_context(|| format!("`{parameter}` is not `key=value`"))?;
            if key == "unit" {
                reference.unit = Some(value.into());
            } else if value == NONE {
                reference.parameters.insert(key.into(), None);
            } else {
                let value = value.parse().with_context(|| format!("`{parameter}`: no number"))?;
                reference.parameters.insert(key.into(), Some(value));
            }
        }
        Ok(reference)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.experiment, self.name)?;
        let numbers = self.parameters.iter().map(|(key, value)| match value {
            Some(value) => format!("{key}={value}"),
            None => format!("{key}={NONE}"),
        });
        let unit = self.unit.iter().map(|unit| format!("unit={unit}"));
        let all: Vec<_> = numbers.chain(unit).collect();
        if all.is_empty() { Ok(()) } else { write!(f, "; {}", all.join(",")) }
    }
}

/// `true` if a name matches a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    false
}

/// A median with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The median.
    pub value: f64,
    /// The lowest and the highest value.
    pub spread: [f64; 2],
    /// The number of values.
    pub samples: usize,
}

impl Measured {
    fn of(row: &Row) -> Measured {
        Measured { value: row.value, spread: row.spread, samples: row.samples }
    }

    /// Returns a ratio's verdict: a gain or a loss needs at least five values, and a spread without
    /// 1.
    #[must_use]
    pub fn verdict(self, better: Better) -> Verdict {
        let [lowest, highest] = self.spread;
        let below = highest < 1.0 && self.samples >= FEWEST_SAMPLES;
        let above = lowest > 1.0 && self.samples >= FEWEST_SAMPLES;
        match (below, above, better) {
            (true, _, Better::Lower) | (_, true, Better::Higher) => Verdict::Gain,
            (true, _, Better::Higher) | (_, true, Better::Lower) => Verdict::Loss,
            (false, false, _) => Verdict::NoDifference,
        }
    }
}

/// The better side of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Below 1.
    Lower,
    /// Above 1.
    Higher,
}

/// The verdict on a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All values are on the better side of 1.
    Gain,
    /// All values are on the worse side of 1.
    Loss,
    /// The spread includes 1.
    NoDifference,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Gain => "gain",
            Verdict::Loss => "loss",
            Verdict::NoDifference => "no difference",
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::Length;

    /// Results of one experiment, `queue`, with these rows.
    pub(crate) fn results(rows: Vec<Row>) -> Results {
        let mut report = Report::new("queue", Length::Normal).unwrap();
        (report.commit, report.date) = ("abc".into(), "2026-01-02T03:04:05Z".into());
        report.rows = rows;
        Results(vec![report])
    }

    fn refused(results: &Results, reference: &str) -> String {
        results.measured(&reference.parse().unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn a_reference_means_one_row() {
        let row = |name, bytes, unit, value: f64| {
            Row::new(name, &[("packet_bytes", bytes), ("sets", 1.0)], unit, &[value])
        };
        let results = results(vec![
            row("rate", 64.0, "ratio", 1.0),
            row("rate", 1500.0, "ratio", 2.0),
            row("rate", 1500.0, "ratio of CPU", 3.0),
            row("rate of others", 64.0, "ratio", 5.0),
            Row::new("rate of all", &[("packet_bytes", 64.0)], "ratio", &[7.0]),
        ]);
        let value = |reference: &str| results.measured(&reference.parse().unwrap()).unwrap().value;
        assert_eq!(value("queue; rate; packet_bytes=64"), 1.0);
        assert_eq!(value("queue; rate; packet_bytes=1500, unit=ratio of CPU"), 3.0);
        assert_eq!(value("queue; rate*others"), 5.0);
        assert_eq!(value("queue; rate*; packet_bytes=64, sets=none"), 7.0);
        assert_eq!(
            results.range(&"queue; rate*; unit=ratio".parse().unwrap()).unwrap(),
            [1.0, 7.0]
        );
        for (reference, why) in [
            ("queue; speed", "queue; speed: there is no such row"),
            ("queue; rate; packet_bytes=65", "queue; rate; packet_bytes=65: there is no such row"),
            ("queue; rate; packet_bytes=1500", "queue; rate; packet_bytes=1500: 2 rows, not one"),
            ("penn; rate", "there is no result of the experiment penn"),
        ] {
            assert_eq!(refused(&results, reference), why);
        }
        for text in ["queue", "queue; rate; packet_bytes", "queue; rate; packet_bytes=many"] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, expected) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("*: b*", "x: by", true),
            ("a", "ab", false),
            ("a*c", "abd", false),
            ("*b", "a", false),
            ("ab*bc", "abc", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_gain_needs_a_spread_without_1_and_five_values() {
        let verdict = |lowest, highest, samples| {
            let measured = Measured { value: 1.0, spread: [lowest, highest], samples };
            (measured.verdict(Better::Lower), measured.verdict(Better::Higher))
        };
        let (gain, loss, none) = (Verdict::Gain, Verdict::Loss, Verdict::NoDifference);
        assert_eq!(verdict(0.5, 0.99, 5), (gain, loss));
        assert_eq!(verdict(1.01, 2.0, 5), (loss, gain));
        for (lowest, highest, samples) in
            [(0.77, 1.03, 11), (0.9, 1.0, 5), (1.0, 1.2, 5), (0.5, 0.6, 4)]
        {
            assert_eq!(verdict(lowest, highest, samples), (none, none));
        }
    }
}
