//! A hardware queue of a session: in the session, before and after the engine serves it, and the data that the
//! engine needs per packet while it does.

use std::sync::Arc;

use towpath_device::{DeviceQueue, Part, Registration, SpaceId};
use towpath_memory::{Mapping, PrivateFile};

/// The part of the device's memory file that holds the bounce buffers. The memory of each own queue maps it again.
#[derive(Debug)]
pub struct BounceFile {
    file: PrivateFile,
    offset: usize,
    len: usize,
}

impl BounceFile {
    pub(crate) fn new(file: PrivateFile, offset: usize, len: usize) -> BounceFile {
        BounceFile { file, offset, len }
    }

    /// Returns the part of the file, to be mapped for a device.
    pub fn part(&self) -> towpath_memory::FilePart<'_> {
        self.file.part(self.offset, self.len)
    }
}

/// A session's own queue, while no engine serves it.
pub struct OwnQueue {
    /// The hardware queue.
    pub hardware: u32,
    /// The queue of the device.
    pub queue: Box<dyn DeviceQueue>,
    /// The registration of its memory.
    pub registration: Registration,
    /// Its memory.
    pub memory: Arc<Mapping>,
    /// The offsets of the session's transmit buffers and of the bounce buffers in it.
    pub offsets: Offsets,
    /// The most parts of a packet that the device sends in place.
    pub parts: usize,
}

impl std::fmt::Debug for OwnQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnQueue").field("hardware", &self.hardware).finish_non_exhaustive()
    }
}

/// Offsets in the memory of a session's own queue. The receive buffers begin at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The session's transmit buffers.
    pub transmit: u32,
    /// The bounce buffers.
    pub bounce: u32,
}

/// The data that the engine needs per packet of a session's own queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPlace {
    /// The queue's index among those of the port.
    pub(crate) number: usize,
    /// The data space of its memory.
    pub(crate) space: SpaceId,
    pub(crate) offsets: Offsets,
    /// The most parts of a packet that the device sends in place.
    pub(crate) parts: usize,
}

impl OwnPlace {
    /// Returns bytes of a bounce buffer as a part to send.
    #[inline]
    pub(crate) fn bounce_part(&self, offset: u32, len: u32) -> Part {
        Part { space: self.space, offset: self.offsets.bounce + offset, len }
    }
}

/// A session's hardware queue of its own, if it has one.
#[derive(Debug, Default)]
pub enum Own {
    /// It has none.
    #[default]
    None,
    /// The queue is in the session: before the engine serves it, or after.
    Queue(Box<OwnQueue>),
    /// The engine serves the queue.
    Served(OwnPlace),
}

impl Own {
    /// Returns the queue's data, if the engine serves it.
    #[inline]
    pub(crate) fn place(&self) -> Option<OwnPlace> {
        match self {
            Own::Served(place) => Some(*place),
            Own::None | Own::Queue(_) => None,
        }
    }

    /// Takes the queue that is in the session.
    pub(crate) fn take_queue(&mut self) -> Option<Box<OwnQueue>> {
        match std::mem::take(self) {
            Own::Queue(queue) => Some(queue),
            other => {
                *self = other;
                None
            }
        }
    }
}
