//! Everything at once, for 15, 60 or 600 s (`--quick`, by default, `--full`): servers that are killed
//! and upgraded, applications that are killed, and a wire with faults, under TCP of which every byte is
//! checked.
//!
//! `towpath serve` serves a TAP and injects faults. One application, this process, has connections with
//! the kernel. Others send to themselves until they are killed. At the end, nothing of these is left in
//! the server or in its keeper.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fastrand::Rng;
use rustix::process::Signal;

use crate::Settings;
use crate::child::{Child, Keep, OwnSocket};
use crate::isolation::Application;
use crate::programs::{Serve, own_program};
use crate::report::{Outcome, Row};
use crate::streams::{LOST, Load, Ran, Streams};

const TAP: &str = "tpsoak0";
/// The TAP's address. The first application gets the next one.
const ADDRESS: &str = "10.96.0.1";
const CONNECTIONS: usize = 20;
/// The applications that are killed, at most so many at a time.
const VICTIMS: usize = 4;
const FAULTS: &str = "drop=0.001,dup=0.001,reorder=0.001,flip=0.0001,seed=14";
/// The least and the most time between two events.
const BETWEEN: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(250)];
/// The growth of a process that counts as none, in KiB: allocators keep some memory.
pub(crate) const GROWTH_KIB: f64 = 4096.0;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let seconds = match settings {
        Settings { quick: true, .. } => 15,
        Settings { full: true, .. } => 600,
        Settings { .. } => 60,
    };
    let mut outcome = Outcome {
        how: format!(
            "towpath serve on a TAP with --fault {FAULTS}; {CONNECTIONS} connections between the kernel \
             and one application, half of them in each direction; every {} to {} ms, at moments from a \
             seed: the server is killed or upgraded, or another application is started or killed; all \
             wait as by default, nothing pinned",
            BETWEEN[0].as_millis(),
            BETWEEN[1].as_millis()
        ),
        ..Outcome::default()
    };
    let Some(towpath) = outcome.needs(own_program("towpath")) else { return Ok(outcome) };
    let (found, events) = run(&towpath, Duration::from_secs(seconds))?;
    let row = |name: &str, unit: &str, value: f64| {
        Row::new(name, &[("seconds", seconds as f64)], unit, &[value])
    };
    outcome.rows.extend([
        row("connections lost", "connections", found.lost as f64).at_most(0.0),
        row("sessions of killed applications left", "sessions", found.sessions).at_most(0.0),
        row("addresses in use beyond the application's", "addresses", found.addresses).at_most(0.0),
        row("descriptors of the keeper beyond those at the start", "descriptors", found.keeper.0)
            .at_most(0.0),
        row("memory of the keeper beyond that at the start", "KiB", found.keeper.1)
            .at_most(GROWTH_KIB),
        row("descriptors of the server beyond those at the start", "descriptors", found.server.0)
            .at_most(0.0),
        row("memory of the server beyond that at the start", "KiB", found.server.1)
            .at_most(GROWTH_KIB),
    ]);
    outcome.context.extend([
        row("servers killed", "servers", events.kills as f64),
        row("servers upgraded", "servers", events.upgrades as f64),
        row("applications killed", "applications", events.victims as f64),
        row("bytes that arrived and were right", "MB", found.bytes as f64 / 1e6),
    ]);
    Ok(outcome)
}

/// What was left at the end, and what was not.
struct Found {
    lost: usize,
    bytes: u64,
    sessions: f64,
    addresses: f64,
    /// Descriptors and KiB beyond those at the start.
    keeper: (f64, f64),
    server: (f64, f64),
}

#[derive(Default)]
struct Events {
    kills: u64,
    upgrades: u64,
    victims: u64,
}

/// The descriptors and the resident private memory, in KiB, of a process. How much of the memory that it
/// shares is resident depends on the packets of the last moment.
#[derive(Clone, Copy)]
pub(crate) struct Holding {
    descriptors: usize,
    kib: f64,
}

impl Holding {
    pub(crate) fn of(process: u32) -> anyhow::Result<Holding> {
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"))?.count();
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = kib.and_then(|text| text.split_whitespace().next()?.parse().ok());
        Ok(Holding { descriptors, kib: kib.context("no RssAnon")? })
    }

    /// Returns the descriptors and the KiB beyond those of `first`.
    pub(crate) fn beyond(self, first: Holding) -> (f64, f64) {
        let descriptors = self.descriptors as f64 - first.descriptors as f64;
        (descriptors.max(0.0), (self.kib - first.kib).max(0.0))
    }
}

/// Returns the holdings of the keeper and of the server, once the server's only session is claimed.
fn holdings(serve: &Serve) -> anyhow::Result<[Holding; 2]> {
    // The next server has taken everything over.
    let until = Instant::now() + LOST;
    loop {
        let report = towpath_client::report(&serve.socket)?;
        let sessions = report["sessions"].as_array().map_or(0, Vec::len);
        let claimed = report["sessions"][0]["unclaimed"].is_null();
        if sessions == 1 && claimed || Instant::now() > until {
            // Both may still have descriptors of messages.
            thread::sleep(Duration::from_millis(200));
            return Ok([Holding::of(serve.keeper())?, Holding::of(serve.pid()?)?]);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Starts the server and the connections, disturbs them for a time, and measures what is left.
fn run(towpath: &Path, time: Duration) -> anyhow::Result<(Found, Events)> {
    let files = OwnSocket::new()?;
    let _keeper = Child::start(&Keep { directory: files.directory().to_owned() })?;
    let device = format!("tap:{TAP}");
    let network = format!("{ADDRESS}/24");
    let arguments = ["--device", &device, "--address", &network, "--fault", FAULTS];
    let (serve, network) = Serve::start(towpath, (files.directory(), "soak"), &arguments)?;
    let connect = |to| Ok(std::net::TcpStream::connect(to)?);
    let streams = Streams::between(&network, (CONNECTIONS, Load::STEADY), connect)?;
    let Ran { outcome, lost, bytes } = streams.run(|_| -> anyhow::Result<_> {
        // The keeper keeps the file of the program that it has upgraded to.
        upgrade(towpath, &serve)?;
        replace_server(&serve)?;
        let first = holdings(&serve)?;
        let events = disturb(towpath, &serve, time)?;
        // The sessions of killed applications are closed by a worker process, which then stays for the next ones. The last
        // server is to have no such session, and so no worker, like the first one.
        holdings(&serve)?;
        replace_server(&serve)?;
        Ok((first, events, holdings(&serve)?))
    })?;
    let ([keeper, server], events, last) = outcome?;
    let report = towpath_client::report(&serve.socket)?;
    let sessions = report["sessions"].as_array().map_or(0, Vec::len);
    let addresses = report["device"]["addresses_in_use"].as_u64().context("no addresses")?;
    let found = Found {
        lost,
        bytes,
        sessions: sessions as f64 - 1.0,
        addresses: addresses as f64 - 1.0,
        keeper: last[0].beyond(keeper),
        server: last[1].beyond(server),
    };
    Ok((found, events))
}

/// Kills the server, and waits for the next one.
fn replace_server(serve: &Serve) -> anyhow::Result<()> {
    let before = serve.kill_server()?;
    let until = Instant::now() + LOST;
    while serve.server().is_none_or(|now| now == before)
        || towpath_client::report(&serve.socket).is_err()
    {
        ensure!(Instant::now() < until, "no other server followed");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn upgrade(towpath: &Path, serve: &Serve) -> anyhow::Result<()> {
    let said = Command::new(towpath).arg("upgrade").arg(&serve.socket).output()?;
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(said.status.success(), "towpath upgrade: {why}");
    Ok(())
}

/// Kills and upgrades servers, and starts and kills applications.
fn disturb(towpath: &Path, serve: &Serve, time: Duration) -> anyhow::Result<Events> {
    let (mut random, mut events) = (Rng::with_seed(15), Events::default());
    let mut victims: Vec<Child> = Vec::new();
    let until = Instant::now() + time;
    while Instant::now() < until {
        thread::sleep(BETWEEN[0] + (BETWEEN[1] - BETWEEN[0]).mul_f64(random.f64()));
        match (random.f64() * 10.0) as u32 {
            0..3 => {
                replace_server(serve)?;
                events.kills += 1;
            }
            3 => {
                upgrade(towpath, serve)?;
                events.upgrades += 1;
            }
            4..7 if victims.len() < VICTIMS => {
                let (socket, cpu) = (serve.socket.clone(), victims.len() % 2);
                victims.push(Child::start(&Application { socket, cpu, burst: 20 })?);
            }
            _ => {
                if let Some(victim) = victims.pop() {
                    victim.signal(Signal::KILL)?;
                    events.victims += 1;
                }
            }
        }
    }
    for victim in victims {
        victim.signal(Signal::KILL)?;
        events.victims += 1;
    }
    Ok(events)
}
