//! A web server on Towpath under a SYN flood: do other hosts still connect, and does the server's
//! memory grow?
//!
//! The example `web` uses a server that serves a TAP. The flood comes over the TAP from random
//! addresses that never answer; the kernel at the TAP's other side connects meanwhile, fetches a
//! file, and counts what succeeds within a second.

mod syns;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use towpath_netlink::{Netlink, Reachability};
use towpath_testkit::Census;

use crate::Settings;
use crate::child::{Child, Keep, OwnSocket};
use crate::process::{Process, Serving};
use crate::programs::own_program;
use crate::report::{Outcome, Row};
use crate::web::example;

use syns::Traffic;

const TAP: &str = "tpflood0";
/// The part of connections that succeed within [`PATIENCE`], at least.
const SUCCEED: f64 = 0.95;
const PATIENCE: Duration = Duration::from_secs(1);
/// The memory that a flood may cost the web server, in MiB.
const MOST_MIB: f64 = 16.0;
/// The time between two connections of the peer, and between two looks at the memory.
const INTERVAL: Duration = Duration::from_millis(50);
/// The time limit of a start.
const STARTS: Duration = Duration::from_secs(10);
/// The floods, in SYNs per second; `None` is as many as the TAP's reader, the server, takes.
const FLOODS: [Option<u32>; 3] = [Some(0), Some(50_000), None];

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (flood, after) = if settings.quick { (1, 1) } else { (5, 10) };
    let mut outcome = Outcome {
        how: format!(
            "a server on a TAP and the example web, each a process, started for each run; both \
             wait as by default; the flood, one thread, sends SYNs from random addresses for \
             {flood} s; every {} ms a further thread connects from the kernel at the TAP's other \
             side and fetches a file of 4 bytes; memory: resident bytes of web, before, during \
             and {after} s after the flood; nothing pinned",
            INTERVAL.as_millis()
        ),
        ..Outcome::default()
    };
    let Some(web) = outcome.needs(own_program("web")) else { return Ok(outcome) };
    let times = (Duration::from_secs(flood), Duration::from_secs(after));
    let rounds = if settings.quick { 1 } else { 5 };
    for rate in FLOODS {
        let runs = (0..rounds).map(|_| run(&web, rate, times)).collect::<anyhow::Result<Vec<_>>>();
        rows(rate, &runs?, &mut outcome);
    }
    Ok(outcome)
}

/// Adds the rows of a flood.
fn rows(rate: Option<u32>, runs: &[Run], outcome: &mut Outcome) {
    let parameters: Vec<(&str, f64)> =
        rate.map(|rate| ("syn_per_s", f64::from(rate))).into_iter().collect();
    let name = match rate {
        Some(0) => "no flood",
        Some(_) => "flood",
        None => "flood, as fast as the server takes it",
    };
    let row = |what: &str, unit: &str, of: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(of).collect();
        Row::new(&format!("{name}: {what}"), &parameters, unit, &values)
    };
    let connected = row("connections made within a second", "of 1", &|run| run.connected());
    let during = row("memory of web, growth during it", "MiB", &|run| run.grown_mib.0);
    let after = row("memory of web, growth after it", "MiB", &|run| run.grown_mib.1);
    if rate == Some(0) {
        outcome.context.extend([connected, during, after]);
    } else {
        outcome.rows.extend([
            connected.at_least(SUCCEED),
            during.at_most(MOST_MIB),
            after.at_most(MOST_MIB),
        ]);
        outcome.context.extend([
            row("SYNs sent", "per s", &|run| run.sent as f64 / run.flood_s),
            row("packets that found the TAP full", "per s", &|run| {
                run.traffic.dropped as f64 / run.flood_s
            }),
            row("packets that the engine dropped before web", "per s", &|run| {
                run.engine_dropped as f64 / run.flood_s
            }),
        ]);
    }
    outcome.context.push(row("files fetched within a second", "of 1", &|run| run.fetched()));
}

/// The result of one run.
struct Run {
    flood_s: f64,
    /// SYNs sent.
    sent: u64,
    /// What the TAP did meanwhile.
    traffic: Traffic,
    /// Packets that found no room in the queue of web.
    engine_dropped: u64,
    /// For each connection: made, and the file fetched, within a second.
    peers: Vec<(bool, bool)>,
    /// During the flood at most, and some time after it.
    grown_mib: (f64, f64),
}

impl Run {
    fn connected(&self) -> f64 {
        self.peers.iter().filter(|peer| peer.0).count() as f64 / self.peers.len() as f64
    }

    fn fetched(&self) -> f64 {
        self.peers.iter().filter(|peer| peer.1).count() as f64 / self.peers.len() as f64
    }
}

/// Starts a server and the example, and floods them.
fn run(web: &Path, rate: Option<u32>, (flood, after): (Duration, Duration)) -> anyhow::Result<Run> {
    let server = Process::start(&Serving::tap(TAP), None)?;
    let files = OwnSocket::new()?;
    let _keeper = Child::start(&Keep { directory: files.directory().to_owned() })?;
    std::fs::write(files.directory().join("index.html"), "file")?;
    let (web, to) = example::start(web, &server.socket(), files.directory())?;
    // The first connections make what the program makes once.
    let until = Instant::now() + STARTS;
    while !fetch(to).1 {
        ensure!(Instant::now() < until, "web does not answer at {to}");
    }
    let mac = mac_of(*to.ip())?;
    let memory = || Ok::<_, std::io::Error>(Census::of(web.0.id())?.resident_bytes);
    let (before, over) = (memory()?, AtomicBool::new(false));
    let traffic = Traffic::of(TAP)?;
    let start = Instant::now();
    thread::scope(|scope| {
        let rate_is_zero = rate == Some(0);
        let over = &over;
        let flooding = scope.spawn(move || match rate_is_zero {
            true => Ok(0),
            false => syns::flood(TAP, (mac, to), rate, over),
        });
        let (mut peers, mut most) = (Vec::new(), before);
        let mut failed = None;
        while start.elapsed() < flood && failed.is_none() {
            peers.push(scope.spawn(move || fetch(to)));
            match memory() {
                Ok(bytes) => most = most.max(bytes),
                Err(error) => failed = Some(error),
            }
            thread::sleep(INTERVAL);
        }
        let flood_s = start.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        let joined = |_| anyhow::anyhow!("a thread of the flood failed");
        let traffic = Traffic::of(TAP)?.since(traffic);
        let engine_dropped = dropped(&server.socket())?;
        let sent = flooding.join().map_err(joined)??;
        let peers = peers.into_iter().map(|peer| peer.join()).collect::<Result<Vec<_>, _>>();
        let peers = peers.map_err(joined)?;
        if let Some(error) = failed {
            return Err(error).context("web ended during the flood");
        }
        thread::sleep(after);
        let left = memory().context("web ended after the flood")?;
        let mib = |bytes: u64| bytes.saturating_sub(before) as f64 / f64::from(1 << 20);
        Ok(Run { flood_s, sent, traffic, engine_dropped, peers, grown_mib: (mib(most), mib(left)) })
    })
}

/// Returns how many received packets the engine has dropped at its sessions' endpoints.
fn dropped(socket: &Path) -> anyhow::Result<u64> {
    Ok(dropped_of(&towpath_client::report(socket)?))
}

fn dropped_of(report: &Value) -> u64 {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let sessions = list(report, "sessions");
    let endpoints = sessions.iter().flat_map(|session| list(session, "endpoints"));
    let counters = endpoints.filter_map(|it| it["counters"].as_object().cloned()).flatten();
    let dropped = counters.filter(|(name, _)| name.starts_with("rx_dropped"));
    dropped.filter_map(|(_, count)| count.as_u64()).sum()
}

/// Returns the Ethernet address of a neighbour to which the kernel has just sent.
fn mac_of(ip: Ipv4Addr) -> anyhow::Result<[u8; 6]> {
    let mut netlink = Netlink::open()?;
    let index = netlink.index(TAP)?;
    match netlink.neighbour(index, ip.into())?.map(|entry| entry.reachability) {
        Some(Reachability::Confirmed(mac) | Reachability::Stale(mac)) => Ok(mac),
        _ => bail!("the kernel does not know the Ethernet address of {ip}"),
    }
}

/// Connects and fetches the file. Returns whether the connection was made, and the file fetched,
/// within a second.
fn fetch(to: SocketAddrV4) -> (bool, bool) {
    let start = Instant::now();
    let Ok(mut stream) = TcpStream::connect_timeout(&to.into(), PATIENCE) else {
        return (false, false);
    };
    let mut answer = Vec::new();
    let mut fetches = || -> std::io::Result<bool> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /index.html HTTP/1.1\r\nConnection: close\r\n\r\n")?;
        stream.read_to_end(&mut answer)?;
        Ok(answer.ends_with(b"file") && start.elapsed() < PATIENCE)
    };
    (true, fetches().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn drops_of_all_endpoints_are_added_up() {
        let counters = |count: u64| json!({ "rx_packets": 7, "rx_dropped_no_buffers": count, "rx_dropped_over_budget": 1 });
        let endpoint = |count| json!({ "endpoint": 1, "counters": counters(count) });
        let report = json!({ "sessions": [
            { "endpoints": [endpoint(10), endpoint(20)] }, { "endpoints": [endpoint(30)] },
        ] });
        assert_eq!(dropped_of(&report), 63);
        assert_eq!(dropped_of(&json!({})), 0);
    }
}
