//! The data part: one receive ring and one transmit ring.

mod receive;
mod transmit;
mod verbs;

use std::collections::VecDeque;
use std::sync::Arc;

use towpath_device::{Completion, Counters, Info, Registration, SpaceId};
use towpath_queue::descriptor::HEADROOM_BYTES;

use super::card::Card;
use super::descriptor::Words;
use super::ledger::RingLedger;
use super::memory::{RING_BYTES, RING_ENTRIES, SharedRings};
use super::names::*;
use super::packets::PacketInFlight;
use crate::interrupt::Interrupt;
use crate::registers::Register;

/// The size of a receive buffer, which the device fills at most (`RCTL.BSIZE`, 00).
pub(super) const RX_BUFFER_BYTES: usize = 2048;
/// The receive buffers of which the device learns at once, as with Linux's driver (`E1000_RX_BUFFER_WRITE`), and with
/// how many others these can wait.
const TOLD_AT_ONCE: u32 = 16;
const ENOUGH: u32 = RING_ENTRIES / 4;
/// In the ledger: the buffer for packets that are dropped. Receive buffers begin at multiples of 128.
const DISCARD: u32 = u32::MAX;
/// The descriptors that a session's queue always has.
const LEAST_HELD: u32 = 16;

/// Whose packets a queue receives.
pub(super) enum Owner {
    /// Those of all sessions, into the engine's pool.
    Engine,
    /// Those of one session, into its receive buffers.
    Session {
        /// A buffer for packets that are dropped, so that the ring is never empty. Else, packets that the device has
        /// for this queue would wait in the device, and those for other queues behind them.
        discard: Registration,
    },
}

impl Owner {
    /// Returns the bytes of a buffer in front of the packet.
    #[inline]
    pub(super) fn headroom_bytes(&self) -> u32 {
        match self {
            Owner::Engine => 0,
            Owner::Session { .. } => HEADROOM_BYTES,
        }
    }

    fn is_session(&self) -> bool {
        matches!(self, Owner::Session { .. })
    }
}

/// What a queue works with.
pub(super) struct QueueParts {
    /// The number of the queue in the device.
    pub(super) index: u32,
    pub(super) owner: Owner,
    pub(super) info: Info,
    pub(super) card: Arc<Card>,
    pub(super) shared: SharedRings,
    /// The registration of the rings' memory, which the device reaches until this value ends.
    pub(super) rings: Registration,
    /// The receive buffer of each descriptor.
    pub(super) ledger: RingLedger,
    pub(super) interrupt: Interrupt,
}

/// Where a queue goes on.
pub(super) struct Position {
    pub(super) rx_tail: u32,
    pub(super) tx_tail: u32,
    /// The buffers that the device has, in ascending order.
    pub(super) buffers: Vec<u32>,
    /// `true` if the packets that wait are dropped.
    pub(super) drops: bool,
}

/// A queue of the device.
pub(super) struct E1000eQueue {
    parts: QueueParts,
    /// How often the card had been reset when this queue wrote its registers.
    resets: u32,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    /// The device address of that space.
    pool_at: u64,
    /// The buffers that the device has from an earlier server, in ascending order.
    left: Vec<u32>,
    /// Buffers of dropped packets, which go back to the device.
    dropped: Vec<u32>,
    /// `true` while the device writes the rest of a packet that is too long.
    discards: bool,
    /// The oldest descriptor in the ledger, and whether it is such a rest.
    noted: (u32, bool),
    in_flight: VecDeque<PacketInFlight>,
    done: VecDeque<Completion>,
    /// The context of checksums that the device has.
    context: Option<Words>,
    /// `true` if the device may interrupt for packets.
    is_unmasked: bool,
    /// `true` while the engine has yet to fetch packets that a reset returned.
    returns: bool,
    polls: u32,
    sleeps: u32,
    /// The packets that the device has dropped, as counted.
    missed: u64,
    counters: Counters,
}

impl E1000eQueue {
    /// Starts the device with empty rings.
    pub(super) fn start(parts: QueueParts) -> E1000eQueue {
        let mut queue = E1000eQueue::new(parts);
        queue.start_again();
        queue
    }

    fn new(parts: QueueParts) -> E1000eQueue {
        E1000eQueue {
            resets: parts.card.resets(),
            parts,
            pool: None,
            pool_at: 0,
            left: Vec::new(),
            dropped: Vec::with_capacity(RING_ENTRIES as usize),
            discards: false,
            noted: (0, false),
            in_flight: VecDeque::with_capacity(RING_ENTRIES as usize),
            done: VecDeque::with_capacity(RING_ENTRIES as usize),
            context: None,
            is_unmasked: false,
            returns: false,
            polls: 0,
            sleeps: 0,
            missed: 0,
            counters: Counters::default(),
        }
    }

    /// Returns a register of this queue, by that of queue 0.
    fn of(&self, register: Register) -> Register {
        register.at(self.parts.index, QUEUE_STRIDE)
    }

    /// Tells the device where the rings are. Both are empty.
    fn set_rings(&self) {
        let registers = &self.parts.card.registers;
        let [rx, tx] = rings_at(self.parts.rings.address());
        for ([low, high, bytes, head, tail], (at, size)) in
            [([RDBAL, RDBAH, RDLEN, RDH, RDT], rx), ([TDBAL, TDBAH, TDLEN, TDH, TDT], tx)]
        {
            registers.write(self.of(low), at as u32);
            registers.write(self.of(high), (at >> 32) as u32);
            registers.write(self.of(bytes), size);
            registers.write(self.of(head), 0);
            registers.write(self.of(tail), 0);
        }
    }

    /// Writes the registers of the queue, whose rings are empty.
    fn start_again(&mut self) {
        self.resets = self.parts.card.resets();
        self.parts.card.start(self.parts.index, self.resets, || self.set_rings());
    }

    /// Tells the device of new receive buffers: of many at once while it has enough others, since a write of a
    /// register costs as much as a small packet.
    fn tell_rx(&mut self) {
        let rx = &self.parts.shared.rx;
        let untold = rx.untold();
        if untold < TOLD_AT_ONCE && rx.held() - untold >= ENOUGH {
            return;
        }
        if let Some(tail) = self.parts.shared.rx.untold_tail() {
            self.parts.card.registers.write(self.of(RDT), tail);
        }
    }
}

/// Returns the device addresses and the bytes of the receive ring and of the transmit ring, which begin at an
/// address.
pub(super) fn rings_at(address: u64) -> [(u64, u32); 2] {
    [(address, RING_BYTES as u32), (address + RING_BYTES as u64, RING_BYTES as u32)]
}

/// Stops the device, which then accesses no memory. A device that is left to the next server goes on, but not with a
/// session's own queue.
impl Drop for E1000eQueue {
    fn drop(&mut self) {
        if self.parts.owner.is_session() {
            return self.parts.card.close_own();
        }
        self.parts.card.leave_in_panic();
        self.parts.card.stop();
    }
}

#[cfg(test)]
mod tests;
