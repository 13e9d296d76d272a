//! The data part: a virtqueue for received packets, and one for packets to send.

mod receive;
mod transmit;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::card::Card;
use super::memory::RINGS_AT;
use super::names::{RX, TX};
use super::packets::InFlight;
use super::ring::{MOST_ENTRIES, Ring};
use super::structures::Notification;
use crate::dma::Registration;
use crate::pci::error::PciError;
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, ETHERNET_HEADER_BYTES, Info, Kick,
    Packet, Received, SpaceId, Spaces, VLAN_TAG_BYTES,
};

/// The headroom of receive buffers. The device writes its header at the end of it.
pub(super) const HEADROOM_BYTES: usize = 128;
/// Sleeps between two looks at whether the device works.
const SLEEPS_PER_LOOK: u32 = 64;

/// Returns the bytes of the longest frame with this MTU.
pub(super) fn longest_frame(mtu: usize) -> usize {
    mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES
}

/// What a queue works with.
pub(super) struct Parts {
    pub(super) info: Info,
    pub(super) card: Arc<Card>,
    pub(super) rx: Ring,
    pub(super) tx: Ring,
    /// The registration of the rings' memory, which the device reaches until the last clone ends.
    pub(super) rings: Registration,
    /// The kernel signals it at each interrupt of the queue.
    pub(super) interrupt: Arc<OwnedFd>,
}

/// A queue of the device.
pub(super) struct VirtioNetQueue {
    parts: Parts,
    /// What tells the device of new entries of the receive ring and of the transmit ring, once it runs.
    notifications: Option<[Notification; 2]>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    /// The receive buffer of each descriptor that the device has.
    buffers: Vec<u32>,
    /// Buffers of dropped packets, which go back to the device.
    dropped: Vec<u32>,
    /// The packets that the device has, by the heads of their chains, and their number.
    in_flight: Vec<InFlight>,
    sending: usize,
    /// The number of the next packet, in the order in which the device takes them.
    next: u64,
    done: VecDeque<Completion>,
    /// `true` once the device named a chain that it does not have.
    is_wrong: bool,
    /// `true` if the queue has been armed since the last read of the interrupt.
    is_armed: bool,
    /// `true` if the device may interrupt for packets.
    is_unmasked: bool,
    sleeps: u32,
    counters: Counters,
}

impl VirtioNetQueue {
    pub(super) fn new(parts: Parts) -> VirtioNetQueue {
        let most = MOST_ENTRIES as usize;
        VirtioNetQueue {
            parts,
            notifications: None,
            pool: None,
            buffers: vec![0; most],
            dropped: Vec::with_capacity(most),
            in_flight: vec![InFlight::default(); most],
            sending: 0,
            next: 0,
            done: VecDeque::with_capacity(most),
            is_wrong: false,
            is_armed: false,
            is_unmasked: false,
            sleeps: 0,
            counters: Counters::default(),
        }
    }

    /// Starts the device, which has been reset, with empty rings.
    pub(super) fn start(&mut self) -> Result<(), DeviceError> {
        let Parts { card, rx, tx, rings, .. } = &mut self.parts;
        let [rx_at, tx_at] =
            [RX, TX].map(|queue| rings.address() + RINGS_AT[usize::from(queue)] as u64);
        let started = card.start([(&mut *rx, rx_at), (&mut *tx, tx_at)]);
        match started {
            Ok(notifications) => {
                rx.set_interrupts(false);
                tx.set_interrupts(false);
                self.notifications = Some(notifications);
                Ok(())
            }
            Err(error) => Err(self.failure("its start", error)),
        }
    }

    fn failure(&self, what: &'static str, error: PciError) -> DeviceError {
        let (name, cause) = (self.parts.info.name.clone(), io::Error::other(error));
        if self.parts.card.is_gone() {
            DeviceError::Gone { name, cause }
        } else {
            DeviceError::Failed { name, what, cause }
        }
    }

    /// Returns an error once the device has named a chain that it does not have, or says that it works no more.
    fn check(&self) -> Result<(), DeviceError> {
        if self.parts.card.is_noted_to_fail() {
            self.look()?;
        }
        if !self.is_wrong {
            return Ok(());
        }
        let cause = io::Error::from(io::ErrorKind::InvalidData);
        let what = "it completed a descriptor that it does not have";
        Err(DeviceError::Failed { name: self.parts.info.name.clone(), what, cause })
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

    /// Tells the device of new entries in the receive ring.
    fn tell_rx(&mut self) {
        if self.parts.rx.publish()
            && let Some([rx, _]) = &self.notifications
        {
            rx.send(RX);
        }
    }

    /// Looks at whether the device works.
    fn look(&self) -> Result<(), DeviceError> {
        let name = || self.parts.info.name.clone();
        if self.parts.card.is_gone() {
            let cause = io::Error::other("its registers read as all ones");
            return Err(DeviceError::Gone { name: name(), cause });
        }
        if self.parts.card.needs_reset() {
            let cause = io::Error::other("it asks for a reset");
            return Err(DeviceError::Failed { name: name(), what: "its work", cause });
        }
        Ok(())
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
        let count = budget.min(self.done.len());
        out.extend(self.done.drain(..count));
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.interrupt.as_fd())
    }

    /// Asks for interrupts, and looks again.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if std::mem::take(&mut self.is_armed) {
            self.counters.system_calls += 1;
            // The read fails if there was no interrupt.
            let _ = rustix::io::read(&*self.parts.interrupt, &mut [0; 8]);
        }
        self.sleeps += 1;
        if self.sleeps == SLEEPS_PER_LOOK || self.parts.card.is_noted_to_fail() {
            self.sleeps = 0;
            self.look()?;
        }
        if self.has_work(tx_waiting) {
            return Ok(Armed::Work);
        }
        (self.is_armed, self.is_unmasked) = (true, true);
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

/// Stops the device, which then accesses no memory.
impl Drop for VirtioNetQueue {
    fn drop(&mut self) {
        self.parts.card.stop();
    }
}

#[cfg(test)]
mod tests;
