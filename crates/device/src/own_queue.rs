//! Hardware queues that sessions have to themselves.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use towpath_memory::Mapping;

use crate::HardwareQueue;
use crate::dma::Registration;
use crate::error::DeviceError;
use crate::queue::DeviceQueue;

/// What a device can give a session to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnQueueLimits {
    /// The hardware queues, by number.
    pub queues: Range<u32>,
    /// The distance from the start of one of the session's receive buffers to the start of the
    /// next, in bytes.
    pub buffer_bytes: RangeInclusive<u32>,
    /// `true` if the device cannot choose packets by their flows: a queue receives nothing, or, once
    /// [`Device::direct`](crate::Device::direct) says so, all packets. So a session receives with it only while
    /// it is alone.
    pub takes_all: bool,
}

/// The reason why a device gives no session a hardware queue, with the remedy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OwnQueueError {
    /// The driver has no such queues.
    #[error(
        "{name} gives sessions no own queues: only the drivers xdp and, for an Intel 82574L, pci do; attach \
         without"
    )]
    Unsupported {
        /// The interface.
        name: String,
    },
    /// A wrapper around the driver, for faults or captures, has no such queues.
    #[error(
        "{name} gives sessions no own queues with --fault or --pcap; ask the administrator to start the \
         server without"
    )]
    Wrapped {
        /// The interface.
        name: String,
    },
    /// The device was opened without them, so its memory is not prepared.
    #[error(
        "the server of {name} was started without own queues; ask the administrator to name some in a \
         grant (own-queues) and to restart the server"
    )]
    NotPrepared {
        /// The interface.
        name: String,
    },
    /// The kernel receives nothing, and so the flow filter is not there.
    #[error(
        "{name} gives sessions no own queues with the option exclusive; ask the administrator to serve \
         it without"
    )]
    Exclusive {
        /// The interface.
        name: String,
    },
    /// The card has one interrupt for all of its queues.
    #[error(
        "{name} gives sessions no own queues with interrupts=msi; ask the administrator to serve it without"
    )]
    OneInterrupt {
        /// The card.
        name: String,
    },
    /// Several engine threads serve the hardware queues.
    #[error(
        "{name} gives sessions own queues with one engine thread only; ask the administrator to start \
         the server without --lanes"
    )]
    Lanes {
        /// The interface.
        name: String,
    },
    /// Sent packets have metadata in front, which those of such a queue have not.
    #[error(
        "{name} gives sessions no own queues with the option tx-checksum; ask the administrator to serve \
         it without"
    )]
    TxChecksum {
        /// The interface.
        name: String,
    },
    /// The server needs all hardware queues.
    #[error(
        "the server keeps the first {kept} of the {queues} hardware queues of {name}; ask the \
         administrator for more (ethtool -L {name} combined N) and to restart the server"
    )]
    TooFewQueues {
        /// The interface.
        name: String,
        /// Its hardware queues.
        queues: u32,
        /// The first of them, which are the server's.
        kept: u32,
    },
    /// The sockets of a server without CAP_NET_RAW are used up.
    #[error(
        "the server of {name} gave up CAP_NET_RAW, and has no sockets left for own queues; ask the \
         administrator to restart it"
    )]
    NoSockets {
        /// The interface.
        name: String,
    },
    /// The hardware writes into memory by itself.
    #[error(
        "{name} works without copies (zero-copy), for which own queues are not tested; ask the \
         administrator to serve it as xdp:{name},copy"
    )]
    ZeroCopy {
        /// The interface.
        name: String,
    },
}

/// The memory of a queue of a session's own: the session's receive buffers at the front, and behind
/// them what the session and the server send from.
#[derive(Clone, Debug)]
pub struct OwnMemory {
    /// The memory, writable for the kernel.
    pub mapping: Arc<Mapping>,
    /// The distance from the start of one receive buffer to the start of the next, in bytes.
    pub buffer_bytes: u32,
    /// The number of receive buffers.
    pub buffers: u32,
}

/// Opens hardware queues for sessions, and takes them back. Each call waits for the kernel: for an
/// RCU grace period, and to pin memory.
pub trait OwnQueues: Send {
    /// Opens a hardware queue for one session, over that session's memory.
    /// [`DeviceQueue::cede`](crate::DeviceQueue::cede) returned it. From now on, it receives the
    /// packets of the flows that [`Device::own_flow`](crate::Device::own_flow) gave its owner; the
    /// device drops and counts those of other flows, and the kernel receives its own.
    ///
    /// # Errors
    /// When the kernel refuses. Then [`OwnQueues::take_back`] follows.
    fn open(&self, ceded: HardwareQueue, memory: &OwnMemory)
    -> Result<OpenedOwnQueue, DeviceError>;

    /// Makes a ceded hardware queue, whose owner's queue was dropped or did not open, ready for
    /// [`DeviceQueue::restore`](crate::DeviceQueue::restore).
    ///
    /// # Errors
    /// When the kernel refuses.
    fn take_back(&self, hardware: u32) -> Result<HardwareQueue, DeviceError>;
}

/// A session's own queue, the registration of its memory, and the most parts of a packet to send.
pub type OpenedOwnQueue = (Box<dyn DeviceQueue>, Registration, usize);
