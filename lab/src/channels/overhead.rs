//! The overhead of a message under load: the paper's last experiment, with channels. One application
//! has a message in each of its channels, and the other one answers each. All tripwires of a side are
//! in one event queue.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::WaitStrategy;
use towpath_testkit::pin;

use super::ends::{self, Side};
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Summary;
use crate::trip::PATIENCE;

const RING_BYTES: usize = 1024;
const MESSAGE: [u8; 32] = [7; 32];
const CHANNELS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    outcome.how += &format!(
        "; load: the engine polls on core {}; the two sides, in one thread on core {}, send and answer \
         messages of {} bytes",
        cores.0,
        cores.1,
        MESSAGE.len()
    );
    let window = Duration::from_millis(if settings.quick { 20 } else { 100 });
    let numbers = if settings.quick { &CHANNELS[..3] } else { &CHANNELS[..] };
    let numbers = numbers.iter().chain(CHANNELS.last().filter(|_| settings.quick));
    let serving = Serving::memory(1500).on(cores.0).polling();
    let mut curve = Vec::new();
    for &channels in numbers {
        let process = Process::start(&serving, None)?;
        let mut load = Load::new(&process, channels)?;
        pin(cores.1)?;
        load.run(window)?;
        let values = (0..settings.pairs()).map(|_| load.run(window));
        let values = values.collect::<anyhow::Result<Vec<f64>>>()?;
        let parameters = [("channels", channels as f64)];
        let name = "overhead per message and answer";
        outcome.rows.push(Row::new(name, &parameters, "us", &values));
        curve.push([channels as f64, 1.0 / Summary::of(&values).median]);
    }
    outcome.figures.push(
        Figure::new(
            "load",
            "Exchanges per second by channels",
            Axis::log("channels", ""),
            Axis::linear("exchanges", "million/s"),
        )
        .with(Series::line("channels", curve)),
    );
    Ok(())
}

/// Two applications with a number of channels.
struct Load {
    sides: [Side; 2],
    /// The channels of each side, by the numbers of their tripwires.
    by_tripwire: [Vec<usize>; 2],
}

impl Load {
    fn new(process: &Process, channels: usize) -> anyhow::Result<Load> {
        let rings = (channels, RING_BYTES);
        let sides = ends::open(&process.socket(), WaitStrategy::Poll, rings)?;
        let by_tripwire = [sides[0].by_tripwire(), sides[1].by_tripwire()];
        Ok(Load { sides, by_tripwire })
    }

    /// Keeps a message in each channel. Returns the microseconds per message and answer.
    fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        let Load { sides: [asking, answering], by_tripwire } = self;
        for side in [&mut *asking, &mut *answering] {
            for channel in &mut side.channels {
                ensure!(!channel.arm(&mut side.session)?, "a message is left");
            }
        }
        for channel in &mut asking.channels {
            channel.send(&MESSAGE)?;
            channel.flush(&mut asking.session)?;
        }
        let (start, mut last) = (Instant::now(), Instant::now());
        let (mut exchanges, mut left) = (0_u64, asking.channels.len());
        while left > 0 {
            take_and_answer(answering, &by_tripwire[1], |_| true)?;
            let is_over = start.elapsed() >= window;
            let answered = take_and_answer(asking, &by_tripwire[0], |_| !is_over)?;
            if answered > 0 {
                exchanges += answered as u64;
                left -= if is_over { answered } else { 0 };
                last = Instant::now();
            }
            ensure!(last.elapsed() < PATIENCE, "no answer in {PATIENCE:?}");
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / exchanges as f64)
    }
}

/// Takes the messages of the channels whose tripwires fired, and answers those of which `answers`
/// says so. Returns the number of messages.
fn take_and_answer(
    side: &mut Side,
    by_tripwire: &[usize],
    answers: impl Fn(usize) -> bool,
) -> anyhow::Result<usize> {
    let (mut count, mut message) = (0, Vec::with_capacity(MESSAGE.len()));
    side.session.poll()?;
    while let Some(tripwire) = side.session.tripwires().ready()? {
        let number = by_tripwire.get(tripwire.number() as usize).context("an unknown tripwire")?;
        let channel = side.channels.get_mut(*number).context("an unknown tripwire")?;
        loop {
            while channel.receive_into(&mut message)? {
                count += 1;
                if answers(*number) {
                    channel.send(&message)?;
                }
            }
            if !channel.arm(&mut side.session)? {
                break;
            }
        }
    }
    Ok(count)
}
