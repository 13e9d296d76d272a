//! One control connection: the requests that it may make, and their replies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use towpath_packet::headers::{
    ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP,
};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{self, Attach, Open, Refusal};
use towpath_protocol::peer::Peer;
use towpath_protocol::settings::{Setting, Values};

use crate::addresses::Lease;
use crate::engine::commands::Listening;
use crate::engine::demux::{Rule, Vlan};
use crate::engine::session::Mappings;
use crate::policy::{Account, Standing};
use crate::prepare::Prepared;

/// A refusal with the text for the peer.
pub(crate) type Refused = (Refusal, String);

/// The progress of a connection.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The peer has not asked for a session.
    New,
    /// The peer has the session's memory and has yet to map it.
    Given(Box<Prepared>),
    /// The worker seals and allocates the session's memory.
    Preparing(Box<Prepared>),
    /// The server maps the session's memory.
    Populating,
    /// The engine has its session.
    Lives,
    /// The session is over; the engine may still hold a part of it.
    Over,
}

/// A connection, and its session if there is one. The worker holds the socket.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The worker that reads and answers the connection.
    pub(crate) worker: u64,
    /// The peer's credentials.
    pub(crate) peer: Peer,
    /// The peer's rights.
    pub(crate) standing: Standing,
    /// `true` if the peer's user is the server's, or root: server pages are not protected from it.
    pub(crate) trusted: bool,
    /// The connection's progress.
    pub(crate) progress: Progress,
    /// `true` if the connection has ended and its worker has closed it.
    pub(crate) gone: bool,
    /// The user and the group that the connection and its session count against.
    pub(crate) account: Account,
    /// The size of the session, in bytes.
    pub(crate) bytes: usize,
    /// The session's number; 0 without one.
    pub(crate) number: u32,
    /// The name that the application gave itself.
    pub(crate) name: String,
    /// The session's addresses.
    pub(crate) lease: Option<Lease>,
    /// The sizes of the session's parts.
    pub(crate) shape: Option<SessionShape>,
    /// The session's memories, for reading counters and for unmapping.
    pub(crate) mappings: Option<Mappings>,
    /// Descriptors that keep the pages of the session's memory in place while the engine uses them.
    pub(crate) pins: Vec<OwnedFd>,
    /// The session's notification counter.
    pub(crate) counter: Option<u32>,
    /// The session's endpoints by number.
    pub(crate) endpoints: Vec<Option<Opened>>,
    /// Endpoint numbers that were returned, and the first number that was never given.
    pub(crate) free: (BinaryHeap<Reverse<u32>>, u32),
}

/// The control thread's view of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// The packets that the endpoint receives.
    pub(crate) rule: Rule,
    /// The way in which the endpoint listens without a rule.
    pub(crate) listening: Option<Listening>,
    /// `true` if the endpoint also receives broadcast and multicast.
    pub(crate) group: bool,
    /// `true` if the endpoint takes large packets and packets with partial checksums.
    pub(crate) offload: bool,
    /// The endpoint's queue pair.
    pub(crate) queue_pair: u32,
    /// The endpoint's settings.
    pub(crate) settings: Values,
    /// The priority that the endpoint was granted; the application may go below it, and back.
    pub(crate) granted_priority: u64,
}

impl Connection {
    /// Returns the number for a new endpoint: the lowest that is free.
    #[must_use]
    pub(crate) fn free_endpoint(&self) -> Option<u32> {
        let (released, next) = &self.free;
        let fresh = (*next < self.endpoints.len() as u32).then_some(*next);
        released.peek().map(|Reverse(number)| *number).or(fresh)
    }

    /// Enters an endpoint under the number [`Connection::free_endpoint`].
    pub(crate) fn put_in(&mut self, opened: Opened) {
        let Some(number) = self.free_endpoint() else { return };
        let (released, next) = &mut self.free;
        if released.pop().is_none() {
            *next += 1;
        }
        self.endpoints[number as usize] = Some(opened);
    }

    /// Removes an endpoint and frees its number.
    pub(crate) fn take_out(&mut self, number: u32) -> Option<Opened> {
        let opened = self.endpoints.get_mut(number as usize)?.take()?;
        self.free.0.push(Reverse(number));
        Some(opened)
    }
}

/// Reads the numbers of an attach message.
///
/// # Errors
/// Fails with the line that the server sends to the peer.
pub(crate) fn read_attach(
    attach: &Attach,
) -> Result<(SessionShape, Option<Ipv4Addr>, String), Refused> {
    let malformed = |text: String| (Refusal::Malformed, text);
    if attach.reserved != 0 {
        return Err(malformed("attach: a reserved field is not 0".into()));
    }
    let shape = SessionShape::new(
        attach.queue_pairs,
        attach.endpoints,
        attach.transmit_slots,
        attach.receive_slots,
        attach.transmit_buffer_bytes,
        attach.receive_buffer_bytes,
    )
    .map_err(|error| malformed(format!("attach: {error}")))?;
    let wanted = Ipv4Addr::from(attach.ipv4);
    let name = message::shown_name(&attach.name);
    Ok((shape, (!wanted.is_unspecified()).then_some(wanted), name))
}

/// Reads an open message, and checks it against the session's resources and rights.
///
/// # Errors
/// Fails with the line that the server sends to the peer.
pub(crate) fn read_open(
    open: &Open,
    connection: &Connection,
    free: bool,
) -> Result<Opened, Refused> {
    let malformed = |text: &str| Err((Refusal::Malformed, format!("open: {text}")));
    let denied = |text: String| Err((Refusal::Permission, format!("open: {text}")));
    let (Some(lease), Some(shape)) = (&connection.lease, &connection.shape) else {
        return Err((Refusal::State, "open: there is no session on this connection".into()));
    };
    let has = |field: u32| open.given & field != 0;
    if open.given & !message::RULE_ALL != 0 || open.flags & !message::OPEN_ALL != 0 {
        return malformed("fields or flags that this version does not have");
    }
    if open.queue_pair >= shape.queue_pairs {
        let text =
            format!("open: queue pair {}; the session has {}", open.queue_pair, shape.queue_pairs);
        return Err((Refusal::NotFound, text));
    }
    let administrator = connection.standing == Standing::Administrator;
    let listening = match (
        open.flags & message::OPEN_PROMISCUOUS != 0,
        open.flags & message::OPEN_CAPTURE != 0,
    ) {
        (false, false) => None,
        (true, false) => Some(Listening::Promiscuous),
        (false, true) => Some(Listening::Capture),
        (true, true) => return malformed("promiscuous and capture exclude each other"),
    };
    if listening.is_some() && open.given != 0 {
        return malformed("a promiscuous or capturing endpoint has no flow rule");
    }
    if listening.is_some() && !administrator {
        return denied("only root and the server's user may capture or be promiscuous".into());
    }
    if has(message::RULE_VLAN) && !(1..=4094).contains(&open.vlan) {
        return malformed("VLANs are 1 to 4094");
    }
    if has(message::RULE_ETHERTYPE)
        && (open.ethertype < 0x600
            || matches!(open.ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN))
    {
        return malformed("ethertypes are 0x0600 upward, without those of VLAN tags");
    }
    if (has(message::RULE_PORT) || has(message::RULE_REMOTE_PORT))
        && has(message::RULE_PROTOCOL)
        && !matches!(open.protocol, PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_SCTP)
    {
        return malformed("a port with a protocol that has none; TCP, UDP and SCTP have");
    }
    if has(message::RULE_MAC) && has(message::RULE_ANY_MAC)
        || has(message::RULE_VLAN) && has(message::RULE_ANY_VLAN)
    {
        return malformed("a MAC address or VLAN, and any");
    }
    let address = |field, octets: [u8; 16]| match (has(field), open.ip_version) {
        (false, _) => Some(None),
        (true, 4) => octets.first_chunk::<4>().map(|ip| Some(IpAddr::from(*ip))),
        (true, 6) => Some(Some(IpAddr::V6(Ipv6Addr::from(octets)))),
        (true, _) => None,
    };
    let (Some(ip), Some(remote_ip)) =
        (address(message::RULE_IP, open.ip), address(message::RULE_REMOTE_IP, open.remote_ip))
    else {
        return malformed("IP addresses are of version 4 or 6, and both of one");
    };
    if let Some(ip) = ip
        && !lease.addresses().has(ip)
        && !(administrator && free)
    {
        return denied(format!("address {ip} was not given to this session"));
    }
    if has(message::RULE_MAC) && open.mac != lease.mac && !(administrator && open.mac[0] & 1 == 0) {
        return denied("a MAC address that was not given to this session".into());
    }
    // A rule without a MAC address would match a neighbour's packets.
    if has(message::RULE_ANY_MAC) && !administrator {
        return denied("only root and the server's user may receive for any MAC address".into());
    }
    let mac = if has(message::RULE_MAC) { open.mac } else { lease.mac };
    Ok(Opened {
        rule: Rule {
            mac: (!has(message::RULE_ANY_MAC)).then_some(mac),
            vlan: match (has(message::RULE_ANY_VLAN), has(message::RULE_VLAN)) {
                (true, _) => Vlan::Any,
                (false, true) => Vlan::Number(open.vlan),
                (false, false) => Vlan::Untagged,
            },
            ethertype: has(message::RULE_ETHERTYPE).then_some(open.ethertype),
            ip,
            protocol: has(message::RULE_PROTOCOL).then_some(open.protocol),
            port: has(message::RULE_PORT).then_some(open.port),
            remote_ip,
            remote_port: has(message::RULE_REMOTE_PORT).then_some(open.remote_port),
        },
        listening,
        group: open.flags & message::OPEN_GROUP != 0,
        offload: open.flags & message::OPEN_OFFLOAD != 0,
        queue_pair: open.queue_pair,
        settings: Values::default(),
        granted_priority: Setting::Priority.spec().default,
    })
}
