//! The engine's side: provides buffers, sends packets, and keeps account of both.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use towpath_device::{
    Access, Armed, Assembly, Completion, Device, DeviceQueue, Info, Kick, Meta, Outcome, Packet,
    Part, Received, Registration, Space, SpaceId, Spaces, VlanTag, packet_memory,
};

use super::buffers::check_buffers;
use super::everything::receive_everything;
use super::far::FarEnd;

/// Buffers in the pool.
const BUFFERS: u32 = 640;
/// The number of slots for packets to send, and their size in bytes. A ring must refuse packets
/// before it has all slots.
pub(super) const PLACES: u32 = 4096;
pub(super) const PLACE_BYTES: u32 = 2048;
/// The size of a slot for one large packet, after the other slots.
const LARGE_BYTES: u32 = 128 * 1024;
/// The time after which the suite fails, since it no longer expects the event.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The source addresses of the suite's frames, by which it recognizes them: this end's, and the
/// other end's.
pub(super) const NEAR_MAC: [u8; 6] = [0x02, 0xc0, 0, 0, 0, 1];
pub(super) const FAR_MAC: [u8; 6] = [0x02, 0xc0, 0, 0, 0, 2];

/// A buffer's holder in the account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Suite,
    Device,
}

/// Bytes to send as one packet, split into parts at the offsets `cuts`.
pub(super) struct Outgoing<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) cuts: &'a [usize],
    pub(super) meta: Meta,
    pub(super) tag: Option<VlanTag>,
}

impl<'a> Outgoing<'a> {
    pub(super) fn whole(bytes: &'a [u8]) -> Outgoing<'a> {
        Outgoing { bytes, cuts: &[], meta: Meta::FULL, tag: None }
    }
}

pub(super) struct Near {
    pub(super) queue: Box<dyn DeviceQueue>,
    /// The control part lives as long as the queue.
    pub(super) device: Box<dyn Device>,
    pub(super) spaces: Spaces,
    pub(super) info: Info,
    /// The pool, and the space from which the suite sends packets: a space of its own if the device
    /// can send from any, else the pool.
    pub(super) pool: SpaceId,
    pub(super) memory: SpaceId,
    memory_start: u32,
    /// `true` if the device reaches only registered memory.
    pub(super) registers: bool,
    assembly: Assembly,
    /// The hashes that the device reported for the suite's frames, in order.
    pub(super) hashes: Vec<Option<u32>>,
    buffers: Vec<Holder>,
    /// The buffers that the suite has.
    free: Vec<u32>,
    places: Vec<u32>,
    /// Maps a token to its slot and length in bytes.
    outstanding: BTreeMap<u64, (u32, u32)>,
    next_token: u64,
    /// What became of the packets that the suite offered.
    pub(super) outcomes: Outcomes,
    what: String,
}

/// Counts of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes {
    pub(super) sent: u64,
    pub(super) dropped: u64,
    pub(super) returned: u64,
}

impl Near {
    pub(super) fn new(mut device: Box<dyn Device>, what: String) -> Near {
        let mut spaces = Spaces::default();
        receive_everything(&mut *device);
        let info = device.info().clone();
        let pool_bytes = BUFFERS as usize * info.limits.rx_stride();
        assert!(info.limits.reaches(pool_bytes), "{what}: it cannot reach the suite's memory");
        let memory_bytes = (PLACES * PLACE_BYTES + LARGE_BYTES) as usize;
        let dma = device.dma();
        let mut space = |bytes| {
            let (region, _) = packet_memory(bytes, dma.is_some()).expect("memory");
            let register = |dma| Registration::new(dma, region.mapping(), Access::ReadWrite);
            let registration = dma.as_ref().map(register).transpose();
            let is_registered = registration.as_ref().is_ok_and(Option::is_some);
            (
                spaces.add(Space::writable(region).registered(registration.ok().flatten())),
                is_registered,
            )
        };
        let (pool, memory, memory_start) = if info.can.tx_in_place {
            (space(pool_bytes), space(memory_bytes), 0)
        } else {
            let pool = space(pool_bytes + memory_bytes);
            (pool, pool, pool_bytes as u32)
        };
        assert!(dma.is_none() || pool.1, "{what}: the pool was not registered");
        // A device may refuse other memory, and copies from it then.
        let ((pool, _), (memory, registers)) = (pool, memory);
        let queue = device.open_queue(0, &mut spaces).expect("the queue opens");
        let mut near = Near {
            queue,
            device,
            spaces,
            pool,
            memory,
            memory_start,
            registers,
            assembly: Assembly::default(),
            hashes: Vec::new(),
            buffers: vec![Holder::Suite; BUFFERS as usize],
            free: Vec::new(),
            places: (0..PLACES).rev().collect(),
            outstanding: BTreeMap::new(),
            next_token: 1,
            outcomes: Outcomes::default(),
            what,
            info,
        };
        let stride = near.info.limits.rx_stride() as u32;
        near.free.extend((0..BUFFERS).map(|index| index * stride));
        near.provide();
        assert!(near.with_device() > 0, "{}: no buffer was taken", near.what);
        near
    }

    pub(super) fn what(&self) -> &str {
        &self.what
    }

    pub(super) fn with_device(&self) -> usize {
        self.buffers.len() - self.free.len()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Provides the device with every buffer that it does not have.
    pub(super) fn provide(&mut self) {
        let size = self.info.limits.rx_stride() as u32;
        let taken = self.queue.rx_fill(&self.spaces, self.pool, &self.free);
        assert!(taken <= self.free.len(), "{}: took more buffers than there are", self.what);
        self.kick(Kick::Rx);
        for buffer in self.free.drain(..taken) {
            self.buffers[(buffer / size) as usize] = Holder::Device;
        }
    }

    fn take_back(&mut self, buffer: u32) {
        let size = self.info.limits.rx_stride() as u32;
        let index = (buffer / size) as usize;
        assert!(
            buffer.is_multiple_of(size) && self.buffers.get(index) == Some(&Holder::Device),
            "{}: buffer {buffer} came back and was not with the device",
            self.what
        );
        self.buffers[index] = Holder::Suite;
        self.free.push(buffer);
    }

    /// Takes at most `budget` received frames. Returns those of the suite's far end, and the number
    /// of all.
    pub(super) fn receive_up_to(&mut self, budget: usize) -> (Vec<(Vec<u8>, Meta)>, usize) {
        let mut received: Vec<Received> = Vec::new();
        let count = self.queue.rx_poll(&mut self.spaces, &mut received, budget).expect("rx_poll");
        let packets: Vec<&[Received]> = Received::packets(&received).collect();
        assert_eq!(count, packets.len(), "{}: rx_poll's count", self.what);
        assert!(count <= budget, "{}: rx_poll over its budget", self.what);
        assert!(received.last().is_none_or(|last| !last.continues), "{}: half a packet", self.what);
        let mut frames = Vec::new();
        for buffers in packets {
            check_buffers(&self.info, self.pool, buffers, &self.what);
            let assembled = self.assembly.received(&self.spaces, buffers);
            let (bytes, meta) = assembled.expect("inside the pool");
            if bytes.get(6..12) == Some(&FAR_MAC[..]) {
                frames.push((bytes.to_vec(), meta));
                self.hashes.push(buffers[0].hash);
            }
            for one in buffers {
                self.take_back(one.buffer);
            }
        }
        (frames, count)
    }

    pub(super) fn receive(&mut self) -> Vec<(Vec<u8>, Meta)> {
        let (frames, _) = self.receive_up_to(64);
        self.provide();
        frames
    }

    pub(super) fn kick(&mut self, ring: Kick) {
        self.queue.kick(&mut self.spaces, ring).expect("kick");
    }

    /// Offers packets, and tells the device of those that it took. Returns their number.
    pub(super) fn offer(&mut self, packets: &[Outgoing<'_>]) -> usize {
        let taken = self.place(packets);
        self.kick(Kick::Tx);
        taken
    }

    /// Offers packets without a kick. Returns how many the device took.
    pub(super) fn place(&mut self, packets: &[Outgoing<'_>]) -> usize {
        let mut placed = Vec::new();
        let mut parts = Vec::new();
        for packet in packets {
            let len = packet.bytes.len() as u32;
            let place = if len + self.headroom() <= PLACE_BYTES {
                self.places.pop().expect("a free slot")
            } else {
                assert!(
                    !self.outstanding.values().any(|(place, _)| *place == PLACES),
                    "one large packet at a time"
                );
                PLACES
            };
            let start = self.start(place);
            self.spaces.copy_in(self.memory, start, packet.bytes).expect("inside");
            if self.headroom() > 0 {
                let metadata = self.info.limits.tx_headroom.metadata(&packet.meta);
                let at = start - metadata.len() as u32;
                self.spaces.copy_in(self.memory, at, &metadata).expect("inside");
            }
            let mut cuts = packet.cuts.to_vec();
            cuts.push(packet.bytes.len());
            let mut from = 0;
            let mut list = Vec::new();
            for cut in cuts {
                list.push(Part {
                    space: self.memory,
                    offset: start + from as u32,
                    len: (cut - from) as u32,
                });
                from = cut;
            }
            parts.push(list);
            placed.push((place, len));
        }
        let list: Vec<Packet<'_>> = packets
            .iter()
            .zip(&parts)
            .zip(self.next_token..)
            .map(|((packet, parts), token)| {
                let Outgoing { meta, tag, .. } = *packet;
                Packet { parts, meta, tag, token }
            })
            .collect();
        let taken = self.queue.tx_submit(&mut self.spaces, &list).expect("tx_submit");
        assert!(taken <= packets.len(), "{}: took more packets than there are", self.what);
        for (at, place) in placed.iter().enumerate() {
            if at < taken {
                self.outstanding.insert(self.next_token, *place);
                self.next_token += 1;
            } else if place.0 < PLACES {
                self.places.push(place.0);
            }
        }
        taken
    }

    /// Offers packets with the given parts, unchanged; the device must take all.
    pub(super) fn offer_parts(&mut self, packets: &[(&[Part], Meta)]) {
        let list: Vec<Packet<'_>> = packets
            .iter()
            .zip(self.next_token..)
            .map(|((parts, meta), token)| Packet { parts, meta: *meta, tag: None, token })
            .collect();
        let taken = self.queue.tx_submit(&mut self.spaces, &list).expect("tx_submit");
        assert_eq!(taken, list.len(), "{}: an empty ring has room", self.what);
        self.kick(Kick::Tx);
        for _ in packets {
            self.outstanding.insert(self.next_token, (u32::MAX, 0));
            self.next_token += 1;
        }
    }

    fn headroom(&self) -> u32 {
        self.info.limits.tx_headroom.bytes() as u32
    }

    /// Returns the offset of the packet in a slot.
    fn start(&self, place: u32) -> u32 {
        self.memory_start + place * PLACE_BYTES + self.headroom()
    }

    /// Returns a part of `len` bytes in the large slot, which the suite's other packets do not use.
    pub(super) fn part(&self, offset: u32, len: u32) -> Part {
        Part { space: self.memory, offset: self.start(PLACES) + offset, len }
    }

    /// Returns the end of the memory from which the suite sends packets.
    pub(super) fn memory_end(&self) -> u32 {
        let end = self.memory_start + PLACES * PLACE_BYTES + LARGE_BYTES;
        end.next_multiple_of(towpath_memory::PAGE_BYTES as u32)
    }

    /// Takes at most `budget` tokens, and overwrites the memory of their packets, so that the suite
    /// detects a device that reads it later. Returns their number.
    pub(super) fn take_tokens(&mut self, budget: usize) -> usize {
        self.take_tokens_after(budget, 0).0
    }

    /// Takes tokens as above. Also returns the last token that a reset returned if all of these
    /// came after `last` and in the order in which the device took the packets.
    fn take_tokens_after(&mut self, budget: usize, last: u64) -> (usize, Option<u64>) {
        let mut completions = Vec::new();
        let count = self.queue.tx_complete(&mut completions, budget).expect("tx_complete");
        assert_eq!(count, completions.len(), "{}: tx_complete's count", self.what);
        assert!(count <= budget, "{}: tx_complete over its budget", self.what);
        let mut in_order = Some(last);
        for Completion { token, outcome } in completions {
            match outcome {
                Outcome::Sent => self.outcomes.sent += 1,
                Outcome::Dropped => self.outcomes.dropped += 1,
                Outcome::Returned => {
                    self.outcomes.returned += 1;
                    in_order = in_order.filter(|last| *last < token).map(|_| token);
                }
            }
            let Some((place, len)) = self.outstanding.remove(&token) else {
                panic!("{}: token {token} came back and was not with the device", self.what);
            };
            if place <= PLACES {
                let start = self.start(place);
                let spoilt = vec![0xee; len as usize];
                self.spaces.copy_in(self.memory, start, &spoilt).expect("inside");
            }
            if place < PLACES {
                self.places.push(place);
            }
        }
        (count, in_order)
    }

    /// Runs the device until `done` returns `true`, and takes frames as they come. Returns the
    /// received frames.
    pub(super) fn run_until(
        &mut self,
        goal: &str,
        mut done: impl FnMut(&mut Near, &[(Vec<u8>, Meta)]) -> bool,
    ) -> Vec<(Vec<u8>, Meta)> {
        let deadline = Instant::now() + PATIENCE;
        let mut received = Vec::new();
        loop {
            received.append(&mut self.receive());
            self.take_tokens(64);
            if done(self, &received) {
                return received;
            }
            assert!(
                Instant::now() < deadline,
                "{}: waited in vain for {goal}: {} received, {:?}, {:?}",
                self.what,
                received.len(),
                self.outcomes,
                self.queue.counters()
            );
        }
    }

    /// Takes this suite's frames at the far end until there are `count` of them.
    pub(super) fn collect(&mut self, far: &mut dyn FarEnd, count: usize) -> Vec<(Vec<u8>, Meta)> {
        let mut got = Vec::new();
        self.run_until("frames at the far end", |_, _| {
            drain(far, &mut got);
            got.len() >= count
        });
        got
    }

    /// Resets the device, and checks that it keeps no buffer and no token.
    pub(super) fn reset(&mut self) {
        let mut buffers = Vec::new();
        self.queue.reset(&mut buffers).expect("reset");
        for buffer in buffers {
            self.take_back(buffer);
        }
        assert_eq!(self.with_device(), 0, "{}: buffers kept over a reset", self.what);
        let mut last = 0;
        loop {
            let (count, in_order) = self.take_tokens_after(7, last);
            let Some(in_order) = in_order else {
                panic!("{}: tokens out of order after a reset", self.what);
            };
            last = in_order;
            if count == 0 {
                break;
            }
        }
        assert_eq!(self.outstanding(), 0, "{}: tokens kept over a reset", self.what);
    }

    /// Sleeps until the device has work. Returns at once if arming reports work.
    pub(super) fn sleep(&mut self, tx_waiting: bool, goal: &str) {
        if self.queue.arm(tx_waiting).expect("arm") == Armed::Work {
            return;
        }
        let fd = self.queue.sleep_fd().expect("a device that allows sleep has a descriptor");
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&timeout)).expect("poll");
        assert!(ready > 0, "{}: a wake-up was lost, {goal}", self.what);
    }

    /// Ends the checks, and requires that the device returns every buffer and token.
    pub(super) fn finish(mut self) {
        self.reset();
    }
}

/// Takes all of the suite's frames that have arrived at the far end.
pub(super) fn drain(far: &mut dyn FarEnd, into: &mut Vec<(Vec<u8>, Meta)>) {
    while let Some((frame, meta)) = far.receive() {
        if frame.get(6..12) == Some(&NEAR_MAC[..]) {
            into.push((frame, meta));
        }
    }
}
