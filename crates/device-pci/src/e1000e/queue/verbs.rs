//! The device verbs of a queue, its sleep, and its resets.

use std::os::fd::BorrowedFd;

use towpath_device::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, HardwareQueue, Kick, Packet, Received,
    SpaceId, Spaces,
};

use super::super::card::OWN_QUEUE;
use super::super::names::*;
use super::{DISCARD, E1000eQueue, Position, QueueParts};
use crate::error::{failure, gone};

/// Polls between two reads of the causes of a card with one interrupt.
const POLLS_PER_LINK: u32 = 256;
/// Sleeps between two reads of the count of packets that the device dropped.
const SLEEPS_PER_READ: u32 = 64;

impl E1000eQueue {
    /// Goes on with the rings of an earlier server, which the device goes on with, too.
    pub(crate) fn go_on(parts: QueueParts, from: Position) -> E1000eQueue {
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
    pub(super) fn take_all(&mut self) -> Vec<u32> {
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

    /// Counts the packets that the device dropped since the last read.
    fn count_missed(&mut self) -> Result<(), DeviceError> {
        if self.parts.card.is_gone() {
            return Err(gone(&self.parts.info));
        }
        // The card counts for both queues.
        if self.parts.index == 0
            && let Some(missed) = self.parts.card.missed()
        {
            self.counters.rx_dropped += missed - std::mem::replace(&mut self.missed, missed);
        }
        Ok(())
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
        let count = Completion::take(&mut self.done, out, budget);
        self.returns &= !self.done.is_empty();
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.interrupt.fd())
    }

    /// Unmasks the causes of the queue. The device interrupts at once for a cause that it has already noted,
    /// so no packet is missed between the last check and the sleep.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        self.counters.system_calls += self.parts.interrupt.take();
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
        self.parts.interrupt.arm();
        self.is_unmasked = true;
        self.parts.card.registers.write(IMS, self.causes());
        Ok(if self.has_work(tx_waiting) { Armed::Work } else { Armed::Sleep })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        let QueueParts { card, info, .. } = &self.parts;
        let reset = card.reset_once(self.resets);
        reset.map_err(|error| failure(info, card.is_gone(), "a reset", error))?;
        buffers.append(&mut self.take_all());
        self.start_again();
        self.counters.resets += 1;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
