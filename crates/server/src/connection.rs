//! One control connection: the requests that it may make, and their replies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_device::{TagProtocol, VlanTag};
use towpath_packet::headers::PROTOCOL_UDP;
use towpath_packet::roce::UDP_PORT;
use towpath_protocol::VERSION;
use towpath_protocol::layout::{OOB_SINCE, SessionShape};
use towpath_protocol::message::{self, Attach, Refusal};
use towpath_protocol::oob::OobAddress;
use towpath_protocol::peer::Peer;
use towpath_protocol::settings::Values;

use crate::account::Account;
use crate::addresses::Lease;
use crate::apertures::tables::ApertureTables;
use crate::engine::commands::Listening;
use crate::engine::demux::{Rule, Vlan};
use crate::engine::forbidden::Forbidden;
use crate::engine::remote::own_address::OwnAddress;
use crate::engine::session::{Mappings, Session};
use crate::policy::{Admission, Entrance, Roles, Standing, Terms};
use crate::prepare::Prepared;
use crate::resume::record::Record;
use crate::rights::Addresses;

/// The most promiscuous and capturing endpoints of a session, except for administrators.
const MAX_LISTENING: usize = 2;

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
    /// The engine has a session of an earlier server, whose application has yet to come.
    Unclaimed,
    /// The session is over; the engine may still hold a part of it.
    Over,
}

/// The command to end a session that the control thread has given to the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    None,
    /// The engines first send the session's last packets.
    AfterPackets,
    /// The engines send nothing more.
    AtOnce,
}

/// A connection, and its session if there is one. The worker holds the socket.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The worker that reads and answers the connection.
    pub(crate) worker: u64,
    /// The peer's credentials.
    pub(crate) peer: Peer,
    /// The socket by which the peer came.
    pub(crate) entrance: Entrance,
    /// The peer's rights.
    pub(crate) standing: Standing,
    /// The terms of the peer's grant.
    pub(crate) terms: Arc<Terms>,
    /// `true` if the peer's user is the server's, or root: server pages are not protected from it.
    pub(crate) trusted: bool,
    /// The connection's progress.
    pub(crate) progress: Progress,
    /// The version of the protocol that the peer speaks.
    pub(crate) version: u16,
    /// `true` if the connection has ended and its worker has closed it.
    pub(crate) gone: bool,
    /// The user and the group that the connection and its session count against.
    pub(crate) account: Account,
    /// The size of the session, in bytes.
    pub(crate) bytes: usize,
    /// The part of `bytes` that an older application lets its worker allocate, and that no process
    /// can free then.
    pub(crate) unfreeable_bytes: usize,
    /// `true` if `unfreeable_bytes` stay the user's after the session's end: the worker has allocated
    /// this memory, or may have.
    pub(crate) is_unfreeable: bool,
    /// The session's number; 0 without one.
    pub(crate) number: u32,
    /// The name that the application gave itself.
    pub(crate) name: String,
    /// The session's addresses.
    pub(crate) lease: Option<Lease>,
    /// The hardware queue that the session has to itself, or is about to have.
    pub(crate) own_queue: Option<u32>,
    /// The sizes of the session's parts.
    pub(crate) shape: Option<SessionShape>,
    /// The session's memories, for reading counters and for unmapping.
    pub(crate) mappings: Option<Mappings>,
    /// The parts of the session that engines have returned, until all have.
    pub(crate) returned: Vec<Session>,
    /// The command to end the session that the engines have.
    pub(crate) ending: Ending,
    /// Descriptors that keep the pages of the session's memory in place while the engine uses them.
    pub(crate) pins: Vec<OwnedFd>,
    /// The session's record for a successor; `None` if none can resume the session.
    pub(crate) record: Option<Record>,
    /// The session's notification counter.
    pub(crate) counter: Option<u32>,
    /// The session's endpoints by number.
    pub(crate) endpoints: Vec<Option<Opened>>,
    /// Endpoint numbers that were returned, and the first number that was never given.
    pub(crate) free: (BinaryHeap<Reverse<u32>>, u32),
    /// The session's memories, apertures and tripwires; `None` if it can have none.
    pub(crate) apertures: Option<Box<ApertureTables>>,
    /// The last request for an endpoint that an earlier server carried out, and the endpoint.
    pub(crate) last_resumed: Option<(u32, u32)>,
}

/// The control thread's view of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    /// The packets that the endpoint receives.
    pub(crate) rule: Rule,
    /// The way in which the endpoint listens without a rule.
    pub(crate) listening: Option<Listening>,
    /// `true` if the endpoint has no rule, because it asks for link addresses.
    pub(crate) is_for_neighbours: bool,
    /// `true` if the endpoint also receives broadcast and multicast.
    pub(crate) group: bool,
    /// `true` if the endpoint takes large packets and packets with partial checksums.
    pub(crate) offload: bool,
    /// `true` if the endpoint receives and sends packets without the tag of its rule's VLAN.
    pub(crate) within_vlan: bool,
    /// The endpoint's queue pair.
    pub(crate) queue_pair: u32,
    /// `true` if the endpoint may send, within its rule.
    pub(crate) sends: bool,
    /// The parts in the network that the endpoint may play, and whether its ethertype needs none.
    pub(crate) roles: (Roles, bool),
    /// `true` if the server closed the endpoint because the policy changed. It receives and sends
    /// nothing, and its number is the application's until it closes the endpoint too.
    pub(crate) revoked: bool,
    /// `true` if the endpoint takes and sends out-of-band messages.
    pub(crate) out_of_band: bool,
    /// The endpoint's addresses for out-of-band messages.
    pub(crate) oob: Vec<OobAddress>,
    /// The IP addresses at which endpoints of other hosts may connect with this one.
    pub(crate) reachable: Vec<(IpAddr, OwnAddress)>,
    /// The number of the request that opened the endpoint.
    pub(crate) sequence: u32,
    /// The endpoint's settings.
    pub(crate) settings: Values,
    /// The priority that the endpoint was granted; the application may go below it, and back.
    pub(crate) granted_priority: u64,
}

impl Opened {
    /// Returns `true` if the endpoint receives by its flow rule.
    pub(crate) fn has_rule(&self) -> bool {
        self.listening.is_none() && !self.is_for_neighbours
    }

    /// Returns the endpoint's addresses for out-of-band messages, in a session with these
    /// addresses: none if the endpoint takes none, or has an address that is not the session's.
    pub(crate) fn oob_addresses(&self, session: &Addresses) -> Vec<OobAddress> {
        let all = oob_addresses(&self.rule, session);
        all.filter(|_| self.out_of_band).collect()
    }

    /// `true` if its rule is for the port of connections with other hosts.
    pub(crate) fn is_rdma(&self) -> bool {
        self.rule.port == Some(UDP_PORT) && self.rule.protocol.is_none_or(|one| one == PROTOCOL_UDP)
    }

    /// Lets endpoints of other hosts connect with this one, if it takes out-of-band messages, its user has
    /// the right to it, and its address is not the host's, whose UDP port 4791 is the kernel's.
    pub(crate) fn allow_other_hosts(&mut self, lease: &Lease, terms: &Terms) {
        if !self.out_of_band || !terms.rdma || lease.shared {
            return;
        }
        let ipv4 =
            lease.ipv4.map(|(ip, bits)| (IpAddr::V4(ip), bits, lease.ipv4_gateway.map(IpAddr::V4)));
        let ipv6 =
            lease.ipv6.map(|(ip, bits)| (IpAddr::V6(ip), bits, lease.ipv6_gateway.map(IpAddr::V6)));
        let all = [ipv4, ipv6].into_iter().flatten();
        let all = all.filter(|(ip, ..)| self.rule.ip.is_none_or(|own| own == *ip));
        let mac = lease.mac;
        self.reachable =
            all.map(|(ip, bits, gateway)| (ip, OwnAddress { mac, bits, gateway })).collect();
    }

    /// Returns the tag of the VLAN that the endpoint lies within, as it is in packets that the
    /// endpoint sends.
    pub(crate) fn tag(&self) -> Option<VlanTag> {
        match self.rule.vlan {
            Vlan::Number(control) if self.within_vlan => {
                Some(VlanTag { protocol: TagProtocol::Customer, control })
            }
            _ => None,
        }
    }
}

/// Returns the addresses of a flow rule for out-of-band messages, in a session with these
/// addresses.
pub(crate) fn oob_addresses(
    rule: &Rule,
    session: &Addresses,
) -> impl Iterator<Item = OobAddress> + use<> {
    let (local, ports) = (rule.ip, rule.protocol.zip(rule.port));
    let ips = session.all().filter(move |ip| local.is_none_or(|own| own == *ip));
    ips.filter_map(move |ip| ports.map(|(protocol, port)| OobAddress { ip, protocol, port }))
}

impl Connection {
    /// Makes a connection without a session.
    pub(crate) fn new(
        worker: u64,
        (peer, entrance): (Peer, Entrance),
        admission: Admission,
        trusted: bool,
    ) -> Connection {
        let account = admission.account(peer.uid);
        let Admission { standing, terms, .. } = admission;
        Connection {
            worker,
            peer,
            entrance,
            standing,
            terms,
            trusted,
            progress: Progress::New,
            version: VERSION,
            gone: false,
            account,
            bytes: 0,
            unfreeable_bytes: 0,
            is_unfreeable: false,
            number: 0,
            name: String::new(),
            lease: None,
            own_queue: None,
            shape: None,
            mappings: None,
            record: None,
            counter: None,
            returned: Vec::new(),
            ending: Ending::None,
            pins: Vec::new(),
            endpoints: Vec::new(),
            free: (BinaryHeap::new(), 0),
            apertures: None,
            last_resumed: None,
        }
    }

    /// Returns `true` if the connection has an administrator's rights.
    pub(crate) fn is_administrators(&self) -> bool {
        self.standing == Standing::Administrator
    }

    /// Returns the number for a new endpoint: the lowest that is free.
    #[must_use]
    pub(crate) fn free_endpoint(&self) -> Option<u32> {
        let (released, next) = &self.free;
        let fresh = (*next < self.endpoints.len() as u32).then_some(*next);
        released.peek().map(|Reverse(number)| *number).or(fresh)
    }

    /// Takes the number that [`Connection::free_endpoint`] returns.
    pub(crate) fn take_free_endpoint(&mut self) {
        let (released, next) = &mut self.free;
        if released.pop().is_none() {
            *next += 1;
        }
    }

    /// Returns the endpoint, and its port, if an earlier server carried this request out. That can
    /// only be the last one: an application waits for each answer.
    pub(crate) fn resumed_request(&self, sequence: u32) -> Option<(u32, u32)> {
        let (_, number) = self.last_resumed.filter(|(last, _)| *last == sequence)?;
        let opened = self.endpoints.get(number as usize)?.as_ref()?;
        Some((number, opened.rule.port.map_or(0, u32::from)))
    }

    /// Checks that the terms allow an endpoint of this session.
    ///
    /// # Errors
    /// Fails with the reason and the remedy.
    pub(crate) fn allow(
        &self,
        rule: &Rule,
        listening: Option<Listening>,
        group: bool,
    ) -> Result<(), String> {
        let is_shared = self.lease.as_ref().is_some_and(|lease| lease.shared);
        if is_shared && listening.is_none() && self.standing != Standing::Administrator {
            self.terms.check_shared(rule)?;
        }
        self.terms.check(rule, listening, group)
    }

    /// Returns the parts in the network that endpoints may play, and whether the grant names their ethertypes.
    pub(crate) fn roles(&self) -> (Roles, bool) {
        match self.standing {
            Standing::Administrator => (Roles::ALL, true),
            _ => (self.terms.roles, self.terms.ethertypes.is_some()),
        }
    }

    /// Checks that the session may have one more endpoint that listens without a rule. Each of them
    /// costs the engine a copy of every packet, of other users' too.
    pub(crate) fn check_listening(&self, listening: Option<Listening>) -> Result<(), String> {
        let theirs =
            self.endpoints.iter().flatten().filter(|one| one.listening.is_some() && !one.revoked);
        if listening.is_some()
            && self.standing != Standing::Administrator
            && theirs.count() >= MAX_LISTENING
        {
            return Err(format!(
                "the session has {MAX_LISTENING} promiscuous or capturing endpoints, which is the \
                 limit; close one"
            ));
        }
        Ok(())
    }

    /// Applies the terms to the parts of the session that engines are about to get.
    pub(crate) fn apply_terms(&self, sessions: &mut [Session]) {
        let most = self.terms.forbidden_packets_per_second;
        for session in sessions {
            session.forbidden = most.map(Forbidden::new);
            (session.oob.account, session.oob.reach) = (self.account, self.terms.out_of_band);
        }
    }

    /// Finds the free endpoint numbers and the last request of a resumed session. The caller has
    /// entered the endpoints under their old numbers.
    pub(crate) fn find_free_endpoints(&mut self) {
        let next = self.endpoints.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let gaps = (0u32..).zip(&self.endpoints[..next]);
        let gaps = gaps.filter(|(_, one)| one.is_none()).map(|(number, _)| Reverse(number));
        self.free = (gaps.collect(), next as u32);
        let opened = (0u32..).zip(&self.endpoints).filter_map(|(number, one)| {
            one.as_ref().filter(|one| one.sequence != 0).map(|one| (one.sequence, number))
        });
        self.last_resumed = opened.max();
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
    version: u16,
    lanes: usize,
) -> Result<(SessionShape, Option<Ipv4Addr>, String), Refused> {
    let malformed = |text: String| (Refusal::Malformed, text);
    let oob = attach.flags >> message::ATTACH_OOB_SHIFT;
    let known = if version >= OOB_SINCE { (1 << message::ATTACH_OOB_SHIFT) - 1 } else { u32::MAX };
    if attach.flags & known & !message::ATTACH_ALL != 0 {
        return Err(malformed(format!("attach: unknown flags {:#x}", attach.flags)));
    }
    let shape = SessionShape::new(
        attach.queue_pairs,
        attach.endpoints,
        attach.transmit_slots,
        attach.receive_slots,
        attach.transmit_buffer_bytes,
        attach.receive_buffer_bytes,
    )
    .and_then(|shape| shape.with_oob(oob))
    .and_then(|shape| shape.with_apertures(attach.apertures, attach.tripwires))
    .map_err(|error| malformed(format!("attach: {error}")))?
    .of_version(version);
    shape
        .check_lanes(lanes)
        .map_err(|error| (Refusal::Limit, format!("attach: with {lanes} lanes: {error}")))?;
    let wanted = Ipv4Addr::from(attach.ipv4);
    let name = message::shown_name(&attach.name);
    Ok((shape, (!wanted.is_unspecified()).then_some(wanted), name))
}
