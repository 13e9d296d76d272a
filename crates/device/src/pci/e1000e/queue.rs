//! The data part: one receive ring and one transmit ring.

mod receive;
mod transmit;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_memory::Region;
use towpath_packet::segment::MAX_HEADER_BYTES;

use super::card::Card;
use super::descriptor::{DESCRIPTOR_BYTES, Words};
use super::names::*;
use super::packets::InFlight;
use super::ring::Ring;
use crate::dma::{Access, Dma, Registration};
use crate::pci::registers::{GONE, Register};
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Info, Kick, Packet, Received, SpaceId,
    Spaces,
};

/// Descriptors of each ring: a multiple of 8 (`RDLEN` counts in 128 bytes).
pub(super) const RING_ENTRIES: u32 = 512;
/// The size of a receive buffer, which the device fills at most (`RCTL.BSIZE`, 00).
pub(super) const RX_BUFFER_BYTES: usize = 2048;
/// Bytes of a ring.
const RING_BYTES: usize = RING_ENTRIES as usize * DESCRIPTOR_BYTES;
/// Headers of large packets lie behind both rings, with a place for each transmit descriptor.
const HEADERS_AT: usize = 2 * RING_BYTES;
/// Zeros for short frames lie behind the headers.
const ZEROS_AT: usize = HEADERS_AT + RING_ENTRIES as usize * MAX_HEADER_BYTES;
const MEMORY_BYTES: usize = ZEROS_AT + SHORTEST_FRAME_BYTES;
/// The shortest frame on the wire, without its checksum (IEEE 802.3, 3.2.8).
const SHORTEST_FRAME_BYTES: usize = 60;
/// Sleeps between two reads of the count of packets that the device dropped.
const SLEEPS_PER_READ: u32 = 64;

/// A queue of the device.
pub(super) struct E1000eQueue {
    info: Info,
    card: Arc<Card>,
    /// The number of the queue in the device.
    index: u32,
    rx: Ring,
    tx: Ring,
    /// The headers of large packets.
    headers: Region,
    /// The memory of rings and headers, which the device reaches until this value ends.
    rings: Registration,
    /// The receive buffer of each descriptor.
    rx_buffers: Vec<u32>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    /// Buffers of dropped packets, which go back to the device.
    dropped: Vec<u32>,
    /// `true` while the device writes the rest of a packet that is too long.
    discards: bool,
    in_flight: VecDeque<InFlight>,
    done: VecDeque<Completion>,
    /// The context of checksums that the device has.
    context: Option<Words>,
    /// The kernel signals it at each interrupt of the queue.
    interrupt: Arc<OwnedFd>,
    /// `true` if the queue has been armed since the last read of `interrupt`.
    is_armed: bool,
    sleeps: u32,
    counters: Counters,
}

impl E1000eQueue {
    /// Makes the rings, and starts the device.
    pub(super) fn new(
        info: Info,
        card: Arc<Card>,
        dma: &Arc<dyn Dma>,
        (index, interrupt): (u32, Arc<OwnedFd>),
    ) -> Result<E1000eQueue, DeviceError> {
        let failed = |cause| {
            let (name, what) = (info.name.clone(), "memory for its rings");
            DeviceError::Failed { name, what, cause }
        };
        let mut memory = Region::private(MEMORY_BYTES).map_err(failed)?;
        let whole = memory.mapping().clone();
        let rings = Registration::new(dma, &whole, Access::ReadWrite);
        let rings = rings.map_err(|error| failed(io::Error::other(error)))?;
        let rx = Ring::new(memory.split_off_front(RING_BYTES), &whole);
        let tx = Ring::new(memory.split_off_front(RING_BYTES), &whole);
        let queue = E1000eQueue {
            info,
            card,
            index,
            rx,
            tx,
            headers: memory,
            rings,
            rx_buffers: vec![0; RING_ENTRIES as usize],
            pool: None,
            dropped: Vec::with_capacity(RING_ENTRIES as usize),
            discards: false,
            in_flight: VecDeque::with_capacity(RING_ENTRIES as usize),
            done: VecDeque::with_capacity(RING_ENTRIES as usize),
            context: None,
            interrupt,
            is_armed: false,
            sleeps: 0,
            counters: Counters::default(),
        };
        queue.set_rings();
        queue.card.start_interrupts();
        queue.card.start();
        Ok(queue)
    }

    /// Returns a register of this queue, by that of queue 0.
    fn of(&self, register: Register) -> Register {
        register.at(self.index, QUEUE_STRIDE)
    }

    /// Tells the device where the rings are. Both are empty.
    fn set_rings(&self) {
        let registers = &self.card.registers;
        let rx = self.rings.address();
        for ([low, high, bytes, head, tail], at) in [
            ([RDBAL, RDBAH, RDLEN, RDH, RDT], rx),
            ([TDBAL, TDBAH, TDLEN, TDH, TDT], rx + RING_BYTES as u64),
        ] {
            registers.write(self.of(low), at as u32);
            registers.write(self.of(high), (at >> 32) as u32);
            registers.write(self.of(bytes), RING_BYTES as u32);
            registers.write(self.of(head), 0);
            registers.write(self.of(tail), 0);
        }
    }

    /// Returns the causes that may wake the engine.
    fn causes(&self) -> u32 {
        let tx = if self.in_flight.is_empty() { 0 } else { CAUSE_TX };
        (CAUSE_RX | tx) << self.index
    }

    /// Returns `true` if a received packet, a completion, or room that the engine waits for is there.
    fn has_work(&self, tx_waiting: bool) -> bool {
        self.has_packet()
            || !self.done.is_empty()
            || self.is_oldest_sent()
            || tx_waiting && self.has_room()
    }
}

impl DeviceQueue for E1000eQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.pool = Some(space);
        self.fill(spaces, space, buffers)
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        Ok(self.receive(spaces, out, budget))
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        Ok(self.submit(spaces, packets))
    }

    fn kick(&mut self, _: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        match ring {
            Kick::Rx => self.tell_rx(),
            Kick::Tx => {
                if let Some(tail) = self.tx.untold_tail() {
                    self.card.registers.write(self.of(TDT), tail);
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
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.interrupt.as_fd())
    }

    /// Unmasks the causes of the queue. The device interrupts at once for a cause that it has already noted,
    /// so no packet is missed between the last check and the sleep.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if std::mem::take(&mut self.is_armed) {
            self.counters.system_calls += 1;
            // The read fails if there was no interrupt.
            let _ = rustix::io::read(&*self.interrupt, &mut [0; 8]);
        }
        self.sleeps += 1;
        if self.sleeps == SLEEPS_PER_READ {
            self.sleeps = 0;
            self.count_missed()?;
        }
        if self.has_work(tx_waiting) {
            return Ok(Armed::Work);
        }
        self.is_armed = true;
        self.card.registers.write(IMS, self.causes());
        Ok(if self.has_work(tx_waiting) { Armed::Work } else { Armed::Sleep })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.card.reset().map_err(|error| self.failure("a reset", error))?;
        self.fetch_completions();
        let held = (0..self.rx.held()).map(|ahead| self.rx.after(self.rx.oldest(), ahead));
        buffers.extend(held.map(|index| self.rx_buffers[index as usize]));
        buffers.append(&mut self.dropped);
        self.done.extend(self.in_flight.drain(..).map(|one| Completion::returned(one.token)));
        self.rx.clear();
        self.tx.clear();
        (self.context, self.discards) = (None, false);
        self.set_rings();
        self.card.start_interrupts();
        self.card.start();
        self.counters.resets += 1;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl E1000eQueue {
    /// Tells the device of new receive buffers.
    fn tell_rx(&mut self) {
        if let Some(tail) = self.rx.untold_tail() {
            self.card.registers.write(self.of(RDT), tail);
        }
    }

    fn failure(&self, what: &'static str, error: crate::pci::error::PciError) -> DeviceError {
        let (name, cause) = (self.info.name.clone(), io::Error::other(error));
        if self.card.is_gone() {
            DeviceError::Gone { name, cause }
        } else {
            DeviceError::Failed { name, what, cause }
        }
    }

    /// Counts the packets that the device dropped since the last read.
    fn count_missed(&mut self) -> Result<(), DeviceError> {
        let missed = self.card.registers.read(MPC);
        if missed == GONE && self.card.is_gone() {
            let cause = io::Error::other("its registers read as all ones");
            return Err(DeviceError::Gone { name: self.info.name.clone(), cause });
        }
        // A counter that reads as all ones, of a card that answers, is none.
        self.counters.rx_dropped += u64::from(if missed == GONE { 0 } else { missed });
        Ok(())
    }
}

/// Stops the device, which then accesses no memory.
impl Drop for E1000eQueue {
    fn drop(&mut self) {
        self.card.stop();
    }
}
