//! Mapped memory, for reading.
//!
//! Unsafe lives here because a mapping is raw memory that another process may write at any moment.
//! System calls create and remove mappings, and the queue crate's copy reads them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use towpath_queue::copy::copy;

use crate::{PAGE_BYTES, SharedFile};

/// The unit in which processors move memory between their caches, in bytes.
pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// A part of a memory file: whole pages.
#[derive(Clone, Copy, Debug)]
pub struct FilePart<'a> {
    /// The file.
    pub file: &'a SharedFile,
    /// The offset of the first byte, in bytes.
    pub offset: usize,
    /// The number of bytes.
    pub len: usize,
}

/// Mapped memory that another side may write meanwhile: a peer, or the owner of a
/// [`Region`](crate::Region) of it. The addresses stay valid for as long as this value lives.
///
/// Threads share a mapping, since none of its safe methods writes:
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
    /// The size of the pages. The mapping goes on to the end of its last page, where only calls for
    /// the whole mapping reach.
    page_bytes: usize,
    writable: bool,
    private: bool,
    process: u32,
}

// SAFETY: a mapping is an address range of the process, not of a thread.
unsafe impl Send for Mapping {}
// SAFETY: no safe method writes through the mapping, and all safe methods read it by the queue
// crate's copy, during which other threads and processes may write.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Mapping> {
        Self::in_pages(file, len, writable, PAGE_BYTES)
    }

    /// Maps the first `len` bytes of a file that has pages of this size.
    pub(super) fn in_pages(
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        page_bytes: usize,
    ) -> io::Result<Mapping> {
        let mapped_bytes = len.next_multiple_of(page_bytes);
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses a free address range, so the call replaces no other mapping.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        Self::owned(start, len, page_bytes, writable, false)
    }

    /// Maps parts of files next to each other, for a device that reaches one range of addresses.
    /// The pages are writable, because the kernel pins a device's memory for writing. No safe code
    /// writes them: there is no [`Region`](crate::Region) of this mapping.
    ///
    /// # Errors
    /// `EINVAL` when a part does not consist of whole pages, or is not inside its file; the error
    /// of `mmap`, which is `EPERM` for a file that is sealed against writable mappings.
    pub fn joined(parts: &[FilePart<'_>]) -> io::Result<Mapping> {
        let is_whole = |bytes: usize| bytes.is_multiple_of(PAGE_BYTES);
        let good = |part: &FilePart<'_>| {
            let end = part.offset.checked_add(part.len);
            part.len > 0
                && is_whole(part.offset)
                && is_whole(part.len)
                && end.is_some_and(|end| end <= part.file.len())
        };
        if parts.is_empty() || !parts.iter().all(good) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let len = parts.iter().map(|part| part.len).sum();
        let protection = ProtFlags::empty();
        // SAFETY: the kernel chooses a free address range, so the call replaces no other mapping.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)?
        };
        // From here on, the value unmaps the range.
        let whole = Self::owned(start, len, PAGE_BYTES, true, false)?;
        let mut at = 0;
        for part in parts {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let to = whole.range(at, part.len).ok_or(io::ErrorKind::InvalidInput)?;
            let (file, offset) = (part.file.as_fd(), part.offset as u64);
            // SAFETY: the range lies inside of `whole`, which nothing else uses yet, so the call
            // replaces only reserved addresses.
            unsafe {
                rustix::mm::mmap(to.as_ptr().cast(), part.len, protection, flags, file, offset)?
            };
            at += part.len;
        }
        Ok(whole)
    }

    /// Maps memory without a file: for this process only, or also for processes forked from it.
    pub(super) fn anonymous(len: usize, private: bool) -> io::Result<Mapping> {
        let flags = if private { MapFlags::PRIVATE } else { MapFlags::SHARED };
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        // SAFETY: the kernel chooses a free address range, so the call replaces no other mapping.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        Self::owned(start, len, PAGE_BYTES, true, private)
    }

    fn owned(
        start: *mut std::ffi::c_void,
        len: usize,
        page_bytes: usize,
        writable: bool,
        private: bool,
    ) -> io::Result<Mapping> {
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Mapping { start, len, page_bytes, writable, private, process: std::process::id() })
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

    /// Returns the size of the pages: [`HUGE_PAGE_BYTES`](crate::HUGE_PAGE_BYTES), or
    /// [`PAGE_BYTES`] also where the kernel uses larger ones of its own accord.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns the length up to the end of the last page, in bytes: all that the kernel has mapped.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.len.next_multiple_of(self.page_bytes)
    }

    /// Returns `false`: a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Populates every page before its first access, if the kernel can (Linux 5.14): a page fault
    /// takes longer than a packet.
    pub fn populate(&self) {
        self.populate_part(0, self.len);
    }

    /// Populates a part, from a page's beginning on. Ignores a part that is not inside.
    pub fn populate_part(&self, offset: usize, len: usize) {
        let advice =
            if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        self.advise(offset, len, advice);
    }

    /// Removes a part from this process's page tables, from a page's beginning on. Without this
    /// call, the drop of the mapping would do so for all of it at once. The content stays. Ignores
    /// private memory.
    pub fn release_part(&self, offset: usize, len: usize) {
        if !self.private {
            self.advise(offset, len, Advice::LinuxDontNeed);
        }
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) {
        if let Some(start) = self.range(offset, len) {
            // SAFETY: the part is inside. Neither to populate nor to drop the pages of a shared
            // mapping changes the bytes there.
            let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, advice) };
        }
    }

    /// Locks the whole mapping in memory, so that no access waits for a swap device, and allocates
    /// missing pages.
    ///
    /// # Errors
    /// The error of `mlock`: `EPERM` and `ENOMEM` where `RLIMIT_MEMLOCK` is too small.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: locking changes no content.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.mapped_bytes())? };
        Ok(())
    }

    /// Wipes the mapping in children made by `fork`: they find zeros. Only for private mappings.
    ///
    /// # Errors
    /// The error of `madvise`.
    pub(crate) fn wipe_in_children(&self) -> io::Result<()> {
        // SAFETY: MADV_WIPEONFORK does not change this process's memory.
        unsafe {
            let start = self.start.as_ptr().cast();
            rustix::mm::madvise(start, self.mapped_bytes(), Advice::LinuxWipeOnFork)?;
        }
        Ok(())
    }

    /// Keeps the mapping out of children made by `fork`: an access there faults, instead of making
    /// the child a second writer.
    ///
    /// # Errors
    /// The error of `madvise`.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: MADV_DONTFORK does not change this process's memory.
        unsafe {
            let start = self.start.as_ptr().cast();
            rustix::mm::madvise(start, self.mapped_bytes(), Advice::LinuxDontFork)?;
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

    /// Copies payload out of the mapping. A peer that writes meanwhile makes the bytes arbitrary,
    /// but cannot change the copy later. Returns whether the range lies inside.
    #[inline]
    #[must_use]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(from) = self.range(offset, to.len()) else { return false };
        // SAFETY: `from` is mapped for the length of `to`, as just checked, and `to` is borrowed.
        // No plain access writes the range: see `Region` and `bytes`.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies as [`Mapping::copy_out`] does, into uninitialized memory. Writes all of it if this
    /// returns `true`, and nothing otherwise.
    #[inline]
    #[must_use]
    pub fn copy_into(&self, offset: usize, to: &mut [MaybeUninit<u8>]) -> bool {
        let Some(from) = self.range(offset, to.len()) else { return false };
        // SAFETY: as in `copy_out`.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
        true
    }

    /// Prefetches the lines of a range that this side will read soon, since another core's cache
    /// holds them. This is a hint that reads nothing, whatever the addresses.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize, len: usize) {
        prefetch(self.start.as_ptr().wrapping_add(offset), len);
    }

    /// Returns the bytes of a range; `None` when it is not inside.
    ///
    /// # Safety
    /// Neither a peer nor this process writes the range while the slice lives.
    #[inline]
    #[must_use]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let start = self.range(offset, len)?;
        // SAFETY: the range is inside and mapped; the rest is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }
}

/// Prefetches lines that this side will read soon, as [`Mapping::prefetch`] does.
#[inline(always)]
pub(crate) fn prefetch(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let mut line = start;
        let end = line.wrapping_add(len);
        while line < end {
            // SAFETY: a hint touches nothing, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast::<i8>()) };
            line = line.wrapping_add(CACHE_LINE_BYTES);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// Prefetches lines that this side will write soon, since another core's cache holds them. This is
/// a hint that touches nothing, whatever the addresses.
#[inline(always)]
pub(crate) fn prefetch_to_write(start: *mut u8, len: usize) {
    // This does not use the intrinsic, which compiles to a prefetch for reading on generic x86-64:
    // the store would then wait for the line a second time. Processors without the instruction
    // ignore it.
    #[cfg(target_arch = "x86_64")]
    {
        let mut line = start;
        let end = line.wrapping_add(len);
        while line < end {
            // SAFETY: a hint touches nothing, whatever the address.
            unsafe {
                std::arch::asm!(
                    "prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)
                );
            }
            line = line.wrapping_add(CACHE_LINE_BYTES);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child may lack this mapping, and have another one at its addresses.
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: `new` or `anonymous` mapped the range, which belongs to this value alone. A
        // holder of addresses into it keeps the value too (see `Mapping::start`).
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped_bytes()) };
    }
}
