//! Reports for tools: sessions, endpoints and counters, as JSON, one page per request.
//!
//! Pages bound the cost of a request to the control thread. They also bound the data that the
//! server keeps for an application that never reads its replies: a few small messages in that
//! application's own socket.

mod connections;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use towpath_engine::commands::Listening;
use towpath_engine::oob::connection::EndpointName;
use towpath_packet::{FlowRule, FlowVlan};

use towpath_memory::{Mapping, peer_words};
use towpath_protocol::layout::{
    ENDPOINT_COUNTERS, ENGINE_NS_WORD, STATE_COUNTERS_WORD, STATE_WORDS,
};
use towpath_protocol::message::{Cursor, MAX_PAGE_BYTES};

use crate::connection::Connection;
use crate::control_endpoint::ControlEndpoint;
use crate::control_session::{ControlSession, MappedSession, SessionPhase};
use crate::policy::Policy;
use crate::prepare::MEMORIES;
use connections::EndpointConnection;
pub(crate) use connections::OtherHosts;
use towpath_protocol::counters;
use towpath_queue::PeerWords;
use towpath_queue::oob::COUNTERS_WORD;

/// The full report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The device and its engine; on the first page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The sessions that the requesting user may see.
    pub sessions: Vec<Session>,
}

/// The device and its engine.
#[derive(Debug, Serialize)]
pub(crate) struct Device {
    /// The device's name.
    pub name: String,
    /// The device's own MAC address.
    pub mac: String,
    /// The device's MTU, in bytes.
    pub mtu: usize,
    /// The engine's wait strategy.
    pub wait: String,
    /// The device's settings, in their text form.
    pub settings: BTreeMap<&'static str, String>,
    /// The identity of this server's run.
    pub epoch: u64,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// The version of the server's program.
    pub version: &'static str,
    /// Addresses that the subnet has for sessions.
    pub addresses: usize,
    /// The number of these addresses that sessions have.
    pub addresses_in_use: usize,
    /// Bytes of memory that all sessions may have together; `None` without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<usize>,
    /// Bytes of memory that all sessions have at present.
    pub bytes_in_use: usize,
    /// Control connections that the server refused or closed unread.
    pub connections: ConnectionCounts,
    /// The device's counters, those of all lanes together.
    pub counters: BTreeMap<&'static str, u64>,
    /// The number of hardware queues without a socket of the server. Packets that arrive there are dropped.
    #[serde(skip_serializing_if = "is_zero")]
    pub unserved_queues: u32,
    /// The hardware's own counters, for a device whose driver reads them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hardware: BTreeMap<&'static str, u64>,
    /// The counters of each lane, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<BTreeMap<&'static str, u64>>,
}

/// Control connections that the server refused or closed unread since it started.
#[derive(Debug, Serialize)]
pub(crate) struct ConnectionCounts {
    /// Connections that the server refused.
    pub refused: u64,
    /// Connections that the server closed without reading them: too many waited.
    pub closed_unread: u64,
    /// Descriptors that a thread closes because no worker process is available.
    pub closed_by_threads: u64,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A session.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    /// The session's number.
    pub session: u32,
    /// The name that the application gave itself.
    pub name: String,
    /// The application's process.
    pub pid: i32,
    /// The application's user.
    pub uid: u32,
    /// `true` if server pages are not protected from the session: its user is the server's, or
    /// root.
    pub trusted: bool,
    /// `true` for a session of a killed server whose application has not come back yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unclaimed: bool,
    /// The session's MAC address.
    pub mac: String,
    /// The session's IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// The session's IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
    /// The number of queue pairs.
    pub queue_pairs: u32,
    /// The session's memory, in bytes.
    pub bytes: usize,
    /// The most memory that the session may have, in bytes.
    pub bytes_limit: usize,
    /// The session's buffers for packets to send, and for received packets in all lanes.
    pub transmit_buffers: u32,
    pub receive_buffers: usize,
    /// Descriptors that keep the pages of the session's memory in place.
    pub pins: usize,
    /// Descriptors that the server, and its keeper once more, hold for the session's sake: its
    /// memories, its record, its process, the pins, and ports.
    pub descriptors: usize,
    /// The engines' time for the session, in nanoseconds, by measuring some poll iterations. Not
    /// for an application of a version before 9 of the protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_ns: Option<u64>,
    /// The session's endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Debug, Serialize)]
pub(crate) struct Endpoint {
    /// The endpoint's number.
    pub endpoint: u32,
    /// The endpoint's queue pair.
    pub queue_pair: u32,
    /// The packets that the endpoint receives, as text.
    pub receives: String,
    /// The endpoint's settings that differ from the defaults, in their text form.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<&'static str, String>,
    /// The endpoint's connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<EndpointConnection>,
    /// The endpoint's counters.
    pub counters: BTreeMap<&'static str, u64>,
}

/// What sessions' parts of a report need to know of their server.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The number of parts of each session.
    pub lanes: usize,
    pub policy: &'a Policy,
    pub hosts: OtherHosts,
}

/// Returns a MAC address in its text form.
#[must_use]
pub(crate) fn mac_text([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

fn rule_text(rule: &FlowRule) -> String {
    let mut text = match rule.mac {
        Some(mac) => format!("mac {}", mac_text(mac)),
        None => "any mac".to_owned(),
    };
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {name} {value}"));
        }
    };
    add(
        "vlan",
        match rule.vlan {
            FlowVlan::Any => Some("any".to_owned()),
            FlowVlan::Untagged => None,
            FlowVlan::Number(number) => Some(number.to_string()),
        },
    );
    add("ethertype", rule.ethertype.map(|one| format!("{one:#06x}")));
    add("ip", rule.ip.map(|one| one.to_string()));
    add("protocol", rule.protocol.map(|one| one.to_string()));
    add("port", rule.port.map(|one| one.to_string()));
    add("remote-ip", rule.remote_ip.map(|one| one.to_string()));
    add("remote-port", rule.remote_port.map(|one| one.to_string()));
    text
}

fn receives(opened: &ControlEndpoint) -> String {
    if opened.revoked {
        return "nothing: closed, because the policy changed".to_owned();
    }
    let mut text = match opened.listening {
        Some(Listening::Capture) => "a copy of every packet".to_owned(),
        Some(Listening::Promiscuous) => "every packet".to_owned(),
        Some(Listening::LinkControl) => "copies of ARP and ICMP".to_owned(),
        None if opened.is_for_neighbours => "the server's answers about link addresses".to_owned(),
        None => rule_text(&opened.rule),
    };
    if opened.within_vlan {
        text.push_str(", without the tag");
    }
    if opened.out_of_band {
        text.push_str(", out-of-band messages");
    }
    if opened.group {
        text.push_str(", broadcast and multicast");
    }
    text
}

/// Counters with their names.
type Read = Vec<(&'static str, u64)>;

/// Returns the sum of the lanes' counters.
fn sum(lanes: impl Iterator<Item = Read>) -> Read {
    let add = |mut all: Read, lane: Read| {
        counters::add_lane(&mut all, &lane);
        all
    };
    lanes.reduce(add).unwrap_or_default()
}

/// Reads each lane's counters out of the state page.
fn read_lanes(state: &Arc<Mapping>, lanes: usize) -> impl Iterator<Item = Read> {
    let words = peer_words(state);
    (0..lanes).map(move |lane| {
        let start = lane * STATE_WORDS + STATE_COUNTERS_WORD;
        counters::read(&words, start, &counters::Device::ALL)
    })
}

/// Reads the device's counters, those of all lanes together, out of the state page.
#[must_use]
pub(crate) fn device_counters(state: &Arc<Mapping>, lanes: usize) -> BTreeMap<&'static str, u64> {
    sum(read_lanes(state, lanes)).into_iter().collect()
}

/// Reads the counters of each lane out of the state page; none if there is only one.
#[must_use]
pub(crate) fn lane_counters(
    state: &Arc<Mapping>,
    lanes: usize,
) -> Vec<BTreeMap<&'static str, u64>> {
    let all = read_lanes(state, lanes).map(|lane| lane.into_iter().collect());
    all.filter(|_| lanes > 1).collect()
}

/// Returns one page of a report on these connections, given by their tokens, from the cursor on.
/// Returns the start of the next page, and the page's JSON, which has at most [`MAX_PAGE_BYTES`].
///
/// # Errors
/// Fails with the serializer's error.
pub(crate) fn page<'a>(
    device: Option<Device>,
    context: &'a Context<'a>,
    connections: impl Iterator<Item = (u64, &'a Connection)>,
    cursor: Cursor,
) -> Result<(Cursor, Vec<u8>), serde_json::Error> {
    let mut report = Report { device, sessions: Vec::new() };
    let mut bytes = serde_json::to_vec(&report)?.len();
    for (token, connection) in connections {
        // The cursor's connection may have gone; the page then starts at the beginning of the next
        // one.
        let first = if token == cursor.connection { cursor.endpoint } else { 0 };
        let here = Cursor { connection: token, endpoint: first, reserved: 0 };
        let Some((mut session, endpoints)) = session(connection, context, first) else {
            continue;
        };
        bytes += serde_json::to_vec(&session)?.len() + 1;
        if bytes > MAX_PAGE_BYTES {
            return Ok((here, serde_json::to_vec(&report)?));
        }
        for endpoint in endpoints {
            bytes += serde_json::to_vec(&endpoint)?.len() + 1;
            if bytes > MAX_PAGE_BYTES {
                report.sessions.push(session);
                let next = Cursor { endpoint: endpoint.endpoint, ..here };
                return Ok((next, serde_json::to_vec(&report)?));
            }
            session.endpoints.push(endpoint);
        }
        report.sessions.push(session);
    }
    Ok((Cursor::END, serde_json::to_vec(&report)?))
}

/// Returns the number of descriptors that the server and its keeper hold for a session.
fn descriptors(MappedSession { session, pins, .. }: &MappedSession) -> usize {
    let holds_port = |one: &ControlEndpoint| session.lease.shared && one.rule.port.is_some();
    let ports = session.endpoints.all().filter(|(_, one)| holds_port(one)).count();
    // Its record and its process.
    let recorded = if session.record.is_some() { 2 } else { 0 };
    MEMORIES.len() + recorded + pins.len() + ports
}

/// Returns a session's part of the report, with its endpoints from the first one on. `None`: the
/// connection has no session.
fn session<'a>(
    connection: &'a Connection,
    context: &'a Context<'a>,
    first: u32,
) -> Option<(Session, impl Iterator<Item = Endpoint> + use<'a>)> {
    let lanes = context.lanes;
    let mapped = connection.mapped()?;
    if !matches!(mapped.phase, SessionPhase::Live | SessionPhase::Unclaimed) {
        return None;
    }
    let MappedSession { session: ControlSession { name, lease, shape, .. }, mappings, .. } = mapped;
    let (words, lane_words) = (peer_words(&mappings.server), shape.server_words());
    let pages = |lane| shape.server_peer(&words.part(lane * lane_words, lane_words));
    let pages: Vec<_> = (0..lanes).map(pages).collect();
    let times = pages.iter().map(|pages| &pages.accounts).filter(|words| !words.is_empty());
    let times: Vec<u64> = times.map(|words| words.fetch(ENGINE_NS_WORD)).collect();
    let mut pages = pages;
    let queues = pages.first_mut().map(|first| std::mem::take(&mut first.oob)).unwrap_or_default();
    let parts: Vec<PeerWords> = pages.into_iter().map(|pages| pages.counters).collect();
    let connected = peer_words(&mappings.ledger);
    let connected = shape.connection_words().map(|at| connected.part(at.start, at.len()));
    let from = mapped.session.endpoints.all().skip_while(move |(number, _)| *number < first);
    let endpoints = from.map(move |(endpoint, opened)| {
        let number = endpoint as usize;
        let start = number * ENDPOINT_COUNTERS;
        let read = |words: &PeerWords| counters::read(words, start, &counters::Endpoint::ALL);
        let messages = queues.get(number).filter(|_| opened.out_of_band);
        let own = EndpointName { session: connection.number, endpoint };
        let connected = connected.as_ref().filter(|_| opened.out_of_band);
        let connection = connected
            .and_then(|words| EndpointConnection::read(own, words.observe(number), &context.hosts));
        let messages =
            messages.map(|words| counters::read(words, COUNTERS_WORD, &counters::OutOfBand::ALL));
        Endpoint {
            endpoint,
            queue_pair: opened.queue_pair,
            receives: receives(opened),
            settings: opened.settings.changed().collect(),
            connection,
            counters: sum(parts.iter().map(read))
                .into_iter()
                .chain(messages.into_iter().flatten())
                .collect(),
        }
    });
    let session = Session {
        session: connection.number,
        name: name.clone(),
        pid: connection.application.peer.pid,
        uid: connection.application.peer.uid,
        trusted: connection.application.trusted,
        unclaimed: mapped.phase == SessionPhase::Unclaimed,
        mac: mac_text(lease.mac),
        ipv4: lease.ipv4.map(|(ip, prefix)| format!("{ip}/{prefix}")),
        ipv6: lease.ipv6.map(|(ip, prefix)| format!("{ip}/{prefix}")),
        queue_pairs: shape.queue_pairs,
        bytes: connection.bytes,
        bytes_limit: context.policy.limits(&connection.application.terms).session_bytes,
        transmit_buffers: shape.transmit_pool.buffers(),
        receive_buffers: shape.receive_pool.buffers() as usize * lanes,
        pins: mapped.pins.len(),
        descriptors: descriptors(mapped),
        engine_ns: (!times.is_empty()).then(|| times.iter().sum()),
        endpoints: Vec::new(),
    };
    Some((session, endpoints))
}
