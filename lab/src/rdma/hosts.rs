//! Two hosts: a server at each end of a veth pair, and an application of each, which are connected
//! with each other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use towpath_client::{
    Access, ApertureKey, Endpoint, Memory, Options, Request, RequestError, RequestId, RequestState,
    Session, Sharing,
};
use towpath_protocol::settings::Setting;

use super::wire::Wire;
use crate::channels::connect;
use crate::latency::Latency;
use crate::process::{Process, Serving, Wire as Device, XdpMode};
use crate::trip::{PATIENCE, timed};

/// The most requests of the application that are not complete.
pub(super) const MOST_PENDING: usize = 16;
/// The most bytes of a request.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// The bytes of a request whose round trip is measured.
pub(super) const TRIP_BYTES: usize = 8;

/// What requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Write,
    Read,
}

impl Direction {
    /// Both, with the word of a report.
    pub(super) const ALL: [(Direction, &'static str); 2] =
        [(Direction::Write, "WRITE"), (Direction::Read, "READ")];
}

/// Both hosts.
pub(super) struct Hosts {
    // The sessions end before their servers.
    near: Session,
    endpoint: Endpoint,
    memory: Memory,
    /// The key of the memory at the far host.
    key: ApertureKey,
    _far: (Session, Memory),
    servers: [Process; 2],
}

/// The packets of both hosts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packets {
    /// All that were sent.
    pub(super) sent: u64,
    /// Those of them that were sent again.
    pub(super) again: u64,
}

impl Packets {
    /// Returns those since an earlier moment.
    pub(super) fn since(self, before: Packets) -> Packets {
        Packets { sent: self.sent - before.sent, again: self.again - before.again }
    }
}

impl Hosts {
    /// Starts a server at each end of a pair, and connects an application of each.
    pub(super) fn start(wire: &Wire, mode: XdpMode) -> anyhow::Result<Hosts> {
        let server = |is_near| {
            let (own, lease) = wire.addresses(is_near);
            let name = if is_near { &wire.near } else { &wire.far };
            let device = Device::Xdp { name: name.clone(), mode, own, lease };
            let serving = Serving { wire: device, rdma: true, ..Serving::tap("") };
            Process::start(&serving, (!is_near).then_some(&wire.there))
        };
        let servers = [server(true)?, server(false)?];
        let attach = |server: &Process, name: &str| {
            let name = name.into();
            let options = Options { name, oob_slots: 16, apertures: 8, ..Options::default() };
            Session::attach(server.socket(), &options)
        };
        let (mut near, mut far) = (attach(&servers[0], "asks")?, attach(&servers[1], "answers")?);
        let (endpoint, to) = connect(&mut near, &mut far)?;
        let bytes = MOST_PENDING * MOST_BYTES;
        let memory = near.memories().create(bytes, Sharing::Requests)?;
        let there = far.memories().create(bytes, Sharing::Requests)?;
        let key = far.memories().export(to, &there, 0..bytes, Access::ReadWrite)?.key();
        Ok(Hosts { near, endpoint, memory, key, _far: (far, there), servers })
    }

    /// Returns the servers' process IDs.
    pub(super) fn pids(&self) -> [u32; 2] {
        self.servers.each_ref().map(Process::pid)
    }

    /// Sets the engines' wait strategy.
    pub(super) fn set_wait(&self, strategy: &str) -> anyhow::Result<()> {
        let value = Setting::Wait.parse(strategy)?;
        self.servers.iter().try_for_each(|server| server.set(Setting::Wait, value))
    }

    /// Returns the packets so far.
    pub(super) fn packets(&self) -> anyhow::Result<Packets> {
        let mut packets = Packets::default();
        for server in &self.servers {
            let counters = server.counters()?;
            let one = |name: &str| counters.get(name).copied().unwrap_or(0);
            packets.sent += one("rdma_tx_packets");
            packets.again += one("rdma_retransmitted");
        }
        Ok(packets)
    }

    /// Keeps requests of `bytes` under way for a time. Returns Gbit/s until the last one is complete.
    pub(super) fn run(
        &mut self,
        direction: Direction,
        bytes: usize,
        window: Duration,
    ) -> anyhow::Result<f64> {
        let (mut pending, mut requests) = (VecDeque::with_capacity(MOST_PENDING), 0);
        let start = Instant::now();
        loop {
            let is_over = start.elapsed() >= window;
            while !is_over && pending.len() < MOST_PENDING {
                let Some(id) = self.request(direction, requests % MOST_PENDING, bytes)? else {
                    break;
                };
                pending.push_back(id);
                requests += 1;
            }
            if pending.is_empty() {
                let took = start.elapsed().as_secs_f64();
                return Ok((requests * bytes) as f64 * 8.0 / took / 1e9);
            }
            self.wait(&mut pending)?;
        }
    }

    /// Measures round trips of small writes: each until it is complete.
    pub(super) fn trips(&mut self, window: Duration) -> anyhow::Result<Latency> {
        timed(window, || {
            let id = self.request(Direction::Write, 0, TRIP_BYTES)?;
            let mut pending: VecDeque<RequestId> = id.into_iter().collect();
            ensure!(!pending.is_empty(), "no room for a single request");
            while !pending.is_empty() {
                self.wait(&mut pending)?;
            }
            Ok(())
        })
    }

    /// Queues a request between the `place`-th parts of both memories; `None` without room.
    fn request(
        &mut self,
        direction: Direction,
        place: usize,
        bytes: usize,
    ) -> anyhow::Result<Option<RequestId>> {
        let at = place * bytes;
        let request = match direction {
            Direction::Write => Request::write(self.key, at as u64),
            Direction::Read => Request::read(self.key, at as u64),
        };
        let request = request.local(&self.memory, at..at + bytes);
        match self.near.requests().queue(self.endpoint, &request) {
            Ok(id) => Ok(Some(id)),
            Err(RequestError::Full) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the first requests are complete, and removes them.
    fn wait(&mut self, pending: &mut VecDeque<RequestId>) -> anyhow::Result<()> {
        let before = pending.len();
        let until = Instant::now() + PATIENCE;
        loop {
            while let Some(id) = pending.front() {
                match self.near.requests().state(*id) {
                    RequestState::Pending => break,
                    RequestState::Complete => pending.pop_front(),
                    state => bail!("a request failed: {state:?}"),
                };
            }
            if pending.len() < before {
                return Ok(());
            }
            ensure!(Instant::now() < until, "no request is complete in {PATIENCE:?}");
            self.near.wait(Some(PATIENCE))?;
            while self.near.oob().ready()?.is_some() {}
        }
    }
}
