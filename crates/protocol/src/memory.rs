//! Memory that two processes share, and its mapping.
//!
//! Unsafe lives here because a mapping is raw memory that another process may write at any
//! moment. What this module promises: a [`Mapping`] is mapped for as long as the value lives, its
//! file can neither shrink nor grow while it does (seals), and no reference into it is ever made;
//! it hands out addresses, and the queue crate's atomics or plain copies do the rest.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size of a page; every region's length is a multiple of it.
pub const PAGE_BYTES: usize = 4096;

/// A sealed memory file made by the server: its own read-write descriptor, and one that can only
/// be read, for handing out.
#[derive(Debug)]
pub struct SharedFile {
    file: OwnedFd,
    len: usize,
}

impl SharedFile {
    /// Makes a memory file of `len` bytes, rounded up to pages, of mode 0600, that can neither
    /// shrink nor grow from now on.
    ///
    /// # Errors
    /// What `memfd_create`, `ftruncate` or `fcntl(F_ADD_SEALS)` answer; `ENOMEM` when the memory
    /// is not to be had.
    pub fn create(name: &str, len: usize) -> io::Result<SharedFile> {
        let file = rustix::fs::memfd_create(
            name,
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL,
        )
        // MFD_NOEXEC_SEAL came with Linux 6.3; before it, a memory file is executable and that is all.
        .or_else(|error| match error {
            rustix::io::Errno::INVAL => {
                rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            }
            other => Err(other),
        })?;
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(SharedFile { file, len })
    }

    /// Takes over a descriptor received from a peer or a store; its length is what the kernel says.
    ///
    /// # Errors
    /// `EINVAL` when the file is not sealed against shrinking and growing: it could fault us.
    pub fn adopt(file: OwnedFd) -> io::Result<SharedFile> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let len = usize::try_from(rustix::fs::fstat(&file)?.st_size)
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(SharedFile { file, len })
    }

    /// Length in bytes, a multiple of [`PAGE_BYTES`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a memory file has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forbids all further writable mappings and writes, through whichever descriptor; those that
    /// exist stay. The peer that mapped it before is from now on its only writer.
    ///
    /// # Errors
    /// What `fcntl(F_ADD_SEALS)` answers.
    pub fn seal_future_write(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    /// Forbids further seals, so that nobody can make the file unwritable for us.
    ///
    /// # Errors
    /// What `fcntl(F_ADD_SEALS)` answers.
    pub fn seal_seals(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.file, SealFlags::SEAL)?)
    }

    /// A new descriptor of the same file that can only be read. A process of another user cannot
    /// make it writable again, since the file's mode is 0600.
    ///
    /// # Errors
    /// What opening `/proc/self/fd/N` answers: `ENOENT` where `/proc` is not mounted.
    pub fn read_only(&self) -> io::Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(
            path,
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }

    /// Maps all of it for reading and writing.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn map_writable(&self) -> io::Result<Mapping> {
        Mapping::new(self.file.as_fd(), self.len, true)
    }

    /// Maps all of it for reading alone.
    ///
    /// # Errors
    /// What `mmap` answers.
    pub fn map_readable(&self) -> io::Result<Mapping> {
        Mapping::new(self.file.as_fd(), self.len, false)
    }
}

impl From<SharedFile> for OwnedFd {
    fn from(file: SharedFile) -> OwnedFd {
        file.file
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What processors move between their caches, in bytes.
const CACHE_LINE_BYTES: usize = 64;

/// A mapped file. The addresses stay good for as long as this lives.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    process: u32,
}

// SAFETY: a mapping is an address range of the process, not of a thread; what is done with the
// addresses is for the holder to order.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method writes through the mapping.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Mapping> {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses a free address range, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)?
        };
        Self::owned(start, len, writable)
    }

    /// Private, zeroed memory of this process alone, rounded up to pages.
    ///
    /// # Errors
    /// What `mmap` answers: `ENOMEM`.
    pub fn private(len: usize) -> io::Result<Mapping> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        // SAFETY: the kernel chooses a free address range, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        Self::owned(start, len, true)
    }

    /// Zeroed memory of this process and of those that are forked from it, rounded up to pages.
    ///
    /// # Errors
    /// What `mmap` answers: `ENOMEM`.
    pub fn shared_with_forks(len: usize) -> io::Result<Mapping> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        // SAFETY: the kernel chooses a free address range, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )?
        };
        Self::owned(start, len, true)
    }

    fn owned(start: *mut std::ffi::c_void, len: usize, writable: bool) -> io::Result<Mapping> {
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Mapping { start, len, writable, process: std::process::id() })
    }

    /// The first byte's address.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this mapping may be written through.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Has every page there before it is first touched, as far as the kernel can (Linux 5.14): a
    /// fault takes longer than a packet.
    pub fn populate(&self) {
        self.populate_part(0, self.len);
    }

    /// The same for a part, from a page's beginning on. A part that is not inside is left alone.
    pub fn populate_part(&self, offset: usize, len: usize) {
        let advice =
            if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        self.advise(offset, len, advice);
    }

    /// Takes a part out of this process' page tables, from a page's beginning on: what would else be
    /// done at once when the mapping is dropped. The file keeps its content. Only shared mappings.
    pub fn release_part(&self, offset: usize, len: usize) {
        self.advise(offset, len, Advice::LinuxDontNeed);
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) {
        if self.inside(offset, len) {
            // SAFETY: the part is inside; neither populating nor dropping the pages of a shared
            // mapping changes what is read there.
            let _ =
                unsafe { rustix::mm::madvise(self.start.as_ptr().add(offset).cast(), len, advice) };
        }
    }

    /// Keeps all of it in memory, so that no access waits for a swap device. Allocates what is not
    /// there yet.
    ///
    /// # Errors
    /// What `mlock` answers: `EPERM` and `ENOMEM` where `RLIMIT_MEMLOCK` is too small.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: locking changes no content.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.len)? };
        Ok(())
    }

    /// Wipes the mapping in children made by `fork`: they find zeros. Only private mappings.
    ///
    /// # Errors
    /// What `madvise` answers.
    pub fn wipe_in_children(&self) -> io::Result<()> {
        // SAFETY: MADV_WIPEONFORK changes nothing of this process' memory.
        unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxWipeOnFork)?;
        }
        Ok(())
    }

    fn inside(&self, offset: usize, len: usize) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// Copies payload out of the mapping. A peer that writes meanwhile makes the bytes arbitrary;
    /// what was copied stays as it is. Answers whether the range lies inside.
    #[inline]
    #[must_use]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.inside(offset, to.len()) {
            return false;
        }
        // SAFETY: the range is inside, as just checked; `to` is private memory and does not
        // overlap; no reference into the mapping is formed.
        unsafe {
            let from = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
        true
    }

    /// Copies private bytes into the mapping. Answers whether the range lies inside, and the
    /// mapping may be written.
    #[inline]
    #[must_use]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> bool {
        if !self.writable || !self.inside(offset, from.len()) {
            return false;
        }
        // SAFETY: as in `copy_out`; the mapping is writable.
        unsafe {
            let to = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
        true
    }

    /// Copies payload from another mapping into this one. Answers whether both ranges lie inside,
    /// this one may be written, and they are not the same memory here.
    #[inline]
    #[must_use]
    pub fn copy_from(&self, offset: usize, from: &Mapping, from_offset: usize, len: usize) -> bool {
        if !self.writable
            || !self.inside(offset, len)
            || !from.inside(from_offset, len)
            || self.start == from.start
        {
            return false;
        }
        // SAFETY: as in `copy_out`; two mappings never overlap here.
        unsafe {
            let to = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from.start.as_ptr().add(from_offset), to, len);
        }
        true
    }

    /// Asks the processor to bring the lines of a range near, since they will be read soon: another
    /// core has them. Nothing is read and nothing decided; a range that is not inside is ignored.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.inside(offset, len) {
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

    /// The same for lines that will be written soon.
    #[inline]
    pub fn prefetch_to_write(&self, offset: usize, len: usize) {
        // Not the intrinsic: compiled for any x86-64 it asks for the line to be read, and the
        // store then waits for it a second time. Processors without the instruction ignore it.
        #[cfg(target_arch = "x86_64")]
        if self.inside(offset, len) {
            let mut at = offset;
            while at < offset + len {
                // SAFETY: as above.
                unsafe {
                    let line = self.start.as_ptr().add(at);
                    std::arch::asm!(
                        "prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)
                    );
                }
                at += CACHE_LINE_BYTES;
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, len);
    }

    /// The bytes of a range, to be changed in place; `None` when it is not inside, or read-only.
    ///
    /// # Safety
    /// No peer writes this memory, and nothing else in this process touches the range while the
    /// slice lives.
    #[inline]
    #[must_use]
    #[expect(clippy::mut_from_ref, reason = "a mapping is an address range, not a value")]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> Option<&mut [u8]> {
        if !self.writable || !self.inside(offset, len) {
            return None;
        }
        // SAFETY: the range is inside, mapped and writable; the rest is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) })
    }

    /// The bytes of a range; `None` when it is not inside.
    ///
    /// # Safety
    /// Nobody, no peer either, writes the range while the slice lives.
    #[inline]
    #[must_use]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        if !self.inside(offset, len) {
            return None;
        }
        // SAFETY: the range is inside and mapped; the rest is the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) })
    }

    /// Keeps the mapping out of children made by `fork`: there, touching it is a fault instead of
    /// a second writer.
    ///
    /// # Errors
    /// What `madvise` answers.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: MADV_DONTFORK changes nothing of this process' memory.
        unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontFork)?;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A child that was forked may not have the mapping, and something else in its place.
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: the range was mapped by `new` or `private` and belongs to this value alone; who
        // keeps addresses into it keeps the value too (see `Mapping::start`).
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_file_is_one_memory() {
        let file = SharedFile::create("test", 5000).unwrap();
        assert_eq!(file.len(), 2 * PAGE_BYTES);
        let writer = file.map_writable().unwrap();
        let reader = SharedFile::adopt(file.read_only().unwrap()).unwrap().map_readable().unwrap();
        // SAFETY: both mappings are alive and longer than a byte; this thread alone touches them.
        let seen = unsafe {
            writer.start().as_ptr().write_volatile(7);
            reader.start().as_ptr().read_volatile()
        };
        assert_eq!(seen, 7);
    }

    #[test]
    fn copies_stay_inside() {
        let (a, b) = (Mapping::private(4096).unwrap(), Mapping::private(4096).unwrap());
        assert!(a.copy_in(4090, b"abcdef"));
        assert!(!a.copy_in(4091, b"abcdef") && !a.copy_in(usize::MAX, b"a"));
        assert!(b.copy_from(0, &a, 4090, 6));
        assert!(!b.copy_from(0, &a, 4091, 6) && !b.copy_from(4091, &a, 0, 6));
        assert!(!a.copy_from(0, &a, 8, 8), "a mapping onto itself");
        let mut out = [0; 6];
        assert!(b.copy_out(0, &mut out) && !b.copy_out(4091, &mut out));
        assert_eq!(&out, b"abcdef");
        let file = SharedFile::create("test", 1).unwrap();
        assert!(!file.map_readable().unwrap().copy_in(0, b"x"), "read-only");
    }

    #[test]
    fn sealed_against_future_writers() {
        let file = SharedFile::create("test", 1).unwrap();
        let before = file.map_writable().unwrap();
        file.seal_future_write().unwrap();
        assert!(file.map_writable().is_err());
        assert!(file.map_readable().is_ok());
        assert!(rustix::io::write(&file, b"x").is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        drop(before);
    }

    #[test]
    fn an_unsealed_file_is_refused() {
        let file = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
        assert!(SharedFile::adopt(file).is_err());
    }
}
