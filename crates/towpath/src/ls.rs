//! `towpath ls`: the devices, the attached applications, and the flow rules and peers of their
//! endpoints.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use towpath_keeper::{DeviceState, DeviceStatus};

use crate::failure::{Failure, print};
use crate::find::ServerName;
use crate::report::{self, Report};
use crate::table::Table;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Root and the server's user see all sessions, other users only their own. DEVICE is the interface's name,
and in parentheses the device's own name if the two differ. STATE is what the device's
keeper does: starting, serving, restarting (it holds all sessions for the next server), failed (the
sessions have ended, and it tries again), ending, or no answer (the server does not answer; the last lines
name the remedy). LAST END is the reason of the last restart.
PEER is the other end of an endpoint's connection for out-of-band messages and requests: an endpoint
of this server, or the address of one of another host.

Examples:
  towpath ls
  towpath ls tap0
  towpath ls --socket /run/towpath/tap0.sock --json";

/// The time that each of several servers has to answer: longer than a keeper needs to tell of a server's end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Options of `towpath ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerName,
    /// Print only the server's report, as JSON; of several servers a list, as devices
    #[arg(long)]
    json: bool,
}

/// Lists the devices and the applications.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let sockets = args.server.resolve_all()?;
    let values = match &sockets[..] {
        [one] => vec![report::ask_keeper_too(one)?],
        several => ask_all(several),
    };
    if args.json {
        let value = match <[_; 1]>::try_from(values) {
            Ok([one]) => one,
            Err(several) => serde_json::json!({ "devices": several }),
        };
        return print(&format!("{value:#}\n"));
    }
    let reports = sockets.iter().zip(values).map(|(socket, value)| report::read(socket, value));
    print(&to_text(&reports.collect::<Result<Vec<_>, _>>()?))
}

/// Asks several servers at once. If a server ends, does not answer, or refuses this user, the command still shows all
/// other servers.
fn ask_all(sockets: &[PathBuf]) -> Vec<serde_json::Value> {
    let (tell, told) = channel();
    let late = sockets.iter().map(|socket| unanswered(socket, true, &late_reason(socket)));
    let mut values: Vec<_> = late.collect();
    for (number, socket) in sockets.iter().enumerate() {
        let (tell, path) = (tell.clone(), socket.clone());
        // At the end of this program, threads whose server did not answer end with it.
        let ask = move || drop(tell.send((number, report::ask_keeper_too(&path))));
        if let Err(error) = std::thread::Builder::new().spawn(ask) {
            values[number] =
                unanswered(socket, false, &format!("no thread to ask the server: {error}"));
        }
    }
    drop(tell);
    let until = Instant::now() + ANSWER_TIMEOUT;
    while let Ok((number, asked)) =
        told.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        values[number] =
            asked.unwrap_or_else(|failure| unanswered(&sockets[number], false, &failure.line()));
    }
    values
}

/// Returns the reason to show for a server that did not answer in time, with the remedy.
fn late_reason(socket: &Path) -> String {
    let within = format!("the server did not answer within {} s", ANSWER_TIMEOUT.as_secs());
    match towpath_keeper::device_status(socket) {
        Some(status) => format!(
            "{within}; see whether its process is stopped (ps --ppid {}), and continue it with kill -CONT PID; \
             or end it with kill -KILL PID, and its keeper starts another server",
            status.keeper
        ),
        None => format!("{within}; see whether it is stopped, and continue it with kill -CONT PID"),
    }
}

/// Returns the report of a server that did not answer. `is_late`: the server may still answer.
fn unanswered(socket: &Path, is_late: bool, reason: &str) -> serde_json::Value {
    let name = socket.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".sock").unwrap_or(&name);
    let status = towpath_keeper::device_status(socket);
    // The keeper knows the interface's present name.
    let name = status
        .as_ref()
        .map_or(name, |status| status.interface.as_ref().unwrap_or(&status.device).as_str());
    serde_json::json!({
        "device": { "name": name },
        "keeper": status,
        "sessions": [],
        "unanswered": { "is_late": is_late, "reason": reason },
    })
}

fn to_text(reports: &[Report]) -> String {
    let mut devices = Table::new([
        "DEVICE",
        "STATE",
        "MAC",
        "MTU",
        "WAIT",
        "UP (S)",
        "RESTARTS",
        "VERSION",
        "SESSIONS",
        "ADDRESSES",
        "LAST END",
    ]);
    for report in reports {
        devices.row(device(report));
    }
    let mut text = devices.to_text();
    for report in reports {
        if let Some(unanswered) = &report.unanswered {
            text += &format!("\n{}: {}\n", report::name(report), unanswered.reason);
        }
    }
    for report in reports.iter().filter(|report| !report.sessions.is_empty()) {
        if reports.len() > 1 {
            text += &format!("\n{}:", report::name(report));
        }
        text += &format!("\n{}", sessions(report));
    }
    text
}

/// Returns the row of a device. A device without a server has what its keeper tells.
fn device(report: &Report) -> [String; 11] {
    let (device, keeper) = (&report.device, report.keeper.as_ref());
    let of_keeper = |show: fn(&DeviceStatus) -> String| keeper.map_or_else(none, show);
    let has_answered = !device.mac.is_empty();
    let is_late = report.unanswered.as_ref().is_some_and(|one| one.is_late);
    let of_server = |text: String| if has_answered { text } else { none() };
    [
        report::name(report),
        // A server that has answered serves, also one whose keeper tells nothing.
        keeper.filter(|_| !is_late).map_or_else(
            || {
                let no_answer = || "no answer".to_owned();
                if is_late { no_answer() } else { of_server(DeviceState::Serving.to_string()) }
            },
            |status| status.state.to_string(),
        ),
        of_server(device.mac.clone()),
        of_server(device.mtu.to_string()),
        of_server(device.wait.clone()),
        of_server(device.uptime_s.to_string()),
        of_keeper(|status| status.restarts.to_string()),
        match device.version.as_str() {
            "" => of_keeper(|status| status.version.clone()),
            version => version.to_owned(),
        },
        of_server(report.sessions.len().to_string()),
        of_server(format!("{} of {}", device.addresses_in_use, device.addresses)),
        of_keeper(report::last_end),
    ]
}

fn none() -> String {
    "-".to_owned()
}

/// Returns the sessions of a server, and their endpoints.
fn sessions(report: &Report) -> String {
    let mut sessions =
        Table::new(["SESSION", "NAME", "PID", "USER", "PAGES", "MAC", "IPV4", "IPV6", "KIB"]);
    let mut endpoints = Table::new(["SESSION", "ENDPOINT", "RECEIVES"]);
    let mut connections = Table::new(["SESSION", "ENDPOINT", "CONNECTION", "PEER"]);
    // A server that resumes sessions has them in another order.
    let mut in_order: Vec<_> = report.sessions.iter().collect();
    in_order.sort_by_key(|session| session.session);
    for session in in_order {
        sessions.row([
            session.session.to_string(),
            if session.unclaimed {
                format!("{} (unclaimed)", session.name)
            } else {
                session.name.clone()
            },
            // The kernel reports 0 for a process outside of the server's pid namespace.
            if session.pid == 0 { none() } else { session.pid.to_string() },
            user(session.uid),
            if session.trusted { "unprotected" } else { "protected" }.to_owned(),
            session.mac.clone(),
            session.ipv4.clone().unwrap_or_else(none),
            session.ipv6.clone().unwrap_or_else(none),
            (session.bytes / 1024).to_string(),
        ]);
        for endpoint in &session.endpoints {
            endpoints.row([
                session.session.to_string(),
                endpoint.endpoint.to_string(),
                endpoint.receives.clone(),
            ]);
            if let Some(connection) = &endpoint.connection {
                connections.row([
                    session.session.to_string(),
                    endpoint.endpoint.to_string(),
                    connection.state.clone(),
                    connection.peer.clone(),
                ]);
            }
        }
    }
    let mut text = sessions.to_text();
    for table in [endpoints, connections].iter().filter(|table| !table.is_empty()) {
        text += &format!("\n{}", table.to_text());
    }
    text
}

/// Returns a user's name, or its number if it has no account.
fn user(uid: u32) -> String {
    match uzers::get_user_by_uid(uid) {
        Some(user) => user.name().to_string_lossy().into_owned(),
        None => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_server_is_shown() {
        let keeper = |state: &str| {
            serde_json::json!({ "device": "tap1", "keeper": 7, "version": "0.2.0", "state": state,
                "since": 5, "restarts": 3, "last_end": { "at": 6, "reason": "no interface\u{1b}" } })
        };
        let failed = serde_json::json!({ "keeper": keeper("failed"), "sessions": [] });
        let serving = serde_json::json!({ "keeper": keeper("serving"),
            "device": { "name": "tap0", "mac": "x", "version": "0.1.0" }, "sessions": [] });
        let read = |value| report::read("/x".as_ref(), value).unwrap();
        let mut renamed = keeper("restarting");
        renamed["interface"] = "lan0".into();
        let renamed = serde_json::json!({ "keeper": renamed, "sessions": [] });
        let text = to_text(&[read(failed), read(serving), read(renamed)]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].starts_with("tap1") && lines[1].contains("failed"), "{text}");
        assert!(lines[1].contains("0.2.0") && lines[1].contains("no interface, "), "{text}");
        assert!(lines[2].starts_with("tap0") && lines[2].contains("serving"), "{text}");
        assert!(lines[3].starts_with("lan0 (tap1)"), "{text}");
        assert!(lines[2].contains("0.1.0") && lines[2].contains(" s ago"), "{text}");
    }

    #[test]
    fn a_report_of_less_is_still_shown() {
        let value = serde_json::json!({
            "device": { "name": "tap0", "mtu": 1500 },
            "sessions": [{ "session": 3, "name": "web", "uid": 0, "unclaimed": true,
                           "endpoints": [{ "endpoint": 0, "receives": "mac x",
                             "connection": { "state": "requested", "peer": "session 2 endpoint 0" } }] },
                         { "session": 2, "name": "earlier" }, {}],
            "new": 1,
        });
        let report = report::read("/x".as_ref(), value).unwrap();
        let text = to_text(&[report]);
        assert!(
            text.contains("tap0") && text.contains("web (unclaimed)") && text.contains("root"),
            "{text}"
        );
        assert!(text.contains("mac x"), "{text}");
        assert!(text.contains("requested   session 2 endpoint 0"), "{text}");
        assert!(text.find("earlier") < text.find("web"), "{text}");
        // A server of 0.1.0 and its keeper tell less.
        assert!(text.contains("STATE") && text.contains("LAST END"), "{text}");
        let bad = serde_json::json!({ "device": [1] });
        assert!(report::read("/x".as_ref(), bad).is_err());
    }
}
