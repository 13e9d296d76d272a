//! The options of a card, and their limits.

use towpath_device::OwnQueueError;

use super::interrupts::{self, Interrupts};
use crate::address::PciAddress;

/// The MTUs that the card takes, in bytes. Linux's driver takes frames of up to 9 234 bytes
/// (`DEFAULT_JUMBO`).
pub const MTU: std::ops::RangeInclusive<usize> = 68..=9_000;

/// The largest [`Moderation::Vectors`], in microseconds: 16 bits in units of 256 ns.
pub const MOST_USECS: u32 = interrupts::MOST_USECS;
/// The largest delays of [`Moderation::One`], in microseconds: 16 bits in units of 1.024 us.
pub const MOST_DELAY_USECS: u32 = interrupts::MOST_DELAY_USECS;

/// The most queues of a card.
pub const MOST_QUEUES: usize = 2;

/// How a card interrupts, and how it moderates interrupts. Times are in microseconds; 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moderation {
    /// MSI-X: interrupts for received packets and for sent ones, with a least time between two, up to
    /// [`MOST_USECS`]. QEMU's model waits at least 128 us.
    Vectors {
        /// The least time between two interrupts for received packets.
        rx_usecs: u32,
        /// The least time between two interrupts for sent packets.
        tx_usecs: u32,
    },
    /// MSI: one interrupt for all, with delays up to [`MOST_DELAY_USECS`]. A delay begins anew with each
    /// packet, and the longest one begins with the first.
    One {
        /// The delay after a received packet, and the longest one.
        rx_usecs: [u32; 2],
        /// The delay after a sent packet, and the longest one.
        tx_usecs: [u32; 2],
    },
}

impl Moderation {
    /// Returns how registers express this.
    pub(super) fn interrupts(&self) -> Interrupts {
        match *self {
            Moderation::Vectors { rx_usecs, tx_usecs } => Interrupts::vectors(rx_usecs, tx_usecs),
            Moderation::One { rx_usecs, tx_usecs } => Interrupts::one(rx_usecs, tx_usecs),
        }
    }
}

/// Options to open a card.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The card.
    pub address: PciAddress,
    /// The largest IP packet, in bytes, in [`MTU`].
    pub mtu: usize,
    /// How the card interrupts.
    pub moderation: Moderation,
    /// The number of queues, 1 or 2; with [`Moderation::One`] the card has one.
    pub queues: usize,
    /// `true` to prepare the second queue for a session that has it to itself; not with two queues or
    /// [`Moderation::One`].
    pub own_queue: bool,
    /// `true` to have the card segment large packets of TCP. QEMU 7 sends IP
    /// fragments instead.
    pub segmentation: bool,
}

impl Options {
    /// Returns the options of a card, with an MTU of 1 500 bytes, and without moderation of interrupts and
    /// segmentation.
    #[must_use]
    pub fn new(address: PciAddress) -> Options {
        let moderation = Moderation::Vectors { rx_usecs: 0, tx_usecs: 0 };
        Options { address, mtu: 1500, moderation, queues: 1, own_queue: false, segmentation: false }
    }

    /// Returns the number of queues that the card can have with these options.
    pub(super) fn queues(&self) -> usize {
        match self.moderation {
            Moderation::Vectors { .. } => self.queues.clamp(1, MOST_QUEUES),
            Moderation::One { .. } => 1,
        }
    }

    /// Returns the number of queues that interrupt, with that of a session.
    pub(super) fn hardware_queues(&self) -> usize {
        if self.check_own_queue().is_ok() { MOST_QUEUES } else { self.queues() }
    }

    /// Checks that the second queue can be a session's.
    pub(super) fn check_own_queue(&self) -> Result<(), OwnQueueError> {
        let name = self.address.to_string();
        if !self.own_queue {
            return Err(OwnQueueError::NotPrepared { name });
        }
        if self.queues() > 1 {
            return Err(OwnQueueError::Lanes { name });
        }
        if matches!(self.moderation, Moderation::One { .. }) {
            return Err(OwnQueueError::OneInterrupt { name });
        }
        Ok(())
    }
}
