//! The paper's table under TCP: packets, IPCs, IRQs and busy time in five seconds of each set-up and of
//! Linux; the cost of each, by least squares; and idle time by context switches.
//!
//! An IPC is a notification, of either side to the other. An IRQ is a poll of the device that found nothing, as
//! in the table without TCP, and for Linux a softirq of received packets.

use std::time::Duration;

use anyhow::Context;
use towpath_testkit::{Participants, set_tcp_segmentation};

use super::frames;
use super::setups::{ALL, NONE, SetUp, TICK_HZ};
use super::tcp::{self, Ends, Pace};
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::fit;
use crate::kernel_wire::KernelWire;
use crate::process::{Process, Serving, Wire};
use crate::report::{Outcome, Row};
use crate::statistics::{mean, ratios};

const TAP: &str = "tpkar2";
const VETH: &str = "tpkarw";
const LINUX: &str = "Linux";
const IPCS: &str = "IPCs";
/// The upper limit of the IPCs with all savings, to those with none: more than the paper's 0.31.
const IPCS_AT_MOST: f64 = 0.4;
/// The paper's throughput both ways, in megabits per second, and the word for the direction.
const WAYS: [(&str, u32); 2] = [("sending", 83), ("receiving", 63)];

/// What a run counted, scaled to the paper's window.
#[derive(Clone, Copy, Debug)]
struct Sample {
    packets: f64,
    ipcs: f64,
    irqs: f64,
    busy_s: f64,
    /// The idle part of both cores.
    idle: f64,
    switches: f64,
    mbit_s: f64,
}

impl Sample {
    fn of(run: &tcp::Sample, [packets, ipcs, irqs]: [u64; 3]) -> Sample {
        let scaled = |count: u64| count as f64 * run.scale();
        Sample {
            packets: scaled(packets),
            ipcs: scaled(ipcs),
            irqs: scaled(irqs),
            busy_s: run.busy_s(),
            idle: run.idle(),
            switches: run.switches(),
            mbit_s: run.mbit_s(),
        }
    }
}

/// Both systems, which run in turn.
struct Bench {
    process: Process,
    wire: KernelWire,
    window: Duration,
    setups: Vec<SetUp>,
}

impl Bench {
    /// Runs a set-up; the one behind the last is Linux.
    fn run(&self, place: usize, way: (&str, u32)) -> anyhow::Result<Sample> {
        let pace = Pace { mbit_s: way.1, window: self.window };
        let Some(setup) = self.setups.get(place) else { return self.run_linux(pace) };
        let attached = setup.attach(&self.process)?;
        let ends = match way.0 {
            "sending" => Ends::sending(&attached.network),
            _ => Ends::receiving(&attached.network),
        }?;
        let participants = Participants::new(&[std::process::id(), self.process.pid()]);
        let (before, own) = (self.process.counters()?, attached.notifications());
        let run = tcp::run(&participants, None, pace, ends);
        let run = run.with_context(|| format!("TCP {}, {}", way.0, setup.name))?;
        let (after, own) = (self.process.counters()?, attached.notifications() - own);
        let since = |name| frames::since(&before, &after, name);
        let packets = since("rx_packets") + since("tx_packets");
        let ipcs = since("notifications") + own;
        let irqs = since("driver_calls").saturating_sub(packets);
        Ok(Sample::of(&run, [packets, ipcs, irqs]))
    }

    fn run_linux(&self, pace: Pace) -> anyhow::Result<Sample> {
        let ends = Ends::of_kernel(&self.wire)?;
        let alone = Participants::new(&[std::process::id()]);
        let before = [packets()?, softirqs()?];
        let run = tcp::run(&alone, None, pace, ends).context("TCP of Linux")?;
        let [packets, irqs] = [packets()? - before[0], softirqs()? - before[1]];
        Ok(Sample::of(&run, [packets, 0, irqs]))
    }

    fn name(&self, place: usize) -> &'static str {
        self.setups.get(place).map_or(LINUX, |setup| setup.name)
    }
}

/// Returns the packets that have crossed the near end of the wire, both ways.
fn packets() -> anyhow::Result<u64> {
    let path = "/proc/thread-self/net/dev";
    let text = std::fs::read_to_string(path).context(path)?;
    let missing = || format!("{path} has no packets of {VETH}0");
    packets_of(&text, &format!("{VETH}0")).with_context(missing)
}

/// Reads an interface's received and sent packets from the kernel's table.
fn packets_of(table: &str, interface: &str) -> Option<u64> {
    let lines = table.lines().filter_map(|line| line.trim().split_once(':'));
    let (_, counts) = lines.into_iter().find(|(name, _)| *name == interface)?;
    let counts: Vec<u64> = counts.split_whitespace().map_while(|one| one.parse().ok()).collect();
    // Eight columns of received packets, then those of sent ones.
    Some(counts.get(1)? + counts.get(9)?)
}

/// Returns the softirqs of received packets, of all processors.
fn softirqs() -> anyhow::Result<u64> {
    let path = "/proc/softirqs";
    let text = std::fs::read_to_string(path).context(path)?;
    let counts = text.lines().find_map(|line| line.trim().strip_prefix("NET_RX:"));
    let counts = counts.with_context(|| format!("{path} has no NET_RX"))?;
    Ok(counts.split_whitespace().map(str::parse::<u64>).sum::<Result<u64, _>>()?)
}

/// Measures all set-ups in turn, both ways.
pub(super) fn measure(
    settings: Settings,
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    // A packet is one of the wire, as in the paper, on both sides.
    let wire = Wire::Tap { name: TAP.to_owned(), offloads: false };
    let bench = Bench {
        process: Process::start(&Serving { wire, ..Serving::tap(TAP) }, None)?,
        wire: KernelWire::new(VETH, 1500)?,
        window,
        setups: SetUp::all(),
    };
    set_tcp_segmentation(&format!("{VETH}0"), false)?;
    outcome.how += &format!(
        "; TCP by set-ups: the paper's throughput ({} and {} Mbit/s), segments of the wire's size, \
         timers of {TICK_HZ} Hz, nothing pinned; their rows have the mean and its 95 % confidence \
         interval",
        WAYS[0].1, WAYS[1].1
    );
    let mut figure = Figure::new(
        "tcp-idle-switches",
        "Idle time by switches, TCP at the paper's throughput",
        Axis::linear("context switches in 5 s", ""),
        Axis::linear("idle time of both cores", "%"),
    );
    let (mut all_counts, mut all_busy) = (Vec::new(), Vec::new());
    for way in WAYS {
        let samples = in_turn(settings, &bench, way)?;
        for (place, samples) in samples.iter().enumerate() {
            show(outcome, way, bench.name(place), samples);
        }
        compare(outcome, way, &bench, &samples);
        // Linux has no IPCs, and its softirqs are no polls of a device.
        let ours: Vec<&Sample> = samples[..bench.setups.len()].iter().flatten().collect();
        let counts: Vec<_> = ours.iter().map(|one| vec![one.packets, one.ipcs, one.irqs]).collect();
        let busy: Vec<f64> = ours.iter().map(|one| one.busy_s).collect();
        cost(outcome, way.0, &counts, &busy);
        let points: Vec<_> = ours.iter().map(|one| [one.switches, 100.0 * one.idle]).collect();
        line(outcome, way.0, &points);
        figure.series.push(Series::dots(way.0, points));
        all_counts.extend(counts);
        all_busy.extend(busy);
    }
    cost(outcome, "both ways", &all_counts, &all_busy);
    outcome.figures.push(figure);
    Ok(())
}

/// Runs all set-ups in turn, every other round in reverse order. The first round is dropped: it warms the
/// caches.
fn in_turn(
    settings: Settings,
    bench: &Bench,
    way: (&str, u32),
) -> anyhow::Result<Vec<Vec<Sample>>> {
    let count = bench.setups.len() + 1;
    let mut samples = vec![Vec::new(); count];
    for round in 0..=settings.pairs() {
        for place in 0..count {
            let place = if round % 2 == 0 { place } else { count - 1 - place };
            let sample = bench.run(place, way)?;
            if round > 0 {
                samples[place].push(sample);
            }
        }
    }
    Ok(samples)
}

fn parameters(way: (&str, u32)) -> [(&'static str, f64); 1] {
    [("mbit_per_s", f64::from(way.1))]
}

/// Adds the paper's columns of one set-up.
fn show(outcome: &mut Outcome, way: (&str, u32), name: &str, samples: &[Sample]) {
    let mut row = |column: &str, unit, value: &dyn Fn(&Sample) -> f64| {
        let values: Vec<f64> = samples.iter().map(value).collect();
        let name = format!("TCP {}, {name}: {column}", way.0);
        let row = Row::within(&name, &parameters(way), unit, mean(&values), values.len());
        outcome.context.push(row);
    };
    row("packets", "in 5 s", &|one| one.packets);
    if name != LINUX {
        row(IPCS, "in 5 s", &|one| one.ipcs);
    }
    row("IRQs", "in 5 s", &|one| one.irqs);
    row("busy", "s in 5 s", &|one| one.busy_s);
    row("idle", "% of both cores", &|one| 100.0 * one.idle);
    row("switches", "in 5 s", &|one| one.switches);
    row("throughput", "Mbit/s", &|one| one.mbit_s);
}

/// Adds the ratios of busy times and of IPCs of each set-up to those without savings, and of busy times to
/// Linux.
fn compare(outcome: &mut Outcome, way: (&str, u32), bench: &Bench, samples: &[Vec<Sample>]) {
    let mut row = |what: &str, (ours, base): (usize, usize), value: &dyn Fn(&Sample) -> f64| {
        let values = |place: usize| samples[place].iter().map(value).collect::<Vec<_>>();
        let (name, other) = (bench.name(ours), bench.name(base));
        let name = format!("TCP {}, {what}, {name} to {other}", way.0);
        let row = Row::new(&name, &parameters(way), "ratio", &ratios(&values(ours), &values(base)));
        let is_limited = (what, ours) == (IPCS, ALL);
        outcome.rows.push(Row { at_most: is_limited.then_some(IPCS_AT_MOST), ..row });
    };
    let linux = bench.setups.len();
    for place in 0..=ALL {
        row("busy", (place, NONE), &|one| one.busy_s);
        row(IPCS, (place, NONE), &|one| one.ipcs);
    }
    for place in [ALL, NONE] {
        row("busy", (place, linux), &|one| one.busy_s);
    }
}

/// Adds the costs of a packet, an IPC and an IRQ, with their confidence intervals.
fn cost(outcome: &mut Outcome, way: &str, counts: &[Vec<f64>], busy: &[f64]) {
    let fit = fit::least_squares(counts, busy);
    for (place, thing) in ["a packet", "an IPC", "an IRQ"].into_iter().enumerate() {
        let us = |values: &dyn Fn(&fit::Fit) -> f64| {
            fit.as_ref().map_or(f64::NAN, |fit| 1e6 * values(fit))
        };
        let cost = (us(&|fit| fit.costs[place]), us(&|fit| fit.margins[place]));
        let name = format!("TCP {way}: {thing} costs, by least squares");
        outcome.rows.push(Row::within(&name, &[], "us", cost, busy.len()));
    }
    let explained = fit.map_or(f64::NAN, |fit| fit.explained);
    let name = format!("TCP {way}: variation that these costs explain");
    let row = Row::new(&name, &[], "of 1", &[explained]);
    outcome.rows.push(Row { samples: busy.len(), ..row });
}

/// Adds the line through idle time by switches.
fn line(outcome: &mut Outcome, way: &str, points: &[[f64; 2]]) {
    let counts: Vec<Vec<f64>> = points.iter().map(|[x, _]| vec![1.0, *x]).collect();
    let idle: Vec<f64> = points.iter().map(|[_, y]| *y).collect();
    let fit = fit::least_squares(&counts, &idle);
    let slope = fit
        .as_ref()
        .map_or((f64::NAN, f64::NAN), |fit| (-1000.0 * fit.costs[1], 1000.0 * fit.margins[1]));
    let name = format!("TCP {way}: idle time lost by a thousand switches in 5 s");
    outcome.rows.push(Row::within(&name, &[], "% of both cores", slope, points.len()));
    let name = format!("TCP {way}: variation of idle time that a line through switches explains");
    let explained = fit.map_or(f64::NAN, |fit| fit.explained);
    let row = Row::new(&name, &[], "of 1", &[explained]);
    outcome.rows.push(Row { samples: points.len(), ..row });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_both_directions_are_added() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets errs\n\
            \x20   lo: 1 2 0 0 0 0 0 0 1 2 0 0 0 0 0 0\n\
            tpkarw0: 900 7 0 0 0 0 0 0 800 30 0 0 0 0 0 0\n";
        assert_eq!(packets_of(table, "tpkarw0"), Some(37));
        assert_eq!(packets_of(table, "tpkarw"), None);
        assert_eq!(packets_of("tpkarw0: 900 7\n", "tpkarw0"), None);
    }
}
