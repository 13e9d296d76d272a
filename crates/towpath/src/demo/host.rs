//! An application's host: a session, the stack over it, and its counters.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use towpath_client::Session;
use towpath_net::{Armed, Link, LinkError, LinkInfo, Meta, Network, PortProtocol, SessionLink};

/// Counters of the stack that stay at zero between correct hosts. They exclude packets that a host
/// ignores because they are for other hosts, such as multicast.
const DAMAGE: [&str; 10] = [
    "rx_malformed",
    "rx_ip_checksum",
    "rx_checksum",
    "neighbour_dropped",
    "no_route",
    "transmit_limit",
    "unsent_at_end",
    "udp_no_socket",
    "udp_queue_full",
    "tcp_malformed",
];

/// An application's counters, sent on request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Statement {
    /// Packets that the application received.
    pub(super) received: u64,
    /// Packets that the application sent.
    pub(super) sent: u64,
    /// Times that the application slept, and so was woken.
    pub(super) wake_ups: u64,
    /// Packets that its stack dropped, by reason.
    pub(super) damage: Vec<(String, u64)>,
    /// `true` if server pages are not protected from the application.
    pub(super) trusted: bool,
}

/// Counters of the link, shared with the network that owns the link.
#[derive(Debug, Default)]
struct Tally {
    received: AtomicU64,
    sent: AtomicU64,
    wake_ups: AtomicU64,
}

/// A session's link, counted.
struct Counted {
    link: SessionLink,
    tally: Arc<Tally>,
}

/// A host and its counters.
pub(super) struct Host {
    pub(super) network: Network,
    tally: Arc<Tally>,
    trusted: bool,
}

impl Host {
    /// Starts a host over a session, with the addresses that the server gave it.
    pub(super) fn over(session: Session) -> anyhow::Result<Host> {
        let trusted = session.info().trusted;
        let link = SessionLink::new(session)?;
        let config = link.config();
        let tally = Arc::<Tally>::default();
        let link = Box::new(Counted { link, tally: tally.clone() });
        let network = Network::builder().on(link, config)?;
        Ok(Host { network, tally, trusted })
    }

    /// Returns its counters.
    pub(super) fn statement(&self) -> Statement {
        let counters = self.network.counters();
        let damage = counters.iter().filter(|(name, count)| *count > 0 && DAMAGE.contains(name));
        Statement {
            received: self.tally.received.load(Ordering::Relaxed),
            sent: self.tally.sent.load(Ordering::Relaxed),
            wake_ups: self.tally.wake_ups.load(Ordering::Relaxed),
            damage: damage.map(|(name, count)| (name.to_owned(), count)).collect(),
            trusted: self.trusted,
        }
    }
}

impl Link for Counted {
    fn opens_ports(&self) -> bool {
        self.link.opens_ports()
    }

    fn open_port(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> io::Result<(SocketAddr, bool)> {
        self.link.open_port(protocol, local)
    }

    fn next_revoked_port(&mut self) -> Option<(PortProtocol, bool, u16)> {
        self.link.next_revoked_port()
    }

    fn close_port(&mut self, protocol: PortProtocol, local: SocketAddr) {
        self.link.close_port(protocol, local);
    }

    fn info(&self) -> LinkInfo {
        self.link.info()
    }

    fn sleep_fd(&self) -> std::io::Result<OwnedFd> {
        self.link.sleep_fd()
    }

    fn prepare(&mut self) -> Result<(), LinkError> {
        self.link.prepare()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        let count = self.link.receive(budget, take)?;
        self.tally.received.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        self.link.has_news()
    }

    fn unsent(&mut self) -> Result<usize, LinkError> {
        self.link.unsent()
    }

    fn room(&mut self, len: usize) -> bool {
        self.link.room(len)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let taken = self.link.transmit(len, meta, fill);
        self.tally.sent.fetch_add(u64::from(taken), Ordering::Relaxed);
        taken
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        let armed = self.link.arm(blocked)?;
        if matches!(armed, Armed::Sleep { .. }) {
            self.tally.wake_ups.fetch_add(1, Ordering::Relaxed);
        }
        Ok(armed)
    }

    fn disarm(&mut self) {
        self.link.disarm();
    }
}
