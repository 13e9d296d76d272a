//! Attacks: a neighbour's round trips and attachments while an unprivileged program attacks the
//! objects and limits that it shares with the server.
//!
//! Server, attacker and neighbour are three users where this program may become them, and one user
//! otherwise. Each attack has its own server and neighbour; windows without and with the attack
//! alternate. The experiment first measures four programs that do not touch the server: one only
//! computes, two build wait queues on sockets of their own, and one locks a file of its own. These baselines show the
//! kernel's part of a neighbour's loss.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};
use towpath_attacks::neighbour::{Neighbour, Seen, Times};
use towpath_attacks::{Attack, Field, fuse_is_usable};
use towpath_testkit::{Executable, User, Users};

use crate::Settings;
use crate::child::{Child, OwnSocket, ROLE_FLAG, Role, tell};
use crate::interval::intervals;
use crate::process::Serving;
use crate::report::{Outcome, Row};
use crate::statistics::Summary;

/// The limit of the attacked 99.9th percentile, as a multiple of the undisturbed one, and of the 99th, as a multiple of
/// the baseline's.
const AT_MOST: f64 = 2.0;
/// The longest duration of an attack.
const LONGEST: Duration = Duration::from_secs(30);
/// What the neighbour completes between two windows: 20 round trips and 3 attachments within 15000
/// ms.
const RECOVERY: &str = "until 20 3 15000";
/// Attacks that `--quick` leaves out: they take seconds to begin, or their server to recover.
const SLOW: [&str; 13] = [
    "waiters-poll",
    "reports",
    "reports-large",
    "endpoints",
    "large-memories",
    "page-collapse",
    "page-collapse-wide",
    "page-remove",
    "report-tail",
    "linger-granted",
    "record-locks",
    "memories",
    "tripwires",
];
/// Wait-queue entries with `--quick`.
const FEW: &str = "size=20000";

/// The times of one kind of operation, and one of their figures.
type Kind = fn(&Seen) -> &Times;
type Figure = fn(&Times) -> u64;

/// Pairs of windows of one attack.
type Pairs = Vec<[Seen; 2]>;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let users = Users::find();
    let window = Duration::from_millis(if settings.quick { 60 } else { 400 });
    let mut outcome = Outcome {
        how: format!(
            "server, attacker and neighbour: processes of {}; the engine sleeps when it is idle; \
             the neighbour makes round trips between two sessions and attaches a third, asleep while \
             it waits; nothing is pinned; windows of {} ms without and with the attack in turn; an \
             operation under way at a window's end counts with its time so far",
            if users.distinct { "three users" } else { "one user" },
            window.as_millis()
        ),
        ..Outcome::default()
    };
    for attack in Attack::BASELINES.into_iter().chain(Attack::ALL) {
        if settings.quick && SLOW.contains(&attack.name) {
            continue;
        }
        let site = Site::open(attack, users)?;
        if attack.needs_fuse && !fuse_is_usable(&site.node) {
            continue;
        }
        let pairs = site.pairs(attack, settings, window).context(attack.name)?;
        add_rows(&mut outcome, attack, &pairs);
    }
    Ok(outcome)
}

/// Adds a row for the ratio of the 99.9th percentiles, and context rows for the rest.
fn add_rows(outcome: &mut Outcome, attack: Attack, pairs: &Pairs) {
    let name = attack.name;
    let kinds: [(&str, Kind); 2] =
        [("round trip", |seen| &seen.trips), ("attach", |seen| &seen.attaches)];
    for (what, times) in kinds {
        let ratio = |[quiet, attacked]: &[Seen; 2]| {
            times(attacked).p999 as f64 / times(quiet).p999.max(1) as f64
        };
        let ratios: Vec<f64> = pairs.iter().map(ratio).collect();
        let row = format!("{name}: {what} p99.9, attacked to undisturbed");
        let row = Row::new(&row, &[], "ratio", &ratios);
        let baseline = attack.baseline;
        if let Some(baseline) = baseline
            && let Some(compared) =
                outcome.context.iter().find(|row| row.name == p999(baseline, what))
        {
            let ratio =
                |[_, attacked]: &[Seen; 2]| times(attacked).p999 as f64 / 1e3 / compared.value;
            let ratios: Vec<f64> = pairs.iter().map(ratio).collect();
            let row = format!("{name}: {what} p99.9, attacked to {baseline}");
            outcome.context.push(Row::new(&row, &[], "ratio", &ratios));
        }
        if let Some(baseline) = baseline {
            outcome.rows.extend(beside_baseline(outcome, (name, baseline, what), pairs, times));
        }
        // A baseline is no attack, so its rows have no limit.
        outcome.rows.push(if baseline.is_some() { row.at_most(AT_MOST) } else { row });
        let figures: [(&str, Figure); 4] = [
            ("p50", |times| times.p50),
            ("p99", |times| times.p99),
            ("p99.9", |times| times.p999),
            ("worst", |times| times.worst),
        ];
        for (figure, of) in figures {
            for (place, state) in ["undisturbed", "attacked"].into_iter().enumerate() {
                let values: Vec<f64> =
                    pairs.iter().map(|pair| of(times(&pair[place])) as f64 / 1e3).collect();
                let row = format!("{name}: {what} {figure}, {state}");
                outcome.context.push(Row::new(&row, &[], "us", &values));
            }
        }
    }
}

/// Returns the end of the confidence interval of an attack's 99th percentile, to that of its baseline. `None` without
/// the baseline's row.
fn beside_baseline(
    outcome: &Outcome,
    (name, baseline, what): (&str, &str, &str),
    pairs: &Pairs,
    times: Kind,
) -> Option<Row> {
    let found = format!("{baseline}: {what} p99, attacked");
    let compared = outcome.context.iter().find(|row| row.name == found)?.value;
    let ratios: Vec<f64> =
        pairs.iter().map(|[_, attacked]| times(attacked).p99 as f64 / 1e3 / compared).collect();
    let median = |places: &[usize]| {
        let drawn: Vec<f64> = places.iter().map(|place| ratios[*place]).collect();
        [Summary::of(&drawn).median]
    };
    let [interval] = intervals(ratios.len(), 1, median);
    let row = format!("{name}: {what} p99, attacked to {baseline}, upper end of the interval");
    Some(Row::new(&row, &[], "ratio", &[interval.high]).at_most(AT_MOST))
}

/// Returns the name of a baseline's row. The row exists, because the experiment measures baselines
/// first.
fn p999(baseline: &str, what: &str) -> String {
    format!("{baseline}: {what} p99.9, attacked")
}

/// A server and a neighbour. Rust drops the fields in this order.
struct Site {
    neighbour: std::cell::RefCell<Child>,
    _server: Child,
    socket: OwnSocket,
    node: PathBuf,
    attacker: User,
}

impl Site {
    fn open(attack: Attack, users: Users) -> anyhow::Result<Site> {
        let [attacker, neighbour] = users.applications;
        let mut granted = vec![neighbour.uid];
        if attack.attaches {
            granted.push(attacker.uid);
        }
        let socket = OwnSocket::new()?;
        let serving = Serving { users: granted, ..Serving::memory(1500) };
        let server = start_as(&Role::Serve { serving, socket: socket.path() }, users.server)?;
        let neighbour = start_as(&Role::Neighbour { socket: socket.path() }, neighbour)?;
        let node = fuse_node(&socket.path(), users);
        let neighbour = std::cell::RefCell::new(neighbour);
        Ok(Site { neighbour, _server: server, socket, node, attacker })
    }

    fn pairs(&self, attack: Attack, settings: Settings, window: Duration) -> anyhow::Result<Pairs> {
        let order = format!("window {}", window.as_millis());
        let attacked = || -> anyhow::Result<Seen> {
            let attacker = self.attacker(attack, settings)?;
            let seen = self.ask(&order);
            drop(attacker);
            self.ask(RECOVERY)?;
            seen
        };
        self.ask(&order)?;
        let mut pairs = Pairs::new();
        for pair in 0..settings.pairs() {
            pairs.push(if pair % 2 == 0 {
                let quiet = self.ask(&order)?;
                [quiet, attacked()?]
            } else {
                let attacked = attacked()?;
                [self.ask(&order)?, attacked]
            });
        }
        Ok(pairs)
    }

    fn attacker(&self, attack: Attack, settings: Settings) -> anyhow::Result<Child> {
        let mut options = vec![format!("fuse={}", self.node.display())];
        if settings.quick && attack.name.starts_with("waiters") {
            options.push(FEW.into());
        }
        let (name, socket) = (attack.name.to_owned(), self.socket.path());
        start_as(&Role::Attack { name, socket, options }, self.attacker)
    }

    fn ask(&self, order: &str) -> anyhow::Result<Seen> {
        let mut neighbour = self.neighbour.borrow_mut();
        neighbour.say(order)?;
        Seen::read(&neighbour.hear()?).context("an invalid answer of the neighbour")
    }
}

/// Makes a node of the FUSE device that the attacker may open, as most distributions have it. The
/// server removes the node with its directory.
fn fuse_node(socket: &Path, users: Users) -> PathBuf {
    let node = socket.with_file_name("fuse");
    let everyone = Mode::from_raw_mode(0o666);
    let made = users.distinct
        && mknodat(CWD, &node, FileType::CharacterDevice, everyone, makedev(10, 229)).is_ok()
        && chmod(&node, everyone).is_ok();
    if made { node } else { "/dev/fuse".into() }
}

/// Starts a process of this program as a user.
pub(crate) fn start_as(role: &Role, user: User) -> anyhow::Result<Child> {
    let program = Executable::current()?;
    let mut command = program.command();
    command.arg(ROLE_FLAG).arg(serde_json::to_string(role)?);
    user.confine(&mut command);
    Child::start_command(command)
}

/// Runs the attacker's process: reports when the attack has begun, ends it when its input ends, and
/// reports its deeds.
pub(crate) fn attack(name: &str, socket: &Path, options: &[String]) -> anyhow::Result<()> {
    let attack = Attack::from_name(name).context("no such attack")?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let field = Field::new(socket, LONGEST).options(&options).map_err(anyhow::Error::msg)?;
    let deeds: BTreeMap<_, _> = attack.run(&field)?.into_iter().collect();
    // The parent may not wait for it.
    let _ = tell(&serde_json::to_string(&deeds)?);
    Ok(())
}

/// Runs the neighbour's process: measures on each command until its input ends.
pub(crate) fn neighbour(socket: &Path) -> anyhow::Result<()> {
    let neighbour = Neighbour::start(socket, false).map_err(|error| anyhow::anyhow!("{error}"))?;
    tell("ready")?;
    for line in std::io::stdin().lines() {
        let seen = neighbour.follow(&line?).context("no such command")?;
        tell(&seen.to_string())?;
    }
    Ok(())
}
