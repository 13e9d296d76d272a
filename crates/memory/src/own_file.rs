//! Memory files that one process after the other writes, in huge pages where there are some.
//!
//! A memory file can live on in the hands of another process, which private memory cannot; and the
//! kernel's huge pages, which an administrator reserves, come as files.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::{Mapping, PAGE_BYTES, Region, sealed_file};

/// The size of a huge page. Other sizes are left to programs that fill them.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Region {
    /// Maps zeroed memory for this process only, of `len` bytes rounded up to pages, in a memory
    /// file. Another process can hold the returned descriptor of it. No process can write the
    /// memory by that descriptor, or map it for writing. Processes forked from this one do not have
    /// the memory.
    ///
    /// # Errors
    /// The error of making, mapping or sealing the file; `ENOMEM` when there is no memory.
    pub fn in_own_file(name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let own = own(sealed_file(name, len, MemfdFlags::empty())?, len, PAGE_BYTES)?;
        rustix::fs::fcntl_add_seals(&own.1, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(own)
    }

    /// Maps memory as [`Region::in_own_file`] does, which the next process can write once this one has
    /// ended ([`Region::of_earlier_file`]). The caller hands the descriptor to a process only that
    /// keeps this rule.
    ///
    /// # Errors
    /// As [`Region::in_own_file`].
    pub fn in_kept_file(name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let file = sealed_file(name, len, MemfdFlags::empty())?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL)?;
        own(file, len, PAGE_BYTES)
    }

    /// Returns `true` if [`Region::of_earlier_file`] can map memory of `len` bytes in this file.
    #[must_use]
    pub fn is_file_of(file: &OwnedFd, len: usize) -> bool {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        size_of(file).is_ok_and(|(bytes, page_bytes)| match page_bytes {
            PAGE_BYTES => bytes == len,
            HUGE_PAGE_BYTES => bytes == len.next_multiple_of(HUGE_PAGE_BYTES),
            _ => false,
        })
    }

    /// Maps the memory of a process that has ended, from the file of [`Region::in_kept_file`] or
    /// [`Region::in_huge_pages`], with what that process left in it.
    ///
    /// # Errors
    /// `EINVAL` for a file of another length; the error of `mmap`.
    pub fn of_earlier_file(file: OwnedFd, len: usize) -> io::Result<(Region, OwnedFd)> {
        if !Region::is_file_of(&file, len) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let (_, page_bytes) = size_of(&file)?;
        own(file, len.max(1).next_multiple_of(PAGE_BYTES), page_bytes)
    }

    /// Maps memory as [`Region::in_kept_file`] does, in huge pages. All of them are allocated at
    /// once, so no later access fails or waits for one.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` when too few huge pages are free; the error of making or mapping the
    /// file, such as that of a kernel without huge pages of this size.
    pub fn in_huge_pages(name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let mapped_bytes = len.next_multiple_of(HUGE_PAGE_BYTES);
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = sealed_file(name, mapped_bytes, flags)?;
        // The mapping reserves all pages, or none.
        let (region, file) = own(file, len, HUGE_PAGE_BYTES)?;
        // Without this, an access could still be a bus error: a control group, or the nodes that
        // this process may allocate from, refuse a page only then.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mapped_bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL)?;
        Ok((region, file))
    }
}

/// The size and the pages of a file.
fn size_of(file: &OwnedFd) -> io::Result<(usize, usize)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_size as usize, stat.st_blksize as usize))
}

/// Maps a file, which no other process maps.
fn own(file: OwnedFd, len: usize, page_bytes: usize) -> io::Result<(Region, OwnedFd)> {
    let mapping = Mapping::in_pages(file.as_fd(), len, true, page_bytes)?;
    // A child would share the memory, and no copy of it.
    mapping.keep_from_children()?;
    Ok((Region::alone(mapping), file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedFile;

    fn holds_bytes(mut region: Region, len: usize) {
        assert_eq!((region.len(), region.mapping().len()), (len, len));
        assert_eq!(region.bytes(0, len), Some(&vec![0; len][..]), "zeroed");
        assert!(region.copy_in(len - 4, b"last") && !region.copy_in(len - 3, b"last"));
        assert_eq!(region.bytes(len - 4, 4), Some(b"last".as_slice()), "no other mapping exists");
        region.mapping().populate();
        let mapping = region.mapping().clone();
        drop(region);
        let mut seen = [0; 4];
        assert!(mapping.copy_out(len - 4, &mut seen));
        assert_eq!(&seen, b"last");
    }

    #[test]
    fn an_own_file_is_private_memory() {
        for len in [1, PAGE_BYTES, HUGE_PAGE_BYTES + 1] {
            let (region, _) = Region::in_own_file("test", len).unwrap();
            assert_eq!(region.mapping().page_bytes(), PAGE_BYTES);
            holds_bytes(region, len.next_multiple_of(PAGE_BYTES));
        }
    }

    #[test]
    fn an_own_file_has_one_writer() {
        let (mut region, file) = Region::in_own_file("test", 8192).unwrap();
        assert!(region.copy_in(4096, b"mine"));
        let mut seen = [0; 4];
        let file = SharedFile::adopt(file).unwrap();
        assert!(file.map_readable().unwrap().copy_out(4096, &mut seen));
        assert_eq!(&seen, b"mine");
        assert!(file.map_writable().is_err());
        let refused = rustix::io::pwrite(OwnedFd::from(file), b"theirs", 0);
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn the_next_process_finds_what_was_written() {
        let (mut region, file) = Region::in_kept_file("test", 8192).unwrap();
        assert!(region.copy_in(4096, b"mine"));
        drop(region);
        assert!(Region::of_earlier_file(file.try_clone().unwrap(), 4096).is_err());
        let (mut region, file) = Region::of_earlier_file(file, 8190).unwrap();
        assert_eq!(region.bytes(4096, 4), Some(b"mine".as_slice()));
        assert!(region.copy_in(4096, b"next"));
        assert!(rustix::fs::ftruncate(&file, 4096).is_err(), "none can shorten it");
    }

    /// With two huge pages, which an administrator reserves (`sysctl vm.nr_hugepages=2`), the
    /// memory has them; without, the refusal is the test.
    #[test]
    fn huge_pages_are_private_memory_or_refused() {
        let len = HUGE_PAGE_BYTES + 1;
        match Region::in_huge_pages("test", len) {
            Ok((region, file)) => {
                assert!(Region::is_file_of(&file, len) && !Region::is_file_of(&file, 3 * len));
                assert_eq!(region.mapping().page_bytes(), HUGE_PAGE_BYTES);
                assert!(region.mapping().wipe_in_children().is_err(), "not for files");
                holds_bytes(region, len.next_multiple_of(PAGE_BYTES));
            }
            Err(error) => println!("refused: {error}"),
        }
    }

    /// More than any machine has. Huge pages that other programs may want are not taken meanwhile.
    #[test]
    fn too_few_huge_pages_are_refused() {
        assert!(Region::in_huge_pages("test", 1 << 46).is_err());
        assert!(Region::in_own_file("test", 1).is_ok());
    }

    /// Children share a memory file. This one is not theirs.
    #[test]
    fn children_do_not_have_it() {
        let (region, _) = Region::in_own_file("test", 1).unwrap();
        let start = format!("{:x}-", region.mapping().start().as_ptr() as usize);
        let map = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (_, ours) = map.split_once(&start).unwrap();
        let (_, flags) = ours.split_once("VmFlags:").unwrap();
        let flags = flags.lines().next().unwrap();
        assert!(flags.split(' ').any(|flag| flag == "dc"), "no copy on fork: {flags}");
    }
}
