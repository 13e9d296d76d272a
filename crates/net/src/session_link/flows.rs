//! The flows of a link that shares its addresses with another link, because one replaces the other.
//!
//! Each connection has an endpoint with a rule of all addresses and ports. So its packets come to the link that has the
//! connection, whichever link has the endpoint for all other packets. Everything that is not of a flow leaves by an endpoint
//! for link control, which also receives the answers of neighbours.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use towpath_client::{Endpoint, OpenError, Refusal, Rule, SendError, Session};
use towpath_packet::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Headers, Network, PROTOCOL_TCP, PROTOCOL_UDP,
};
use towpath_packet::transport::{Transport, tcp_flags};
use towpath_stack::{Flow, Meta};

use super::ports::refused;
use crate::LinkError;

/// The most frames that wait for their flow. The link has no room for another frame until a flush.
const MOST_HELD: usize = 256;

/// The flows that the link closes at once. Each takes a request to the server.
const CLOSED_AT_ONCE: usize = 16;

/// The first frame of a connection, which waits until the connection has its flow.
struct Held {
    flow: Flow,
    frame: Vec<u8>,
    meta: Meta,
}

/// The connections that need an endpoint each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// All connections: the other link has the endpoint for all packets, or is to take it over.
    All,
    /// The connections that this host begins. This link has the endpoint for all packets, which receives the packets of
    /// accepted connections.
    Begun,
}

/// See the module.
pub(super) struct Flows {
    /// What the rules of all endpoints have in common.
    rule: Rule,
    /// The endpoint for link control.
    control: Endpoint,
    /// The endpoints of flows.
    open: HashMap<Flow, Endpoint>,
    held: Vec<Held>,
    /// The connections that cannot begin, because the other link has their flows.
    refused: Vec<Flow>,
    /// The connections that need flows.
    kept: Kept,
    /// `true` if the next flushes close all flows.
    ends: bool,
    /// `true` if no other link has the addresses, although the link still needs the endpoint for link control.
    alone: bool,
    /// The packets that closed flows had lost.
    lost_by_closed: u64,
}

impl Flows {
    /// Opens the endpoint for link control. `rule`: what the rules of all endpoints have in common.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(super) fn new(session: &mut Session, rule: Rule) -> Result<Flows, OpenError> {
        let control = session.open(&rule.link_control())?;
        Ok(Flows {
            rule,
            control,
            open: HashMap::new(),
            held: Vec::new(),
            refused: Vec::new(),
            kept: Kept::All,
            ends: false,
            alone: false,
            lost_by_closed: 0,
        })
    }

    /// Ends the flows with the next flushes.
    pub(super) fn give_up(&mut self) {
        self.ends = true;
    }

    /// Chooses the connections that need flows from now on; all at first.
    pub(super) fn set_kept(&mut self, kept: Kept) {
        self.kept = kept;
    }

    /// Opens the endpoint for link control again, if the server has closed it.
    pub(super) fn reopen(&mut self, session: &mut Session) -> io::Result<()> {
        (self.ends, self.alone) = (false, false);
        if session.is_revoked(self.control) {
            let closed = self.control;
            self.close(session, closed).map_err(|error| crate::error::link(&error))?;
            self.control = session.open(&self.rule.link_control()).map_err(refused)?;
        }
        Ok(())
    }

    /// Returns the endpoint of a frame of the stack. Holds the frame, and returns `None`, if it begins a connection.
    pub(super) fn choose(&mut self, frame: &[u8], meta: Meta) -> Option<Endpoint> {
        let Some((flow, first)) = flow_of(frame) else { return Some(self.control) };
        let needs_flow = match first {
            First::No => false,
            First::Syn => true,
            First::SynAck => self.kept == Kept::All,
        };
        match self.open.get(&flow) {
            Some(endpoint) => Some(*endpoint),
            None if !needs_flow || self.ends => Some(self.control),
            None => {
                self.held.push(Held { flow, frame: frame.to_vec(), meta });
                None
            }
        }
    }

    /// Returns `true` if no further frame can wait for its flow.
    pub(super) fn is_full(&self) -> bool {
        self.held.len() >= MOST_HELD
    }

    /// Opens the flows of the frames that wait, and sends these. Returns `true` once the link needs no flows any more.
    /// `needs_control`: `true` if the link needs the endpoint for link control also without another link.
    ///
    /// # Errors
    /// If the session is over.
    #[inline]
    pub(super) fn flush(
        &mut self,
        session: &mut Session,
        needs_control: bool,
    ) -> Result<bool, LinkError> {
        if !self.held.is_empty() {
            self.send_held(session)?;
        }
        let is_over = self.alone && !needs_control;
        if !self.ends && !is_over && !session.is_revoked(self.control) {
            return Ok(false);
        }
        self.end(session, needs_control)
    }

    #[cold]
    fn send_held(&mut self, session: &mut Session) -> Result<(), LinkError> {
        for Held { flow, frame, meta } in std::mem::take(&mut self.held) {
            let endpoint = match self.open_flow(session, &flow) {
                Ok(endpoint) => endpoint,
                Err(OpenError::Refused { refusal: Refusal::Limit, .. })
                    if self.kept == Kept::Begun =>
                {
                    self.control
                }
                Err(OpenError::Refused { refusal: Refusal::InUse, .. }) => {
                    self.refused.push(flow);
                    continue;
                }
                // The session has no endpoint left: the connection cannot begin now. TCP repeats the frame, or gives up.
                Err(error) => match lost_by(error) {
                    Some(lost) => return Err(lost),
                    None => continue,
                },
            };
            let sent = session.sender().send(endpoint, frame.len(), meta, |parts| {
                if let [whole] = parts {
                    whole.copy_from_slice(&frame);
                }
            });
            if sent == Err(SendError::Full) {
                // The next flush tries again.
                self.held.push(Held { flow, frame, meta });
            }
        }
        Ok(())
    }

    /// Closes the flows, a few at a time, because no other link has the addresses any more.
    #[cold]
    fn end(&mut self, session: &mut Session, needs_control: bool) -> Result<bool, LinkError> {
        if needs_control {
            self.reopen(session).map_err(LinkError::from)?;
            self.alone = true;
            return Ok(false);
        }
        self.ends = true;
        let some: Vec<Flow> = self.open.keys().take(CLOSED_AT_ONCE).copied().collect();
        for flow in &some {
            self.close_flow(session, flow)?;
        }
        if self.open.is_empty() {
            self.close(session, self.control)?;
        }
        Ok(self.open.is_empty())
    }

    fn open_flow(&mut self, session: &mut Session, flow: &Flow) -> Result<Endpoint, OpenError> {
        if let Some(endpoint) = self.open.get(flow) {
            return Ok(*endpoint);
        }
        let Flow { protocol, local, remote } = *flow;
        let ethertype = if local.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        let rule = self.rule.ethertype(ethertype).protocol(protocol);
        let rule = rule.ip(local.ip()).port(local.port());
        let rule = rule.remote_ip(remote.ip()).remote_port(remote.port());
        let endpoint = session.open(&rule.with_offload())?;
        self.open.insert(*flow, endpoint);
        Ok(endpoint)
    }

    /// Returns a connection that cannot begin, because the other link has its flow.
    pub(super) fn next_refused(&mut self) -> Option<Flow> {
        self.refused.pop()
    }

    /// Keeps a flow, unless the endpoint for all packets, or the host itself, receives its packets.
    ///
    /// # Errors
    /// If the session has no endpoint left, or is over.
    pub(super) fn keep(&mut self, session: &mut Session, flow: &Flow) -> io::Result<()> {
        if self.ends || self.kept == Kept::Begun || flow.local.ip() == flow.remote.ip() {
            return Ok(());
        }
        self.open_flow(session, &plain(flow)).map(drop).map_err(refused)
    }

    /// Closes flows that are not open any more, a few at a time. Returns `true` if there are more.
    ///
    /// # Errors
    /// If the session is over.
    pub(super) fn retain(
        &mut self,
        session: &mut Session,
        open: &HashSet<Flow>,
    ) -> Result<bool, LinkError> {
        let open: HashSet<Flow> = open.iter().map(plain).collect();
        let mut over = self.open.keys().filter(|one| !open.contains(one)).copied();
        let ended: Vec<Flow> = over.by_ref().take(CLOSED_AT_ONCE).collect();
        let has_more = over.next().is_some();
        ended.iter().try_for_each(|flow| self.close_flow(session, flow)).map(|()| has_more)
    }

    fn close_flow(&mut self, session: &mut Session, flow: &Flow) -> Result<(), LinkError> {
        self.open.remove(flow).map_or(Ok(()), |endpoint| self.close(session, endpoint))
    }

    fn close(&mut self, session: &mut Session, endpoint: Endpoint) -> Result<(), LinkError> {
        let closed = session.close(endpoint);
        // The engine counts for the endpoint until it is closed.
        self.lost_by_closed += session.counters(endpoint).rx_dropped();
        closed.or_else(|error| lost_by(error).map_or(Ok(()), Err))
    }

    /// Returns how many packets so far the server dropped.
    pub(super) fn lost(&self, session: &Session) -> u64 {
        let open = self.open.values().chain([&self.control]);
        self.lost_by_closed + open.map(|one| session.counters(*one).rx_dropped()).sum::<u64>()
    }
}

/// Returns a flow without the scope of IPv6 addresses, as frames tell it.
fn plain(flow: &Flow) -> Flow {
    let plain = |one: SocketAddr| SocketAddr::new(one.ip(), one.port());
    Flow { local: plain(flow.local), remote: plain(flow.remote), ..*flow }
}

/// Whether a frame is the first of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    No,
    /// It asks for a connection.
    Syn,
    /// It accepts one.
    SynAck,
}

/// Returns the flow of a frame that this host sends.
fn flow_of(frame: &[u8]) -> Option<(Flow, First)> {
    let headers = Headers::parse(frame, frame.len()).ok()?;
    let (local, remote) = match headers.network {
        Network::Ipv4(ip) => {
            (IpAddr::V4(Ipv4Addr::from_bits(ip.source)), Ipv4Addr::from_bits(ip.destination).into())
        }
        Network::Ipv6(ip) => (
            IpAddr::V6(Ipv6Addr::from_bits(ip.source)),
            IpAddr::V6(Ipv6Addr::from_bits(ip.destination)),
        ),
        _ => return None,
    };
    let (protocol, from, to, first) = match headers.transport() {
        Transport::Tcp { source, destination, flags, .. } => {
            let first = match (flags & tcp_flags::SYN != 0, flags & tcp_flags::ACK != 0) {
                (false, _) => First::No,
                (true, false) => First::Syn,
                (true, true) => First::SynAck,
            };
            (PROTOCOL_TCP, source, destination, first)
        }
        Transport::Udp { source, destination } => (PROTOCOL_UDP, source, destination, First::No),
        _ => return None,
    };
    let (local, remote) = (SocketAddr::new(local, from), SocketAddr::new(remote, to));
    Some((Flow { protocol, local, remote }, first))
}

/// Returns the link's error if the session is over; `None` if the server refused a request.
fn lost_by(error: OpenError) -> Option<LinkError> {
    match error {
        OpenError::Lost(lost) => Some(lost.into()),
        _ => None,
    }
}
