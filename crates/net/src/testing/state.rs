//! The frames of a switch, and its hosts at rest or not.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{Fate, Faults, Frame, SwitchCounters};
use crate::driver::SharedNetwork;
use crate::lock::lock;

/// Frames that wait for a host, as many as a session has receive buffers by default; the switch loses further ones.
pub(super) const QUEUE: usize = 4096;
pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const MTU: usize = 1500;
/// How long a step of the clock waits for the hosts to handle what is due.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

thread_local! {
    /// `true` while this thread runs a filter.
    static FILTERS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Told when a host is at rest.
    pub(super) rested: Condvar,
    /// The microseconds by which the hosts' clock is ahead of the machine's.
    pub(super) ahead: Arc<AtomicU64>,
}

pub(super) type Filter = Box<dyn FnMut(Frame<'_>) -> Fate + Send>;

#[derive(Default)]
pub(super) struct State {
    pub(super) ports: Vec<Port>,
    pub(super) faults: Faults,
    pub(super) random: fastrand::Rng,
    pub(super) filter: Option<Filter>,
    /// The panic of the filter, which is not called any more.
    pub(super) panic: Option<Box<dyn Any + Send>>,
    /// Frames that the filter holds, with the indices of their receivers.
    pub(super) held: VecDeque<(usize, Vec<u8>)>,
    pub(super) counters: SwitchCounters,
}

/// The receiving side of a host's port.
pub(super) struct Port {
    pub(super) arrived: VecDeque<Vec<u8>>,
    /// A frame that comes behind the next one.
    pub(super) late: Option<Vec<u8>>,
    pub(super) overflowed: u64,
    pub(super) doorbell: Arc<OwnedFd>,
    /// Notifications so far.
    pub(super) notified: u64,
    /// Their number when a round began after which the host had nothing to do.
    pub(super) rested: u64,
    /// The host, once it runs. A strong reference would be dropped under the state's lock, which the link's drop takes.
    pub(super) host: Weak<SharedNetwork>,
    /// `true` if a thread of the library drives the host.
    pub(super) is_driven: bool,
    pub(super) is_closed: bool,
}

impl Port {
    pub(super) fn new(doorbell: Arc<OwnedFd>) -> Port {
        Port {
            arrived: VecDeque::new(),
            late: None,
            overflowed: 0,
            doorbell,
            notified: 0,
            rested: 0,
            host: Weak::new(),
            is_driven: false,
            is_closed: false,
        }
    }

    pub(super) fn connect(&mut self, host: &Arc<SharedNetwork>) {
        (self.host, self.is_driven) = (Arc::downgrade(host), host.has_thread());
    }

    /// Loses the frames that wait, and all that follow.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        (self.arrived, self.late) = (VecDeque::new(), None);
    }

    pub(super) fn notify(&mut self) {
        self.notified += 1;
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Returns `true` if the host has handled everything that the switch told it, or does so only if its program drives it.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_driven || self.is_closed || self.arrived.is_empty() && self.rested >= self.notified
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        assert!(!FILTERS.get(), "a switch's filter must call neither the switch nor its hosts");
        lock(&self.state)
    }

    /// Waits until all hosts are at rest, but not for long.
    pub(super) fn settle(&self) {
        self.close_ended();
        let until = Instant::now() + PATIENCE;
        let mut state = self.state();
        while !state.ports.iter().all(Port::is_at_rest) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.rested.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the hosts that threads of the library drive, with the indices of their ports.
    fn driven(&self) -> Vec<(usize, Arc<SharedNetwork>)> {
        let state = self.state();
        let driven =
            state.ports.iter().enumerate().filter(|(_, port)| port.is_driven && !port.is_closed);
        let hosts: Vec<_> = driven.map(|(index, port)| (index, port.host.clone())).collect();
        // A handle that is the last one must not be dropped under the lock.
        drop(state);
        hosts.into_iter().filter_map(|(index, host)| Some((index, host.upgrade()?))).collect()
    }

    /// Closes the ports of hosts that have ended and of which a handle remains: no thread drives them any more.
    fn close_ended(&self) {
        for (index, _) in self.driven().into_iter().filter(|(_, host)| host.check_link().is_err()) {
            self.state().ports[index].close();
        }
    }

    /// Returns the microseconds until some host has something to do; `None` if none has.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.driven().iter().filter_map(|(_, host)| host.next_due()).min()
    }
}

impl State {
    /// Returns the receivers of a frame: the host with its address, or for a group all hosts.
    pub(super) fn receivers(&self, frame: &[u8]) -> Range<usize> {
        match frame {
            [2, 0, 0, 0, 0, last, ..] if (1..=self.ports.len()).contains(&usize::from(*last)) => {
                let to = usize::from(*last) - 1;
                to..to + 1
            }
            [first, ..] if first & 1 != 0 => 0..self.ports.len(),
            _ => 0..0,
        }
    }

    /// Sends a frame to a host.
    pub(super) fn send(&mut self, from: usize, to: usize, mut frame: Vec<u8>) {
        let fate = self.ask_filter(Frame { from: from + 1, to: to + 1, bytes: &frame });
        let Faults { loss, duplication, reordering, corruption, .. } = self.faults;
        // Each frame takes the same number of random numbers, whatever becomes of it.
        let [loses, duplicates, reorders, corrupts] =
            [loss, duplication, reordering, corruption].map(|one| self.random.f64() < one);
        let (byte, bit) = (self.random.usize(..MTU), self.random.u8(..8));
        match fate {
            Fate::Deliver if !loses => {}
            Fate::Hold => {
                self.counters.held += 1;
                return self.held.push_back((to, frame));
            }
            Fate::Deliver | Fate::Lose => {
                self.counters.lost += 1;
                return;
            }
        }
        if corrupts && frame.len() > ETHERNET_BYTES && frame[12..14] != [8, 6] {
            let at = ETHERNET_BYTES + byte % (frame.len() - ETHERNET_BYTES);
            frame[at] ^= 1 << bit;
            self.counters.corrupted += 1;
        }
        if duplicates {
            self.counters.duplicated += 1;
            self.deliver(to, frame.clone());
        }
        let late = &mut self.ports[to].late;
        if reorders && late.is_none() {
            *late = Some(frame);
            self.counters.reordered += 1;
        } else {
            let late = late.take();
            self.deliver(to, frame);
            late.into_iter().for_each(|late| self.deliver(to, late));
        }
    }

    /// Returns what the filter decides.
    pub(super) fn ask_filter(&mut self, frame: Frame<'_>) -> Fate {
        let Some(filter) = &mut self.filter else { return Fate::Deliver };
        if self.panic.is_some() {
            return Fate::Lose;
        }
        FILTERS.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| filter(frame)));
        FILTERS.set(false);
        outcome.unwrap_or_else(|panic| {
            self.panic = Some(panic);
            Fate::Lose
        })
    }

    pub(super) fn deliver(&mut self, to: usize, frame: Vec<u8>) {
        let port = &mut self.ports[to];
        if port.is_closed {
            self.counters.lost += 1;
        } else if port.arrived.len() < QUEUE {
            port.arrived.push_back(frame);
            self.counters.delivered += 1;
        } else {
            port.overflowed += 1;
            self.counters.overflowed += 1;
        }
    }

    /// Delivers the frames that come behind others.
    pub(super) fn deliver_late(&mut self) {
        for to in 0..self.ports.len() {
            let late = self.ports[to].late.take();
            late.into_iter().for_each(|late| self.deliver(to, late));
        }
    }
}
