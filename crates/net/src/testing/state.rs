//! The frames of a switch, and its hosts at rest or not.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use towpath_client::Lost;
use towpath_packet::pcapng::Direction;

use super::capture::Capture;
use super::doorbell::Doorbell;
use super::wire::{Line, QUEUE, Wire};
use super::{Fate, Faults, Frame, SwitchCounters};
use crate::driver::SharedNetwork;
use crate::lock::lock;

const ETHERNET_BYTES: usize = 14;
/// The number of bytes behind the Ethernet header in which a fault inverts a bit, also of a longer frame.
const MTU: usize = 1500;
/// How long a step of the clock waits for the hosts to handle what is due.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

thread_local! {
    /// `true` while this thread runs a filter.
    static FILTERS: Cell<bool> = const { Cell::new(false) };
}

/// The beginning of a switch's clock.
struct Start {
    at: Instant,
    /// The same, since 1970.
    since_1970: Duration,
}

impl Default for Start {
    fn default() -> Start {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Start { at: Instant::now(), since_1970: since_1970.unwrap_or_default() }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    start: Start,
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
    /// The number of the latest frame on its way to a host, by which frames of one time keep their order.
    under_way: u64,
}

/// Where a frame on its way to a host will be next.
enum Next {
    Switch,
    Host,
}

/// A host's port.
pub(super) struct Port {
    pub(super) wire: Wire,
    /// The direction from the host to the switch.
    up: Line,
    down: Line,
    /// The frames on their way to the host, by the time of the switch's clock at which they are at the next place, and in
    /// the order in which they were sent.
    under_way: BTreeMap<(u64, u64), (Next, Vec<u8>)>,
    pub(super) arrived: VecDeque<Vec<u8>>,
    /// A frame that comes behind the next one.
    pub(super) late: Option<Vec<u8>>,
    pub(super) overflowed: u64,
    pub(super) doorbell: Arc<Doorbell>,
    /// Notifications so far.
    pub(super) notified: u64,
    /// Their number when a round began after which the host had nothing to do.
    pub(super) rested: u64,
    /// The host, once it runs. A strong reference would be dropped under the state's lock, which the link's drop takes.
    pub(super) host: Weak<SharedNetwork>,
    /// `true` if a thread of the library drives the host.
    pub(super) is_driven: bool,
    pub(super) is_closed: bool,
    /// Why the test has ended the link.
    pub(super) lost: Option<Lost>,
    pub(super) capture: Option<Capture>,
}

impl Port {
    pub(super) fn new(doorbell: Arc<Doorbell>, wire: Wire) -> Port {
        Port {
            wire,
            up: Line::default(),
            down: Line::default(),
            under_way: BTreeMap::new(),
            arrived: VecDeque::new(),
            late: None,
            overflowed: 0,
            doorbell,
            notified: 0,
            rested: 0,
            host: Weak::new(),
            is_driven: false,
            is_closed: false,
            lost: None,
            capture: None,
        }
    }

    pub(super) fn connect(&mut self, host: &Arc<SharedNetwork>) {
        (self.host, self.is_driven) = (Arc::downgrade(host), host.has_thread());
    }

    /// Loses the frames that wait, and all that follow.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        (self.arrived, self.late) = (VecDeque::new(), None);
        self.under_way.clear();
    }

    /// Returns the time at which the next frame is at its next place; `None` if no frame is on its way.
    pub(super) fn next_frame(&self) -> Option<u64> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn notify(&mut self) {
        self.notified += 1;
        self.doorbell.ring();
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

    /// Returns the time of the switch's clock, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        let ahead = self.ahead.load(Ordering::SeqCst).saturating_mul(1000);
        nanoseconds(self.start.at.elapsed()).saturating_add(ahead)
    }

    /// Returns the beginning of the switch's clock, in nanoseconds since 1970.
    pub(super) fn since_1970(&self) -> u64 {
        nanoseconds(self.start.since_1970)
    }

    /// Passes all frames that have arrived by now to their hosts' ports.
    pub(super) fn pass_all(&self, state: &mut State) {
        let now = self.now();
        (0..state.ports.len()).for_each(|to| state.pass(to, now));
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
        let host = self.driven().iter().filter_map(|(_, host)| host.next_due()).min();
        let frame = self.state().ports.iter().filter_map(Port::next_frame).min();
        let frame = frame.map(|at| at.saturating_sub(self.now()).div_ceil(1000));
        host.into_iter().chain(frame).min()
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

    /// Returns the port of a host by its number.
    pub(super) fn port(&mut self, host: usize) -> io::Result<&mut Port> {
        let hosts = self.ports.len();
        host.checked_sub(1).and_then(|index| self.ports.get_mut(index)).ok_or_else(|| {
            let text = format!("the switch has no host {host}: its hosts are 1 to {hosts}");
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }

    /// Sends a host's frame to the switch. Returns when it is there; `None` if it is lost.
    pub(super) fn enter(&mut self, from: usize, now: u64, frame: &[u8]) -> Option<u64> {
        let port = &mut self.ports[from];
        if let Some(capture) = &mut port.capture {
            capture.note(now, Direction::Outbound, frame);
        }
        let at = port.up.send(&port.wire, now, frame.len());
        if at.is_none() {
            self.counters.overflowed += 1;
        }
        at
    }

    /// Sends a frame that is at the switch at a time to a host.
    pub(super) fn send(&mut self, from: usize, to: usize, mut frame: Vec<u8>, at: u64, now: u64) {
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
            self.deliver(to, frame.clone(), at, now);
        }
        let late = &mut self.ports[to].late;
        if reorders && late.is_none() {
            *late = Some(frame);
            self.counters.reordered += 1;
        } else {
            let late = late.take();
            self.deliver(to, frame, at, now);
            late.into_iter().for_each(|late| self.deliver(to, late, at, now));
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

    /// Delivers a frame that is at the switch at a time.
    pub(super) fn deliver(&mut self, to: usize, frame: Vec<u8>, at: u64, now: u64) {
        let port = &mut self.ports[to];
        if port.is_closed {
            self.counters.lost += 1;
        } else if frame.len() > ETHERNET_BYTES + port.wire.mtu_bytes() {
            self.counters.oversized += 1;
        } else {
            self.under_way += 1;
            port.under_way.insert((at, self.under_way), (Next::Switch, frame));
            self.pass(to, now);
        }
    }

    /// Passes the frames that have arrived by a time to a host's port.
    pub(super) fn pass(&mut self, to: usize, now: u64) {
        let State { ports, counters, .. } = self;
        let port = &mut ports[to];
        while let Some(entry) = port.under_way.first_entry()
            && entry.key().0 <= now
        {
            let ((at, number), (next, frame)) = entry.remove_entry();
            match next {
                Next::Switch => match port.down.send(&port.wire, at, frame.len()) {
                    Some(at) => drop(port.under_way.insert((at, number), (Next::Host, frame))),
                    None => counters.overflowed += 1,
                },
                Next::Host if port.arrived.len() < QUEUE => {
                    if let Some(capture) = &mut port.capture {
                        capture.note(at, Direction::Inbound, &frame);
                    }
                    port.arrived.push_back(frame);
                    counters.delivered += 1;
                }
                Next::Host => {
                    port.overflowed += 1;
                    counters.overflowed += 1;
                }
            }
        }
    }

    /// Delivers the frames that come behind others.
    pub(super) fn deliver_late(&mut self, now: u64) {
        for to in 0..self.ports.len() {
            let late = self.ports[to].late.take();
            late.into_iter().for_each(|late| self.deliver(to, late, now, now));
        }
    }
}
