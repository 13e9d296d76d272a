//! Server and applications as processes, of which one is killed.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::thread::CapabilitySet;
use serde_json::Value;
use towpath_sandbox::{Executable, Namespace, Users};

use super::addresses::{ECHO_V4, EXTRA_V4, WEB_V4};
use super::cast::{Directory, Player, Start};
use super::load::{Amounts, drive};
use super::parts::{self, Part, Script};
use super::table::{self, Killed, NAMES, Outcome};
use super::traffic::{Content, Flood, Progress};
use super::wire::Wire;

/// The name of the application to be killed.
const EXTRA: &str = "extra";
/// The time that a killed application's session may outlive it.
const RECLAIM: Duration = Duration::from_secs(5);

/// Starts the server and the applications, runs the traffic, and kills one application in its
/// middle.
pub(super) fn run(wire: Wire, content: &Content, amounts: Amounts) -> anyhow::Result<Outcome> {
    let users = Users::find();
    let program = Executable::current()?;
    let nowhere = Namespace::create()?;
    let directory = Directory::make(users.server, users.distinct)?;
    let allowed =
        if users.distinct { users.applications.map(|user| user.uid).to_vec() } else { vec![] };
    let script = |name: &str, ipv4| Script {
        socket: directory.socket(),
        name: name.to_owned(),
        ipv4,
        users: Vec::new(),
        attach: false,
        part: None,
    };
    let attach = wire.namespace().is_some();
    let serving = Script { users: allowed, attach, ..script("server", None) };
    let start_server = Start {
        user: users.server,
        capabilities: wire.capabilities(),
        input: wire.descriptor()?,
        namespace: wire.namespace(),
    };
    let server = Player::start(&program, Part::Server, &serving, start_server)?;
    // From here on the device belongs to the server, and ends with it.
    drop(wire);
    let start = |part, name: &str, ipv4, user, input| {
        let (capabilities, namespace) = (CapabilitySet::empty(), Some(&nowhere));
        let how = Start { user, capabilities, input, namespace };
        Player::start(&program, part, &script(name, Some(ipv4)), how)
    };
    let [web_user, echo_user] = users.applications;
    let file = content.file.as_fd().try_clone_to_owned()?;
    let mut web = start(Part::Web, NAMES[0], WEB_V4, web_user, Some(file))?;
    let mut echo = start(Part::Echo, NAMES[1], ECHO_V4, echo_user, None)?;
    let report = || towpath_client::report(directory.socket()).context("asking the server");
    let early = table::unmatched(&report()?);

    let (traffic, killed) = drive(content, amounts, |progress| {
        let before = held(server.pid());
        let extra = start(Part::Echo, EXTRA, EXTRA_V4, web_user, None)?;
        ensure!(lists_extra(&report()?), "the application to be killed is not in the report");
        kill_in_traffic(extra, progress, amounts, || {
            // The report drops the session first; its memory goes when the engine has released it.
            // On a busy machine, the server may have held files of others for a moment before.
            Ok(lists_extra(&report()?) || held(server.pid()) > before)
        })
    })?;

    let statements = [web.statement()?, echo.statement()?];
    let report = report()?;
    for player in [web, echo, server] {
        player.end()?;
    }
    let mut failures = Vec::new();
    if directory.is_there() {
        failures.push("the server left its socket's directory behind".to_owned());
    }
    Ok(Outcome {
        report,
        early,
        statements,
        carried: traffic.carried,
        udp: traffic.udp,
        pings: traffic.pings,
        killed: Some(killed),
        processes: true,
        failures,
    })
}

/// Returns `true` if the report has the application that is to be killed.
fn lists_extra(report: &Value) -> bool {
    let sessions = report["sessions"].as_array().into_iter().flatten();
    sessions.into_iter().any(|session| session["name"] == EXTRA)
}

/// Returns the number of memory files that a process holds; `None` if the caller may not see it.
fn held(pid: u32) -> Option<usize> {
    Some(towpath_sandbox::Census::of(pid).ok()?.memory_files.values().sum())
}

/// Returns the number of buffers of an application's session.
fn session_buffers() -> u32 {
    let options = parts::session_options("", None);
    options.queue_pairs * (options.transmit_slots + options.receive_slots)
}

/// Kills an application in the middle of all traffic, including its own. Waits until the server has
/// released its session and memory.
fn kill_in_traffic(
    extra: Player,
    progress: &Progress,
    amounts: Amounts,
    mut is_there: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Killed> {
    let mut flood = Flood::start(EXTRA_V4)?;
    let start = Instant::now();
    let half = amounts.round_trips / 2;
    flood.keep_up(|| {
        let there = progress.round_trips.load(Ordering::Relaxed) >= half;
        there && start.elapsed() > Duration::from_millis(100)
            || progress.stop.load(Ordering::Relaxed)
    })?;
    ensure!(flood.answered() > 0, "the application to be killed answered nothing");
    extra.kill()?;
    let killed = Instant::now();
    flood.send_after_death()?;
    while is_there()? {
        ensure!(
            killed.elapsed() < RECLAIM,
            "the killed application's session, or its memory, is still there"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Killed {
        frames: session_buffers(),
        answered: flood.answered(),
        unanswered: flood.unanswered(),
        after_ms: killed.elapsed().as_millis(),
    })
}
