//! Moves bytes from one owner to another in three ways: by copying, by changing the protection of
//! their pages, and by mapping the pages elsewhere.
//!
//! Unsafe lives here because pages are taken from under addresses: no reference to them is ever
//! formed, and every access is to an address that is mapped and permitted at that moment.

use std::io;
use std::ptr::{NonNull, null_mut};

/// A page of this machine's ordinary memory, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// The way in which bytes change their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// `memcpy`, from one owner's memory into the other's.
    Copy,
    /// Two mappings of the same pages: the giver's becomes unreachable (`mprotect(2)`), the
    /// taker's reachable. Two system calls, whatever the number of pages.
    Protect,
    /// The kernel moves the pages from one range of addresses to another (`mremap(2)`). One system
    /// call.
    Remap,
}

impl Move {
    /// All.
    pub const ALL: [Move; 3] = [Move::Copy, Move::Protect, Move::Remap];
}

/// Memory of two owners. They are the two sides of one process: other threads and processes add the
/// cost of TLB shootdowns on other cores.
#[derive(Debug)]
pub struct Pages {
    bytes: usize,
    /// Private memory of each side, for [`Move::Copy`] and [`Move::Remap`].
    private: [Area; 2],
    /// Two mappings of the same memory, for [`Move::Protect`].
    shared: [Area; 2],
    /// The side that has the bytes, by each way.
    holders: [usize; Move::ALL.len()],
}

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is of the process, not of a thread, and only its owner accesses it.
unsafe impl Send for Area {}

impl Area {
    pub(crate) fn map(bytes: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Area> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes it.
        let first = unsafe { libc::mmap(null_mut(), bytes, rights, flags, fd, 0) };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(first.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { first, bytes })
    }

    fn protect(&self, bytes: usize, rights: libc::c_int) -> io::Result<()> {
        self.protect_part(0, bytes, rights)
    }

    /// Changes the rights to a part, which starts with a page.
    pub(crate) fn protect_part(
        &self,
        offset: usize,
        bytes: usize,
        rights: libc::c_int,
    ) -> io::Result<()> {
        if offset > self.bytes || bytes > self.bytes - offset {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: a part of a mapping that is ours, as just checked, to which no reference exists.
        match unsafe { libc::mprotect(self.first.as_ptr().add(offset).cast(), bytes, rights) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads a byte of every page, as a receiver would. The area must be reachable.
    fn touch(&self, bytes: usize) -> u64 {
        (0..bytes)
            .step_by(PAGE_BYTES)
            // SAFETY: inside of the mapping, which the caller ensured to be readable.
            .map(|offset| u64::from(unsafe { self.first.add(offset).as_ptr().read_volatile() }))
            .sum()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: ours, and no address of it is in use any more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

impl Pages {
    /// Allocates memory for moves of up to `bytes`.
    ///
    /// # Errors
    /// If there is not as much.
    pub fn new(bytes: usize) -> io::Result<Pages> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let populated = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: the name is a string that ends with a zero.
        let fd = unsafe { libc::memfd_create(c"towpath-pages".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, with no other owner; mappings outlive it.
        let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        file.set_len(bytes as u64)?;
        let shared = || Area::map(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, fd);
        let pages = Pages {
            bytes,
            private: [Area::map(bytes, populated, -1)?, Area::map(bytes, populated, -1)?],
            shared: [shared()?, shared()?],
            holders: [0; Move::ALL.len()],
        };
        pages.shared[1].protect(bytes, libc::PROT_NONE)?;
        Ok(pages)
    }

    /// Returns the area in which the holder of the bytes has them.
    fn held(&self, how: Move) -> &Area {
        let areas = if how == Move::Protect { &self.shared } else { &self.private };
        &areas[self.holders[how as usize]]
    }

    /// Writes bytes into the memory of the side that has them.
    ///
    /// # Errors
    /// `EINVAL` for more than there is.
    pub fn write(&mut self, how: Move, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.bytes {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let to = self.held(how).first;
        // SAFETY: inside of a mapping that the holder can reach, to which no reference exists.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Reads bytes from the memory of the side that has them.
    ///
    /// # Errors
    /// `EINVAL` for more than there is.
    pub fn read(&self, how: Move, into: &mut [u8]) -> io::Result<()> {
        if into.len() > self.bytes {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let from = self.held(how).first;
        // SAFETY: inside of a mapping that the holder can reach, and `into` is borrowed.
        unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Moves `len` bytes to the other side, and reads every page there. Returns a sum of the bytes
    /// read, so that the reads happen.
    ///
    /// # Errors
    /// The kernel's error; `EINVAL` for more than there is.
    pub fn give(&mut self, how: Move, len: usize) -> io::Result<u64> {
        if len == 0 || len > self.bytes {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let whole = len.next_multiple_of(PAGE_BYTES);
        let (giver, taker) = (self.holders[how as usize], 1 - self.holders[how as usize]);
        let sum = match how {
            Move::Copy => {
                let (from, to) = (&self.private[giver], &self.private[taker]);
                // Between moves by mapping, both are populated and reachable.
                // SAFETY: two mappings that do not overlap, both at least `len` long.
                unsafe { from.first.copy_to_nonoverlapping(to.first, len) };
                to.touch(len)
            }
            Move::Protect => {
                self.shared[giver].protect(whole, libc::PROT_NONE)?;
                self.shared[taker].protect(whole, libc::PROT_READ | libc::PROT_WRITE)?;
                self.shared[taker].touch(whole)
            }
            Move::Remap => {
                let (from, to) = (&self.private[giver], &self.private[taker]);
                // The giver's addresses stay mapped, to nothing: no other mapping can take them,
                // and the return needs them.
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
                // SAFETY: both ranges are ours, and no reference into them exists.
                let moved = unsafe {
                    libc::mremap(
                        from.first.as_ptr().cast(),
                        whole,
                        whole,
                        flags,
                        to.first.as_ptr().cast::<libc::c_void>(),
                    )
                };
                if moved == libc::MAP_FAILED {
                    return Err(io::Error::last_os_error());
                }
                to.touch(whole)
            }
        };
        self.holders[how as usize] = taker;
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the first byte; `None` where reading is forbidden.
    fn first_byte(area: &Area) -> Option<u8> {
        let mut byte = 0xff_u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: area.first.as_ptr().cast(), iov_len: 1 };
        // SAFETY: the kernel writes at most a byte to a live one, and checks the other address.
        let got = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        (got == 1).then_some(byte)
    }

    #[test]
    fn every_way_to_move_pages_delivers_the_bytes() {
        let mut pages = Pages::new(3 * PAGE_BYTES).unwrap();
        for (how, area) in [(Move::Remap, &pages.private), (Move::Protect, &pages.shared)] {
            for place in 0..3 {
                // SAFETY: inside of a mapping that this side has.
                unsafe { area[0].first.add(place * PAGE_BYTES).as_ptr().write(place as u8 + 1) };
            }
            assert_eq!(area[0].touch(3 * PAGE_BYTES), 1 + 2 + 3, "{how:?}");
        }
        for how in [Move::Remap, Move::Protect] {
            for round in 0..4 {
                assert_eq!(pages.give(how, 2 * PAGE_BYTES + 1).unwrap(), 1 + 2 + 3, "{how:?}");
                // The giver has lost them: its addresses lead to nothing, or nowhere.
                let giver = round % 2;
                match how {
                    Move::Protect => {
                        assert_eq!(first_byte(&pages.shared[giver]), None);
                        assert_eq!(first_byte(&pages.shared[1 - giver]), Some(1));
                    }
                    _ => {
                        assert_eq!(first_byte(&pages.private[giver]), Some(0));
                        assert_eq!(first_byte(&pages.private[1 - giver]), Some(1));
                    }
                }
            }
        }
        assert_eq!(pages.give(Move::Copy, 3 * PAGE_BYTES).unwrap(), 1 + 2 + 3);
        assert!(pages.give(Move::Copy, 0).is_err());
        assert!(pages.give(Move::Remap, 3 * PAGE_BYTES + 1).is_err());
    }

    /// The bytes that one side writes are those that the other one reads, in both directions.
    #[test]
    fn the_other_side_reads_what_was_written() {
        for how in Move::ALL {
            let mut pages = Pages::new(2 * PAGE_BYTES).unwrap();
            for round in 0..6_u8 {
                let bytes = vec![round; PAGE_BYTES + 1];
                pages.write(how, &bytes).unwrap();
                pages.give(how, bytes.len()).unwrap();
                let mut got = vec![0; bytes.len()];
                pages.read(how, &mut got).unwrap();
                assert_eq!(got, bytes, "{how:?}");
            }
            let mut long = vec![0; 2 * PAGE_BYTES + 1];
            assert!(pages.write(how, &long).is_err() && pages.read(how, &mut long).is_err());
        }
    }
}
