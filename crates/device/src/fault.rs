//! A wrapper that injects faults into a device's wire: frames lost, duplicated, out of order, late,
//! or with a flipped bit, or a whole direction stalled for a while.
//!
//! The wrapper works on frames as they are on the wire: it first completes partial checksums and
//! segments large packets. It keeps waiting frames in its own memory, so that later writes to the
//! original memory do not change them. With the same seed, the same sequence of frames meets the
//! same faults.

mod in_flight;
mod lane;
mod receive;
mod spec;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use towpath_memory::Region;
use towpath_packet::offload::MAX_SEGMENTS;
use towpath_packet::segment::complete_into;

use crate::check::PacketLimits;
use crate::sleeper::Sleeper;
use crate::wire::Assembly;
use crate::wrapped::{Opening, Wrap, Wrapped};
use crate::{
    Access, Armed, Capabilities, Completion, Counters, Device, DeviceError, DeviceQueue, Dma,
    ETHERNET_HEADER_BYTES, Info, Kick, LARGE_FRAME_BYTES, Outcome, POOL_HEADROOM_BYTES, Packet,
    Received, Registration, Space, SpaceId, Spaces, TxHeadroom, VLAN_TAG_BYTES,
};
use in_flight::InFlight;
use lane::{Lane, Place, Shared};

pub use lane::Injected;
pub use spec::{Faults, MAX_TIME_US, Spec, SpecError};

/// Slots for frames in each direction: the segments of a large packet, each duplicated, and as many
/// again.
const PLACES: usize = 4 * MAX_SEGMENTS;
/// Pool buffers that the wrapper keeps for sending if the device sends only from its pool.
const POOL_SLOTS: usize = 64;
/// Pool buffers that the wrapper keeps for segments if the device receives large packets.
const SPARE_BUFFERS: usize = 64;
/// The wrapper keeps one of this many provided pool buffers until it has enough.
const KEPT_SHARE: usize = 4;
/// The maximum number of frames that the wrapper fetches from the device in one batch.
const BATCH: usize = 64;
/// The maximum number of tokens for `tx_complete`. The wrapper takes no more packets until the
/// engine fetches some.
const TX_TOKENS: usize = 1024;

/// A handle with which any thread reads the counts of injected faults.
#[derive(Clone, Debug)]
pub struct FaultCounters {
    rx: Arc<Shared>,
    tx: Arc<Shared>,
}

impl FaultCounters {
    /// Returns the faults of received frames.
    #[must_use]
    pub fn rx(&self) -> Injected {
        self.rx.read()
    }

    /// Returns the faults of sent frames.
    #[must_use]
    pub fn tx(&self) -> Injected {
        self.tx.read()
    }
}

/// The wrapper, which shows one queue of the device.
pub type FaultDevice = Wrapped<Faulty>;

/// Makes a queue with faults.
pub struct Faulty {
    spec: Spec,
    counters: FaultCounters,
}

impl FaultDevice {
    /// Wraps a device none of whose queues is open.
    #[must_use]
    pub fn new(inner: Box<dyn Device>, spec: &Spec) -> FaultDevice {
        let counters = FaultCounters { rx: Arc::default(), tx: Arc::default() };
        let wrapped = Wrapped::around(inner, Faulty { spec: *spec, counters });
        wrapped.with_info(|info| {
            info.queues = 1;
            info.can = Capabilities {
                tx_in_place: true,
                tx_checksum: true,
                // A device that sends only from its pool leaves too few slots for a large packet's
                // segments.
                tx_segmentation: info.can.tx_in_place,
                tx_segmentation_ecn: info.can.tx_in_place,
                tx_large_copied: false,
                tx_tag: false,
                tx_to_host: info.can.tx_to_host,
                rx_offload: false,
                tx_asynchronous: false,
            };
        })
    }

    /// Returns a handle that reports the faults, usable from any thread and after the device is
    /// dropped.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        self.wrap.counters.clone()
    }
}

impl Wrap for Faulty {
    fn wrap(
        &mut self,
        inner: Box<dyn DeviceQueue>,
        Opening { inner: inner_info, info, dma, spaces }: Opening<'_>,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let failed =
            |what| move |cause| DeviceError::Failed { name: info.name.clone(), what, cause };
        let sleeper = inner.sleep_fd().map(Sleeper::new).transpose();
        let spec = &self.spec;
        let place_bytes = info.mtu.max(1500) + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
        let headroom = info.limits.rx_headroom_bytes.max(POOL_HEADROOM_BYTES);
        let data_bytes = info.limits.rx_buffer_bytes - headroom;
        let frame_bytes = info.mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
        let frame_buffers = frame_bytes.div_ceil(data_bytes);
        if frame_buffers > 1 && !inner_info.can.tx_in_place {
            // The wrapper keeps frames to send in such buffers.
            return Err(failed("buffers shorter than its frames")(ErrorKind::Unsupported.into()));
        }
        if info.limits.tx_headroom != TxHeadroom::None {
            return Err(failed("faults beside checksums by the device (tx-checksum)")(
                ErrorKind::Unsupported.into(),
            ));
        }
        // The two directions have unrelated sequences from one seed.
        let mut rx = Lane::new(spec.rx, spec.seed, place_bytes, self.counters.rx.clone());
        let mut tx = Lane::new(spec.tx, !spec.seed, place_bytes, self.counters.tx.clone());
        // A device that sends only from its pool never reaches the wrapper's memory.
        let dma = dma.filter(|_| inner_info.can.tx_in_place);
        let bytes = place_bytes.next_multiple_of(64);
        let wrong = spec.tx.elsewhere > 0.0;
        let frames = frame_spaces(2 * PLACES * bytes, dma.as_ref(), wrong, spaces);
        let (space, elsewhere) = frames.map_err(failed("memory for frames"))?;
        let place = |index: usize| Place { space, offset: (index * bytes) as u32 };
        rx.reserve(PLACES);
        tx.reserve(PLACES);
        rx.free.extend((0..PLACES).map(place));
        if inner_info.can.tx_in_place {
            tx.free.extend((PLACES..2 * PLACES).map(place));
        }
        Ok(Box::new(FaultQueue {
            rx,
            tx,
            sleeper: sleeper.map_err(failed("timerfd"))?,
            info: info.clone(),
            inner_can: inner_info.can,
            registers: dma.is_some(),
            place_bytes,
            headroom: headroom as u32,
            data_bytes,
            frame_buffers,
            empty: VecDeque::new(),
            spare: 0,
            pool_slots: 0,
            in_flight: InFlight::new(PLACES, elsewhere),
            done: VecDeque::with_capacity(TX_TOKENS),
            kept: VecDeque::with_capacity(TX_TOKENS),
            wanted_places: 0,
            counters: Counters::default(),
            assembly: Assembly::default(),
            scratch: Vec::new(),
            received: Vec::with_capacity(BATCH * inner_info.limits.rx_packet_buffers),
            inner,
        }))
    }
}

/// Makes the data space of the wrapper's frames. If addresses are to be `wrong`, also returns a space for the
/// same memory which the device looks for elsewhere.
fn frame_spaces(
    bytes: usize,
    dma: Option<&Arc<dyn Dma>>,
    wrong: bool,
    spaces: &mut Spaces,
) -> io::Result<(SpaceId, Option<SpaceId>)> {
    let region = Region::private(bytes)?;
    // Before Linux 6.2, a page that was never written is locked for reading as the kernel's page of zeros, which the
    // device then sends for good.
    region.mapping().populate();
    if wrong && dma.is_none() {
        let text = "tx.elsewhere is for devices that send in place behind an IOMMU";
        return Err(io::Error::new(ErrorKind::Unsupported, text));
    }
    let elsewhere = if wrong { Some(in_flight::misdirected(region.mapping())?) } else { None };
    let register = |dma| Registration::new(dma, region.mapping(), Access::Read);
    let registration = dma.map(register).transpose().map_err(io::Error::other)?;
    let elsewhere = elsewhere.map(|space| spaces.add(space));
    Ok((spaces.add(Space::writable(region).registered(registration)), elsewhere))
}

/// A queue with faults.
struct FaultQueue {
    inner: Box<dyn DeviceQueue>,
    info: Info,
    /// The capabilities of the wrapped device.
    inner_can: Capabilities,
    /// `true` if the device reaches only registered memory, and the wrapper too takes no other.
    registers: bool,
    /// Wakes for the device and for due frames; `None` if the engine must poll the device.
    sleeper: Option<Sleeper>,
    place_bytes: usize,
    /// Bytes before the data in each pool buffer.
    headroom: u32,
    /// Bytes of a frame in each pool buffer.
    data_bytes: usize,
    /// The maximum number of pool buffers of a frame.
    frame_buffers: usize,
    rx: Lane,
    tx: Lane,
    /// Pool buffers that neither the engine nor the device has.
    empty: VecDeque<(SpaceId, u32)>,
    /// How many of these the wrapper keeps even if no frame waits for them.
    spare: usize,
    /// Pool buffers that serve as slots of `tx`.
    pool_slots: usize,
    in_flight: InFlight,
    done: VecDeque<Completion>,
    /// Completions of packets that the wrapper took during a stall of sending and has not sent
    /// since, as a stalled card keeps them.
    kept: VecDeque<Completion>,
    /// The slots that the last packet needed.
    wanted_places: usize,
    counters: Counters,
    assembly: Assembly,
    scratch: Vec<u8>,
    received: Vec<Received>,
}

impl FaultQueue {
    /// Releases the frames that are due to be sent, and completes the kept packets if the lane is
    /// not stalled.
    fn advance_sending(&mut self, now: Instant) {
        self.tx.advance(now);
        if !self.tx.is_stalled() {
            self.done.append(&mut self.kept);
        }
    }

    /// Takes one packet. Returns `false` if there is no room for it now.
    fn take(&mut self, spaces: &mut Spaces, packet: &Packet<'_>, now: Instant) -> bool {
        let limits = PacketLimits {
            can: self.info.can,
            frame_bytes: self.place_bytes,
            large_bytes: LARGE_FRAME_BYTES,
            parts: self.info.limits.tx_packet_parts,
            registered: self.registers,
            pool: None,
        };
        let len = limits.len_of(packet);
        let Some(len) = len.filter(|_| limits.reaches(spaces, packet.parts)) else {
            self.counters.tx_dropped += 1;
            return true;
        };
        // Two slots for each segment. The segmentation refuses segments that are too small.
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
        let finished = complete_into(bytes, &packet.meta, &mut self.scratch, |bytes| {
            fits &= tx.admit(spaces, bytes, now);
        });
        if finished.is_err() || !fits {
            self.counters.tx_dropped += 1;
        }
        true
    }
}

impl DeviceQueue for FaultQueue {
    fn holds(&self, buffer: u32) -> bool {
        self.inner.holds(buffer)
    }

    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        let inner = self.inner_can;
        let mut taken = 0;
        while taken < buffers.len() {
            let keeps_place = !inner.tx_in_place && self.pool_slots < POOL_SLOTS;
            let keeps_spare = inner.rx_offload && self.spare < SPARE_BUFFERS;
            let keeps = keeps_place || keeps_spare;
            let is_share = taken % KEPT_SHARE == KEPT_SHARE - 1;
            let is_missing = self.empty.len() < self.needed();
            if (keeps && is_share) || is_missing {
                let buffer = buffers[taken];
                let limits = self.info.limits;
                let is_writable = spaces.is_writable(space, buffer, limits.rx_buffer_bytes as u32);
                if !is_writable || !limits.is_aligned(buffer) {
                    break;
                }
                if keeps_place && !is_missing {
                    let offset = buffer + self.headroom;
                    self.tx.free.push(Place { space, offset });
                    self.pool_slots += 1;
                } else {
                    self.spare += usize::from(keeps_spare && !is_missing);
                    self.empty.push_back((space, buffer));
                }
                taken += 1;
                continue;
            }
            // The device gets all buffers up to the next one to keep in one call.
            let end = if keeps {
                (taken - taken % KEPT_SHARE + KEPT_SHARE - 1).min(buffers.len())
            } else {
                buffers.len()
            };
            let accepted = self.inner.rx_fill(spaces, space, &buffers[taken..end]);
            taken += accepted;
            if taken < end {
                break;
            }
        }
        taken
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.advance_sending(now);
        self.in_flight.push(&mut *self.inner, &mut self.tx, spaces)?;
        self.rx.advance(now);
        self.fetch(spaces, budget, now)?;
        let mut returned = 0;
        while returned < budget {
            let Some(next) = self.next_deliverable() else { break };
            self.rx.gone(1);
            returned += usize::from(self.hand_up(spaces, out, next));
        }
        // Received packets stay received. A device that is gone reports the error again.
        match self.release(spaces) {
            Err(error) if returned == 0 => Err(error),
            _ => Ok(returned),
        }
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let now = Instant::now();
        self.advance_sending(now);
        self.in_flight.collect(&mut *self.inner, &mut self.tx)?;
        self.in_flight.push(&mut *self.inner, &mut self.tx, spaces)?;
        let mut taken = 0;
        let before = self.done.len();
        for packet in packets.iter().take(TX_TOKENS - self.done.len() - self.kept.len()) {
            let dropped = self.counters.tx_dropped;
            if !self.take(spaces, packet, now) {
                break;
            }
            let was_dropped = self.counters.tx_dropped > dropped;
            let outcome = if was_dropped { Outcome::Dropped } else { Outcome::Sent };
            self.done.push_back(Completion { token: packet.token, outcome });
            taken += 1;
        }
        // A stall that began with one of the packets keeps those before it too: none was sent yet.
        if self.tx.is_stalled() {
            self.kept.extend(self.done.drain(before..));
        }
        // Taken packets stay taken. A device that is gone reports the error again at the next call.
        match self.in_flight.push(&mut *self.inner, &mut self.tx, spaces) {
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    /// The wrapper kicks the wrapped device itself whenever it submits frames to it.
    fn kick(&mut self, spaces: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        match ring {
            Kick::Rx => self.inner.kick(spaces, ring),
            Kick::Tx => Ok(()),
        }
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.in_flight.collect(&mut *self.inner, &mut self.tx)?;
        let count = self.done.len().min(budget);
        out.extend(self.done.drain(..count));
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleeper.as_ref().map(Sleeper::fd)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.sleeper.is_none() {
            return Ok(Armed::Work);
        }
        self.in_flight.collect(&mut *self.inner, &mut self.tx)?;
        let now = Instant::now();
        let due = [self.rx.due(), self.tx.due()].into_iter().flatten().min();
        let deliverable = self.next_deliverable().is_some();
        let room =
            tx_waiting && self.tx.free.len() >= self.wanted_places && self.kept.len() < TX_TOKENS;
        if !self.done.is_empty() || deliverable || room || due.is_some_and(|due| due <= now) {
            return Ok(Armed::Work);
        }
        let sends = self.tx.next().is_some();
        // If frames that wait for their time hold all slots, the wrapper cannot fetch the device's
        // packets before, so packets must not wake the engine.
        let held = !self.rx.is_stalled() && self.rx.free.len() < self.places_to_fetch();
        let time_alone = held && due.is_some() && !sends;
        if let Some(sleeper) = &mut self.sleeper {
            let name = &self.info.name;
            let failed =
                |what| move |cause| DeviceError::Failed { name: name.clone(), what, cause };
            self.counters.system_calls += sleeper.wake_at(due, now).map_err(failed("timerfd"))?;
            if let Some(device) = self.inner.sleep_fd() {
                let watched = sleeper.watch(device, !time_alone).map_err(failed("epoll_ctl"))?;
                self.counters.system_calls += watched;
            }
        }
        if time_alone { Ok(Armed::Sleep) } else { self.inner.arm(sends) }
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        let outcome = self.inner.reset(buffers);
        buffers.extend(self.empty.drain(..).map(|(_, buffer)| buffer));
        self.rx.clear();
        self.tx.clear();
        // The device returns every token after a reset, so every slot is free afterwards.
        let collected = self.in_flight.collect(&mut *self.inner, &mut self.tx);
        if !self.inner_can.tx_in_place {
            let headroom = self.headroom;
            let offset = |place: Place| place.offset - headroom;
            buffers.extend(self.tx.free.drain(..).map(offset));
            self.pool_slots = 0;
        }
        self.spare = 0;
        // The engine sends all kept packets again, except those that the wrapper dropped.
        for completion in &mut self.kept {
            if completion.outcome == Outcome::Sent {
                completion.outcome = Outcome::Returned;
            }
        }
        self.done.append(&mut self.kept);
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
