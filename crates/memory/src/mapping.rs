//! Mapped memory, for reading.
//!
//! Unsafe lives here because a mapping is raw memory that another process may write at any moment:
//! system calls make and unmake it, and the queue crate's copy reads it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use towpath_queue::copy::copy;

use crate::PAGE_BYTES;

/// The unit in which processors move memory between their caches, in bytes.
pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// Mapped memory that another side may write meanwhile: a peer, or the holder of a
/// [`Region`](crate::Region) of it. The addresses stay good for as long as this lives.
///
/// Threads share it, since it offers nothing that writes:
///
/// ```compile_fail,E0599
/// # use towpath_memory::Region;
/// let region = Region::private(64).unwrap();
/// let mapping = region.mapping().clone();
/// mapping.copy_in(0, b"written");
/// ```
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    private: bool,
    process: u32,
}

// SAFETY: a mapping is an address range of the process, not of a thread.
unsafe impl Send for Mapping {}
// SAFETY: no safe method writes through the mapping, and they all read it by the queue crate's
// copy, beside which other threads and processes may write.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Mapping> {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses a free address range, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)?
        };
        Self::owned(start, len, writable, false)
    }

    /// Maps memory without a file: of this process alone, or also of those that are forked from it.
    pub(super) fn anonymous(len: usize, private: bool) -> io::Result<Mapping> {
        let flags = if private { MapFlags::PRIVATE } else { MapFlags::SHARED };
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        // SAFETY: the kernel chooses a free address range, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        Self::owned(start, len, true, private)
    }

    fn owned(
        start: *mut std::ffi::c_void,
        len: usize,
        writable: bool,
        private: bool,
    ) -> io::Result<Mapping> {
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Mapping { start, len, writable, private, process: std::process::id() })
    }

    /// Returns the first byte's address.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Populates every page before its first access, as far as the kernel can (Linux 5.14): a fault
    /// takes longer than a packet.
    pub fn populate(&self) {
        self.populate_part(0, self.len);
    }

    /// Populates a part, from a page's beginning on. It leaves a part alone that is not inside.
    pub fn populate_part(&self, offset: usize, len: usize) {
        let advice =
            if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        self.advise(offset, len, advice);
    }

    /// Takes a part out of this process' page tables, from a page's beginning on. Without this, the
    /// drop of the mapping would do so for all of it at once. The content stays. Private memory is
    /// left alone.
    pub fn release_part(&self, offset: usize, len: usize) {
        if !self.private {
            self.advise(offset, len, Advice::LinuxDontNeed);
        }
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) {
        if let Some(start) = self.range(offset, len) {
            // SAFETY: the part is inside; neither populating nor dropping the pages of a shared
            // mapping changes the bytes that are read there.
            let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, advice) };
        }
    }

    /// Locks all of it in memory, so that no access waits for a swap device. It allocates missing
    /// pages.
    ///
    /// # Errors
    /// The error of `mlock`: `EPERM` and `ENOMEM` where `RLIMIT_MEMLOCK` is too small.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: locking changes no content.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.len)? };
        Ok(())
    }

    /// Wipes the mapping in children made by `fork`: they find zeros. Only private mappings.
    ///
    /// # Errors
    /// The error of `madvise`.
    pub fn wipe_in_children(&self) -> io::Result<()> {
        // SAFETY: MADV_WIPEONFORK changes nothing of this process' memory.
        unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxWipeOnFork)?;
        }
        Ok(())
    }

    /// Keeps the mapping out of children made by `fork`: there, touching it is a fault instead of a
    /// second writer.
    ///
    /// # Errors
    /// The error of `madvise`.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: MADV_DONTFORK changes nothing of this process' memory.
        unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontFork)?;
        }
        Ok(())
    }

    /// Returns the address of a range; `None` when it does not lie inside.
    #[inline]
    #[must_use]
    pub fn range(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: offset <= len of the mapping, so the address stays inside of it or at its end.
        Some(unsafe { self.start.add(offset) })
    }

    /// Copies payload out of the mapping. A peer that writes meanwhile makes the bytes arbitrary;
    /// the copy stays as it is. Returns whether the range lies inside.
    #[inline]
    #[must_use]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.range(offset, to.len()) else { return false };
        // SAFETY: `from` is mapped for as many bytes, as just checked, and `to` is borrowed. Plain
        // accesses do not write the range: see `Region` and `bytes`.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies as [`Mapping::copy_out`] does, into memory that was not written before. It writes all
    /// of it if it returns `true`, and nothing otherwise.
    #[inline]
    #[must_use]
    pub fn copy_into(&self, offset: usize, to: &mut [MaybeUninit<u8>]) -> bool {
        let Some(from) = self.range(offset, to.len()) else { return false };
        // SAFETY: as in `copy_out`.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
        true
    }

    /// Prefetches the lines of a range that this side will read soon: another core has them.
    /// Nothing is read and nothing decided; a range that is not inside is ignored.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.range(offset, len).is_some() {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let mut at = offset;
            while at < offset + len {
                // SAFETY: a hint touches nothing; the address is inside, as just checked.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.start.as_ptr().add(at).cast::<i8>()) };
                at += CACHE_LINE_BYTES;
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, len);
    }

    /// Returns the bytes of a range; `None` when it is not inside.
    ///
    /// # Safety
    /// No peer, and nothing in this process, writes the range while the slice lives.
    #[inline]
    #[must_use]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let start = self.range(offset, len)?;
        // SAFETY: the range is inside and mapped; the rest is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child may not have the mapping, and another one in its place.
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: the range was mapped by `new` or `private` and belongs to this value alone; a
        // holder of addresses into it keeps the value too (see `Mapping::start`).
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
