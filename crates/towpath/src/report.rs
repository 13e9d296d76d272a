//! The parts of a server's report that the subcommands show.
//!
//! A missing part is read as empty: a server of another version may report more or less.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::failure::Failure;

/// The whole report.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) device: Device,
    pub(crate) sessions: Vec<Session>,
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
    pub(crate) addresses: u64,
    pub(crate) addresses_in_use: u64,
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) hardware: BTreeMap<String, u64>,
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
    pub(crate) counters: BTreeMap<String, u64>,
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

/// Asks a server for its report, and returns the JSON.
pub(crate) fn ask(socket: &Path) -> Result<serde_json::Value, Failure> {
    towpath_client::report(socket).map_err(|error| Failure::new(error.to_string()))
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
