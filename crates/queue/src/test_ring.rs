//! Memory of a ring, for tests.

use crate::ring::{FarMemory, NearMemory};
use crate::word::{OwnWords, PeerWords};

/// A ring's memory on the side that reads it, and on the side that writes it.
pub(crate) struct RingNear(pub(crate) PeerWords);
pub(crate) struct RingFar(pub(crate) OwnWords);

impl NearMemory for RingNear {
    fn load(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8));
        self.0.observe(offset / 8)
    }

    fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        self.0.fetch_bytes(offset, to)
    }

    fn prefetch(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.0.len() * 8);
    }
}

impl FarMemory for RingFar {
    fn store(&mut self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8));
        self.0.publish(offset / 8, value);
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> bool {
        for (at, byte) in (offset..).zip(from) {
            let shift = at % 8 * 8;
            let word = self.0.get(at / 8) & !(0xff << shift) | u64::from(*byte) << shift;
            self.0.store(at / 8, word);
        }
        true
    }

    fn prefetch(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.0.len() * 8);
    }
}
