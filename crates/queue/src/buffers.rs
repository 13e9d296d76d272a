//! Buffers: the side that holds each buffer, and the buffer to use next.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Violation;
use crate::word::OwnWords;

/// The ledger of a pool: one bit per buffer, set while the server holds the buffer. The server
/// writes the ledger into memory that can outlive the server.
#[derive(Debug)]
pub struct BufferLedger {
    words: OwnWords,
    buffers: u32,
}

impl BufferLedger {
    /// Returns how many words the ledger of a pool takes.
    #[must_use]
    pub const fn words_for(buffers: u32) -> usize {
        buffers.div_ceil(64) as usize
    }

    /// Takes over ledger words, which a predecessor left or which are zero.
    ///
    /// # Panics
    /// When there are too few words: a mistake in the layout.
    #[must_use]
    pub fn new(words: OwnWords, buffers: u32) -> BufferLedger {
        assert!(words.len() >= Self::words_for(buffers), "a ledger smaller than its pool");
        BufferLedger { words, buffers }
    }

    /// Clears the ledger: a successor rebuilds it from the queues ([`crate::transmit`],
    /// [`crate::receive`]), which are authoritative after a crash.
    pub fn clear(&mut self) {
        for index in 0..Self::words_for(self.buffers) {
            self.words.store(index, 0);
        }
    }

    /// Records that the application handed the buffer over to the server.
    ///
    /// # Errors
    /// [`Violation::Buffer`] when there is no such buffer, [`Violation::Ownership`] when the server
    /// already holds it.
    #[inline]
    pub fn take(&mut self, buffer: u32) -> Result<(), Violation> {
        if buffer >= self.buffers {
            return Err(Violation::Buffer);
        }
        let (index, bit) = (buffer as usize / 64, 1u64 << (buffer % 64));
        let word = self.words.get(index);
        if word & bit != 0 {
            return Err(Violation::Ownership);
        }
        self.words.store(index, word | bit);
        Ok(())
    }

    /// Takes buffers one after the other, as [`BufferLedger::take`] does. Buffers of one word that follow
    /// each other share one store of that word.
    #[inline]
    pub(crate) fn taking(&mut self) -> Taking<'_> {
        Taking { index: 0, word: self.words.get(0), ledger: self }
    }

    /// Releases the server's buffers, in this order. Buffers of one word that follow each other
    /// share one store of that word.
    #[inline]
    pub fn release_all(&mut self, buffers: impl Iterator<Item = u32>) {
        let (mut at, mut word) = (0, self.words.get(0));
        for buffer in buffers {
            let (index, bit) = (buffer as usize / 64, 1u64 << (buffer % 64));
            if index != at {
                self.words.store(at, word);
                (at, word) = (index, self.words.get(index));
            }
            debug_assert!(word & bit != 0, "a released buffer that the server does not hold");
            word &= !bit;
        }
        self.words.store(at, word);
    }

    /// Releases one of the server's buffers.
    #[inline]
    pub fn release(&mut self, buffer: u32) {
        self.release_all(core::iter::once(buffer));
    }

    /// `true` if the server holds the buffer.
    #[must_use]
    pub fn holds(&self, buffer: u32) -> bool {
        buffer < self.buffers && self.words.get(buffer as usize / 64) >> (buffer % 64) & 1 != 0
    }

    /// Returns how many buffers the server holds.
    #[must_use]
    pub fn held(&self) -> u32 {
        (0..Self::words_for(self.buffers)).map(|index| self.words.get(index).count_ones()).sum()
    }
}

/// The taking of several buffers. The ledger has all of them once this value is dropped.
pub(crate) struct Taking<'a> {
    ledger: &'a mut BufferLedger,
    /// The word that holds the bit of the buffer taken last, with its value.
    index: usize,
    word: u64,
}

impl Taking<'_> {
    /// Takes one buffer, as [`BufferLedger::take`] does.
    #[inline]
    pub(crate) fn take(&mut self, buffer: u32) -> Result<(), Violation> {
        if buffer >= self.ledger.buffers {
            return Err(Violation::Buffer);
        }
        let (index, bit) = (buffer as usize / 64, 1u64 << (buffer % 64));
        if index != self.index {
            self.ledger.words.store(self.index, self.word);
            (self.index, self.word) = (index, self.ledger.words.get(index));
        }
        if self.word & bit != 0 {
            return Err(Violation::Ownership);
        }
        self.word |= bit;
        Ok(())
    }
}

impl Drop for Taking<'_> {
    #[inline]
    fn drop(&mut self) {
        self.ledger.words.store(self.index, self.word);
    }
}

/// A side's free buffers, last in, first out: the buffer released last is most likely still in
/// cache. Needs neither the other side nor a system call (Tracey and Banerji's per-domain
/// allocators).
#[derive(Clone, Debug)]
pub struct FreeBuffers {
    stack: Vec<u32>,
    limit: usize,
}

impl FreeBuffers {
    /// Creates a list of the buffers `from` to `to`, the lowest to be used first.
    #[must_use]
    pub fn new(from: u32, to: u32) -> FreeBuffers {
        let stack: Vec<u32> = (from..to).rev().collect();
        FreeBuffers { limit: stack.len(), stack }
    }

    /// Creates an empty list with room for `limit`.
    #[must_use]
    pub fn with_room(limit: usize) -> FreeBuffers {
        FreeBuffers { stack: Vec::with_capacity(limit), limit }
    }

    /// Returns how many buffers are free.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.stack.len()
    }

    /// `true` if no buffer is free.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stack.is_empty()
    }

    /// Takes the buffer released last.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.stack.pop()
    }

    /// Returns the buffer that [`FreeBuffers::take`] will return after `ahead` others, if none is
    /// released meanwhile.
    #[inline]
    #[must_use]
    pub fn next(&self, ahead: usize) -> Option<u32> {
        let place = self.stack.len().checked_sub(ahead + 1)?;
        self.stack.get(place).copied()
    }

    /// Releases a buffer.
    ///
    /// # Panics
    /// When the caller releases more buffers than there are. It released one twice, and to continue
    /// would give one buffer to two packets.
    #[inline]
    pub fn release(&mut self, buffer: u32) {
        assert!(self.stack.len() < self.limit, "a buffer released twice");
        self.stack.push(buffer);
    }

    /// Takes the `count` buffers released last, of which there are as many, the latest first.
    #[inline]
    pub(crate) fn take_all(&mut self, count: usize) -> impl Iterator<Item = u32> + '_ {
        self.stack.drain(self.stack.len() - count..).rev()
    }

    /// Releases buffers.
    ///
    /// # Panics
    /// As [`FreeBuffers::release`].
    #[inline]
    pub fn release_all(&mut self, buffers: impl ExactSizeIterator<Item = u32>) {
        assert!(buffers.len() <= self.limit - self.stack.len(), "a buffer released twice");
        self.stack.extend(buffers);
    }

    /// Returns the free buffers, in no particular order.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.stack
    }
}

/// The buffer in each slot of a queue, for the side that put it there.
#[derive(Debug)]
pub(crate) struct Slots {
    buffers: Box<[u32]>,
}

impl Slots {
    pub(crate) fn new(capacity: u32) -> Slots {
        Slots { buffers: alloc::vec![0; capacity as usize].into_boxed_slice() }
    }

    #[inline]
    pub(crate) fn set(&mut self, index: u32, buffer: u32) {
        let slot = index as usize & (self.buffers.len() - 1);
        self.buffers[slot] = buffer;
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> u32 {
        self.buffers[index as usize & (self.buffers.len() - 1)]
    }

    /// Returns the range of the slots from `index` on: at most `count`, and only up to the end of
    /// the queue's memory.
    #[inline]
    fn range(&self, index: u32, count: u32) -> core::ops::Range<usize> {
        let slot = index as usize & (self.buffers.len() - 1);
        slot..self.buffers.len().min(slot + count as usize)
    }

    /// Returns the buffers in the slots from `index` on: at most `count`, and only up to the end of
    /// the queue's memory.
    #[inline]
    pub(crate) fn run(&self, index: u32, count: u32) -> &[u32] {
        &self.buffers[self.range(index, count)]
    }

    /// Returns the same slots, to be filled.
    #[inline]
    pub(crate) fn run_mut(&mut self, index: u32, count: u32) -> &mut [u32] {
        let range = self.range(index, count);
        &mut self.buffers[range]
    }

    /// Releases the buffers in `count` slots from `index` on.
    #[inline]
    pub(crate) fn release(&self, ledger: &mut BufferLedger, index: u32, count: u32) {
        let first = self.run(index, count);
        ledger.release_all(first.iter().copied());
        let left = count - first.len() as u32;
        if left > 0 {
            // They go on at the start of the queue's memory.
            let rest = self.run(index.wrapping_add(first.len() as u32), left);
            ledger.release_all(rest.iter().copied());
        }
    }
}
