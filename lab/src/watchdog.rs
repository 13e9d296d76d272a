//! The cost of a device's watchdog: off, lazy, eager and timestamp.
//!
//! First the watchdog alone, with the clock that the engine reads: one poll iteration that submits
//! packets, and one that gets their completions. Then a whole engine in front of a device that keeps
//! packets for a while, with each arming in turn. Tracey and Banerji (3.1, 4.2) started and stopped
//! a timer for each packet (eager), or compared a timestamp for each (timestamp): both are here
//! beside the lazy watchdog, which does nothing per packet, for poll iterations of one packet and
//! for full ones.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::time::{ClockId, clock_gettime};
use towpath_client::{Endpoint, Meta, Options, Rule, SendError, Session, Setting};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_engine::watchdog::{Arming, Verdict, Watchdog};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Values, WaitStrategy as EngineStrategy};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::report::{Outcome, Row};
use crate::statistics::Summary;
use crate::trip::PATIENCE;

const ARMINGS: [(&str, Arming); 4] = [
    ("off", Arming::Off),
    ("lazy", Arming::Lazy),
    ("eager", Arming::Eager),
    ("timestamp", Arming::Timestamp),
];
const WINDOW_NS: u64 = 5_000_000_000;
/// The limit of a packet's time through a whole engine with the lazy watchdog, to the time without;
/// half of the margin is for the variation of machines. The others read the clock for each packet,
/// which is what they are here to show.
const MOST_TO_OFF: [Option<f64>; ARMINGS.len()] = [None, Some(1.1), None, None];
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
        dog.sent(std::hint::black_box(batch) as usize, clock_ns);
        fine &=
            dog.after_iteration(std::hint::black_box(batch), returned, clock_ns) == Verdict::Fine;
        returned += batch;
        dog.completed(std::hint::black_box(batch) as usize, 0, clock_ns);
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
        let mut frame =
            [&[2, 9, 9, 9, 9, 9][..], &session.info().mac.octets(), &[0x88, 0xb5]].concat();
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
            ensure!(start.elapsed() < window + PATIENCE, "{seen} of {sent} frames arrived");
            while !over && sent - seen < 128 {
                match self.session.sender().send_bytes(self.endpoint, &self.frame) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.session.sender().flush()?;
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
              keeps packets until its next poll, off, lazy, eager and timestamp in turn"
                .into(),
        ..Outcome::default()
    };
    let packets = if settings.quick { 200_000 } else { 5_000_000 };
    let mut curves = [const { Vec::new() }; ARMINGS.len()];
    for batch in BATCHES {
        let mut values = [const { Vec::new() }; ARMINGS.len()];
        for _ in 0..settings.pairs() {
            for ((_, arming), values) in ARMINGS.iter().zip(&mut values) {
                values.push(alone(*arming, batch, packets / batch)?);
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
    let mut values = [const { Vec::new() }; ARMINGS.len()];
    for _ in 0..settings.pairs() {
        for ((_, arming), values) in ARMINGS.iter().zip(&mut values) {
            values.push(whole.run(*arming, window)?);
        }
    }
    for (((name, arming), of), most) in ARMINGS.iter().zip(&values).zip(MOST_TO_OFF) {
        let name = format!("watchdog {name}, application to far end");
        outcome.context.push(Row::new(&name, &[], "ns per packet", of));
        // Off to off has no row.
        if *arming == Arming::Off {
            continue;
        }
        let ratios: Vec<_> = of.iter().zip(&values[0]).map(|(one, off)| one / off).collect();
        let row = Row::new(&format!("{name}, to off"), &[], "ratio", &ratios);
        outcome.rows.push(match most {
            Some(most) => row.at_most(most),
            None => row,
        });
    }
    whole.server.stop()?;
    Ok(outcome)
}
