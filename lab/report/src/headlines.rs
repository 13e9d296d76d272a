//! The ratios that matter most, favourable or not, and the verdicts that their spreads allow.

mod ratios;

use std::fmt::Write;

use crate::age::Ages;
use crate::report::number;
use crate::results::{Better, Reference, Results};

use ratios::{HEADLINES, Headline};

/// Returns the table, in Markdown, of those headlines whose experiments have results.
///
/// # Errors
/// If a headline names no row, or more than one.
pub(crate) fn table(results: &Results, ages: &Ages) -> anyhow::Result<String> {
    let mut table = String::from(
        "| compared | better | median | lowest to highest | says | command | date | commit |\n\
         |---|---|--:|---|---|---|---|---|\n",
    );
    for Headline { compared, reference, better } in &HEADLINES {
        let reference: Reference = reference.parse()?;
        let Ok(report) = results.report(&reference.experiment) else { continue };
        let measured = results.measured(&reference)?;
        let [lowest, highest] = measured.spread;
        let date = report.date.get(..10).unwrap_or(&report.date);
        let old = if ages.old(&report.experiment) == Some(true) { OLD } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| {compared} | {} | {} | {} to {} | **{}** | `towpath-lab {}` | {date}{old} | {} |",
            match better {
                Better::Lower => "lower",
                Better::Higher => "higher",
            },
            number(measured.value),
            number(lowest),
            number(highest),
            measured.verdict(*better),
            report.experiment,
            report.commit
        );
    }
    Ok(table)
}

/// Returns the references of all headlines.
#[cfg(test)]
pub(crate) fn references() -> impl Iterator<Item = &'static str> {
    HEADLINES.iter().map(|headline| headline.reference)
}

/// Returns the better side of the headline with this reference; `None` if there is none.
pub(crate) fn better(reference: &str) -> Option<Better> {
    HEADLINES.iter().find(|headline| headline.reference == reference).map(|found| found.better)
}

/// The mark behind an old result's date.
pub(crate) const OLD: &str = " (old)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    fn lines(rows: Vec<Row>, commits: u32) -> anyhow::Result<String> {
        table(&crate::results::tests::results(rows), &Ages::given(&[("queue", commits)]))
    }

    #[test]
    fn a_headline_has_its_ratio_verdict_command_date_and_commit() {
        let row = |values: &[f64]| {
            vec![Row::new("queue to bare queue", &[("packet_bytes", 64.0)], "ratio", values)]
        };
        let ratio = [0.8732, 0.8621, 0.9108, 0.87, 0.88];
        let text = lines(row(&ratio), 50).unwrap();
        let expected = "64 B | higher | 0.873 | 0.862 to 0.911 | **loss** | `towpath-lab queue` \
                        | 2026-01-02 | abc |\n";
        assert!(text.ends_with(expected), "{text}");
        assert_eq!(text.lines().count(), 3, "experiments without results are left out");
        assert!(lines(row(&ratio), 51).unwrap().contains("| 2026-01-02 (old) | abc |"));
        assert!(lines(row(&[1.2; 5]), 0).unwrap().contains("| **gain** |"));
        assert!(
            lines(row(&[0.9, 0.9, 0.9, 0.9, 1.1]), 0).unwrap().contains("| **no difference** |")
        );
    }

    #[test]
    fn a_headline_without_a_row_is_an_error_that_names_it() {
        let error = lines(Vec::new(), 0).unwrap_err().to_string();
        assert_eq!(error, "queue; queue to bare queue; packet_bytes=64: there is no such row");
    }
}
