//! The sender: it drives a card of its own by polling, so that it interrupts no other program, and
//! it runs before all others.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_testkit::Participants;

use super::packet::packet;
use super::port::Port;
use super::trial::{Load, Shape};
use crate::card_log::{DONE, END, MARKS, START};

/// Packets of a burst: fewer than the card's ring and QEMU's hub hold together, so that none is lost
/// on the wire.
const BURST: usize = 2048;
/// The time for a receiver to take a burst.
const PAUSE: Duration = Duration::from_millis(25);

/// What the sender counted in a trial.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) packets: u64,
    pub(super) came_back: u64,
    /// The instructions of the whole system without those of idle loops.
    pub(super) instructions: u64,
    /// The instructions for packets that came back.
    pub(super) own_instructions: u64,
    pub(super) writes: u64,
    /// Wake-ups of the receiver's threads.
    pub(super) wake_ups: u64,
}

/// The sender's card, and its marks in QEMU's log.
pub(super) struct Sender {
    port: Port,
    /// Packets at a fixed rate.
    paced: u32,
    marks: File,
}

impl Sender {
    pub(super) fn new(port: Port, paced: u32) -> anyhow::Result<Sender> {
        Ok(Sender { port, paced, marks: File::open(MARKS).context(MARKS)? })
    }

    fn mark(&self, offset: u64) -> anyhow::Result<()> {
        let read = self.marks.read_at(&mut [0], offset)?;
        anyhow::ensure!(read == 1, "{MARKS} has no byte {offset}");
        Ok(())
    }

    /// Sends the packets of a trial to an address, in one window or in one for each burst. Calls `between`
    /// after each window. `receiver`: the processes whose wake-ups count.
    pub(super) fn send(
        &mut self,
        shape: Shape,
        to: [u8; 6],
        bursts: usize,
        receiver: &Participants,
        mut between: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Sent> {
        self.take_back()?;
        let packet = packet(self.port.mac(), to, shape.is_back, shape.bytes);
        self.port.set_packet(&packet)?;
        let mut sent = Sent::default();
        let windows = if shape.load == Load::Saturated { bursts } else { 1 };
        for _ in 0..windows {
            let before = receiver.moment()?;
            let (writes, idle) = (self.port.writes(), idle_time()?);
            self.mark(START)?;
            let start = Instant::now();
            match shape.load {
                Load::Saturated => self.send_burst(packet.len(), &mut sent)?,
                Load::PerSecond(rate) => self.send_evenly(packet.len(), rate, &mut sent)?,
            }
            let took = start.elapsed();
            self.mark(END)?;
            let idle = idle_time()?.saturating_sub(idle);
            sent.instructions += took.saturating_sub(idle).as_nanos() as u64;
            sent.writes += self.port.writes() - writes;
            sent.wake_ups += before.until(&receiver.moment()?).sleeps;
            between()?;
        }
        self.mark(DONE)?;
        Ok(sent)
    }

    fn send_burst(&mut self, bytes: usize, sent: &mut Sent) -> anyhow::Result<()> {
        self.port.send(BURST, bytes)?;
        sent.packets += BURST as u64;
        sleep(PAUSE);
        self.note_back(sent)
    }

    fn send_evenly(&mut self, bytes: usize, rate: u32, sent: &mut Sent) -> anyhow::Result<()> {
        let gap = Duration::from_secs(1) / rate;
        let start = Instant::now();
        for number in 0..self.paced {
            sleep((gap * number).saturating_sub(start.elapsed()));
            self.port.send(1, bytes)?;
            sent.packets += 1;
            if number % 64 == 63 {
                self.note_back(sent)?;
            }
        }
        sleep(PAUSE);
        self.note_back(sent)
    }

    fn note_back(&mut self, sent: &mut Sent) -> anyhow::Result<()> {
        let start = Instant::now();
        sent.came_back += self.take_back()?;
        sent.own_instructions += start.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// Takes all packets that came back. Returns their number.
    fn take_back(&mut self) -> anyhow::Result<u64> {
        let mut count = 0;
        loop {
            match self.port.receive(|_| false)? {
                0 => return Ok(count),
                packets => count += packets as u64,
            }
        }
    }
}

/// Returns the time in which the processor was idle, interrupts excluded.
fn idle_time() -> anyhow::Result<Duration> {
    let path = "/proc/timer_list";
    let text = std::fs::read_to_string(path).context(path)?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(".idle_sleeptime"));
    let nanoseconds = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    Ok(Duration::from_nanos(nanoseconds.with_context(|| format!("{path} has no idle time"))?))
}
