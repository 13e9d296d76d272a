//! The queue of one end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use super::cable::Shared;
use super::config::Config;
use super::filters::Applied;
use super::reception::Reception;
use super::ring::{Batch, Bell, Receiver, Sender, Sent, WANTS_PACKETS, WANTS_ROOM};
use super::timing::{Completions, Done, Timing};
use crate::check::PacketLimits;
use crate::control::Info;
use crate::error::DeviceError;
use crate::queue::{
    Armed, Completion, Counters, DeviceQueue, Kick, Outcome, Packet, Part, Received,
};
use crate::sleeper::Sleeper;
use crate::space::{SpaceId, Spaces};
use crate::{ETHERNET_HEADER_BYTES, MAX_PARTS, Meta, VLAN_TAG_BYTES, VlanTag};

/// A packet that the device took and has not fetched (asynchronous mode); its parts are in
/// `held_parts`.
struct Held {
    parts: usize,
    meta: Meta,
    tag: Option<VlanTag>,
    token: u64,
}

/// A queue of an end.
pub(super) struct LoopbackQueue {
    pub(super) info: Info,
    longest: usize,
    ring_packets: usize,
    tx: Sender,
    pub(super) rx: Receiver,
    own: Arc<Bell>,
    peer: Arc<Bell>,
    pub(super) shared: Arc<Shared>,
    /// This end's index in `shared`.
    pub(super) end: usize,
    timing: Timing,
    pub(super) reception: Reception,
    pub(super) filters: Applied,
    /// The received packet that the device is working on, if it works on packets.
    pub(super) packet: Vec<u8>,
    /// The pool buffers that the first received packet takes, once it found too few.
    pub(super) wanted_buffers: usize,
    /// `true` if the device reaches only registered memory.
    registers: bool,
    /// The device fetches packets later than the call that takes them.
    holds: bool,
    /// The doorbell and a timer, for a device that reports late.
    sleeper: Option<Sleeper>,
    /// When the doorbell last woke the engine.
    interrupted: Option<Instant>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    pub(super) buffers: VecDeque<(SpaceId, u32)>,
    held: VecDeque<Held>,
    held_parts: VecDeque<Part>,
    /// How many of the held packets the device has been told of.
    kicked: usize,
    /// `true` if the other end does not know of published packets.
    unannounced: bool,
    /// One packet's parts in one slice, while the device fetches the packet.
    scratch: Vec<Part>,
    done: Completions,
    /// Descriptors that no packet takes.
    free_descriptors: usize,
    /// The length of the last packet that found no room.
    wanted_bytes: usize,
    pub(super) counters: Counters,
}

impl LoopbackQueue {
    pub(super) fn new(
        config: &Config,
        info: Info,
        longest: usize,
        (tx, rx): (Sender, Receiver),
        shared: Arc<Shared>,
        end: usize,
    ) -> LoopbackQueue {
        let registers = shared.dma(end).is_some();
        LoopbackQueue {
            info,
            longest,
            ring_packets: config.ring_packets,
            tx,
            rx,
            own: shared.bells[end].clone(),
            peer: shared.bells[1 - end].clone(),
            shared,
            end,
            timing: config.timing,
            reception: config.reception,
            filters: Applied::default(),
            packet: Vec::with_capacity(if config.reception.is_plain() { 0 } else { longest }),
            wanted_buffers: 1,
            registers,
            holds: config.tx_asynchronous,
            sleeper: None,
            interrupted: None,
            pool: None,
            buffers: VecDeque::with_capacity(config.ring_packets),
            held: VecDeque::new(),
            held_parts: VecDeque::new(),
            kicked: 0,
            unannounced: false,
            scratch: Vec::with_capacity(MAX_PARTS),
            done: Completions::new(config.timing, config.ring_packets),
            free_descriptors: config.tx_descriptors,
            wanted_bytes: 0,
            counters: Counters::default(),
        }
    }

    /// Makes the timer of a device that reports late.
    pub(super) fn open(&mut self) -> Result<(), DeviceError> {
        if let Some(fd) = &self.own.fd
            && self.timing.needs_timer()
        {
            self.sleeper = Some(Sleeper::new(fd.as_fd()).map_err(|cause| self.failed(cause))?);
        }
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> DeviceError {
        DeviceError::Failed { name: self.info.name.clone(), what: "a timer", cause }
    }

    /// Reports completions that are due.
    #[inline]
    fn advance(&mut self) {
        if self.timing.is_late() && !self.shared.is_stalled(self.end) {
            self.done.advance();
        }
    }

    fn other_is_gone(&self) -> bool {
        self.own.closed.load(Ordering::Acquire)
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            name: self.info.name.clone(),
            cause: io::Error::new(io::ErrorKind::BrokenPipe, "the other end was dropped"),
        }
    }

    /// Publishes the held packets that the device was told of and for which there is room
    /// (asynchronous mode).
    fn fetch_held(&mut self, spaces: &Spaces) {
        if self.kicked == 0 || !self.shared.moves(self.end) {
            return;
        }
        let limits = self.limits();
        let mut batch = Batch::new(&mut self.tx);
        while self.kicked > 0
            && let Some(held) = self.held.front()
        {
            self.scratch.clear();
            self.scratch.extend(self.held_parts.range(..held.parts));
            let sent = match held.tag {
                None => batch.push(&limits, spaces, &self.scratch, held.meta),
                Some(tag) => batch.push_tagged(&limits, spaces, (&self.scratch, tag), held.meta),
            };
            let outcome = match sent {
                Sent::Yes(len) => self.counters.sent(len),
                Sent::Bad => self.counters.dropped(),
                Sent::NoRoom(len) => {
                    self.wanted_bytes = len;
                    break;
                }
            };
            let descriptors = held.parts as u32;
            self.done.push(Done { token: held.token, outcome, descriptors });
            self.held_parts.drain(..held.parts);
            self.held.pop_front();
            self.kicked -= 1;
        }
        if batch.publish() {
            self.counters.system_calls += self.peer.ring(WANTS_PACKETS);
        }
    }

    /// Takes packets that the device fetches later (asynchronous mode). Returns how many.
    fn hold(&mut self, packets: &[Packet<'_>]) -> usize {
        let mut taken = 0;
        for packet in packets {
            let parts = packet.parts.len();
            if parts > MAX_PARTS {
                // The driver drops the packet, and places nothing in the ring.
                let outcome = self.counters.dropped();
                self.done.push(Done { token: packet.token, outcome, descriptors: 0 });
            } else if parts > self.free_descriptors {
                break;
            } else {
                self.free_descriptors -= parts;
                self.held_parts.extend(packet.parts);
                let Packet { meta, tag, token, .. } = *packet;
                self.held.push_back(Held { parts, meta, tag, token });
            }
            taken += 1;
        }
        taken
    }

    fn limits(&self) -> PacketLimits {
        PacketLimits {
            can: self.info.can,
            frame_bytes: self.info.mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES,
            large_bytes: self.longest,
            parts: self.info.limits.tx_packet_parts,
            registered: self.registers,
            pool: self.pool,
        }
    }

    /// Returns the time up to which the device does not wake the engine again.
    fn quiet_until(&self, now: Option<Instant>) -> Option<Instant> {
        let until = self.interrupted? + self.timing.interrupt_delay;
        now.filter(|now| until > *now).map(|_| until)
    }

    /// `true` if the engine has work, or if another call of it lets the device go on.
    fn has_work(&self, receives: bool, tx_waiting: bool) -> bool {
        let moves = self.shared.moves(self.end);
        let has_wire_room = moves && self.has_wire_room();
        self.done.has_reported()
            || (receives && self.rx.packets.slots() > 0)
            || self.other_is_gone()
            || (self.kicked > 0 && has_wire_room)
            || (tx_waiting && self.has_ring_room() && (self.holds || has_wire_room))
    }

    /// `true` if the wire has room for the packet that found none.
    fn has_wire_room(&self) -> bool {
        self.tx.packets.slots() > 0 && self.tx.bytes.slots() >= self.wanted_bytes
    }

    /// `true` if the transmit ring has room for any packet. A packet that needs less room than this
    /// finds it when the engine fetches the next completions.
    fn has_ring_room(&self) -> bool {
        self.free_descriptors >= MAX_PARTS && self.done.len() + self.held.len() < self.ring_packets
    }
}

impl DeviceQueue for LoopbackQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.pool = Some(space);
        let room = (self.ring_packets - self.buffers.len()).min(buffers.len());
        let mut buffers = &buffers[..room];
        let limits = self.info.limits;
        let len = limits.rx_buffer_bytes as u32;
        // One check for all buffers, as all are good but for a mistake of the caller.
        let all = buffers.iter().fold(0, |all, at| all | at);
        if self.registers || !limits.is_aligned(all) {
            let good = |at: &&u32| {
                limits.is_aligned(**at)
                    && (!self.registers || spaces.device_address(space, **at, len).is_some())
            };
            buffers = &buffers[..buffers.iter().take_while(good).count()];
        }
        let good = |at: &&u32| spaces.is_writable(space, **at, len);
        let before = self.buffers.len();
        self.buffers.extend(buffers.iter().take_while(good).map(|buffer| (space, *buffer)));
        self.buffers.len() - before
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.fetch_held(spaces);
        // This checks before it reads the rings, so that this end still sees the last packets of a
        // dropped end.
        let gone = self.other_is_gone();
        let waiting = self.rx.packets.slots();
        if waiting == 0 && gone {
            return Err(self.gone());
        }
        let returned = if self.reception.is_plain() {
            self.receive_whole(spaces, out, waiting.min(budget))
        } else {
            self.receive_processed(spaces, out, waiting.min(budget))
        };
        if returned > 0 {
            self.counters.system_calls += self.peer.ring(WANTS_ROOM);
        }
        Ok(returned)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        if self.other_is_gone() {
            return Err(self.gone());
        }
        self.fetch_held(spaces);
        let room = self.ring_packets.saturating_sub(self.done.len() + self.held.len());
        let packets = &packets[..room.min(packets.len())];
        if self.holds {
            return Ok(self.hold(packets));
        }
        if !self.shared.moves(self.end) {
            return Ok(0);
        }
        let limits = self.limits();
        let mut batch = Batch::new(&mut self.tx);
        let done = self.done.open();
        let (mut taken, mut free) = (0, self.free_descriptors);
        for packet in packets {
            let mut descriptors = packet.parts.len();
            if descriptors > free && descriptors <= MAX_PARTS {
                break;
            }
            let sent = match packet.tag {
                None => batch.push(&limits, spaces, packet.parts, packet.meta),
                Some(tag) => batch.push_tagged(&limits, spaces, (packet.parts, tag), packet.meta),
            };
            let outcome = match sent {
                Sent::Yes(len) => self.counters.sent(len),
                Sent::Bad => {
                    // The driver drops the packet, and places nothing in the ring.
                    descriptors = 0;
                    self.counters.dropped()
                }
                Sent::NoRoom(len) => {
                    self.wanted_bytes = len;
                    break;
                }
            };
            free -= descriptors;
            let descriptors = descriptors as u32;
            done.push_back(Done { token: packet.token, outcome, descriptors });
            taken += 1;
        }
        self.free_descriptors = free;
        self.done.note_time();
        self.unannounced |= batch.publish();
        Ok(taken)
    }

    fn kick(&mut self, spaces: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        if ring == Kick::Rx {
            return Ok(());
        }
        if self.unannounced || self.kicked < self.held.len() {
            self.timing.kick();
        }
        self.kicked = self.held.len();
        self.fetch_held(spaces);
        if std::mem::take(&mut self.unannounced) {
            self.counters.system_calls += self.peer.ring(WANTS_PACKETS);
        }
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.advance();
        let before = out.len();
        for done in self.done.take(budget) {
            self.free_descriptors += done.descriptors as usize;
            out.push(done.completion());
        }
        Ok(out.len() - before)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        let bell = self.own.fd.as_ref().map(AsFd::as_fd);
        self.sleeper.as_ref().map(Sleeper::fd).or(bell)
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.own.fd.is_none() {
            return Ok(Armed::Work);
        }
        // This empties the doorbell before it sets `wants`, so that a later notification stays.
        let rang = self.own.take();
        self.counters.system_calls += rang.unwrap_or(0);
        self.advance();
        let now = self.sleeper.as_ref().map(|_| Instant::now());
        if rang.is_some() {
            self.interrupted = now;
        }
        let quiet_until = self.quiet_until(now);
        let receives = self.buffers.len() >= self.wanted_buffers;
        let room_wanted = tx_waiting || self.kicked > 0;
        let mut wants = 0;
        if quiet_until.is_none() {
            wants |= if receives { WANTS_PACKETS } else { 0 };
            wants |= if room_wanted { WANTS_ROOM } else { 0 };
        }
        self.own.wants.store(wants, Ordering::Relaxed);
        // Pairs with the fence in `Bell::ring`: the other end sees `wants`, or this end sees its
        // work.
        fence(Ordering::SeqCst);
        if self.has_work(receives, tx_waiting) {
            self.own.wants.store(0, Ordering::Relaxed);
            return Ok(Armed::Work);
        }
        if let (Some(sleeper), Some(now)) = (&mut self.sleeper, now) {
            let late = self.done.due().filter(|_| !self.shared.is_stalled(self.end));
            let due = [late, quiet_until].into_iter().flatten().min();
            let set = sleeper.wake_at(due, now);
            self.counters.system_calls += set.map_err(|cause| self.failed(cause))?;
        }
        Ok(Armed::Sleep)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        buffers.extend(self.buffers.drain(..).map(|(_, buffer)| buffer));
        // As a card does on a reset, the device forgets packets that it has not fetched, but
        // returns their tokens.
        self.shared.end_stall(self.end);
        self.done.report_all();
        for held in self.held.drain(..) {
            let (token, descriptors) = (held.token, held.parts as u32);
            self.done.push_returned(Done { token, outcome: Outcome::Returned, descriptors });
        }
        self.held_parts.clear();
        self.kicked = 0;
        if self.other_is_gone() { Err(self.gone()) } else { Ok(()) }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for LoopbackQueue {
    fn drop(&mut self) {
        // Published packets stay readable. This end sets the flag after them, and notifies after
        // the flag.
        self.peer.closed.store(true, Ordering::Release);
        let _ = self.peer.notify_always();
    }
}
