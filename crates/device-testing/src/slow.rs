//! A wrapper that makes a device slow: it sends one packet per given time, and has few slots for
//! waiting packets. It refuses packets that find no slot, as a controller with a full ring does.
//!
//! Receiving is as fast as without it. The wrapper copies nothing: a packet stays in its memory
//! until the wrapper sends it, so its token comes back later.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use towpath_device::{
    Armed, Completion, Counters, Device, DeviceError, DeviceQueue, Info, Kick, MAX_PARTS, Meta,
    Packet, Part, Received, Spaces,
};

use crate::sleeper::Sleeper;
use crate::wrapped::{Opening, Wrap, Wrapped};

/// The system call of which an error tells.
const TIMER: &str = "timerfd";

/// The pace of a slow device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The time to send a packet of any length.
    pub packet_time: Duration,
    /// The maximum number of packets that wait or are being sent, at least one; the device refuses
    /// more.
    pub places: usize,
}

/// A packet that waits, or that the wrapper sends until `due`.
struct Waiting {
    parts: Vec<Part>,
    meta: Meta,
    token: u64,
    due: Instant,
}

/// A device that sends at a pace.
pub type SlowDevice = Wrapped<Slow>;

/// Makes queues slow.
pub struct Slow {
    pace: Pace,
}

impl SlowDevice {
    /// Wraps a device none of whose queues is open.
    #[must_use]
    pub fn new(inner: Box<dyn Device>, pace: Pace) -> SlowDevice {
        let pace = Pace { places: pace.places.max(1), ..pace };
        Wrapped::around(inner, Slow { pace }).with_info(|info| {
            info.can.tx_asynchronous = true;
            info.can.tx_tag = false;
        })
    }
}

impl Wrap for Slow {
    fn wrap(
        &mut self,
        inner: Box<dyn DeviceQueue>,
        opening: Opening<'_>,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let places = self.pace.places;
        let info = opening.info;
        let sleeper = inner.sleep_fd().map(Sleeper::new).transpose();
        Ok(Box::new(SlowQueue {
            sleeper: sleeper.map_err(info.failed(TIMER))?,
            info: info.clone(),
            pace: self.pace,
            waiting: VecDeque::with_capacity(places),
            // Of a packet with too many parts the wrapper keeps one more than allowed, so that the
            // wrapped device drops the packet.
            unused: (0..places).map(|_| Vec::with_capacity(MAX_PARTS + 1)).collect(),
            busy_until: Instant::now(),
            blocked: false,
            done: VecDeque::with_capacity(places),
            fetched: Vec::with_capacity(places),
            system_calls: 0,
            inner,
        }))
    }
}

/// A queue that sends at a pace.
struct SlowQueue {
    inner: Box<dyn DeviceQueue>,
    info: Info,
    pace: Pace,
    sleeper: Option<Sleeper>,
    waiting: VecDeque<Waiting>,
    /// Unused lists of parts, so that the wrapper does not allocate per packet.
    unused: Vec<Vec<Part>>,
    /// When the last taken packet will be sent.
    busy_until: Instant,
    /// `true` if the wrapped device had no room for a due packet.
    blocked: bool,
    /// Completions of packets that a reset ended, and of those that the wrapped device completed.
    done: VecDeque<Completion>,
    fetched: Vec<Completion>,
    system_calls: u64,
}

impl SlowQueue {
    /// Submits the packets that are due.
    fn advance(&mut self, spaces: &mut Spaces, now: Instant) -> Result<(), DeviceError> {
        self.blocked = false;
        let mut taken = false;
        while let Some(first) = self.waiting.front()
            && first.due <= now
        {
            let packet =
                Packet { parts: &first.parts, meta: first.meta, tag: None, token: first.token };
            if self.inner.tx_submit(spaces, &[packet])? == 0 {
                self.blocked = true;
                break;
            }
            taken = true;
            self.forget_first();
        }
        if taken { self.inner.kick(spaces, Kick::Tx) } else { Ok(()) }
    }

    fn forget_first(&mut self) -> Option<u64> {
        let mut first = self.waiting.pop_front()?;
        first.parts.clear();
        self.unused.push(first.parts);
        Some(first.token)
    }

    /// Takes completions from the wrapped device.
    fn collect(&mut self) -> Result<(), DeviceError> {
        self.inner.tx_complete(&mut self.fetched, usize::MAX)?;
        self.done.extend(self.fetched.drain(..));
        Ok(())
    }
}

impl DeviceQueue for SlowQueue {
    crate::forward!(inner: holds, rx_fill, kick_rx);

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        if !self.waiting.is_empty() {
            self.advance(spaces, Instant::now())?;
        }
        self.inner.rx_poll(spaces, out, budget)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.advance(spaces, now)?;
        let mut taken = 0;
        for packet in packets {
            let Some(mut parts) = self.unused.pop() else { break };
            parts.extend(packet.parts.iter().take(MAX_PARTS + 1));
            self.busy_until = self.busy_until.max(now) + self.pace.packet_time;
            self.waiting.push_back(Waiting {
                parts,
                meta: packet.meta,
                token: packet.token,
                due: self.busy_until,
            });
            taken += 1;
        }
        Ok(taken)
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.collect()?;
        Ok(Completion::take(&mut self.done, out, budget))
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.as_ref().map(Sleeper::fd)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        self.collect()?;
        let now = Instant::now();
        let due = self.waiting.front().map(|first| first.due).filter(|_| !self.blocked);
        let room = tx_waiting && !self.unused.is_empty();
        if !self.done.is_empty() || room || due.is_some_and(|due| due <= now) {
            return Ok(Armed::Work);
        }
        let Some(sleeper) = &mut self.sleeper else { return Ok(Armed::Work) };
        let set = sleeper.wake_at(due, now);
        self.system_calls += set.map_err(self.info.failed(TIMER))?;
        self.inner.arm(self.blocked)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        let outcome = self.inner.reset(buffers);
        // The wrapped device took its packets before those that wait here.
        let collected = self.collect();
        while let Some(token) = self.forget_first() {
            self.done.push_back(Completion::returned(token));
        }
        self.busy_until = Instant::now();
        self.blocked = false;
        outcome.and(collected)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.inner.counters();
        counters.system_calls += self.system_calls;
        counters
    }
}
