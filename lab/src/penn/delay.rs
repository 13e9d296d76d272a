//! The cost of a clock in delay and in processor time, over a device: packets come to a TAP at
//! random times, and the engine polls the TAP β times a second (the paper's section 2.4).
//!
//! A packet waits for the next poll: by the model at most 1/β, and half of that in the middle. The
//! paper's 60 Hz make it 16.7 ms, for less than 2 % of a processor. The model knows neither the way
//! from the engine to the application nor a late timer.

use std::time::{Duration, Instant};

use anyhow::ensure;
use towpath_client::Setting;
use towpath_testkit::Participants;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Summary;
use crate::waiting::pattern::Pattern;
use crate::waiting::run::{Load, Ours, Run};

const TAP: &str = "tppen3";
/// Packets per second: few for each poll, and many for each run.
const PER_S: f64 = 500.0;
/// Packets per second for the processor time under load.
const LOADED_PER_S: f64 = 10_000.0;
/// The paper's clock, and the part of a processor that its polls took at most, in hundredths.
const PAPERS_HZ: u64 = 60;
const PAPERS_PERCENT: f64 = 2.0;

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let (window, runs) = match settings.quick {
        true => (Duration::from_millis(100), 3),
        false => (Duration::from_secs(1), 5),
    };
    let clocks: &[u64] =
        if settings.quick { &[PAPERS_HZ, 1000] } else { &[PAPERS_HZ, 125, 250, 500, 1000, 4000] };
    outcome.how += &format!(
        "; delay: the kernel's UDP sends {PER_S} datagrams a second to the TAP at random times, from \
         a thread that stays awake on core {}; the engine, timer-driven, and the application, which \
         sleeps until it is notified, are on core {}",
        cores.0, cores.1
    );
    let process = Process::start(&Serving::tap(TAP).on(cores.1), None)?;
    let mut bench = Bench { ours: Ours::new(&process, TAP)?, process: &process, cores, window };
    bench.ours.set(Setting::TickHz, PAPERS_HZ)?;
    bench.ours.set(Setting::Wait, Setting::Wait.parse("timer-driven")?)?;
    let figure = Figure::new(
        "delay",
        "Delay by the clock, measured and by the model",
        Axis::log("β", "1/s"),
        Axis::log("delay", "ms"),
    );
    let names = ["worst", "middle", "1/β", "1/(2β)"];
    let mut curves = names.map(|_| Vec::new());
    for &hz in clocks {
        bench.ours.set(Setting::TickHz, hz)?;
        let mut samples = Vec::new();
        for _ in 0..runs {
            samples.push(bench.sample()?);
        }
        let bound_ms = 1e3 / hz as f64;
        let [worst, middle] = show(outcome, hz, bound_ms, &samples);
        for (curve, value) in curves.iter_mut().zip([worst, middle, bound_ms, bound_ms / 2.0]) {
            curve.push([hz as f64, value]);
        }
    }
    let series = names.iter().zip(curves).enumerate().map(|(place, (name, curve))| match place {
        0 | 1 => Series::dots(name, curve),
        _ => Series::line(name, curve),
    });
    outcome.figures.push(series.fold(figure, Figure::with));
    Ok(())
}

/// An application behind a timer-driven engine.
struct Bench<'a> {
    ours: Ours<'a>,
    process: &'a Process,
    cores: (usize, usize),
    window: Duration,
}

/// The result of one run.
struct Sample {
    worst_ms: f64,
    middle_ms: f64,
    /// Hundredths of a processor: of the engine's process without packets, and of engine and
    /// application under load.
    idle_percent: f64,
    loaded_percent: f64,
    /// Ticks per second that the engine kept.
    ticks_per_s: f64,
}

impl Bench<'_> {
    fn sample(&mut self) -> anyhow::Result<Sample> {
        let few = self.carry(Pattern::Steady(PER_S))?;
        let engine = Participants::new(&[self.process.pid()]);
        let ticks = || -> anyhow::Result<u64> {
            Ok(self.process.counters()?.get("ticks").copied().unwrap_or_default())
        };
        let before = ticks()?;
        let (start, cpu) = (Instant::now(), engine.cpu_time()?);
        std::thread::sleep(self.window);
        let (took, cpu) = (start.elapsed().as_secs_f64(), engine.cpu_time()? - cpu);
        let ticks = ticks()? - before;
        let loaded = self.carry(Pattern::Even(LOADED_PER_S))?;
        Ok(Sample {
            worst_ms: few.delay.quantile_us(1.0) / 1e3,
            middle_ms: few.delay.quantile_us(0.5) / 1e3,
            idle_percent: 100.0 * cpu.as_secs_f64() / took,
            loaded_percent: loaded.cpu_percent(),
            ticks_per_s: ticks as f64 / took,
        })
    }

    fn carry(&mut self, pattern: Pattern) -> anyhow::Result<Run> {
        let times = pattern.times(self.window);
        let run = self.ours.run(&Load::new(&times), self.cores)?;
        ensure!(run.received > 0, "no packet came");
        Ok(run)
    }
}

/// Adds the rows of a clock. Returns the medians of the worst and of the middle delay.
fn show(outcome: &mut Outcome, hz: u64, bound_ms: f64, samples: &[Sample]) -> [f64; 2] {
    let parameters = [("polls_per_s", hz as f64)];
    let each = |value: &dyn Fn(&Sample) -> f64| samples.iter().map(value).collect::<Vec<_>>();
    let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
    let (worst, middle) = (each(&|one| one.worst_ms), each(&|one| one.middle_ms));
    let to = |values: &[f64], model: f64| values.iter().map(|one| one / model).collect::<Vec<_>>();
    let name = "over TAP: delay, worst, to the model's bound 1/β";
    outcome.rows.push(row(name, "ratio", &to(&worst, bound_ms)));
    let name = "over TAP: delay, median, to the model's 1/(2β)";
    outcome.rows.push(row(name, "ratio", &to(&middle, bound_ms / 2.0)));
    let idle = each(&|one| one.idle_percent);
    let name = "over TAP: processor time of the engine's clock, idle";
    let idle = row(name, "% of a core", &idle);
    outcome.rows.push(if hz == PAPERS_HZ { idle.at_most(PAPERS_PERCENT) } else { idle });
    for (name, unit, values) in [
        ("over TAP: delay, worst", "ms", &worst),
        ("over TAP: delay, median", "ms", &middle),
        (
            "over TAP: processor time of engine and application, 10 000 packets/s",
            "% of a core",
            &each(&|one| one.loaded_percent),
        ),
        ("over TAP: β as kept", "ticks/s", &each(&|one| one.ticks_per_s)),
    ] {
        outcome.context.push(row(name, unit, values));
    }
    [Summary::of(&worst).median, Summary::of(&middle).median]
}
