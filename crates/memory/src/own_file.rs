//! Memory files that only this process writes, in huge pages where there are some.
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
        own(sealed_file(name, len, MemfdFlags::empty())?, len, PAGE_BYTES)
    }

    /// Maps memory as [`Region::in_own_file`] does, in huge pages. All of them are allocated at
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
        Ok((region, file))
    }
}

/// Maps a new file, which no other process has, and forbids all writing but by this mapping.
fn own(file: OwnedFd, len: usize, page_bytes: usize) -> io::Result<(Region, OwnedFd)> {
    let mapping = Mapping::in_pages(file.as_fd(), len, true, page_bytes)?;
    // A child would share the memory, and no copy of it.
    mapping.keep_from_children()?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
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

    fn has_one_writer(file: OwnedFd) {
        // Files of huge pages take no writes at all.
        let refused = rustix::io::pwrite(&file, b"theirs", 0);
        let refusals = [rustix::io::Errno::PERM, rustix::io::Errno::INVAL];
        assert!(refused.is_err_and(|error| refusals.contains(&error)), "{refused:?}");
        let file = SharedFile::adopt(file).unwrap();
        assert!(file.map_writable().is_err());
    }

    #[test]
    fn an_own_file_has_one_writer() {
        let (mut region, file) = Region::in_own_file("test", 8192).unwrap();
        assert!(region.copy_in(4096, b"mine"));
        let mut seen = [0; 4];
        let read = SharedFile::adopt(file.try_clone().unwrap()).unwrap().map_readable().unwrap();
        assert!(read.copy_out(4096, &mut seen));
        assert_eq!(&seen, b"mine");
        has_one_writer(file);
    }

    /// With two huge pages, which an administrator reserves (`sysctl vm.nr_hugepages=2`), the
    /// memory has them; without, the refusal is the test.
    #[test]
    fn huge_pages_are_private_memory_or_refused() {
        let len = HUGE_PAGE_BYTES + 1;
        match Region::in_huge_pages("test", len) {
            Ok((region, file)) => {
                has_one_writer(file);
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
