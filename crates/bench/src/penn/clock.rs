//! The clock, swept, against the paper's model (box 1): with β looks a second that cost C each and
//! λ frames a second that cost α each, `1 > β C + λ α`, whereas with a wake-up for each frame
//! `1 > λ (C + α)`. Between two looks no more frames can come than the ring holds: `λ < ring · β`,
//! which the paper's section 2.4 says of its buffer, is part of the capacity here.
//!
//! Who looks by the clock is first an application, which sleeps in between and is never woken for a
//! frame, and then the engine (`mode=clocked`). C and α are measured: C with nothing to receive, α from
//! what looks at many frames cost more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_client::{Endpoint, Meta, Options, Rule, SendError, Session, Setting};
use towpath_packet::build::Flow;
use towpath_rig::{Participants, pin, this_thread_cpu_time};

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::report::{Outcome, Row};
use crate::station::{Serving, Station};
use crate::statistics::Summary;

/// Frames that wait for the next look at most.
const RING: u32 = 256;
/// How often the generator sends what is due.
const TICK: Duration = Duration::from_micros(100);
const FRAME_BYTES: usize = 256;
const HEADER_BYTES: usize = 42;
/// Frames a second, well within what the generator and the engine do on one core together.
const RATES: [f64; 2] = [20_000.0, 100_000.0];
/// More than any ring lets through.
const FLOOD: f64 = 800_000.0;

/// What one run came to.
#[derive(Clone, Copy, Debug)]
struct Run {
    looks: u64,
    received: u64,
    busy: f64,
    /// The engine's process.
    engine_busy: f64,
    took: f64,
}

impl Run {
    fn looks_per_s(&self) -> f64 {
        self.looks as f64 / self.took
    }

    fn frames_per_s(&self) -> f64 {
        self.received as f64 / self.took
    }
}

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
        &[60.0, 125.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0]
    };
    outcome.how += &format!(
        "; clock: an application on core {} looks β times a second at a ring of {RING} frames of \
         {FRAME_BYTES} bytes; generator and engine on core {}",
        cores.1, cores.0
    );
    let station = Station::start(&Serving::memory(1500).on(cores.0), None)?;
    let mut bench = Bench::new(&station, cores)?;
    bench.run(1000.0, RATES[0], window)?;
    let median = |values: Vec<f64>| Summary::of(&values).median;
    let again = |bench: &mut Bench, clock, rate| {
        (0..runs).map(|_| bench.run(clock, rate, window)).collect::<anyhow::Result<Vec<_>>>()
    };
    // C: looks that find nothing.
    let idle = again(&mut bench, 4000.0, 0.0)?;
    let costs: Vec<f64> = idle.iter().map(|run| run.busy / run.looks.max(1) as f64).collect();
    let look_s = median(costs.clone());
    // α: what looks at a full ring cost more.
    let full = again(&mut bench, 1000.0, FLOOD)?;
    let each = full
        .iter()
        .map(|run| (run.busy - run.looks as f64 * look_s) / run.received.max(1) as f64)
        .collect::<Vec<_>>();
    let frame_s = median(each.clone());
    let us = |values: &[f64]| values.iter().map(|value| value * 1e6).collect::<Vec<_>>();
    outcome.context.push(Row::new("clock: a look that finds nothing, C", &[], "us", &us(&costs)));
    outcome.context.push(Row::new("clock: a frame, α", &[], "us", &us(&each)));

    let mut busy = Figure::new(
        "clock-busy",
        "Processor time by the clock, measured and by the model",
        Axis::log("β", "1/s"),
        Axis::log("busy", "% of a core"),
    );
    for rate in RATES {
        let (mut measured, mut model, mut each_frame) = (Vec::new(), Vec::new(), Vec::new());
        for &clock in clocks {
            let runs = again(&mut bench, clock, rate)?;
            let parameters = [("looks_per_s", clock), ("frames_per_s", rate)];
            let parts: Vec<f64> = runs.iter().map(|run| run.busy / run.took).collect();
            let foretold: Vec<f64> = runs
                .iter()
                .map(|run| run.looks_per_s() * look_s + run.frames_per_s() * frame_s)
                .collect();
            let ratios: Vec<f64> =
                parts.iter().zip(&foretold).map(|(measured, model)| measured / model).collect();
            let name = "clock: processor time, measured to β C + λ α";
            outcome.rows.push(Row::new(name, &parameters, "ratio", &ratios));
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

    let capacity = Figure::new(
        "clock-capacity",
        "Frames that get through by the clock, measured and by the model",
        Axis::log("β", "1/s"),
        Axis::log("frames", "1/s"),
    );
    let (mut measured, mut model) = (Vec::new(), Vec::new());
    for &clock in clocks {
        let runs = again(&mut bench, clock, FLOOD)?;
        let rates: Vec<f64> = runs.iter().map(Run::frames_per_s).collect();
        let foretold: Vec<f64> = runs
            .iter()
            .map(|run| {
                let looks = run.looks_per_s();
                let processor = (1.0 - looks * look_s) / frame_s;
                processor.min(f64::from(RING) * looks).min(FLOOD)
            })
            .collect();
        let ratios: Vec<f64> =
            rates.iter().zip(&foretold).map(|(measured, model)| measured / model).collect();
        let parameters = [("looks_per_s", clock), ("ring_frames", f64::from(RING))];
        let name = "clock: capacity, measured to the model";
        outcome.rows.push(Row::new(name, &parameters, "ratio", &ratios));
        outcome.context.push(Row::new("clock: capacity", &parameters, "frames/s", &rates));
        measured.push([clock, median(rates)]);
        model.push([clock, median(foretold)]);
    }
    outcome.figures.push(
        capacity
            .with(Series::dots("measured", measured))
            .with(Series::line("least of ring β, (1 - β C) / α, offered", model)),
    );
    engine(&station, &mut bench, clocks, (runs, window), outcome)
}

/// The same of the engine, as far as its processor time goes: what it is to send waits in the queues
/// until it looks. The application looks a thousand times a second meanwhile.
fn engine(
    station: &Station,
    bench: &mut Bench,
    clocks: &[f64],
    (runs, window): (usize, Duration),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    const APPLICATION_HZ: f64 = 1000.0;
    let clocked = Setting::Mode.parse("clocked")?;
    let mut again = |clock: f64, rate| {
        station.set(Setting::Mode, clocked)?;
        station.set(Setting::ClockHz, clock as u64)?;
        (0..runs)
            .map(|_| bench.run(APPLICATION_HZ, rate, window))
            .collect::<anyhow::Result<Vec<_>>>()
    };
    let median = |values: &[f64]| Summary::of(values).median;
    // C and α of the engine, at a clock in the middle.
    let middle = 2000.0;
    let idle: Vec<f64> = again(middle, 0.0)?.iter().map(|run| run.engine_busy).collect();
    let took = window.as_secs_f64();
    let looks: Vec<f64> = idle.iter().map(|busy| busy / (middle * took)).collect();
    let look_s = median(&looks);
    let most = RATES[1];
    let each: Vec<f64> = again(middle, most)?
        .iter()
        .map(|run| (run.engine_busy - middle * took * look_s) / (most * took))
        .collect();
    let frame_s = median(&each);
    let us = |values: &[f64]| values.iter().map(|value| value * 1e6).collect::<Vec<_>>();
    let name = "engine's clock: a look that finds nothing, C";
    outcome.context.push(Row::new(name, &[], "us", &us(&looks)));
    outcome.context.push(Row::new("engine's clock: a frame, α", &[], "us", &us(&each)));
    let mut figure = Figure::new(
        "engine-clock",
        "Processor time of the engine by its clock, measured and by the model",
        Axis::log("β", "1/s"),
        Axis::log("busy", "% of a core"),
    );
    for rate in RATES {
        let (mut measured, mut model) = (Vec::new(), Vec::new());
        for &clock in clocks {
            let parts: Vec<f64> =
                again(clock, rate)?.iter().map(|run| run.engine_busy / took).collect();
            let foretold = clock * look_s + rate * frame_s;
            let ratios: Vec<f64> = parts.iter().map(|part| part / foretold).collect();
            let parameters = [("looks_per_s", clock), ("frames_per_s", rate)];
            let name = "engine's clock: processor time, measured to β C + λ α";
            outcome.rows.push(Row::new(name, &parameters, "ratio", &ratios));
            measured.push([clock, 100.0 * median(&parts)]);
            model.push([clock, 100.0 * foretold]);
        }
        figure.series.push(Series::dots(&format!("measured, λ = {rate}/s"), measured));
        figure.series.push(Series::line(&format!("β C + λ α, λ = {rate}/s"), model));
    }
    outcome.figures.push(figure);
    Ok(())
}

/// A generator, and an application with a clock.
struct Bench {
    generator: Session,
    application: Session,
    from: Endpoint,
    headers: [u8; HEADER_BYTES],
    cores: (usize, usize),
    engine: Participants,
}

impl Bench {
    fn new(station: &Station, cores: (usize, usize)) -> anyhow::Result<Bench> {
        let options = |name: &str, receive_slots| Options {
            name: name.into(),
            transmit_slots: 1024,
            receive_slots,
            ..Options::default()
        };
        let mut generator = Session::attach(station.socket(), &options("generator", 8))?;
        let mut application = Session::attach(station.socket(), &options("clocked", RING))?;
        let address = |session: &Session| {
            session.info().ipv4.map(|(ip, _)| ip).context("a session without an IPv4 address")
        };
        let flow = Flow::v4()
            .macs(generator.info().mac, application.info().mac)
            .addresses(address(&generator)?, address(&application)?)
            .ports(1000, 2000);
        let from = generator.open(&Rule::new().udp(1000))?;
        application.open(&Rule::new().udp(2000))?;
        let mut frame = flow.udp(&vec![0; FRAME_BYTES - HEADER_BYTES]);
        frame[40..42].fill(0);
        let headers = *frame.first_chunk().context("a frame without headers")?;
        let engine = Participants::new(&[station.pid()]);
        Ok(Bench { generator, application, from, headers, cores, engine })
    }

    /// Looks at a rate, at frames that come at a rate.
    fn run(&mut self, clock: f64, rate: f64, window: Duration) -> anyhow::Result<Run> {
        let Bench { generator, application, from, headers, cores, engine } = self;
        let engine_before = engine.cpu_time()?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let looking = scope.spawn(|| -> anyhow::Result<Run> {
                pin(cores.1)?;
                let (start, cpu) = (Instant::now(), this_thread_cpu_time()?);
                let (mut looks, mut received, mut sum) = (0_u64, 0_u64, 0_u64);
                while !over.load(Ordering::Acquire) {
                    received += application.receive(0, RING as usize, |packet| {
                        let parts = packet.parts().map(crate::messages::add);
                        sum = parts.fold(sum, u64::wrapping_add);
                    })? as u64;
                    looks += 1;
                    // By the clock: a look that came late makes the next one no later.
                    let due = Duration::from_secs_f64(looks as f64 / clock);
                    thread::sleep(due.saturating_sub(start.elapsed()));
                }
                std::hint::black_box(sum);
                let busy = (this_thread_cpu_time()? - cpu).as_secs_f64();
                let took = start.elapsed().as_secs_f64();
                // What is left belongs to no look.
                while application.receive(0, RING as usize, |_| {})? > 0 {}
                Ok(Run { looks, received, busy, engine_busy: 0.0, took })
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
            sent.map(|()| Run { engine_busy, ..run })
        })
    }
}

fn send(
    generator: &mut Session,
    from: Endpoint,
    headers: &[u8; HEADER_BYTES],
    rate: f64,
    window: Duration,
) -> anyhow::Result<()> {
    let (start, mut sent) = (Instant::now(), 0_u64);
    loop {
        let now = start.elapsed();
        if now >= window {
            return Ok(());
        }
        let due = (now.as_secs_f64() * rate) as u64;
        while sent < due {
            let outcome = generator.send(from, FRAME_BYTES, Meta::FINISHED, |parts| {
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
        generator.flush()?;
        thread::sleep(TICK);
    }
}
