//! The trials, inside of the guest: all receivers run, and each trial sends to one of them.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use towpath_packet::MacAddr;
use towpath_testkit::{Participants, family, run_before_others};

use super::port::Port;
use super::sender::Sender;
use super::trial::{Load, Plan, Receiver, Shape, Testpmd, Trial, Way};
use crate::child::{Child, Role, give};

/// An address that no card has.
const UNUSED_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0xf0];
/// The time in which a receiver becomes quiet, also an engine that took packets at ticks.
const SETTLE: Duration = Duration::from_millis(500);
/// The most lines of an answer of testpmd.
const MOST_LINES: usize = 200;

/// A receiver that runs.
struct Running {
    child: Child,
    mac: [u8; 6],
    /// All processes of this way.
    participants: Participants,
}

/// The counts of a receiver since it was started; of testpmd, since it changed its mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forwarded {
    packets: u64,
    ipcs: u64,
    instructions: u64,
}

impl Role for Plan {
    const NAME: &'static str = "CardTrials";

    fn act(self) -> anyhow::Result<()> {
        run(&self)
    }
}

/// Runs all trials, and writes each as a line of JSON.
fn run(plan: &Plan) -> anyhow::Result<()> {
    let mut running = BTreeMap::new();
    for (way, receiver) in &plan.receivers {
        let child = start(receiver).with_context(|| way.name())?;
        running.insert(*way, child);
    }
    if let Some(testpmd) = &plan.testpmd {
        match start_testpmd(testpmd) {
            Ok(child) => {
                running.insert(Way::Testpmd, child);
            }
            Err(error) => std::fs::write(&plan.missing, format!("DPDK testpmd: {error:#}"))?,
        }
    }
    let mut sender = Sender::new(Port::open(&plan.sender, 0)?, plan.amount.paced)?;
    run_before_others()?;
    let mut out = std::fs::File::create(&plan.out)?;
    let mut is_back = None;
    for shape in &plan.shapes {
        if is_back.replace(shape.is_back) != Some(shape.is_back)
            && let Some(testpmd) = running.get_mut(&Way::Testpmd)
        {
            set_mode(testpmd, shape.is_back)?;
        }
        // The first round warms caches and rings; the host leaves it out.
        for round in 0..=plan.rounds {
            for way in ways(&running, shape.load, round) {
                let bursts = if way.is_unbatched() { 1 } else { plan.amount.bursts };
                let trial = one(&mut sender, &mut running, way, (*shape, round, bursts))?;
                writeln!(out, "{}", serde_json::to_string(&trial)?)?;
            }
        }
        println!("done: {shape:?}");
    }
    Ok(())
}

/// Returns the order of a round: every other one is reversed. testpmd polls at any load, so it only takes
/// part in trials that keep it busy.
fn ways(running: &BTreeMap<Way, Running>, load: Load, round: usize) -> Vec<Way> {
    let mut ways: Vec<Way> = [Way::Alone].into_iter().chain(running.keys().copied()).collect();
    ways.retain(|way| *way != Way::Testpmd || load == Load::Saturated);
    if round % 2 == 1 {
        ways.reverse();
    }
    ways
}

fn one(
    sender: &mut Sender,
    running: &mut BTreeMap<Way, Running>,
    way: Way,
    (shape, round, bursts): (Shape, usize, usize),
) -> anyhow::Result<Trial> {
    let mut receiver = running.get_mut(&way);
    let to = receiver.as_ref().map_or(UNUSED_MAC, |one| one.mac);
    let participants = receiver.as_ref().map(|one| one.participants.clone());
    let participants = participants.unwrap_or_else(|| Participants::new(&[]));
    let mut counts = vec![count(way, &mut receiver)?];
    let sent = sender.send(shape, to, bursts, &participants, || {
        counts.push(count(way, &mut receiver)?);
        Ok(())
    })?;
    if way == Way::Testpmd
        && let Some(testpmd) = receiver
    {
        testpmd.child.signal(Signal::STOP)?;
    }
    sleep(SETTLE);
    let (first, last) = (counts[0], counts[counts.len() - 1]);
    let received = if shape.is_back { sent.came_back } else { last.packets - first.packets };
    // A packet that came back twice would have reached two receivers.
    ensure!(received <= sent.packets, "{received} of {} packets: {way:?}", sent.packets);
    Ok(Trial {
        way,
        shape,
        round,
        sent: sent.packets,
        received,
        instructions: sent.instructions,
        own_instructions: sent.own_instructions,
        own_writes: sent.writes,
        ipcs: way.counts_ipcs().then(|| last.ipcs - first.ipcs),
        wake_ups: sent.wake_ups,
        busy_instructions: (way == Way::Testpmd).then(|| busy(&counts)),
    })
}

/// Returns the instructions of testpmd for all windows. Its own count begins with a poll that finds no
/// packet yet, if the sender interrupts it there, and then has the sender's instructions of that window.
/// So the least of the windows stands for all.
fn busy(counts: &[Forwarded]) -> u64 {
    let each = counts.windows(2).map(|pair| pair[1].instructions - pair[0].instructions);
    each.clone().min().unwrap_or(0) * each.count() as u64
}

/// Returns what a receiver has counted. testpmd runs from then on.
fn count(way: Way, receiver: &mut Option<&mut Running>) -> anyhow::Result<Forwarded> {
    let Some(receiver) = receiver else { return Ok(Forwarded::default()) };
    if way == Way::Testpmd {
        receiver.child.signal(Signal::CONT)?;
        return ask_testpmd(&mut receiver.child);
    }
    receiver.child.say("count")?;
    let line = receiver.child.read_line()?;
    let numbers = line.split_once(' ').context("a count without the number of IPCs")?;
    let (packets, ipcs) = (numbers.0.parse()?, numbers.1.parse()?);
    Ok(Forwarded { packets, ipcs, instructions: 0 })
}

fn start(receiver: &Receiver) -> anyhow::Result<Running> {
    let mut command = Command::new(std::env::current_exe()?);
    give(receiver, &mut command)?;
    let (child, said) = Child::start_heard(command)?;
    let mac: MacAddr = said.parse().with_context(|| format!("no address: {said}"))?;
    let mut processes = family(child.pid())?;
    if let Receiver::Served { socket } = receiver {
        let server = std::fs::read_to_string(socket.with_extension("pid"))?;
        processes.extend(family(server.trim().parse().context("the server's number")?)?);
    }
    Ok(Running { child, mac: mac.octets(), participants: Participants::new(&processes) })
}

/// Starts testpmd with the arguments that its documentation proposes for one core, and stops it.
fn start_testpmd(testpmd: &Testpmd) -> anyhow::Result<Running> {
    let mut command = Command::new("dpdk-testpmd");
    // Without this library, its output would come in pieces of 4 KiB.
    command.env("LD_PRELOAD", "/guest/libstdbuf.so").env("_STDBUF_O", "L");
    command.args(["--lcores", "0@0,1@0", "--in-memory", "--no-telemetry", "--iova-mode=va"]);
    command.args(["-m", "128", "-a", &testpmd.card]);
    for driver in &testpmd.drivers {
        command.arg("-d").arg(driver);
    }
    command.args(["--", "-i", "--nb-cores=1", "--no-lsc-interrupt", "--record-core-cycles"]);
    command.args(["--rxd=4096", "--txd=4096", "--total-num-mbufs=16384", "--port-topology=loop"]);
    let (mut child, _) = Child::start_heard(command)?;
    child.say("set promisc all off")?;
    child.say("start")?;
    ask_testpmd(&mut child)?;
    child.signal(Signal::STOP)?;
    let participants = Participants::new(&family(child.pid())?);
    Ok(Running { child, mac: testpmd.mac, participants })
}

/// Has testpmd send packets back, or only receive them.
fn set_mode(testpmd: &mut Running, is_back: bool) -> anyhow::Result<()> {
    testpmd.child.signal(Signal::CONT)?;
    testpmd.child.say("stop")?;
    testpmd.child.say(if is_back { "set fwd macswap" } else { "set fwd rxonly" })?;
    testpmd.child.say("start")?;
    ask_testpmd(&mut testpmd.child)?;
    testpmd.child.signal(Signal::STOP)
}

fn ask_testpmd(child: &mut Child) -> anyhow::Result<Forwarded> {
    child.say("show fwd stats all")?;
    // The answer to a command that does not exist is the end.
    child.say("end-of-answer")?;
    let mut lines = Vec::new();
    while lines.len() < MOST_LINES {
        let line = child.read_line()?;
        if line.contains("Command not found") {
            return Ok(parse(&lines));
        }
        lines.push(line);
    }
    bail!("no statistics in {MOST_LINES} lines of testpmd")
}

/// Reads the answer to `show fwd stats all`. Without any packet, it has no count of instructions.
fn parse(lines: &[String]) -> Forwarded {
    let number = |text: &str| -> Option<u64> {
        text.split(|byte: char| !byte.is_ascii_digit()).find(|word| !word.is_empty())?.parse().ok()
    };
    let after = |key: &str| {
        lines.iter().find_map(|line| line.split_once(key).and_then(|(_, rest)| number(rest)))
    };
    Forwarded {
        packets: after("RX-packets:").unwrap_or(0),
        ipcs: 0,
        instructions: after("total cycles=").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_window_of_testpmd_counts() {
        let count = |instructions| Forwarded { instructions, ..Forwarded::default() };
        assert_eq!(busy(&[count(5), count(105), count(405), count(515)]), 300);
        assert_eq!(busy(&[count(5)]), 0);
    }

    #[test]
    fn the_counts_of_testpmd_are_read() {
        let said = "  RX-packets: 10240          RX-dropped: 0             RX-total: 10240\n\
            CPU cycles/packet=52.41 (total cycles=536678 / total macswap packets=10240) at 1000 MHz Clock";
        let lines: Vec<String> = said.lines().map(str::to_owned).collect();
        assert_eq!(parse(&lines), Forwarded { packets: 10240, ipcs: 0, instructions: 536_678 });
        assert_eq!(parse(&[]), Forwarded::default());
    }
}
