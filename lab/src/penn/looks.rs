//! An application that polls by its clock for a generator's packets, which come through an engine;
//! and the result of a run of both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session};
use towpath_testkit::{Participants, pin, this_thread_cpu_time};

use crate::flow::{self, HEADER_BYTES};
use crate::process::Process;

/// The most frames that wait for the application's next poll.
pub(super) const RING: u32 = 256;
/// The most frames that wait for the engine's next poll.
pub(super) const SENDING_RING: u32 = 1024;
/// The interval in which the generator sends the frames that are due.
const TICK: Duration = Duration::from_micros(100);
pub(super) const FRAME_BYTES: usize = 256;
/// Frames per second, far below the limit of generator and engine on one core together.
pub(super) const RATES: [f64; 2] = [20_000.0, 100_000.0];
/// More than any queue lets through.
pub(super) const FLOOD: f64 = 800_000.0;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The application's polls, the packets that it received, and its processor time, in seconds.
    pub(super) looks: u64,
    pub(super) received: u64,
    pub(super) busy: f64,
    /// The processor time of the engine's process, in seconds.
    pub(super) engine_busy: f64,
    /// Frames that were due, and those of them that found room in the generator's queue.
    pub(super) due: u64,
    pub(super) sent: u64,
    /// The duration, in seconds.
    pub(super) took: f64,
}

impl Run {
    pub(super) fn polls_per_s(&self) -> f64 {
        self.looks as f64 / self.took
    }

    pub(super) fn packets_per_s(&self) -> f64 {
        self.received as f64 / self.took
    }
}

/// A generator, and a timer-driven application.
pub(super) struct Bench {
    generator: Session,
    application: Session,
    from: Endpoint,
    headers: [u8; HEADER_BYTES],
    cores: (usize, usize),
    engine: Participants,
}

impl Bench {
    pub(super) fn new(process: &Process, cores: (usize, usize)) -> anyhow::Result<Bench> {
        let options = |name: &str, receive_slots| Options {
            name: name.into(),
            transmit_slots: SENDING_RING,
            receive_slots,
            ..Options::default()
        };
        let mut generator = Session::attach(process.socket(), &options("generator", 8))?;
        let mut application = Session::attach(process.socket(), &options("timer-driven", RING))?;
        let flow = flow::between(&generator, &application, (1000, 2000))?;
        let from = generator.open(&Rule::new().udp(1000))?;
        application.open(&Rule::new().udp(2000))?;
        let headers = flow::headers(&flow, FRAME_BYTES - HEADER_BYTES)?;
        let engine = Participants::new(&[process.pid()]);
        Ok(Bench { generator, application, from, headers, cores, engine })
    }

    /// Polls at a rate for frames that come at a rate.
    pub(super) fn run(&mut self, clock: f64, rate: f64, window: Duration) -> anyhow::Result<Run> {
        let Bench { generator, application, from, headers, cores, engine } = self;
        let engine_before = engine.cpu_time()?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let looking = scope.spawn(|| -> anyhow::Result<Run> {
                pin(cores.1)?;
                let (start, cpu) = (Instant::now(), this_thread_cpu_time()?);
                let (mut looks, mut received, mut sum) = (0_u64, 0_u64, 0_u64);
                while !over.load(Ordering::Acquire) {
                    received += application.receiver().receive(
                        QueuePair::FIRST,
                        RING as usize,
                        |packet| {
                            let parts = packet.parts().map(crate::messages::add);
                            sum = parts.fold(sum, u64::wrapping_add);
                        },
                    )? as u64;
                    looks += 1;
                    // By the clock: a late poll does not delay the next one.
                    let due = Duration::from_secs_f64(looks as f64 / clock);
                    thread::sleep(due.saturating_sub(start.elapsed()));
                }
                std::hint::black_box(sum);
                let busy = (this_thread_cpu_time()? - cpu).as_secs_f64();
                let took = start.elapsed().as_secs_f64();
                // The remaining packets belong to no poll.
                while application.receiver().receive(QueuePair::FIRST, RING as usize, |_| {})? > 0 {
                }
                Ok(Run { looks, received, busy, engine_busy: 0.0, due: 0, sent: 0, took })
            });
            let sending = scope.spawn(|| {
                let sent = pin(cores.0)
                    .map_err(anyhow::Error::from)
                    .and_then(|()| send(generator, *from, headers, rate, window));
                over.store(true, Ordering::Release);
                sent
            });
            let sent = sending.join().ok().context("the generator failed")?;
            let run = looking.join().ok().context("the application failed")??;
            let engine_busy = (engine.cpu_time()? - engine_before).as_secs_f64();
            sent.map(|(due, sent)| Run { engine_busy, due, sent, ..run })
        })
    }
}

/// Sends until the window is over. Returns how many frames were due, and how many were sent.
fn send(
    generator: &mut Session,
    from: Endpoint,
    headers: &[u8; HEADER_BYTES],
    rate: f64,
    window: Duration,
) -> anyhow::Result<(u64, u64)> {
    let (start, mut sent) = (Instant::now(), 0_u64);
    loop {
        let now = start.elapsed();
        if now >= window {
            return Ok(((window.as_secs_f64() * rate) as u64, sent));
        }
        let due = (now.as_secs_f64() * rate) as u64;
        while sent < due {
            let outcome = generator.sender().send(from, FRAME_BYTES, Meta::FULL, |parts| {
                if let [part] = parts {
                    part[..HEADER_BYTES].copy_from_slice(headers);
                    part[HEADER_BYTES..].fill(sent as u8);
                }
            });
            match outcome {
                Ok(()) => sent += 1,
                Err(SendError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        generator.sender().flush()?;
        thread::sleep(TICK);
    }
}
