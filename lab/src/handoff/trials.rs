//! The trials, inside of the guest: threads of this program drive one card in each of the ways.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use towpath_device_pci::PciAddress;
use towpath_device_pci::e1000e::{E1000eDevice, Options};
use towpath_embedded::SendError;
use towpath_testkit::{PacketSocket, StepWatch, Steps};

use super::ways::{Shared, Tally, Way};
use crate::card_log::{DONE, END, MARKS, START};
use crate::child::{Child, Role, tell};
use crate::freebsd::step_through;

/// An empty UDP packet, as Ethernet pads it: headers of Ethernet, IPv4 and UDP.
const PACKET_BYTES: usize = 60;
const ETHERTYPE: u16 = 0x0800;
/// Where the packet has its number, the UDP source port.
const NUMBER_AT: usize = 34;
/// Packets while the link is down: more than the driver has buffers for.
const LINK_PACKETS: u16 = 300;
/// The time in which the card reports its link, which comes up after half a second, and for the
/// kernel to be quiet.
const SETTLE: Duration = Duration::from_secs(2);
/// How often the program drains what waited for the link.
const DRAINS: u32 = 8;
/// The time in which the monitor answers.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// The line that leads to the machine's monitor.
const MONITOR: &str = "/dev/ttyS2";

/// Sends through a card of a guest from several threads, in each way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The card, and the interface at the other end of the wire.
    pub(super) card: String,
    pub(super) far: String,
    /// Packets of each thread in a trial.
    pub(super) packets: u64,
    pub(super) rounds: usize,
    /// Packets of the two batches whose difference is stepped through.
    pub(super) batches: [usize; 2],
    /// `true` to step through the program, too, in a machine that counts instructions; `false` to
    /// unplug the cable.
    pub(super) is_counted: bool,
    /// The file for the results.
    pub(super) out: PathBuf,
}

/// A result of the guest.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Trial {
    /// Threads sent packets.
    Sent {
        way: Way,
        threads: usize,
        round: usize,
        packets: u64,
        /// From the first packet to the last one; of a machine that counts instructions, the
        /// instructions of the whole system.
        ns: u64,
        tally: Tally,
    },
    /// One thread was stepped through: what it executed per packet.
    Stepped { way: Way, instructions: f64, locked: f64, fences: f64 },
    /// Packets that were sent while the link was down, those of them that arrived after it was up,
    /// in order, and the counts.
    Unplugged { way: Way, sent: u64, arrived: u64, tally: Tally },
}

impl Role for Plan {
    const NAME: &'static str = "HandoffTrials";

    fn act(self) -> anyhow::Result<()> {
        run(&self)
    }
}

/// Runs all trials, and writes each as a line of JSON.
fn run(plan: &Plan) -> anyhow::Result<()> {
    let marks = File::open(MARKS).context(MARKS)?;
    let mut out = File::create(&plan.out)?;
    for way in Way::ALL {
        for threads in [1, 2] {
            let shared = open(&plan.card, way)?;
            // The first round warms caches and rings; the host leaves it out.
            for round in 0..=plan.rounds {
                let trial = one(&shared, plan, (way, threads, round), &marks)?;
                writeln!(out, "{}", serde_json::to_string(&trial)?)?;
            }
        }
        if plan.is_counted {
            let stepped = stepped(plan, way)?;
            writeln!(out, "{}", serde_json::to_string(&stepped)?)?;
        }
        println!("done: {}", way.name());
    }
    // A machine that counts instructions has no time in which its monitor would work.
    if !plan.is_counted {
        let mut far = Far::open(&plan.far)?;
        for way in Way::ALL {
            let trial = unplugged(&plan.card, way, &mut far)?;
            writeln!(out, "{}", serde_json::to_string(&trial)?)?;
            println!("unplugged: {}", way.name());
        }
    }
    Ok(())
}

fn open(card: &str, way: Way) -> anyhow::Result<Shared> {
    let address: PciAddress = card.parse().context("a card's address")?;
    let shared = Shared::new(way, Box::new(E1000eDevice::open(&Options::new(address))?))?;
    // The card has a link half a second after a reset.
    std::thread::sleep(SETTLE);
    shared.drain()?;
    Ok(shared)
}

/// Returns an empty UDP packet to an address that no card has, with a number.
fn packet(number: u16) -> [u8; PACKET_BYTES] {
    let mut packet = [0; PACKET_BYTES];
    let ethernet = [[0x52, 0x54, 0, 0, 0, 0xf0], [0x52, 0x54, 0, 0, 0, 0x10]].concat();
    packet[..12].copy_from_slice(&ethernet);
    packet[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    // Version and header length, total length, lifetime, UDP; checksums do not matter here.
    packet[14] = 0x45;
    packet[16..18].copy_from_slice(&28_u16.to_be_bytes());
    (packet[22], packet[23]) = (64, 17);
    packet[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    packet[NUMBER_AT..NUMBER_AT + 2].copy_from_slice(&number.to_be_bytes());
    packet[36..40].copy_from_slice(&[0, 9, 0, 8]);
    packet
}

/// Sends a packet. The call is repeated while there is no room.
fn send(shared: &Shared, packet: &[u8]) -> Result<(), SendError> {
    loop {
        match shared.send(packet) {
            // The thread inside needs the processor more.
            Err(SendError::WouldBlock) => std::thread::yield_now(),
            sent => return sent,
        }
    }
}

fn one(
    shared: &Shared,
    plan: &Plan,
    (way, threads, round): (Way, usize, usize),
    marks: &File,
) -> anyhow::Result<Trial> {
    let mark = |offset| -> anyhow::Result<()> {
        ensure!(marks.read_at(&mut [0], offset)? == 1, "{MARKS} has no byte {offset}");
        Ok(())
    };
    let start = std::sync::Barrier::new(threads + 1);
    let packet = packet(0);
    let before = shared.tally();
    let took = std::thread::scope(|scope| -> anyhow::Result<Duration> {
        let send_all = || -> Result<Instant, SendError> {
            start.wait();
            for _ in 0..plan.packets {
                send(shared, &packet)?;
            }
            Ok(Instant::now())
        };
        let sending: Vec<_> = (0..threads).map(|_| scope.spawn(send_all)).collect();
        // The threads wait at the barrier.
        std::thread::sleep(Duration::from_millis(20));
        mark(START)?;
        let begun = Instant::now();
        start.wait();
        let joined = sending.into_iter().map(|one| one.join());
        let ends = joined.map(|end| Ok(end.map_err(|_| anyhow::anyhow!("a sender failed"))??));
        let ends = ends.collect::<anyhow::Result<Vec<_>>>()?;
        mark(END)?;
        mark(DONE)?;
        Ok(ends.into_iter().max().context("no thread")? - begun)
    })?;
    shared.drain()?;
    let (tally, packets) = (shared.tally().since(&before), threads as u64 * plan.packets);
    ensure!(tally.taken == packets, "the card took {} of {packets} packets", tally.taken);
    Ok(Trial::Sent { way, threads, round, packets, ns: took.as_nanos() as u64, tally })
}

/// Sends through a card on command.
#[derive(Serialize, Deserialize)]
pub(crate) struct HandoffSteps {
    /// The card.
    pub(crate) card: String,
    /// The way to it.
    pub(crate) way: Way,
}

impl Role for HandoffSteps {
    const NAME: &'static str = "HandoffSteps";

    fn act(self) -> anyhow::Result<()> {
        serve_steps(&self.card, self.way)
    }
}

/// Runs the process that [`stepped`] steps through: sends as many packets as each line says.
fn serve_steps(card: &str, way: Way) -> anyhow::Result<()> {
    let shared = open(card, way)?;
    let packet = packet(0);
    tell("ready")?;
    for line in std::io::stdin().lock().lines() {
        for _ in 0..line?.trim().parse().context("how many packets")? {
            send(&shared, &packet)?;
        }
    }
    Ok(())
}

fn stepped(plan: &Plan, way: Way) -> anyhow::Result<Trial> {
    let mut child = Child::start(&HandoffSteps { card: plan.card.clone(), way })?;
    let watch = StepWatch::start(child.pid())?;
    // Executes one-time work.
    step_through(&watch, &mut child, plan.batches[0])?;
    let [few, many] = plan.batches.map(|count| step_through(&watch, &mut child, count));
    let (few, many) = (few?, many?);
    let packets = (plan.batches[1] - plan.batches[0]) as f64;
    let per = |value: fn(&Steps) -> u64| (value(&many) as f64 - value(&few) as f64) / packets;
    let instructions = per(|steps| steps.instructions);
    let (locked, fences) = (per(|steps| steps.locked), per(|steps| steps.fences));
    Ok(Trial::Stepped { way, instructions, locked, fences })
}

/// The other end of the wire.
struct Far {
    socket: PacketSocket,
    /// The machine's monitor, and the number of the last command to it.
    monitor: BufReader<File>,
    commands: u32,
}

impl Far {
    fn open(interface: &str) -> anyhow::Result<Far> {
        let mut up = Command::new("ip");
        up.args(["link", "set", interface, "up", "promisc", "on"]);
        ensure!(up.status()?.success(), "{interface} does not come up");
        std::thread::sleep(SETTLE);
        let monitor = OpenOptions::new().read(true).write(true).open(MONITOR).context(MONITOR)?;
        let (socket, monitor) =
            (PacketSocket::open(interface, ETHERTYPE)?, BufReader::new(monitor));
        Ok(Far { socket, monitor, commands: 0 })
    }

    /// Plugs the card's cable in or out, and waits until the monitor has done that and the card has
    /// noticed.
    fn set_link(&mut self, up: bool) -> anyhow::Result<()> {
        self.commands += 1;
        let id = format!("\"id\": {}", self.commands);
        let arguments = format!("{{\"name\": \"card0\", \"up\": {up}}}");
        let command = format!("{{\"execute\": \"set_link\", \"arguments\": {arguments}, {id}}}");
        writeln!(self.monitor.get_ref(), "{command}")?;
        let mut said = String::new();
        while !said.contains(&id) {
            said.clear();
            let mut polled = [PollFd::new(self.monitor.get_ref(), PollFlags::IN)];
            let is_said =
                !self.monitor.buffer().is_empty() || poll(&mut polled, Some(&PATIENCE))? > 0;
            ensure!(is_said, "the monitor does not answer to {command}");
            self.monitor.read_line(&mut said)?;
        }
        ensure!(!said.contains("error"), "{command}: {said}");
        std::thread::sleep(SETTLE);
        Ok(())
    }

    /// Takes all packets, whose numbers ascend by one. Returns the number of the next one.
    fn take(&self, next: u64) -> anyhow::Result<u64> {
        let (mut buffer, mut count) = ([0; 2048], next);
        while let Some(len) = self.socket.receive(&mut buffer)? {
            ensure!(len >= PACKET_BYTES, "a packet of {len} bytes");
            let number = u16::from_be_bytes([buffer[NUMBER_AT], buffer[NUMBER_AT + 1]]);
            ensure!(u64::from(number) == count, "packet {number} in place of {count}");
            count += 1;
        }
        Ok(count)
    }
}

fn unplugged(card: &str, way: Way, far: &mut Far) -> anyhow::Result<Trial> {
    let shared = open(card, way)?;
    far.set_link(false)?;
    shared.drain()?;
    let before = shared.tally();
    let mut sent = 0;
    for number in 0..LINK_PACKETS {
        match shared.send(&packet(number)) {
            Ok(()) => sent += 1,
            Err(SendError::WouldBlock) => break,
            Err(error) => return Err(error.into()),
        }
    }
    far.set_link(true)?;
    // The card may not have room for all at once; the kernel receives them meanwhile.
    let mut arrived = 0;
    for _ in 0..DRAINS {
        shared.drain()?;
        std::thread::sleep(SETTLE / DRAINS);
        arrived = far.take(arrived)?;
    }
    Ok(Trial::Unplugged { way, sent, arrived, tally: shared.tally().since(&before) })
}
