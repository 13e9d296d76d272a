//! Memory that two processes share, and its mapping.
//!
//! | type | is | offers |
//! |---|---|---|
//! | [`SharedFile`] | a memory file whose length is sealed | mappings |
//! | [`Mapping`] | mapped memory that others may write; any number of threads read it | copies out of it, by atomics |
//! | [`Region`] | the right to write a range of a mapping; there is one of each range | copies into it, by atomics and `&mut self` |
//!
//! The types promise: a mapping is mapped for as long as the value lives, and its file can neither
//! shrink nor grow meanwhile (seals). Safe code reads and writes mapped memory by the queue crate's
//! atomics and copies alone, so no peer and no thread can make a data race of it. A reference into
//! mapped memory is formed in three ways: from private memory of this process that only a region
//! writes ([`Region::bytes`], while the region is borrowed), and by the two functions that are
//! unsafe for it.

mod mapping;
mod region;
mod words;

pub use mapping::Mapping;
pub use region::Region;
pub use words::{own_words, peer_words};

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, SealFlags};

/// Size of a page; every region's length is a multiple of it.
pub const PAGE_BYTES: usize = 4096;

/// A sealed memory file made by the server: its own read-write descriptor, and a read-only one to
/// hand out.
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
    /// The error of `memfd_create`, `ftruncate` or `fcntl(F_ADD_SEALS)`; `ENOMEM` when the memory
    /// is not to be had.
    pub fn create(name: &str, len: usize) -> io::Result<SharedFile> {
        let file = rustix::fs::memfd_create(
            name,
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL,
        )
        // MFD_NOEXEC_SEAL came with Linux 6.3; before it, a memory file is executable and that is
        // all.
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

    /// Takes over a descriptor received from a peer or a store; the kernel reports its length.
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

    /// Returns the length in bytes, a multiple of [`PAGE_BYTES`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: a memory file has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forbids all further writable mappings and writes, through any descriptor; those that exist
    /// stay. The peer that mapped it before is from now on its only writer.
    ///
    /// # Errors
    /// The error of `fcntl(F_ADD_SEALS)`.
    pub fn seal_future_write(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    /// Forbids further seals, so that no process can make the file unwritable for us.
    ///
    /// # Errors
    /// The error of `fcntl(F_ADD_SEALS)`.
    pub fn seal_seals(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.file, SealFlags::SEAL)?)
    }

    /// Returns a new descriptor of the same file that can only be read. A process of another user
    /// cannot make it writable again, since the file's mode is 0600.
    ///
    /// # Errors
    /// The error of opening `/proc/self/fd/N`: `ENOENT` where `/proc` is not mounted.
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
    /// The error of `mmap`.
    pub fn map_writable(&self) -> io::Result<Region> {
        Ok(Region::of_file(Mapping::new(self.file.as_fd(), self.len, true)?))
    }

    /// Maps all of it for reading alone.
    ///
    /// # Errors
    /// The error of `mmap`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_file_is_one_memory() {
        let file = SharedFile::create("test", 5000).unwrap();
        assert_eq!(file.len(), 2 * PAGE_BYTES);
        let mut writer = file.map_writable().unwrap();
        let reader = SharedFile::adopt(file.read_only().unwrap()).unwrap().map_readable().unwrap();
        let mut seen = [0];
        assert!(writer.copy_in(2 * PAGE_BYTES - 1, &[7]));
        assert!(reader.copy_out(2 * PAGE_BYTES - 1, &mut seen));
        assert_eq!(seen, [7]);
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
