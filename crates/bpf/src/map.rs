//! Maps: tables that a program in the kernel and this process share.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::error::Error;
use crate::syscall::{Attribute, Command, call, call_for_fd, info_of, name, u32_at};

/// The kind of a map (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// A hash table.
    Hash = 1,
    /// Values by index.
    Array = 2,
    /// Values by index, one per processor.
    PerCpuArray = 6,
    /// AF_XDP sockets by index.
    Xsk = 17,
}

/// A map.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    kind: MapKind,
    key_bytes: usize,
    value_bytes: usize,
    entries: u32,
}

#[repr(C)]
struct Create {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; 16],
}

// SAFETY: as the trait requires; it has no pointers.
unsafe impl Attribute for Create {}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

// SAFETY: as the trait requires; `Map::element` checks that key and value have the map's sizes.
unsafe impl Attribute for Element {}

/// `BPF_F_NO_PREALLOC`: allocating all entries at once would take milliseconds, in which a server that
/// follows another one does not serve.
const NO_PREALLOCATION: u32 = 1;

impl Map {
    /// Creates a map of at most `entries` entries, with keys and values of so many bytes. The kernel
    /// allocates an entry of a hash table when it is added.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without CAP_BPF; [`Error::Refused`] without memory.
    pub fn create(
        kind: MapKind,
        map_name: &str,
        key_bytes: usize,
        value_bytes: usize,
        entries: u32,
    ) -> Result<Map, Error> {
        let mut attribute = Create {
            kind: kind as u32,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            entries,
            flags: if kind == MapKind::Hash { NO_PREALLOCATION } else { 0 },
            inner: 0,
            node: 0,
            name: name(map_name),
        };
        let created = call_for_fd(Command::MapCreate, &mut attribute);
        let fd = created.map_err(Error::of("creating a BPF map"))?;
        Ok(Map { fd, kind, key_bytes, value_bytes, entries })
    }

    /// Takes over a map's descriptor, which another process held.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for anything but a map of this kind and these sizes.
    pub fn from_fd(
        fd: OwnedFd,
        kind: MapKind,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<Map, Error> {
        let what = "taking over a BPF map";
        let info = info_of::<24>(fd.as_raw_fd()).map_err(Error::of(what))?;
        let found = [0, 8, 12].map(|at| u32_at(&info, at));
        if found != [kind as u32, key_bytes as u32, value_bytes as u32] {
            return Err(Error::Mismatch { what, why: "it is another map" });
        }
        Ok(Map { fd, kind, key_bytes, value_bytes, entries: u32_at(&info, 16) })
    }

    /// Returns the maximum number of entries.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the number of bytes that the kernel copies for a value.
    fn copied_bytes(&self) -> Result<usize, Error> {
        if self.kind != MapKind::PerCpuArray {
            return Ok(self.value_bytes);
        }
        let processors = possible_processors().map_err(Error::of("counting the processors"))?;
        Ok(self.value_bytes.next_multiple_of(8) * processors)
    }

    fn element(
        &self,
        what: &'static str,
        command: Command,
        key: &[u8],
        value: Option<*mut [u8]>,
    ) -> Result<(), Error> {
        let value_bytes = self.copied_bytes()?;
        if key.len() != self.key_bytes || value.is_some_and(|value| value.len() != value_bytes) {
            return Err(Error::Mismatch { what, why: "a key or a value of another size" });
        }
        let mut attribute = Element {
            map: self.fd.as_raw_fd() as u32,
            padding: 0,
            key: key.as_ptr() as u64,
            value: value.map_or(0, |value| value.cast::<u8>() as u64),
            flags: 0,
        };
        call(command, &mut attribute).map(drop).map_err(Error::of(what))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Error::Refused`] with E2BIG (hash table) if the map is full; [`Error::Mismatch`] for
    /// another size.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        // The kernel only reads the value.
        let value = std::ptr::from_ref(value).cast_mut();
        self.element("changing a BPF map", Command::MapUpdate, key, Some(value))
    }

    /// Puts a socket or another descriptor into a map of such.
    ///
    /// # Errors
    /// As [`Map::update`].
    pub fn set_fd(&self, index: u32, fd: BorrowedFd<'_>) -> Result<(), Error> {
        self.update(&index.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes())
    }

    /// Removes a key. Returns `false` if it is not in the map.
    ///
    /// # Errors
    /// [`Error::Refused`] for a map that keeps all keys; [`Error::Mismatch`] for another size.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        match self.element("changing a BPF map", Command::MapDelete, key, None) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns all keys. Keys that come or go meanwhile may be missing, or there twice.
    ///
    /// # Errors
    /// [`Error::Refused`] for a map without keys to read.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Error> {
        let what = "reading a BPF map";
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // A key that goes has the kernel begin anew, so the number of steps has a bound.
        for _ in 0..self.entries.saturating_mul(2) {
            let mut next = vec![0; self.key_bytes];
            let mut attribute = Element {
                map: self.fd.as_raw_fd() as u32,
                padding: 0,
                key: keys.last().map_or(0, |key| key.as_ptr() as u64),
                value: next.as_mut_ptr() as u64,
                flags: 0,
            };
            match call(Command::MapNextKey, &mut attribute) {
                Ok(_) => keys.push(next),
                Err(cause) if cause.raw_os_error() == Some(libc::ENOENT) => break,
                Err(cause) => return Err(Error::of(what)(cause)),
            }
        }
        Ok(keys)
    }

    /// Returns the value of a key: for a map with one value per processor, all of them behind each
    /// other, each at a multiple of 8 bytes.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for another size; [`Error::Refused`] for a map that cannot be read.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = vec![0; self.copied_bytes()?];
        let to = std::ptr::from_mut(&mut value[..]);
        match self.element("reading a BPF map", Command::MapLookup, key, Some(to)) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the sum of a 64-bit counter over all processors.
    ///
    /// # Errors
    /// As [`Map::lookup`].
    pub fn sum(&self, index: u32) -> Result<u64, Error> {
        let values = self.lookup(&index.to_ne_bytes())?.unwrap_or_default();
        let (words, _) = values.as_chunks::<8>();
        Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).fold(0, u64::wrapping_add))
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of processors that the kernel may have, which determines the size of values
/// per processor (`num_possible_cpus`).
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = |range: &str| range.rsplit('-').next().and_then(|last| last.trim().parse().ok());
    let highest = text.trim().split(',').filter_map(last).max();
    highest.map(|last: usize| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
