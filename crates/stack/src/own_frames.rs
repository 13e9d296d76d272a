//! Frames from this host to itself: they never reach the link.

use std::collections::VecDeque;

use crate::Meta;

/// The most bytes that may wait. A longer frame may wait only without others.
const LIMIT_BYTES: usize = 1 << 18;
/// The number of free buffers to keep.
const SPARE_BUFFERS: usize = 4;

/// Frames that this host has sent to itself and not received yet.
pub(crate) struct OwnFrames {
    queue: VecDeque<(Vec<u8>, Meta)>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl OwnFrames {
    pub(crate) fn new() -> OwnFrames {
        OwnFrames { queue: VecDeque::new(), bytes: 0, spare: Vec::new() }
    }

    /// Returns `true` if a frame of `len` bytes may be added.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.queue.is_empty() || self.bytes + len <= LIMIT_BYTES
    }

    /// Appends a frame of `len` bytes, which `write` fills.
    pub(crate) fn push(&mut self, len: usize, meta: Meta, write: impl FnOnce(&mut [u8])) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(len, 0);
        write(&mut bytes);
        self.bytes += len;
        self.queue.push_back((bytes, meta));
    }

    /// Removes the oldest frame.
    pub(crate) fn pop(&mut self) -> Option<(Vec<u8>, Meta)> {
        let (bytes, meta) = self.queue.pop_front()?;
        self.bytes -= bytes.len();
        Some((bytes, meta))
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(buffer);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}
