//! A driver in the initiator's own program, divided as the paper's: a top half, which clients call,
//! and a bottom half, which runs when a packet has come.
//!
//! The bottom half is a thread on the other core. It polls for readiness outside of all protection,
//! as an interrupt controller would, and enters the driver only for a packet. It appends the packet
//! to the client's receive queue. Two paths need mutual exclusion between the halves: the driver
//! itself, which is the paper's *write path*, and the client's receive queue, its *read path*. A
//! mutex or an optimistic section protects each.
//!
//! A packet passes between the client's memory and the driver's as [`Pass`] says.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_device::Device;
use towpath_device::tap::{Options, TapDevice};
use towpath_embedded::{Config, Driver, Embedded};
use towpath_netlink::Netlink;
use towpath_testkit::pin;

use super::pass::{LONGEST, Pass, Passing};
use super::receive_queue::{Protection, ReadPath};
use crate::echo::{ETHERTYPE, Link};

/// The driver's address; the kernel's side of the interface has another one.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The most packets that the bottom half receives at once.
const BATCH: usize = 32;
/// The longest time that the bottom half takes to stop.
const PATIENCE: Duration = Duration::from_secs(2);

/// The switches of a driver; each of the paper's versions is a combination of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switches {
    pub(super) write: Protection,
    pub(super) read: Protection,
    pub(super) pass: Pass,
}

/// The driver's side of the write path.
enum WritePath {
    Locked(Box<Mutex<Driver>>),
    Optimistic(Box<Embedded>),
}

impl WritePath {
    fn new(protection: Protection, device: Box<dyn Device>) -> anyhow::Result<WritePath> {
        Ok(match protection {
            Protection::Mutex => {
                WritePath::Locked(Box::new(Mutex::new(Driver::new(device, Config::default())?)))
            }
            Protection::Optimistic => {
                WritePath::Optimistic(Box::new(Embedded::new(device, Config::default())?))
            }
        })
    }

    fn send(&self, packet: &[u8]) -> anyhow::Result<()> {
        match self {
            WritePath::Locked(driver) => {
                driver.lock().unwrap_or_else(PoisonError::into_inner).send(packet)?;
            }
            WritePath::Optimistic(driver) => driver.send(packet)?,
        }
        Ok(())
    }

    /// Receives one batch. Returns the number of its packets.
    fn receive(&self, mut each: impl FnMut(&[u8])) -> usize {
        let each = |packet: &[u8], _| each(packet);
        match self {
            WritePath::Locked(driver) => {
                driver.lock().unwrap_or_else(PoisonError::into_inner).receive(BATCH, each)
            }
            WritePath::Optimistic(driver) => driver.receive(BATCH, each),
        }
    }
}

/// What both halves use.
struct SharedDriver {
    write: WritePath,
    read: ReadPath,
    /// Packets that the bottom half appended to the receive queue.
    arrived: AtomicU64,
    /// `true` while the bottom half is to run; the client writes it.
    runs: AtomicBool,
    ends: AtomicBool,
    /// `true` while the bottom half sleeps; the bottom half writes it.
    rests: AtomicBool,
}

/// A driver, with its bottom half at rest or running.
pub(super) struct Driven {
    shared: Arc<SharedDriver>,
    bottom_half: Option<JoinHandle<anyhow::Result<()>>>,
    interface: String,
    pass: Pass,
}

impl Driven {
    /// Starts a driver on a TAP of this name, with the bottom half on a core.
    pub(super) fn start(interface: &str, switches: Switches, cpu: usize) -> anyhow::Result<Driven> {
        let device = TapDevice::open(&Options { name: interface.to_owned(), offloads: false })?;
        Netlink::open()?.set_up(interface)?;
        let ready = device.as_fd().try_clone_to_owned().context("the descriptor of a TAP")?;
        let shared = Arc::new(SharedDriver {
            write: WritePath::new(switches.write, Box::new(device))?,
            read: ReadPath::new(switches.read)?,
            arrived: AtomicU64::new(0),
            runs: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            rests: AtomicBool::new(false),
        });
        let (own, passing) = (shared.clone(), Passing::new(switches.pass)?);
        let bottom_half = std::thread::spawn(move || bottom_half(&own, &ready, passing, cpu));
        let driven = Driven {
            shared,
            bottom_half: Some(bottom_half),
            interface: interface.to_owned(),
            pass: switches.pass,
        };
        driven.rest()?;
        Ok(driven)
    }

    pub(super) fn interface(&self) -> &str {
        &self.interface
    }

    pub(super) fn mac(&self) -> [u8; 6] {
        MAC
    }

    /// Returns the client's side.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        let memory = Vec::with_capacity(LONGEST);
        let (shared, passing) = (self.shared.clone(), Passing::new(self.pass)?);
        Ok(Client { shared, passing, memory, seen: 0 })
    }

    /// Lets the bottom half run.
    pub(super) fn resume(&self) {
        self.shared.runs.store(true, Ordering::Release);
        if let Some(thread) = &self.bottom_half {
            thread.thread().unpark();
        }
    }

    /// Takes the bottom half off its core.
    pub(super) fn rest(&self) -> anyhow::Result<()> {
        self.shared.runs.store(false, Ordering::Release);
        let begun = Instant::now();
        while !self.shared.rests.load(Ordering::Acquire) {
            let ended = self.bottom_half.as_ref().is_none_or(JoinHandle::is_finished);
            ensure!(!ended, "the bottom half of {} failed", self.interface);
            ensure!(begun.elapsed() < PATIENCE, "{}'s bottom half does not stop", self.interface);
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.bottom_half.take() {
            thread.thread().unpark();
            if let Ok(Err(error)) = thread.join() {
                eprintln!("towpath-lab: {}: {error:#}", self.interface);
            }
        }
    }
}

/// Runs the bottom half: a packet that has come passes to the client's receive queue.
fn bottom_half(
    shared: &SharedDriver,
    ready: &OwnedFd,
    mut passing: Passing,
    cpu: usize,
) -> anyhow::Result<()> {
    pin(cpu)?;
    let mut memory = Vec::with_capacity(LONGEST);
    // The first call gives the device its buffers.
    shared.write.receive(|_| {});
    while !shared.ends.load(Ordering::Acquire) {
        if !shared.runs.load(Ordering::Acquire) {
            shared.rests.store(true, Ordering::Release);
            std::thread::park();
            continue;
        }
        shared.rests.store(false, Ordering::Release);
        let mut polled = [PollFd::new(ready, PollFlags::IN)];
        if poll(&mut polled, Some(&Timespec::default()))? == 0 {
            continue;
        }
        let mut failed = None;
        let mut arrived = 0;
        shared.write.receive(|packet| {
            if packet.get(12..14) != Some(&ETHERTYPE.to_be_bytes()) {
                return;
            }
            if let Err(error) = passing.pass(packet, &mut memory) {
                failed = Some(error);
            } else if shared.read.append(&memory) {
                arrived += 1;
            }
        });
        if let Some(error) = failed {
            return Err(error).context("passing a packet to the client");
        }
        if arrived > 0 {
            shared.arrived.fetch_add(arrived, Ordering::Release);
        }
    }
    Ok(())
}

/// The client's side of a driver: its top half.
pub(super) struct Client {
    shared: Arc<SharedDriver>,
    passing: Passing,
    memory: Vec<u8>,
    /// Packets that the client took from its receive queue.
    seen: u64,
}

impl Link for Client {
    fn send(&mut self, frame: &[u8]) -> anyhow::Result<()> {
        self.passing.pass(frame, &mut self.memory).context("passing a packet to the driver")?;
        self.shared.write.send(&self.memory)
    }

    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        // A client that waits does not enter the read path.
        while self.shared.arrived.load(Ordering::Acquire) != self.seen {
            if self.shared.read.remove(&mut self.memory) {
                self.seen += 1;
                each(&self.memory);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use towpath_testkit::{check_tun, isolated, skip};

    use super::*;
    use crate::echo::{Echo, Initiator, mac_of};
    use crate::notre_dame::groups::VERSIONS;

    /// Every version brings packets back unchanged, and its bottom half rests when it is told to.
    #[test]
    fn every_version_sends_and_receives() {
        if let Err(why) = check_tun() {
            skip("every_version_sends_and_receives", &why);
            return;
        }
        isolated!(|| {
            let core = towpath_testkit::cores().unwrap()[0].cpu;
            for (number, (name, switches)) in VERSIONS.iter().enumerate() {
                let interface = format!("tpver{number}");
                let driven = Driven::start(&interface, *switches, core).unwrap();
                let echo = Echo::open(&interface, ETHERTYPE).unwrap();
                let macs = [mac_of(&interface).unwrap(), MAC];
                let client = Box::new(driven.client().unwrap());
                let mut initiator = Initiator::over(client, macs, Some(echo), LONGEST);
                for _ in 0..20 {
                    driven.resume();
                    for _ in 0..20 {
                        initiator.trip().with_context(|| *name).unwrap();
                    }
                    driven.rest().unwrap();
                    assert!(driven.shared.rests.load(Ordering::Acquire));
                }
                assert_eq!(driven.shared.arrived.load(Ordering::Acquire), 400, "{name}");
            }
        });
    }
}
