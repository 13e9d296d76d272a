//! The length of a ring, and the places of its bytes.

pub(crate) const CONSUMED: usize = 0;
pub(super) const SENT: usize = 64;
pub(crate) const WANTED: usize = 128;
pub(crate) const DATA: usize = 256;

pub(super) const HEADER_BYTES: u64 = 8;
/// A header, and the zero behind the message.
pub(super) const FRAMING_BYTES: u64 = 2 * HEADER_BYTES;

/// How many bytes a sender puts into a batch before it publishes: at most this, and an eighth of
/// the ring.
const BATCH_BYTES: u64 = 4096;
/// The length of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    pub(super) bytes: u64,
}

impl RingShape {
    /// Returns the shape of a ring of `bytes` bytes: a power of two from 64 to 2^29. Returns `None`
    /// for any other length.
    #[must_use]
    pub const fn new(bytes: usize) -> Option<RingShape> {
        if bytes.is_power_of_two() && bytes >= 64 && bytes <= 1 << 29 {
            Some(RingShape { bytes: bytes as u64 })
        } else {
            None
        }
    }

    /// Returns the shape of the ring in a memory of `bytes` bytes; `None` if no ring has that
    /// length.
    #[must_use]
    pub const fn in_memory(bytes: usize) -> Option<RingShape> {
        match bytes.checked_sub(DATA) {
            Some(bytes) => RingShape::new(bytes),
            None => None,
        }
    }

    /// Returns how many bytes of memory the ring takes.
    #[must_use]
    pub const fn memory_bytes(self) -> usize {
        DATA + self.bytes as usize
    }

    /// Returns the length in bytes of the longest message.
    #[must_use]
    pub const fn max_message(self) -> usize {
        (self.bytes - FRAMING_BYTES) as usize
    }

    /// Returns the offsets of the words that must be zero in new memory.
    #[must_use]
    pub const fn zeros() -> [usize; 4] {
        [CONSUMED, SENT, WANTED, DATA]
    }

    #[inline]
    pub(super) fn offset(self, position: u64) -> usize {
        DATA + (position & (self.bytes - 1)) as usize
    }

    /// Returns after how many bytes a sender publishes.
    #[inline]
    pub(super) fn batch_bytes(self) -> u64 {
        BATCH_BYTES.min(self.bytes / 8)
    }

    /// Returns how many bytes lie between an offset and the ring's end.
    #[inline]
    pub(super) fn bytes_to_end(self, offset: usize) -> usize {
        self.memory_bytes() - offset
    }
}
