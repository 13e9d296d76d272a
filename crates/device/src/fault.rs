//! A wrapper that makes a device's wire worse: frames lost, doubled, out of order, late, with a bit
//! turned, or a whole direction standing still for a while.
//!
//! It works on frames as the wire has them: what is unfinished or large is finished and cut first.
//! Frames lie in memory of its own meanwhile, so that whatever is done with the memory they came
//! from does not change them. With the same seed the same sequence of frames meets the same faults.

mod lane;
mod spec;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use towpath_packet::offload::MAX_SEGMENTS;
use towpath_packet::segment::finish_into;
use towpath_protocol::memory::Mapping;

use crate::check::Limits;
use crate::wire::Assembly;
use crate::{
    Armed, Capabilities, Counters, Device, DeviceError, ETHERNET_HEADER_BYTES, Info,
    LARGE_PACKET_BYTES, Meta, POOL_HEADROOM_BYTES, Packet, Part, Received, Space, SpaceId, Spaces,
    VLAN_TAG_BYTES,
};
use lane::{Lane, Place, Shared};

pub use lane::Injected;
pub use spec::{Faults, MAX_TIME_US, Spec, SpecError};

/// Places for frames in each direction: what a large packet can be cut into, each piece doubled,
/// and as much again.
const PLACES: usize = 4 * MAX_SEGMENTS;
/// Pool frames kept for sending, where the device sends from its pool alone.
const POOL_PLACES: usize = 64;
/// Every how manieth pool frame provided is kept for that, until there are enough.
const POOL_SHARE: usize = 4;
/// Frames handed to the device at once.
const BATCH: usize = 64;
/// Tokens kept for `tx_return`; more packets are not taken before some were fetched.
const TX_TOKENS: usize = 1024;

/// Reads from any thread what was done to the frames.
#[derive(Clone, Debug)]
pub struct FaultCounters {
    rx: Arc<Shared>,
    tx: Arc<Shared>,
}

impl FaultCounters {
    /// What was done to frames received.
    #[must_use]
    pub fn rx(&self) -> Injected {
        self.rx.read()
    }

    /// What was done to frames sent.
    #[must_use]
    pub fn tx(&self) -> Injected {
        self.tx.read()
    }
}

/// The wrapper.
pub struct FaultDevice {
    inner: Box<dyn Device>,
    info: Info,
    /// The descriptor to sleep on, where the device has one: of an epoll that waits for the
    /// device and for `timer`.
    sleep: Option<OwnedFd>,
    timer: OwnedFd,
    timer_due: Option<Instant>,
    place_bytes: usize,
    rx: Lane,
    tx: Lane,
    /// Pool frames that are with neither the engine nor the device.
    empty: VecDeque<(SpaceId, u32)>,
    /// Pool frames that serve as places of `tx`, by their data's offset.
    pool_places: usize,
    /// Where each frame being sent lies; the device's tokens are indices.
    sending: Vec<Option<Place>>,
    unused_tokens: Vec<u64>,
    tokens: VecDeque<u64>,
    /// Places that the packet which found none would have needed.
    wanted_places: usize,
    counters: Counters,
    assembly: Assembly,
    scratch: Vec<u8>,
    received: Vec<Received>,
    done: Vec<u64>,
}

impl FaultDevice {
    /// Wraps a device that was not started yet.
    ///
    /// # Errors
    /// What making a timer or an epoll descriptor answers.
    pub fn new(inner: Box<dyn Device>, spec: &Spec) -> io::Result<FaultDevice> {
        let mut info = inner.info().clone();
        // A device that sends from its pool alone gives too few places for a large packet's pieces.
        let cuts = info.can.tx_in_place;
        info.can = Capabilities {
            tx_in_place: true,
            tx_checksum: true,
            tx_segmentation: cuts,
            rx_offload: false,
            tx_asynchronous: false,
        };
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let sleep = match inner.sleep_fd() {
            Some(fd) => {
                let sleep = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let none = epoll::EventData::new_u64(0);
                epoll::add(&sleep, fd, none, epoll::EventFlags::IN)?;
                epoll::add(&sleep, &timer, none, epoll::EventFlags::IN)?;
                Some(sleep)
            }
            None => None,
        };
        let place_bytes = info.mtu.max(1500) + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
        Ok(FaultDevice {
            // Two seeds that no other seed's pair overlaps with in practice: the generator's
            // sequences for neighbours are unrelated.
            rx: Lane::new(spec.rx, spec.seed, place_bytes),
            tx: Lane::new(spec.tx, !spec.seed, place_bytes),
            info,
            sleep,
            timer,
            timer_due: None,
            place_bytes,
            empty: VecDeque::new(),
            pool_places: 0,
            sending: Vec::new(),
            unused_tokens: Vec::new(),
            tokens: VecDeque::with_capacity(TX_TOKENS),
            wanted_places: 0,
            counters: Counters::default(),
            assembly: Assembly::default(),
            scratch: Vec::new(),
            received: Vec::with_capacity(BATCH),
            done: Vec::with_capacity(BATCH),
            inner,
        })
    }

    /// What tells what was done to the frames; good from any thread, and after this is dropped.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        FaultCounters { rx: self.rx.counters.clone(), tx: self.tx.counters.clone() }
    }

    /// Fetches the device's tokens: their places are free.
    fn collect(&mut self) -> Result<(), DeviceError> {
        loop {
            self.done.clear();
            if self.inner.tx_return(&mut self.done, BATCH)? == 0 {
                return Ok(());
            }
            for token in &self.done {
                let place = self.sending.get_mut(*token as usize).and_then(Option::take);
                if let Some(place) = place {
                    self.tx.free.push(place);
                    self.unused_tokens.push(*token);
                }
            }
        }
    }

    /// Hands on to the device what may go.
    fn push(&mut self, spaces: &Spaces) -> Result<(), DeviceError> {
        loop {
            let mut parts = [Part { space: SpaceId(0), offset: 0, len: 0 }; BATCH];
            let mut count = 0;
            let room = self.unused_tokens.len().min(BATCH);
            for frame in self.tx.ready().take(room) {
                let Place { space, offset } = frame.place;
                parts[count] = Part { space, offset, len: frame.len };
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let last = self.unused_tokens.len() - 1;
            let packets: [Packet<'_>; BATCH] = std::array::from_fn(|at| Packet {
                parts: std::slice::from_ref(&parts[at]),
                meta: Meta::FINISHED,
                token: if at < count { self.unused_tokens[last - at] } else { u64::MAX },
            });
            let taken = self.inner.tx_provide(spaces, &packets[..count])?;
            for part in &parts[..taken] {
                if let Some(token) = self.unused_tokens.pop() {
                    let place = Place { space: part.space, offset: part.offset };
                    self.sending[token as usize] = Some(place);
                }
            }
            self.tx.gone(taken);
            self.collect()?;
            if taken < count {
                return Ok(());
            }
        }
    }

    /// Fetches frames from the device, and cuts and keeps them.
    fn fetch(&mut self, spaces: &Spaces, budget: usize, now: Instant) -> Result<(), DeviceError> {
        let most = if self.inner.info().can.rx_offload { 2 * MAX_SEGMENTS } else { 2 };
        let mut left = budget;
        while left > 0 {
            let mut batch = (self.rx.free.len() / most).min(BATCH).min(left);
            if batch == 0 {
                if !self.rx.is_stalled() {
                    return Ok(());
                }
                // A wire that stands still does not make the other side wait: frames are lost.
                batch = 1;
            }
            self.received.clear();
            let got = self.inner.rx_return(spaces, &mut self.received, batch)?;
            left -= got.min(left);
            for received in self.received.drain(..) {
                let Received { space, frame, offset, len, meta } = received;
                self.empty.push_back((space, frame));
                let rx = &mut self.rx;
                let part = Part { space, offset, len };
                let Some(packet) = self.assembly.assemble(spaces, &[part]) else {
                    self.counters.rx_dropped += 1;
                    continue;
                };
                let mut fits = true;
                let finished = finish_into(packet, &meta, &mut self.scratch, |bytes| {
                    fits &= rx.admit(spaces, bytes, now);
                });
                if finished.is_err() || !fits {
                    self.counters.rx_dropped += 1;
                }
            }
            if got < batch {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Gives the device what empty frames are not needed for frames that wait.
    fn give_back(&mut self, spaces: &Spaces) {
        while self.empty.len() > self.rx.waiting() {
            let Some(&(space, frame)) = self.empty.back() else { return };
            if self.inner.rx_provide(spaces, space, &[frame]) == 0 {
                return;
            }
            self.empty.pop_back();
        }
    }

    /// Takes one packet: `false` when there is no room for it now.
    fn take(&mut self, spaces: &Spaces, packet: &Packet<'_>, now: Instant) -> bool {
        let limits = Limits {
            can: self.info.can,
            frame_bytes: self.place_bytes,
            large_bytes: LARGE_PACKET_BYTES + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES,
            pool: None,
        };
        let Some(len) = limits.packet_len(packet.parts, packet.meta) else {
            self.counters.tx_dropped += 1;
            return true;
        };
        // Each piece twice. Segments too small are refused when they are to be cut.
        let pieces = packet
            .meta
            .segmentation
            .map_or(1, |large| len.div_ceil(large.segment_bytes.into()).min(MAX_SEGMENTS));
        self.wanted_places = 2 * pieces;
        if self.tx.free.len() < self.wanted_places {
            return false;
        }
        let Some(bytes) = self.assembly.assemble(spaces, packet.parts) else {
            self.counters.tx_dropped += 1;
            return true;
        };
        let (tx, mut fits) = (&mut self.tx, true);
        let finished = finish_into(bytes, &packet.meta, &mut self.scratch, |bytes| {
            fits &= tx.admit(spaces, bytes, now);
        });
        if finished.is_err() || !fits {
            self.counters.tx_dropped += 1;
        }
        true
    }

    fn set_timer(&mut self, due: Option<Instant>, now: Instant) -> Result<(), DeviceError> {
        if due == self.timer_due {
            return Ok(());
        }
        // A value of zero would stop the timer; what is due now was told as work.
        let left =
            due.map_or(Duration::ZERO, |due| due.duration_since(now).max(Duration::from_nanos(1)));
        let value = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            },
        };
        self.counters.system_calls += 1;
        // Setting it also forgets that it ran out.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value).map_err(|errno| {
            DeviceError::Failed {
                name: self.info.name.clone(),
                what: "timerfd_settime",
                cause: errno.into(),
            }
        })?;
        self.timer_due = due;
        Ok(())
    }
}

impl Device for FaultDevice {
    fn info(&self) -> &Info {
        &self.info
    }

    fn start(&mut self, spaces: &mut Spaces) -> Result<(), DeviceError> {
        self.inner.start(spaces)?;
        let failed = |cause| DeviceError::Failed {
            name: self.info.name.clone(),
            what: "memory for frames",
            cause,
        };
        let bytes = self.place_bytes.next_multiple_of(64);
        let mapping = Mapping::private(2 * PLACES * bytes).map_err(failed)?;
        let space = spaces.add(Space::new(Arc::new(mapping)));
        let place = |index: usize| Place { space, offset: (index * bytes) as u32 };
        self.rx.reserve(PLACES);
        self.tx.reserve(PLACES);
        self.rx.free.extend((0..PLACES).map(place));
        if self.inner.info().can.tx_in_place {
            self.tx.free.extend((PLACES..2 * PLACES).map(place));
        }
        self.sending = vec![None; PLACES];
        self.unused_tokens = (0..PLACES as u64).collect();
        Ok(())
    }

    fn rx_provide(&mut self, spaces: &Spaces, space: SpaceId, frames: &[u32]) -> usize {
        let in_place = self.inner.info().can.tx_in_place;
        let len = self.info.rx_frame_bytes as u32;
        // Runs of frames go to the device at once; only those kept here go one by one.
        let mut taken = 0;
        while taken < frames.len() {
            let keeps_place = !in_place && self.pool_places < POOL_PLACES;
            if keeps_place && taken % POOL_SHARE == POOL_SHARE - 1 {
                if spaces.writable(space, frames[taken], len).is_err() {
                    break;
                }
                let offset = frames[taken] + POOL_HEADROOM_BYTES as u32;
                self.tx.free.push(Place { space, offset });
                self.pool_places += 1;
                taken += 1;
                continue;
            }
            if self.empty.len() < self.rx.waiting() {
                if spaces.writable(space, frames[taken], len).is_err() {
                    break;
                }
                self.empty.push_back((space, frames[taken]));
                taken += 1;
                continue;
            }
            let end = if keeps_place {
                (taken + POOL_SHARE - 1 - taken % POOL_SHARE).min(frames.len())
            } else {
                frames.len()
            };
            let accepted = self.inner.rx_provide(spaces, space, &frames[taken..end]);
            taken += accepted;
            if taken < end {
                break;
            }
        }
        taken
    }

    fn rx_return(
        &mut self,
        spaces: &Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.tx.advance(now);
        self.push(spaces)?;
        self.rx.advance(now);
        self.fetch(spaces, budget, now)?;
        let mut returned = 0;
        while returned < budget {
            let Some(frame) = self.rx.next() else { break };
            let Some((space, pool_frame)) = self.empty.pop_front() else { break };
            self.rx.gone(1);
            let bytes = self
                .assembly
                .assemble(
                    spaces,
                    &[Part {
                        space: frame.place.space,
                        offset: frame.place.offset,
                        len: frame.len,
                    }],
                )
                .unwrap_or_default();
            let offset = pool_frame + POOL_HEADROOM_BYTES as u32;
            let copied = spaces.copy_in(space, offset, bytes);
            self.rx.free.push(frame.place);
            if copied.is_err() {
                // The pool frame's memory was taken away; the frame with it.
                self.counters.rx_dropped += 1;
                continue;
            }
            let meta = Meta::FINISHED;
            out.push(Received { space, frame: pool_frame, offset, len: frame.len, meta });
            returned += 1;
        }
        self.give_back(spaces);
        Ok(returned)
    }

    fn tx_provide(
        &mut self,
        spaces: &Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.tx.advance(now);
        self.collect()?;
        self.push(spaces)?;
        let mut taken = 0;
        for packet in packets.iter().take(TX_TOKENS - self.tokens.len()) {
            if !self.take(spaces, packet, now) {
                break;
            }
            self.tokens.push_back(packet.token);
            taken += 1;
        }
        // What was taken stays taken; a device that is gone says so again at the next call.
        match self.push(spaces) {
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    fn tx_return(&mut self, out: &mut Vec<u64>, budget: usize) -> Result<usize, DeviceError> {
        self.collect()?;
        let count = self.tokens.len().min(budget);
        out.extend(self.tokens.drain(..count));
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.sleep.is_none() {
            return Ok(Armed::Work);
        }
        self.collect()?;
        let now = Instant::now();
        let due = [self.rx.due(), self.tx.due()].into_iter().flatten().min();
        let deliverable = self.rx.next().is_some() && !self.empty.is_empty();
        let room = tx_waiting && self.tx.free.len() >= self.wanted_places;
        if !self.tokens.is_empty() || deliverable || room || due.is_some_and(|due| due <= now) {
            return Ok(Armed::Work);
        }
        self.set_timer(due, now)?;
        self.inner.arm(self.tx.next().is_some())
    }

    fn reset(&mut self, frames: &mut Vec<u32>) -> Result<(), DeviceError> {
        let outcome = self.inner.reset(frames);
        frames.extend(self.empty.drain(..).map(|(_, frame)| frame));
        self.rx.clear();
        self.tx.clear();
        // The device gives every token back after a reset, so every place is free afterwards.
        let collected = self.collect();
        if !self.inner.info().can.tx_in_place {
            let offset = |place: Place| place.offset - POOL_HEADROOM_BYTES as u32;
            frames.extend(self.tx.free.drain(..).map(offset));
            self.pool_places = 0;
        }
        outcome.and(collected)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.inner.counters();
        counters.rx_dropped += self.counters.rx_dropped;
        counters.tx_dropped += self.counters.tx_dropped;
        counters.system_calls += self.counters.system_calls;
        counters
    }
}
