//! The round trip of a message by the number of idle channels of the side that answers, all of whose
//! tripwires are in one event queue: the paper's figure 5, with channels.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::WaitStrategy;
use towpath_testkit::pin;

use super::ends::{self, Side};
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::latency::median_us;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Measured, Summary, in_turn, ratios};
use crate::trip::PATIENCE;

/// The largest number of idle channels.
const MOST: usize = 10_000;
/// The pairs of measurements of that number beside one.
const PAIRS_WITH_A_LIMIT: usize = 21;
/// The limit for the largest number: the ratio of its round trip to that with one idle channel.
const AT_MOST: f64 = 1.05;
const RING_BYTES: usize = 256;
const MESSAGE: [u8; 32] = [7; 32];

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let numbers: &[usize] = if settings.quick { &[1, 100] } else { &[1, 10, 100, 1000, MOST] };
    let trips = if settings.quick { 200 } else { 1000 };
    outcome.how += &format!(
        "; idle channels: engine on core {}, both applications in one thread on core {}, and all three \
         block, or all poll",
        cores.0, cores.1
    );
    let mut figure = Figure::new(
        "idle-channels",
        "Round trip by idle channels",
        Axis::log("idle channels", ""),
        Axis::log("round trip", "us"),
    );
    for (strategy, all) in [(WaitStrategy::Block, "all block"), (WaitStrategy::Poll, "all poll")] {
        let mut curve = Vec::new();
        for &idle in numbers {
            let mut many = Idle::new(cores, idle, strategy)?;
            let mut one = Idle::new(cores, 1, strategy)?;
            let mut with_many = || many.run(trips);
            let mut with_one = || one.run(trips);
            let both: &mut [Measured<'_>] = &mut [&mut with_one, &mut with_many];
            // With few pairs, chance alone would miss the limit in a short run.
            let pairs = if idle == MOST { PAIRS_WITH_A_LIMIT } else { settings.pairs() };
            let values = in_turn(pairs, both)?;
            let parameters = [("idle_channels", idle as f64)];
            let name = format!("round trip, {all}, to one idle channel");
            let row = Row::new(&name, &parameters, "ratio", &ratios(&values[1], &values[0]));
            outcome.rows.push(if idle == MOST { row.at_most(AT_MOST) } else { row });
            let name = format!("round trip by tripwires, {all}");
            outcome.context.push(Row::new(&name, &parameters, "us", &values[1]));
            curve.push([idle as f64, Summary::of(&values[1]).median]);
        }
        figure.series.push(Series::line(all, curve));
    }
    outcome.figures.push(figure);
    Ok(())
}

/// Two applications with many channels, of which they use the last, and a server of their own.
struct Idle {
    process: Process,
    sides: [Side; 2],
    strategy: WaitStrategy,
    core: usize,
    /// The channels of the side that answers, by the numbers of their tripwires.
    by_tripwire: Vec<usize>,
}

impl Idle {
    /// Starts a server with `idle` idle channels and one in use. Leaves the server paused.
    fn new(cores: (usize, usize), idle: usize, strategy: WaitStrategy) -> anyhow::Result<Idle> {
        let serving = Serving::memory(1500).on(cores.0);
        let polls = strategy == WaitStrategy::Poll;
        let process = Process::start(&if polls { serving.polling() } else { serving }, None)?;
        let mut sides = ends::open(&process.socket(), strategy, (idle + 1, RING_BYTES))?;
        let answers = &mut sides[1];
        let by_tripwire = answers.by_tripwire();
        for channel in &mut answers.channels {
            ensure!(!channel.arm(&mut answers.session)?, "news without a message");
        }
        process.pause()?;
        Ok(Idle { process, sides, strategy, core: cores.1, by_tripwire })
    }

    fn run(&mut self, trips: usize) -> anyhow::Result<f64> {
        self.process.resume()?;
        pin(self.core)?;
        // Waits end early once, by the news of the connection.
        let times: Result<Vec<_>, _> = (0..trips + 10).map(|_| self.trip()).collect();
        self.process.pause()?;
        Ok(median_us(&times?[10..]))
    }

    fn trip(&mut self) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let [asks, answers] = &mut self.sides;
        let asking = asks.channels.last_mut().context("no channel")?;
        asking.send(&MESSAGE)?;
        asking.flush(&mut asks.session)?;
        let tripwire = loop {
            if self.strategy == WaitStrategy::Poll {
                answers.session.poll()?;
            } else {
                answers.session.wait(Some(PATIENCE))?;
            }
            if let Some(tripwire) = answers.session.tripwires().ready()? {
                break tripwire.number() as usize;
            }
            answers.session.oob().ready()?;
            ensure!(start.elapsed() < PATIENCE, "no tripwire fired in {PATIENCE:?}");
        };
        let number = *self.by_tripwire.get(tripwire).context("an unknown tripwire")?;
        let answering = answers.channels.get_mut(number).context("an unknown tripwire")?;
        let mut message = MESSAGE;
        answering.receive()?.context("no message")?.read(0, &mut message)?;
        answering.send(&message)?;
        ensure!(!answering.arm(&mut answers.session)?, "news without a message");
        loop {
            if let Some(message) = asking.receive()? {
                ensure!(message.len() == MESSAGE.len(), "another message");
                return Ok(start.elapsed());
            }
            if self.strategy != WaitStrategy::Poll {
                asking.wait(&mut asks.session, Some(PATIENCE))?;
            }
            ensure!(start.elapsed() < PATIENCE, "no answer in {PATIENCE:?}");
        }
    }
}
