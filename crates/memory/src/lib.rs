//! Memory that two processes share, and its mapping.
//!
//! | type | is | offers |
//! |---|---|---|
//! | [`SharedFile`] | a memory file whose length is sealed | mappings |
//! | [`Mapping`] | mapped memory that another side may write; any number of threads read it | copies out of it, by atomics |
//! | [`Region`] | the right to write a range of a mapping; each range has one | copies into it, by atomics and `&mut self` |
//! | [`CommonMemory`] | a range that several processes write | copies and words, by atomics |
//! | [`CopyArea`](copying::CopyArea), [`Copies`](copies::Copies) | both sides of copies that a process asks another one for | requests, and their outcomes |
//! | [`ForkGuard`] | a page that children made by `fork` find wiped | a check whether this process is such a child |
//!
//! The types promise that a mapping stays mapped for as long as its value lives, and that its file
//! can neither shrink nor grow meanwhile (seals). Safe code reads and writes mapped memory only by
//! the queue crate's atomics and copies, so no peer and no thread can cause a data race. One safe
//! function forms a reference into mapped memory: [`Region::bytes`], while the region is borrowed,
//! for private memory of this process that only the region writes. The other functions that form
//! one are unsafe.

mod common;
pub mod copies;
pub mod copying;
mod fork;
mod mapping;
mod own_file;
mod region;
mod words;

pub use common::CommonMemory;
pub use fork::ForkGuard;
pub use mapping::{FilePart, Mapping};
pub use own_file::HUGE_PAGE_BYTES;
pub use region::{PrivateFile, Region};
pub use words::{own_words, peer_words};

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, SealFlags};

/// The size of a page. Created files and anonymous mappings have a multiple of it as length.
pub const PAGE_BYTES: usize = 4096;

/// A sealed memory file: the descriptor and its length.
#[derive(Debug)]
pub struct SharedFile {
    file: OwnedFd,
    len: usize,
}

impl SharedFile {
    /// Creates a memory file of `len` bytes, rounded up to pages, of mode 0600. From now on it can
    /// neither shrink nor grow.
    ///
    /// # Errors
    /// The error of `memfd_create`, `fchmod`, `ftruncate` or `fcntl(F_ADD_SEALS)`; `ENOMEM` when
    /// there is no memory.
    pub fn create(name: &str, len: usize) -> io::Result<SharedFile> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let file = sealed_file(name, len, MemfdFlags::empty())?;
        Ok(SharedFile { file, len })
    }

    /// Takes over a descriptor received from a peer or a store; the kernel reports its length.
    ///
    /// # Errors
    /// `EINVAL` when the file is not sealed against shrinking and growing: a shrunk file would
    /// fault this process.
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

    /// Forbids all further writable mappings and writes, through any descriptor; existing writable
    /// mappings stay. The peer that mapped the file before is from now on its only writer.
    ///
    /// # Errors
    /// The error of `fcntl(F_ADD_SEALS)`.
    pub fn seal_future_write(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    /// Forbids further seals, so that no process can make the file unwritable for this one.
    ///
    /// # Errors
    /// The error of `fcntl(F_ADD_SEALS)`.
    pub fn seal_seals(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.file, SealFlags::SEAL)?)
    }

    /// Returns a new read-only descriptor of the same file. A process of another user cannot make
    /// it writable again, since the file's mode is 0600.
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

    /// Maps the whole file for common use: others may write it at any time, and so may this process
    /// if `is_writable`. The caller makes no [`Region`] of the same file.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn map_common(&self, is_writable: bool) -> io::Result<CommonMemory> {
        let mapping = Mapping::new(self.file.as_fd(), self.len, is_writable)?;
        Ok(CommonMemory::new(mapping, is_writable))
    }

    /// Maps the whole file for reading and writing.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn map_writable(&self) -> io::Result<Region> {
        Ok(Region::of_file(Mapping::new(self.file.as_fd(), self.len, true)?))
    }

    /// Maps the whole file for reading only.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn map_readable(&self) -> io::Result<Mapping> {
        Mapping::new(self.file.as_fd(), self.len, false)
    }
}

/// Creates a memory file of `len` bytes and of mode 0600, which can neither shrink nor grow.
fn sealed_file(name: &str, len: usize, flags: MemfdFlags) -> io::Result<OwnedFd> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        // MFD_NOEXEC_SEAL came with Linux 6.3. Before it, the only difference is that a memory file
        // is executable.
        .or_else(|error| match error {
            rustix::io::Errno::INVAL => rustix::fs::memfd_create(name, flags),
            other => Err(other),
        })?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
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
