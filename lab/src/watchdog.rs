//! The cost of a device's watchdog: off, lazy and eager.
//!
//! First the watchdog alone, with the clock that the engine reads, one poll iteration that submits
//! frames and one that gets their completions. Then a whole engine in front of a device that keeps
//! frames for a while, with each arming in turn. Tracey and Banerji (3.1, 4.1) started a timer for
//! each frame, or checked whether one ran: both are here, for poll iterations of one frame and for
//! full ones.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::time::{ClockId, clock_gettime};
use towpath_client::{Endpoint, Meta, Options, Rule, SendError, Session, Setting};
use towpath_device::conformance::{DeviceFarEnd, FarEnd};
use towpath_device::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::internals::{Arming, Verdict, Watchdog};
use towpath_server::{Config, Server, Values, WaitStrategy as EngineStrategy};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::report::{Outcome, Row};
use crate::statistics::Summary;

const ARMINGS: [(&str, Arming); 3] =
    [("off", Arming::Off), ("lazy", Arming::Lazy), ("eager", Arming::Eager)];
const WINDOW_NS: u64 = 5_000_000_000;
/// The limit of a frame's time through a whole engine with the watchdog on, to the time without;
/// half of the margin is for the variation of machines. A lazy watchdog reads the clock now and
/// then, an eager one in each iteration that submits frames: a fifth of a frame's time if that is
/// one frame.
const MOST_TO_OFF: [f64; 3] = [f64::INFINITY, 1.1, 1.25];
/// Frames per poll iteration.
const BATCHES: [u64; 6] = [1, 2, 4, 8, 16, 32];

fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Measures nanoseconds per frame of the watchdog alone.
fn alone(arming: Arming, batch: u64, turns: u64) -> anyhow::Result<f64> {
    let mut dog = std::hint::black_box(Watchdog::new(arming, WINDOW_NS));
    let (mut returned, mut fine) = (0, true);
    let start = Instant::now();
    for _ in 0..turns {
        fine &=
            dog.after_iteration(std::hint::black_box(batch), returned, clock_ns) == Verdict::Fine;
        returned += batch;
        fine &= dog.after_iteration(std::hint::black_box(0), returned, clock_ns) == Verdict::Fine;
    }
    let took = start.elapsed();
    ensure!(fine, "the watchdog reported a stall of a device that completes all");
    Ok(took.as_nanos() as f64 / returned as f64)
}

/// An engine in front of a device that keeps frames until the next poll iteration.
struct Whole {
    server: Server,
    far: DeviceFarEnd,
    session: Session,
    endpoint: Endpoint,
    frame: Vec<u8>,
}

impl Whole {
    fn new() -> anyhow::Result<Whole> {
        let config = loopback::Config { tx_asynchronous: true, ..loopback::Config::default() };
        let (near, far) = loopback::pair(&config)?;
        let settings: Values = EngineStrategy::Poll.into();
        let config = Config { settings, ..Config::default() };
        let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default())?;
        let mut session = Session::attach_over(server.connect()?, &Options::default())?;
        let endpoint = session.open(&Rule::new().ethertype(0x88b5))?;
        let mut frame = [&[2, 9, 9, 9, 9, 9][..], &session.info().mac, &[0x88, 0xb5]].concat();
        frame.resize(60, 0);
        let far = DeviceFarEnd::new(Box::new(far));
        Ok(Whole { server, far, session, endpoint, frame })
    }

    /// Measures nanoseconds per frame, from the application to the far end.
    fn run(&mut self, arming: Arming, window: Duration) -> anyhow::Result<f64> {
        let server = self.server.connect()?;
        towpath_client::set_over(server, None, Setting::Watchdog, arming as u64)?;
        let (start, mut sent, mut seen) = (Instant::now(), 0u64, 0u64);
        loop {
            let over = start.elapsed() >= window;
            if over && seen == sent {
                return Ok(start.elapsed().as_nanos() as f64 / seen as f64);
            }
            ensure!(start.elapsed() < 10 * window, "{seen} of {sent} frames arrived");
            while !over && sent - seen < 128 {
                match self.session.send_bytes(self.endpoint, &self.frame) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.session.flush()?;
            while let Some((_, meta)) = self.far.receive() {
                ensure!(meta == Meta::FULL, "a frame with a partial checksum");
                seen += 1;
            }
        }
    }
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome {
        how:
            "the watchdog alone, one thread; then an engine that polls, in front of a device that \
              keeps frames until its next poll, off, lazy and eager in turn"
                .into(),
        ..Outcome::default()
    };
    let turns = if settings.quick { 200_000 } else { 5_000_000 };
    let mut curves = [const { Vec::new() }; 3];
    for batch in BATCHES {
        let mut values = [const { Vec::new() }; 3];
        for _ in 0..settings.pairs() {
            for ((_, arming), values) in ARMINGS.iter().zip(&mut values) {
                values.push(alone(*arming, batch, turns)?);
            }
        }
        for (((name, _), values), curve) in ARMINGS.iter().zip(&values).zip(&mut curves) {
            curve.push([batch as f64, Summary::of(values).median]);
            let parameters = [("frames_per_iteration", batch as f64)];
            let name = format!("watchdog {name}, alone");
            outcome.rows.push(Row::new(&name, &parameters, "ns per packet", values));
        }
    }
    let mut figure = Figure::new(
        "alone",
        "What the watchdog alone costs per packet, by packets per poll iteration",
        Axis::log("packets per poll iteration", ""),
        Axis::log("cost", "ns per packet"),
    );
    for ((name, _), curve) in ARMINGS.iter().zip(curves) {
        figure.series.push(Series::line(name, curve));
    }
    outcome.figures.push(figure);
    let mut whole = Whole::new()?;
    let window = Duration::from_millis(if settings.quick { 100 } else { 1000 });
    let mut values = [const { Vec::new() }; 3];
    for _ in 0..settings.pairs() {
        for ((_, arming), values) in ARMINGS.iter().zip(&mut values) {
            values.push(whole.run(*arming, window)?);
        }
    }
    for (((name, _), of), most) in ARMINGS.iter().zip(&values).zip(MOST_TO_OFF) {
        let name = format!("watchdog {name}, application to far end");
        outcome.context.push(Row::new(&name, &[], "ns per packet", of));
        // Off to off has no row.
        if most.is_finite() {
            let ratios: Vec<_> = of.iter().zip(&values[0]).map(|(one, off)| one / off).collect();
            let row = Row::new(&format!("{name}, to off"), &[], "ratio", &ratios);
            outcome.rows.push(row.at_most(most));
        }
    }
    whole.server.stop()?;
    Ok(outcome)
}
