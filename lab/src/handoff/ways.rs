//! The three ways from threads of one program to one card.

use serde::{Deserialize, Serialize};
use towpath_device::Device;
use towpath_embedded::{Config, Embedded, Protection, SendError};

use crate::freebsd::TwoLocks;

/// A way from several threads to a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Way {
    /// A queue and a driver with a mutex each, as before Watson's patch.
    TwoMutexes,
    /// One mutex around a driver that gets the packet directly, as in the patch.
    OneMutex,
    /// An optimistic section around the same driver.
    Section,
}

impl Way {
    pub(super) const ALL: [Way; 3] = [Way::TwoMutexes, Way::OneMutex, Way::Section];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::TwoMutexes => "through a queue, two mutexes",
            Way::OneMutex => "directly, under a mutex",
            Way::Section => "directly, optimistic section",
        }
    }
}

/// What a way counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Packets that the device took.
    pub(super) taken: u64,
    /// Locks and unlocks of mutexes.
    pub(super) lock_operations: u64,
    /// Locks for which a thread waited, and how long, in nanoseconds.
    pub(super) waited: u64,
    pub(super) waited_ns: u64,
    /// Entries into the section, and packets that were left to another thread.
    pub(super) entered: u64,
    pub(super) left: u64,
    /// The cases of Watson's `em_startmbuf`: enqueued with the link down; straight into the ring;
    /// enqueued because the card was full, or behind others and then drained; refused.
    pub(super) link_down: u64,
    pub(super) straight: u64,
    pub(super) busy: u64,
    pub(super) behind: u64,
    pub(super) refused: u64,
}

impl Tally {
    pub(super) fn since(&self, before: &Tally) -> Tally {
        let since = |value: fn(&Tally) -> u64| value(self) - value(before);
        Tally {
            taken: since(|tally| tally.taken),
            lock_operations: since(|tally| tally.lock_operations),
            waited: since(|tally| tally.waited),
            waited_ns: since(|tally| tally.waited_ns),
            entered: since(|tally| tally.entered),
            left: since(|tally| tally.left),
            link_down: since(|tally| tally.link_down),
            straight: since(|tally| tally.straight),
            busy: since(|tally| tally.busy),
            behind: since(|tally| tally.behind),
            refused: since(|tally| tally.refused),
        }
    }
}

/// A card behind one of the ways.
pub(super) enum Shared {
    Embedded(Box<Embedded>, Way),
    TwoMutexes(Box<TwoLocks>),
}

impl Shared {
    pub(super) fn new(way: Way, device: Box<dyn Device>) -> anyhow::Result<Shared> {
        let write = match way {
            Way::TwoMutexes => {
                return Ok(Shared::TwoMutexes(Box::new(TwoLocks::new(device)?)));
            }
            Way::OneMutex => Protection::Mutex,
            Way::Section => Protection::Optimistic,
        };
        let driver = Embedded::new(device, Config { write, ..Config::default() })?;
        Ok(Shared::Embedded(Box::new(driver), way))
    }

    pub(super) fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        match self {
            Shared::Embedded(driver, _) => driver.send(packet),
            Shared::TwoMutexes(driver) => driver.send(packet),
        }
    }

    /// Takes the card's events, and gives it the packets that wait.
    pub(super) fn drain(&self) -> Result<(), SendError> {
        match self {
            Shared::Embedded(driver, _) => {
                driver.take_events();
                driver.drive();
                Ok(())
            }
            Shared::TwoMutexes(driver) => {
                driver.take_events();
                driver.drain()
            }
        }
    }

    /// Returns the counts; this call counts itself, too.
    pub(super) fn tally(&self) -> Tally {
        match self {
            Shared::Embedded(driver, way) => {
                let counts = driver.counts().unwrap_or_default();
                let is_locked = *way == Way::OneMutex;
                Tally {
                    taken: counts.taken,
                    lock_operations: if is_locked { 2 * counts.entered } else { 0 },
                    waited: counts.contended,
                    waited_ns: counts.blocked_ns,
                    entered: if is_locked { 0 } else { counts.entered },
                    left: counts.left,
                    link_down: counts.link_down,
                    straight: counts.straight,
                    busy: counts.busy,
                    behind: counts.behind,
                    refused: counts.refused,
                }
            }
            Shared::TwoMutexes(driver) => {
                let counts = driver.counts();
                Tally {
                    taken: counts.taken,
                    lock_operations: 2 * counts.locked,
                    waited: counts.waited + counts.waited_for_queue,
                    waited_ns: counts.waited_ns,
                    link_down: counts.link_down,
                    behind: counts.inserted - counts.link_down,
                    refused: counts.refused,
                    ..Tally::default()
                }
            }
        }
    }
}
