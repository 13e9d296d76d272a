//! `towpath demo`: demonstrates Towpath on any Linux machine, with or without root, and leaves
//! nothing behind.
//!
//! In a network namespace of its own, a driver server serves a TAP with the kernel's network stack
//! at the other end. Two applications attach: one serves a file over its own TCP, the other echoes
//! datagrams and answers pings. Ordinary kernel sockets talk to both at once. The demonstration
//! kills a third application in the middle of its traffic. It checks and shows the results.
//!
//! Server and applications are processes without any capability, of three users where the machine
//! lets this program choose. The applications run in a network namespace without any interface, so
//! their packets can pass only through the server.
#![forbid(unsafe_code)]

mod applications;
mod cast;
mod embedded;
mod host;
mod parts;
mod progress;
mod table;
mod traffic;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use towpath_device::tap::{self, TapDevice};
use towpath_netlink::{Netlink, Prefix};
use towpath_sandbox::{EXIT_UNAVAILABLE, Entered, Executable, Namespace, Unavailable, Users};

use cast::{Directory, Player};
use parts::{Part, Script};
use progress::Shown;
use table::{Killed, NAMES, Outcome};
use traffic::{Carried, Content, Flood, Progress, RoundTrips};

/// The kernel's addresses on the TAP.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The addresses of the applications: web, echo, and the one to be killed.
const WEB_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const WEB_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const ECHO_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const ECHO_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3);
const EXTRA_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);
/// The name of the application to be killed.
const EXTRA: &str = "extra";
/// The interface's name in its namespace.
const TAP: &str = "towpath0";
/// The time limit of all traffic.
const DEADLINE: Duration = Duration::from_secs(35);
/// The time that a killed application's session may outlive it.
const RECLAIM: Duration = Duration::from_secs(5);

/// Options of `towpath demo`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Run server and applications as threads of one process
    #[arg(long)]
    embedded: bool,
    /// Send a sixteenth of the traffic
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    script: Script,
}

/// The amount of traffic.
#[derive(Debug, Clone, Copy)]
struct Amounts {
    file_bytes: u64,
    round_trips: u64,
    pings: u64,
}

/// Runs the demonstration. Call it while the process has one thread.
///
/// The exit status is 0 if every check held, 77 if this machine allows no network namespace or no
/// TAP, else 1.
#[must_use]
pub(crate) fn run(args: Args) -> ExitCode {
    if let Some(part) = args.script.part {
        return parts::play(part, &args.script);
    }
    match demonstrate(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let refused = error.downcast_ref::<towpath_sandbox::Error>();
            if let Some(Unavailable { cause, remedy }) =
                refused.and_then(|error| error.unavailable())
            {
                eprintln!("towpath demo: {cause}; {remedy}");
                return ExitCode::from(EXIT_UNAVAILABLE);
            }
            eprintln!("towpath demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns `true` if every check held.
fn demonstrate(args: &Args) -> anyhow::Result<bool> {
    let amounts = if args.quick {
        Amounts { file_bytes: 4 << 20, round_trips: 625, pings: 62 }
    } else {
        Amounts { file_bytes: 64 << 20, round_trips: 10_000, pings: 1000 }
    };
    towpath_sandbox::check_tun().map_err(towpath_sandbox::Error::Unavailable)?;
    let entered = towpath_sandbox::enter()?;
    // Without packets of the kernel's own, the counters are clearer. The demonstration works either
    // way.
    let _ = Namespace::current()?.silence();
    let device = TapDevice::open(&tap::Options { name: TAP.to_owned(), offloads: true })?;
    let mut netlink = Netlink::open()?;
    netlink.add_address(TAP, Prefix::new(GATEWAY_V4.into(), 24)?)?;
    netlink.add_address(TAP, Prefix::new(GATEWAY_V6.into(), 64)?)?;
    netlink.set_up(TAP)?;
    drop(netlink);
    let content = Content::make(amounts.file_bytes)?;
    let mut outcome = if args.embedded {
        embedded::run(device, &content, amounts)?
    } else {
        in_processes(device, &content, amounts)?
    };
    outcome.judge(amounts.round_trips, amounts.pings);
    let who = match entered {
        Entered::AsRoot => "as root",
        Entered::AsUser => "without root",
    };
    let how = if args.embedded { "in one process, " } else { "" };
    println!(
        "Two applications and the kernel's own stack, {how}{who}, over a TAP in a network \
         namespace\n"
    );
    print!("{}", outcome.table());
    for failure in &outcome.failures {
        println!("FAILED: {failure}");
    }
    if outcome.failures.is_empty() {
        println!("every check held");
    }
    Ok(outcome.failures.is_empty())
}

/// The traffic of all kinds, at once, while this thread does other work.
struct Traffic {
    carried: [Carried; 2],
    udp: RoundTrips,
    pings: RoundTrips,
}

fn drive<T>(
    content: &Content,
    amounts: Amounts,
    meanwhile: impl FnOnce(&Progress) -> anyhow::Result<T>,
) -> anyhow::Result<(Traffic, T)> {
    let progress = Progress::default();
    let mut shown = Shown::new(amounts.round_trips, amounts.pings);
    let until = Instant::now() + DEADLINE;
    std::thread::scope(|scope| {
        let http = scope.spawn(|| traffic::files(content, WEB_V4, WEB_V6, &progress));
        let udp = scope.spawn(|| traffic::round_trips(ECHO_V4, amounts.round_trips, &progress));
        let pings = scope.spawn(|| traffic::pings(ECHO_V4, ECHO_V6, amounts.pings, &progress));
        let watch = scope.spawn(|| {
            while !(http.is_finished() && udp.is_finished() && pings.is_finished()) {
                if udp.is_finished() && pings.is_finished() {
                    progress.enough.store(true, Ordering::Relaxed);
                }
                if Instant::now() > until {
                    progress.stop.store(true, Ordering::Relaxed);
                }
                shown.show(&progress);
                std::thread::sleep(Duration::from_millis(20));
            }
            shown.clear();
            (http.join(), udp.join(), pings.join())
        });
        let meanwhile = meanwhile(&progress);
        if meanwhile.is_err() {
            progress.stop.store(true, Ordering::Relaxed);
        }
        let joined = watch.join().map_err(|_| anyhow::anyhow!("the traffic panicked"))?;
        let (Ok(carried), Ok(udp), Ok(pings)) = joined else {
            anyhow::bail!("the traffic panicked");
        };
        // A failure around the killed application is reported first: the others follow from it.
        let meanwhile = meanwhile?;
        Ok((
            Traffic {
                carried: carried.context("HTTP")?,
                udp: udp.context("UDP")?,
                pings: pings.context("ping")?,
            },
            meanwhile,
        ))
    })
}

fn in_processes(device: TapDevice, content: &Content, amounts: Amounts) -> anyhow::Result<Outcome> {
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
        part: None,
    };
    let serving = Script { users: allowed, ..script("server", None) };
    let descriptor = device.as_fd().try_clone_to_owned()?;
    let server =
        Player::start(&program, Part::Server, &serving, users.server, Some(descriptor), None)?;
    // From here on the interface belongs to the server, and ends with it.
    drop(device);
    let start = |part, name: &str, ipv4, user, input| {
        Player::start(&program, part, &script(name, Some(ipv4)), user, input, Some(&nowhere))
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
        let holds = |report: &Value| {
            let sessions = report["sessions"].as_array().into_iter().flatten();
            sessions.into_iter().any(|session| session["name"] == EXTRA)
        };
        ensure!(holds(&report()?), "the application to be killed is not in the report");
        kill_in_traffic(extra, progress, amounts, || {
            // The report drops the session first; its memory goes when the engine has released it.
            Ok(holds(&report()?) || held(server.pid()) != before)
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
