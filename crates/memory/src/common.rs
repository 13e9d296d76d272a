//! Memory that several processes write, without order among them.
//!
//! Unsafe lives here because this module accesses mapped memory at addresses.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use towpath_queue::copy::{copy, copy_in_order};
use towpath_queue::ring::{FarMemory, NearMemory};

use crate::Mapping;
use crate::mapping::{prefetch, prefetch_to_write};

/// A range of mapped memory that this process, others, and any number of threads read and write.
/// There are no references into it: every access copies by [`towpath_queue::copy`], or is one
/// atomic word.
///
/// A write places its bytes in ascending order. A reader sees all or none of the new bytes of each
/// aligned word of 8 bytes that the write covers completely. A reader that sees the last word, by
/// [`CommonMemory::load`], sees everything before it.
#[derive(Clone, Debug)]
pub struct CommonMemory {
    /// The range: `len` bytes, which stay mapped as long as `mapping` lives.
    start: NonNull<u8>,
    len: usize,
    is_writable: bool,
    mapping: Arc<Mapping>,
}

// SAFETY: any thread may access the memory, by copies that tolerate others and by atomics, and its
// mapping does not move.
unsafe impl Send for CommonMemory {}
// SAFETY: as above.
unsafe impl Sync for CommonMemory {}

impl CommonMemory {
    /// Returns the memory of a mapping that has no [`Region`](crate::Region).
    pub(crate) fn new(mapping: Mapping, is_writable: bool) -> CommonMemory {
        let (start, len) = (mapping.start(), mapping.len());
        CommonMemory { start, len, is_writable, mapping: Arc::new(mapping) }
    }

    /// Returns a range of this memory; `None` if it is not inside.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<CommonMemory> {
        Some(CommonMemory { start: self.range(offset, len)?, len, ..self.clone() })
    }

    /// Returns the same memory without the right to write it.
    #[must_use]
    pub fn read_only(&self) -> CommonMemory {
        CommonMemory { is_writable: false, ..self.clone() }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if the range has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `true` if this process may write the memory.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Returns the mapping.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    #[inline]
    fn range(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: inside, as just checked, or at the end of an empty range.
        Some(unsafe { self.start.add(offset) })
    }

    /// Copies bytes out of the memory. Where others write meanwhile, old and new bytes are mixed.
    /// Returns `true` if the range lies inside; if not, copies nothing.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.range(offset, to.len()) else { return false };
        // SAFETY: `from` is mapped for the length of `to`, as just checked, and `to` is borrowed. No
        // plain access touches this memory, of which there is no `Region`.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies as [`CommonMemory::read`] does, into uninitialized memory. Writes all of it if this
    /// returns `true`, and nothing otherwise.
    #[inline]
    #[must_use]
    pub fn read_into(&self, offset: usize, to: &mut [MaybeUninit<u8>]) -> bool {
        let Some(from) = self.range(offset, to.len()) else { return false };
        // SAFETY: as in `read`.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
        true
    }

    /// Copies bytes into the memory, in ascending order. Returns `true` if this process may write
    /// it and the range lies inside; if not, copies nothing.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.range(offset, from.len()).filter(|_| self.is_writable) else {
            return false;
        };
        // SAFETY: `to` is mapped and writable for the length of `from`, as just checked, and `from` is
        // borrowed; else as in `read`.
        unsafe { copy_in_order(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Copies bytes into the memory in no particular order, faster than [`CommonMemory::write`]. The
    /// caller then stores a word that tells the reader. Returns `true` if this process may write the
    /// memory and the range lies inside; if not, copies nothing.
    #[inline]
    #[must_use]
    pub fn write_unordered(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.range(offset, from.len()).filter(|_| self.is_writable) else {
            return false;
        };
        // SAFETY: as in `write`.
        unsafe { copy(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Copies from other such memory, in ascending order. Returns `true` if this process may write
    /// this memory and both ranges lie inside; if not, copies nothing. Where the ranges overlap,
    /// the bytes are arbitrary.
    #[inline]
    #[must_use]
    pub fn copy_from(
        &self,
        offset: usize,
        from: &CommonMemory,
        from_offset: usize,
        len: usize,
    ) -> bool {
        let to = self.range(offset, len).filter(|_| self.is_writable);
        let (Some(to), Some(from)) = (to, from.range(from_offset, len)) else { return false };
        // SAFETY: both ranges are mapped for `len` bytes and `to` is writable, as just checked; no
        // plain access touches them, as in `read`.
        unsafe { copy_in_order(from.as_ptr(), to.as_ptr(), len) };
        true
    }

    /// Returns the aligned word of 8 bytes at an offset, with an acquire load: the caller sees all
    /// that the word's writer wrote before. `None` if the word is not inside or not aligned.
    #[inline]
    #[must_use]
    pub fn load(&self, offset: usize) -> Option<u64> {
        // SYNC: pairs with the release stores of `store` and of `copy_in_order`.
        self.word(offset).map(|word| word.load(Ordering::Acquire))
    }

    /// Stores an aligned word of 8 bytes, with a release store. Returns `true` if this process may
    /// write the memory, and the word is inside and aligned; if not, stores nothing.
    #[inline]
    #[must_use]
    pub fn store(&self, offset: usize, value: u64) -> bool {
        let Some(word) = self.word(offset).filter(|_| self.is_writable) else { return false };
        // SYNC: pairs with the acquire load of `load`.
        word.store(value, Ordering::Release);
        true
    }

    #[inline]
    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let start = self.range(offset, size_of::<u64>())?.cast::<AtomicU64>();
        if !start.is_aligned() {
            return None;
        }
        // SAFETY: mapped for 8 bytes and aligned, as just checked, for as long as `self` lives; an atomic,
        // so that a reference to it claims nothing about its writers.
        Some(unsafe { start.as_ref() })
    }
}

impl NearMemory for CommonMemory {
    #[inline]
    fn load(&self, offset: usize) -> u64 {
        let word = CommonMemory::load(self, offset);
        debug_assert!(word.is_some());
        word.unwrap_or(0)
    }

    #[inline]
    fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        CommonMemory::read(self, offset, to)
    }

    #[inline]
    fn prefetch(&self, offset: usize, len: usize) {
        prefetch(self.start.as_ptr().wrapping_add(offset), len);
    }
}

impl FarMemory for CommonMemory {
    #[inline]
    fn store(&mut self, offset: usize, value: u64) {
        let is_inside = CommonMemory::store(self, offset, value);
        debug_assert!(is_inside);
    }

    #[inline]
    fn write(&mut self, offset: usize, from: &[u8]) -> bool {
        self.write_unordered(offset, from)
    }

    #[inline]
    fn prefetch(&self, offset: usize, len: usize) {
        prefetch_to_write(self.start.as_ptr().wrapping_add(offset), len);
    }
}

#[cfg(test)]
mod tests {
    use crate::SharedFile;

    #[test]
    fn accesses_stay_inside_and_within_the_rights() {
        let file = SharedFile::create("test", 4096).unwrap();
        let all = file.map_common(true).unwrap();
        let reader = file.map_common(false).unwrap();
        let part = all.part(100, 28).unwrap();
        assert!(all.part(4096, 0).is_some_and(|part| part.is_empty()));
        assert!(all.part(4095, 2).is_none() && part.part(28, 1).is_none());
        assert!(part.write(3, b"abd") && !part.write(26, b"abc"));
        assert!(
            part.write_unordered(3, b"abc")
                && !part.write_unordered(26, b"abc")
                && !reader.write_unordered(0, b"a")
        );
        let mut bytes = [0; 3];
        assert!(reader.read(103, &mut bytes) && &bytes == b"abc");
        assert!(!part.read(26, &mut bytes) && !part.read(usize::MAX, &mut bytes));
        assert!(!reader.write(0, b"a") && !reader.store(0, 1) && !all.read_only().store(0, 1));
        assert!(!reader.copy_from(0, &all, 0, 1));
        assert!(all.store(8, 7) && reader.load(8) == Some(7));
        assert!(reader.load(9).is_none() && reader.load(4089).is_none());
        assert_eq!((part.load(12), part.load(8)), (Some(0), None), "by its address");
        assert!(all.copy_from(200, &reader, 103, 3) && reader.read(200, &mut bytes));
        assert_eq!(&bytes, b"abc");
        assert!(!all.copy_from(4094, &reader, 103, 3) && !all.copy_from(0, &reader, 4094, 3));
    }
}
