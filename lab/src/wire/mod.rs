//! TCP over a wire with delay, a bottleneck and faults: the kernel's and Towpath's, at either end.
//!
//! Two hosts in network namespaces of their own are joined by a wire in user space. Each host has
//! a TAP for the kernel's TCP; a network of `towpath-net` uses the same wire beside it, with the
//! same frames: at most 1500 bytes of IP, no offload. So the four pairings of sender and receiver,
//! and those with an application behind a server on the kernel's TAP, meet the same conditions,
//! and runs of one round meet the same sequence of faults.
//!
//! | module | holds |
//! |---|---|
//! | `path` | one direction: rate, queue, delay and faults; time is an argument |
//! | `wire_thread` | the thread that carries the frames |
//! | `port` | an end of the wire inside of this process, a `Link` |
//! | `hosts` | the namespaces, the TAPs, the networks, and connections between them |
//! | `flow` | bulk data through connections |
//! | `cases` | the conditions, and the limits of their ratios |

mod cases;
mod flow;
mod frame;
mod hosts;
mod path;
mod port;
mod wire_thread;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::latency::Latency;
use crate::report::{Outcome, Row};
use crate::statistics::ratios;

use cases::Case;
use flow::{Course, SLICE};
use hosts::{End, Hosts};
use path::{Conditions, Counts};
use wire_thread::WireReport;

/// The limits of Towpath's share of a bottleneck beside one connection of the kernel.
const SHARE: [f64; 2] = [0.4, 0.6];
/// Sender and receiver, with the words of rows and pictures. The first is the comparison.
const PAIRINGS: [Pairing; 6] = [
    (End::Kernel, End::Kernel, "kernel to kernel"),
    (End::Towpath, End::Kernel, "Towpath to kernel"),
    (End::Kernel, End::Towpath, "kernel to Towpath"),
    (End::Towpath, End::Towpath, "Towpath to Towpath"),
    (End::Server, End::Kernel, "Towpath behind a server to kernel"),
    (End::Kernel, End::Server, "kernel to Towpath behind a server"),
];
/// The pairings without a server.
const DIRECT: usize = 4;

type Pairing = (End, End, &'static str);

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (hosts, missing) = Hosts::new()?;
    let mut outcome = Outcome {
        how: "two network namespaces and a wire in user space between them; the kernel's end is a \
              TAP without offload, Towpath's a link in the process of the wire, with the \
              library's thread; behind a server: AF_XDP, generic, on the kernel's TAP, engine and \
              application sleep when idle; frames of at most 1500 bytes of IP on both; CUBIC on \
              both, the kernel's buffers grow to 64 MiB, Towpath's hold at least four times the queue and 4 MiB; new \
              connections for each run, slow start included; the runs of a round have the same \
              seed of faults; nothing pinned, and the wire's thread runs before all others \
              (SCHED_FIFO) where the system allows it"
            .into(),
        missing,
        ..Outcome::default()
    };
    wire_itself(settings, &hosts, &mut outcome)?;
    for (number, case) in cases::all().iter().enumerate() {
        pairings(settings, &hosts, (number, case), &mut outcome).context(case.name)?;
    }
    sharing(settings, &hosts, &mut outcome).context("shared bottleneck")?;
    Ok(outcome)
}

/// Returns the number of rounds.
fn rounds(settings: Settings) -> usize {
    match settings {
        Settings { quick: true, .. } => 1,
        Settings { full: true, .. } => 11,
        Settings { .. } => 5,
    }
}

/// Measures what the wire adds to its delay, and the most that it carries.
fn wire_itself(settings: Settings, hosts: &Hosts, outcome: &mut Outcome) -> anyhow::Result<()> {
    let trips = if settings.quick { 10 } else { 100 };
    let delay = Duration::from_millis(10);
    let conditions = Conditions { delay, ..Conditions::NONE };
    let (more, _) = hosts.join(conditions, 0, [End::Kernel; 2], |joined| {
        let [near, far] = joined.kernel_udp()?;
        let mut buffer = [0; 64];
        let mut more = Vec::new();
        // The first trip finds the link addresses.
        for trip in 0..=trips {
            let start = Instant::now();
            near.send(&[7; 32])?;
            let len = far.recv(&mut buffer)?;
            far.send(&buffer[..len])?;
            near.recv(&mut buffer)?;
            if trip > 0 {
                more.push((start.elapsed().as_secs_f64() - 2.0 * delay.as_secs_f64()) * 1e6);
            }
        }
        Ok(more)
    })?;
    let delay_ms = [("delay_ms", 10.0)];
    let name = "wire: round trip of UDP, more than its delay";
    outcome.context.push(Row::new(name, &delay_ms, "us", &more));

    let window = Duration::from_millis(if settings.quick { 100 } else { 2000 });
    let mut most = vec![Vec::new(); DIRECT];
    for round in 0..rounds(settings) {
        for place in order(round, DIRECT) {
            let (course, _) = run(hosts, (Conditions::NONE, 1), 0, PAIRINGS[place], window)?;
            most[place].push(course.mbit_s(window));
        }
    }
    for ((_, _, pairing), values) in PAIRINGS.iter().zip(&most) {
        let name = format!("no delay, no bottleneck: {pairing}");
        outcome.context.push(Row::new(&name, &[], "Mbit/s", values));
    }
    Ok(())
}

/// Returns the order of the pairings in a round: every other one is reversed.
fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| if round.is_multiple_of(2) { place } else { count - 1 - place })
}

/// Runs some connections of a pairing side by side, and adds them up.
fn run(
    hosts: &Hosts,
    (conditions, connections): (Conditions, usize),
    seed: u64,
    (sender, receiver, name): Pairing,
    window: Duration,
) -> anyhow::Result<(Course, WireReport)> {
    let (courses, carried) = hosts
        .join(conditions, seed, [sender, receiver], |joined| {
            let connect = |_| joined.connect(sender, receiver);
            let ends = (0..connections).map(connect).collect::<anyhow::Result<Vec<_>>>()?;
            flow::carry(ends, window)
        })
        .context(name)?;
    let course = Course::sum(&courses);
    ensure!(sender != End::Kernel || course.bytes > 0, "{name}: no data arrived");
    Ok((course, carried))
}

/// Measures all pairings in turn under one case's conditions.
fn pairings(
    settings: Settings,
    hosts: &Hosts,
    (number, case): (usize, &Case),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let (window, run_of) = (case.window(settings), (case.conditions, case.connections));
    let with_server = hosts.serves && case.has_server(settings);
    let count = if with_server { PAIRINGS.len() } else { DIRECT };
    let mut courses = vec![Vec::new(); count];
    let (mut data, mut late) = (Counts::default(), Latency::new()?);
    for round in 0..rounds(settings) {
        let seed = (number as u64) << 32 | round as u64;
        for place in order(round, count) {
            let (course, carried) = run(hosts, run_of, seed, PAIRINGS[place], window)?;
            courses[place].push(course);
            data.add(carried.counts[0]);
            late.add(&carried.late)?;
        }
    }
    let values: Vec<Vec<f64>> = courses
        .iter()
        .map(|runs| runs.iter().map(|course| course.mbit_s(window)).collect())
        .collect();
    for ((sender, receiver, pairing), values_here) in PAIRINGS.iter().zip(&values) {
        let name = format!("{}: {pairing}", case.name);
        outcome.context.push(case.row(&name, "Mbit/s", values_here));
        if (*sender, *receiver) == (End::Kernel, End::Kernel) {
            continue;
        }
        let name = format!("{name}, to kernel to kernel");
        let row = case.row(&name, "ratio", &ratios(values_here, &values[0]));
        // The limits of the pairings with one kernel end also cover Towpath at both ends.
        let is_limited = [*sender, *receiver].contains(&End::Kernel);
        outcome.rows.push(match case.at_least.filter(|_| is_limited) {
            Some(limit) => row.at_least(limit),
            None => row,
        });
    }
    wire_rows(case, data, &late, outcome);
    let named = PAIRINGS.iter().zip(&courses).map(|((.., name), runs)| (*name, &runs[..]));
    outcome.figures.extend(pictures(case, &named.collect::<Vec<_>>()));
    Ok(())
}

/// Adds what the wire did to the frames of the senders, and how punctual it was.
fn wire_rows(case: &Case, data: Counts, late: &Latency, outcome: &mut Outcome) {
    for (what, count) in [
        ("lost", data.lost),
        ("dropped by the full queue", data.queue_full),
        ("late", data.reordered),
        ("not taken at the end", data.refused),
    ] {
        let name = format!("{}: frames of the senders, {what}", case.name);
        let part = [count as f64 / data.entered.max(1) as f64];
        let row = case.row(&name, "of 1", &part);
        outcome.context.push(Row { samples: data.entered as usize, ..row });
    }
    let name = format!("{}: the wire hands a frame over after its time", case.name);
    outcome.context.extend(case.quantiles(&name, late));
}

/// Draws throughput and congestion window over time of named runs: their means.
fn pictures(case: &Case, named: &[(&str, &[Course])]) -> [Figure; 2] {
    let figure = |suffix: &str, what: &str, unit: &str| {
        let name = format!("{}{suffix}", case.picture);
        let title = format!("{what} over time, {}", case.title);
        let x = Axis::linear("time from the first byte", "s");
        Figure::new(&name, &title, x, Axis::linear(&what.to_lowercase(), unit))
    };
    let mut throughput = figure("", "Throughput", "Mbit/s");
    let mut window = figure("-window", "Congestion window", "KiB");
    let mbit = 8.0 / SLICE.as_secs_f64() / 1e6;
    for (name, runs) in named {
        let bytes = over_time(runs, mbit, |course| &course.slices);
        let windows = over_time(runs, 1.0 / 1024.0, |course| &course.windows);
        throughput.series.push(Series::line(name, bytes));
        window.series.push(Series::line(name, windows));
    }
    [throughput, window]
}

/// Returns the mean over runs of a figure of each slice, times a factor, at the slice's middle in
/// seconds.
fn over_time(runs: &[Course], factor: f64, of: fn(&Course) -> &[u64]) -> Vec<[f64; 2]> {
    let slices = runs.iter().map(|course| of(course).len()).min().unwrap_or(0);
    (0..slices)
        .map(|slice| {
            let sum: u64 = runs.iter().map(|course| of(course)[slice]).sum();
            let middle = (slice as f64 + 0.5) * SLICE.as_secs_f64();
            [middle, sum as f64 * factor / runs.len() as f64]
        })
        .collect()
}

/// Measures the share of a Towpath sender at a bottleneck beside one of the kernel, and that of a
/// sender of the kernel beside another one.
fn sharing(settings: Settings, hosts: &Hosts, outcome: &mut Outcome) -> anyhow::Result<()> {
    let case = cases::sharing();
    let window = case.window(settings);
    let senders = [End::Towpath, End::Kernel];
    let (mut shares, mut courses) = (vec![Vec::new(); 2], vec![Vec::new(); 4]);
    for round in 0..rounds(settings) {
        for place in 0..2 {
            let place = if round.is_multiple_of(2) { place } else { 1 - place };
            let ends = [senders[place], End::Kernel];
            let (both, _) = hosts.join(case.conditions, round as u64, ends, |joined| {
                let first = joined.connect(senders[place], End::Kernel)?;
                let second = joined.connect(End::Kernel, End::Kernel)?;
                flow::carry(vec![first, second], window)
            })?;
            let [first, second] = [&both[0], &both[1]];
            let sum = first.bytes + second.bytes;
            ensure!(second.bytes > 0, "no data arrived");
            shares[place].push(first.bytes as f64 / sum as f64);
            courses[2 * place].push(first.clone());
            courses[2 * place + 1].push(second.clone());
        }
    }
    let row = |name: &str, unit: &str, values: &[f64]| case.row(name, unit, values);
    outcome.rows.push(
        row("shared bottleneck: Towpath's share beside the kernel", "of 1", &shares[0])
            .at_least(SHARE[0])
            .at_most(SHARE[1]),
    );
    let name = "shared bottleneck: one kernel connection's share beside another";
    outcome.context.push(row(name, "of 1", &shares[1]));
    let named = [
        ("Towpath beside the kernel", &courses[0][..]),
        ("kernel beside Towpath", &courses[1][..]),
        ("kernel beside the kernel, first", &courses[2][..]),
        ("kernel beside the kernel, second", &courses[3][..]),
    ];
    for (name, runs) in named {
        let values: Vec<f64> = runs.iter().map(|course| course.mbit_s(window)).collect();
        outcome.context.push(row(&format!("shared bottleneck: {name}"), "Mbit/s", &values));
    }
    outcome.figures.extend(pictures(&case, &named));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_round_is_reversed() {
        assert_eq!(order(0, 4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(order(1, 4).collect::<Vec<_>>(), [3, 2, 1, 0]);
    }

    #[test]
    fn a_picture_shows_the_mean_of_the_runs() {
        let course = |slices: [u64; 2]| Course { slices: slices.into(), ..Course::default() };
        let runs = [course([25_000, 0]), course([0, 100_000])];
        let points = over_time(&runs, 8e-5, |course| &course.slices);
        assert_eq!(points.len(), 2);
        assert!((points[0][0] - 0.05).abs() < 1e-9 && (points[0][1] - 1.0).abs() < 1e-9);
        assert!((points[1][0] - 0.15).abs() < 1e-9 && (points[1][1] - 4.0).abs() < 1e-9);
        assert!(over_time(&[], 1.0, |course| &course.slices).is_empty());
    }
}
