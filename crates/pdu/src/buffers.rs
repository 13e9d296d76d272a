//! Reassembly memory for PDUs: a bounded number of bytes, kept for the next PDU.

use crate::format::MAX_PDU_BYTES;

/// The smallest buffer; each class is twice the one before.
const SMALLEST_BYTES: usize = 256;
const CLASSES: usize = 9;
const _: () = assert!(SMALLEST_BYTES << (CLASSES - 1) == MAX_PDU_BYTES);

/// Buffers of nine sizes. They are reused before new memory is allocated, so a steady mix of PDUs
/// allocates nothing.
#[derive(Debug)]
pub(crate) struct Buffers {
    free: [Vec<Box<[u8]>>; CLASSES],
    /// Bytes of all buffers, free or not.
    held: usize,
    limit: usize,
}

fn class(len: usize) -> usize {
    (0..CLASSES - 1).find(|class| len <= SMALLEST_BYTES << class).unwrap_or(CLASSES - 1)
}

impl Buffers {
    pub(crate) fn new(limit_bytes: usize) -> Buffers {
        Buffers { free: Default::default(), held: 0, limit: limit_bytes }
    }

    /// Returns `true` if the limit allows a buffer for a PDU of `len` bytes, in addition to those
    /// in use.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let bytes = |class: usize| SMALLEST_BYTES << class;
        let free = |class: usize| self.free[class].len() * bytes(class);
        let taken = self.held - (0..CLASSES).map(free).sum::<usize>();
        let class = class(len);
        !self.free[class].is_empty() || taken + bytes(class) <= self.limit
    }

    /// Takes a buffer for a PDU of `len` bytes, with arbitrary content. The caller has checked for
    /// room with [`Buffers::has_room`].
    pub(crate) fn take(&mut self, len: usize) -> Box<[u8]> {
        let class = class(len);
        if let Some(buffer) = self.free[class].pop() {
            return buffer;
        }
        let bytes = SMALLEST_BYTES << class;
        // Drops free buffers of other sizes to make room, the largest first.
        while self.held + bytes > self.limit
            && let Some(other) = self.free.iter_mut().rev().find_map(Vec::pop)
        {
            self.held -= other.len();
        }
        self.held += bytes;
        vec![0; bytes].into_boxed_slice()
    }

    pub(crate) fn release(&mut self, buffer: Box<[u8]>) {
        self.free[class(buffer.len())].push(buffer);
    }

    /// Returns the bytes of all buffers, free or not.
    pub(crate) fn held(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_bounded_and_reused() {
        let mut buffers = Buffers::new(3 * MAX_PDU_BYTES);
        let mut taken: Vec<_> = (0..3).map(|_| buffers.take(MAX_PDU_BYTES)).collect();
        assert!(!buffers.has_room(1));
        let address = taken[2].as_ptr();
        buffers.release(taken.pop().unwrap());
        assert!(buffers.has_room(1) && buffers.has_room(MAX_PDU_BYTES));
        let again = buffers.take(40_000);
        assert_eq!(again.as_ptr(), address);
        // The first two are free now; one of them makes room for small ones.
        taken.into_iter().for_each(|buffer| buffers.release(buffer));
        let mut small = Vec::new();
        while buffers.has_room(4096) {
            small.push(buffers.take(4096));
            assert!(buffers.held() <= 3 * MAX_PDU_BYTES);
        }
        assert_eq!(small.len(), 2 * MAX_PDU_BYTES / 4096);
        assert_eq!(buffers.held(), 3 * MAX_PDU_BYTES);
        for (len, bytes) in [(0, 256), (256, 256), (257, 512), (4097, 8192), (65_536, 65_536)] {
            assert_eq!(Buffers::new(MAX_PDU_BYTES).take(len).len(), bytes);
        }
    }
}
