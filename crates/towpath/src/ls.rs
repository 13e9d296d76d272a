//! `towpath ls`: the attached applications, and the flow rules of their endpoints.
#![forbid(unsafe_code)]

use crate::failure::{Failure, print};
use crate::find::Target;
use crate::report::{self, Report};
use crate::table::Table;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Root and the server's user see all sessions, other users only their own.

Examples:
  towpath ls
  towpath ls --device tap0
  towpath ls --socket /run/towpath/tap0.sock --json";

/// Options of `towpath ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Print only the server's report, as JSON
    #[arg(long)]
    json: bool,
}

/// Lists the applications.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let socket = args.target.resolve()?;
    let value = report::ask(&socket)?;
    if args.json {
        return print(&format!("{value:#}\n"));
    }
    print(&to_text(&report::read(&socket, value)?))
}

fn to_text(report: &Report) -> String {
    let device = &report.device;
    let mut devices =
        Table::new(["DEVICE", "MAC", "MTU", "WAIT", "UP (S)", "SESSIONS", "ADDRESSES"]);
    devices.row([
        device.name.clone(),
        device.mac.clone(),
        device.mtu.to_string(),
        device.wait.clone(),
        device.uptime_s.to_string(),
        report.sessions.len().to_string(),
        format!("{} of {}", device.addresses_in_use, device.addresses),
    ]);
    let mut text = devices.to_text();
    if report.sessions.is_empty() {
        return text;
    }
    let mut sessions =
        Table::new(["SESSION", "NAME", "PID", "USER", "PAGES", "MAC", "IPV4", "IPV6", "KIB"]);
    let mut endpoints = Table::new(["SESSION", "ENDPOINT", "RECEIVES"]);
    let none = || "-".to_owned();
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
            session.pid.to_string(),
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
        }
    }
    text += &format!("\n{}", sessions.to_text());
    if !endpoints.is_empty() {
        text += &format!("\n{}", endpoints.to_text());
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
    fn a_report_of_less_is_still_shown() {
        let value = serde_json::json!({
            "device": { "name": "tap0", "mtu": 1500 },
            "sessions": [{ "session": 3, "name": "web", "uid": 0, "unclaimed": true,
                           "endpoints": [{ "endpoint": 0, "receives": "mac x" }] },
                         { "session": 2, "name": "earlier" }, {}],
            "new": 1,
        });
        let report = report::read("/x".as_ref(), value).unwrap();
        let text = to_text(&report);
        assert!(
            text.contains("tap0") && text.contains("web (unclaimed)") && text.contains("root"),
            "{text}"
        );
        assert!(text.contains("mac x"), "{text}");
        assert!(text.find("earlier") < text.find("web"), "{text}");
        let bad = serde_json::json!({ "device": [1] });
        assert!(report::read("/x".as_ref(), bad).is_err());
    }
}
