//! The queue of one end.

mod verbs;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use towpath_device::{
    Counters, DeviceError, Info, MAX_PARTS, Meta, Packet, PacketLimits, Part, SpaceId, Spaces,
    VlanTag,
};

use super::cable::SharedCable;
use super::config::Config;
use super::filters::Applied;
use super::reception::Reception;
use super::ring::{Batch, Bell, Receiver, Sender, Sent, WANTS_PACKETS};
use super::timing::{Completions, Done, Timing};
use crate::sleeper::Sleeper;

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
    pub(super) shared: Arc<SharedCable>,
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
        tx: Sender,
        rx: Receiver,
        shared: Arc<SharedCable>,
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
            self.sleeper = Some(Sleeper::new(fd.as_fd()).map_err(self.info.failed("a timer"))?);
        }
        Ok(())
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
                Some(tag) => batch.push_tagged(&limits, spaces, &self.scratch, tag, held.meta),
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
        let limits = PacketLimits::of(&self.info, self.registers, self.pool);
        PacketLimits { large_bytes: self.longest, ..limits }
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

impl Drop for LoopbackQueue {
    fn drop(&mut self) {
        // Published packets stay readable. This end sets the flag after them, and notifies after
        // the flag.
        self.peer.closed.store(true, Ordering::Release);
        let _ = self.peer.notify_always();
    }
}
