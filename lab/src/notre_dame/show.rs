//! The rows and the pictures of the trials.

use std::time::Duration;

use super::paired::{Paired, second};
use super::rounds::{Compared, Group, Part, Trials};
use super::variant::{Trial, Variant};
use crate::figure::{Axis, Figure, Series};
use crate::latency::{Latency, lowest_part, mean_of_lowest_us, median_us};
use crate::report::{Outcome, Row};

/// The pictures of one part: the sorted trials, and the differences of pairs.
struct Pictures {
    part: Part,
    curves: Figure,
    differences: Figure,
}

impl Pictures {
    fn new(part: Part) -> Pictures {
        let (name, subject) = match part {
            Part::Waits => ("asleep-awake", "asleep and polling"),
            Part::Techniques => ("techniques", "each technique on and off"),
            Part::Versions => ("versions", "versions of a driver, as in the paper's figure 2"),
            Part::Moves => ("moves", "buffers copied and moved"),
        };
        let curves = Figure::new(
            name,
            &format!("Sorted round trips: {subject}"),
            Axis::linear("trial, sorted by its time", ""),
            Axis::log("second round trip", "us"),
        );
        let axis = match part {
            Part::Waits | Part::Moves => Axis::log("ratio of the pairs", ""),
            Part::Techniques | Part::Versions => Axis::linear("ratio of the pairs", ""),
        };
        let differences = Figure::new(
            &format!("{name}-differences"),
            &format!("Round trips in pairs, with 95 % intervals: {subject}"),
            Axis::linear("number in the legend", ""),
            axis,
        );
        Pictures { part, curves, differences }
    }
}

/// Adds the rows and pictures of all trials.
pub(super) fn show(outcome: &mut Outcome, groups: &[Group], trials: &Trials) -> anyhow::Result<()> {
    let mut pictures =
        [Part::Waits, Part::Techniques, Part::Versions, Part::Moves].map(Pictures::new);
    let mut rest = &trials[..];
    for group in groups {
        let (own, others) = rest.split_at(group.variants.len());
        rest = others;
        let Some(Pictures { curves, differences, .. }) =
            pictures.iter_mut().find(|one| one.part == group.part)
        else {
            continue;
        };
        for (variant, trials) in group.variants.iter().zip(own) {
            alone(outcome, variant, trials)?;
            curves.series.push(curve(&variant.name, variant.packet_bytes, group.part, trials));
        }
        for compared in &group.compared {
            let bytes = group.variants[compared.on].packet_bytes;
            let paired = Paired::new(&own[compared.on], &own[compared.off]);
            let number = differences.series.len() + 1;
            differences.series.push(pair(outcome, group.part, compared, bytes, &paired, number));
        }
    }
    let drawn = pictures.into_iter().flat_map(|one| [one.curves, one.differences]);
    outcome.figures.extend(drawn);
    Ok(())
}

/// Returns the second or first trips of trials.
fn times(trials: &[Trial], trip: usize) -> Vec<Duration> {
    trials.iter().map(|trial| Duration::from_nanos(u64::from(trial[trip]))).collect()
}

/// Adds the figures of one variant.
fn alone(outcome: &mut Outcome, variant: &Variant, trials: &[Trial]) -> anyhow::Result<()> {
    let Variant { name, packet_bytes, .. } = variant;
    let parameters = [("packet_bytes", *packet_bytes as f64)];
    let [first, second] = [0, 1].map(|trip| times(trials, trip));
    let mut latency = Latency::new()?;
    second.iter().for_each(|time| latency.record(*time));
    let lowest = lowest_part(&second);
    let mut row = Row::new(name, &parameters, "us", &[mean_of_lowest_us(&second)]);
    row.samples = lowest.len();
    if let (Some(low), Some(high)) = (lowest.first(), lowest.last()) {
        row.spread = [*low, *high];
    }
    outcome.context.push(row);
    outcome.context.extend(latency.rows(name, &parameters));
    let first = [median_us(&first) / median_us(&second)];
    let row = Row::new(&format!("{name}, first to second trip"), &parameters, "ratio", &first);
    outcome.context.push(Row { samples: trials.len(), ..row });
    Ok(())
}

fn curve(name: &str, bytes: usize, part: Part, trials: &[Trial]) -> Series {
    let mut sorted = second(trials);
    sorted.sort_unstable();
    sorted.truncate(crate::latency::lowest(sorted.len()));
    let points = sorted.iter().enumerate();
    let points = points.map(|(rank, ns)| [rank as f64 + 1.0, f64::from(*ns) / 1e3]).collect();
    Series::line(&sized(name, bytes, part), points)
}

/// Returns a name for a legend: with the size where that differs.
fn sized(name: &str, bytes: usize, part: Part) -> String {
    if part == Part::Moves { format!("{name}, {bytes} B") } else { name.to_owned() }
}

/// Adds the rows of one comparison. Returns its mark in the picture.
fn pair(
    outcome: &mut Outcome,
    part: Part,
    compared: &Compared,
    bytes: usize,
    paired: &Paired,
    number: usize,
) -> Series {
    let Compared { ratio: name, difference, .. } = compared;
    let parameters = [("packet_bytes", bytes as f64)];
    let [us, ratio] = paired.difference();
    outcome.rows.push(ratio.row(name, &parameters, "ratio", paired.len()));
    outcome.rows.push(us.row(difference, &parameters, "us", paired.len()));
    if part == Part::Versions {
        let (lowest, parts) = paired.lowest();
        let row = lowest.row(&format!("{name}, lowest"), &parameters, "ratio", parts);
        outcome.rows.push(row);
        let tails = paired.tails();
        outcome.rows.push(tails.row(&format!("{name}, p99"), &parameters, "ratio", paired.len()));
    }
    let name = format!("{number}: {}", sized(name, bytes, part));
    Series::interval(&name, [number as f64, ratio.value], [ratio.low, ratio.high])
}
