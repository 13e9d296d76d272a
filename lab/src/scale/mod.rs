//! The cost of idle sessions, endpoints and connections to a busy one.
//!
//! Two servers of the same kind, each a process whose engine polls on one core; only one runs at a
//! time. One serves the busy session alone, the other many idle ones beside it, or a session whose
//! endpoints are mostly idle. The busy session sends to itself over some of its queue pairs, and
//! finds received packets by its events. For TCP, two pairs of stacks on one thread: one connection
//! sends as fast as it can, alone or among idle ones.

mod connections;
mod memory;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use towpath_client::{Endpoint, Options, QueuePair, Rule, SendError, Session};
use towpath_packet::build::Flow;
use towpath_testkit::pin;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::kernel_wire::raise_file_limit;
use crate::machine::two_cores;
use crate::process::Process;
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};
use crate::trip::PATIENCE;

use connections::Hosts;
pub(crate) use memory::IdleConnections;

/// Busy queue pairs.
const BUSY: u32 = 8;
/// Slots of each, and so packets in flight.
const SLOTS: u32 = 8;
/// A busy one among many idle ones is at most 10 % slower.
const LIMIT: f64 = 1.0 / 1.10;
const SESSIONS: [usize; 3] = [10, 100, 1000];
const ENDPOINTS: [u32; 3] = [1, 100, 10_000];
const CONNECTIONS: [usize; 2] = [10_000, 100_000];
/// The most descriptors of a session in one of the two processes.
const DESCRIPTORS: u64 = 12;

/// Returns the number of pairs: many short windows, so that other load disturbs a few of them and
/// not the median.
fn pairs(settings: Settings) -> usize {
    settings.pairs() * 3
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let mut outcome = Outcome {
        how: format!(
            "servers: processes whose engines poll on core {}, one at a time; the busy session: a \
             thread on core {}, {BUSY} queue pairs, {SLOTS} packets of 64 bytes in each; TCP: two \
             stacks on that thread, 1448 bytes a segment",
            cores.0, cores.1
        ),
        ..Outcome::default()
    };
    let window = Duration::from_millis(if settings.quick { 40 } else { 200 });
    let measured = std::thread::scope(|scope| {
        let measured = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores.1)?;
            engine(settings, cores.0, window, &mut outcome)?;
            tcp(settings, window, &mut outcome)
        });
        measured.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))
    })?;
    measured.map(|()| outcome)
}

fn row(outcome: &mut Outcome, what: &str, idle: usize, unit: &str, pairs: &Pairs) {
    if outcome.figures.is_empty() {
        outcome.figures.push(Figure::new(
            "idle",
            "Busy among idle ones, to alone",
            Axis::log("idle", ""),
            Axis::linear("throughput, to that alone", ""),
        ));
    }
    let point = [idle as f64, Summary::of(&pairs.ratios()).median];
    for figure in &mut outcome.figures {
        match figure.series.iter_mut().find(|series| series.name == what) {
            Some(series) => series.points.push(point),
            None => figure.series.push(Series::line(what, vec![point])),
        }
    }
    let parameters = [("idle", idle as f64)];
    let name = format!("busy among idle {what}, to alone");
    outcome.rows.push(Row::new(&name, &parameters, "ratio", &pairs.ratios()).at_least(LIMIT));
    let name = format!("among idle {what}");
    outcome.context.push(Row::new(&name, &parameters, unit, &pairs.ours));
    outcome.context.push(Row::new("alone", &parameters, unit, &pairs.base));
}

/// A server and the busy session at it. The server runs only while it is measured.
struct Side {
    process: Process,
    busy: Busy,
    idle: Vec<Session>,
}

impl Side {
    fn new(cpu: usize, idle_endpoints: u32) -> anyhow::Result<Side> {
        let process = Process::start_switch(cpu)?;
        let busy = Busy::new(&process.socket(), idle_endpoints)?;
        process.pause()?;
        Ok(Side { process, busy, idle: Vec::new() })
    }

    fn attach_idle(&mut self, count: usize) -> anyhow::Result<()> {
        self.process.resume()?;
        while self.idle.len() < count {
            let mut session = Session::attach(self.process.socket(), &options("idle", 1))?;
            session.open(&Rule::new().udp(1))?;
            self.idle.push(session);
        }
        self.process.pause()?;
        Ok(())
    }

    fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        self.process.resume()?;
        let rate = self.busy.run(window);
        self.process.pause()?;
        rate
    }
}

fn engine(
    settings: Settings,
    cpu: usize,
    window: Duration,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let most = raise_file_limit() / DESCRIPTORS;
    let mut alone = Side::new(cpu, 0)?;
    let mut among = Side::new(cpu, 0)?;
    for idle in SESSIONS {
        if idle as u64 > most {
            bail!("{idle} sessions need more descriptors than a process may have: ulimit -Hn");
        }
        among.attach_idle(idle)?;
        let pairs = Pairs::measure(pairs(settings), || among.run(window), || alone.run(window))?;
        row(outcome, "sessions", idle, "Mpps", &pairs);
    }
    drop(among);
    for idle in ENDPOINTS {
        let mut among = Side::new(cpu, idle)?;
        let pairs = Pairs::measure(pairs(settings), || among.run(window), || alone.run(window))?;
        row(outcome, "endpoints", idle as usize, "Mpps", &pairs);
    }
    Ok(())
}

fn options(name: &str, queue_pairs: u32) -> Options {
    Options {
        name: name.into(),
        queue_pairs,
        endpoints: queue_pairs,
        transmit_slots: SLOTS,
        receive_slots: SLOTS,
        transmit_buffer_bytes: 128,
        receive_buffer_bytes: 128,
        ..Options::default()
    }
}

/// A session that sends to itself.
struct Busy {
    session: Session,
    /// Each busy queue pair's endpoint, and the packet that it sends to the next one.
    endpoints: Vec<(Endpoint, Vec<u8>)>,
}

impl Busy {
    fn new(socket: &Path, idle: u32) -> anyhow::Result<Busy> {
        let mut session = Session::attach(socket, &options("busy", BUSY + idle))?;
        let (mac, ip) = (session.info().mac, session.info().ipv4.context("no address")?.0);
        let flow = Flow::v4().macs(mac, mac).addresses(ip, ip);
        let mut endpoints = Vec::new();
        // The busy queue pairs are numbered after half of the idle ones.
        for queue_pair in 0..BUSY + idle {
            let port = |number: u32| 1000 + number as u16;
            let rule = Rule::new().udp(port(queue_pair)).queue_pair(QueuePair::new(queue_pair));
            let endpoint = session.open(&rule)?;
            let first = idle / 2;
            if (first..first + BUSY).contains(&queue_pair) {
                let next = first + (queue_pair - first + 1) % BUSY;
                let packet = flow.ports(port(queue_pair), port(next)).udp(&[0; 22]);
                endpoints.push((endpoint, packet));
            }
        }
        Ok(Busy { session, endpoints })
    }

    /// Sends a batch and receives it, again and again for a time. Returns millions of packets per
    /// second of the median batch, because other load stops a few batches for long.
    fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        let start = Instant::now();
        let mut took = Vec::new();
        while start.elapsed() < window {
            let began = Instant::now();
            let packets = self.batch(began)?;
            took.push(began.elapsed().as_secs_f64() / packets as f64);
        }
        Ok(1e-6 / Summary::of(&took).median)
    }

    fn batch(&mut self, began: Instant) -> anyhow::Result<usize> {
        let (mut sent, mut got) = (0, 0);
        for (endpoint, packet) in &self.endpoints {
            for _ in 0..SLOTS {
                match self.session.sender().send_bytes(*endpoint, packet) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.session.sender().flush()?;
        while got < sent {
            while self.session.wait(Some(Duration::ZERO))?
                && let Some(queue_pair) = self.session.ready()?
            {
                got += self.session.receiver().receive(queue_pair, SLOTS as usize, |_| {})?;
            }
            if began.elapsed() > PATIENCE {
                bail!("{got} of {sent} packets came in {PATIENCE:?}");
            }
        }
        Ok(got.max(1))
    }
}

fn tcp(settings: Settings, window: Duration, outcome: &mut Outcome) -> anyhow::Result<()> {
    let most = if settings.quick { CONNECTIONS[0] } else { CONNECTIONS[1] };
    let made = memory::measure(most, outcome)?;
    let mut alone = Hosts::new(0)?;
    for idle in CONNECTIONS.into_iter().filter(|idle| *idle <= most) {
        // The first number is small enough for any memory of a connection.
        if idle > made.max(CONNECTIONS[0]) {
            let why = format!("{idle} idle connections: each takes too much memory");
            outcome.missing.push(why);
            continue;
        }
        let mut among = Hosts::new(idle)?;
        let pairs = Pairs::measure(pairs(settings), || among.run(window), || alone.run(window))?;
        row(outcome, "connections", idle, "Gbit/s", &pairs);
    }
    Ok(())
}
