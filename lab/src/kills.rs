//! Servers that are killed again and again under TCP: are connections lost, are bytes wrong, and for
//! how long does each connection stand still?
//!
//! `towpath serve` serves a TAP, or by AF_XDP an interface whose address the application shares with
//! the kernel. It starts another server after each that is killed. The application is this process, and
//! the kernel is at the other end of its connections, half of which send to it.
//! Every sender writes a block in each period, so a connection on which nothing arrives for longer is
//! one that stands still.

mod device;
mod losses;
mod requests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use fastrand::Rng;
use towpath_net::Network;

use crate::Settings;
use crate::child::{Child, Keep, OwnSocket};
use crate::programs::{Serve, own_program};
use crate::report::{Outcome, Row};
use crate::streams::{LOST, Load, Progress, Ran, Streams};
use crate::web;

use device::Device;
use requests::{Asked, Requests};

const CONNECTIONS: usize = 50;
/// The connections of wrk, and the part of the kills while it runs: one of so many.
const WEB_CONNECTIONS: u32 = 16;
const WEB_PART: usize = 4;
/// The least and the most time from one kill to the next. The moments are uniform in between.
const BETWEEN: [Duration; 2] = [Duration::from_millis(80), Duration::from_millis(160)];
/// The longest time for which a connection stands still after a kill, as the 99th percentile.
const PAUSE_MS: f64 = 50.0;
/// The least part of the kills while a connection has bytes that its receiver has not read.
const WITH_UNREAD_BYTES: f64 = 0.9;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let kills = match settings {
        Settings { quick: true, .. } => 20,
        Settings { full: true, .. } => 1000,
        Settings { .. } => 200,
    };
    let mut outcome = Outcome {
        how: format!(
            "towpath serve on a TAP, and by AF_XDP on a veth interface in generic mode, whose address the \
             application shares; {CONNECTIONS} connections between the kernel and one \
             application, half of them in each direction; each sender writes {} bytes \
             every {} ms; a UDP request a millisecond; a kill every {} to {} ms, at moments from a seed; windows with and without \
             a kill in turn; all wait as by default, nothing pinned",
            Load::STEADY.block_bytes,
            Load::STEADY.period.unwrap_or_default().as_millis(),
            BETWEEN[0].as_millis(),
            BETWEEN[1].as_millis()
        ),
        ..Outcome::default()
    };
    let Some(towpath) = outcome.needs(own_program("towpath")) else { return Ok(outcome) };
    for device in [Device::Tap, Device::SharedXdp] {
        add_rows(&mut outcome, device.name(), &run(&towpath, device, kills)?, kills);
    }
    let wrk = outcome.needs(web::Programs::wrk());
    if let (Some(wrk), Some(web)) = (wrk, outcome.needs(own_program("web"))) {
        ask_web(&mut outcome, &towpath, (&wrk, &web), kills)?;
    }
    Ok(outcome)
}

/// Kills servers while wrk asks the example `web`, over connections that last and over a new one for
/// each request.
fn ask_web(
    outcome: &mut Outcome,
    towpath: &Path,
    (wrk, web): (&Path, &Path),
    kills: usize,
) -> anyhow::Result<()> {
    let files = OwnSocket::new()?;
    let _keeper = Child::start(&Keep { directory: files.directory().to_owned() })?;
    let (arguments, _kernel) = Device::Tap.make()?;
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (serve, _network) = Serve::start(towpath, (files.directory(), "web"), &arguments)?;
    let served = web::write_file(files.directory())?;
    let (process, address) = web::example::start(web, &serve.socket, &served)?;
    let kills = kills / WEB_PART;
    for fresh in [false, true] {
        let load = web::Load { connections: WEB_CONNECTIONS, fresh };
        let target = web::Target {
            address: address.into(),
            from: None,
            processes: vec![("web", process.0.id())],
        };
        let window = BETWEEN[1] * (2 * kills as u32 + 4);
        let (asked, killed) = thread::scope(|scope| {
            let asking = scope.spawn(|| web::ask(wrk, &target, load, window));
            let killed = kill_servers(&serve, &[], kills);
            (asking.join(), killed)
        });
        killed?;
        let asked = asked.map_err(|_| anyhow::anyhow!("a thread failed"))??;
        let row = |name: &str, unit: &str, value: f64| {
            let name = format!("TAP, web under wrk, {} connections: {name}", load.kind());
            let parameters =
                [("connections", f64::from(load.connections)), ("kills", kills as f64)];
            Row::new(&name, &parameters, unit, &[value])
        };
        outcome.rows.push(row("errors that wrk saw", "errors", asked.errors).at_most(0.0));
        outcome.context.push(row("requests", "requests/s", asked.requests_per_s));
    }
    Ok(())
}

fn add_rows(outcome: &mut Outcome, device: &str, run: &Run, kills: usize) {
    let row = |name: &str, unit: &str, values: &[f64]| {
        let name = format!("{device}: {name}");
        Row::new(&name, &[("connections", CONNECTIONS as f64)], unit, values)
    };
    outcome.rows.extend([
        row("connections lost", "connections", &[run.lost as f64]).at_most(0.0),
        row("kills that the application's session outlived", "of 1", &[run.resumed(kills)])
            .at_least(1.0),
        row(
            "longest pause of each connection after each kill, p99",
            "ms",
            &[at(&run.killed, 0.99)],
        )
        .at_most(PAUSE_MS),
        row("kills while bytes were unread", "of 1", &[run.with_unread_bytes()])
            .at_least(WITH_UNREAD_BYTES),
    ]);
    outcome.context.extend([
        row("connections with unread bytes at a kill", "connections", &run.unread),
        row("longest pause after each kill, p50", "ms", &[at(&run.killed, 0.5)]),
        row("longest pause after each kill, maximum", "ms", &[at(&run.killed, 1.0)]),
        row("longest pause in each window without a kill, p50", "ms", &[at(&run.quiet, 0.5)]),
        row("longest pause in each window without a kill, p99", "ms", &[at(&run.quiet, 0.99)]),
        row("bytes that arrived and were right", "MB", &[run.bytes as f64 / 1e6]),
    ]);
    let asked = &run.asked;
    for (name, count) in [
        ("UDP requests to the application", asked.requests),
        ("UDP requests without an answer", asked.unanswered),
        ("UDP requests without an answer, which did not arrive", asked.not_arrived),
        ("UDP requests without an answer, which could not be answered", asked.not_sent),
        ("UDP requests whose answer took more than 300 ms", asked.late),
        ("UDP requests that arrived again", asked.repeated),
    ] {
        outcome.context.push(row(name, "datagrams", &[count as f64]));
    }
    for (place, count) in &asked.losses {
        let name = format!("packets lost {place}");
        outcome.context.push(row(&name, "packets", &[*count as f64]));
    }
    if device == Device::SharedXdp.name() {
        let name = "servers that made new sockets";
        outcome.context.push(row(name, "servers", &[run.new_sockets]));
    }
    for (phase, count) in &run.places {
        outcome.context.push(row(&format!("kills of the engine in {phase}"), "kills", &[*count]));
    }
}

/// Returns a quantile of sorted values.
fn at(sorted: &[f64], quantile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * quantile).round() as usize).copied().unwrap_or(f64::NAN)
}

/// What happened.
struct Run {
    lost: usize,
    resumptions: u64,
    bytes: u64,
    /// For each kill and connection, the longest pause until the next window, in milliseconds,
    /// sorted; and the same for windows without a kill.
    killed: Vec<f64>,
    quiet: Vec<f64>,
    /// The connections with unread bytes at each kill.
    unread: Vec<f64>,
    /// The number of servers that made AF_XDP sockets and did not use those of their predecessor.
    new_sockets: f64,
    /// How many kills met the engine in each phase of a poll iteration.
    places: BTreeMap<String, f64>,
    asked: Asked,
}

impl Run {
    /// Returns the part of the kills while a connection had unread bytes.
    fn with_unread_bytes(&self) -> f64 {
        let some = self.unread.iter().filter(|count| **count > 0.0).count();
        some as f64 / self.unread.len() as f64
    }

    fn resumed(&self, kills: usize) -> f64 {
        self.resumptions as f64 / kills as f64
    }
}

/// Returns the time until the next kill.
fn pause(random: &mut Rng) -> Duration {
    BETWEEN[0] + (BETWEEN[1] - BETWEEN[0]).mul_f64(random.f64())
}

/// Starts everything, kills servers, and waits for the connections.
fn run(towpath: &Path, device: Device, kills: usize) -> anyhow::Result<Run> {
    let files = OwnSocket::new()?;
    let _keeper = Child::start(&Keep { directory: files.directory().to_owned() })?;
    let (arguments, kernel) = device.make()?;
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (serve, network) = Serve::start(towpath, (files.directory(), "kills"), &arguments)?;
    let streams = Streams::between(&network, (CONNECTIONS, Load::STEADY), |to| kernel.connect(to))?;
    let requests = Requests::start(&network, &kernel, &serve)?;
    let Ran { outcome, lost, bytes } = streams.run(|progress| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking = scope.spawn(|| requests.ask(&over));
            let windows = kill_servers(&serve, progress, kills);
            over.store(true, Ordering::Relaxed);
            let asked = asking.join().map_err(|_| anyhow::anyhow!("a thread failed"))?;
            anyhow::Ok((windows?, asked?))
        })
    })?;
    let (Windows { mut killed, mut quiet, unread }, asked) = outcome?;
    killed.sort_by(f64::total_cmp);
    quiet.sort_by(f64::total_cmp);
    let log = serve.log()?;
    let (resumptions, places) = (resumptions(&network, &serve)?, places(&log));
    // The first server also logs this line.
    let new_sockets = log.matches("KiB for packets, in ").count().saturating_sub(1) as f64;
    Ok(Run { lost, resumptions, bytes, killed, quiet, unread, new_sockets, places, asked })
}

/// The windows of a run.
#[derive(Default)]
struct Windows {
    /// The longest pauses of all connections in the windows with and without a kill, in milliseconds.
    killed: Vec<f64>,
    quiet: Vec<f64>,
    /// The connections with unread bytes at each kill.
    unread: Vec<f64>,
}

/// Kills servers, with a quiet window before each kill.
fn kill_servers(serve: &Serve, progress: &[Progress], kills: usize) -> anyhow::Result<Windows> {
    let mut random = Rng::with_seed(14);
    let mut windows = Windows::default();
    let take = |to: &mut Vec<f64>| {
        to.extend(progress.iter().map(|one| one.take_longest_pause().as_secs_f64() * 1e3));
    };
    // Until every connection runs.
    thread::sleep(Duration::from_millis(500));
    let mut unused = Vec::new();
    for _ in 0..kills {
        take(&mut unused);
        thread::sleep(pause(&mut random));
        take(&mut windows.quiet);
        let unread = progress.iter().filter(|one| one.has_unread_bytes()).count();
        windows.unread.push(unread as f64);
        let before = serve.kill_server()?;
        thread::sleep(pause(&mut random));
        // A pause that has not ended belongs to this kill, too.
        let until = Instant::now() + LOST;
        while serve.server().is_none_or(|now| now == before) {
            ensure!(Instant::now() < until, "no other server followed");
            thread::sleep(Duration::from_millis(1));
        }
        take(&mut windows.killed);
    }
    Ok(windows)
}

/// Returns how often the application claimed its session.
fn resumptions(network: &Network, serve: &Serve) -> anyhow::Result<u64> {
    let report = towpath_client::report(&serve.socket)?;
    ensure!(report["sessions"].as_array().is_some_and(|all| all.len() == 1), "one session");
    if network.addresses().is_empty() {
        bail!("the application has lost its addresses");
    }
    Ok(serve.log()?.matches("claimed session=").count() as u64)
}

/// Counts the phases in which the keeper found the engine of each killed server, by its log.
fn places(log: &str) -> BTreeMap<String, f64> {
    let mut places = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("killed by signal 9")) {
        let place = line.split_once("(engine 0: ").and_then(|(_, rest)| rest.split_once(')'));
        let place = place.map_or("an unknown phase", |(place, _)| place);
        let phase = place.split([' ', ',']).next().unwrap_or(place);
        *places.entry(phase.to_owned()).or_insert(0.0) += 1.0;
    }
    places
}
