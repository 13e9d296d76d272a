//! What tools are shown: sessions, endpoints, counters, as JSON, a page for each request.
//!
//! Pages bound what a request costs the control thread, and what an application that never reads its
//! answers can make the server keep: some small messages in that application's own socket.

use serde::Serialize;
use std::collections::BTreeMap;

use towpath_memory::{Mapping, peer_words};
use towpath_protocol::layout::{ENDPOINT_COUNTERS, STATE_COUNTERS_WORD};
use towpath_protocol::message::{Cursor, MAX_PAGE_BYTES};

use crate::connection::{Connection, Opened, Progress};
use crate::demux::{Rule, Vlan};
use crate::orders::Tap;
use towpath_protocol::counters;

/// Everything.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The device and its engine; on the first page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The sessions that whoever asks may see.
    pub sessions: Vec<Session>,
}

/// The device and its engine.
#[derive(Debug, Serialize)]
pub(crate) struct Device {
    /// Its name.
    pub name: String,
    /// Its own MAC address.
    pub mac: String,
    /// Its MTU, in bytes.
    pub mtu: usize,
    /// How the engine waits.
    pub mode: String,
    /// Its settings, as people write them.
    pub settings: BTreeMap<&'static str, String>,
    /// Which server this is.
    pub epoch: u64,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Addresses that its subnet has for sessions.
    pub addresses: usize,
    /// Of these, those that sessions have.
    pub addresses_given: usize,
    /// Its counters.
    pub counters: BTreeMap<&'static str, u64>,
}

/// A session.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    /// Its number.
    pub session: u32,
    /// What the application calls itself.
    pub name: String,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Server pages are not protected from it: it is the server's user, or root.
    pub trusted: bool,
    /// Its MAC address.
    pub mac: String,
    /// Its IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// Its IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
    /// Its queue sets.
    pub queue_sets: u32,
    /// Its memory, in bytes.
    pub bytes: usize,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Debug, Serialize)]
pub(crate) struct Endpoint {
    /// Its number.
    pub endpoint: u32,
    /// Its queue set.
    pub queue_set: u32,
    /// What it receives, as text.
    pub receives: String,
    /// Its settings that are not as they were at first, as people write them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<&'static str, String>,
    /// Its counters.
    pub counters: BTreeMap<&'static str, u64>,
}

/// A MAC address as people write it.
#[must_use]
pub(crate) fn mac_text([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

fn rule_text(rule: &Rule) -> String {
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
            Vlan::Any => Some("any".to_owned()),
            Vlan::Untagged => None,
            Vlan::Number(number) => Some(number.to_string()),
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

fn receives(opened: &Opened) -> String {
    let mut text = match opened.tap {
        Some(Tap::Capture) => "a copy of every packet".to_owned(),
        Some(Tap::Promiscuous) => "every packet".to_owned(),
        None => rule_text(&opened.rule),
    };
    if opened.group {
        text.push_str(", broadcast and multicast");
    }
    text
}

/// Reads the device's counters out of the state page.
#[must_use]
pub(crate) fn device_counters(state: &std::sync::Arc<Mapping>) -> BTreeMap<&'static str, u64> {
    counters::read(&peer_words(state), STATE_COUNTERS_WORD, &counters::Device::ALL)
        .into_iter()
        .collect()
}

/// One page of a report: of these connections, by their tokens, from the cursor on. Returns where the
/// next page begins, and the page's JSON, which has at most [`MAX_PAGE_BYTES`].
///
/// # Errors
/// What the serializer answers.
pub(crate) fn page<'a>(
    device: Option<Device>,
    connections: impl Iterator<Item = (u64, &'a Connection)>,
    cursor: Cursor,
) -> Result<(Cursor, Vec<u8>), serde_json::Error> {
    let mut report = Report { device, sessions: Vec::new() };
    let mut bytes = serde_json::to_vec(&report)?.len();
    for (token, connection) in connections {
        // The connection that the cursor is in may have gone: the next one begins at its beginning.
        let first = if token == cursor.connection { cursor.endpoint } else { 0 };
        let here = Cursor { connection: token, endpoint: first, reserved: 0 };
        let Some((mut session, endpoints)) = session(connection, first) else { continue };
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

/// A session's part of the report, and its endpoints from the first one on; `None` for a connection that
/// has no session.
fn session(
    connection: &Connection,
    first: u32,
) -> Option<(Session, impl Iterator<Item = Endpoint> + '_)> {
    let (Progress::Lives, Some(lease), Some(shape), Some(mappings)) =
        (&connection.progress, &connection.lease, &connection.shape, &connection.mappings)
    else {
        return None;
    };
    let words = shape.server_peer(&peer_words(&mappings.server)).counters;
    let from = connection.endpoints.iter().enumerate().skip(first as usize);
    let endpoints = from.filter_map(move |(number, opened)| {
        let opened = opened.as_ref()?;
        let start = number * ENDPOINT_COUNTERS;
        Some(Endpoint {
            endpoint: number as u32,
            queue_set: opened.queue_set,
            receives: receives(opened),
            settings: opened.settings.changed().collect(),
            counters: counters::read(&words, start, &counters::Endpoint::ALL).into_iter().collect(),
        })
    });
    let session = Session {
        session: connection.number,
        name: connection.name.clone(),
        pid: connection.peer.pid,
        uid: connection.peer.uid,
        trusted: connection.trusted,
        mac: mac_text(lease.mac),
        ipv4: lease.ipv4.map(|(ip, prefix)| format!("{ip}/{prefix}")),
        ipv6: lease.ipv6.map(|(ip, prefix)| format!("{ip}/{prefix}")),
        queue_sets: shape.queue_sets,
        bytes: crate::prepare::session_bytes(shape),
        endpoints: Vec::new(),
    };
    Some((session, endpoints))
}
