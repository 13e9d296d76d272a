//! Direct hand-off and a queue between threads of one program, onto the descriptor ring of a network
//! card, whose kick is a write of a register.
//!
//! This is Watson's hand-off (`freebsd` has it without a card). Two small guests have an e1000e
//! card, which the program drives by Towpath's driver. One has a processor that executes one
//! instruction per nanosecond of the guest's clock: its times are exact counts of instructions, and
//! two threads take turns. The other one has two processors, whose threads really run at once.

mod trials;
mod ways;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use anyhow::{bail, ensure};

use crate::Settings;
use crate::card_log::{self, Accesses, EVENTS};
use crate::child::{Child, Keep, OwnSocket, argument};
use crate::freebsd::batches;
use crate::report::{Outcome, Row};
use crate::statistics::ratios;
use towpath_guest::{Counted, Processors};

use trials::Trial;
pub(crate) use trials::{HandoffSteps, Plan};
use ways::{Tally, Way};

/// The card that the program drives, and the kernel's interface at the other end of the wire.
const CARD: &str = "0000:00:01.0";
const FAR: &str = "eth1";
const CARDS: u8 = 2;
/// Where the guest leaves its results.
const OUT: &str = "/out/trials";
const MOST_ROUNDS: usize = 7;
/// The script of the guest.
const SCRIPT: &str = include_str!("../../guest/handoff.sh");
/// Instructions per packet: direct hand-off executes no more than a queue with two mutexes.
const AT_MOST: f64 = 1.0;

/// What the two guests have left.
pub(crate) struct Left {
    /// Of the guest that counts instructions, with the accesses of the card's registers.
    counted: (Vec<Trial>, Vec<Accesses>),
    /// Of the guest with two processors.
    contended: Vec<Trial>,
}

/// Runs all trials, in one guest after the other.
pub(crate) fn run(settings: Settings) -> anyhow::Result<Left> {
    let counted = boot(settings, true)?;
    let (contended, _) = boot(settings, false)?;
    Ok(Left { counted, contended })
}

impl Left {
    pub(crate) fn add_rows(&self, outcome: &mut Outcome) -> anyhow::Result<()> {
        let (trials, accesses) = &self.counted;
        counted_rows(trials, accesses, outcome)?;
        contention_rows(&self.contended, outcome)
    }
}

/// Runs all trials in a guest, which counts instructions or has two processors.
fn boot(settings: Settings, is_counted: bool) -> anyhow::Result<(Vec<Trial>, Vec<Accesses>)> {
    let directory = OwnSocket::new()?;
    let directory = directory.directory();
    // It makes the directory, and removes it however this process ends.
    let _keeper = Child::start(&Keep { directory: directory.to_owned() })?;
    let (plan, script) = (directory.join("plan"), directory.join("handoff.sh"));
    let role = Plan {
        card: CARD.into(),
        far: FAR.into(),
        packets: packets(settings, is_counted),
        // Counts of instructions hardly differ from round to round.
        rounds: if settings.quick { 1 } else { settings.pairs().min(MOST_ROUNDS) },
        batches: batches(settings),
        is_counted,
        out: OUT.into(),
    };
    fs::write(&plan, argument(&role)?)?;
    fs::write(&script, SCRIPT)?;
    let (log, output) = (directory.join("log"), directory.join("said"));
    let command = ["bash", "/guest/handoff.sh", CARD].map(str::to_owned);
    let counted = Counted {
        command: &command,
        cards: CARDS,
        files: vec![plan, script],
        events: &EVENTS,
        log: &log,
        back: directory,
        output: &output,
    };
    let status = if is_counted { counted.run()? } else { counted.run_on(Processors::Two)? };
    if status != 0 {
        let said = fs::read_to_string(&output).unwrap_or_default();
        bail!("the guest's command failed with status {status}; it said:\n{said}");
    }
    let trials = fs::read_to_string(directory.join("trials"))?;
    let trials = trials.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let accesses = if is_counted { accesses(&log)? } else { Vec::new() };
    Ok((trials, accesses))
}

/// Returns the packets of each thread in a trial. Where threads run at once, trials have to be long
/// beside the time in which the threads wake up.
fn packets(settings: Settings, is_counted: bool) -> u64 {
    match (is_counted, settings.quick) {
        (true, true) => 250,
        (true, false) => 5_000,
        (false, true) => 2_500,
        (false, false) => 20_000,
    }
}

fn accesses(log: &Path) -> anyhow::Result<Vec<Accesses>> {
    card_log::trials(BufReader::new(File::open(log)?))
}

/// What was sent in the rounds of a way, without the first one.
#[derive(Default)]
struct Sent {
    ns: Vec<f64>,
    writes: Vec<f64>,
    tallies: Vec<(Tally, u64)>,
}

impl Sent {
    /// Collects the rounds of a way. The log has the accesses of all rounds, in order.
    fn of(trials: &[Trial], accesses: &[Accesses], of: (Way, usize)) -> Sent {
        let mut sent = Sent::default();
        let all = trials.iter().filter(|trial| matches!(trial, Trial::Sent { .. }));
        for (number, trial) in all.enumerate() {
            let Trial::Sent { way, threads, round, packets, ns, tally } = *trial else { continue };
            if (way, threads) != of || round == 0 {
                continue;
            }
            sent.ns.push(ns as f64 / packets as f64);
            if let Some(accesses) = accesses.get(number) {
                sent.writes.push(accesses.writes as f64 / packets as f64);
            }
            sent.tallies.push((tally, packets));
        }
        sent
    }

    fn per(&self, value: fn(&Tally) -> u64) -> Vec<f64> {
        self.tallies.iter().map(|(tally, packets)| value(tally) as f64 / *packets as f64).collect()
    }
}

/// The counts of a tally for which there are rows, with their units.
type Value = (&'static str, &'static str, fn(&Tally) -> u64);

const VALUES: [Value; 6] = [
    ("lock operations", "a packet", |tally| tally.lock_operations),
    ("waits for a mutex", "a packet", |tally| tally.waited),
    ("time blocked", "ns a packet", |tally| tally.waited_ns),
    ("left for another thread", "a packet", |tally| tally.left),
    ("straight into the ring", "a packet", |tally| tally.straight),
    ("enqueued, and drained in order", "a packet", |tally| tally.behind),
];

fn row(what: &str, machine: &str, threads: usize, unit: &str, values: &[f64]) -> Row {
    let name = format!("onto a card, {machine}, {what}");
    Row::new(&name, &[("threads", threads as f64)], unit, values)
}

/// Adds the rows of the guest whose times are counts of instructions.
fn counted_rows(
    trials: &[Trial],
    accesses: &[Accesses],
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let sent = trials.iter().filter(|trial| matches!(trial, Trial::Sent { .. })).count();
    ensure!(sent == accesses.len(), "{sent} trials, and {} in QEMU's log", accesses.len());
    let machine = "one processor";
    for threads in [1, 2] {
        let [two, one, section] = Way::ALL.map(|way| Sent::of(trials, accesses, (way, threads)));
        for (way, sent) in [(Way::OneMutex, &one), (Way::Section, &section)] {
            let what = format!("{}, to through a queue: instructions", way.name());
            let row = row(&what, machine, threads, "ratio", &ratios(&sent.ns, &two.ns));
            outcome.rows.push(Row { at_most: Some(AT_MOST), ..row });
        }
        for (way, sent) in Way::ALL.into_iter().zip([&two, &one, &section]) {
            let mut add = |what: &str, unit: &str, values: &[f64]| {
                let what = format!("{}: {what}", way.name());
                outcome.context.push(row(&what, machine, threads, unit, values));
            };
            add("instructions of the whole system", "a packet", &sent.ns);
            add("register writes", "a packet", &sent.writes);
            for (what, unit, value) in VALUES {
                add(what, unit, &sent.per(value));
            }
        }
    }
    for trial in trials {
        single_rows(trial, machine, outcome)?;
    }
    Ok(())
}

/// Adds the rows of a trial that has one round.
fn single_rows(trial: &Trial, machine: &str, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut add = |way: Way, what: &str, unit: &str, value: f64| {
        let what = format!("{}: {what}", way.name());
        outcome.context.push(row(&what, machine, 1, unit, &[value]));
    };
    match *trial {
        Trial::Sent { .. } => {}
        Trial::Stepped { way, instructions, locked, fences } => {
            add(way, "instructions of the program", "a packet", instructions);
            add(way, "locked instructions", "a packet", locked);
            add(way, "fences", "a packet", fences);
        }
        Trial::Unplugged { way, sent, arrived, tally } => {
            // A packet that waited for the link is not lost.
            ensure!(arrived == sent, "{}: {arrived} of {sent} packets arrived", way.name());
            ensure!(tally.taken == sent, "{tally:?}");
            for (what, value) in [
                ("link down, enqueued", tally.link_down),
                ("link down, straight into the ring", tally.straight),
                ("link down, refused without room", tally.refused),
                ("link up again, arrived in order", arrived),
            ] {
                add(way, what, "packets", value as f64);
            }
        }
    }
    Ok(())
}

/// Adds the rows of the guest whose threads run at once, and whose cable is unplugged.
fn contention_rows(trials: &[Trial], outcome: &mut Outcome) -> anyhow::Result<()> {
    let machine = "two processors";
    for threads in [1, 2] {
        for way in Way::ALL {
            let sent = Sent::of(trials, &[], (way, threads));
            for (what, unit, value) in VALUES {
                let what = format!("{}: {what}", way.name());
                outcome.context.push(row(&what, machine, threads, unit, &sent.per(value)));
            }
        }
    }
    for trial in trials {
        single_rows(trial, machine, outcome)?;
    }
    Ok(())
}

pub(crate) fn how() -> &'static str {
    "onto a card: a virtual machine with an e1000e card, emulated by QEMU, and no server; one \
     processor: QEMU counts instructions, those of the kernel's timer included; two processors: \
     their threads run at once, and nothing is counted but locks and packets; there the card's \
     cable is unplugged, too"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(way: Way, threads: usize, round: usize, ns: u64, locks: u64) -> Trial {
        let tally = Tally { taken: 10, lock_operations: locks, ..Tally::default() };
        Trial::Sent { way, threads, round, packets: 10, ns, tally }
    }

    #[test]
    fn each_way_has_the_accesses_of_its_own_trials() {
        let stepped =
            Trial::Stepped { way: Way::TwoMutexes, instructions: 1.0, locked: 1.0, fences: 0.0 };
        let trials = [
            sent(Way::TwoMutexes, 1, 0, 9, 60),
            sent(Way::TwoMutexes, 1, 1, 100, 60),
            stepped,
            sent(Way::Section, 1, 0, 9, 0),
            sent(Way::Section, 1, 1, 50, 0),
        ];
        let accesses: Vec<_> =
            (0..4).map(|writes| Accesses { writes: writes * 10, ..Accesses::default() }).collect();
        let two = Sent::of(&trials, &accesses, (Way::TwoMutexes, 1));
        assert_eq!((&two.ns[..], &two.writes[..]), (&[10.0][..], &[1.0][..]));
        assert_eq!(two.per(|tally| tally.lock_operations), [6.0]);
        let section = Sent::of(&trials, &accesses, (Way::Section, 1));
        assert_eq!((&section.ns[..], &section.writes[..]), (&[5.0][..], &[3.0][..]));
        assert!(counted_rows(&trials, &accesses[1..], &mut Outcome::default()).is_err());
    }

    #[test]
    fn a_packet_that_a_link_lost_is_an_error() {
        let lost = |arrived| Trial::Unplugged {
            way: Way::Section,
            sent: 5,
            arrived,
            tally: Tally { taken: 5, link_down: 5, ..Tally::default() },
        };
        let mut outcome = Outcome::default();
        assert!(single_rows(&lost(4), "", &mut outcome).is_err());
        single_rows(&lost(5), "", &mut outcome).unwrap();
        assert_eq!(outcome.context.len(), 4);
    }
}
