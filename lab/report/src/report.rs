//! The result of an experiment.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::figure::Figure;
use crate::machine::{Machine, date};
use crate::statistics::Summary;

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The quantity.
    pub name: String,
    /// The conditions, as numbers: `packet_bytes` and the like.
    pub parameters: BTreeMap<String, f64>,
    /// The median.
    pub value: f64,
    /// The unit.
    pub unit: String,
    /// The lowest and the highest single value.
    pub spread: [f64; 2],
    /// The number of values.
    pub samples: usize,
    /// The lower limit of the value; `--check` checks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The upper limit of the value; `--check` checks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

impl Row {
    /// Returns a row of some values.
    #[must_use]
    pub fn new(name: &str, parameters: &[(&str, f64)], unit: &str, values: &[f64]) -> Row {
        let summary = Summary::of(values);
        Row {
            name: name.to_owned(),
            parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect(),
            value: summary.median,
            unit: unit.to_owned(),
            spread: [summary.lowest, summary.highest],
            samples: values.len(),
            at_least: None,
            at_most: None,
        }
    }

    /// Returns a row of a value, with its confidence interval in place of the lowest and the highest
    /// single value.
    #[must_use]
    pub fn within(
        name: &str,
        parameters: &[(&str, f64)],
        unit: &str,
        (value, margin): (f64, f64),
        samples: usize,
    ) -> Row {
        let row = Row::new(name, parameters, unit, &[value]);
        Row { spread: [value - margin, value + margin], samples, ..row }
    }

    /// Adds a lower limit.
    #[must_use]
    pub fn at_least(self, limit: f64) -> Row {
        Row { at_least: Some(limit), ..self }
    }

    /// Adds an upper limit.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Row {
        Row { at_most: Some(limit), ..self }
    }

    /// Returns whether the value keeps its limits; a row without limits does.
    #[must_use]
    pub fn holds(&self) -> bool {
        let limited = self.at_least.is_some() || self.at_most.is_some();
        // Without a limit, a figure that could not be measured is no failure.
        !limited
            || self.value.is_finite()
                && self.at_least.is_none_or(|limit| self.value >= limit)
                && self.at_most.is_none_or(|limit| self.value <= limit)
    }

    /// Returns the limits, as text.
    #[must_use]
    pub fn limits(&self) -> String {
        let least = self.at_least.map(|limit| format!("≥ {}", number(limit)));
        let most = self.at_most.map(|limit| format!("≤ {}", number(limit)));
        least.into_iter().chain(most).collect::<Vec<_>>().join(", ")
    }

    fn cells(&self) -> [String; 6] {
        let parameters: Vec<_> = self
            .parameters
            .iter()
            .map(|(key, value)| format!("{} {value}", key.replace('_', " ")))
            .collect();
        let mut limit = self.limits();
        if !limit.is_empty() {
            limit += if self.holds() { " holds" } else { " MISSED" };
        }
        [
            self.name.clone(),
            parameters.join(", "),
            number(self.value),
            self.unit.clone(),
            format!("{} … {}", number(self.spread[0]), number(self.spread[1])),
            limit,
        ]
    }
}

/// Formats a number with three significant digits.
#[must_use]
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// An experiment's own part of a report.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The conditions: pinned, polling and sleeping threads.
    pub how: String,
    /// The headline: one row per size.
    pub rows: Vec<Row>,
    /// Further rows.
    pub context: Vec<Row>,
    /// Pictures of both.
    pub figures: Vec<Figure>,
    /// What could not be measured here, with the reason and the remedy.
    pub missing: Vec<String>,
}

impl Outcome {
    /// Returns what was found; otherwise adds the reason to what could not be measured.
    pub fn needs<T>(&mut self, found: Result<T, String>) -> Option<T> {
        found.map_err(|why| self.missing.push(why)).ok()
    }
}

/// The length of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// A first look: short windows, five pairs (`--quick`).
    Quick,
    /// The length of published figures.
    Normal,
    /// As long as in the papers, where that is much longer (`--full`).
    Full,
}

impl Length {
    /// Returns the word for it in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Length::Quick => "quick",
            Length::Normal => "normal",
            Length::Full => "full",
        }
    }

    /// Returns the text for readers; `None` is a report from before the length was recorded.
    #[must_use]
    pub fn described(length: Option<Length>) -> &'static str {
        match length {
            Some(Length::Quick) => "a short run (--quick)",
            Some(Length::Normal) => "a run of normal length",
            Some(Length::Full) => "a run as long as the paper's (--full)",
            None => "a run of unrecorded length",
        }
    }
}

/// A report, as written to JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The experiment's name.
    pub experiment: String,
    /// The commit that the program was built from, or `unknown`.
    pub commit: String,
    /// The time, in UTC, as in RFC 3339.
    pub date: String,
    /// The length; `None` in files from before it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Length>,
    /// The machine.
    pub machine: Machine,
    /// The conditions: pinned, polling and sleeping threads.
    pub how: String,
    /// The headline: one row per size.
    pub rows: Vec<Row>,
    /// Further rows.
    pub context: Vec<Row>,
    /// The hardware's limits, in the same run.
    pub limits: Vec<Row>,
    /// Pictures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// What could not be measured here, with the reason and the remedy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Report {
    /// Returns an empty report of this program, machine and moment, for a run of this length.
    ///
    /// # Errors
    /// If the machine's description is not readable.
    pub fn new(experiment: &str, length: Length) -> anyhow::Result<Report> {
        Ok(Report {
            experiment: experiment.to_owned(),
            commit: crate::COMMIT.to_owned(),
            date: date(std::time::SystemTime::now()),
            settings: Some(length),
            machine: Machine::this()?,
            how: String::new(),
            rows: Vec::new(),
            context: Vec::new(),
            limits: Vec::new(),
            figures: Vec::new(),
            missing: Vec::new(),
        })
    }

    /// Returns the rows that miss their limits.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().chain(&self.context).filter(|row| !row.holds())
    }

    /// Returns all rows, with the headline of their table.
    pub(crate) fn tables(&self) -> [(&'static str, &[Row]); 3] {
        [
            ("measured", &self.rows),
            ("beside it", &self.context),
            ("this hardware, in the same run", &self.limits),
        ]
    }

    pub(crate) fn cells(rows: &[Row]) -> Vec<[String; 6]> {
        rows.iter().map(Row::cells).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.experiment, self.how)?;
        let length = Length::described(self.settings);
        writeln!(f, "{}; {length}; commit {}; {}", self.date, self.commit, self.machine)?;
        let all: Vec<_> =
            self.tables().into_iter().map(|(title, rows)| (title, Report::cells(rows))).collect();
        let width = |column: usize| {
            let cells = all.iter().flat_map(|(_, rows)| rows);
            cells.map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 6] = std::array::from_fn(width);
        for (title, rows) in &all {
            if rows.is_empty() {
                continue;
            }
            writeln!(f, "\n{title}")?;
            for [name, parameters, value, unit, spread, limit] in rows {
                let [a, b, c, d, e, _] = widths;
                let line = format!(
                    "  {name:a$}  {parameters:b$}  {value:>c$} {unit:d$}  {spread:e$}  {limit}"
                );
                writeln!(f, "{}", line.trim_end())?;
            }
        }
        if !self.missing.is_empty() {
            writeln!(f, "\nnot measured")?;
        }
        self.missing.iter().try_for_each(|missing| writeln!(f, "  {missing}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("queue", Length::Quick).unwrap();
        report.rows = vec![
            Row::new("ratio", &[("packet_bytes", 64.0)], "ratio", &[0.9, 0.8, 1.0]).at_least(0.85),
        ];
        report.limits = vec![Row::new("copy", &[], "GB/s", &[7.0])];
        report
    }

    #[test]
    fn json_has_the_fields_that_readers_need() {
        let report = report();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["experiment"], "queue");
        assert_eq!(json["rows"][0]["parameters"]["packet_bytes"], 64.0);
        assert_eq!(json["rows"][0]["value"], 0.9);
        assert_eq!(json["rows"][0]["unit"], "ratio");
        assert_eq!(json["rows"][0]["spread"], serde_json::json!([0.8, 1.0]));
        assert!(json["machine"]["kernel"].as_str().is_some_and(|text| !text.is_empty()));
        assert!(json["machine"]["cores"].as_u64().is_some_and(|count| count > 0));
        assert!(json["commit"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(json["settings"], Length::Quick.name());
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    #[test]
    fn quick_runs_are_marked_and_old_reports_are_read() {
        let mut report = report();
        assert!(report.to_string().contains("; a short run (--quick); commit "));
        let mut json = serde_json::to_value(&report).unwrap();
        json.as_object_mut().unwrap().remove("settings");
        report.settings = None;
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
        assert!(report.to_string().contains("; a run of unrecorded length; commit "));
        let unknown = serde_json::json!("longer");
        assert!(serde_json::from_value::<Length>(unknown).is_err());
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let mut report = report();
        assert!(!report.to_string().contains("not measured"));
        assert!(serde_json::to_value(&report).unwrap().get("missing").is_none());
        report.missing = vec!["Aeron: there is no java".into()];
        assert!(report.to_string().ends_with("\nnot measured\n  Aeron: there is no java\n"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    #[test]
    fn a_missed_limit_is_said() {
        let mut report = report();
        assert_eq!(report.missed().count(), 0);
        assert!(report.to_string().contains("holds"));
        report.rows[0].value = 0.84;
        assert_eq!(report.missed().count(), 1);
        assert!(report.to_string().contains("MISSED"));
        report.rows[0].value = f64::NAN;
        assert_eq!(report.missed().count(), 1, "no number is no success");
        let from_above = Row::new("ratio", &[], "ratio", &[1.02]).at_most(1.05);
        assert!(from_above.holds() && from_above.limits() == "≤ 1.05");
        assert!(!Row { value: 1.06, ..from_above.clone() }.holds());
        assert!(!Row { value: f64::NAN, ..from_above }.holds());
    }
}
