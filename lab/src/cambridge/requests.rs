//! Requests and answers over many connections: a client and a server application, each a session,
//! in one thread, with an engine between them; and the same over kernel sockets.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{Timespec, epoll};
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session, WaitStrategy};
use towpath_testkit::Selected;

use crate::flow::{self, HEADER_BYTES};
use crate::kernel_wire::{KernelWire, receive_from, send_to};
use crate::techniques::Waits;

/// The payload of a request and its answer: the connection's number.
const PAYLOAD_BYTES: usize = 8;
const PACKET_BYTES: usize = HEADER_BYTES + PAYLOAD_BYTES;
/// The server application's first port.
pub(super) const FIRST_PORT: u16 = 10_000;
/// Connections that fit behind [`FIRST_PORT`], idle ones included.
pub(super) const MOST: usize = 16_000;
/// The time for which the paper's server application spins before it blocks (section 4.1).
pub(super) const SPINS: Duration = Duration::from_micros(15);
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Two sessions: a client with one endpoint, and a server application with one endpoint per
/// connection, each on its own queue pair.
pub(super) struct Sessions {
    client: Session,
    server: Session,
    from: Endpoint,
    endpoints: Vec<Endpoint>,
    request: [u8; HEADER_BYTES],
    /// Connections whose answer the server application owes.
    owed: Vec<u32>,
    /// Connections whose answer has come.
    answered: Vec<u32>,
}

impl Sessions {
    pub(super) fn new(socket: &Path, connections: usize) -> anyhow::Result<Sessions> {
        ensure!((1..=MOST).contains(&connections), "{connections} connections");
        let slots = (2 * connections).next_power_of_two().clamp(64, 4096) as u32;
        let client = Options {
            name: "client".into(),
            transmit_slots: slots,
            receive_slots: slots,
            transmit_buffer_bytes: 256,
            receive_buffer_bytes: 256,
            ..Options::default()
        };
        let server = Options {
            name: "server".into(),
            queue_pairs: connections as u32,
            endpoints: connections as u32,
            transmit_slots: 8,
            receive_slots: 8,
            ..client.clone()
        };
        let mut client = Session::attach(socket, &client)?;
        let mut server = Session::attach(socket, &server)?;
        let from = client.open(&Rule::new().udp(1000))?;
        let endpoints = (0..connections)
            .map(|table_index| {
                let port = FIRST_PORT + table_index as u16;
                Ok(server
                    .open(&Rule::new().udp(port).queue_pair(QueuePair::new(table_index as u32)))?)
            })
            .collect::<anyhow::Result<_>>()?;
        let flow = flow::between(&client, &server, (1000, 0))?;
        let request = flow::headers(&flow, PAYLOAD_BYTES)?;
        let (owed, answered) = (Vec::with_capacity(connections), Vec::with_capacity(connections));
        Ok(Sessions { client, server, from, endpoints, request, owed, answered })
    }

    /// Sends a request on a connection; returns whether there was room. The next flush publishes
    /// it.
    pub(super) fn ask(&mut self, connection: u32) -> anyhow::Result<bool> {
        let request = &self.request;
        let sent = self.client.sender().send(self.from, PACKET_BYTES, Meta::FULL, |parts| {
            if let [part] = parts
                && let Some((headers, payload)) = part.split_at_mut_checked(HEADER_BYTES)
            {
                headers.copy_from_slice(request);
                headers[36..38].copy_from_slice(&(FIRST_PORT + connection as u16).to_be_bytes());
                payload[..4].copy_from_slice(&connection.to_ne_bytes());
            }
        });
        match sent {
            Ok(()) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.client.sender().flush()?)
    }

    /// Runs the server application once: takes the requests that are there, on any connection, and
    /// answers them. Returns their number. With [`Waits::Blocks`] the application first waits by its
    /// wait strategy.
    pub(super) fn serve(&mut self, waits: Waits) -> anyhow::Result<usize> {
        let news = match waits {
            Waits::Polls => self.server.poll()?,
            Waits::Blocks | Waits::Spins => self.server.wait(Some(PATIENCE))?,
        };
        if !news {
            return Ok(0);
        }
        let mut served = 0;
        // At most 64 ready queue pairs in one call, so that the client has its turn too.
        for _ in 0..64 {
            let Some(queue_pair) = self.server.ready()? else { break };
            let owed = &mut self.owed;
            self.server
                .receiver()
                .receive(queue_pair, 8, |packet| owed.push(packet.endpoint().number()))?;
            while let Some(connection) = self.owed.pop() {
                self.answer(connection)?;
                served += 1;
            }
        }
        self.server.sender().flush()?;
        Ok(served)
    }

    /// Sets the wait strategy of the server application.
    pub(super) fn serve_by(&mut self, strategy: WaitStrategy) -> anyhow::Result<()> {
        Ok(self.server.set_wait_strategy(strategy)?)
    }

    /// Makes the client sleep until answers come.
    pub(super) fn sleep(&mut self) -> anyhow::Result<()> {
        self.client.wait(Some(PATIENCE))?;
        Ok(())
    }

    fn answer(&mut self, connection: u32) -> anyhow::Result<()> {
        let endpoint = self.endpoints.get(connection as usize).context("no such connection")?;
        let request = &self.request;
        self.server.sender().send(*endpoint, PACKET_BYTES, Meta::FULL, |parts| {
            if let [part] = parts
                && let Some((headers, payload)) = part.split_at_mut_checked(HEADER_BYTES)
            {
                headers.copy_from_slice(request);
                // Swaps sender and receiver: Ethernet, IPv4, and ports.
                headers[..6].copy_from_slice(&request[6..12]);
                headers[6..12].copy_from_slice(&request[..6]);
                headers[26..30].copy_from_slice(&request[30..34]);
                headers[30..34].copy_from_slice(&request[26..30]);
                headers[34..36].copy_from_slice(&(FIRST_PORT + connection as u16).to_be_bytes());
                headers[36..38].copy_from_slice(&request[34..36]);
                payload[..4].copy_from_slice(&connection.to_ne_bytes());
            }
        })?;
        Ok(())
    }

    /// Returns the connections whose answers came.
    pub(super) fn answered(&mut self) -> anyhow::Result<std::vec::Drain<'_, u32>> {
        let answered = &mut self.answered;
        self.client.receiver().receive(QueuePair::FIRST, 256, |packet| {
            let number =
                packet.contiguous().and_then(|bytes| bytes.get(HEADER_BYTES..)?.first_chunk());
            answered.extend(number.map(|bytes| u32::from_ne_bytes(*bytes)));
        })?;
        Ok(self.answered.drain(..))
    }

    /// Sends one request on one connection, and waits for its answer.
    pub(super) fn trip(&mut self, connection: u32, waits: Waits) -> anyhow::Result<Duration> {
        let start = Instant::now();
        ensure!(self.ask(connection)?, "no room for a request");
        self.flush()?;
        let mut looks = 0_u32;
        while self.serve(waits)? == 0 {
            looks += 1;
            // A blocking wait returns without news when its time limit is over.
            let patient =
                waits == Waits::Polls && !looks.is_multiple_of(4096) || start.elapsed() < PATIENCE;
            ensure!(patient, "the server application learned of no request; {}", self.state());
        }
        let served = Instant::now();
        loop {
            if self.answered()?.any(|number| number == connection) {
                return Ok(start.elapsed());
            }
            looks += 1;
            let patient = !looks.is_multiple_of(4096) || served.elapsed() < PATIENCE;
            ensure!(patient, "an answer was lost; {}", self.state());
        }
    }

    /// Returns the counters of both sides, for an error.
    fn state(&self) -> String {
        let counted = |who: &str, session: &Session, endpoint: Endpoint| {
            let counters = session.counters(endpoint).into_iter().filter(|(_, count)| *count > 0);
            let counters: Vec<_> =
                counters.map(|(name, count)| format!("{name} {count}")).collect();
            format!("{who}: {}", counters.join(", "))
        };
        let server = self.endpoints.first().map(|first| counted("server", &self.server, *first));
        format!("{}; {}", counted("client", &self.client, self.from), server.unwrap_or_default())
    }
}

/// The way in which a program learns which of its sockets are readable.
pub(super) enum Watch<'a> {
    Epoll(rustix::fd::OwnedFd, Vec<epoll::Event>),
    Select(Selected<'a>),
}

/// The server application on kernel sockets, one per connection.
pub(super) struct KernelServer<'a> {
    sockets: &'a [UdpSocket],
    watch: Watch<'a>,
    found: Vec<usize>,
}

impl<'a> KernelServer<'a> {
    pub(super) fn epoll(sockets: &'a [UdpSocket]) -> anyhow::Result<KernelServer<'a>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (table_index, socket) in sockets.iter().enumerate() {
            let data = epoll::EventData::new_u64(table_index as u64);
            epoll::add(&epoll, socket, data, epoll::EventFlags::IN)?;
        }
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        Ok(KernelServer { sockets, watch: Watch::Epoll(epoll, vec![none; 64]), found: Vec::new() })
    }

    pub(super) fn select(sockets: &'a [UdpSocket]) -> KernelServer<'a> {
        let selected = Selected::new(sockets.iter().map(AsFd::as_fd).collect());
        KernelServer { sockets, watch: Watch::Select(selected), found: Vec::new() }
    }

    /// Waits at most this long for requests, and answers them. Returns their number.
    pub(super) fn serve(&mut self, timeout: Duration) -> anyhow::Result<usize> {
        match &mut self.watch {
            Watch::Epoll(epoll, events) => {
                let timeout = Timespec {
                    tv_sec: timeout.as_secs() as i64,
                    tv_nsec: timeout.subsec_nanos().into(),
                };
                self.found.clear();
                match epoll::wait(&*epoll, &mut events[..], Some(&timeout)) {
                    Ok(count) => {
                        let table_set =
                            events[..count].iter().map(|event| event.data.u64() as usize);
                        self.found.extend(table_set);
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Watch::Select(selected) => selected.readable(timeout, &mut self.found)?,
        }
        let mut served = 0;
        let mut buffer = [0; 64];
        for table_index in &self.found {
            let Some(socket) = self.sockets.get(*table_index) else { continue };
            if let Some((len, from)) = receive_from(socket, &mut buffer)? {
                ensure!(send_to(socket, &buffer[..len], from)?, "no room for an answer");
                served += 1;
            }
        }
        Ok(served)
    }
}

/// The client on one kernel socket, which tells connections apart by the server's port.
pub(super) struct KernelClient {
    socket: UdpSocket,
    to: Vec<SocketAddr>,
}

impl KernelClient {
    pub(super) fn new(wire: &KernelWire, to: &[UdpSocket]) -> anyhow::Result<KernelClient> {
        let to = to.iter().map(UdpSocket::local_addr).collect::<Result<_, _>>()?;
        Ok(KernelClient { socket: wire.near_udp(0)?, to })
    }

    pub(super) fn ask(&self, connection: usize) -> anyhow::Result<()> {
        let to = self.to.get(connection).context("no such connection")?;
        ensure!(send_to(&self.socket, &[7; PAYLOAD_BYTES], *to)?, "no room for a request");
        Ok(())
    }

    /// Returns the connection of an answer, if one came.
    pub(super) fn answered(&self) -> anyhow::Result<Option<usize>> {
        let mut buffer = [0; 64];
        let got = receive_from(&self.socket, &mut buffer)?;
        Ok(got.map(|(_, from)| usize::from(from.port().wrapping_sub(self.to[0].port()))))
    }

    pub(super) fn trip(&self, connection: usize) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.ask(connection)?;
        let mut looks = 0_u32;
        while self.answered()?.is_none() {
            looks += 1;
            ensure!(
                !looks.is_multiple_of(4096) || start.elapsed() < PATIENCE,
                "an answer was lost between sockets"
            );
        }
        Ok(start.elapsed())
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}
