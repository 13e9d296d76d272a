//! Figures in prose. Each stands between two comments, which a Markdown viewer does not show:
//! `<!--=EXPERIMENT; ROW; KEY=VALUE,…; FORM-->0.91<!--/-->`. The command writes the text between
//! them. A line does not start with a figure, because Markdown would take it as HTML.
//!
//! | form | written |
//! |---|---|
//! | `value` | the median |
//! | `count` | the median, as a whole number |
//! | `spread` | the median, and in brackets the lowest and the highest value |
//! | `lower`, `higher` | `spread`, and whether that is a gain: where lower or higher is better |
//! | `range` | the lowest and the highest median of several rows |
//! | `times=N`, `per=N` before these | the figure times N, or N divided by it |
//!
//! A result that is older than [`MOST_COMMITS`](crate::age::MOST_COMMITS) is marked with its date
//! after its first figure in a line.

use std::collections::BTreeSet;

use anyhow::{Context, bail};

use crate::age::Ages;
use crate::report::number;
use crate::results::{Better, Reference, Results};

const OPENING: &str = "<!--=";
const OPENING_END: &str = "-->";
const CLOSING: &str = "<!--/-->";

/// A text with its figures as they are in the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewritten {
    /// The text.
    pub text: String,
    /// The number of figures in it.
    pub figures: usize,
    /// Those that differed.
    pub changes: Vec<Change>,
}

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The line, counted from 1.
    pub line: usize,
    /// The present text.
    pub old: String,
    /// The correct text.
    pub new: String,
}

/// Writes the figures of a text anew.
///
/// # Errors
/// With the line, if a marker has no end, cannot be read, or names no row.
pub fn rewrite(text: &str, results: &Results, ages: &Ages) -> anyhow::Result<Rewritten> {
    let mut rewritten = Rewritten::default();
    let (mut rest, mut line) = (text, 1);
    let mut marked = Marked::default();
    while let Some(at) = rest.find(OPENING) {
        let (before, from) = rest.split_at(at);
        ensure_no_closing(before, line)?;
        line += before.matches('\n').count();
        let starts_line = before.rsplit('\n').next().is_some_and(|start| start.trim().is_empty());
        // Right after another figure there is a closing comment before it.
        if starts_line && (before.contains('\n') || rewritten.text.is_empty()) {
            bail!("line {line}: Markdown takes a line that starts with a figure as HTML");
        }
        let one = Marker::read(from).with_context(|| format!("line {line}"))?;
        let figure = Figure::read(one.meant).with_context(|| format!("line {line}"))?;
        let mut new = figure.write(results).with_context(|| format!("line {line}"))?;
        let experiment = &figure.reference.experiment;
        new += &marked.mark(line, experiment, one.content, results, ages)?;
        rewritten.text += before;
        rewritten.text += &from[..one.opening];
        rewritten.text += &new;
        rewritten.text += CLOSING;
        rewritten.figures += 1;
        if new != one.content {
            rewritten.changes.push(Change { line, old: one.content.to_owned(), new });
        }
        line += from[..one.length].matches('\n').count();
        rest = &from[one.length..];
    }
    ensure_no_closing(rest, line)?;
    rewritten.text += rest;
    Ok(rewritten)
}

fn ensure_no_closing(text: &str, line: usize) -> anyhow::Result<()> {
    if let Some(at) = text.find(CLOSING) {
        let line = line + text[..at].matches('\n').count();
        bail!("line {line}: {CLOSING} without {OPENING}");
    }
    Ok(())
}

/// A marker in the text; lengths count from its first byte.
struct Marker<'a> {
    meant: &'a str,
    content: &'a str,
    opening: usize,
    length: usize,
}

impl Marker<'_> {
    fn read(from: &str) -> anyhow::Result<Marker<'_>> {
        let end = from.find(OPENING_END).context("the comment of a figure does not end")?;
        let opening = end + OPENING_END.len();
        let after = &from[opening..];
        let closing =
            after.find(CLOSING).with_context(|| format!("a figure without {CLOSING} after it"))?;
        let content = &after[..closing];
        if content.contains(OPENING) {
            bail!("a figure without {CLOSING} after it");
        }
        let length = opening + closing + CLOSING.len();
        Ok(Marker { meant: &from[OPENING.len()..end], content, opening, length })
    }
}

/// The figure that a marker asks for.
struct Figure {
    reference: Reference,
    form: Form,
    times: f64,
    per: Option<f64>,
}

#[derive(Clone, Copy)]
enum Form {
    Value,
    Count,
    Spread,
    Verdict(Better),
    Range,
}

impl Figure {
    fn read(meant: &str) -> anyhow::Result<Figure> {
        // A comment may span lines.
        let meant = meant.split_whitespace().collect::<Vec<_>>().join(" ");
        let (reference, forms) = meant
            .rsplit_once(';')
            .filter(|(reference, _)| reference.matches(';').count() == 2)
            .with_context(|| format!("`{meant}` is not `experiment; row; parameters; form`"))?;
        let mut figure =
            Figure { reference: reference.parse()?, form: Form::Spread, times: 1.0, per: None };
        for word in forms.split_whitespace() {
            let amount =
                |text: &str| text.parse::<f64>().with_context(|| format!("`{word}`: no number"));
            match word.split_once('=').unwrap_or((word, "")) {
                ("value", "") => figure.form = Form::Value,
                ("count", "") => figure.form = Form::Count,
                ("spread", "") => figure.form = Form::Spread,
                ("lower", "") => figure.form = Form::Verdict(Better::Lower),
                ("higher", "") => figure.form = Form::Verdict(Better::Higher),
                ("range", "") => figure.form = Form::Range,
                ("times", text) => figure.times = amount(text)?,
                ("per", text) => figure.per = Some(amount(text)?),
                _ => bail!("`{word}` is no form of a figure"),
            }
        }
        Ok(figure)
    }

    fn write(&self, results: &Results) -> anyhow::Result<String> {
        if let Form::Range = self.form {
            let [lowest, highest] = self.scaled(results.range(&self.reference)?);
            return Ok(format!("{} to {}", number(lowest), number(highest)));
        }
        let measured = results.measured(&self.reference)?;
        let value = number(self.scaled([measured.value; 2])[0]);
        let [lowest, highest] = self.scaled(measured.spread);
        let spread = || format!("{value} ({} to {})", number(lowest), number(highest));
        Ok(match self.form {
            Form::Verdict(better) => {
                let verdict = measured.verdict(better);
                format!("{}, **{verdict}**", spread())
            }
            Form::Value => value,
            Form::Count => format!("{:.0}", self.scaled([measured.value; 2])[0]),
            Form::Spread | Form::Range => spread(),
        })
    }

    fn scaled(&self, [lowest, highest]: [f64; 2]) -> [f64; 2] {
        let one = |value: f64| self.per.map_or(value, |per| per / value) * self.times;
        let (lowest, highest) = (one(lowest), one(highest));
        [lowest.min(highest), lowest.max(highest)]
    }
}

/// The old results of a line that have a mark already.
#[derive(Default)]
struct Marked {
    line: usize,
    experiments: BTreeSet<String>,
}

impl Marked {
    /// Returns the mark of a figure, which is empty for a result that is not old. A mark stays
    /// where the age is unknown.
    fn mark(
        &mut self,
        line: usize,
        experiment: &str,
        content: &str,
        results: &Results,
        ages: &Ages,
    ) -> anyhow::Result<String> {
        if line != self.line {
            (self.line, self.experiments) = (line, BTreeSet::new());
        }
        let date = &results.report(experiment)?.date;
        let mark = format!(" (old, {})", date.get(..10).unwrap_or(date));
        let old = match ages.old(experiment) {
            Some(old) => old && self.experiments.insert(experiment.to_owned()),
            None => content.ends_with(&mark),
        };
        Ok(if old { mark } else { String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    fn results() -> Results {
        crate::results::tests::results(vec![
            Row::new("ratio", &[("n", 1.0)], "ratio", &[0.9146, 0.8982, 0.9193, 0.91, 0.918]),
            Row::new("ratio", &[("n", 2.0)], "ratio", &[0.5]),
            Row::new("rate", &[], "Mpps", &[165.1]),
        ])
    }

    fn figure(meant: &str, content: &str) -> String {
        format!("is <!--={meant}-->{content}<!--/-->")
    }

    fn written(meant: &str) -> String {
        let text = figure(meant, "");
        let ages = Ages::given(&[("queue", 0)]);
        let rewritten = rewrite(&text, &results(), &ages).unwrap();
        rewritten.changes[0].new.clone()
    }

    fn refused(text: &str) -> String {
        format!("{:#}", rewrite(text, &results(), &Ages::default()).unwrap_err())
    }

    #[test]
    fn each_figure_form_is_written() {
        for (meant, expected) in [
            ("queue; ratio; n=1; value", "0.915"),
            ("queue; ratio; n=1;", "0.915 (0.898 to 0.919)"),
            ("queue; ratio; n=1; lower", "0.915 (0.898 to 0.919), **gain**"),
            ("queue;\n  ratio; n=1; higher", "0.915 (0.898 to 0.919), **loss**"),
            ("queue; ratio; n=2; higher", "0.500 (0.500 to 0.500), **no difference**"),
            ("queue; ratio; ; range", "0.500 to 0.915"),
            ("queue; rate; ; per=1000 value", "6.06"),
            ("queue; rate; ; count", "165"),
            ("queue; rate; ; times=0.1 value", "16.5"),
        ] {
            assert_eq!(written(meant), expected, "{meant}");
        }
    }

    #[test]
    fn a_changed_digit_is_found_and_put_right() {
        let meant = "queue; ratio; n=1; value";
        let right =
            format!("# A\n\na {} b\nc {}\n", figure(meant, "0.915"), figure(meant, "0.915"));
        let ages = Ages::given(&[("queue", 50)]);
        let same = rewrite(&right, &results(), &ages).unwrap();
        assert_eq!(same, Rewritten { text: right.clone(), figures: 2, changes: Vec::new() });
        let wrong =
            format!("# A\n\na {} b\nc {}\n", figure(meant, "0.915"), figure(meant, "0.925"));
        let rewritten = rewrite(&wrong, &results(), &ages).unwrap();
        assert_eq!(rewritten.text, right);
        let change = Change { line: 4, old: "0.925".into(), new: "0.915".into() };
        assert_eq!(rewritten.changes, [change]);
    }

    #[test]
    fn an_old_result_is_marked_once_a_line() {
        let one = |content| figure("queue; rate; ; value", content);
        let text = format!("{} {}\n{}\n", one("165"), one("165"), one("165"));
        let old = Ages::given(&[("queue", 51)]);
        let marked = rewrite(&text, &results(), &old).unwrap();
        let mark = "165 (old, 2026-01-02)";
        assert_eq!(marked.text, format!("{} {}\n{}\n", one(mark), one("165"), one(mark)));
        assert_eq!(marked.changes.len(), 2);
        let changes = |ages| rewrite(&marked.text, &results(), &ages).unwrap().changes.len();
        assert_eq!(changes(old), 0);
        assert_eq!(changes(Ages::default()), 0, "marks stay where the age is unknown");
        assert_eq!(changes(Ages::given(&[("queue", 50)])), 2, "measured anew, marked still");
    }

    #[test]
    fn a_figure_without_a_row_is_an_error_that_names_it() {
        let text = format!("a\n{}", figure("queue; speed; n=1; value", "1"));
        assert_eq!(refused(&text), "line 2: queue; speed; n=1: there is no such row");
        let text = figure("queue; ratio; ; value", "1");
        assert_eq!(refused(&text), "line 1: queue; ratio: 2 rows, not one");
    }

    #[test]
    fn a_broken_marker_is_an_error() {
        let whole = figure("queue; rate; ; value", "1");
        for (text, why) in [
            (&whole[3..], "line 1: Markdown takes a line that starts with a figure as HTML"),
            (
                &format!("a\n  {}", &whole[3..]),
                "line 2: Markdown takes a line that starts with a figure as HTML",
            ),
            ("a <!--=queue; rate; ; value", "line 1: the comment of a figure does not end"),
            ("a\nb <!--=queue; rate; ; value-->1", "line 2: a figure without <!--/--> after it"),
            (
                &format!("a <!--=queue; rate; ; value-->1 {whole}"),
                "line 1: a figure without <!--/--> after it",
            ),
            ("a\n1<!--/-->", "line 2: <!--/--> without <!--="),
            (&format!("{whole}\n<!--/-->"), "line 2: <!--/--> without <!--="),
            (
                &figure("queue; rate", "1"),
                "line 1: `queue; rate` is not `experiment; row; parameters; form`",
            ),
            (&figure("queue; rate; ; big", "1"), "line 1: `big` is no form of a figure"),
            (
                &figure("queue; rate; ; times=x value", "1"),
                "line 1: `times=x`: no number: invalid float literal",
            ),
        ] {
            assert_eq!(refused(text), why);
        }
    }
}
