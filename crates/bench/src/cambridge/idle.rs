//! The paper's figure 5: the round trip of a small message by the number of endpoints that do
//! nothing, (a) when the server application sleeps and has to be woken, (b) when it is awake.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use towpath_rig::pin;

use super::requests::{FIRST_PORT, KernelClient, KernelServer, Sessions};
use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::{KernelWire, raise_file_limit};
use crate::latency::median_us;
use crate::report::{Outcome, Row};
use crate::station::{Serving, Station};
use crate::statistics::Summary;
use crate::techniques::Waits;

/// What the most idle endpoints may cost: the ratio of their round trip to that with one.
const AT_MOST: f64 = 1.05;
/// Descriptors that a process has beside its sockets.
const SPARE_FILES: u64 = 256;

pub(super) fn measure(
    settings: Settings,
    cores: (usize, usize),
    wire: &KernelWire,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let numbers: &[usize] =
        if settings.quick { &[100, 10_000] } else { &[10, 30, 100, 300, 1000, 3000, 10_000] };
    let trips = if settings.quick { 100 } else { 400 };
    let mut figure = Figure::new(
        "idle-endpoints",
        "Round trip by idle endpoints",
        Axis::log("idle endpoints", ""),
        Axis::log("round trip", "us"),
    );
    for (waits, how) in
        [(Waits::Blocks, "engine and server asleep"), (Waits::Polls, "server awake")]
    {
        let mut curve = Vec::new();
        for &idle in numbers {
            let (pairs, [one, many]) = ours(settings, cores, idle, waits, trips)?;
            let parameters = [("idle_endpoints", idle as f64)];
            let name = format!("Towpath, {how}, to one idle endpoint");
            let mut row = Row::new(&name, &parameters, "ratio", &pairs);
            if idle == 10_000 {
                row = row.at_most(AT_MOST);
            }
            outcome.rows.push(row);
            let name = format!("Towpath, {how}");
            if curve.is_empty() {
                outcome.context.push(Row::new(&name, &[("idle_endpoints", 1.0)], "us", &one));
                curve.push([1.0, Summary::of(&one).median]);
            }
            outcome.context.push(Row::new(&name, &parameters, "us", &many));
            curve.push([idle as f64, Summary::of(&many).median]);
        }
        figure.series.push(Series::line(&format!("Towpath, {how}"), curve));
    }
    let most = raise_file_limit().saturating_sub(SPARE_FILES) as usize;
    for selects in [false, true] {
        let call = if selects { "select" } else { "epoll" };
        for (waits, how) in [(Waits::Blocks, "server asleep"), (Waits::Polls, "server awake")] {
            let mut curve = Vec::new();
            for idle in std::iter::once(1).chain(numbers.iter().copied()) {
                if idle >= most {
                    outcome.how += &format!(
                        "; {idle} sockets with {call} are left out, as this process may have no \
                         more than {most} descriptors (ulimit -n)"
                    );
                    continue;
                }
                let runs = if settings.quick { 1 } else { 5 };
                let values = (0..runs)
                    .map(|_| kernel(wire, cores, idle, selects, waits, trips))
                    .collect::<anyhow::Result<Vec<_>>>()?;
                let parameters = [("idle_endpoints", idle as f64)];
                let name = format!("kernel UDP, {call}, {how}");
                outcome.context.push(Row::new(&name, &parameters, "us", &values));
                curve.push([idle as f64, Summary::of(&values).median]);
            }
            figure.series.push(Series::line(&format!("kernel UDP, {call}, {how}"), curve));
        }
    }
    outcome.figures.push(figure);
    Ok(())
}

/// Pairs of medians: with so many idle endpoints and with one, each in a server of its own, so that
/// nothing of the many is there when one is measured.
fn ours(
    settings: Settings,
    cores: (usize, usize),
    idle: usize,
    waits: Waits,
    trips: usize,
) -> anyhow::Result<(Vec<f64>, [Vec<f64>; 2])> {
    // An engine that polls would answer before anybody has fallen asleep: with the server
    // application asleep, the engine is too.
    let sleeping = Serving::memory(1500).on(cores.0);
    let serving = if waits == Waits::Blocks { sleeping } else { sleeping.polling() };
    let mut sides = Vec::new();
    for idle in [1, idle] {
        let station = Station::start(&serving, None)?;
        let sessions = Sessions::new(&station.socket(), idle + 1)?;
        station.pause()?;
        sides.push((station, sessions, Vec::new()));
    }
    for pair in 0..=settings.pairs() {
        let mut order: Vec<_> = sides.iter_mut().collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for (station, sessions, medians) in order {
            station.resume()?;
            let times: Vec<Duration> =
                (0..trips).map(|_| sessions.trip(0, waits)).collect::<anyhow::Result<_>>()?;
            station.pause()?;
            // The first pair finds everything cold.
            if pair > 0 {
                medians.push(median_us(&times));
            }
        }
    }
    let mut medians = sides.into_iter().map(|(_, _, medians)| medians);
    let (one, many) = (medians.next().unwrap_or_default(), medians.next().unwrap_or_default());
    Ok((many.iter().zip(&one).map(|(many, one)| many / one).collect(), [one, many]))
}

/// The median over kernel sockets: the client in a thread of its own on the engine's core where the
/// server application is to be woken; else both in one thread, as ours are.
fn kernel(
    wire: &KernelWire,
    cores: (usize, usize),
    idle: usize,
    selects: bool,
    waits: Waits,
    trips: usize,
) -> anyhow::Result<f64> {
    let sockets = wire.far_udp(FIRST_PORT, idle + 1)?;
    let client = KernelClient::new(wire, &sockets[..1])?;
    let mut server =
        if selects { KernelServer::select(&sockets) } else { KernelServer::epoll(&sockets)? };
    if waits == Waits::Polls {
        let mut times = Vec::with_capacity(trips);
        for _ in 0..trips {
            let start = std::time::Instant::now();
            client.ask(0)?;
            let patient = || {
                anyhow::ensure!(start.elapsed() < super::requests::PATIENCE, "a request was lost");
                Ok(())
            };
            while server.serve(Duration::ZERO)? == 0 {
                patient()?;
            }
            while client.answered()?.is_none() {
                patient()?;
            }
            times.push(start.elapsed());
        }
        return Ok(median_us(&times));
    }
    let over = AtomicBool::new(false);
    let times = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let outcome = pin(cores.0).map_err(anyhow::Error::from).and_then(|()| {
                (0..trips)
                    .map(|_| {
                        // Until the server has fallen asleep.
                        let pause = std::time::Instant::now();
                        while pause.elapsed() < Duration::from_micros(50) {
                            std::hint::spin_loop();
                        }
                        client.trip(0)
                    })
                    .collect::<anyhow::Result<Vec<_>>>()
            });
            over.store(true, Ordering::Release);
            outcome
        });
        while !over.load(Ordering::Acquire) {
            server.serve(Duration::from_millis(2))?;
        }
        asking.join().ok().context("the client's thread failed")?
    })?;
    Ok(median_us(&times))
}
