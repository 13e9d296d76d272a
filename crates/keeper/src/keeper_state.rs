//! The state of a keeper that executes another program. The keeper stays the same process, and its
//! descriptors stay open under their numbers. A memory file tells the next program the rest.
//!
//! Unsafe lives here for taking over descriptors by their numbers.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::MemfdFlags;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::status::ServerEnd;

/// The version of the format of a device's state. A program that does not know the version refuses the
/// file, and the keeper continues with its program.
pub(super) const FORMAT: u32 = 1;

/// The version of a file with several such states.
const FORMAT_OF_SEVERAL: u32 = 2;

/// The longest file, in bytes: 2^18 descriptors ([`held`](super::held)) with the longest names.
const MOST_BYTES: u64 = 80 << 20;

/// The first descriptor beyond the standard streams.
const FIRST: RawFd = 3;

/// The state of a device: the contents of the file, or one of several. The descriptors are numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeeperState {
    /// [`FORMAT`].
    pub(super) format: u32,
    /// The connection to the server.
    pub(super) connection: RawFd,
    /// The keeper's socket.
    pub(super) listener: RawFd,
    /// The server's pidfd, and its process number.
    pub(super) server: RawFd,
    pub(super) server_pid: i32,
    /// The processes of earlier servers whose descriptors the kernel still closes.
    #[serde(default)]
    pub(super) unreaped: Vec<i32>,
    /// The connection of the administrator that waits for the upgrade.
    pub(super) upgrade_request: Option<RawFd>,
    /// How many servers were started.
    pub(super) servers_started: u32,
    /// Whether the server may have AF_XDP sockets made, and if so, whether they poll the hardware.
    pub(super) xdp_sockets: Option<bool>,
    /// How often servers followed others, and the last end. Not of a keeper without a status file.
    #[serde(default)]
    pub(super) restarts: u64,
    #[serde(default)]
    pub(super) last_end: Option<ServerEnd>,
    /// The objects that the keeper holds, with their names.
    pub(super) held: Vec<(String, RawFd)>,
}

impl KeeperState {
    /// Writes a memory file with the state of each device, which the next program inherits.
    pub(super) fn write(devices: &[KeeperState]) -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("towpath-keeper", MemfdFlags::empty())?;
        let mut file = File::from(file);
        match devices {
            [one] => serde_json::to_writer(&mut file, one)?,
            several => {
                let several = json!({ "format": FORMAT_OF_SEVERAL, "devices": several });
                serde_json::to_writer(&mut file, &several)?;
            }
        }
        file.flush()?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads a memory file: the state of each device. Checks that every descriptor is open.
    pub(super) fn read(file: BorrowedFd<'_>) -> io::Result<Vec<KeeperState>> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let mut file = File::from(file.try_clone_to_owned()?);
        file.rewind()?;
        let mut text = String::new();
        (&file).take(MOST_BYTES).read_to_string(&mut text)?;
        // The version first: a file of another version may have other fields.
        let mut contents: serde_json::Value = serde_json::from_str(&text)?;
        let devices = if contents["format"] == FORMAT_OF_SEVERAL {
            serde_json::from_value(contents["devices"].take())?
        } else {
            vec![contents]
        };
        if devices.is_empty() {
            return Err(wrong("the keeper's state has no device".to_owned()));
        }
        let devices = devices.into_iter().map(KeeperState::of).collect::<io::Result<Vec<_>>>()?;
        let mut numbers: Vec<_> = devices.iter().flat_map(KeeperState::numbers).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(wrong("the keeper's state names a descriptor twice".to_owned()));
        }
        for number in numbers {
            descriptor(number)?;
        }
        Ok(devices)
    }

    /// Reads the state of a device.
    fn of(contents: serde_json::Value) -> io::Result<KeeperState> {
        if contents["format"] != FORMAT {
            let text = format!(
                "the keeper's state has format {}; this program knows the formats {FORMAT} and \
                 {FORMAT_OF_SEVERAL}",
                contents["format"]
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(serde_json::from_value(contents)?)
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
        own.into_iter().chain(self.upgrade_request).chain(held)
    }

    /// Sets or clears close-on-exec on all descriptors. An error with one of them keeps none of the
    /// others from the change.
    pub(super) fn set_close_on_exec(&self, on: bool) -> io::Result<()> {
        let flags = if on { FdFlags::CLOEXEC } else { FdFlags::empty() };
        let set = |number| Ok(fcntl_setfd(descriptor(number)?, flags)?);
        // The first error, after all descriptors.
        self.numbers().map(set).fold(Ok(()), io::Result::and)
    }

    /// Takes over a descriptor that an earlier program of this process has left.
    pub(super) fn take(number: RawFd) -> io::Result<OwnedFd> {
        let one = descriptor(number)?;
        // Each descriptor that this program opens, or has taken over, is closed at an exec.
        if number < FIRST || fcntl_getfd(one)?.contains(FdFlags::CLOEXEC) {
            let text = format!("descriptor {number} is none that an earlier program left");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        fcntl_setfd(one, FdFlags::CLOEXEC)?;
        // SAFETY: it is open, and nothing in this process owns it: it was open across an exec, as the
        // check above shows, and this is the first call for it, because the call sets the flag.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

/// Borrows an open descriptor by its number.
fn descriptor(number: RawFd) -> io::Result<BorrowedFd<'static>> {
    if number < 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("descriptor {number}")));
    }
    // SAFETY: the callers, all in this file, use it for one call, and while the keeper closes no
    // descriptor. A number that names no open descriptor is an error of that call.
    let one = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(one)?;
    Ok(one)
}
