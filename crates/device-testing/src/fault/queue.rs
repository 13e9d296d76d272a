//! A queue with faults: its state, and the send side of the wrapper.

mod receive;
mod verbs;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

use towpath_device::{
    Access, Assembly, Capabilities, Completion, Counters, DeviceError, DeviceQueue, Dma, Info,
    POOL_HEADROOM_BYTES, Packet, PacketLimits, Received, Registration, Space, SpaceId, Spaces,
    TxHeadroom, longest_frame,
};
use towpath_memory::Region;
use towpath_packet::offload::MAX_SEGMENTS;
use towpath_packet::segment::complete_into;

use super::in_flight::{FramesInFlight, misdirected};
use super::lane::{FaultCounters, Lane, Place};
use super::spec::Spec;
use crate::sleeper::Sleeper;
use crate::wrapped::Opening;

/// Slots for frames in each direction: the segments of a large packet, each duplicated, and as many
/// again.
const PLACES: usize = 4 * MAX_SEGMENTS;
/// The maximum number of frames that the wrapper fetches from the device in one batch.
const BATCH: usize = 64;
/// The maximum number of tokens for `tx_complete`. The wrapper takes no more packets until the
/// engine fetches some.
const TX_TOKENS: usize = 1024;

/// A queue with faults.
pub(super) struct FaultQueue {
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
    in_flight: FramesInFlight,
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
    /// Wraps a queue.
    pub(super) fn new(
        inner: Box<dyn DeviceQueue>,
        opening: Opening<'_>,
        spec: &Spec,
        counters: &FaultCounters,
    ) -> Result<FaultQueue, DeviceError> {
        let Opening { inner: inner_info, info, dma, spaces } = opening;
        let sleeper = inner.sleep_fd().map(Sleeper::new).transpose();
        let place_bytes = longest_frame(info.mtu.max(1500));
        let headroom = info.limits.rx_headroom_bytes.max(POOL_HEADROOM_BYTES);
        let data_bytes = info.limits.rx_buffer_bytes - headroom;
        let frame_bytes = longest_frame(info.mtu);
        let frame_buffers = frame_bytes.div_ceil(data_bytes);
        if frame_buffers > 1 && !inner_info.can.tx_in_place {
            // The wrapper keeps frames to send in such buffers.
            return Err(info.failed("buffers shorter than its frames")(ErrorKind::Unsupported));
        }
        if info.limits.tx_headroom != TxHeadroom::None {
            let what = "faults beside checksums by the device (tx-checksum)";
            return Err(info.failed(what)(ErrorKind::Unsupported));
        }
        // The two directions have unrelated sequences from one seed.
        let mut rx = Lane::new(spec.rx, spec.seed, place_bytes, counters.rx.clone());
        let mut tx = Lane::new(spec.tx, !spec.seed, place_bytes, counters.tx.clone());
        // A device that sends only from its pool never reaches the wrapper's memory.
        let dma = dma.filter(|_| inner_info.can.tx_in_place);
        let bytes = place_bytes.next_multiple_of(64);
        let wrong = spec.tx.elsewhere > 0.0;
        let frames = frame_spaces(2 * PLACES * bytes, dma.as_ref(), wrong, spaces);
        let (space, elsewhere) = frames.map_err(info.failed("memory for frames"))?;
        let place = |index: usize| Place { space, offset: (index * bytes) as u32 };
        rx.reserve(PLACES);
        tx.reserve(PLACES);
        rx.free.extend((0..PLACES).map(place));
        if inner_info.can.tx_in_place {
            tx.free.extend((PLACES..2 * PLACES).map(place));
        }
        Ok(FaultQueue {
            rx,
            tx,
            sleeper: sleeper.map_err(info.failed("timerfd"))?,
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
            in_flight: FramesInFlight::new(PLACES, elsewhere),
            done: VecDeque::with_capacity(TX_TOKENS),
            kept: VecDeque::with_capacity(TX_TOKENS),
            wanted_places: 0,
            counters: Counters::default(),
            assembly: Assembly::default(),
            scratch: Vec::new(),
            received: Vec::with_capacity(BATCH * inner_info.limits.rx_packet_buffers),
            inner,
        })
    }

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
            frame_bytes: self.place_bytes,
            ..PacketLimits::of(&self.info, self.registers, None)
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
    let elsewhere = if wrong { Some(misdirected(region.mapping())?) } else { None };
    let register = |dma| Registration::new(dma, region.mapping(), Access::Read);
    let registration = dma.map(register).transpose().map_err(io::Error::other)?;
    let elsewhere = elsewhere.map(|space| spaces.add(space));
    Ok((spaces.add(Space::writable(region).registered(registration)), elsewhere))
}
