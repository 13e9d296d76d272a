//! An application that overwrites random words of all memory that it may write, beside a neighbour
//! with TCP connections to the kernel. At 1, the neighbour loses nothing to it.
//!
//! `towpath serve` serves a TAP. Server, hostile application and neighbour are three users where this
//! program may become them. The hostile application attaches anew each time that the server closes its
//! session. In windows that alternate with those, a program of the same user only computes. The
//! neighbour, this process, checks every byte that it receives in all windows, and `tcpdump` records each
//! frame from the server that does not carry the neighbour's own two addresses.

mod frames;

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use towpath_attacks::Attack;
use towpath_testkit::{User, Users};

use crate::Settings;
use crate::attacks::{AttackerProcess, start_as};
use crate::child::{Child, Keep, OwnSocket};
use crate::programs::{Serve, own_program, program};
use crate::report::{Outcome, Row};
use crate::soak::{GROWTH_KIB, Holding};
use crate::streams::{LOST, Load, Progress, Ran, Streams};

use frames::{Frames, Watch};

const TAP: &str = "tphost0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);
/// The longest time without a byte. A server that hangs would take longer.
const LONGEST_MS: f64 = 2000.0;
/// The least throughput beside the hostile application, as a part of that beside a busy one.
const AT_LEAST: f64 = 0.95;
/// The fewest words that a hostile application overwrites in a second: it must not stand still.
const LEAST_WORDS: f64 = 1000.0;
/// The time from the end of a window to the next one, in which the server forgets its session.
const BETWEEN: Duration = Duration::from_millis(200);

/// How long an experiment takes.
struct Plan {
    pairs: usize,
    window: Duration,
    /// Hostile applications at the same time, and as many busy programs in the other windows.
    attackers: usize,
}

impl Plan {
    fn of(settings: Settings) -> Plan {
        let plan = |pairs, seconds, attackers| Plan {
            pairs,
            window: Duration::from_secs(seconds),
            attackers,
        };
        match settings {
            Settings { quick: true, .. } => plan(2, 2, 1),
            // An hour of hostile time.
            Settings { full: true, .. } => plan(60, 15, 4),
            Settings { .. } => plan(6, 10, 1),
        }
    }
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let (plan, users) = (Plan::of(settings), Users::find());
    let mut outcome = Outcome {
        how: format!(
            "towpath serve on a TAP; server, hostile application and neighbour: processes of {}; the \
             neighbour has a TCP connection with the kernel in each direction, as fast as they go; {} \
             hostile application(s) at a time; windows of {} s with the hostile and with a busy program \
             in turn; all wait as by default, nothing pinned",
            if users.distinct { "three users" } else { "one user" },
            plan.attackers,
            plan.window.as_secs()
        ),
        ..Outcome::default()
    };
    let Some(towpath) = outcome.needs(own_program("towpath")) else { return Ok(outcome) };
    let Some(tcpdump) = outcome.needs(program("tcpdump", "tcpdump")) else { return Ok(outcome) };
    let found = run(&plan, users, &towpath, &tcpdump)?;
    let parameters = [("attackers", plan.attackers as f64)];
    let row = |name: &str, unit: &str, values: &[f64]| Row::new(name, &parameters, unit, values);
    let ratios: Vec<f64> =
        found.windows.iter().map(|[hostile, busy]| hostile.rate / busy.rate).collect();
    let of = |side: usize, figure: fn(&Window) -> f64| -> Vec<f64> {
        found.windows.iter().map(|pair| figure(&pair[side])).collect()
    };
    let sum = |figure: fn(&Window) -> f64| -> f64 { of(0, figure).iter().sum() };
    let words: Vec<f64> = of(0, |one| one.words / one.seconds);
    let longest = of(0, |window| window.longest_ms).into_iter().fold(0.0, f64::max);
    outcome.rows.extend([
        row("neighbour's throughput, hostile to busy", "ratio", &ratios).at_least(AT_LEAST),
        row("words overwritten, by each application", "words/s", &words).at_least(LEAST_WORDS),
        row("hostile processes that ended by themselves", "processes", &[sum(|one| one.died)])
            .at_most(0.0),
        row("longest time without a byte of the neighbour, hostile", "ms", &[longest])
            .at_most(LONGEST_MS),
        row("connections of the neighbour lost", "connections", &[found.lost as f64]).at_most(0.0),
        row("packets of others in the hostile memory", "packets", &[sum(|one| one.foreign)])
            .at_most(0.0),
        row("frames that no right of their sender allows", "frames", &[found.forged]).at_most(0.0),
        row("frames that tcpdump missed", "frames", &[found.missed]).at_most(0.0),
        row("servers that ended", "servers", &[found.servers_ended]).at_most(0.0),
        row("sessions left", "sessions", &[found.sessions_left]).at_most(0.0),
        row("descriptors of the server beyond those at the start", "descriptors", &[found.grown.0])
            .at_most(0.0),
        row("memory of the server beyond that at the start", "KiB", &[found.grown.1])
            .at_most(GROWTH_KIB),
    ]);
    outcome.context.extend([
        row("neighbour's throughput, hostile", "Gbit/s", &of(0, |one| one.rate * 8e-9)),
        row("neighbour's throughput, busy", "Gbit/s", &of(1, |one| one.rate * 8e-9)),
        row(
            "longest time without a byte of the neighbour, busy",
            "ms",
            &of(1, |one| one.longest_ms),
        ),
        row("hostile time, all applications together", "s", &[sum(|one| one.seconds)]),
        row("words overwritten", "words", &[sum(|one| one.words)]),
        row("hostile sessions that the server closed", "sessions", &[sum(|one| one.sessions)]),
        row("frames of others that tcpdump saw", "frames", &[found.frames]),
        row(
            "bytes of the neighbour that arrived and were right",
            "MB",
            &[found.bytes as f64 / 1e6],
        ),
    ]);
    Ok(outcome)
}

/// One window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// The neighbour's bytes a second, in both directions together.
    rate: f64,
    longest_ms: f64,
    /// The duration, once for each attacker.
    seconds: f64,
    words: f64,
    sessions: f64,
    foreign: f64,
    died: f64,
}

/// What was found in all windows: those with the hostile application first.
struct Found {
    windows: Vec<[Window; 2]>,
    lost: usize,
    bytes: u64,
    forged: f64,
    frames: f64,
    missed: f64,
    servers_ended: f64,
    sessions_left: f64,
    /// Descriptors and KiB beyond those at the start.
    grown: (f64, f64),
}

fn run(plan: &Plan, users: Users, towpath: &Path, tcpdump: &Path) -> anyhow::Result<Found> {
    let files = OwnSocket::new()?;
    let _keeper = Child::start(&Keep { directory: files.directory().to_owned() })?;
    let [attacker, _] = users.applications;
    let (device, network) = (format!("tap:{TAP}"), format!("{ADDRESS}/24"));
    let (server, granted) = (format!("{0}:{0}", users.server.uid), attacker.uid.to_string());
    let mut arguments = vec!["--device", &device, "--address", &network];
    if users.distinct {
        std::os::unix::fs::chown(files.directory(), Some(users.server.uid), None)?;
        arguments.extend(["--user", &server, "--allow-user", &granted]);
    }
    let (serve, network) = Serve::start(towpath, (files.directory(), "hostile"), &arguments)?;
    let watch = Watch::start(tcpdump, &serve, TAP)?;
    // One in each direction.
    let load = (2, Load::UNPACED);
    let neighbour = Streams::between(&network, load, |to| Ok(TcpStream::connect(to)?))?;
    let site = Site { serve: &serve, attacker, plan };
    let Ran { outcome, lost, bytes } = neighbour.run(|progress| -> anyhow::Result<_> {
        // The first sessions of these users cost memory that stays.
        site.window(Attack::OVERWRITE, 0, progress)?;
        let (process, first) = (serve.pid()?, site.holding()?);
        let mut windows = Vec::new();
        for pair in 0..plan.pairs {
            let seed = 1 + (pair * plan.attackers) as u64;
            let hostile = || site.window(Attack::OVERWRITE, seed, progress);
            let busy = || site.window(Attack::BUSY, seed, progress);
            windows.push(if pair % 2 == 0 {
                [hostile()?, busy()?]
            } else {
                let busy = busy()?;
                [hostile()?, busy]
            });
        }
        let grown = site.holding()?.beyond(first);
        let same = serve.server() == Some(process);
        Ok((windows, grown, f64::from(u8::from(!same))))
    })?;
    let (windows, grown, servers_ended) = outcome?;
    let sessions_left = site.sessions()? - 1.0;
    let Frames { frames, forged, missed } = watch.end()?;
    Ok(Found { windows, lost, bytes, forged, frames, missed, servers_ended, sessions_left, grown })
}

/// The server and its attackers.
struct Site<'a> {
    serve: &'a Serve,
    attacker: User,
    plan: &'a Plan,
}

impl Site<'_> {
    /// Measures the neighbour for the time of a window while attackers act, with seeds from this one
    /// on.
    fn window(&self, attack: Attack, seed: u64, progress: &[Progress]) -> anyhow::Result<Window> {
        let start = |number: usize| {
            let options = vec![format!("size={}", seed + number as u64)];
            let (name, socket) = (attack.name.to_owned(), self.serve.socket.clone());
            start_as(&AttackerProcess { name, socket, options }, self.attacker)
        };
        let attackers: Vec<_> =
            (0..self.plan.attackers).map(start).collect::<anyhow::Result<_>>()?;
        let bytes = || progress.iter().map(Progress::bytes).sum::<u64>();
        let longest =
            || progress.iter().map(Progress::take_longest_pause).max().unwrap_or_default();
        longest();
        let (before, begun) = (bytes(), Instant::now());
        thread::sleep(self.plan.window);
        let (taken, moved) = (begun.elapsed().as_secs_f64(), bytes() - before);
        let mut window = Window {
            rate: moved as f64 / taken,
            longest_ms: longest().as_secs_f64() * 1e3,
            seconds: taken * attackers.len() as f64,
            ..Window::default()
        };
        for attacker in attackers {
            // An application that overwrites its own library's memory may end itself.
            let Ok(deeds) = attacker.end() else {
                window.died += 1.0;
                continue;
            };
            let deeds: serde_json::Value = serde_json::from_str(&deeds)?;
            let count = |name: &str| deeds[name].as_f64().unwrap_or(0.0);
            window.words += count("words");
            window.sessions += count("sessions");
            window.foreign += count("foreign");
        }
        thread::sleep(BETWEEN);
        Ok(window)
    }

    fn sessions(&self) -> anyhow::Result<f64> {
        let report = towpath_client::report(&self.serve.socket)?;
        Ok(report["sessions"].as_array().map_or(0, Vec::len) as f64)
    }

    /// Returns what the server holds once only the neighbour's session is left.
    fn holding(&self) -> anyhow::Result<Holding> {
        let until = Instant::now() + LOST;
        while self.sessions()? > 1.0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(BETWEEN);
        Holding::of(self.serve.pid()?)
    }
}
