//! One control connection: what it may ask, and what it is answered.

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
use crate::connections::Account;
use crate::demux::{Rule, Vlan};
use crate::orders::Tap;
use crate::policy::Standing;
use crate::prepare::Prepared;
use crate::session::Mappings;

/// A refusal: what the peer is told.
pub(crate) type Refused = (Refusal, String);

/// How far a connection got.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It has not asked for a session.
    New,
    /// It was given memory and has yet to map it.
    Given(Box<Prepared>),
    /// Its memory is being sealed and allocated by its worker.
    Preparing(Box<Prepared>),
    /// Its memory is being mapped.
    Populating,
    /// The engine has its session.
    Lives,
    /// It is over; the engine may still have something of it.
    Over,
}

/// A connection, and the session on it if there is one. Its socket is its worker's.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The worker that hears it and answers it.
    pub(crate) worker: u64,
    /// Who it is.
    pub(crate) peer: Peer,
    /// What it may.
    pub(crate) standing: Standing,
    /// Its user is the server's, or root: server pages are not protected from it.
    pub(crate) trusted: bool,
    /// How far it got.
    pub(crate) progress: Progress,
    /// It has ended, and its worker has closed it.
    pub(crate) gone: bool,
    /// What its user and its group have, all together.
    pub(crate) account: Account,
    /// What its session takes, in bytes.
    pub(crate) bytes: usize,
    /// The session's number; 0 without one.
    pub(crate) number: u32,
    /// What it calls itself.
    pub(crate) name: String,
    /// Its addresses.
    pub(crate) lease: Option<Lease>,
    /// What its session consists of.
    pub(crate) shape: Option<SessionShape>,
    /// Its session's memories, for reading counters, and for unmapping.
    pub(crate) mappings: Option<Mappings>,
    /// What keeps the pages of its session's memory in place while the engine uses them.
    pub(crate) pins: Vec<OwnedFd>,
    /// Its session's notification counter.
    pub(crate) counter: Option<u32>,
    /// Its endpoints by number.
    pub(crate) endpoints: Vec<Option<Opened>>,
    /// Numbers of endpoints that were given back, and the first that was never given.
    pub(crate) free: (BinaryHeap<Reverse<u32>>, u32),
}

/// An endpoint as the control thread has it.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// What it receives.
    pub(crate) rule: Rule,
    /// It listens without a rule.
    pub(crate) tap: Option<Tap>,
    /// It also receives broadcast and multicast.
    pub(crate) group: bool,
    /// It takes large and unfinished packets.
    pub(crate) offload: bool,
    /// Its queue set.
    pub(crate) queue_set: u32,
    /// Its settings.
    pub(crate) settings: Values,
    /// The priority that it was given: its application may go below, and back.
    pub(crate) given_priority: u64,
}

impl Connection {
    /// The number for a new endpoint: the lowest that is free.
    #[must_use]
    pub(crate) fn free_endpoint(&self) -> Option<u32> {
        let (given_back, next) = &self.free;
        let fresh = (*next < self.endpoints.len() as u32).then_some(*next);
        given_back.peek().map(|Reverse(number)| *number).or(fresh)
    }

    /// [`Connection::free_endpoint`] is somebody's.
    pub(crate) fn put_in(&mut self, opened: Opened) {
        let Some(number) = self.free_endpoint() else { return };
        let (given_back, next) = &mut self.free;
        if given_back.pop().is_none() {
            *next += 1;
        }
        self.endpoints[number as usize] = Some(opened);
    }

    /// An endpoint goes, and its number is free.
    pub(crate) fn take_out(&mut self, number: u32) -> Option<Opened> {
        let opened = self.endpoints.get_mut(number as usize)?.take()?;
        self.free.0.push(Reverse(number));
        Some(opened)
    }
}

/// Reads the numbers of an attach message.
///
/// # Errors
/// The line that the peer is told.
pub(crate) fn read_attach(
    attach: &Attach,
) -> Result<(SessionShape, Option<Ipv4Addr>, String), Refused> {
    let malformed = |text: String| (Refusal::Malformed, text);
    if attach.reserved != 0 {
        return Err(malformed("attach: a reserved field is not 0".into()));
    }
    let shape = SessionShape::new(
        attach.queue_sets,
        attach.endpoints,
        attach.transmit_slots,
        attach.receive_slots,
        attach.transmit_frame_bytes,
        attach.receive_frame_bytes,
    )
    .map_err(|error| malformed(format!("attach: {error}")))?;
    let wanted = Ipv4Addr::from(attach.ipv4);
    let name = message::shown_name(&attach.name);
    Ok((shape, (!wanted.is_unspecified()).then_some(wanted), name))
}

/// Reads an open message against what the session has and may.
///
/// # Errors
/// The line that the peer is told.
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
    if open.queue_set >= shape.queue_sets {
        let text =
            format!("open: queue set {}; the session has {}", open.queue_set, shape.queue_sets);
        return Err((Refusal::NotFound, text));
    }
    let administrator = connection.standing == Standing::Administrator;
    let tap = match (
        open.flags & message::OPEN_PROMISCUOUS != 0,
        open.flags & message::OPEN_CAPTURE != 0,
    ) {
        (false, false) => None,
        (true, false) => Some(Tap::Promiscuous),
        (false, true) => Some(Tap::Capture),
        (true, true) => return malformed("promiscuous and capture exclude each other"),
    };
    if tap.is_some() && open.given != 0 {
        return malformed("a promiscuous or capturing endpoint has no flow rule");
    }
    if tap.is_some() && !administrator {
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
    // A neighbour's packets would match a rule without a MAC address.
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
        tap,
        group: open.flags & message::OPEN_GROUP != 0,
        offload: open.flags & message::OPEN_OFFLOAD != 0,
        queue_set: open.queue_set,
        settings: Values::default(),
        given_priority: Setting::Priority.spec().default,
    })
}
