//! The packets that a driver took from its device and has yet to deliver.

use std::any::Any;

use towpath_device::Received;

use crate::packet::Packet;
use crate::reader::Readers;

/// The payload of a panic of the program's function.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The packets that a driver took from the device.
pub(crate) struct Reception {
    pub(crate) received: Vec<Received>,
    /// The first of `received` that no caller has.
    pub(crate) next: usize,
    /// The packet that a thread is receiving.
    pub(crate) packet: Packet,
    pub(crate) readers: Option<Readers>,
    /// A panic of the function that chooses readers.
    pub(crate) panic: Option<Panic>,
}

impl Reception {
    /// Creates memory for so many buffers of a batch, and for a packet of up to `bytes` bytes.
    pub(crate) fn new(buffers: usize, bytes: usize) -> Reception {
        Reception {
            received: Vec::with_capacity(buffers),
            next: 0,
            packet: Packet::with_capacity(bytes),
            readers: None,
            panic: None,
        }
    }

    /// `true` if callers have all packets.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.received.len()
    }
}
