//! Frames at a constant rate between an application and the kernel over a TAP, and their cost to
//! all participants.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_client::{
    Endpoint, Meta, Options, QueuePair, Rule, Scope, Session, Setting, WaitStrategy,
};
use towpath_netlink::Netlink;
use towpath_packet::build::Flow;
use towpath_testkit::{Participants, pin};

use super::counted::{Counted, counted};
use super::left::Left;
use super::way::{WINDOW_S, Way};
use crate::echo::mac_of;
use crate::process::{HOST, Process};

/// A full Ethernet frame, as in a bulk transfer.
pub(super) const FRAME_BYTES: usize = 1514;
const HEADER_BYTES: usize = 42;
const PORT: u16 = 9;
const SLOTS: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(5);

/// From the application to the kernel, or the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Sending,
    Receiving,
}

impl Direction {
    pub(super) const ALL: [Direction; 2] = [Direction::Sending, Direction::Receiving];

    pub(super) fn name(self) -> &'static str {
        match self {
            Direction::Sending => "sending",
            Direction::Receiving => "receiving",
        }
    }
}

/// The number of frames, and their arrangement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) direction: Direction,
    /// Frames per second.
    pub(super) rate: u32,
    /// Frames of one burst.
    pub(super) burst: u32,
    /// Of these, the frames that the application flushes together, with at most one notification.
    /// The kernel has no flush.
    pub(super) flushed: u32,
}

impl Load {
    /// Returns a load of bursts that are flushed whole.
    pub(super) fn bursts(direction: Direction, rate: u32, burst: u32) -> Load {
        Load { direction, rate, burst, flushed: burst }
    }

    /// Returns whether the application flushes after this many frames of a burst.
    fn flushes_after(self, frames: u64) -> bool {
        frames.is_multiple_of(u64::from(self.flushed)) || frames == u64::from(self.burst)
    }

    /// Returns the time that this many frames take.
    fn takes(self, frames: u64) -> Duration {
        Duration::from_nanos(frames * 1_000_000_000 / u64::from(self.rate))
    }
}

/// The result of a run, scaled to the paper's window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) frames: f64,
    pub(super) wake_ups: f64,
    /// Polls of the device that found nothing.
    pub(super) polls: f64,
    pub(super) switches: f64,
    pub(super) busy_s: f64,
    /// The idle part of both cores, where the experiment counts it.
    pub(super) left: Option<f64>,
}

impl Sample {
    /// Returns the idle part of this many cores.
    pub(super) fn idle(&self, cores: u32) -> f64 {
        1.0 - self.busy_s / (WINDOW_S * f64::from(cores))
    }
}

/// An application at a server, and the kernel's side of it.
pub(super) struct Bench<'a> {
    process: &'a Process,
    session: Session,
    endpoint: Endpoint,
    headers: [u8; HEADER_BYTES],
    kernel: UdpSocket,
    participants: Participants,
    cores: (usize, usize),
    /// The process that counts idle time, in a run of its own.
    pub(super) left: Option<Left>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        process: &'a Process,
        tap: &str,
        cores: (usize, usize),
    ) -> anyhow::Result<Bench<'a>> {
        // Room for all frames that come while other threads have the processor: nothing is lost
        // here.
        let options = Options {
            name: "karlsruhe".into(),
            transmit_slots: SLOTS,
            receive_slots: SLOTS,
            ..Options::default()
        };
        let mut session = Session::attach(process.socket(), &options)?;
        let (ip, _) = session.info().ipv4.context("a session without an IPv4 address")?;
        let endpoint = session.open(&Rule::new().udp(PORT))?;
        // The application answers no ARP.
        Netlink::open()?.add_neighbour(tap, ip.into(), session.info().mac.octets())?;
        let kernel = UdpSocket::bind((HOST, PORT))?;
        kernel.connect((ip, PORT))?;
        let flow =
            Flow::v4().macs(session.info().mac, mac_of(tap)?).addresses(ip, HOST).ports(PORT, PORT);
        let mut frame = flow.udp(&vec![0; FRAME_BYTES - HEADER_BYTES]);
        frame[40..42].fill(0);
        let headers = *frame.first_chunk().context("a frame without headers")?;
        let participants = Participants::new(&[std::process::id(), process.pid()]);
        Ok(Bench { process, session, endpoint, headers, kernel, participants, cores, left: None })
    }

    /// Carries frames for a time with a configuration, then resets its settings to the defaults.
    pub(super) fn run_so(
        &mut self,
        way: &Way,
        load: Load,
        window: Duration,
    ) -> anyhow::Result<Sample> {
        for &(setting, value) in &way.settings {
            self.set(setting, value)?;
        }
        self.session.set_wait_strategy(way.waiting)?;
        let sample = self.run(load, window);
        self.session.set_wait_strategy(WaitStrategy::Block)?;
        for &(setting, _) in &way.settings {
            self.set(setting, setting.spec().default)?;
        }
        sample
    }

    fn set(&mut self, setting: Setting, value: u64) -> anyhow::Result<()> {
        match setting.spec().scope {
            Scope::Device => self.process.set(setting, value),
            Scope::Endpoint | Scope::OwnEndpoint => {
                Ok(self.session.set(self.endpoint, setting, value)?)
            }
        }
    }

    /// Carries frames for a time.
    pub(super) fn run(&mut self, load: Load, window: Duration) -> anyhow::Result<Sample> {
        let frames = (window.as_secs_f64() * f64::from(load.rate)) as u64;
        let frames = frames.next_multiple_of(u64::from(load.burst));
        let counters = self.process.counters()?;
        let Counted { took, usage, left, .. } = match load.direction {
            Direction::Sending => self.send(load, frames)?,
            Direction::Receiving => self.receive(load, frames)?,
        };
        // The engine publishes its counts at the end of a poll iteration, which may be after the
        // last frame.
        let until = Instant::now() + PATIENCE;
        let (after, moved) = loop {
            let after = self.process.counters()?;
            let moved =
                since(&counters, &after, "rx_packets") + since(&counters, &after, "tx_packets");
            if moved >= frames || Instant::now() >= until {
                break (after, moved);
            }
            thread::sleep(Duration::from_millis(1));
        };
        ensure!(moved >= frames, "{moved} of {frames} frames crossed the device");
        let scale = WINDOW_S / took.as_secs_f64();
        Ok(Sample {
            frames: moved as f64 * scale,
            wake_ups: usage.sleeps as f64 * scale,
            polls: since(&counters, &after, "driver_calls").saturating_sub(moved) as f64 * scale,
            switches: usage.switches() as f64 * scale,
            busy_s: usage.cpu.as_secs_f64() * scale,
            left,
        })
    }

    /// Sends frames from the application to the kernel. No thread reads there: the kernel drops
    /// frames that its socket has no room for.
    fn send(&mut self, load: Load, frames: u64) -> anyhow::Result<Counted> {
        let Bench { session, endpoint, headers, cores, participants, left, .. } = self;
        let cpu = cores.1;
        let sending = move || {
            pin(cpu)?;
            paced(load, frames, |count| {
                for sent in 1..=count {
                    session.sender().send(*endpoint, FRAME_BYTES, Meta::FULL, |parts| {
                        if let [part] = parts {
                            part[..HEADER_BYTES].copy_from_slice(headers);
                            part[HEADER_BYTES..].fill(count as u8);
                        }
                    })?;
                    if load.flushes_after(sent) {
                        session.sender().flush()?;
                    }
                }
                Ok(())
            })?;
            let start = Instant::now();
            while session.sender().unsent(QueuePair::FIRST)? > 0 {
                ensure!(start.elapsed() < PATIENCE, "frames are not sent");
                thread::sleep(Duration::from_micros(100));
            }
            Ok(frames)
        };
        counted(participants, left.as_mut(), vec![Box::new(sending)])
    }

    /// Sends frames from the kernel to the application, until that has received the last one.
    fn receive(&mut self, load: Load, frames: u64) -> anyhow::Result<Counted> {
        let Bench { session, kernel, cores, participants, left, .. } = self;
        let cpu = cores.1;
        let limit = load.takes(frames) + PATIENCE;
        let receiving = move || {
            pin(cpu)?;
            let (start, mut received, mut sum) = (Instant::now(), 0, 0_u64);
            while received < frames {
                let left = limit.saturating_sub(start.elapsed());
                ensure!(!left.is_zero(), "{received} of {frames} frames arrived");
                session.wait(Some(left))?;
                let got = session.receiver().receive(QueuePair::FIRST, 256, |packet| {
                    let parts = packet.parts().map(crate::messages::add);
                    sum = parts.fold(sum, u64::wrapping_add);
                })?;
                received += got as u64;
            }
            std::hint::black_box(sum);
            Ok(received)
        };
        let sending = move || {
            pin(cpu)?;
            let payload = [7; FRAME_BYTES - HEADER_BYTES];
            paced(load, frames, |count| {
                for _ in 0..count {
                    kernel.send(&payload)?;
                }
                Ok(())
            })?;
            Ok(frames)
        };
        counted(participants, left.as_mut(), vec![Box::new(receiving), Box::new(sending)])
    }
}

/// Returns the increase of a counter.
pub(super) fn since(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
    name: &str,
) -> u64 {
    let value = |all: &BTreeMap<String, u64>| all.get(name).copied().unwrap_or_default();
    value(after).saturating_sub(value(before))
}

/// Sends bursts when they are due, and sleeps in between. Sends late bursts at once.
fn paced(
    load: Load,
    frames: u64,
    mut send: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut sent = 0;
    while sent < frames {
        send(u64::from(load.burst))?;
        sent += u64::from(load.burst);
        let due = load.takes(sent);
        if let Some(left) = due.checked_sub(start.elapsed()) {
            thread::sleep(left);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_flushed_whole_or_in_parts() {
        let whole = Load::bursts(Direction::Sending, 1000, 16);
        let after = |load: Load| (1..=16).filter(|&frames| load.flushes_after(frames)).count();
        assert_eq!(after(whole), 1);
        assert!(whole.flushes_after(16), "nothing stays behind");
        assert_eq!(after(Load { flushed: 1, ..whole }), 16);
        assert_eq!(after(Load { flushed: 5, ..whole }), 4);
        // The pacing is the same.
        assert_eq!(whole.takes(16), Load { flushed: 1, ..whole }.takes(16));
        for (flushed, bursts) in [(16, 3), (1, 3)] {
            let (load, mut sent) = (Load { rate: 1_000_000, flushed, ..whole }, Vec::new());
            let send = |count| {
                sent.push(count);
                Ok(())
            };
            paced(load, 48, send).unwrap();
            assert_eq!(sent, vec![16; bursts], "flushed after {flushed}");
        }
    }
}
