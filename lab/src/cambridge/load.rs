//! The paper's figure 6: throughput by the number of connections, each with one request in flight;
//! and the overhead of a message, as processor time of all participants.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_client::WaitStrategy;
use towpath_testkit::{Participants, pin};

use super::place::Place;
use super::requests::{FIRST_PORT, KernelClient, KernelServer, PATIENCE, SPINS, Sessions};
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::KernelWire;
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::{Summary, in_turn, ratios};
use crate::techniques::Waits;

/// Connections when the overhead of a message is measured.
const BUSY: usize = 64;

pub(super) fn measure(place: Place<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let Place { settings, cores, wire } = place;
    let numbers: &[usize] =
        if settings.quick { &[1, 16, 256] } else { &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] };
    let window = Duration::from_millis(if settings.quick { 30 } else { 200 });
    let polling = Serving::memory(1500).on(cores.0).polling();
    let mut curves = [Vec::new(), Vec::new(), Vec::new()];
    for &connections in numbers {
        let parameters = [("connections", connections as f64)];
        let process = Process::start(&polling, None)?;
        let mut sessions = Sessions::new(&process.socket(), connections)?;
        let per_s = |done: u64| done as f64 / window.as_secs_f64() / 1e3;
        let values = in_turn(
            settings.pairs(),
            &mut [
                &mut || {
                    process.resume()?;
                    let done = closed(&mut sessions, connections, window, Waits::Polls)?;
                    process.pause()?;
                    Ok(per_s(done))
                },
                &mut || Ok(per_s(kernel(wire, cores, connections, false, window, Waits::Polls)?)),
                &mut || Ok(per_s(kernel(wire, cores, connections, true, window, Waits::Polls)?)),
            ],
        )?;
        let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
        for (base, how) in values[1..].iter().zip(["epoll", "select"]) {
            let name = format!("closed loop, Towpath to UDP and {how}");
            outcome.rows.push(row(&name, "ratio", &ratios(&values[0], base)));
        }
        let names = ["Towpath", "kernel UDP, epoll", "kernel UDP, select"];
        for (curve, (name, values)) in curves.iter_mut().zip(names.into_iter().zip(&values)) {
            outcome.context.push(row(&format!("closed loop, {name}"), "k requests/s", values));
            curve.push([connections as f64, Summary::of(values).median]);
        }
    }
    let figure = Figure::new(
        "connections",
        "Requests answered by connections, one request each",
        Axis::log("connections", ""),
        Axis::log("requests", "1000/s"),
    );
    let names = ["Towpath", "kernel UDP, epoll", "kernel UDP, select"];
    outcome.figures.push(
        names
            .into_iter()
            .zip(curves)
            .fold(figure, |figure, (name, curve)| figure.with(Series::line(name, curve))),
    );
    for connections in [1, BUSY] {
        overhead(place, connections, window, outcome)?;
    }
    Ok(())
}

/// Measures the processor time per message of all participants, when all sleep while idle; and the
/// effect of spinning before the server application sleeps: for the paper's time, and for a time
/// that the library chooses.
fn overhead(
    place: Place<'_>,
    connections: usize,
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let Place { settings, cores, wire } = place;
    let process = Process::start(&Serving::memory(1500).on(cores.0), None)?;
    let sessions = std::cell::RefCell::new(Sessions::new(&process.socket(), connections)?);
    let own = std::process::id();
    let all = Participants::new(&[own, process.pid()]);
    // The same rounds give requests per second and processor time.
    let rates: [_; 4] = std::array::from_fn(|_| std::cell::RefCell::new(Vec::new()));
    let measured = |place: usize, all: &Participants, run: &dyn Fn() -> anyhow::Result<u64>| {
        let before = all.cpu_time()?;
        let done = run()?;
        rates[place].borrow_mut().push(done as f64 / window.as_secs_f64() / 1e3);
        // One request and one answer are two messages.
        Ok((all.cpu_time()? - before).as_secs_f64() * 1e6 / (2 * done.max(1)) as f64)
    };
    let ours = |place: usize, strategy| {
        measured(place, &all, &|| {
            let mut sessions = sessions.borrow_mut();
            sessions.serve_by(strategy)?;
            closed(&mut sessions, connections, window, Waits::Blocks)
        })
    };
    let alone = Participants::new(&[own]);
    let values = in_turn(
        settings.pairs(),
        &mut [
            &mut || ours(0, WaitStrategy::SpinFor(SPINS)),
            &mut || ours(1, WaitStrategy::SpinThenBlock),
            &mut || ours(2, WaitStrategy::Block),
            &mut || {
                measured(3, &alone, &|| {
                    kernel(wire, cores, connections, false, window, Waits::Blocks)
                })
            },
        ],
    )?;
    let rates = rates.map(|rates| rates.into_inner().split_off(1));
    show_overhead(connections, &values, &rates, outcome);
    Ok(())
}

/// Adds the rows of processor time per message, and of requests per second.
fn show_overhead(
    connections: usize,
    overheads: &[Vec<f64>],
    rates: &[Vec<f64>],
    outcome: &mut Outcome,
) {
    let parameters = [("connections", connections as f64)];
    let row = |name: &str, unit, values: &[f64]| Row::new(name, &parameters, unit, values);
    let spun = format!("spin of {} us, then block", SPINS.as_micros());
    let names =
        [&format!("Towpath, {spun}"), "Towpath, spin-then-block", "Towpath, block", "epoll"];
    for (what, ratio, unit, values) in [
        ("overhead of a message", "ratio", "us of CPU", overheads),
        ("closed loop, idle sides sleep", "ratio of requests/s", "k requests/s", rates),
    ] {
        let name = format!("{what}, Towpath to epoll");
        outcome.rows.push(row(&name, ratio, &ratios(&values[0], &values[3])));
        let name = format!("{what}, {spun}, to block");
        outcome.rows.push(row(&name, ratio, &ratios(&values[0], &values[2])));
        let name = format!("{what}, spin-then-block, to block");
        outcome.rows.push(row(&name, ratio, &ratios(&values[1], &values[2])));
        for (who, values) in names.iter().zip(values) {
            outcome.context.push(row(&format!("{what}, {who}"), unit, values));
        }
    }
}

/// Returns the requests answered in a window. One thread is the client and the server application.
/// With [`Waits::Blocks`] it waits as the server application, by that one's wait strategy, while
/// requests are on their way there, and then sleeps as the client. So each wait has an end.
fn closed(
    sessions: &mut Sessions,
    connections: usize,
    window: Duration,
    waits: Waits,
) -> anyhow::Result<u64> {
    for connection in 0..connections as u32 {
        ensure!(sessions.ask(connection)?, "no room for a request");
    }
    sessions.flush()?;
    // Requests that the server application has not got, and answers that the client has not got.
    let (mut requests, mut answers) = (connections, 0);
    let (start, mut done) = (Instant::now(), 0);
    let (mut over, mut last) = (false, start);
    let mut again = Vec::with_capacity(connections);
    while requests + answers > 0 {
        let served = if requests > 0 { sessions.serve(waits)? } else { 0 };
        (requests, answers) = (requests - served, answers + served);
        if waits == Waits::Blocks && requests == 0 {
            sessions.sleep()?;
        }
        again.clear();
        again.extend(sessions.answered()?);
        answers -= again.len();
        let now = Instant::now();
        if again.len() + served > 0 {
            last = now;
        }
        ensure!(now - last < PATIENCE, "{} messages were lost", requests + answers);
        over |= now - start >= window;
        if over {
            continue;
        }
        done += again.len() as u64;
        for &connection in &again {
            ensure!(sessions.ask(connection)?, "no room for a request");
        }
        requests += again.len();
        if !again.is_empty() {
            sessions.flush()?;
        }
    }
    Ok(done)
}

/// Measures the same over kernel sockets, client and server in a thread each.
fn kernel(
    wire: &KernelWire,
    cores: (usize, usize),
    connections: usize,
    selects: bool,
    window: Duration,
    waits: Waits,
) -> anyhow::Result<u64> {
    let sockets = wire.far_udp(FIRST_PORT, connections)?;
    let client = KernelClient::new(wire, &sockets)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores.1)?;
            let mut server = if selects {
                KernelServer::select(&sockets)
            } else {
                KernelServer::epoll(&sockets)?
            };
            while !over.load(Ordering::Acquire) {
                let timeout = if waits == Waits::Polls { 0 } else { 5 };
                server.serve(Duration::from_millis(timeout))?;
            }
            Ok(())
        });
        let asking = scope.spawn(|| {
            let outcome = pin(cores.0)
                .map_err(anyhow::Error::from)
                .and_then(|()| ask_kernel(&client, connections, window, waits));
            over.store(true, Ordering::Release);
            outcome
        });
        let done = asking.join().ok().context("the client's thread failed")?;
        serving.join().ok().context("the server's thread failed")??;
        done
    })
}

fn ask_kernel(
    client: &KernelClient,
    connections: usize,
    window: Duration,
    waits: Waits,
) -> anyhow::Result<u64> {
    for connection in 0..connections {
        client.ask(connection)?;
    }
    let (start, mut done, mut on_the_way) = (Instant::now(), 0, connections);
    let mut last = start;
    while on_the_way > 0 {
        let now = Instant::now();
        let Some(connection) = client.answered()? else {
            ensure!(now - last < PATIENCE, "{on_the_way} requests were lost");
            if waits == Waits::Blocks {
                let mut polled = [PollFd::new(client.socket(), PollFlags::IN)];
                let _ = poll(&mut polled, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
            }
            continue;
        };
        last = now;
        if now - start < window {
            done += 1;
            client.ask(connection)?;
        } else {
            on_the_way -= 1;
        }
    }
    Ok(done)
}
