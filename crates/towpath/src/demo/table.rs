//! The final output: one table, and the failures.

use std::fmt::Write;

use serde_json::Value;

use super::host::Statement;
use super::traffic::{Carried, RoundTrips};

/// The server's counters for one application: the sums over its endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Copies {
    frames: u64,
    copies: u64,
}

/// A killed application.
#[derive(Debug)]
pub(super) struct Killed {
    /// Buffers of its session.
    pub(super) frames: u32,
    /// Datagrams that it answered before its death.
    pub(super) answered: u64,
    /// Datagrams that it left unanswered: the server dropped them without a match.
    pub(super) unanswered: u64,
    /// The time that its session outlived it, in milliseconds.
    pub(super) after_ms: u128,
}

/// All results.
pub(super) struct Outcome {
    pub(super) report: Value,
    /// Packets without a matching endpoint before the traffic began: the kernel's own packets.
    pub(super) early: u64,
    /// The applications' own counters: web, echo.
    pub(super) statements: [Statement; 2],
    /// Files fetched, and stored.
    pub(super) carried: [Carried; 2],
    pub(super) udp: RoundTrips,
    pub(super) pings: RoundTrips,
    pub(super) killed: Option<Killed>,
    /// `true` if server and applications were processes.
    pub(super) processes: bool,
    /// The failures.
    pub(super) failures: Vec<String>,
}

/// The names of the applications in the report.
pub(super) const NAMES: [&str; 2] = ["web", "echo"];

impl Outcome {
    /// Adds the failures that the counters show.
    pub(super) fn judge(&mut self, udp: u64, pings: u64) {
        let mut failures = Vec::new();
        for (what, times, count) in
            [("UDP round trips", &self.udp, udp), ("pings", &self.pings, pings)]
        {
            if times.lost > 0 || times.times.len() != count {
                failures.push(format!("{} of {count} {what} were not answered", times.lost));
            }
        }
        for (what, carried) in [("fetched", self.carried[0]), ("stored", self.carried[1])] {
            if carried.files == 0 {
                failures.push(format!("no file was {what}"));
            }
        }
        let allowed = self.early + self.killed.as_ref().map_or(0, |killed| killed.unanswered);
        for (name, count) in drops(&self.report["device"]["counters"]) {
            // Packets for the killed application match no endpoint.
            if name != "rx_dropped_no_match" || count > allowed {
                failures.push(format!("device: {name} {count}"));
            }
        }
        for (place, name) in NAMES.into_iter().enumerate() {
            for (reason, count) in self.session_drops(name) {
                failures.push(format!("{name}: {reason} {count}"));
            }
            for (reason, count) in &self.statements[place].damage {
                failures.push(format!("{name}: {reason} {count}"));
            }
        }
        if self.report["device"]["counters"]["violations"] != 0 {
            failures.push("the server closed a session for a violation".to_owned());
        }
        self.failures.append(&mut failures);
    }

    fn session(&self, name: &str) -> &Value {
        let sessions = self.report["sessions"].as_array();
        sessions
            .and_then(|sessions| sessions.iter().find(|session| session["name"] == name))
            .unwrap_or(&Value::Null)
    }

    fn endpoints(&self, name: &str) -> impl Iterator<Item = &Value> {
        let endpoints = self.session(name)["endpoints"].as_array();
        endpoints.into_iter().flatten().map(|endpoint| &endpoint["counters"])
    }

    fn session_drops(&self, name: &str) -> Vec<(String, u64)> {
        self.endpoints(name).flat_map(drops).collect()
    }

    fn copies(&self, name: &str) -> Copies {
        let mut copies = Copies::default();
        for counters in self.endpoints(name) {
            let count = |name: &str| counters[name].as_u64().unwrap_or(0);
            copies.frames += count("rx_packets") + count("tx_packets");
            copies.copies += count("rx_copies") + count("tx_copies");
        }
        copies
    }

    /// Formats the table.
    pub(super) fn table(&self) -> String {
        let mut rows: Vec<[String; 3]> = Vec::new();
        let mut row = |what: &str, cells: [String; 2]| {
            let [web, echo] = cells;
            rows.push([what.to_owned(), web, echo]);
        };
        let none = String::new;
        let session = |name: &str, key: &str| match &self.session(name)[key] {
            Value::String(text) => text.clone(),
            Value::Null => none(),
            other => other.to_string(),
        };
        let both = |key: &str| NAMES.map(|name| session(name, key));
        row("address", both("ipv4"));
        row("", both("ipv6"));
        if self.processes {
            let who = NAMES
                .map(|name| format!("{}, user {}", session(name, "pid"), session(name, "uid")));
            row("process", who);
        }
        let [fetched, stored] = self.carried;
        row("HTTP to the kernel's TCP", [rate(fetched), none()]);
        row("HTTP from the kernel's TCP", [rate(stored), none()]);
        for (what, times) in [("UDP round trips", &self.udp), ("pings", &self.pings)] {
            row(what, [none(), format!("{} answered, {} lost", times.times.len(), times.lost)]);
            row("  p50 / p99 / p99.9", [none(), percentiles(times)]);
        }
        let statements = &self.statements;
        let ratio = |over: u64, under: u64| format!("{:.2}", over as f64 / under.max(1) as f64);
        row(
            "packets per wake-up",
            [0, 1].map(|place| {
                let one: &Statement = &statements[place];
                ratio(one.received + one.sent, one.wake_ups)
            }),
        );
        row(
            "copies per packet",
            NAMES.map(|name| {
                let copies = self.copies(name);
                ratio(copies.copies, copies.frames)
            }),
        );
        row("drops", NAMES.map(|name| listed(&self.session_drops(name))));

        let mut text = String::new();
        let width = |column: usize| {
            let title = column.checked_sub(1).map_or(0, |place| NAMES[place].len());
            rows.iter().map(|row| row[column].chars().count()).chain([title]).max().unwrap_or(0)
        };
        let (first, second) = (width(0), width(1));
        let mut line = |cells: [&str; 3]| {
            let [what, web, echo] = cells;
            let whole = format!("{what:<first$}  {web:<second$}  {echo}");
            let _ = writeln!(text, "{}", whole.trim_end());
        };
        line(["", NAMES[0], NAMES[1]]);
        for [what, web, echo] in &rows {
            line([what, web, echo]);
        }
        for (what, said) in self.wide_rows() {
            let _ = writeln!(text, "{what:<first$}  {said}");
        }
        text
    }

    /// Returns the rows that concern both applications.
    fn wide_rows(&self) -> Vec<(&'static str, String)> {
        let counters = &self.report["device"]["counters"];
        let count = |name: &str| counters[name].as_u64().unwrap_or(0);
        let (frames, sleeps) = (count("rx_packets") + count("tx_packets"), count("sleeps"));
        let mut rows = vec![(
            "server",
            format!(
                "{frames} packets, {:.2} per wake-up; drops: {}",
                frames as f64 / sleeps.max(1) as f64,
                listed(&drops(counters))
            ),
        )];
        if let Some(killed) = &self.killed {
            let others = if self.failures.is_empty() { "undisturbed" } else { "see below" };
            rows.push((
                "killed application",
                format!(
                    "a third one; SIGKILL after {} answers; its {} buffers free {} ms later; \
                     neighbours {others}",
                    killed.answered, killed.frames, killed.after_ms
                ),
            ));
        }
        let trusted = self.statements.iter().any(|one| one.trusted);
        let protection = if trusted {
            "same user: server pages unprotected"
        } else {
            "server, web and echo are three users; the server's shared pages are read-only for \
             web and echo"
        };
        rows.push(("protection", protection.to_owned()));
        rows
    }
}

/// Packets without a matching endpoint.
pub(super) fn unmatched(report: &Value) -> u64 {
    report["device"]["counters"]["rx_dropped_no_match"].as_u64().unwrap_or(0)
}

/// Returns the drops, by reason.
fn drops(counters: &Value) -> Vec<(String, u64)> {
    let counters = counters.as_object().into_iter().flatten();
    counters
        .filter(|(name, _)| name.contains("_dropped_"))
        .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn listed(drops: &[(String, u64)]) -> String {
    if drops.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<_> = drops
        .iter()
        .map(|(name, count)| format!("{} {count}", name.replace("_dropped", "").replace('_', " ")))
        .collect();
    each.join(", ")
}

fn rate(carried: Carried) -> String {
    let mib = carried.bytes as f64 / f64::from(1 << 20);
    let rate = mib / carried.time.as_secs_f64().max(1e-9);
    let each = mib / f64::from(carried.files.max(1));
    format!("{rate:.0} MiB/s, {} x {each:.0} MiB, SHA-256 equal", carried.files)
}

fn percentiles(times: &RoundTrips) -> String {
    let at = |quantile| times.times.value_at_quantile(quantile) as f64 / 1000.0;
    format!("{:.0} / {:.0} / {:.0} us", at(0.5), at(0.99), at(0.999))
}
