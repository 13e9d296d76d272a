//! The data part: a virtqueue for received packets, and one for packets to send.

mod receive;
mod transmit;
mod verbs;

use std::collections::VecDeque;
use std::sync::Arc;

use towpath_device::{Completion, Counters, DeviceError, Info, Registration, SpaceId};

use super::card::Card;
use super::memory::RINGS_AT;
use super::names::{RX, TX};
use super::packets::PacketInFlight;
use super::ring::{MOST_ENTRIES, Ring};
use super::structures::Notification;
use crate::error::{PciError, failure};
use crate::interrupt::Interrupt;

/// The headroom of receive buffers. The device writes its header at the end of it.
pub(super) const HEADROOM_BYTES: usize = 128;

/// What a queue works with.
pub(super) struct QueueParts {
    pub(super) info: Info,
    pub(super) card: Arc<Card>,
    pub(super) rx: Ring,
    pub(super) tx: Ring,
    /// The registration of the rings' memory, which the device reaches until the last clone ends.
    pub(super) rings: Registration,
    pub(super) interrupt: Interrupt,
}

/// A queue of the device.
pub(super) struct VirtioNetQueue {
    parts: QueueParts,
    /// What tells the device of new entries of the receive ring and of the transmit ring, once it runs.
    notifications: Option<[Notification; 2]>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    /// The receive buffer of each descriptor that the device has.
    buffers: Vec<u32>,
    /// Buffers of dropped packets, which go back to the device.
    dropped: Vec<u32>,
    /// The packets that the device has, by the heads of their chains, and their number.
    in_flight: Vec<PacketInFlight>,
    sending: usize,
    /// The number of the next packet, in the order in which the device takes them.
    next: u64,
    done: VecDeque<Completion>,
    /// `true` once the device named a chain that it does not have.
    is_wrong: bool,
    /// `true` if the device may interrupt for packets.
    is_unmasked: bool,
    sleeps: u32,
    counters: Counters,
}

impl VirtioNetQueue {
    pub(super) fn new(parts: QueueParts) -> VirtioNetQueue {
        let most = MOST_ENTRIES as usize;
        VirtioNetQueue {
            parts,
            notifications: None,
            pool: None,
            buffers: vec![0; most],
            dropped: Vec::with_capacity(most),
            in_flight: vec![PacketInFlight::default(); most],
            sending: 0,
            next: 0,
            done: VecDeque::with_capacity(most),
            is_wrong: false,
            is_unmasked: false,
            sleeps: 0,
            counters: Counters::default(),
        }
    }

    /// Starts the device, which has been reset, with empty rings.
    pub(super) fn start(&mut self) -> Result<(), DeviceError> {
        let QueueParts { card, rx, tx, rings, .. } = &mut self.parts;
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
        failure(&self.parts.info, self.parts.card.is_gone(), what, error)
    }

    /// Tells the device of new entries in the receive ring.
    fn tell_rx(&mut self) {
        if self.parts.rx.publish()
            && let Some([rx, _]) = &self.notifications
        {
            rx.send(RX);
        }
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
