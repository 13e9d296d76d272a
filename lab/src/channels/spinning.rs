//! A channel whose sides spin, each on a core of its own.

use std::hint::spin_loop;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{Channel, ChannelError, WaitStrategy};
use towpath_testkit::pin;

use super::ends::{self, Side};
use crate::Settings;
use crate::latency::Latency;
use crate::limits::line_round_trip_ns;
use crate::peers::SpinningChannel;
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;
use crate::trip::{PATIENCE, SPINS, timed};

/// The length of the rings of short messages, which stay in a core's own cache; and of long ones,
/// which are faster if they do not.
const SHORT_RING_BYTES: usize = 1 << 16;
const LONG_RING_BYTES: usize = 1 << 20;
/// The longest message that is short here.
const SHORT_BYTES: usize = 256;
/// Messages after which a side that is busy looks whether the other one sleeps.
const BATCH: u64 = 64;
/// The upper limit of a round trip to that of a cache line.
const TO_A_LINE: f64 = 1.5;
/// The lengths of the messages of round trips.
const TRIP_BYTES: [usize; 3] = [8, 32, 64];

/// Two applications in two threads, with a channel for short messages and one for long ones.
pub(super) struct Spinning {
    cores: (usize, usize),
    short: [Side; 2],
    long: [Side; 2],
}

impl Spinning {
    pub(super) fn new(socket: &Path, cores: (usize, usize)) -> anyhow::Result<Spinning> {
        Spinning::with_rings(socket, cores, [SHORT_RING_BYTES, LONG_RING_BYTES])
    }

    pub(super) fn with_rings(
        socket: &Path,
        cores: (usize, usize),
        [short, long]: [usize; 2],
    ) -> anyhow::Result<Spinning> {
        let open = |ring_bytes| ends::open(socket, WaitStrategy::Poll, (1, ring_bytes));
        Ok(Spinning { cores, short: open(short)?, long: open(long)? })
    }

    fn sides(&mut self, bytes: usize) -> &mut [Side; 2] {
        if bytes <= SHORT_BYTES { &mut self.short } else { &mut self.long }
    }

    /// Runs `near` on the first core and `far` on the second one. Tells `far` when `near` is done.
    fn run_both<T: Send>(
        &mut self,
        bytes: usize,
        far: impl FnOnce(&mut Side, &AtomicBool) -> anyhow::Result<()> + Send,
        near: impl FnOnce(&mut Side) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let (cores, over) = (self.cores, &AtomicBool::new(false));
        let [one, other] = self.sides(bytes);
        thread::scope(|scope| {
            let far = scope
                .spawn(move || pin(cores.1).map_err(Into::into).and_then(|()| far(other, over)));
            let near = scope.spawn(move || {
                let done = pin(cores.0).map_err(Into::into).and_then(|()| near(one));
                over.store(true, Ordering::Relaxed);
                done
            });
            let done = near.join().ok().context("a side failed")?;
            far.join().ok().context("a side failed")??;
            done
        })
    }

    /// Makes round trips until `trips` ends, with a side that answers.
    fn answered<T: Send>(
        &mut self,
        bytes: usize,
        trips: impl FnOnce(&mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let answers = |side: &mut Side, over: &AtomicBool| {
            let (channel, mut message) = (&mut side.channels[0], vec![0; bytes]);
            while !over.load(Ordering::Relaxed) {
                if take(channel, &mut message)? {
                    channel.send(&message)?;
                    channel.flush(&mut side.session)?;
                } else {
                    spin_loop();
                }
            }
            Ok(())
        };
        self.run_both(bytes, answers, |side| {
            let (channel, message) = (&mut side.channels[0], &mut vec![0; bytes]);
            trips(&mut || {
                channel.send(message)?;
                channel.flush(&mut side.session)?;
                let (mut spins, mut start) = (0_u32, None);
                while !take(channel, message)? {
                    spin_loop();
                    spins += 1;
                    if spins.is_multiple_of(SPINS) {
                        let start = *start.get_or_insert_with(Instant::now);
                        ensure!(start.elapsed() < PATIENCE, "no answer in {PATIENCE:?}");
                    }
                }
                Ok(())
            })
        })
    }

    /// Returns the mean round trip, in nanoseconds, as that of a line is measured: with few reads of
    /// the clock.
    fn mean_trip_ns(&mut self, bytes: usize, window: Duration) -> anyhow::Result<f64> {
        self.answered(bytes, |trip| {
            trip()?;
            let (start, mut count) = (Instant::now(), 0_u64);
            loop {
                for _ in 0..BATCH {
                    trip()?;
                }
                count += BATCH;
                let took = start.elapsed();
                if took >= window {
                    return Ok(took.as_nanos() as f64 / count as f64);
                }
            }
        })
    }
}

/// Takes a message, if there is one.
fn take(channel: &mut Channel, into: &mut [u8]) -> anyhow::Result<bool> {
    let Some(message) = channel.receive()? else { return Ok(false) };
    message.read(0, into)?;
    Ok(true)
}

impl SpinningChannel for Spinning {
    fn messages(&mut self, bytes: usize, window: Duration) -> anyhow::Result<f64> {
        let sends = |side: &mut Side, over: &AtomicBool| {
            let (channel, mut message) = (&mut side.channels[0], vec![0_u8; bytes]);
            for sent in 0_u64.. {
                message.fill(sent as u8);
                while let Err(error) = channel.send(&message) {
                    ensure!(error == ChannelError::Full, error);
                    channel.flush(&mut side.session)?;
                    if over.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    spin_loop();
                }
                if sent.is_multiple_of(BATCH) {
                    channel.flush(&mut side.session)?;
                }
            }
            Ok(())
        };
        let rate = self.run_both(bytes, sends, |side| {
            let (channel, mut into) = (&mut side.channels[0], vec![0; bytes]);
            let begin = Instant::now();
            let (counted, end) = (begin + window / 4, begin + window / 4 + window);
            let (mut start, mut count, mut last) = (None, 0, begin);
            loop {
                let mut got = 0;
                while got < BATCH && take(channel, &mut into)? {
                    std::hint::black_box(&into);
                    got += 1;
                }
                channel.flush(&mut side.session)?;
                let now = Instant::now();
                if got > 0 {
                    last = now;
                }
                ensure!(now - last < PATIENCE, "no message in {PATIENCE:?}");
                match start {
                    None if now >= counted => start = Some(now),
                    None => {}
                    Some(_) => count += got,
                }
                if let Some(start) = start.filter(|_| now >= end) {
                    return Ok(count as f64 / (now - start).as_secs_f64() / 1e6);
                }
            }
        });
        // The next run finds an empty channel.
        let mut into = vec![0; bytes];
        while take(&mut self.sides(bytes)[0].channels[0], &mut into)? {}
        rate
    }

    fn trips(&mut self, bytes: usize, window: Duration) -> anyhow::Result<Latency> {
        self.answered(bytes, |trip| timed(window, trip))
    }
}

/// Compares round trips with those of a cache line, which is the least that any message takes.
pub(super) fn to_a_line(
    settings: Settings,
    cores: (usize, usize),
    channel: &mut Spinning,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    // Virtual cores move now and then, which changes both times by a factor of four. So the windows
    // are short, and many: few pairs lie across such a change.
    let window = Duration::from_millis(20);
    let count = settings.pairs() * if settings.quick { 1 } else { 9 };
    for bytes in TRIP_BYTES {
        let pairs = Pairs::measure(
            count,
            || channel.mean_trip_ns(bytes, window),
            || line_round_trip_ns(cores, window),
        )?;
        let parameters = [("message_bytes", bytes as f64)];
        let name = "round trip, both spin, channel to a cache line";
        let row = Row::new(name, &parameters, "ratio", &pairs.ratios());
        outcome.rows.push(row.at_most(TO_A_LINE));
        for (name, values) in [("channel, mean", &pairs.ours), ("a cache line", &pairs.base)] {
            let name = format!("round trip, both spin, {name}");
            outcome.context.push(Row::new(&name, &parameters, "ns", values));
        }
    }
    Ok(())
}
