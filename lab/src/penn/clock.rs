//! The clock, swept, against the paper's model (box 1). With β polls per second that cost C each
//! and λ packets per second that cost α each, `1 > β C + λ α`; with a wake-up for each frame,
//! `1 > λ (C + α)`. Between two polls at most as many frames can come as the queue holds:
//! `λ < ring · β`. The paper says that of its buffer in section 2.4; here it is part of the
//! capacity.
//!
//! The timer-driven side here is an application, which sleeps between polls and is never woken for
//! a frame. In [`engine`] it is the engine (`wait=timer-driven`). β, C and α are measured: C with
//! nothing to receive, α by the additional cost of polls that find many frames.

use std::time::Duration;

use super::engine;
use super::looks::{Bench, FLOOD, FRAME_BYTES, RATES, RING, Run};
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Summary;

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 40 } else { 500 });
    let runs = if settings.quick { 3 } else { 5 };
    let clocks: &[f64] = if settings.quick {
        &[250.0, 1000.0, 4000.0]
    } else {
        &[60.0, 250.0, 500.0, 1000.0, 2000.0, 8000.0]
    };
    outcome.how += &format!(
        "; clock: an application on core {} polls a queue of {RING} packets of {FRAME_BYTES} bytes \
         β times a second; generator and engine on core {}",
        cores.1, cores.0
    );
    let process = Process::start(&Serving::memory(1500).on(cores.0), None)?;
    let mut bench = Bench::new(&process, cores)?;
    bench.run(1000.0, RATES[0], window)?;
    let mut sweep = Sweep { bench: &mut bench, clocks, runs, window };
    let costs = sweep.costs(outcome)?;
    sweep.busy(costs, outcome)?;
    sweep.capacity(costs, outcome)?;
    engine::measure(&process, &mut bench, clocks, (runs, window), outcome)
}

/// The costs of the model, in seconds.
#[derive(Clone, Copy)]
struct Costs {
    /// C: a poll that finds nothing.
    look_s: f64,
    /// α: a packet.
    frame_s: f64,
}

/// A sweep over the clock's rates.
struct Sweep<'a> {
    bench: &'a mut Bench,
    clocks: &'a [f64],
    runs: usize,
    window: Duration,
}

fn median(values: Vec<f64>) -> f64 {
    Summary::of(&values).median
}

/// Returns the ratios of measured values to those of the model.
fn ratios(measured: &[f64], model: &[f64]) -> Vec<f64> {
    measured.iter().zip(model).map(|(measured, model)| measured / model).collect()
}

impl Sweep<'_> {
    fn again(&mut self, clock: f64, rate: f64) -> anyhow::Result<Vec<Run>> {
        (0..self.runs).map(|_| self.bench.run(clock, rate, self.window)).collect()
    }

    /// Measures the costs of the model.
    fn costs(&mut self, outcome: &mut Outcome) -> anyhow::Result<Costs> {
        // C: polls that find nothing.
        let idle = self.again(4000.0, 0.0)?;
        let looks: Vec<f64> = idle.iter().map(|run| run.busy / run.looks.max(1) as f64).collect();
        let look_s = median(looks.clone());
        // α: the additional cost of polls that find a full queue.
        let full = self.again(1000.0, FLOOD)?;
        let each = full
            .iter()
            .map(|run| (run.busy - run.looks as f64 * look_s) / run.received.max(1) as f64)
            .collect::<Vec<_>>();
        let us = |values: &[f64]| values.iter().map(|value| value * 1e6).collect::<Vec<_>>();
        outcome.context.push(Row::new("clock: an empty poll, C", &[], "us", &us(&looks)));
        outcome.context.push(Row::new("clock: a packet, α", &[], "us", &us(&each)));
        Ok(Costs { look_s, frame_s: median(each) })
    }

    /// Compares the processor time with the model's.
    fn busy(&mut self, costs: Costs, outcome: &mut Outcome) -> anyhow::Result<()> {
        let Costs { look_s, frame_s } = costs;
        let mut busy = Figure::new(
            "clock-busy",
            "Processor time by the clock, measured and by the model",
            Axis::log("β", "1/s"),
            Axis::log("busy", "% of a core"),
        );
        for rate in RATES {
            let (mut measured, mut model, mut each_frame) = (Vec::new(), Vec::new(), Vec::new());
            for &clock in self.clocks {
                let runs = self.again(clock, rate)?;
                let parameters = [("polls_per_s", clock), ("packets_per_s", rate)];
                let parts: Vec<f64> = runs.iter().map(|run| run.busy / run.took).collect();
                let foretold: Vec<f64> = runs
                    .iter()
                    .map(|run| run.polls_per_s() * look_s + run.packets_per_s() * frame_s)
                    .collect();
                let name = "clock: processor time, measured to β C + λ α";
                let values = ratios(&parts, &foretold);
                outcome.rows.push(Row::new(name, &parameters, "ratio", &values));
                let percent: Vec<f64> = parts.iter().map(|part| part * 100.0).collect();
                let name = "clock: processor time";
                outcome.context.push(Row::new(name, &parameters, "% of a core", &percent));
                measured.push([clock, 100.0 * median(parts)]);
                model.push([clock, 100.0 * median(foretold)]);
                each_frame.push([clock, 100.0 * rate * (look_s + frame_s)]);
            }
            let named = |what: &str| format!("{what}, λ = {rate}/s");
            busy.series.push(Series::dots(&named("measured"), measured));
            busy.series.push(Series::line(&named("β C + λ α"), model));
            busy.series.push(Series::line(&named("λ (C + α)"), each_frame));
        }
        outcome.figures.push(busy);
        Ok(())
    }

    /// Compares the capacity with the model's.
    fn capacity(&mut self, costs: Costs, outcome: &mut Outcome) -> anyhow::Result<()> {
        let Costs { look_s, frame_s } = costs;
        let capacity = Figure::new(
            "clock-capacity",
            "Frames that get through by the clock, measured and by the model",
            Axis::log("β", "1/s"),
            Axis::log("packets", "1/s"),
        );
        let (mut measured, mut model) = (Vec::new(), Vec::new());
        for &clock in self.clocks {
            let runs = self.again(clock, FLOOD)?;
            let rates: Vec<f64> = runs.iter().map(Run::packets_per_s).collect();
            let foretold: Vec<f64> = runs
                .iter()
                .map(|run| {
                    let looks = run.polls_per_s();
                    let processor = (1.0 - looks * look_s) / frame_s;
                    processor.min(f64::from(RING) * looks).min(FLOOD)
                })
                .collect();
            let parameters = [("polls_per_s", clock), ("ring_packets", f64::from(RING))];
            let name = "clock: capacity, measured to the model";
            let values = ratios(&rates, &foretold);
            outcome.rows.push(Row::new(name, &parameters, "ratio", &values));
            outcome.context.push(Row::new("clock: capacity", &parameters, "packets/s", &rates));
            measured.push([clock, median(rates)]);
            model.push([clock, median(foretold)]);
        }
        outcome.figures.push(
            capacity
                .with(Series::dots("measured", measured))
                .with(Series::line("least of ring β, (1 - β C) / α, offered", model)),
        );
        Ok(())
    }
}
