//! The engine's wait strategies: `wait=auto` beside the kernel's sockets at three rates, and beside
//! every fixed setting on patterns of traffic.
//!
//! Smith and Traw left the choice of their clock's base rate as an unsolved problem. Here the
//! controller chooses, and the best fixed setting of the same run is the comparison.

pub(crate) mod pattern;
pub(crate) mod run;

use std::time::Duration;

use towpath_client::Setting;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::KernelWire;
use crate::machine::two_cores;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Summary;
use pattern::Pattern;
use run::{Load, Ours, Run};

/// The interface of this experiment.
const TAP: &str = "tpwai0";
/// Frames per second that one core can send over veth, one by one.
const MOST_ALONE: f64 = 200_000.0;
/// The most wake-ups per packet of server and application together, at 100 000 packets per second.
const MOST_SLEEPS: f64 = 0.125;
/// The pattern that addresses many endpoints in turn.
const MANY_LITTLE: &str = "many with little each";
/// The pattern of more frames than application and engine can process.
const OVERLOAD: &str = "overload";
const OVERLOAD_PER_S: f64 = 600_000.0;
/// The application's work per frame under overload.
const WORK: Duration = Duration::from_micros(5);
/// The limit of processor time, as a multiple of the best fixed setting's that keeps the same
/// bound.
const MOST_OF_BEST: f64 = 1.2;
/// The lower limit of packets received, as a part of the most with any fixed setting.
const LEAST_OF_MOST: f64 = 0.9;
/// The bound on delay for the comparison with fixed settings, in microseconds.
const BOUND_US: f64 = 1000.0;
/// The largest loss of a setting that keeps a bound.
const MOST_LOST: f64 = 0.001;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let mut outcome = Outcome {
        how: format!(
            "UDP datagrams of 8 bytes from the kernel to one receiver, sent when they are due by a \
             thread that stays awake on core {}, at 400 000 a second four per call on both sides, \
             as a core may not send as many over veth one by one; the application, or the kernel \
             socket's reader, sleeps until datagrams come, on core {}, where the engine is too; \
             under overload the application works 5 us on each; processor time is that of server \
             and application together, or of the thread that reads the socket, by the scheduler's \
             account, without the sender's; the kernel's wire is a veth pair; delays count from \
             the call that sends",
            cores.0, cores.1
        ),
        ..Outcome::default()
    };
    let process = Process::start(&Serving::tap(TAP).on(cores.1), None)?;
    let mut ours = Ours::new(&process, TAP)?;
    let wire = KernelWire::new("tpwaw", 1500)?;
    beside_sockets(settings, &mut ours, &wire, cores, &mut outcome)?;
    beside_fixed(settings, &mut ours, cores, &mut outcome)?;
    Ok(outcome)
}

/// Measures processor time per frame beside the kernel's, at three rates and three bounds.
fn beside_sockets(
    settings: Settings,
    ours: &mut Ours<'_>,
    wire: &KernelWire,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 100 } else { 500 });
    ours.set(Setting::Wait, Setting::Wait.parse("auto")?)?;
    for bound_us in [100, 1000, 10_000] {
        ours.set(Setting::LatencyUs, bound_us)?;
        for rate in [10_000.0, 100_000.0, 400_000.0] {
            let times = Pattern::Even(rate).times(window);
            let together = if rate > MOST_ALONE { run::TOGETHER } else { 1 };
            let load = Load { together, ..Load::new(&times) };
            let (own, theirs) = in_turn(settings, ours, wire, &load, cores)?;
            show_beside_sockets(outcome, bound_us, rate, &own, &theirs);
        }
    }
    Ok(())
}

/// Runs both in turn. Returns our runs, and the kernel's.
fn in_turn(
    settings: Settings,
    ours: &mut Ours<'_>,
    wire: &KernelWire,
    load: &Load<'_>,
    cores: (usize, usize),
) -> anyhow::Result<(Vec<Run>, Vec<Run>)> {
    let kernel = || run::kernel(wire, (load.times, load.together), cores);
    // The controller settles in the first run.
    ours.run(load, cores)?;
    kernel()?;
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for pair in 0..settings.pairs() {
        if pair % 2 == 0 {
            own.push(ours.run(load, cores)?);
            theirs.push(kernel()?);
        } else {
            theirs.push(kernel()?);
            own.push(ours.run(load, cores)?);
        }
    }
    Ok((own, theirs))
}

/// Adds the rows of one rate and bound.
fn show_beside_sockets(
    outcome: &mut Outcome,
    bound_us: u64,
    rate: f64,
    own: &[Run],
    theirs: &[Run],
) {
    let parameters = [("bound_us", bound_us as f64), ("packets_per_s", rate)];
    let ratios: Vec<f64> = own
        .iter()
        .zip(theirs)
        .map(|(own, theirs)| own.cpu_us_per_frame() / theirs.cpu_us_per_frame())
        .collect();
    let ratio =
        Row::new("processor time per packet, to the kernel's", &parameters, "ratio", &ratios);
    let sleeps: Vec<f64> = own.iter().map(Run::sleeps_per_frame).collect();
    let sleeps = Row::new("wake-ups per packet", &parameters, "", &sleeps);
    let p99: Vec<f64> = own.iter().map(Run::p99_us).collect();
    let p99 = Row::new("delay, p99", &parameters, "us", &p99);
    if bound_us == 1000 {
        outcome.rows.push(ratio.at_most(1.0));
        // The delay includes the kernel's path to the application, though the bound is on added
        // delay.
        outcome.rows.push(p99.at_most(bound_us as f64));
        outcome.rows.push(if rate == 100_000.0 { sleeps.at_most(MOST_SLEEPS) } else { sleeps });
    } else {
        outcome.rows.extend([ratio, p99, sleeps]);
    }
    for (name, runs) in [("Towpath", own), ("kernel", theirs)] {
        let mut row = |what: &str, unit, value: &dyn Fn(&Run) -> f64| {
            let values: Vec<f64> = runs.iter().map(value).collect();
            let title = format!("{name}, {what}");
            outcome.context.push(Row::new(&title, &parameters, unit, &values));
        };
        row("processor time per packet", "us", &Run::cpu_us_per_frame);
        row("packets sent", "1/s", &Run::sent_per_s);
        row("lost", "of those sent", &Run::lost);
        if name == "kernel" {
            row("delay, p99", "us", &Run::p99_us);
            row("wake-ups per packet", "", &Run::sleeps_per_frame);
        }
    }
}

/// Returns the fixed settings.
fn fixed(quick: bool) -> Vec<Fixed> {
    let mut all: Vec<_> =
        ["poll", "block", "spin-then-block"].map(|mode| (mode.to_owned(), mode, None)).into();
    let clocks: &[u64] = if quick {
        &[800, 1200, 2500]
    } else {
        &[100, 200, 400, 800, 1000, 1200, 1600, 3200, 10_000]
    };
    all.extend(clocks.iter().map(|hz| (format!("timer-driven {hz}"), "timer-driven", Some(*hz))));
    all
}

/// A fixed setting: its name, the wait strategy, and the rate of its ticks.
type Fixed = (String, &'static str, Option<u64>);

/// Returns the patterns of traffic.
fn patterns(quick: bool) -> Vec<(String, Pattern)> {
    let mut patterns = vec![
        ("steady, slow".to_owned(), Pattern::Steady(500.0)),
        ("steady, fast".to_owned(), Pattern::Steady(100_000.0)),
        ("bursts".to_owned(), Pattern::Bursts { frames: 32, per_s: 300.0 }),
        ("on and off".to_owned(), Pattern::OnOff { per_s: 50_000.0, on_ms: 20.0, off_ms: 20.0 }),
        (MANY_LITTLE.to_owned(), Pattern::Steady(10_000.0)),
        (OVERLOAD.to_owned(), Pattern::Even(OVERLOAD_PER_S)),
    ];
    let seeds = if quick { 2 } else { 20 };
    patterns.extend((1..=seeds).map(|seed| (format!("steps, seed {seed}"), Pattern::Steps(seed))));
    patterns
}

/// Measures the controller beside every fixed setting, pattern by pattern.
fn beside_fixed(
    settings: Settings,
    ours: &mut Ours<'_>,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let window = Duration::from_millis(if settings.quick { 100 } else { 400 });
    let rounds = if settings.quick { 2 } else { 5 };
    let mut figure = Figure::new(
        "auto-best",
        "Processor time: wait=auto beside the best fixed setting within 1 ms",
        Axis::log("best fixed", "% of a processor"),
        Axis::log("auto", "% of a processor"),
    );
    let mut points = Vec::new();
    ours.set(Setting::LatencyUs, BOUND_US as u64)?;
    let fixed = fixed(settings.quick);
    for (name, pattern) in patterns(settings.quick) {
        let times = pattern.times(window);
        let endpoints = if name == MANY_LITTLE { run::MANY } else { 1 };
        let work = if name == OVERLOAD { WORK } else { Duration::ZERO };
        let load = Load { endpoints, work, ..Load::new(&times) };
        let runs = OfPattern::run(name, ours, &load, (&fixed, rounds), cores)?;
        let Some(best) = runs.best() else {
            let title = format!("{}: fixed settings that keep the bound", runs.name);
            outcome.rows.push(Row::new(&title, &[], "", &[0.0]).at_least(1.0));
            continue;
        };
        runs.show_auto(outcome, best, &fixed[best].0);
        points.push([
            median(&runs.of_fixed[best], &Run::cpu_percent),
            median(&runs.of_auto, &Run::cpu_percent),
        ]);
        runs.show_fixed(outcome, &fixed);
    }
    figure.series.push(Series::dots("patterns", points));
    outcome.figures.push(figure);
    Ok(())
}

/// Returns the median of a value of several runs.
fn median(runs: &[Run], value: &dyn Fn(&Run) -> f64) -> f64 {
    Summary::of(&runs.iter().map(value).collect::<Vec<_>>()).median
}

/// The runs of one pattern.
struct OfPattern {
    name: String,
    /// By fixed setting.
    of_fixed: Vec<Vec<Run>>,
    of_auto: Vec<Run>,
}

impl OfPattern {
    fn run(
        name: String,
        ours: &mut Ours<'_>,
        load: &Load<'_>,
        (fixed, rounds): (&[Fixed], usize),
        cores: (usize, usize),
    ) -> anyhow::Result<OfPattern> {
        let mut of_fixed: Vec<Vec<Run>> = fixed.iter().map(|_| Vec::new()).collect();
        let mut of_auto = Vec::new();
        for _ in 0..rounds {
            for (runs, (_, mode, hz)) in of_fixed.iter_mut().zip(fixed) {
                if let Some(hz) = hz {
                    ours.set(Setting::TickHz, *hz)?;
                }
                ours.set(Setting::Wait, Setting::Wait.parse(mode)?)?;
                runs.push(ours.run(load, cores)?);
            }
            ours.set(Setting::Wait, Setting::Wait.parse("auto")?)?;
            of_auto.push(ours.run(load, cores)?);
        }
        Ok(OfPattern { name, of_fixed, of_auto })
    }

    fn is_overload(&self) -> bool {
        self.name == OVERLOAD
    }

    /// Returns the most packets received per second with any fixed setting.
    fn most_received(&self) -> f64 {
        self.of_fixed.iter().map(|runs| median(runs, &Run::received_per_s)).fold(0.0, f64::max)
    }

    /// Returns the fixed setting with the least processor time, of those that keep the bound.
    fn best(&self) -> Option<usize> {
        let most = self.most_received();
        // No setting keeps the bound under overload, so the packets received decide there.
        let keeps = |runs: &[Run]| {
            if self.is_overload() {
                median(runs, &Run::received_per_s) >= LEAST_OF_MOST * most
            } else {
                median(runs, &Run::p99_us) <= BOUND_US && median(runs, &Run::lost) <= MOST_LOST
            }
        };
        let cpu = |place: &usize| median(&self.of_fixed[*place], &Run::cpu_percent);
        (0..self.of_fixed.len())
            .filter(|place| keeps(&self.of_fixed[*place]))
            .min_by(|a, b| cpu(a).total_cmp(&cpu(b)))
    }

    /// Adds the controller's rows.
    fn show_auto(&self, outcome: &mut Outcome, best: usize, best_name: &str) {
        let name = &self.name;
        let ratios: Vec<f64> = self
            .of_auto
            .iter()
            .zip(&self.of_fixed[best])
            .map(|(auto, best)| auto.cpu_percent() / best.cpu_percent())
            .collect();
        let title = format!("{name}: processor time of auto, to the best fixed's ({best_name})");
        outcome.rows.push(Row::new(&title, &[], "ratio", &ratios).at_most(MOST_OF_BEST));
        let of_runs = |what: &str, unit, value: &dyn Fn(&Run) -> f64| {
            let values: Vec<f64> = self.of_auto.iter().map(value).collect();
            Row::new(&format!("{name}: {what}"), &[], unit, &values)
        };
        if self.is_overload() {
            let most = self.most_received();
            let through =
                of_runs("packets received by auto, to the most with any fixed", "ratio", &|run| {
                    run.received_per_s() / most
                });
            outcome.rows.push(through.at_least(LEAST_OF_MOST));
            outcome.context.push(of_runs("packets sent to auto", "1/s", &Run::sent_per_s));
            outcome.context.push(of_runs("packets received by auto", "1/s", &Run::received_per_s));
        } else {
            let delay = of_runs("delay of auto, p99", "us", &Run::p99_us);
            outcome.rows.push(delay.at_most(BOUND_US));
            let lost = of_runs("lost by auto", "of those sent", &Run::lost);
            outcome.rows.push(lost.at_most(MOST_LOST));
        }
    }

    /// Adds the figures of each fixed setting.
    fn show_fixed(&self, outcome: &mut Outcome, fixed: &[Fixed]) {
        for (runs, (setting, ..)) in self.of_fixed.iter().zip(fixed) {
            let mut row = |what: &str, unit, value: &dyn Fn(&Run) -> f64| {
                let values: Vec<f64> = runs.iter().map(value).collect();
                let title = format!("{}: {setting}, {what}", self.name);
                outcome.context.push(Row::new(&title, &[], unit, &values));
            };
            row("processor time", "%", &Run::cpu_percent);
            row("delay, p99", "us", &Run::p99_us);
            row("packets received", "1/s", &Run::received_per_s);
        }
    }
}
