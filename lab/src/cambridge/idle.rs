//! The paper's figure 5: the round trip of a small message by the number of idle endpoints, (a)
//! when the server application sleeps and must be woken, (b) when it is awake.
//!
//! The experiment measures in turn: many idle endpoints, one, and as many kernel sockets, with
//! `epoll` and with `select`.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_testkit::pin;

use super::place::Place;
use super::requests::{FIRST_PORT, KernelClient, KernelServer, PATIENCE, Sessions};
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::{KernelWire, raise_file_limit};
use crate::latency::median_us;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Measured, Summary, in_turn, ratios};
use crate::techniques::Waits;

/// The largest number of idle endpoints.
const MOST: usize = 10_000;
/// The pairs of measurements of that number beside one.
const PAIRS_WITH_A_LIMIT: usize = 21;
/// The limit for the largest number: the ratio of its round trip to that with one idle endpoint.
const AT_MOST: f64 = 1.05;
/// Descriptors that a process needs beside its sockets.
const SPARE_FILES: u64 = 256;
/// The pause between two trips of sides that must be asleep when a trip begins. They sleep as soon
/// as they are idle. A hypervisor may keep their processors awake for longer (KVM's `halt_poll_ns`,
/// 200 us), which would halve some trips and not others.
const ASLEEP_WITHIN: Duration = Duration::from_micros(400);

/// The trips of a run: fewer, but at least [`FEWEST`], where they take long.
#[derive(Clone, Copy)]
struct Trips {
    count: usize,
    at_most: Duration,
}

const FEWEST: usize = 8;

impl Trips {
    fn run(
        self,
        waits: Waits,
        mut trip: impl FnMut() -> anyhow::Result<Duration>,
    ) -> anyhow::Result<f64> {
        let (start, mut times) = (Instant::now(), Vec::with_capacity(self.count));
        while times.len() < self.count && (times.len() < FEWEST || start.elapsed() < self.at_most) {
            if waits == Waits::Blocks {
                let_fall_asleep();
            }
            times.push(trip()?);
        }
        Ok(median_us(&times))
    }
}

/// Keeps only the calling thread's core awake: a client is busy with other work before it sends a
/// request, in the kernel's case as in ours.
fn let_fall_asleep() {
    let pause = Instant::now();
    while pause.elapsed() < ASLEEP_WITHIN {
        std::hint::spin_loop();
    }
}

pub(super) fn measure(place: Place<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let Place { settings, cores, wire } = place;
    let numbers: &[usize] =
        if settings.quick { &[1, 100, MOST] } else { &[1, 10, 30, 100, 300, 1000, 3000, MOST] };
    let trips = if settings.quick {
        Trips { count: 100, at_most: Duration::from_millis(60) }
    } else {
        Trips { count: 400, at_most: Duration::from_millis(600) }
    };
    outcome.how += &format!(
        "; round trips with engine and server asleep: wait=block, the application blocks, and {} us \
         pass between two trips; kernel: the client polls, its server sleeps in epoll or select",
        ASLEEP_WITHIN.as_micros()
    );
    let most = raise_file_limit().saturating_sub(SPARE_FILES) as usize;
    if let Some(idle) = numbers.iter().find(|idle| **idle >= most) {
        outcome.how += &format!(
            "; {idle} sockets and more are left out, as this process may have at most {most} \
             descriptors (ulimit -n)"
        );
    }
    let mut figure = Figure::new(
        "idle-endpoints",
        "Round trip by idle endpoints",
        Axis::log("idle endpoints", ""),
        Axis::log("round trip", "us"),
    );
    for (waits, ours, kernels) in [
        (Waits::Blocks, "engine and server asleep", "server asleep"),
        (Waits::Polls, "server awake", "server awake"),
    ] {
        let names = [
            format!("Towpath, {ours}"),
            format!("kernel UDP, epoll, {kernels}"),
            format!("kernel UDP, select, {kernels}"),
        ];
        let mut curves = [Vec::new(), Vec::new(), Vec::new()];
        for &idle in numbers {
            let mut many = Ours::new(cores, idle, waits)?;
            let mut one = Ours::new(cores, 1, waits)?;
            let sockets =
                if idle < most { wire.far_udp(FIRST_PORT, idle + 1)? } else { Vec::new() };
            let mut ours = || many.run(trips);
            let mut alone = || one.run(trips);
            let mut epoll = || kernel(wire, cores, &sockets, false, waits, trips);
            let mut select = || kernel(wire, cores, &sockets, true, waits, trips);
            let all: &mut [Measured<'_>] = &mut [&mut alone, &mut ours, &mut epoll, &mut select];
            let there = if sockets.is_empty() { 2 } else { 4 };
            // With few pairs, chance alone would miss the limit in a short run.
            let pairs = if idle == MOST { PAIRS_WITH_A_LIMIT } else { settings.pairs() };
            let values = in_turn(pairs, &mut all[..there])?;
            let parameters = [("idle_endpoints", idle as f64)];
            let name = format!("{}, to one idle endpoint", names[0]);
            let row = Row::new(&name, &parameters, "ratio", &ratios(&values[1], &values[0]));
            outcome.rows.push(if idle == MOST { row.at_most(AT_MOST) } else { row });
            for ((name, curve), values) in names.iter().zip(&mut curves).zip(&values[1..]) {
                outcome.context.push(Row::new(name, &parameters, "us", values));
                curve.push([idle as f64, Summary::of(values).median]);
            }
        }
        let series = names.iter().zip(curves).map(|(name, curve)| Series::line(name, curve));
        figure.series.extend(series);
    }
    outcome.figures.push(figure);
    Ok(())
}

/// Client and server application at a server of their own, so that the many idle endpoints do not
/// exist when one is measured.
struct Ours {
    process: Process,
    sessions: Sessions,
    waits: Waits,
}

impl Ours {
    fn new(cores: (usize, usize), idle: usize, waits: Waits) -> anyhow::Result<Ours> {
        // A polling engine would answer before the server application has fallen asleep. So the
        // engine sleeps where the application does.
        let sleeping = Serving::memory(1500).on(cores.0);
        let serving = if waits == Waits::Blocks { sleeping } else { sleeping.polling() };
        let process = Process::start(&serving, None)?;
        let sessions = Sessions::new(&process.socket(), idle + 1)?;
        process.pause()?;
        Ok(Ours { process, sessions, waits })
    }

    fn run(&mut self, trips: Trips) -> anyhow::Result<f64> {
        self.process.resume()?;
        let median = trips.run(self.waits, || self.sessions.trip(0, self.waits));
        self.process.pause()?;
        median
    }
}

/// Returns the median over kernel sockets. The client has its own thread on the engine's core where
/// the server application must be woken; else both share one thread, as ours do.
fn kernel(
    wire: &KernelWire,
    cores: (usize, usize),
    sockets: &[UdpSocket],
    selects: bool,
    waits: Waits,
    trips: Trips,
) -> anyhow::Result<f64> {
    let client = KernelClient::new(wire, &sockets[..1])?;
    let mut server =
        if selects { KernelServer::select(sockets) } else { KernelServer::epoll(sockets)? };
    if waits == Waits::Polls {
        return trips.run(waits, || {
            let start = Instant::now();
            client.ask(0)?;
            let patient = || {
                ensure!(start.elapsed() < PATIENCE, "a request was lost between sockets");
                Ok(())
            };
            while server.serve(Duration::ZERO)? == 0 {
                patient()?;
            }
            while client.answered()?.is_none() {
                patient()?;
            }
            Ok(start.elapsed())
        });
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let outcome = pin(cores.0)
                .map_err(anyhow::Error::from)
                .and_then(|()| trips.run(waits, || client.trip(0)));
            over.store(true, Ordering::Release);
            outcome
        });
        while !over.load(Ordering::Acquire) {
            server.serve(Duration::from_millis(2))?;
        }
        asking.join().ok().context("the client's thread failed")?
    })
}
