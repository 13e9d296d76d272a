//! The device verbs of a queue, its sleep, and its resets.

use std::io;
use std::os::fd::BorrowedFd;

use towpath_device::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Kick, Packet, Received, SpaceId, Spaces,
};

use super::super::names::TX;
use super::{QueueParts, VirtioNetQueue};
use crate::error::gone;

/// Sleeps between two looks at whether the device works.
const SLEEPS_PER_LOOK: u32 = 64;

impl VirtioNetQueue {
    /// Returns an error once the device has named a chain that it does not have, or says that it works no more.
    fn check(&self) -> Result<(), DeviceError> {
        if self.parts.card.is_noted_to_fail() {
            self.look()?;
        }
        if !self.is_wrong {
            return Ok(());
        }
        let what = "it completed a descriptor that it does not have";
        Err(self.parts.info.failed(what)(io::ErrorKind::InvalidData))
    }

    /// Looks at whether the device works.
    fn look(&self) -> Result<(), DeviceError> {
        let QueueParts { card, info, .. } = &self.parts;
        if card.is_gone() {
            return Err(gone(info));
        }
        if card.needs_reset() {
            return Err(info.failed("its work")(io::Error::other("it asks for a reset")));
        }
        Ok(())
    }

    /// Keeps the device from interrupting, since the queue was armed.
    fn acknowledge(&mut self) {
        if std::mem::take(&mut self.is_unmasked) {
            self.parts.rx.set_interrupts(false);
            self.parts.tx.set_interrupts(false);
        }
    }

    /// Returns `true` if a received packet, a completion, or room that the engine waits for is there.
    fn has_work(&self, tx_waiting: bool) -> bool {
        self.is_wrong
            || self.parts.rx.has_used()
            || !self.dropped.is_empty()
            || !self.done.is_empty()
            || self.parts.tx.has_used()
            || tx_waiting && self.has_room()
    }
}

impl DeviceQueue for VirtioNetQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.pool = Some(space);
        self.release_dropped(spaces);
        self.fill(spaces, space, buffers)
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.acknowledge();
        self.release_dropped(spaces);
        self.check()?;
        Ok(self.receive(spaces, out, budget))
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        self.check()?;
        Ok(self.submit(spaces, packets))
    }

    fn kick(&mut self, _: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        match ring {
            Kick::Rx => self.tell_rx(),
            Kick::Tx => {
                if self.parts.tx.publish()
                    && let Some([_, tx]) = &self.notifications
                {
                    tx.send(TX);
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
        Ok(Completion::take(&mut self.done, out, budget))
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.interrupt.fd())
    }

    /// Asks for interrupts, and looks again.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        self.counters.system_calls += self.parts.interrupt.take();
        self.sleeps += 1;
        if self.sleeps == SLEEPS_PER_LOOK || self.parts.card.is_noted_to_fail() {
            self.sleeps = 0;
            self.look()?;
        }
        if self.has_work(tx_waiting) {
            return Ok(Armed::Work);
        }
        self.parts.interrupt.arm();
        self.is_unmasked = true;
        self.parts.rx.set_interrupts(true);
        self.parts.tx.set_interrupts(self.sending > 0);
        // SYNC: the device writes its index, and then looks whether to interrupt. Pairs with its barrier.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(if self.has_work(tx_waiting) { Armed::Work } else { Armed::Sleep })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.notifications = None;
        self.parts.card.reset().map_err(|error| self.failure("a reset", error))?;
        self.fetch_completions();
        // Packets that the engine has not received are lost, and counted.
        while let Ok(Some(used)) = self.parts.rx.take() {
            self.counters.rx_dropped += 1;
            buffers.push(self.buffers[usize::from(used.head)]);
        }
        let heads = self.parts.rx.heads();
        buffers.extend(heads.map(|head| self.buffers[usize::from(head)]));
        buffers.append(&mut self.dropped);
        self.return_packets();
        (self.is_wrong, self.is_unmasked) = (false, false);
        self.start()?;
        self.counters.resets += 1;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
