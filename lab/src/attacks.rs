//! Attacks: a neighbour's round trips and attachments while an unprivileged program attacks the
//! objects and limits that it shares with the server.
//!
//! Server, attacker and neighbour are three users where this program may become them, and one user
//! otherwise. Each attack has its own server and neighbour. Three windows alternate: one without the attack, one with
//! the attack, and one with a baseline, which is a program that does not touch the server and loads the machine
//! equally. One baseline computes: it has a thread for each thread of the attacker and of the server's workers, which is
//! runnable for as much of the time, and sleeps as often, as that thread in the window before. Two build wait queues on sockets of their own, and one locks a file of its own.
//! Baselines show the kernel's part of a neighbour's loss. The experiment measures them by themselves, too.

mod load;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};
use serde::{Deserialize, Serialize};
use towpath_attacks::neighbour::{Neighbour, Seen, Times};
use towpath_attacks::{Attack, Field, fuse_is_usable};
use towpath_testkit::{Executable, User, Users};

use crate::Settings;
use crate::attacks::load::Load;
use crate::child::{Child, OwnSocket, Role, give, tell};
use crate::interval::intervals;
use crate::process::{Serve, Serving};
use crate::programs::children;
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
const SLOW: [&str; 15] = [
    "flood-waiters",
    "flood-nested",
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
/// One of the windows of a round.
type State = fn(&Round) -> Option<&Seen>;

/// The windows of one round.
struct Round {
    quiet: Seen,
    attacked: Seen,
    /// With the baseline; `None` for a baseline itself.
    control: Option<Seen>,
}

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let users = Users::find();
    let window = Duration::from_millis(if settings.quick { 60 } else { 1000 });
    let mut outcome = Outcome {
        how: format!(
            "server, attacker and neighbour: processes of {}; the engine sleeps when it is idle; \
             the neighbour makes round trips between two sessions and attaches a third, asleep while \
             it waits; nothing is pinned; windows of {} ms without the attack, with it, and with a program \
             that loads the machine equally without touching the server; an operation under way at a window's \
             end counts with its time so far",
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
        let rounds = site.rounds(attack, settings, window).context(attack.name)?;
        add_rows(&mut outcome, attack, &rounds);
    }
    Ok(outcome)
}

/// Adds a row for the ratio of the 99.9th percentiles to those without the attack, a row for the 99th percentiles
/// beside the baseline, and context rows for the rest.
fn add_rows(outcome: &mut Outcome, attack: Attack, rounds: &[Round]) {
    let name = attack.name;
    let kinds: [(&str, Kind); 2] =
        [("round trip", |seen| &seen.trips), ("attach", |seen| &seen.attaches)];
    for (what, times) in kinds {
        let ratio = |round: &Round| {
            times(&round.attacked).p999 as f64 / times(&round.quiet).p999.max(1) as f64
        };
        let ratios: Vec<f64> = rounds.iter().map(ratio).collect();
        let row = format!("{name}: {what} p99.9, attacked to undisturbed");
        let row = Row::new(&row, &[], "ratio", &ratios);
        match attack.baseline {
            Some(baseline) => {
                outcome.rows.push(beside_baseline((name, baseline, what), rounds, times));
                outcome.rows.push(row.at_most(AT_MOST));
            }
            // A baseline is no attack, so its rows have no limit.
            None => outcome.rows.push(row),
        }
        let figures: [(&str, Figure); 4] = [
            ("p50", |times| times.p50),
            ("p99", |times| times.p99),
            ("p99.9", |times| times.p999),
            ("worst", |times| times.worst),
        ];
        let states: [(&str, State); 3] = [
            ("undisturbed", |round| Some(&round.quiet)),
            ("attacked", |round| Some(&round.attacked)),
            ("baseline", |round| round.control.as_ref()),
        ];
        for ((figure, of), (state, seen)) in
            figures.into_iter().flat_map(|figure| states.map(|state| (figure, state)))
        {
            let all = rounds.iter().filter_map(seen);
            let values: Vec<f64> = all.map(|seen| of(times(seen)) as f64 / 1e3).collect();
            if !values.is_empty() {
                let row = format!("{name}: {what} {figure}, {state}");
                outcome.context.push(Row::new(&row, &[], "us", &values));
            }
        }
    }
}

/// Returns the ratio of an attack's 99th percentile to that of its baseline in the same round: the median, and the
/// upper end of its confidence interval as the row's value.
fn beside_baseline(
    (name, baseline, what): (&str, &str, &str),
    rounds: &[Round],
    times: Kind,
) -> Row {
    let ratio = |round: &Round| {
        let control = round.control.as_ref()?;
        Some(times(&round.attacked).p99 as f64 / times(control).p99.max(1) as f64)
    };
    let ratios: Vec<f64> = rounds.iter().filter_map(ratio).collect();
    let median = |places: &[usize]| {
        let drawn: Vec<f64> = places.iter().map(|place| ratios[*place]).collect();
        [Summary::of(&drawn).median]
    };
    let [interval] = intervals(ratios.len(), 1, median);
    let row = format!("{name}: {what} p99, attacked to {baseline}, upper end of the interval");
    let row = Row::new(&row, &[], "ratio", &[interval.high]).at_most(AT_MOST);
    Row { spread: [interval.low, interval.high], samples: ratios.len(), ..row }
}

/// A server and a neighbour. Rust drops the fields in this order.
struct Site {
    neighbour: std::cell::RefCell<Child>,
    server: Child,
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
        let server = start_as(&Serve { serving, socket: socket.path() }, users.server)?;
        let neighbour = start_as(&NeighbourProcess { socket: socket.path() }, neighbour)?;
        let node = fuse_node(&socket.path(), users);
        let neighbour = std::cell::RefCell::new(neighbour);
        Ok(Site { neighbour, server, socket, node, attacker })
    }

    fn rounds(
        &self,
        attack: Attack,
        settings: Settings,
        window: Duration,
    ) -> anyhow::Result<Vec<Round>> {
        let order = format!("window {}", window.as_millis());
        self.ask(&order)?;
        let mut rounds = Vec::new();
        for round in 0..if settings.quick { 3 } else { settings.pairs() } {
            let undisturbed = || self.loaded(&order, None);
            let attacked = || self.under(attack, &[], settings, &order);
            let ((quiet, usual), (attacked, load)) = if round % 2 == 0 {
                (undisturbed()?, attacked()?)
            } else {
                let attacked = attacked()?;
                (undisturbed()?, attacked)
            };
            let control = match attack.baseline.and_then(Attack::from_name) {
                Some(baseline) if baseline.name == Attack::BUSY.name => {
                    let threads = load.beyond(&usual, window);
                    let threads: Vec<String> = threads.iter().map(ToString::to_string).collect();
                    let threads = format!("threads={}", threads.join(","));
                    Some(self.under(baseline, &[threads], settings, &order)?.0)
                }
                Some(baseline) => Some(self.under(baseline, &[], settings, &order)?.0),
                None => None,
            };
            rounds.push(Round { quiet, attacked, control });
        }
        Ok(rounds)
    }

    /// Measures a window under a program, and waits until the neighbour has recovered.
    fn under(
        &self,
        attack: Attack,
        options: &[String],
        settings: Settings,
        order: &str,
    ) -> anyhow::Result<(Seen, Load)> {
        let attacker = self.attacker(attack, options, settings)?;
        let seen = self.loaded(order, Some(attacker.pid()));
        drop(attacker);
        self.ask(RECOVERY)?;
        seen
    }

    /// Measures a window. Returns also how the server's workers, and an attacker, used the processors.
    fn loaded(&self, order: &str, attacker: Option<u32>) -> anyhow::Result<(Seen, Load)> {
        let so_far = || {
            let attackers = attacker.into_iter().chain(attacker.into_iter().flat_map(descendants));
            Load::of(descendants(self.server.pid()).into_iter().chain(attackers))
        };
        let before = so_far();
        let seen = self.ask(order)?;
        Ok((seen, so_far().since(&before)))
    }

    fn attacker(
        &self,
        attack: Attack,
        options: &[String],
        settings: Settings,
    ) -> anyhow::Result<Child> {
        let mut options = options.to_vec();
        options.push(format!("fuse={}", self.node.display()));
        if settings.quick && attack.name.starts_with("waiters") {
            options.push(FEW.into());
        }
        let (name, socket) = (attack.name.to_owned(), self.socket.path());
        start_as(&AttackerProcess { name, socket, options }, self.attacker)
    }

    fn ask(&self, order: &str) -> anyhow::Result<Seen> {
        let mut neighbour = self.neighbour.borrow_mut();
        neighbour.say(order)?;
        Seen::read(&neighbour.read_line()?).context("an invalid answer of the neighbour")
    }
}

/// Returns the living descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|pid| [vec![pid], descendants(pid)].concat()).collect()
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
pub(crate) fn start_as<R: Role>(role: &R, user: User) -> anyhow::Result<Child> {
    let program = Executable::current()?;
    let mut command = program.command();
    give(role, &mut command)?;
    user.confine(&mut command);
    Child::start_command(command)
}

/// Attacks a server, and reports when the attack has begun.
#[derive(Serialize, Deserialize)]
pub(crate) struct AttackerProcess {
    /// The attack's name.
    pub(crate) name: String,
    /// The server's socket.
    pub(crate) socket: PathBuf,
    /// The attack's options.
    pub(crate) options: Vec<String>,
}

impl Role for AttackerProcess {
    const NAME: &'static str = "Attack";

    fn act(self) -> anyhow::Result<()> {
        attack(&self.name, &self.socket, &self.options)
    }
}

/// Runs the attacker's process: reports when the attack has begun, ends it when its input ends, and
/// reports its deeds.
fn attack(name: &str, socket: &Path, options: &[String]) -> anyhow::Result<()> {
    let attack = Attack::from_name(name).context("no such attack")?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let field = Field::new(socket, LONGEST).options(&options).map_err(anyhow::Error::msg)?;
    let deeds: BTreeMap<_, _> = attack.run(&field)?.into_iter().collect();
    // The parent may not wait for it.
    let _ = tell(&serde_json::to_string(&deeds)?);
    Ok(())
}

/// Measures round trips and attachments in the windows that its parent asks for.
#[derive(Serialize, Deserialize)]
pub(crate) struct NeighbourProcess {
    /// The server's socket.
    pub(crate) socket: PathBuf,
}

impl Role for NeighbourProcess {
    const NAME: &'static str = "Neighbour";

    fn act(self) -> anyhow::Result<()> {
        neighbour(&self.socket)
    }
}

/// Runs the neighbour's process: measures on each command until its input ends.
fn neighbour(socket: &Path) -> anyhow::Result<()> {
    let neighbour = Neighbour::start(socket, false).map_err(|error| anyhow::anyhow!("{error}"))?;
    tell("ready")?;
    for line in std::io::stdin().lines() {
        let seen = neighbour.follow(&line?).context("no such command")?;
        tell(&seen.to_string())?;
    }
    Ok(())
}
