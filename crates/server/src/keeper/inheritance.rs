//! A keeper that executes another program: the keeper stays the same process, and the descriptors stay
//! open under their numbers. A memory file has all else that the next program must know.
//!
//! Unsafe lives here for taking over descriptors by their numbers.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::MemfdFlags;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};

/// The version of the file's format. A program that does not know the version refuses the file, and
/// the keeper goes on with its program.
pub(super) const FORMAT: u32 = 1;

/// The longest file. The most that a keeper holds, [`held`](super::held), with names of half of the
/// greatest length.
const MOST_BYTES: u64 = 64 << 20;

/// The contents of the file. The descriptors are numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Inheritance {
    /// [`FORMAT`].
    pub(super) format: u32,
    /// The connection to the server.
    pub(super) connection: RawFd,
    /// The keeper's socket.
    pub(super) listener: RawFd,
    /// The server's pidfd, and its process number.
    pub(super) server: RawFd,
    pub(super) server_pid: i32,
    /// The administrator that waits for the upgrade.
    pub(super) asking: Option<RawFd>,
    /// How many servers were started.
    pub(super) started: u32,
    /// Whether the server may have AF_XDP sockets made, and if so, whether they poll the hardware.
    pub(super) xdp_sockets: Option<bool>,
    /// The objects that the keeper holds, with their names.
    pub(super) held: Vec<(String, RawFd)>,
}

impl Inheritance {
    /// Writes a memory file, which the next program inherits.
    pub(super) fn write(&self) -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("towpath-keeper", MemfdFlags::empty())?;
        let mut file = File::from(file);
        serde_json::to_writer(&file, self)?;
        file.flush()?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads a memory file. Checks that every descriptor is open.
    pub(super) fn read(file: BorrowedFd<'_>) -> io::Result<Inheritance> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let mut file = File::from(file.try_clone_to_owned()?);
        file.rewind()?;
        let mut text = String::new();
        (&file).take(MOST_BYTES).read_to_string(&mut text)?;
        // The version first: a file of another version may have other fields.
        let contents: serde_json::Value = serde_json::from_str(&text)?;
        if contents["format"] != FORMAT {
            return Err(wrong(format!(
                "the keeper's state has format {}; this program knows format {FORMAT}",
                contents["format"]
            )));
        }
        let found: Inheritance = serde_json::from_value(contents)?;
        let mut numbers: Vec<_> = found.numbers().collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(wrong("the keeper's state names a descriptor twice".to_owned()));
        }
        for number in numbers {
            descriptor(number)?;
        }
        Ok(found)
    }

    /// Returns a copy of an object that the keeper holds.
    pub(super) fn object(&self, name: &str) -> io::Result<OwnedFd> {
        let found = self.held.iter().find(|(one, _)| one == name);
        let (_, number) = found.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("the keeper holds no {name}"))
        })?;
        Ok(rustix::io::fcntl_dupfd_cloexec(descriptor(*number)?, 3)?)
    }

    /// Returns the numbers of all descriptors.
    fn numbers(&self) -> impl Iterator<Item = RawFd> {
        let own = [self.connection, self.listener, self.server];
        let held = self.held.iter().map(|(_, number)| *number);
        own.into_iter().chain(self.asking).chain(held)
    }

    /// Has the descriptors stay open when this process executes another program, or no longer.
    pub(super) fn keep_open(&self, stay: bool) -> io::Result<()> {
        let flags = if stay { FdFlags::empty() } else { FdFlags::CLOEXEC };
        self.numbers().try_for_each(|number| {
            let one = descriptor(number)?;
            Ok(fcntl_setfd(one, flags)?)
        })
    }

    /// Takes over a descriptor that this process has inherited.
    pub(super) fn take(number: RawFd) -> io::Result<OwnedFd> {
        fcntl_setfd(descriptor(number)?, FdFlags::CLOEXEC)?;
        // SAFETY: it is open, and nothing in this process owns it: an earlier program of this process
        // has left it, and the file names each descriptor once.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

/// Borrows an open descriptor by its number.
fn descriptor(number: RawFd) -> io::Result<BorrowedFd<'static>> {
    if number < 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("descriptor {number}")));
    }
    // SAFETY: for one call at a time, by the callers in this file. A number that names no open
    // descriptor is an error of that call.
    let one = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(one)?;
    Ok(one)
}
