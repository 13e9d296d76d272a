//! The memory of all connections' buffers: blocks of one size, taken when data arrives and given
//! back when it is read or acknowledged. A connection without data holds none.
//!
//! Blocks come from slabs. Always taking a block of the first slab that has one keeps the last
//! slabs empty, so that their memory can be given back to the system.

use crate::Instant;

/// The size of a block.
pub(super) const BLOCK_BYTES: usize = 4096;
const SLAB_BLOCKS: usize = 64;
const WORD: usize = 64;
/// The time between two checks for unused slabs. The pool frees an unused slab at the second check
/// at the latest.
const TIDY: std::time::Duration = std::time::Duration::from_secs(3);
/// The number of slabs that are kept.
const KEPT: usize = 1;

/// Names a block.
pub(super) type BlockId = u32;

struct Slab {
    /// Allocated on first use.
    bytes: Option<Box<[u8]>>,
    /// A bit per free block.
    free: u64,
}

/// See the module.
pub(super) struct Pool {
    slabs: Vec<Slab>,
    /// A bit per slab with a free block.
    roomy: Vec<u64>,
    used: usize,
    /// The largest `used` since the last check for unused slabs.
    peak: usize,
    limit: usize,
    tidy_at: Option<Instant>,
}

impl Pool {
    /// Creates a pool of at most `limit_bytes`.
    pub(super) fn new(limit_bytes: usize) -> Pool {
        let limit = (limit_bytes / BLOCK_BYTES).max(1);
        Pool { slabs: Vec::new(), roomy: Vec::new(), used: 0, peak: 0, limit, tidy_at: None }
    }

    /// Takes a block, whose content is arbitrary. Returns `None` at the limit.
    pub(super) fn take(&mut self) -> Option<BlockId> {
        if self.used >= self.limit {
            return None;
        }
        let word = self.roomy.iter().position(|&word| word != 0);
        let first = word.map_or(self.slabs.len(), |word| {
            word * WORD + self.roomy[word].trailing_zeros() as usize
        });
        if first == self.slabs.len() {
            self.slabs.push(Slab { bytes: None, free: u64::MAX });
            self.roomy.resize(self.slabs.len().div_ceil(WORD), 0);
            self.roomy[first / WORD] |= 1 << (first % WORD);
        }
        let slab = &mut self.slabs[first];
        if slab.bytes.is_none() {
            // The allocator gets such large memory from the system, which zeroes each page at its
            // first use.
            slab.bytes = Some(vec![0; SLAB_BLOCKS * BLOCK_BYTES].into_boxed_slice());
        }
        let at = slab.free.trailing_zeros();
        slab.free &= slab.free - 1;
        if slab.free == 0 {
            self.roomy[first / WORD] &= !(1 << (first % WORD));
        }
        self.used += 1;
        self.peak = self.peak.max(self.used);
        Some((first * SLAB_BLOCKS) as u32 + at)
    }

    /// Gives a block back.
    pub(super) fn give(&mut self, id: BlockId) {
        let (slab, at) = place(id);
        self.slabs[slab].free |= 1 << at;
        self.roomy[slab / WORD] |= 1 << (slab % WORD);
        self.used -= 1;
    }

    pub(super) fn bytes(&self, id: BlockId) -> &[u8] {
        let (slab, at) = place(id);
        let bytes = self.slabs[slab].bytes.as_deref().unwrap_or_default();
        &bytes[at * BLOCK_BYTES..][..BLOCK_BYTES]
    }

    pub(super) fn bytes_mut(&mut self, id: BlockId) -> &mut [u8] {
        let (slab, at) = place(id);
        let bytes = self.slabs[slab].bytes.as_deref_mut().unwrap_or_default();
        &mut bytes[at * BLOCK_BYTES..][..BLOCK_BYTES]
    }

    /// Returns `true` if a block is free.
    pub(super) fn has_room(&self) -> bool {
        self.used < self.limit
    }

    /// Returns `true` while at least a quarter of the limit is free: buffers may grow.
    pub(super) fn is_roomy(&self) -> bool {
        self.used < self.limit - self.limit / 4
    }

    /// Returns the number of bytes in used blocks, and of allocated memory.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let allocated = self.slabs.iter().filter(|slab| slab.bytes.is_some()).count();
        (self.used * BLOCK_BYTES, allocated * SLAB_BLOCKS * BLOCK_BYTES)
    }

    /// Returns when to call [`Pool::tidy`].
    pub(super) fn tidy_at(&self) -> Option<Instant> {
        self.tidy_at
    }

    /// Gives slabs back that were not needed since the last call, if it is time.
    pub(super) fn tidy(&mut self, now: Instant) {
        let Some(at) = self.tidy_at else {
            if self.slabs.len() > KEPT {
                self.tidy_at = Some(now + TIDY);
            }
            return;
        };
        if now < at {
            return;
        }
        let needed = self.peak.div_ceil(SLAB_BLOCKS).max(KEPT);
        self.peak = self.used;
        let is_unused = |slab: &Slab| slab.free == u64::MAX;
        for slab in self.slabs.iter_mut().skip(needed).filter(|slab| is_unused(slab)) {
            slab.bytes = None;
        }
        while self.slabs.len() > needed && self.slabs.last().is_some_and(is_unused) {
            self.slabs.pop();
        }
        self.slabs.shrink_to(self.slabs.len() * 2);
        self.roomy.truncate(self.slabs.len().div_ceil(WORD));
        if let Some(last) = self.roomy.last_mut()
            && !self.slabs.len().is_multiple_of(WORD)
        {
            *last &= (1 << (self.slabs.len() % WORD)) - 1;
        }
        self.tidy_at = (self.slabs.len() > KEPT).then(|| now + TIDY);
    }
}

fn place(id: BlockId) -> (usize, usize) {
    (id as usize / SLAB_BLOCKS, id as usize % SLAB_BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_reused_and_given_back() {
        let mut pool = Pool::new(1000 * BLOCK_BYTES);
        let mut now = Instant::ZERO;
        let blocks: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(blocks.len(), 1000);
        assert!(!pool.is_roomy());
        assert_eq!(pool.sizes(), (1000 * BLOCK_BYTES, 16 * SLAB_BLOCKS * BLOCK_BYTES));
        pool.bytes_mut(blocks[999])[BLOCK_BYTES - 1] = 7;
        assert_eq!(pool.bytes(blocks[999])[BLOCK_BYTES - 1], 7);
        pool.tidy(now);
        for &block in &blocks {
            pool.give(block);
        }
        // The last block in use keeps its slab alone.
        let first = pool.take().unwrap();
        assert_eq!(first, blocks[0], "the first slab comes first");
        let mut rounds = 0;
        while let Some(at) = pool.tidy_at() {
            now = at;
            pool.tidy(now);
            rounds += 1;
        }
        assert!(rounds <= 3, "{rounds}");
        assert_eq!(pool.sizes(), (BLOCK_BYTES, SLAB_BLOCKS * BLOCK_BYTES));
        assert!(pool.take().is_some() && pool.is_roomy());
    }
}
