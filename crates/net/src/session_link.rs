//! A session with a driver server, as a link.

mod flows;
mod ports;
mod whole;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use towpath_client::{
    AttachError, Info, Lost, OpenError, Options, QueuePairError, Refusal, Rule, Session, Statistics,
};
use towpath_stack::{Config, Flow, Meta, Offload};

use crate::{Armed, Link, LinkError, LinkInfo, PortProtocol, Replacement};
use ports::Ports;
use whole::{QUEUE_PAIR, Whole};

/// The largest frame of a link, in bytes. Linux leaves longer ones to no device to segment
/// (`GSO_LEGACY_MAX_SIZE`, linux/netdevice.h).
const LARGEST_BYTES: usize = 65_535;

/// The range of the bound of windows on short paths, in bytes, whatever a session's receive buffers
/// hold.
const SHORT_PATH_BYTES: (usize, usize) = (256 << 10, 64 << 20);

/// The endpoints that a session asks for. With an endpoint for each port, this limits the open
/// ports. Each counts about 2.7 KB towards `session-bytes`.
const ENDPOINTS: u32 = 1024;

/// The most neighbour entries of a host that shares addresses: it has one for each destination.
const SHARED_NEIGHBOURS: usize = 16_384;

/// A session with a driver server that carries a network's frames.
pub struct SessionLink {
    session: Session,
    endpoints: Endpoints,
    /// The memory in which the link assembles a packet of several buffers, since the stack reads a
    /// packet in one piece.
    whole: Vec<u8>,
}

/// The endpoints of a session's host.
enum Endpoints {
    /// An endpoint for all packets, and those that a replacement needs.
    Whole(Box<Whole>),
    /// One for each port.
    ByPort(Box<Ports>),
}

/// The reason why no host could start over a driver server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The server is unreachable, or refused.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The server refused the endpoint that the host needs.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The host itself could not start.
    #[error("starting the host: {0}")]
    Start(#[from] std::io::Error),
}

impl From<HostError> for io::Error {
    fn from(error: HostError) -> io::Error {
        match error {
            HostError::Start(error) => error,
            HostError::Attach(AttachError::NoServer { ref cause, .. }) => {
                io::Error::new(cause.kind(), error)
            }
            HostError::Attach(AttachError::Refused { refusal: Refusal::Permission, .. }) => {
                io::Error::new(io::ErrorKind::PermissionDenied, error)
            }
            HostError::Attach(_) | HostError::Open(_) => io::Error::other(error),
        }
    }
}

impl SessionLink {
    /// Returns the options of a session for a host. Each transmit buffer has room for a large
    /// packet in one piece. The receive buffers are many, of 2 KiB each, so that small packets take
    /// little memory. While no thread of the network runs, their 8 MiB hold a TCP window of 1.5 MiB, and
    /// bursts of other connections, such as thousands of resets.
    ///
    /// ```
    /// # use towpath_net::SessionLink;
    /// let mut options = SessionLink::options("web");
    /// // Twice the receive buffers: 16 MiB.
    /// options.receive_slots *= 2;
    /// ```
    #[must_use]
    pub fn options(name: &str) -> Options {
        Options {
            name: name.to_owned(),
            endpoints: ENDPOINTS,
            transmit_slots: 128,
            receive_slots: 4096,
            transmit_buffer_bytes: (LARGEST_BYTES as u32).next_multiple_of(128),
            receive_buffer_bytes: 2048,
            ..Options::default()
        }
    }

    /// Creates a link over a session. Opens an endpoint for all packets to the session's address,
    /// broadcast and multicast, which accepts large packets and partial checksums. A session that
    /// shares the host's addresses, or whose ports are limited, gets an endpoint for each port that
    /// a socket uses.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_client::Session;
    /// use towpath_net::{Network, SessionLink};
    ///
    /// let session = Session::attach("/run/towpath/eth0.sock", &SessionLink::options("web"))?;
    /// let link = SessionLink::new(session)?;
    /// let config = link.config();
    /// let network = Network::builder().on(Box::new(link), config)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn new(session: Session) -> Result<SessionLink, OpenError> {
        SessionLink::over(session, None)
    }

    /// Creates a link as [`SessionLink::new`], within a VLAN, 1 to 4094
    /// ([`Rule::within_vlan`]). The host has the session's addresses and gateway. The tag does not
    /// count towards the MTU.
    ///
    /// # Errors
    /// [`OpenError`]: [`OpenError::Refused`] if the number is out of range, or the session shares the
    /// host's addresses.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_client::Session;
    /// use towpath_net::{Network, SessionLink};
    ///
    /// let session = Session::attach("/run/towpath/eth0.sock", &SessionLink::options("inside"))?;
    /// let link = SessionLink::within_vlan(session, 7)?;
    /// let config = link.config();
    /// let network = Network::builder().on(Box::new(link), config)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn within_vlan(session: Session, vlan: u16) -> Result<SessionLink, OpenError> {
        SessionLink::over(session, Some(vlan))
    }

    fn over(mut session: Session, vlan: Option<u16>) -> Result<SessionLink, OpenError> {
        if vlan.is_some() && session.info().shared {
            let text = "a session that shares the host's addresses has no VLANs; attach without sharing, or \
                        let the host have an interface of the VLAN"
                .to_owned();
            return Err(OpenError::Refused { refusal: Refusal::Permission, text });
        }
        let rule = vlan.map_or(Rule::new(), |vlan| Rule::new().within_vlan(vlan));
        let endpoints = if session.info().by_port {
            Endpoints::ByPort(Box::new(Ports::new(&mut session, rule)?))
        } else {
            Endpoints::Whole(Box::new(Whole::new(&mut session, rule)?))
        };
        Ok(SessionLink { session, endpoints, whole: Vec::with_capacity(LARGEST_BYTES) })
    }

    /// Returns the session's properties, as the server granted them.
    ///
    /// ```no_run
    /// # fn show(link: &towpath_net::SessionLink) {
    /// let info = link.session_info();
    /// println!("{:?}, MTU {} bytes", info.ipv4, info.mtu);
    /// # }
    /// ```
    #[must_use]
    pub fn session_info(&self) -> &Info {
        self.session.info()
    }

    /// Returns the session's counts.
    ///
    /// ```no_run
    /// # fn show(link: &towpath_net::SessionLink) {
    /// println!("{:?}", link.statistics());
    /// # }
    /// ```
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.session.statistics()
    }

    /// Returns a host's configuration with the addresses granted to the session.
    ///
    /// ```no_run
    /// # fn start(link: towpath_net::SessionLink) -> std::io::Result<towpath_net::Network> {
    /// use towpath_net::Network;
    ///
    /// let mut config = link.config();
    /// // IPv4 only.
    /// config.ipv6.clear();
    /// config.ipv6_link_local = false;
    /// Network::builder().on(Box::new(link), config)
    /// # }
    /// ```
    #[must_use]
    pub fn config(&self) -> Config {
        let info = self.session.info();
        let mut config = Config::new(info.mac);
        config.mtu = info.mtu;
        config.tcp.short_path_bytes =
            (self.session.receive_bytes() * 3 / 16).clamp(SHORT_PATH_BYTES.0, SHORT_PATH_BYTES.1);
        config.ipv4 = info.ipv4;
        config.ipv4_gateway = info.ipv4_gateway;
        config.ipv6 = info.ipv6.into_iter().collect();
        config.ipv6_gateway = info.ipv6_gateway;
        config.shares_addresses = info.shared;
        if info.shared {
            config.limits.neighbours = SHARED_NEIGHBOURS;
        }
        let has_ipv6 = match &self.endpoints {
            Endpoints::Whole(_) => true,
            Endpoints::ByPort(ports) => ports.has_ipv6(),
        };
        config.ipv6_link_local = has_ipv6 && !info.shared;
        config
    }
}

impl SessionLink {
    /// Returns an error if the session is over, or belongs to the parent of this process.
    fn check_session(&self) -> io::Result<()> {
        match self.session.lost() {
            None => Ok(()),
            Some(lost) => Err(crate::error::link(&lost.into())),
        }
    }

    /// Returns an error if the server has closed the endpoint.
    fn check(&self) -> Result<(), LinkError> {
        match &self.endpoints {
            Endpoints::Whole(whole) => whole.check(&self.session),
            Endpoints::ByPort(_) => Ok(()),
        }
    }
}

impl From<Lost> for LinkError {
    fn from(lost: Lost) -> LinkError {
        match lost {
            Lost::Forked => LinkError::Forked,
            lost => LinkError::Lost(lost),
        }
    }
}

fn gone(lost: Lost) -> LinkError {
    lost.into()
}

fn no_queue(error: QueuePairError) -> LinkError {
    match error {
        QueuePairError::Lost(lost) => lost.into(),
        error => LinkError::Gone(Arc::from(error.to_string())),
    }
}

impl Link for SessionLink {
    fn info(&self) -> LinkInfo {
        let info = self.session.info();
        LinkInfo {
            mac: info.mac,
            mtu: info.mtu,
            offload: Offload {
                checksum: info.can_checksum,
                tcp_segmentation: info.can_checksum && info.can_segment,
                max_frame_bytes: LARGEST_BYTES,
            },
        }
    }

    fn sleep_fd(&self) -> std::io::Result<OwnedFd> {
        self.check_session()?;
        self.session.as_fd().try_clone_to_owned()
    }

    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError> {
        self.check()?;
        let whole = &mut self.whole;
        let outcome = self.session.receiver().receive(QUEUE_PAIR, budget, |packet| {
            let meta = packet.meta();
            match packet.contiguous() {
                Some(bytes) => take(bytes, meta),
                None => {
                    whole.clear();
                    packet.append_to(whole);
                    take(whole, meta);
                }
            }
        });
        outcome.map_err(no_queue)
    }

    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        self.session.poll().map(Some).map_err(gone)
    }

    fn room(&mut self, len: usize) -> bool {
        let has_room = match &self.endpoints {
            Endpoints::Whole(whole) => whole.has_room(),
            Endpoints::ByPort(_) => true,
        };
        has_room && self.session.sender().has_room_in(QUEUE_PAIR, len) == Ok(true)
    }

    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        match &mut self.endpoints {
            Endpoints::Whole(whole) => whole.transmit(&mut self.session, len, meta, fill),
            // A buffer has room for the longest packet.
            Endpoints::ByPort(ports) => {
                let mut sender = self.session.sender();
                let sent = sender.send_chosen(QUEUE_PAIR, len, meta, |parts| match parts {
                    [whole] => {
                        fill(whole);
                        ports.endpoint_of(whole)
                    }
                    _ => None,
                });
                sent.is_ok()
            }
        }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if let Endpoints::Whole(whole) = &mut self.endpoints {
            whole.flush(&mut self.session)?;
        }
        self.session.sender().flush().map_err(gone)
    }

    fn unsent(&mut self) -> Result<usize, LinkError> {
        self.session.sender().unsent(QUEUE_PAIR).map(|count| count as usize).map_err(no_queue)
    }

    fn lost(&self) -> u64 {
        match &self.endpoints {
            Endpoints::Whole(whole) => whole.lost(&self.session),
            Endpoints::ByPort(ports) => ports.lost(&self.session),
        }
    }

    fn sends_in_order(&self) -> bool {
        self.session.info().lanes == 1
    }

    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError> {
        if blocked {
            self.session.sender().want_room(QUEUE_PAIR).map_err(no_queue)?;
        }
        let news = self.session.arm().map_err(gone)?;
        self.check()?;
        Ok(if news { Armed::Work } else { Armed::Sleep { writable: false } })
    }

    fn disarm(&mut self) {
        self.session.disarm();
        self.session.take_notifications();
    }

    fn opens_ports(&self) -> bool {
        matches!(self.endpoints, Endpoints::ByPort(_))
    }

    fn open_port(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> io::Result<(SocketAddr, bool)> {
        match &mut self.endpoints {
            Endpoints::Whole(_) => self.check_session().map(|()| (local, false)),
            Endpoints::ByPort(ports) => ports.open(&mut self.session, protocol, local),
        }
    }

    fn open_groups(&mut self, is_ipv4: bool) -> io::Result<()> {
        match &mut self.endpoints {
            Endpoints::Whole(_) => self.check_session(),
            Endpoints::ByPort(ports) => ports.open_groups(&mut self.session, is_ipv4),
        }
    }

    fn next_revoked_port(&mut self) -> Option<(PortProtocol, bool, u16)> {
        match &mut self.endpoints {
            Endpoints::Whole(_) => None,
            Endpoints::ByPort(ports) => ports.next_revoked(&self.session),
        }
    }

    fn replacement(&mut self) -> Option<&mut dyn Replacement> {
        match &self.endpoints {
            Endpoints::Whole(_) => Some(self),
            Endpoints::ByPort(_) => None,
        }
    }

    fn close_port(&mut self, protocol: PortProtocol, local: SocketAddr) {
        if let Endpoints::ByPort(ports) = &mut self.endpoints {
            ports.close(&mut self.session, protocol, local);
        }
    }
}

impl SessionLink {
    /// Returns the session, and the endpoints of a link that can be replaced.
    ///
    /// # Errors
    /// If the session has an endpoint for each port.
    fn whole(&mut self) -> io::Result<(&mut Session, &mut Whole)> {
        match &mut self.endpoints {
            Endpoints::Whole(whole) => Ok((&mut self.session, whole)),
            Endpoints::ByPort(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Replacement for SessionLink {
    fn is_shared(&self) -> bool {
        matches!(&self.endpoints, Endpoints::Whole(whole) if whole.is_shared())
    }

    fn begin(&mut self) -> io::Result<()> {
        self.whole().and_then(|(session, whole)| whole.begin(session))
    }

    fn keep(&mut self, flow: &Flow) -> io::Result<()> {
        self.whole().and_then(|(session, whole)| whole.keep(session, flow))
    }

    fn retain(&mut self, open: &HashSet<Flow>) -> Result<bool, LinkError> {
        self.whole().map_or(Ok(false), |(session, whole)| whole.retain(session, open))
    }

    fn next_refused(&mut self) -> Option<Flow> {
        self.whole().ok()?.1.next_refused()
    }

    fn hand_over(&mut self) -> io::Result<()> {
        self.whole().and_then(|(session, whole)| whole.hand_over(session))
    }

    fn cancel(&mut self) {
        if let Endpoints::Whole(whole) = &mut self.endpoints {
            whole.cancel();
        }
    }

    fn is_taken_over(&self) -> bool {
        match &self.endpoints {
            Endpoints::Whole(whole) => whole.is_taken_over(&self.session),
            Endpoints::ByPort(_) => false,
        }
    }

    fn take_over(&mut self) -> io::Result<()> {
        self.whole().and_then(|(session, whole)| whole.take_over(session))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::wire_tests::serve;
    use crate::{Network, UdpSocket};

    /// A link has news from the time at which the server publishes a frame until the network has
    /// received it.
    #[test]
    fn a_link_has_news_while_frames_wait() {
        let (server, _far) = serve();
        let attach = || {
            let socket = server.connect().unwrap();
            Session::attach_over(socket, &SessionLink::options("test")).unwrap()
        };
        let (mut link, mut other) = (SessionLink::new(attach()).unwrap(), attach());
        assert_eq!(link.has_news().unwrap(), Some(false));
        let from = other.open(&Rule::new()).unwrap();
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&link.info().mac.octets());
        frame[6..12].copy_from_slice(&other.info().mac.octets());
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        other.sender().send_bytes(from, &frame).unwrap();
        other.sender().flush().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while link.has_news().unwrap() != Some(true) {
            assert!(Instant::now() < until, "the frame did not come");
            std::thread::yield_now();
        }
        assert_eq!(link.has_news().unwrap(), Some(true), "it waits");
        assert_eq!(link.receive(8, &mut |_, _| {}).unwrap(), 1);
        assert_eq!(link.has_news().unwrap(), Some(false));
    }

    #[test]
    fn a_host_has_the_settings_that_its_program_gives() {
        let (server, _far) = serve();
        let socket = server.connect().unwrap();
        let session = Session::attach_over(socket, &SessionLink::options("test")).unwrap();
        let builder = Network::builder().stack(|config| config.limits.sockets = 1);
        let network = builder.over(session).unwrap();
        let bind = || UdpSocket::bind(&network, "0.0.0.0:0");
        let _only = bind().unwrap();
        assert_eq!(bind().unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    }

    #[test]
    fn an_error_of_attaching_keeps_its_kind() {
        let error = Network::attach("/missing/towpath.sock").err().unwrap();
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }
}
