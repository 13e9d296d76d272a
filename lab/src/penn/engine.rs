//! The clock of the engine against the paper's model. Packets to send wait in the queues until the
//! engine polls; the application polls often enough to lose nothing.
//!
//! β is the engine's count of its ticks, because the machine may not keep the set clock. λ is the
//! count of its packets. Packets between two polls must find room: the model's capacity is
//! `ring · β`. But an application with half of its queue in use does not wait for the tick, and
//! notifies the engine (see docs/signalling.md). So an offered load above that capacity shows the
//! gain of such notifications, and the packets refused all the same. Beside each clock, in turn, is
//! `wait=auto`, which chooses.

use std::time::{Duration, Instant};

use towpath_client::Setting;

use super::looks::{Bench, FLOOD, RATES, Run, SENDING_RING};
use crate::figure::{Axis, Figure, Series};
use crate::process::Process;
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};

/// The application's polls per second where it must lose nothing.
const APPLICATION_HZ: f64 = 1000.0;
/// The same under a flood: its queue then holds more than arrives between two polls.
const FLOODED_HZ: f64 = 8000.0;
/// The clock at which C and α are measured: one in the middle.
const MIDDLE_HZ: f64 = 2000.0;

const SETTLING: Duration = Duration::from_millis(5);

/// The result of a run, with the engine's counts.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Ticks per second that the engine kept.
    polls_per_s: f64,
    /// Frames per second that it moved.
    packets_per_s: f64,
    /// The part of a core that its process used.
    busy: f64,
    run: Run,
}

/// A server, and the window of a measurement.
struct Engine<'a> {
    process: &'a Process,
    bench: &'a mut Bench,
    window: Duration,
}

impl Engine<'_> {
    fn by_the_clock(&mut self, hz: f64, rate: f64) -> anyhow::Result<Sample> {
        self.process.set(Setting::TickHz, hz as u64)?;
        self.process.set(Setting::Wait, Setting::Wait.parse("timer-driven")?)?;
        self.run(rate)
    }

    fn by_itself(&mut self, rate: f64) -> anyhow::Result<Sample> {
        self.process.set(Setting::Wait, Setting::Wait.parse("auto")?)?;
        self.run(rate)
    }

    fn run(&mut self, rate: f64) -> anyhow::Result<Sample> {
        let hz = if rate < FLOOD { APPLICATION_HZ } else { FLOODED_HZ };
        let (before, start) = (self.process.counters()?, Instant::now());
        // The work that a reply or a change of settings leaves is no part of the run.
        std::thread::sleep(SETTLING);
        let run = self.bench.run(hz, rate, self.window)?;
        let (after, took) = (self.process.counters()?, start.elapsed().as_secs_f64());
        let since = |name: &str| {
            let value = |all: &std::collections::BTreeMap<String, u64>| {
                all.get(name).copied().unwrap_or_default()
            };
            value(&after).saturating_sub(value(&before)) as f64
        };
        Ok(Sample {
            polls_per_s: since("ticks") / took,
            packets_per_s: since("local_packets") / run.took,
            busy: run.engine_busy / run.took,
            run,
        })
    }
}

fn median(values: &[f64]) -> f64 {
    Summary::of(values).median
}

fn each(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(value).collect()
}

pub(super) fn measure(
    process: &Process,
    bench: &mut Bench,
    clocks: &[f64],
    (runs, window): (usize, Duration),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut engine = Engine { process, bench, window };
    let mut again = |hz: f64, rate: f64| {
        (0..runs).map(|_| engine.by_the_clock(hz, rate)).collect::<anyhow::Result<Vec<Sample>>>()
    };
    let looks = each(&again(MIDDLE_HZ, 0.0)?, |sample| sample.busy / sample.polls_per_s.max(1.0));
    let look_s = median(&looks);
    let frames = each(&again(MIDDLE_HZ, RATES[1])?, |sample| {
        (sample.busy - sample.polls_per_s * look_s) / sample.packets_per_s.max(1.0)
    });
    let costs = Costs { look_s, frame_s: median(&frames) };
    let us = |values: &[f64]| values.iter().map(|value| value * 1e6).collect::<Vec<_>>();
    let name = "engine's clock: an empty poll, C";
    outcome.context.push(Row::new(name, &[], "us", &us(&looks)));
    outcome.context.push(Row::new("engine's clock: a packet, α", &[], "us", &us(&frames)));
    processor(&mut engine, costs, clocks, runs, outcome)?;
    capacity(&mut engine, costs, clocks, runs, outcome)
}

/// Seconds per empty poll, and per frame.
#[derive(Clone, Copy, Debug)]
struct Costs {
    look_s: f64,
    frame_s: f64,
}

impl Costs {
    fn foretold(self, sample: &Sample) -> f64 {
        sample.polls_per_s * self.look_s + sample.packets_per_s * self.frame_s
    }
}

/// Measures processor time over the clock, with `auto` beside it in turn.
fn processor(
    engine: &mut Engine<'_>,
    costs: Costs,
    clocks: &[f64],
    runs: usize,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut figure = Figure::new(
        "engine-clock",
        "Processor time of the engine by its clock, measured and by the model",
        Axis::log("β, as kept", "1/s"),
        Axis::log("busy", "% of a core"),
    );
    for rate in RATES {
        let (mut measured, mut model, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        for &clock in clocks {
            let engine = std::cell::RefCell::new(&mut *engine);
            let (clocked, auto) =
                (std::cell::RefCell::new(Vec::new()), std::cell::RefCell::new(Vec::new()));
            let pairs = Pairs::measure(
                runs,
                || {
                    let sample = engine.borrow_mut().by_the_clock(clock, rate)?;
                    clocked.borrow_mut().push(sample);
                    Ok(sample.busy)
                },
                || {
                    let sample = engine.borrow_mut().by_itself(rate)?;
                    auto.borrow_mut().push(sample);
                    Ok(sample.busy)
                },
            )?;
            // The first of each is dropped: it warms the caches.
            let (clocked, auto) = (&clocked.into_inner()[1..], &auto.into_inner()[1..]);
            let parameters = [("polls_per_s", clock), ("packets_per_s", rate)];
            let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
            let ratios = each(clocked, |sample| sample.busy / costs.foretold(sample));
            let name = "engine's clock: processor time, measured to β C + λ α";
            outcome.rows.push(row(name, "ratio", &ratios));
            let name = "engine's clock: processor time, to that of wait=auto";
            outcome.rows.push(row(name, "ratio", &pairs.ratios()));
            let kept = each(clocked, |sample| sample.polls_per_s);
            outcome.context.push(row("engine's clock: β as kept", "polls/s", &kept));
            for (who, samples) in [("engine's clock", clocked), ("engine, wait=auto", auto)] {
                let percent = each(samples, |sample| 100.0 * sample.busy);
                let name = format!("{who}: processor time");
                outcome.context.push(row(&name, "% of a core", &percent));
            }
            let beta = median(&kept);
            measured.push([beta, 100.0 * median(&pairs.ours)]);
            model.push([beta, 100.0 * median(&each(clocked, |sample| costs.foretold(sample)))]);
            chosen.push([beta, 100.0 * median(&pairs.base)]);
        }
        figure.series.push(Series::dots(&format!("measured, λ = {rate}/s"), measured));
        figure.series.push(Series::line(&format!("β C + λ α, λ = {rate}/s"), model));
        figure.series.push(Series::line(&format!("wait=auto beside it, λ = {rate}/s"), chosen));
    }
    outcome.figures.push(figure);
    Ok(())
}

/// Measures the packets that get through, and the rest, under a load above the queue's capacity
/// between two polls.
fn capacity(
    engine: &mut Engine<'_>,
    costs: Costs,
    clocks: &[f64],
    runs: usize,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let ring = f64::from(SENDING_RING);
    let figure = Figure::new(
        "engine-capacity",
        "Frames that get through by the engine's clock, measured and by the model",
        Axis::log("β, as kept", "1/s"),
        Axis::log("packets", "1/s"),
    );
    let (mut measured, mut model) = (Vec::new(), Vec::new());
    for &clock in clocks {
        let samples = (0..runs)
            .map(|_| engine.by_the_clock(clock, FLOOD))
            .collect::<anyhow::Result<Vec<Sample>>>()?;
        let foretold = |sample: &Sample| {
            let processor = (1.0 - sample.polls_per_s * costs.look_s) / costs.frame_s;
            processor.min(ring * sample.polls_per_s).min(FLOOD)
        };
        let parameters = [("polls_per_s", clock), ("ring_packets", ring)];
        let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
        let ratios = each(&samples, |sample| sample.packets_per_s / foretold(sample));
        outcome.rows.push(row("engine's clock: capacity, measured to the model", "ratio", &ratios));
        let rates = each(&samples, |sample| sample.packets_per_s);
        outcome.context.push(row("engine's clock: capacity", "packets/s", &rates));
        let kept = each(&samples, |sample| sample.polls_per_s);
        outcome.context.push(row("engine's clock: β as kept, flooded", "polls/s", &kept));
        let part = |of: u64, all: u64| 100.0 * of as f64 / all.max(1) as f64;
        let refused =
            each(&samples, |Sample { run, .. }| part(run.due.saturating_sub(run.sent), run.due));
        let name = "engine's clock: offered, and refused by a full ring";
        outcome.context.push(row(name, "% of packets", &refused));
        let lost = each(&samples, |Sample { run, .. }| {
            part(run.sent.saturating_sub(run.received), run.sent)
        });
        let name = "engine's clock: sent, and not received in time";
        outcome.context.push(row(name, "% of packets", &lost));
        let beta = median(&kept);
        measured.push([beta, median(&rates)]);
        model.push([beta, median(&each(&samples, foretold))]);
    }
    outcome.figures.push(
        figure
            .with(Series::dots("measured", measured))
            .with(Series::line("least of ring β, (1 - β C) / α, offered", model)),
    );
    Ok(())
}
