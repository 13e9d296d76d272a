//! Tracey and Banerji, "Device Driver Issues in High-Performance Networking", section 4: the double
//! round trip of a small frame, with each technique on and off.
//!
//! A frame of 60 bytes goes from an application through the server and its TAP to an AF_PACKET
//! socket on the kernel's side, which sends it back; twice, and only the second round trip counts.
//! As in the paper, there is a pause between trials, and the result is the mean of the lowest 4000
//! of 5120. The initiator's thread sends frames back while it waits, so that the other core does
//! only the measured work. With all sides asleep, a separate process sends them back in further
//! rows, as another host would.

mod moves;

use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_testkit::{End, Namespace, connect, pin};

use crate::Settings;
use crate::child::{Child, Role};
use crate::echo::{ETHERTYPE, Echo, FRAME_BYTES, Initiator, mac_of};
use crate::figure::{Axis, Figure, MOST_POINTS, Series};
use crate::latency::{Latency, lowest, lowest_part, mean_of_lowest_us, median_us};
use crate::machine::two_cores;
use crate::process::{Process, Serving, start};
use crate::report::{Outcome, Row};
use crate::techniques::{Technique, Waits, Way, all};

/// Pairs of runs per row; together they have the paper's 5 · 2^10 trials.
const RUNS: usize = 5;
/// The prefix of this experiment's interfaces.
const TAP: &str = "tpnd";

/// The trials of a run, and the pause between them.
#[derive(Clone, Copy)]
struct Trials {
    count: usize,
    apart: Duration,
    /// The time limit of a run: it then has fewer trials, but some, if others use the processor.
    at_most: Duration,
}

/// The fewest trials of a run.
const FEWEST: usize = 8;

impl Trials {
    fn of(settings: Settings) -> Trials {
        let (count, apart_ms, at_most_ms) = match settings {
            Settings { quick: true, .. } => (40, 1, 100),
            Settings { full: true, .. } => (1024, 500, 2_000_000),
            _ => (1024, 5, 30_000),
        };
        let (apart, at_most) = (Duration::from_millis(apart_ms), Duration::from_millis(at_most_ms));
        Trials { count, apart, at_most }
    }
}

/// One side of a comparison: the initiator, and the processes that it needs.
struct Side {
    name: String,
    initiator: Initiator,
    /// Sends frames back, if that is a process of its own. It ends before the interface does.
    _echo: Option<Child>,
    process: Option<Process>,
    first: Vec<Duration>,
    second: Vec<Duration>,
}

impl Side {
    /// Starts an application of a server on a TAP.
    fn served(name: &str, way: &Way, echo_cpu: Option<usize>) -> anyhow::Result<Side> {
        let process = Process::start(&way.serving, None)?;
        let tap = way.serving.wire.tap()?;
        let (own, echo) = echo(tap, None, echo_cpu)?;
        let socket = process.socket();
        let mut initiator = Initiator::attach(&socket, mac_of(tap)?, own, way.waits, way.small)?;
        if let crate::echo::Near::Session(session, endpoint) = &mut initiator.near {
            way.apply(&process, session, *endpoint)?;
        }
        Ok(Side::new(name, initiator, Some(process), echo))
    }

    /// Opens AF_PACKET sockets at both ends of a veth pair.
    fn kernel(
        name: &str,
        (near, far): (&str, &str),
        there: &Namespace,
        waits: Waits,
        echo_cpu: Option<usize>,
    ) -> anyhow::Result<Side> {
        let (own, process) = echo(far, Some(there), echo_cpu)?;
        let macs = [there.run(|| mac_of(far))??, mac_of(near)?];
        let initiator = Initiator::open(near, macs, own, waits)?;
        Ok(Side::new(name, initiator, None, process))
    }

    fn new(
        name: &str,
        initiator: Initiator,
        process: Option<Process>,
        echo: Option<Child>,
    ) -> Side {
        let (first, second) = (Vec::new(), Vec::new());
        Side { name: name.to_owned(), initiator, process, _echo: echo, first, second }
    }

    /// Runs trials. Returns the mean of the lowest of their second trips, in microseconds.
    fn run(&mut self, trials: Trials, cold: bool) -> anyhow::Result<f64> {
        if let Some(process) = &self.process {
            process.resume()?;
        }
        let mut second = Vec::with_capacity(trials.count);
        let start = Instant::now();
        for number in 0..trials.count {
            if number >= FEWEST && start.elapsed() >= trials.at_most {
                break;
            }
            std::thread::sleep(trials.apart);
            let [one, other] = self.initiator.double_trip().with_context(|| self.state())?;
            second.push(other);
            if !cold {
                self.first.push(one);
            }
        }
        if let Some(process) = &self.process {
            process.pause()?;
        }
        let mean = mean_of_lowest_us(&second);
        if !cold {
            self.second.extend(second);
        }
        Ok(mean)
    }

    /// Returns the side's name, and the counters of server and endpoint, for an error.
    fn state(&self) -> String {
        let mut text = self.name.clone();
        if let Some(process) = &self.process {
            let counters = process.counters().unwrap_or_default();
            let counters = counters.iter().filter(|(_, value)| **value > 0);
            let counters: Vec<_> =
                counters.map(|(name, value)| format!("{name} {value}")).collect();
            text += &format!("; the device: {}", counters.join(", "));
        }
        if let crate::echo::Near::Session(session, endpoint) = &self.initiator.near {
            let counters = session.counters(*endpoint).into_iter().filter(|(_, value)| *value > 0);
            let counters: Vec<_> =
                counters.map(|(name, value)| format!("{name} {value}")).collect();
            text += &format!("; the endpoint: {}", counters.join(", "));
        }
        text
    }

    fn curve(&self) -> Series {
        let sorted = lowest_part(&self.second).into_iter().enumerate();
        Series::line(&self.name, sorted.map(|(rank, us)| [rank as f64 + 1.0, us]).collect())
    }
}

/// Starts the echo: in the initiator's own thread, or in a process.
fn echo(
    interface: &str,
    inside: Option<&Namespace>,
    cpu: Option<usize>,
) -> anyhow::Result<(Option<Echo>, Option<Child>)> {
    let Some(cpu) = cpu else {
        let open = || Echo::open(interface, ETHERTYPE);
        let own = match inside {
            Some(namespace) => namespace.run(open)??,
            None => open()?,
        };
        return Ok((Some(own), None));
    };
    let role = Role::Echo { interface: interface.to_owned(), ethertype: ETHERTYPE, cpu };
    Ok((None, Some(start(&role, inside)?)))
}

/// Two sides measured in turn.
struct Compared {
    ratios: Vec<f64>,
    sides: [Side; 2],
}

fn compare(mut sides: [Side; 2], trials: Trials) -> anyhow::Result<Compared> {
    let warm = Trials { count: 16, apart: Duration::from_millis(1), ..trials };
    for side in &mut sides {
        // This side leaves the other one's core, also before the other one's first run.
        side.run(warm, true)?;
    }
    let mut ratios = Vec::new();
    for run in 0..RUNS {
        let [one, other] = &mut sides;
        let (a, b) = if run % 2 == 0 {
            let a = one.run(trials, false)?;
            (a, other.run(trials, false)?)
        } else {
            let b = other.run(trials, false)?;
            (one.run(trials, false)?, b)
        };
        ratios.push(a / b);
    }
    Ok(Compared { ratios, sides })
}

/// Returns the description of the experiment.
fn how(trials: Trials, engine_cpu: usize, own_cpu: usize) -> String {
    format!(
        "frames of {FRAME_BYTES} bytes from an application on core {own_cpu} through a server, \
             its engine on core {engine_cpu}, and its TAP to an AF_PACKET socket; the \
             application's thread sends them back; each trial is two round trips, and the second \
             counts; {RUNS} runs of up to {} trials each in turn, {} ms apart; figures are means of the \
             lowest {} of {}, as large a part as the paper's lowest 4000 of 5120; curves are drawn \
             through {MOST_POINTS} of these",
        trials.count,
        trials.apart.as_millis(),
        lowest(RUNS * trials.count),
        RUNS * trials.count
    )
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (engine_cpu, own_cpu) = two_cores()?;
    let trials = Trials::of(settings);
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    // The kernel's own messages on a new interface would add frames.
    let _ = here.silence();
    let _ = there.silence();
    let (near, far) = ("tpndv0", "tpndv1");
    connect(
        &End { namespace: &here, name: near, addresses: &[] },
        &End { namespace: &there, name: far, addresses: &[] },
        None,
    )?;
    pin(own_cpu)?;
    let mut outcome = Outcome { how: how(trials, engine_cpu, own_cpu), ..Outcome::default() };
    let curves = |name, title| {
        Figure::new(
            name,
            title,
            Axis::linear("trial, sorted by its time", ""),
            Axis::log("second round trip", "us"),
        )
    };
    let mut sleeping = curves("asleep-awake", "Round trips of 60 bytes, asleep and polling");
    let mut switched = curves("techniques", "Round trips of 60 bytes: each technique on and off");

    let tap = |waits, letter| {
        let serving = Serving::tap(&format!("{TAP}{letter}")).on(engine_cpu);
        match waits {
            Waits::Polls => Way::new(serving.polling(), waits),
            Waits::Blocks | Waits::Spins => Way::new(serving, waits),
        }
    };
    for (what, waits, echo_cpu) in [
        ("all poll", Waits::Polls, None),
        ("all sleep", Waits::Blocks, None),
        ("all sleep, sent back by a process", Waits::Blocks, Some(engine_cpu)),
    ] {
        let ours = Side::served(&format!("Towpath, {what}"), &tap(waits, 'k'), echo_cpu)?;
        let name = format!("AF_PACKET, {what}");
        let base = Side::kernel(&name, (near, far), &there, waits, echo_cpu)?;
        let compared = compare([ours, base], trials)?;
        let title = format!("Towpath to AF_PACKET on both sides, {what}");
        show(&mut outcome, &mut sleeping, &title, &compared)?;
    }
    for Technique { name, on, off, echo_cpu } in all(TAP, engine_cpu) {
        let on = Side::served(&format!("on: {name}"), &on, echo_cpu)?;
        let off = Side::served(&format!("off: {name}"), &off, echo_cpu)?;
        let compared = compare([on, off], trials)?;
        let figure =
            if name.contains("sleep") || name.contains("block") || name.starts_with("wait=") {
                &mut sleeping
            } else {
                &mut switched
            };
        show(&mut outcome, figure, &format!("on to off: {name}"), &compared)?;
    }
    outcome.figures.extend([sleeping, switched]);
    moves::measure(settings, &mut outcome)?;
    Ok(outcome)
}

/// Adds a row of two sides, their own figures beside it, and their curves.
fn show(
    outcome: &mut Outcome,
    figure: &mut Figure,
    title: &str,
    compared: &Compared,
) -> anyhow::Result<()> {
    let parameters = [("packet_bytes", FRAME_BYTES as f64)];
    outcome.rows.push(Row::new(title, &parameters, "ratio", &compared.ratios));
    for side in &compared.sides {
        let mut latency = Latency::new()?;
        side.second.iter().for_each(|time| latency.record(*time));
        let lowest = lowest_part(&side.second);
        let mean = [mean_of_lowest_us(&side.second)];
        let mut row = Row::new(&side.name, &parameters, "us", &mean);
        row.samples = lowest.len();
        if let (Some(low), Some(high)) = (lowest.first(), lowest.last()) {
            row.spread = [*low, *high];
        }
        outcome.context.push(row);
        outcome.context.extend(latency.rows(&side.name, &parameters));
        let first = [median_us(&side.first) / median_us(&side.second)];
        let name = format!("{}, first to second trip", side.name);
        let row = Row::new(&name, &parameters, "ratio", &first);
        outcome.context.push(Row { samples: side.first.len(), ..row });
        figure.series.push(side.curve());
    }
    Ok(())
}
