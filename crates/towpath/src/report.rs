//! The parts of a server's report that the subcommands show.
//!
//! A missing part is read as empty: a server of another version may report more or less.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use towpath_client::AttachError;
use towpath_keeper::{DeviceState, DeviceStatus, device_status};

use crate::failure::Failure;

/// The whole report.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) device: Device,
    /// What the keeper tells; `None` for a server without one.
    pub(crate) keeper: Option<DeviceStatus>,
    pub(crate) sessions: Vec<Session>,
    /// The reason for a report without the server's part; `None` if the server answered.
    pub(crate) unanswered: Option<Unanswered>,
}

/// A server that did not answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Unanswered {
    /// `true` if the server did not answer in time; `false` if the server refused, or the request failed.
    pub(crate) is_late: bool,
    pub(crate) reason: String,
}

/// The device and its engine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) mac: String,
    pub(crate) mtu: u64,
    pub(crate) wait: String,
    pub(crate) epoch: u64,
    pub(crate) uptime_s: u64,
    pub(crate) version: String,
    pub(crate) addresses: u64,
    pub(crate) addresses_in_use: u64,
    pub(crate) total_bytes: Option<u64>,
    pub(crate) bytes_in_use: u64,
    pub(crate) connections: ConnectionCounts,
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) hardware: BTreeMap<String, u64>,
    /// The number of hardware queues that the server does not serve.
    pub(crate) unserved_queues: u64,
}

/// Control connections that the server refused or closed unread. Earlier servers do not report them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConnectionCounts {
    pub(crate) refused: u64,
    pub(crate) closed_unread: u64,
    pub(crate) closed_by_threads: u64,
}

/// A session.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Session {
    pub(crate) session: u64,
    pub(crate) name: String,
    pub(crate) pid: i64,
    pub(crate) uid: u32,
    pub(crate) trusted: bool,
    pub(crate) unclaimed: bool,
    pub(crate) mac: String,
    pub(crate) ipv4: Option<String>,
    pub(crate) ipv6: Option<String>,
    pub(crate) bytes: u64,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Endpoint {
    pub(crate) endpoint: u64,
    pub(crate) receives: String,
    pub(crate) connection: Option<Connection>,
    pub(crate) counters: BTreeMap<String, u64>,
}

/// An endpoint's connection.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Connection {
    pub(crate) state: String,
    pub(crate) peer: String,
}

/// Returns a counter's value; 0 for a counter that the server lacks.
pub(crate) fn counter(counters: &BTreeMap<String, u64>, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

/// Returns the drops, by reason.
pub(crate) fn drops(counters: &BTreeMap<String, u64>) -> impl Iterator<Item = (&str, u64)> {
    counters
        .iter()
        .filter(|(name, count)| name.contains("_dropped_") && **count > 0)
        .map(|(name, count)| (name.as_str(), *count))
}

/// The pause before another look at what a keeper tells, and the number of looks: together longer than
/// a keeper takes to notice the end of its server.
const PAUSE: Duration = Duration::from_millis(5);
const LOOKS: u32 = 200;

/// Asks a server for its report, and returns the JSON, with what its keeper tells as `keeper`. Waits
/// for the next server, if the keeper starts one.
pub(crate) fn ask(socket: &Path) -> Result<serde_json::Value, Failure> {
    let status = device_status(socket);
    let has_none = |state| matches!(state, DeviceState::Starting | DeviceState::Failed);
    if let Some(status) = status.as_ref().filter(|status| has_none(status.state)) {
        return Err(Failure::new(no_server(status)));
    }
    ask_server(socket).map_err(failed)
}

/// Asks as [`ask`] does, and waits for no server: while none serves, the report has only what the
/// keeper tells.
pub(crate) fn ask_keeper_too(socket: &Path) -> Result<serde_json::Value, Failure> {
    let mut looks = 0;
    loop {
        looks += 1;
        match device_status(socket) {
            Some(status) if status.state != DeviceState::Serving => {
                return Ok(serde_json::json!({ "keeper": status, "sessions": [] }));
            }
            status => match ask_server(socket) {
                // The server has ended, and the keeper is about to notice.
                Err(AttachError::NoServer { .. } | AttachError::HungUp)
                    if status.is_some() && looks < LOOKS =>
                {
                    std::thread::sleep(PAUSE);
                }
                asked => return asked.map_err(failed),
            },
        }
    }
}

fn failed(error: AttachError) -> Failure {
    Failure::new(error.to_string())
}

fn ask_server(socket: &Path) -> Result<serde_json::Value, AttachError> {
    let mut report = towpath_client::report(socket)?;
    if let (Some(report), Some(status)) = (report.as_object_mut(), device_status(socket)) {
        report.insert("keeper".to_owned(), serde_json::json!(status));
    }
    Ok(report)
}

/// Returns why there is no server to ask, in words.
fn no_server(status: &DeviceStatus) -> String {
    let device = &status.device;
    match &status.last_end {
        Some(end) => {
            format!(
                "{device}: no server serves now ({}): {}; see the log",
                status.state, end.reason
            )
        }
        None => format!("{device}: no server serves yet ({}); wait until one does", status.state),
    }
}

/// Returns the present name of a device's interface, and in parentheses the device's name if the two differ.
pub(crate) fn name(report: &Report) -> String {
    let Some(keeper) = &report.keeper else { return report.device.name.clone() };
    let now = match report.device.name.as_str() {
        "" => keeper.interface.as_ref().unwrap_or(&keeper.device),
        name => name,
    };
    if now == keeper.device { now.to_owned() } else { format!("{now} ({})", keeper.device) }
}

/// Returns the last end of a server in words, with its age; `-` if none has ended.
pub(crate) fn last_end(status: &DeviceStatus) -> String {
    match &status.last_end {
        Some(end) => {
            // The server may have written a part of it.
            let reason = end.reason.chars().filter(|one| !one.is_control()).collect::<String>();
            format!("{reason}, {} s ago", age(end.at))
        }
        None => "-".to_owned(),
    }
}

/// Returns the seconds since a time in seconds since 1970.
pub(crate) fn age(time: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    now.saturating_sub(time)
}

/// Reads a server's report.
pub(crate) fn read(socket: &Path, value: serde_json::Value) -> Result<Report, Failure> {
    serde_json::from_value(value).map_err(|error| {
        Failure::new(format!(
            "{}: a report of another version: {error}; use this server's own towpath, or --json",
            socket.display()
        ))
    })
}
