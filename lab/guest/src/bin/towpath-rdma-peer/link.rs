//! A connection with another host, and what both protocols do with it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use towpath_client::{
    Access, ApertureKey, Endpoint, Export, Memory, OobAddress, OobKind, Options, PeerState,
    QueuePair, ReceivedOob, Request, RequestError, RequestFault, RequestId, RequestState, Rule,
    Session, Sharing,
};

const TCP: u8 = 6;

/// A connection.
pub(crate) struct Link {
    session: Session,
    endpoint: Endpoint,
    peer: OobAddress,
    limit: Duration,
    /// What has arrived and is not taken.
    arrived: VecDeque<ReceivedOob>,
}

fn attach(socket: &Path) -> anyhow::Result<Session> {
    let name = "rdma-peer".to_owned();
    let options =
        Options { name, oob_slots: 64, apertures: 16, endpoints: 16, ..Options::default() };
    Ok(Session::attach(socket, &options)?)
}

impl Link {
    /// Waits for a request at a port, and accepts it.
    pub(crate) fn serve(socket: &Path, port: u16, limit: Duration) -> anyhow::Result<Link> {
        let mut session = attach(socket)?;
        let listener = session.open(&Rule::new().tcp(port).out_of_band())?;
        let own = session.info().ipv4.context("the server gives no IPv4 address")?.0;
        println!("listens on {own} port {port}");
        let end = Instant::now() + limit;
        let asked = loop {
            if let Some(message) = session.oob().receive(listener)? {
                ensure!(message.kind() == OobKind::Request, "{:?} and no request", message.kind());
                break message.from();
            }
            turn(&mut session, end, "a connection's request")?;
        };
        let endpoint = session.open(&Rule::new().tcp(0).out_of_band())?;
        session.oob().accept_connection(endpoint, asked, b"")?;
        let mut link = Link { session, endpoint, peer: asked, limit, arrived: VecDeque::new() };
        link.established()?;
        Ok(link)
    }

    /// Connects with an address and a port.
    pub(crate) fn connect(
        socket: &Path,
        to: (IpAddr, u16),
        limit: Duration,
    ) -> anyhow::Result<Link> {
        let mut session = attach(socket)?;
        let endpoint = session.open(&Rule::new().tcp(0).out_of_band())?;
        let peer = OobAddress { ip: to.0, protocol: TCP, port: to.1 };
        session.oob().request_connection(endpoint, peer, b"")?;
        let mut link = Link { session, endpoint, peer, limit, arrived: VecDeque::new() };
        link.established()?;
        let answer = link.next("the answer")?.context("no answer")?;
        ensure!(answer.kind() == OobKind::Accept, "{:?} and no answer", answer.kind());
        link.peer = answer.from();
        Ok(link)
    }

    /// Waits until the connection is there.
    fn established(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + self.limit;
        while self.session.peer_state(self.endpoint) == PeerState::Requested {
            turn(&mut self.session, end, "the connection's start")?;
        }
        let state = self.session.peer_state(self.endpoint);
        ensure!(state == PeerState::Connected, "{}: {state}", self.peer.ip);
        println!("connected: {} port {}", self.peer.ip, self.peer.port);
        Ok(())
    }

    /// Creates a memory.
    pub(crate) fn memory(&mut self, bytes: usize) -> anyhow::Result<Memory> {
        Ok(self.session.memories().create(bytes, Sharing::Requests)?)
    }

    /// Lets the peer read and write the first bytes of a memory. Its addresses there begin with 0.
    pub(crate) fn export(&mut self, memory: &Memory, bytes: usize) -> anyhow::Result<Export> {
        Ok(self.session.memories().export(self.endpoint, memory, 0..bytes, Access::ReadWrite)?)
    }

    /// Takes the next message of the peer; `None` if the connection has ended before.
    pub(crate) fn next(&mut self, what: &str) -> anyhow::Result<Option<ReceivedOob>> {
        let end = Instant::now() + self.limit;
        loop {
            // All messages of the peer are in the queue once the state says that it has ended.
            let state = self.session.peer_state(self.endpoint);
            self.take_messages()?;
            if let Some(message) = self.arrived.pop_front() {
                return Ok(Some(message));
            }
            match state {
                PeerState::Connected => turn(&mut self.session, end, what)?,
                PeerState::Closed => return Ok(None),
                _ => bail!("{what}: {state}"),
            }
        }
    }

    /// Takes a SEND of so many bytes.
    pub(crate) fn next_send(&mut self, bytes: usize, what: &str) -> anyhow::Result<ReceivedOob> {
        let message =
            self.next(what)?.with_context(|| format!("{what}: the peer ended the connection"))?;
        let (kind, len) = (message.kind(), message.payload().len());
        ensure!(kind == OobKind::Message && len == bytes, "{what}: {kind:?} of {len} bytes");
        Ok(message)
    }

    fn take_messages(&mut self) -> anyhow::Result<()> {
        while let Some(message) = self.session.oob().receive(self.endpoint)? {
            self.arrived.push_back(message);
        }
        Ok(())
    }

    /// Queues a request, and tells the server.
    pub(crate) fn post(&mut self, request: &Request) -> anyhow::Result<RequestId> {
        let end = Instant::now() + self.limit;
        loop {
            match self.session.requests().queue(self.endpoint, request) {
                Ok(id) => {
                    self.session.sender().flush()?;
                    return Ok(id);
                }
                Err(RequestError::Full) => turn(&mut self.session, end, "room for a request")?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the outcome of a request.
    pub(crate) fn outcome(&mut self, id: RequestId, what: &str) -> anyhow::Result<RequestState> {
        let end = Instant::now() + self.limit;
        loop {
            let state = self.session.requests().state(id);
            if state != RequestState::Pending {
                return Ok(state);
            }
            self.take_messages()?;
            turn(&mut self.session, end, what)?;
        }
    }

    /// Waits until a request is complete.
    pub(crate) fn completes(&mut self, id: RequestId, what: &str) -> anyhow::Result<()> {
        match self.outcome(id, what)? {
            RequestState::Complete => Ok(()),
            state => bail!("{what}: {state:?}"),
        }
    }

    /// Has a request carried out.
    pub(crate) fn carry_out(&mut self, request: &Request, what: &str) -> anyhow::Result<()> {
        let id = self.post(request)?;
        self.completes(id, what)
    }

    /// Has a request carried out that the peer must refuse, and checks that it ends the connection, and fails the
    /// request behind it.
    pub(crate) fn is_refused(&mut self, request: &Request, what: &str) -> anyhow::Result<()> {
        let ids = [self.post(request)?, self.post(&Request::send(b"behind"))?];
        let states = [self.outcome(ids[0], what)?, self.outcome(ids[1], what)?];
        let wanted = [RequestFault::Peer, RequestFault::Flushed].map(RequestState::Failed);
        ensure!(states == wanted, "{what}: {states:?}, not {wanted:?}");
        println!("{what} refused: {}", RequestFault::Peer);
        ensure!(self.next(what)?.is_none(), "{what}: a message of the peer");
        Ok(())
    }

    /// Ends the connection.
    pub(crate) fn disconnect(mut self) -> anyhow::Result<()> {
        if self.session.peer_state(self.endpoint) == PeerState::Connected {
            self.session.oob().disconnect(self.endpoint)?;
            self.session.sender().flush()?;
            let end = Instant::now() + self.limit;
            while self.session.peer_state(self.endpoint) == PeerState::Connected {
                turn(&mut self.session, end, "the connection's end")?;
            }
        }
        println!("disconnected");
        Ok(())
    }
}

/// Waits for news.
fn turn(session: &mut Session, end: Instant, what: &str) -> anyhow::Result<()> {
    let left = end.saturating_duration_since(Instant::now());
    ensure!(!left.is_zero(), "{what}: nothing within the limit");
    session.wait(Some(left))?;
    // Packets for the endpoint's port, of which there are none.
    session.receiver().receive(QueuePair::FIRST, usize::MAX, |_| {})?;
    // Takes the news of states and requests.
    session.oob().ready()?;
    Ok(())
}

/// Returns the key and the address of a range that the peer has told in network order.
pub(crate) fn range(key: [u8; 4], address: [u8; 8]) -> (ApertureKey, u64) {
    (ApertureKey(u32::from_be_bytes(key)), u64::from_be_bytes(address))
}
