//! `towpath stat`: the counters, once or repeatedly with rates.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::{Failure, print, says};
use crate::find::ServerName;
use crate::number::Number;
use crate::report::{self, ConnectionCounts, Report, counter, drops};
use crate::signals::Signals;
use crate::table::Table;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  towpath stat
  towpath stat tap0 --json | jq .device.counters
  towpath stat --watch
  towpath stat --watch 10 --count 6";

/// Options of `towpath stat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerName,
    /// Print only the server's report, as JSON; with --watch one line per report
    #[arg(long)]
    json: bool,
    /// Print rates per second, every SECONDS seconds; every second by default
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<Number<1, 86_400>>,
    /// With --watch: end after this many reports
    #[arg(long, value_name = "TIMES", requires = "watch")]
    count: Option<Number<1, 1_000_000_000>>,
}

/// Shows the counters.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let socket = args.server.resolve()?;
    let Some(seconds) = args.watch else {
        let value = report::ask(&socket)?;
        if args.json {
            return print(&format!("{value:#}\n"));
        }
        return print(&totals(&report::read(&socket, value)?));
    };
    let signals = Signals::block()
        .map_err(|error| Failure::new(format!("waiting for signals: {}", says(&error))))?;
    let mut before: Option<(Report, Instant)> = None;
    let mut shown = 0;
    let mut next = Instant::now();
    loop {
        let value = report::ask(&socket)?;
        let now = Instant::now();
        if args.json {
            print_while_read(&format!("{value}\n"))?;
            shown += 1;
        } else {
            let report = report::read(&socket, value)?;
            if let Some((before, at)) = &before
                && before.device.epoch == report.device.epoch
            {
                print_while_read(&rates(before, &report, now.duration_since(*at)))?;
                shown += 1;
            }
            before = Some((report, now));
        }
        if args.count.is_some_and(|count| shown >= count.get()) {
            return Ok(());
        }
        next += Duration::from_secs(seconds.get() as u64);
        if asked_to_end(&signals, next)? {
            return Ok(());
        }
    }
}

/// Sleeps until the time, or until a signal asks for the end. Returns `true` for a signal.
fn asked_to_end(signals: &Signals, until: Instant) -> Result<bool, Failure> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout =
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut polled = [PollFd::new(signals, PollFlags::IN)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(Failure::new(format!("waiting: {}", says(&errno.into())))),
    }
}

/// Prints as `print` does, but ends the program if the reader has gone.
fn print_while_read(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::silent()),
        Err(error) => Err(Failure::new(format!("standard output: {}", says(&error)))),
    }
}

/// Returns a number with its noun, in the plural unless the number is 1.
fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Returns the lines about the device before its counters.
fn head(report: &Report) -> String {
    let device = &report.device;
    let version = if device.version.is_empty() { "-" } else { &device.version };
    let mut text = format!(
        "{}: {}, mtu {}, wait={}, up {} s, version {}\n",
        report::name(report),
        device.mac,
        device.mtu,
        device.wait,
        device.uptime_s,
        version
    );
    if let Some(keeper) = &report.keeper {
        let restarts = count(keeper.restarts, "restart");
        text += &format!("{restarts}; last end: {}\n", report::last_end(keeper));
    }
    if let Some(most) = device.total_bytes {
        let (used, most) = (device.bytes_in_use >> 10, most >> 10);
        text += &format!("sessions have {used} KiB of {most} KiB (total-bytes)\n");
    }
    text += &unserved_connections(&device.connections);
    if device.unserved_queues > 0 {
        let has = if device.unserved_queues == 1 { "has" } else { "have" };
        let queues = count(device.unserved_queues, "hardware queue");
        text += &format!(
            "{queues} {has} no socket: packets for applications that arrive there are dropped; see the log\n"
        );
    }
    text
}

fn unserved_connections(counts: &ConnectionCounts) -> String {
    let kinds = [
        (counts.refused, "refused"),
        (counts.closed_unread, "closed unread"),
        (counts.closed_by_threads, "descriptors closed by threads"),
    ];
    let some = kinds.iter().filter(|(count, _)| *count > 0);
    let some: Vec<String> = some.map(|(count, kind)| format!("{count} {kind}")).collect();
    if some.is_empty() {
        some.concat()
    } else {
        format!("control connections: {}\n", some.join(", "))
    }
}

fn totals(report: &Report) -> String {
    let device = &report.device;
    let mut text = head(report);
    text.push('\n');
    let mut counters = Table::new(["DEVICE COUNTER", "VALUE"]);
    for (name, value) in &device.counters {
        counters.row([name.clone(), value.to_string()]);
    }
    text += &counters.to_text();
    if !device.hardware.is_empty() {
        let mut hardware = Table::new(["HARDWARE COUNTER", "VALUE"]);
        for (name, value) in &device.hardware {
            hardware.row([name.clone(), value.to_string()]);
        }
        text += &format!("\n{}", hardware.to_text());
    }
    let mut table = Table::new([
        "SESSION",
        "NAME",
        "ENDPOINT",
        "RX PACKETS",
        "RX BYTES",
        "TX PACKETS",
        "TX BYTES",
        "DROPS",
    ]);
    let mut reasons = Table::new(["SESSION", "ENDPOINT", "DROPPED", "PACKETS"]);
    each(report, |session, endpoint, counters| {
        let value = |name| counter(counters, name).to_string();
        let total: u64 = drops(counters).map(|(_, count)| count).sum();
        table.row([
            session.session.to_string(),
            session.name.clone(),
            endpoint.to_string(),
            value("rx_packets"),
            value("rx_bytes"),
            value("tx_packets"),
            value("tx_bytes"),
            total.to_string(),
        ]);
        for (name, count) in drops(counters) {
            let reason = name.replace("_dropped_", ": ").replace('_', " ");
            reasons.row([
                session.session.to_string(),
                endpoint.to_string(),
                reason,
                count.to_string(),
            ]);
        }
    });
    for table in [table, reasons] {
        if !table.is_empty() {
            text += &format!("\n{}", table.to_text());
        }
    }
    text
}

fn rates(before: &Report, now: &Report, elapsed: Duration) -> String {
    let per_second = |before: u64, now: u64| {
        (now.wrapping_sub(before) as f64 / elapsed.as_secs_f64().max(1e-3)).round() as u64
    };
    let rate = |before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>, name: &str| {
        per_second(counter(before, name), counter(now, name)).to_string()
    };
    let dropped = |counters: &BTreeMap<String, u64>| drops(counters).map(|(_, count)| count).sum();
    let mut table = Table::new([
        "PER SECOND",
        "RX PACKETS",
        "RX BYTES",
        "TX PACKETS",
        "TX BYTES",
        "DROPS",
        "SLEEPS",
        "NOTIFICATIONS",
    ]);
    let (old, new) = (&before.device.counters, &now.device.counters);
    table.row([
        now.device.name.clone(),
        rate(old, new, "rx_packets"),
        rate(old, new, "rx_bytes"),
        rate(old, new, "tx_packets"),
        rate(old, new, "tx_bytes"),
        per_second(dropped(old), dropped(new)).to_string(),
        rate(old, new, "sleeps"),
        rate(old, new, "notifications"),
    ]);
    let mut counted = BTreeMap::new();
    each(before, |session, endpoint, counters| {
        counted.insert((session.session, endpoint), counters.clone());
    });
    let nothing = BTreeMap::new();
    each(now, |session, endpoint, new| {
        let old = counted.get(&(session.session, endpoint)).unwrap_or(&nothing);
        table.row([
            format!("{} {} endpoint {endpoint}", session.session, session.name),
            rate(old, new, "rx_packets"),
            rate(old, new, "rx_bytes"),
            rate(old, new, "tx_packets"),
            rate(old, new, "tx_bytes"),
            per_second(dropped(old), dropped(new)).to_string(),
            "-".into(),
            "-".into(),
        ]);
    });
    table.to_text() + "\n"
}

/// Calls `show` for every endpoint of every session.
fn each(report: &Report, mut show: impl FnMut(&report::Session, u64, &BTreeMap<String, u64>)) {
    for session in &report.sessions {
        for endpoint in &session.endpoints {
            show(session, endpoint.endpoint, &endpoint.counters);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(packets: u64, no_buffers: u64) -> Report {
        let value = serde_json::json!({
            "device": { "name": "tap0", "counters": { "rx_packets": packets * 2 } },
            "sessions": [{ "session": 3, "name": "web", "endpoints": [{ "endpoint": 1,
                "counters": { "rx_packets": packets, "rx_dropped_no_buffers": no_buffers } }] }],
        });
        report::read("/x".as_ref(), value).unwrap()
    }

    #[test]
    fn totals_name_every_drop() {
        let text = totals(&report(7, 5));
        assert!(text.contains("rx: no buffers"), "{text}");
        assert!(!totals(&report(7, 0)).contains("no buffers"));
    }

    #[test]
    fn refused_connections_are_in_the_head() {
        let mut report = report(7, 0);
        assert!(!head(&report).contains("control connections"));
        report.device.connections =
            ConnectionCounts { refused: 3, closed_unread: 2, closed_by_threads: 0 };
        let text = head(&report);
        assert!(text.contains("control connections: 3 refused, 2 closed unread\n"), "{text}");
    }

    #[test]
    fn rates_are_differences_by_time() {
        let text = rates(&report(1000, 0), &report(3000, 10), Duration::from_secs(2));
        let cells = |line: usize| -> Vec<String> {
            text.lines().nth(line).unwrap().split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(cells(1)[..2], ["tap0", "2000"]);
        assert_eq!(cells(2)[..5], ["3", "web", "endpoint", "1", "1000"]);
        assert!(cells(2).contains(&"5".to_owned()), "{text}");
    }
}
