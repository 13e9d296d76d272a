//! Pages of a memory file that two processes hold in turn: a process reaches a page only between
//! [`HeldPages::take`] and [`HeldPages::give`], by the protection of its mapping (`mprotect(2)`).
//!
//! Unsafe lives here because the protection of mapped addresses changes: no reference to them is ever
//! formed, and every access is to an address that is mapped and permitted at that moment.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::PAGE_BYTES;
use crate::pages::Area;

/// The words of a packet's head.
const HEAD_WORDS: usize = 2;
/// The bytes of a packet's head.
const HEAD_BYTES: usize = 16;

/// A mapping of a memory file, of which this process reaches the pages that it holds.
#[derive(Debug)]
pub struct HeldPages {
    area: Area,
    is_held: Vec<bool>,
}

// SAFETY: a mapping is an address range of the process, not of a thread; only its owner uses it.
unsafe impl Send for HeldPages {}

impl HeldPages {
    /// Maps a memory file. The process holds all of its pages (`is_holder`), or none.
    ///
    /// # Errors
    /// `EINVAL` for a file that could shrink, since a missing page would end this process; the error of
    /// `mmap` or `mprotect`.
    pub fn map(file: BorrowedFd<'_>, is_holder: bool) -> io::Result<HeldPages> {
        // SAFETY: takes no pointers.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: all zeros is a value of this structure of integers.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes to a live structure.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = usize::try_from(status.st_size).map_err(io::Error::other)?;
        let pages = bytes / PAGE_BYTES;
        let area = Area::map(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd())?;
        if !is_holder {
            area.protect_part(0, bytes, libc::PROT_NONE)?;
        }
        Ok(HeldPages { area, is_held: vec![is_holder; pages] })
    }

    /// Makes a page reachable, which the other process has given.
    ///
    /// # Errors
    /// `EINVAL` for a page that does not exist; the error of `mprotect`.
    pub fn take(&mut self, page: usize) -> io::Result<()> {
        self.change(page, true, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Makes a page unreachable, before the other process takes it.
    ///
    /// # Errors
    /// As [`HeldPages::take`].
    pub fn give(&mut self, page: usize) -> io::Result<()> {
        self.change(page, false, libc::PROT_NONE)
    }

    fn change(&mut self, page: usize, is_holder: bool, rights: libc::c_int) -> io::Result<()> {
        let is_held = self.is_held.get_mut(page);
        let is_held = is_held.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // Whatever the kernel answers, a page that is being given away is not touched again.
        *is_held = false;
        self.area.protect_part(page * PAGE_BYTES, PAGE_BYTES, rights)?;
        *is_held = is_holder;
        Ok(())
    }

    /// Returns the first bytes of a page; `None` if this process does not hold the page.
    #[must_use]
    pub fn head(&self, page: usize) -> Option<[u8; HEAD_BYTES]> {
        let first = self.words(page)?;
        let mut head = [0; HEAD_BYTES];
        for (place, bytes) in head.chunks_exact_mut(8).enumerate() {
            // SAFETY: the page is mapped and readable, and a page has room for the words.
            let word = unsafe { first.add(place).as_ptr().read_volatile() };
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Some(head)
    }

    /// Changes the first bytes of a page. Returns `false` if this process does not hold the page.
    #[must_use]
    pub fn set_head(&mut self, page: usize, head: [u8; HEAD_BYTES]) -> bool {
        let Some(first) = self.words(page) else { return false };
        let (words, _) = head.as_chunks::<8>();
        for (place, word) in words.iter().enumerate().take(HEAD_WORDS) {
            // SAFETY: the page is mapped and writable, and a page has room for the words.
            unsafe { first.add(place).as_ptr().write_volatile(u64::from_ne_bytes(*word)) };
        }
        true
    }

    /// Returns the address of a page, as words; `None` if this process does not hold the page.
    fn words(&self, page: usize) -> Option<NonNull<u64>> {
        self.is_held.get(page).filter(|is_held| **is_held)?;
        // SAFETY: the page exists, so its offset is inside of the mapping.
        Some(unsafe { self.area.first.add(page * PAGE_BYTES) }.cast())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    use super::*;

    fn file(seals: libc::c_int) -> OwnedFd {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with a zero, and the descriptor has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"held".as_ptr(), flags)) };
        // SAFETY: take no pointers.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), 3 * PAGE_BYTES as libc::off_t), 0);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        }
        file
    }

    /// Returns whether the kernel lets this process read a page's first byte.
    fn is_readable(pages: &HeldPages, page: usize) -> bool {
        let mut byte = 0_u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let address = pages.area.first.as_ptr().wrapping_add(page * PAGE_BYTES);
        let remote = libc::iovec { iov_base: address.cast(), iov_len: 1 };
        // SAFETY: the kernel writes at most a byte to a live one, and checks the other address.
        let got = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        got == 1
    }

    #[test]
    fn a_page_is_reachable_where_it_is_held() {
        let file = file(libc::F_SEAL_SHRINK);
        let mut ours = HeldPages::map(file.as_fd(), true).unwrap();
        let mut theirs = HeldPages::map(file.as_fd(), false).unwrap();
        assert!(ours.set_head(1, [7; HEAD_BYTES]));
        assert_eq!(theirs.head(1), None);
        ours.give(1).unwrap();
        assert!(!is_readable(&ours, 1) && !is_readable(&theirs, 1), "on its way");
        theirs.take(1).unwrap();
        assert_eq!(theirs.head(1), Some([7; HEAD_BYTES]));
        assert!(!ours.set_head(1, [8; HEAD_BYTES]) && ours.head(1).is_none());
        assert!(is_readable(&ours, 0) && is_readable(&ours, 2), "the others stay");
        assert!(is_readable(&theirs, 1) && !is_readable(&theirs, 0));
        assert!(theirs.set_head(1, [9; HEAD_BYTES]));
        theirs.give(1).unwrap();
        ours.take(1).unwrap();
        assert_eq!(ours.head(1), Some([9; HEAD_BYTES]));
        assert!(ours.take(3).is_err() && ours.head(3).is_none());
    }

    #[test]
    fn a_file_that_may_shrink_is_refused() {
        assert!(HeldPages::map(file(libc::F_SEAL_GROW).as_fd(), true).is_err());
    }
}
