//! Endpoint to endpoint through the engine of another process.
//!
//! The server is a process of its own, and its engine polls on one core. Generator and sink are one
//! thread on the other core, with two sessions that it attached over the server's socket: one
//! sends, the other receives. Every packet's bytes are written in place in the transmit buffer pool
//! and read in place in the receive buffer pool. Between them are all checks, the flow table and
//! one copy.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session};
use towpath_device_testing::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Policy, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};
use towpath_testkit::pin;

use crate::Settings;
use crate::bare;
use crate::child::{Child, OwnSocket, Role, tell, wait_for_end};
use crate::flow::{self, HEADER_BYTES};
use crate::limits::line_round_trip_ns;
use crate::machine::two_cores;
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

/// Endpoints that send or receive in the measurement, half of them each.
pub(crate) const ENDPOINTS: u16 = 64;
/// Flow rules in the table, theirs included.
pub(crate) const RULES: u16 = 1000;
/// Packets put into the queue at once.
pub(crate) const BATCH: usize = 64;
/// The most packets in flight, and receive buffers at the server: few enough to stay in the cache.
pub(crate) const ON_THE_WAY: u64 = 192;
/// Slots of each queue.
const SLOTS: u32 = 1024;
/// The lower limits, in millions of packets per second, by size.
const SIZES: [(usize, f64); 2] = [(64, 20.0), (1500, 4.5)];

/// Serves an in-memory device.
#[derive(Serialize, Deserialize)]
pub(crate) struct SwitchServer {
    /// The socket's path.
    pub(crate) socket: PathBuf,
    /// The core of its engine.
    pub(crate) engine_cpu: usize,
}

impl Role for SwitchServer {
    const NAME: &'static str = "SwitchServer";

    fn directory(&self) -> Option<&Path> {
        self.socket.parent()
    }

    fn act(self) -> anyhow::Result<()> {
        serve(self.socket, self.engine_cpu)
    }
}

/// Runs the server's process: serves until its parent is gone.
fn serve(socket: PathBuf, engine_cpu: usize) -> anyhow::Result<()> {
    let (near, _far) = loopback::pair(&loopback::Config::default())?;
    let config = Config {
        socket: Some(socket),
        settings: EngineStrategy::Poll.into(),
        engine_cpus: vec![engine_cpu],
        subnets: Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse()?, 16)), ipv6: None },
        policy: Policy { sessions_per_user: 2000, ..Policy::default() },
        ..Config::default()
    };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default())?;
    tell("ready")?;
    wait_for_end()?;
    Ok(server.stop()?)
}

/// Sends to itself through a server of its own, for a tool that counts an application's
/// instructions.
#[derive(Serialize, Deserialize)]
pub(crate) struct CountApplication {
    /// The number of packets.
    pub(crate) packets: u64,
}

impl Role for CountApplication {
    const NAME: &'static str = "CountApplication";

    fn act(self) -> anyhow::Result<()> {
        count_application(self.packets)
    }
}

/// Sends and receives packets of 64 bytes through the server of another process.
fn count_application(packets: u64) -> anyhow::Result<()> {
    let cores = two_cores()?;
    let socket = OwnSocket::new()?;
    let _server = Child::start(&SwitchServer { socket: socket.path(), engine_cpu: cores.0 })?;
    pin(cores.1)?;
    let mut load = Load::new(&socket.path(), 64)?;
    while load.received < packets {
        if load.has_room() {
            load.send_batch()?;
        }
        if load.receive_batch()? == 0 {
            // Empty polls would count, too.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    load.check()?;
    Ok(())
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let socket = OwnSocket::new()?;
    let server = Child::start(&SwitchServer { socket: socket.path(), engine_cpu: cores.0 })?;
    let mut outcome = Outcome {
        how: format!(
            "server: a process, its engine polls on core {}; generator and sink: one thread of \
             another process on core {}, polls; {ENDPOINTS} endpoints, {RULES} flow rules, batches \
             of {BATCH}, {ON_THE_WAY} packets in flight",
            cores.0, cores.1
        ),
        ..Outcome::default()
    };
    // The generator's thread is pinned; this thread stays free for the bare queue's threads.
    let window = Duration::from_millis(if settings.quick { 300 } else { 1000 });
    for (packet_bytes, goal) in SIZES {
        let socket = socket.path();
        let mut trips = Vec::new();
        let (pairs, checked) = std::thread::scope(|scope| {
            let measured = scope.spawn(|| -> anyhow::Result<_> {
                pin(cores.1)?;
                let mut load = Load::new(&socket, packet_bytes)?;
                let pairs = Pairs::measure(
                    settings.pairs(),
                    || load.run(window),
                    || {
                        // The engine would use the bare queue's core.
                        server.signal(Signal::STOP)?;
                        let ring = bare::run(cores, packet_bytes, window / 4);
                        let trip = line_round_trip_ns(cores, window / 20);
                        server.signal(Signal::CONT)?;
                        trips.push(trip?);
                        ring
                    },
                )?;
                Ok((pairs, load.check()?))
            });
            measured.join().map_err(|_| anyhow::anyhow!("the measuring thread failed"))?
        })?;
        let parameters = [("packet_bytes", packet_bytes as f64)];
        outcome.rows.push(
            Row::new("endpoint to endpoint", &parameters, "Mpps", &pairs.ours).at_least(goal),
        );
        outcome.context.push(Row::new("to a bare queue", &parameters, "ratio", &pairs.ratios()));
        outcome.context.push(Row::new("bare queue", &parameters, "Mpps", &pairs.base));
        // Virtual cores move: they may share a cache at one time and not at another.
        let row = Row::new("cache line round trip meanwhile", &parameters, "ns", &trips);
        outcome.context.push(row);
        let delivered = [checked as f64];
        outcome.context.push(Row::new("all delivered", &parameters, "packets", &delivered));
    }
    Ok(outcome)
}

/// A generator and a sink.
pub(crate) struct Load {
    sender: Session,
    receiver: Session,
    /// Endpoints, each with the headers of the packets that it sends.
    from: Vec<(Endpoint, [u8; HEADER_BYTES])>,
    to: Vec<Endpoint>,
    next: usize,
    packet_bytes: usize,
    sent: u64,
    received: u64,
    sum: u64,
    /// The most packets in flight.
    in_flight: u64,
    /// The longest time without a packet, in the last run.
    pub(crate) longest_gap: Duration,
    /// The time in rounds that sent or received a packet, in the last run.
    pub(crate) busy: Duration,
}

impl Load {
    pub(crate) fn new(socket: &Path, packet_bytes: usize) -> anyhow::Result<Load> {
        Load::with_in_flight(socket, packet_bytes, ON_THE_WAY)
    }

    /// Makes a generator that keeps at most this many packets in flight: at least a batch, and at
    /// most half of the slots.
    pub(crate) fn with_in_flight(
        socket: &Path,
        packet_bytes: usize,
        in_flight: u64,
    ) -> anyhow::Result<Load> {
        ensure!(
            (BATCH as u64..=u64::from(SLOTS) / 2).contains(&in_flight),
            "{in_flight} packets in flight"
        );
        let options = |name: &str| Options {
            name: name.into(),
            endpoints: u32::from(RULES),
            provided: Some(in_flight as u32 + BATCH as u32),
            transmit_slots: SLOTS,
            receive_slots: SLOTS,
            ..Options::default()
        };
        let mut sender = Session::attach(socket, &options("generator"))?;
        let mut receiver = Session::attach(socket, &options("sink"))?;
        let half = ENDPOINTS / 2;
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for number in 0..half {
            let flow = flow::between(&sender, &receiver, (1000 + number, 2000 + number))?;
            let headers = flow::headers(&flow, packet_bytes - HEADER_BYTES)?;
            from.push((sender.open(&Rule::new().udp(1000 + number))?, headers));
            to.push(receiver.open(&Rule::new().udp(2000 + number))?);
        }
        for number in 0..RULES - ENDPOINTS {
            receiver.open(&Rule::new().udp(10_000 + number))?;
        }
        Ok(Load {
            sender,
            receiver,
            from,
            to,
            next: 0,
            packet_bytes,
            sent: 0,
            received: 0,
            sum: 0,
            in_flight,
            longest_gap: Duration::ZERO,
            busy: Duration::ZERO,
        })
    }

    /// Sends and receives for a time; returns millions of packets received per second.
    pub(crate) fn run(&mut self, window: Duration) -> anyhow::Result<f64> {
        let start = Instant::now();
        let before = self.received;
        let (mut last, mut round) = (start, start);
        self.longest_gap = Duration::ZERO;
        self.busy = Duration::ZERO;
        loop {
            let sends = self.has_room();
            if sends {
                self.send_batch()?;
            }
            let got = self.receive_batch()?;
            let now = Instant::now();
            if sends || got > 0 {
                self.busy += now - round;
            }
            round = now;
            if got > 0 {
                self.longest_gap = self.longest_gap.max(now - last);
                last = now;
            } else if now - last > Duration::from_secs(5) {
                bail!("no packet for 5 s: {} of {} sent arrived", self.received, self.sent);
            }
            let took = now - start;
            if took >= window {
                self.longest_gap = self.longest_gap.max(now - last);
                return Ok((self.received - before) as f64 / took.as_secs_f64() / 1e6);
            }
        }
    }

    /// Returns the packets received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Returns `true` if a batch more may be in flight.
    fn has_room(&self) -> bool {
        self.sent - self.received + BATCH as u64 <= self.in_flight
    }

    /// A function of its own, so that a tool can count its instructions.
    #[inline(never)]
    fn send_batch(&mut self) -> anyhow::Result<()> {
        for _ in 0..BATCH {
            let (endpoint, headers) = &self.from[self.next];
            let fill = self.sent as u8;
            let sent =
                self.sender.sender().send(*endpoint, self.packet_bytes, Meta::FULL, |parts| {
                    if let [part] = parts
                        && let Some((start, payload)) = part.split_at_mut_checked(HEADER_BYTES)
                    {
                        start.copy_from_slice(headers);
                        payload.fill(fill);
                    }
                });
            match sent {
                Ok(()) => {}
                Err(SendError::Full) => break,
                Err(error) => return Err(error.into()),
            }
            self.sent += 1;
            self.next = if self.next + 1 < self.from.len() { self.next + 1 } else { 0 };
        }
        Ok(self.sender.sender().flush()?)
    }

    /// A function of its own, so that a tool can count its instructions.
    #[inline(never)]
    fn receive_batch(&mut self) -> anyhow::Result<usize> {
        let mut sum = 0u64;
        let got = self.receiver.receiver().receive(QueuePair::FIRST, BATCH, |packet| {
            for part in packet.parts() {
                let (words, rest) = part.as_chunks::<8>();
                for word in words {
                    sum = sum.wrapping_add(u64::from_ne_bytes(*word));
                }
                sum = sum.wrapping_add(rest.iter().map(|byte| u64::from(*byte)).sum());
            }
        })?;
        self.sum = std::hint::black_box(self.sum.wrapping_add(sum));
        self.received += got as u64;
        Ok(got)
    }

    /// Waits for packets in flight, and checks that none was dropped. Returns their number.
    pub(crate) fn check(&mut self) -> anyhow::Result<u64> {
        let until = Instant::now() + Duration::from_secs(5);
        while self.received < self.sent && Instant::now() < until {
            self.receive_batch()?;
        }
        let count =
            |session: &Session, endpoints: &mut dyn Iterator<Item = Endpoint>, name: &str| {
                endpoints
                    .flat_map(|endpoint| session.counters(endpoint))
                    .filter(|(counter, _)| *counter == name)
                    .map(|(_, value)| value)
                    .sum::<u64>()
            };
        let from = &mut self.from.iter().map(|(endpoint, _)| *endpoint);
        let sent = count(&self.sender, from, "tx_packets");
        let delivered = count(&self.receiver, &mut self.to.iter().copied(), "rx_packets");
        if [sent, delivered, self.received] != [self.sent; 3] {
            bail!(
                "{} packets sent, {sent} delivered locally, {delivered} delivered, {} received",
                self.sent,
                self.received
            );
        }
        Ok(self.received)
    }
}
