//! The data part: one receive ring and one transmit ring.

mod receive;
mod transmit;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_queue::descriptor::HEADROOM_BYTES;

use super::card::{Card, OWN_QUEUE};
use super::descriptor::Words;
use super::ledger::Ledger;
use super::memory::{RING_BYTES, RING_ENTRIES, Shared};
use super::names::*;
use super::packets::InFlight;
use crate::dma::Registration;
use crate::pci::registers::Register;
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, HardwareQueue, Info, Kick, Packet,
    Received, SpaceId, Spaces,
};

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
/// Polls between two reads of the causes of a card with one interrupt.
const POLLS_PER_LINK: u32 = 256;
/// Sleeps between two reads of the count of packets that the device dropped.
const SLEEPS_PER_READ: u32 = 64;

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
pub(super) struct Parts {
    /// The number of the queue in the device.
    pub(super) index: u32,
    pub(super) owner: Owner,
    pub(super) info: Info,
    pub(super) card: Arc<Card>,
    pub(super) shared: Shared,
    /// The registration of the rings' memory, which the device reaches until this value ends.
    pub(super) rings: Registration,
    /// The receive buffer of each descriptor.
    pub(super) ledger: Ledger,
    /// The kernel signals it at each interrupt of the queue.
    pub(super) interrupt: Arc<OwnedFd>,
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
    parts: Parts,
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
    in_flight: VecDeque<InFlight>,
    done: VecDeque<Completion>,
    /// The context of checksums that the device has.
    context: Option<Words>,
    /// `true` if the queue has been armed since the last read of the interrupt.
    is_armed: bool,
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
    pub(super) fn start(parts: Parts) -> E1000eQueue {
        let mut queue = E1000eQueue::new(parts);
        queue.start_again();
        queue
    }

    /// Goes on with the rings of an earlier server, which the device goes on with, too.
    pub(super) fn go_on(parts: Parts, from: Position) -> E1000eQueue {
        let mut queue = E1000eQueue::new(parts);
        let (oldest, discards) = queue.parts.ledger.oldest();
        queue.parts.shared.rx.go_on(oldest, from.rx_tail);
        queue.parts.shared.tx.go_on(from.tx_tail, from.tx_tail);
        (queue.discards, queue.noted, queue.left) = (discards, (oldest, discards), from.buffers);
        if from.drops {
            queue.drop_waiting();
        }
        let (card, index) = (queue.parts.card.clone(), queue.parts.index);
        card.start(index, queue.resets, || ());
        queue
    }

    fn new(parts: Parts) -> E1000eQueue {
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
            is_armed: false,
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

    /// Returns the causes that may wake the engine.
    fn causes(&self) -> u32 {
        self.parts.card.interrupts.causes(self.parts.index, !self.in_flight.is_empty())
    }

    /// Keeps the device from interrupting, if it does not do that by itself, since the queue was armed.
    fn acknowledge(&mut self) {
        let card = &self.parts.card;
        self.polls = self.polls.wrapping_add(1);
        // An engine that does not sleep learns of the link so, if that has no interrupt of its own.
        let is_due = self.polls.is_multiple_of(POLLS_PER_LINK);
        if (std::mem::take(&mut self.is_unmasked) || is_due)
            && card.interrupts.acknowledge(&card.registers)
        {
            // The interrupt is also that of the link.
            card.signal_link();
        }
    }

    /// Returns `true` if a received packet, a completion, or room that the engine waits for is there.
    fn has_work(&self, tx_waiting: bool) -> bool {
        self.has_packet()
            || !self.dropped.is_empty()
            || !self.done.is_empty()
            || self.is_oldest_sent()
            || tx_waiting && self.has_room()
    }
}

/// Returns the device addresses and the bytes of the receive ring and of the transmit ring, which begin at an
/// address.
pub(super) fn rings_at(address: u64) -> [(u64, u32); 2] {
    [(address, RING_BYTES as u32), (address + RING_BYTES as u64, RING_BYTES as u32)]
}

impl DeviceQueue for E1000eQueue {
    /// This queue serves no other one.
    fn cede(&mut self, hardware: u32) -> Option<HardwareQueue> {
        (hardware == OWN_QUEUE && !self.parts.owner.is_session())
            .then(|| HardwareQueue::new(hardware, Box::new(())))
    }

    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.pool = Some(space);
        self.pool_at = spaces.device_address(space, 0, 0).unwrap_or(self.pool_at);
        self.release_received();
        let taken = self.fill(spaces, space, buffers);
        self.keep_some();
        taken
    }

    fn holds(&self, buffer: u32) -> bool {
        self.left.binary_search(&buffer).is_ok()
    }

    fn rx_poll(
        &mut self,
        _: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        if self.parts.card.resets() != self.resets {
            self.follow_reset();
        }
        self.acknowledge();
        self.release_received();
        let received = self.receive(out, budget);
        self.keep_some();
        Ok(received)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        // The engine sends returned packets first.
        if self.returns || self.parts.card.resets() != self.resets {
            return Ok(0);
        }
        Ok(self.submit(spaces, packets))
    }

    fn kick(&mut self, _: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        match ring {
            Kick::Rx => self.tell_rx(),
            Kick::Tx => {
                if let Some(tail) = self.parts.shared.tx.untold_tail() {
                    self.parts.card.registers.write(self.of(TDT), tail);
                }
            }
        }
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.fetch_completions();
        let count = budget.min(self.done.len());
        out.extend(self.done.drain(..count));
        self.returns &= !self.done.is_empty();
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.interrupt.as_fd())
    }

    /// Unmasks the causes of the queue. The device interrupts at once for a cause that it has already noted,
    /// so no packet is missed between the last check and the sleep.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if std::mem::take(&mut self.is_armed) {
            self.counters.system_calls += 1;
            // The read fails if there was no interrupt.
            let _ = rustix::io::read(&*self.parts.interrupt, &mut [0; 8]);
        }
        if self.parts.card.resets() != self.resets {
            return Ok(Armed::Work);
        }
        self.sleeps += 1;
        if self.sleeps == SLEEPS_PER_READ {
            self.sleeps = 0;
            self.count_missed()?;
        }
        if self.has_work(tx_waiting) {
            return Ok(Armed::Work);
        }
        (self.is_armed, self.is_unmasked) = (true, true);
        self.parts.card.registers.write(IMS, self.causes());
        Ok(if self.has_work(tx_waiting) { Armed::Work } else { Armed::Sleep })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        let reset = self.parts.card.reset_once(self.resets);
        reset.map_err(|error| self.failure("a reset", error))?;
        buffers.append(&mut self.take_all());
        self.start_again();
        self.counters.resets += 1;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl E1000eQueue {
    /// Goes on after a reset by the engine of the other queue.
    #[cold]
    fn follow_reset(&mut self) {
        self.returns = !self.in_flight.is_empty();
        for buffer in self.take_all() {
            if self.parts.shared.rx.room() > 0 {
                self.give(buffer);
            } else {
                self.dropped.push(buffer);
            }
        }
        self.start_again();
        self.keep_some();
        self.tell_rx();
    }

    /// Takes back what the device had before a reset: completes the packets to send, drops and counts those
    /// that wait, and returns all buffers.
    fn take_all(&mut self) -> Vec<u32> {
        self.fetch_completions();
        self.done.extend(self.in_flight.drain(..).map(|one| Completion::returned(one.token)));
        self.drop_waiting();
        let mut buffers = std::mem::take(&mut self.dropped);
        let held = self.parts.shared.rx.held_indices();
        let held = held.map(|index| self.parts.ledger.buffer(index));
        buffers.extend(held.filter(|buffer| *buffer != DISCARD));
        self.parts.shared.rx.clear();
        self.parts.shared.tx.clear();
        (self.context, self.discards) = (None, false);
        self.note_received();
        buffers
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

    fn failure(&self, what: &'static str, error: crate::pci::error::PciError) -> DeviceError {
        let (name, cause) = (self.parts.info.name.clone(), io::Error::other(error));
        if self.parts.card.is_gone() {
            DeviceError::Gone { name, cause }
        } else {
            DeviceError::Failed { name, what, cause }
        }
    }

    /// Counts the packets that the device dropped since the last read.
    fn count_missed(&mut self) -> Result<(), DeviceError> {
        if self.parts.card.is_gone() {
            let cause = io::Error::other("its registers read as all ones");
            return Err(DeviceError::Gone { name: self.parts.info.name.clone(), cause });
        }
        // The card counts for both queues.
        if self.parts.index == 0
            && let Some(missed) = self.parts.card.missed()
        {
            self.counters.rx_dropped += missed - std::mem::replace(&mut self.missed, missed);
        }
        Ok(())
    }
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
