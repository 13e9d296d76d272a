//! The README's chart: six of the headlines, three gains and three losses, as bars and in words.
//!
//! A test checks that the losses are the largest of the headlines that compare Towpath with another program.
//! [`chart`] fails if a gain is no longer a gain, or a loss no longer a loss.

use std::fmt::Write;

use anyhow::{Context, ensure};

use crate::age::Ages;
use crate::headlines;
use crate::report::number;
use crate::results::{Better, Measured, Reference, Results, Verdict};
use crate::svg::escaped;

/// The chart's file, below the pictures.
pub(crate) const FILE: &str = "how-fast.svg";
/// The comments around the caption in the README.
const BEGIN: &str = "<!--how-fast-->\n";
const END: &str = "<!--/how-fast-->\n";

/// A bar of the chart.
struct Bar {
    /// The headline's reference.
    reference: &'static str,
    /// The quantity and its conditions.
    what: &'static str,
    /// The program or interface that it is compared with.
    beside: &'static str,
    /// The words after the ratio.
    unit: &'static str,
    verdict: Verdict,
}

const fn bar(
    verdict: Verdict,
    [what, beside, unit]: [&'static str; 3],
    reference: &'static str,
) -> Bar {
    Bar { reference, what, beside, unit, verdict }
}

const BARS: [Bar; 6] = [
    bar(
        Verdict::Gain,
        [
            "Messages of 64 B between two applications, through shared memory",
            "UDP sockets over veth",
            "the bytes per second",
        ],
        "cambridge; bandwidth, Towpath to UDP; message_bytes=64",
    ),
    bar(
        Verdict::Gain,
        [
            "Packets of 64 B from an emulated card to a program, as fast as the card delivers",
            "the kernel's driver and AF_PACKET",
            "the instructions",
        ],
        "card; received: Towpath server to kernel driver, AF_PACKET: processor time per packet; packet_bytes=64, packets_per_s=none",
    ),
    bar(
        Verdict::Gain,
        [
            "HTTP files of 1 KiB over TAP, 100 lasting connections",
            "the same program on kernel sockets over veth",
            "the files per second",
        ],
        "web; persistent connections, application to the kernel; connections=100",
    ),
    bar(
        Verdict::Loss,
        [
            "Round trip of 60 B over TAP, Towpath's threads sleep while they wait",
            "one thread that polls both ends of a veth, over AF_PACKET",
            "the time",
        ],
        "notre-dame; Towpath to AF_PACKET on both sides, all sleep; packet_bytes=60",
    ),
    bar(
        Verdict::Loss,
        [
            "Stream of 48 B messages over TAP, while five processes are busy",
            "read() and write() on UDP sockets over veth",
            "the time",
        ],
        "penn; transfer time, loaded, Towpath to read() and write(); pdu_bytes=48, mbit_per_s=135",
    ),
    bar(
        Verdict::Loss,
        ["Round trip of 64 B between two applications, all threads poll", "Aeron IPC", "the time"],
        "peers; round trip, both spin, Towpath to Aeron IPC, p50; packet_bytes=64",
    ),
];

/// A bar with its result.
struct Found {
    bar: &'static Bar,
    better: Better,
    measured: Measured,
    /// The date, with a mark if the result is old.
    date: String,
    machine: String,
}

impl Found {
    /// Returns how many times as good Towpath is: below 1 for a loss.
    fn advantage(&self) -> f64 {
        match self.better {
            Better::Higher => self.measured.value,
            Better::Lower => 1.0 / self.measured.value,
        }
    }

    /// Returns the bar in words, with the lowest and the highest ratio.
    fn text(&self) -> String {
        let Bar { what, beside, unit, .. } = self.bar;
        let (value, [lowest, highest]) = (self.measured.value, self.measured.spread);
        let [value, lowest, highest] = [value, lowest, highest].map(number);
        let date = &self.date;
        let better = match self.better {
            Better::Higher => "more",
            Better::Lower => "less",
        };
        format!(
            "{what}: {value} ({lowest} to {highest}) times {unit} of {beside} ({better} is better), {date}"
        )
    }

    fn label(&self) -> String {
        format!("{} × {}", number(self.measured.value), self.bar.unit)
    }
}

/// The chart as a picture, and in words.
#[derive(Debug)]
pub(crate) struct HowFast {
    pub(crate) picture: String,
    pub(crate) caption: String,
}

/// Returns the picture and the caption; `None` if an experiment of a bar has no results.
///
/// # Errors
/// If a bar names no headline or no row, or if a gain is no longer a gain, or a loss no longer a loss.
pub(crate) fn chart(results: &Results, ages: &Ages) -> anyhow::Result<Option<HowFast>> {
    let mut all = Vec::new();
    for bar in &BARS {
        match found(bar, results, ages)? {
            Some(found) => all.push(found),
            None => return Ok(None),
        }
    }
    Ok(Some(HowFast { picture: picture(&all), caption: caption(&all) }))
}

fn found(bar: &'static Bar, results: &Results, ages: &Ages) -> anyhow::Result<Option<Found>> {
    let better = headlines::better(bar.reference)
        .with_context(|| format!("{}: this bar of the README is no headline", bar.reference))?;
    let reference: Reference = bar.reference.parse()?;
    let Ok(report) = results.report(&reference.experiment) else { return Ok(None) };
    let measured = results.measured(&reference)?;
    let verdict = measured.verdict(better);
    ensure!(
        verdict == bar.verdict,
        "{reference}: a {} in the README's chart, but a {verdict} in the results; choose another row",
        bar.verdict
    );
    let old = if ages.old(&report.experiment) == Some(true) { headlines::OLD } else { "" };
    let date = format!("{}{old}", report.date.get(..10).unwrap_or(&report.date));
    let machine = &report.machine;
    let kernel: Vec<_> = machine.kernel.split('.').take(2).collect();
    let machine = format!("{}, {} cores, Linux {}", machine.cpu, machine.cores, kernel.join("."));
    Ok(Some(Found { bar, better, measured, date, machine }))
}

/// Returns the Markdown of the chart: the picture, its alternative text with a sentence per bar, and the
/// machines.
fn caption(all: &[Found]) -> String {
    let of = |title, verdict| {
        let bars = all.iter().filter(|found| found.bar.verdict == verdict).map(Found::text);
        format!("{title}. {}.", bars.collect::<Vec<_>>().join(". "))
    };
    let mut machines: Vec<_> = all
        .iter()
        .map(|found| {
            let day = found.date.strip_suffix(headlines::OLD).unwrap_or(&found.date);
            format!("of {day}: {}", found.machine)
        })
        .collect();
    machines.sort();
    machines.dedup();
    format!(
        "![{} {}]({}/{FILE})\n\nMachines of the figures {}.\n",
        of("Gains", Verdict::Gain),
        of("Losses", Verdict::Loss),
        crate::output::PICTURES,
        machines.join("; ")
    )
}

/// Returns the README with the caption between its comments.
///
/// # Errors
/// If the comments are missing.
pub(crate) fn with_caption(readme: &str, caption: &str) -> anyhow::Result<String> {
    let parts = readme.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.context("README.md: no place for the caption of the chart")?;
    Ok(format!("{before}{BEGIN}{caption}{END}{after}"))
}

const WIDTH: f64 = 900.0;
/// The place of equality, and that of an advantage of 100.
const MIDDLE: f64 = 656.0;
const RIGHT: f64 = 880.0;
const TOP: f64 = 46.0;
const ROW: f64 = 62.0;
const DECADES: f64 = 2.0;

/// Returns the horizontal place of an advantage.
fn place(advantage: f64) -> f64 {
    MIDDLE + (RIGHT - MIDDLE) * (advantage.log10() / DECADES).clamp(-1.0, 1.0)
}

const STYLE: &str = "\
text{font:13px Helvetica,Arial,sans-serif;fill:#1f2328}.s{font-size:11.5px;fill:#57606a}.b{font-weight:bold}\
.back{fill:#fff}.grid{stroke:#d0d7de}.axis{stroke:#57606a}.gain{fill:#0072b2}.loss{fill:#d55e00}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9da7b3}.back{fill:#0d1117}.grid{stroke:#30363d}\
.axis{stroke:#9da7b3}.gain{fill:#56b4e9}.loss{fill:#e69f00}}";

/// Draws the bars: right of the middle Towpath is better, left of it worse.
fn picture(all: &[Found]) -> String {
    let bottom = TOP + ROW * all.len() as f64;
    let height = bottom + 30.0;
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>How fast Towpath is beside six other programs: three gains and three losses</title>\n<desc>"
    );
    // Writing to a string cannot fail.
    for found in all {
        let _ = write!(svg, "{}: {}. ", found.bar.verdict, escaped(&found.text()));
    }
    let _ = write!(
        svg,
        "</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"b\" x=\"16\" y=\"26\">Towpath beside what people use now</text>\n"
    );
    for (advantage, text) in [
        (0.01, "100 × worse"),
        (0.1, "10 × worse"),
        (1.0, "equal"),
        (10.0, "10 × better"),
        (100.0, "100 × better"),
    ] {
        let (x, class) = (place(advantage), if advantage == 1.0 { "axis" } else { "grid" });
        let anchor = match advantage {
            0.01 => "start",
            100.0 => "end",
            _ => "middle",
        };
        let _ = write!(
            svg,
            "<path class=\"{class}\" d=\"M{x:.1} {:.1}V{bottom:.1}\"/>\n\
             <text class=\"s\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{text}</text>\n",
            TOP - 10.0,
            bottom + 18.0
        );
    }
    for (number, found) in all.iter().enumerate() {
        draw_bar(&mut svg, TOP + ROW * number as f64, found);
    }
    svg + "</svg>\n"
}

fn draw_bar(svg: &mut String, y: f64, found: &Found) {
    let end = place(found.advantage());
    let class = if found.bar.verdict == Verdict::Gain { "gain" } else { "loss" };
    // The label stands on the other side of the axis, where no bar is.
    let (label, anchor) =
        if end > MIDDLE { (MIDDLE - 8.0, "end") } else { (MIDDLE + 8.0, "start") };
    let _ = write!(
        svg,
        "<text x=\"16\" y=\"{:.1}\">{}</text>\n\
         <text class=\"s\" x=\"16\" y=\"{:.1}\">beside {}</text>\n\
         <text class=\"s\" x=\"16\" y=\"{:.1}\">ratios {} to {}; {}</text>\n\
         <rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"20\"/>\n\
         <text class=\"b\" text-anchor=\"{anchor}\" x=\"{label:.1}\" y=\"{:.1}\">{}</text>\n",
        y + 16.0,
        escaped(found.bar.what),
        y + 32.0,
        escaped(found.bar.beside),
        y + 47.0,
        number(found.measured.spread[0]),
        number(found.measured.spread[1]),
        escaped(&found.date),
        end.min(MIDDLE),
        y + 18.0,
        (end - MIDDLE).abs(),
        y + 33.0,
        escaped(&found.label()),
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn repository_results() -> Results {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Results::read(&root.join(crate::documents::RESULTS)).unwrap()
    }

    #[test]
    fn the_chart_has_the_largest_losses_beside_other_programs() {
        let results = repository_results();
        let loss = |reference: &str| {
            let better = headlines::better(reference).unwrap();
            let measured = results.measured(&reference.parse().unwrap()).unwrap();
            let found = measured.verdict(better) == Verdict::Loss;
            let value = measured.value;
            found.then(|| if better == Better::Lower { value } else { 1.0 / value })
        };
        let shown: Vec<_> = BARS.iter().map(|bar| bar.reference).collect();
        let smallest = shown.iter().filter_map(|bar| loss(bar)).fold(f64::INFINITY, f64::min);
        for reference in headlines::references().filter(|one| !shown.contains(one)) {
            let lost = loss(reference).unwrap_or(1.0);
            assert!(lost <= smallest, "{reference} loses {lost}, more than a bar's {smallest}");
        }
    }

    #[test]
    fn the_chart_shows_three_gains_and_three_losses() {
        let ages = Ages::given(&[("card", 51)]);
        let HowFast { picture, caption } = chart(&repository_results(), &ages).unwrap().unwrap();
        crate::svg::tests::well_formed(&picture).unwrap_or_else(|why| panic!("{why}: {picture}"));
        for bar in ["class=\"gain\"", "class=\"loss\""] {
            assert_eq!(picture.matches(bar).count(), 3, "{picture}");
        }
        let lines: Vec<_> = caption.lines().collect();
        assert!(lines[0].starts_with("![Gains. ") && lines[0].contains(" Losses. "), "{caption}");
        assert_eq!(lines[0].matches(" times the ").count(), 6, "{caption}");
        assert!(lines[2].starts_with("Machines of the figures of 20"), "{caption}");
        assert_eq!(caption.matches("(old)").count(), 1, "only old results are marked: {caption}");
    }

    #[test]
    fn a_bar_whose_verdict_changed_is_an_error() {
        let mut results = repository_results();
        for report in &mut results.0 {
            report.rows.iter_mut().chain(&mut report.context).for_each(|row| row.samples = 1);
        }
        let error = chart(&results, &Ages::default()).unwrap_err().to_string();
        assert!(error.contains("but a no difference in the results"), "{error}");
    }

    #[test]
    fn the_caption_stands_between_its_comments() {
        let readme = format!("a\n{BEGIN}old\n{END}b\n");
        let new = with_caption(&readme, "new\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}new\n{END}b\n"));
        assert_eq!(with_caption(&new, "new\n").unwrap(), new);
        assert!(with_caption("a\n", "new\n").is_err());
    }

    #[test]
    fn without_results_there_is_no_chart() {
        let results = crate::results::tests::results(Vec::new());
        assert!(chart(&results, &Ages::default()).unwrap().is_none());
    }

    #[test]
    fn advantages_have_their_places() {
        assert_eq!([0.01, 1.0, 100.0].map(place), [432.0, MIDDLE, RIGHT]);
        assert_eq!(place(1e9), RIGHT);
    }
}
