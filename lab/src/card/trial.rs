//! The words that the host and the guest exchange: who receives, what is sent, and what was counted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::styles::Style;

/// A way from the card to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Way {
    /// No receiver: the packets are for an address that no card has.
    Alone,
    /// The kernel's driver, and a packet socket with rings in shared memory.
    Kernel,
    /// DPDK's em driver in testpmd.
    Testpmd,
    /// Towpath's driver in the program itself.
    Linked,
    /// A driver server whose engine sleeps between packets, and an application.
    Served,
    /// A driver server whose engine chooses its wait strategy, and an application.
    ServedAuto,
    /// Another driver's process and an application, in an older way.
    Older(Style),
}

impl Way {
    /// Returns the words of a report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Alone => "no receiver",
            Way::Kernel => "kernel driver, AF_PACKET",
            Way::Testpmd => "DPDK testpmd",
            Way::Linked => "Towpath linked",
            Way::Served => "Towpath server",
            Way::ServedAuto => "Towpath server, wait=auto",
            Way::Older(style) => style.name(),
        }
    }

    /// `true` if the programs count their messages and notifications.
    pub(super) fn counts_ipcs(self) -> bool {
        matches!(self, Way::Served | Way::ServedAuto | Way::Older(_))
    }

    /// `true` if packets that wait cost as much as others: one burst is enough.
    pub(super) fn is_unbatched(self) -> bool {
        matches!(self, Way::Older(style) if style.answers_each())
    }
}

/// Receives from a card, and counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Receiver {
    /// On a packet socket.
    Kernel {
        /// The interface, and its address.
        interface: String,
        mac: [u8; 6],
    },
    /// On a card that the process drives.
    Linked {
        /// The card.
        address: String,
        rx_usecs: u32,
    },
    /// On a session.
    Served {
        /// The server's socket.
        socket: PathBuf,
    },
    /// Of a driver's process, in an older way.
    Older {
        style: Style,
        /// The card.
        address: String,
        rx_usecs: u32,
    },
}

/// The pace of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Load {
    /// Bursts, so that packets wait until the receiver has taken all.
    Saturated,
    /// So many packets per second, evenly.
    PerSecond(u32),
}

/// How much is sent in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Amount {
    /// Bursts, where packets wait for the receiver.
    pub(super) bursts: usize,
    /// Packets at a fixed rate.
    pub(super) paced: u32,
}

/// What is sent in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Shape {
    /// `true` if the receiver sends each packet back.
    pub(super) is_back: bool,
    pub(super) bytes: usize,
    pub(super) load: Load,
}

/// What was counted in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trial {
    pub(super) way: Way,
    pub(super) shape: Shape,
    pub(super) round: usize,
    pub(super) sent: u64,
    /// Packets that the receiver took; of those that go back, packets that came back.
    pub(super) received: u64,
    /// The instructions of the whole system, and of the sender for packets that came back.
    pub(super) instructions: u64,
    pub(super) own_instructions: u64,
    /// Writes of the sender's registers.
    pub(super) own_writes: u64,
    /// Messages and notifications between the programs, of those that count them.
    pub(super) ipcs: Option<u64>,
    /// Times that a thread of the receiver's processes slept and was woken.
    pub(super) wake_ups: u64,
    /// testpmd's own count of its instructions while it had packets.
    pub(super) busy_instructions: Option<u64>,
}

/// Sends to all receivers of a guest in turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The sender's card.
    pub(super) sender: String,
    pub(super) testpmd: Option<Testpmd>,
    pub(super) receivers: Vec<(Way, Receiver)>,
    pub(super) shapes: Vec<Shape>,
    pub(super) amount: Amount,
    pub(super) rounds: usize,
    /// The file for the trials, and that for the reason why testpmd does not run.
    pub(super) out: PathBuf,
    pub(super) missing: PathBuf,
}

/// How to start testpmd in the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Testpmd {
    pub(super) card: String,
    /// Its drivers.
    pub(super) drivers: Vec<PathBuf>,
    /// The card's address.
    pub(super) mac: [u8; 6],
}
