//! The right to write mapped memory.
//!
//! Unsafe lives here because this side writes memory that a peer or another thread may be reading.
//! It writes by the queue crate's copy and atomics, at addresses.

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::Advice;
use towpath_queue::copy::copy;

#[cfg(target_arch = "x86_64")]
use crate::mapping::prefetch_to_write;
use crate::{FilePart, Mapping, PAGE_BYTES, SharedFile};

/// The right to write a range of a mapping. No two regions of one mapping overlap, a region cannot
/// be cloned, and only `&mut self` writes it. So a range has one writer at a time in this process.
/// Any number of threads may read at the same time, through [`Region::mapping`], since both sides
/// copy by atomics.
///
/// A region moves between threads, and threads do not share it:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>(_: T) {}
/// shared(towpath_memory::Region::private(64).unwrap());
/// ```
///
/// A reader cannot write:
///
/// ```compile_fail,E0596
/// let region = towpath_memory::Region::private(64).unwrap();
/// let reader = &region;
/// reader.copy_in(0, b"written");
/// ```
///
/// Borrowed bytes do not change:
///
/// ```compile_fail,E0502
/// let mut region = towpath_memory::Region::private(64).unwrap();
/// let bytes = region.bytes(0, 8).unwrap();
/// region.copy_in(0, b"written");
/// assert_eq!(bytes, [0; 8]);
/// ```
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// The region's offset in the mapping.
    offset: usize,
    /// `true` if this process alone can write the memory, by this mapping alone.
    private: bool,
    mapping: Arc<Mapping>,
    /// Makes the region not `Sync`, whatever the other fields are.
    _one_thread: PhantomData<*mut u8>,
}

/// The file of a private region, which leads to no other writer.
#[derive(Debug)]
pub struct PrivateFile {
    file: SharedFile,
}

impl PrivateFile {
    /// Returns a part of the file, to be mapped for a device.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> FilePart<'_> {
        FilePart { file: &self.file, offset, len }
    }
}

// SAFETY: a region is an address range of the process, not of a thread; only its owner writes it.
unsafe impl Send for Region {}

// This fails to compile if a region is `Sync`: then both implementations apply, and the compiler
// can choose neither.
const _: () = {
    trait NotSync<A> {
        const CHOSEN: () = ();
    }
    struct IfSync;
    impl<T> NotSync<()> for T {}
    impl<T: Sync> NotSync<IfSync> for T {}
    <Region as NotSync<_>>::CHOSEN
};

impl Region {
    /// Maps private, zeroed memory for this process only, rounded up to pages.
    ///
    /// # Errors
    /// The error of `mmap`: `ENOMEM`.
    pub fn private(len: usize) -> io::Result<Region> {
        Ok(Region::alone(Mapping::anonymous(len, true)?))
    }

    /// Maps zeroed memory for this process only, as [`Region::private`] does, in a file that can be
    /// mapped once more for a device ([`Mapping::joined`]). The caller hands the file to no other
    /// process, and maps it in no other way.
    ///
    /// # Errors
    /// The errors of [`SharedFile::create`](crate::SharedFile::create) and `mmap`.
    pub fn private_file(name: &str, len: usize) -> io::Result<(Region, PrivateFile)> {
        let file = SharedFile::create(name, len)?;
        let region = Region { private: true, ..file.map_writable()? };
        Ok((region, PrivateFile { file }))
    }

    /// Maps zeroed memory for this process and for processes forked from it, rounded up to pages.
    ///
    /// # Errors
    /// The error of `mmap`: `ENOMEM`.
    pub fn shared_with_forks(len: usize) -> io::Result<Region> {
        Ok(Region::of_file(Mapping::anonymous(len, false)?))
    }

    /// Returns the region of a whole mapping, which is new and writable.
    pub(super) fn of_file(mapping: Mapping) -> Region {
        Region {
            start: mapping.start(),
            len: mapping.len(),
            offset: 0,
            private: false,
            mapping: Arc::new(mapping),
            _one_thread: PhantomData,
        }
    }

    /// Returns the region of a whole mapping, which is new and writable. The memory has no other
    /// mapping, and no other process can make one.
    pub(super) fn alone(mapping: Mapping) -> Region {
        Region { private: true, ..Region::of_file(mapping) }
    }

    /// Returns the region's mapping, for reading.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the region's offset in the mapping, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if the region has no bytes left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Allocates every page of new memory, at the cost of this process's control group. May overwrite
    /// the bytes by zeros.
    ///
    /// ```
    /// let file = towpath_memory::SharedFile::create("example", 8192)?;
    /// let mut region = file.map_writable()?;
    /// region.allocate()?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Fails with `ENOMEM` or `EFAULT` if there is no memory.
    pub fn allocate(&mut self) -> io::Result<()> {
        // SAFETY: the range is the region's own; populating a mapping of a file changes no byte.
        let populated = unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite)
        };
        match populated {
            // Linux before 5.14.
            Err(Errno::INVAL) => {
                for offset in (0..self.len).step_by(PAGE_BYTES) {
                    let _ = self.copy_in(offset, &[0]);
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Splits `len` bytes off the front.
    ///
    /// # Panics
    /// When there are fewer: a mistake in the layout, which no peer can cause.
    #[must_use]
    pub fn split_off_front(&mut self, len: usize) -> Region {
        assert!(len <= self.len, "a part outside of its region");
        let mapping = self.mapping.clone();
        let front = Region { mapping, len, ..*self };
        // SAFETY: len <= self.len, so the address stays inside of the region or at its end.
        self.start = unsafe { self.start.add(len) };
        self.offset += len;
        self.len -= len;
        front
    }

    /// Returns the first byte's address.
    #[must_use]
    pub fn start(&mut self) -> NonNull<u8> {
        self.start
    }

    /// Returns the address of a range; `None` when it does not lie inside.
    #[inline]
    #[must_use]
    pub fn range(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: offset <= len of the region, so the address stays inside of it or at its end.
        Some(unsafe { self.start.add(offset) })
    }

    /// Copies private bytes into the region. Returns whether the range lies inside.
    #[inline]
    #[must_use]
    pub fn copy_in(&mut self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.range(offset, from.len()) else { return false };
        // SAFETY: `to` is mapped and writable for the length of `from`, as just checked, and `from`
        // is borrowed. Plain accesses touch the range only through `bytes`, which borrows the
        // region, and through functions whose callers promise to make none meanwhile.
        unsafe { copy(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Copies from a mapping into the region: payload, or headers that this side checks once they
    /// are in private memory. Returns whether both ranges lie inside. Where the ranges overlap, the
    /// bytes are arbitrary.
    #[inline]
    #[must_use]
    pub fn copy_from(
        &mut self,
        offset: usize,
        from: &Mapping,
        from_offset: usize,
        len: usize,
    ) -> bool {
        let (Some(to), Some(from)) = (self.range(offset, len), from.range(from_offset, len)) else {
            return false;
        };
        // SAFETY: both are mapped for `len` bytes, as just checked, and `to` is writable; else as
        // in `copy_in` and `Mapping::copy_out`.
        unsafe { copy(from.as_ptr(), to.as_ptr(), len) };
        true
    }

    /// Returns the bytes of a range; `None` when it is not inside, or when the region is not
    /// private: another mapping of the same memory may be written.
    #[inline]
    #[must_use]
    pub fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        if !self.private {
            return None;
        }
        // SAFETY: private memory is mapped once for writing, and at most once more for a device,
        // whose driver lets it read there only; the seals of a private file refuse every other
        // write. The region alone writes this range, and only by `&mut self`, which the slice's
        // borrow of the region excludes.
        unsafe { self.bytes_of_file(offset, len) }
    }

    /// Returns the bytes of a range of a file; `None` when it is not inside.
    ///
    /// # Safety
    /// No peer writes the range while the slice lives, and neither does this process through
    /// another mapping.
    #[inline]
    #[must_use]
    pub unsafe fn bytes_of_file(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let start = self.range(offset, len)?;
        // SAFETY: the range is inside and mapped. The region is borrowed, so no safe call writes
        // through it. The rest is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// Returns the bytes of a range, for changes in place; `None` when it is not inside.
    ///
    /// # Safety
    /// No peer writes the range while the slice lives. No other access of this process reads or
    /// writes it meanwhile, neither through this region nor through a mapping.
    #[inline]
    #[must_use]
    #[expect(clippy::mut_from_ref, reason = "several ranges of one region are written at once")]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.range(offset, len)?;
        // SAFETY: the range is inside, mapped and writable; the rest is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Prefetches lines that this side will write soon, as [`Mapping::prefetch`] does for reads.
    #[inline(always)]
    pub fn prefetch_to_write(&self, offset: usize, len: usize) {
        prefetch_to_write(self.start.as_ptr().wrapping_add(offset), len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_inside() {
        let (mut a, mut b) = (Region::private(4096).unwrap(), Region::private(4096).unwrap());
        assert!(a.copy_in(4090, b"abcdef"));
        assert!(!a.copy_in(4091, b"abcdef") && !a.copy_in(usize::MAX, b"a"));
        let from = a.mapping();
        assert!(b.copy_from(0, from, 4090, 6));
        assert!(!b.copy_from(0, from, 4091, 6) && !b.copy_from(4091, from, 0, 6));
        let mut out = [0; 6];
        let reader = b.mapping();
        assert!(reader.copy_out(0, &mut out) && !reader.copy_out(4091, &mut out));
        assert_eq!(&out, b"abcdef");
        assert_eq!(b.bytes(2, 4), Some(b"cdef".as_slice()));
        assert!(b.bytes(4091, 6).is_none());
        let file = SharedFile::create("test", 1).unwrap().map_writable().unwrap();
        assert!(file.bytes(0, 1).is_none(), "another mapping of a file may be written");
    }

    #[test]
    fn files_are_joined_in_one_range_that_no_seal_ends() {
        let files = [1, 2].map(|pages| SharedFile::create("test", pages * PAGE_BYTES).unwrap());
        let (mut own, private) = Region::private_file("test", 3 * PAGE_BYTES).unwrap();
        let part = |file, len| FilePart { file, offset: 0, len };
        let own_part = private.part(PAGE_BYTES, 2 * PAGE_BYTES);
        let parts = [part(&files[0], PAGE_BYTES), part(&files[1], 2 * PAGE_BYTES), own_part];
        let joined = Mapping::joined(&parts).unwrap();
        assert_eq!(joined.len(), 5 * PAGE_BYTES);
        let mut peer = files[1].map_writable().unwrap();
        files[1].seal_future_write().unwrap();
        assert!(Mapping::joined(&parts).is_err(), "no new writable mapping");
        assert!(peer.copy_in(PAGE_BYTES, b"peer") && own.copy_in(PAGE_BYTES, b"head"));
        let mut seen = [0; 4];
        assert!(joined.copy_out(2 * PAGE_BYTES, &mut seen));
        assert_eq!(&seen, b"peer");
        assert!(joined.copy_out(3 * PAGE_BYTES, &mut seen));
        assert_eq!(&seen, b"head");
        assert_eq!(own.bytes(PAGE_BYTES, 4), Some(b"head".as_slice()));
        for wrong in [part(&files[0], 2 * PAGE_BYTES), part(&files[0], 8), part(&files[0], 0)] {
            assert!(Mapping::joined(&[wrong]).is_err());
        }
        assert!(Mapping::joined(&[]).is_err());
    }

    #[test]
    fn new_memory_is_allocated() {
        let file = SharedFile::create("test", 5 * PAGE_BYTES).unwrap();
        let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks;
        let mut region = file.map_writable().unwrap();
        assert_eq!(blocks(), 0);
        region.allocate().unwrap();
        assert_eq!(blocks() as usize * 512, 5 * PAGE_BYTES);
        let mut part = SharedFile::create("test", 1).unwrap().map_writable().unwrap();
        assert!(part.copy_in(7, b"kept"));
        part.allocate().unwrap();
        let mut seen = [0; 4];
        assert!(part.mapping().copy_out(7, &mut seen) && seen == *b"kept");
    }

    #[test]
    fn parts_write_their_own_bytes() {
        let mut rest = Region::private(4096).unwrap();
        let whole = rest.mapping().clone();
        let mut front = rest.split_off_front(100);
        assert_eq!((front.offset(), front.len(), rest.offset(), rest.len()), (0, 100, 100, 3996));
        assert!(front.copy_in(96, b"last") && !front.copy_in(97, b"last"));
        assert!(rest.copy_in(0, b"first") && !rest.copy_in(3992, b"first"));
        let mut seen = [0; 9];
        assert!(whole.copy_out(96, &mut seen));
        assert_eq!(&seen, b"lastfirst");
        assert_eq!(rest.bytes(0, 5), Some(b"first".as_slice()));
    }
}
