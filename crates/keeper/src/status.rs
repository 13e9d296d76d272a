//! The status file, by which a keeper tells every user the state of a device, also while no server runs.
//!
//! The file is beside the server's socket. Only the keeper writes it, and its readers can do nothing
//! to the keeper: they open no connection, and take no lock that the keeper waits for. The keeper holds
//! an exclusive lock on the file (flock(2)). So a reader knows that the file is of a keeper that lives:
//! a shared lock would have to wait.
//!
//! The first byte is a digit, the number of the change. It is odd while the keeper writes the rest: an
//! object of JSON, and spaces. A reader that finds another digit afterwards reads again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::notify::printable;

/// The length of the file, in bytes.
const BYTES: usize = 2048;

/// The longest reason, in bytes.
const MOST_REASON_BYTES: usize = 512;

/// Attempts to read a file that changes meanwhile, and how many of them follow each other without a
/// pause. A change follows a server's start or end, so two of them are milliseconds apart. But the
/// keeper may lose its processor in the middle of one.
const ATTEMPTS: u32 = 500;
const ATTEMPTS_AT_ONCE: u32 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// What a device's keeper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// The first server starts.
    Starting,
    /// A server serves.
    Serving,
    /// No server serves now. The keeper holds everything for the next one.
    Restarting,
    /// No server serves. The keeper starts another one from time to time, and holds nothing.
    Failed,
    /// The last server ends.
    Ending,
}

impl std::fmt::Display for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DeviceState::Starting => "starting",
            DeviceState::Serving => "serving",
            DeviceState::Restarting => "restarting",
            DeviceState::Failed => "failed",
            DeviceState::Ending => "ending",
        })
    }
}

/// The end of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEnd {
    /// The time, in seconds since 1970.
    pub at: u64,
    /// How the server ended, in words. They may have the server's own.
    pub reason: String,
}

impl ServerEnd {
    /// Returns the end of a server that ends now.
    pub(super) fn now(reason: &str) -> ServerEnd {
        ServerEnd { at: seconds(), reason: printable(reason, MOST_REASON_BYTES) }
    }
}

/// What a keeper tells about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The device's interface, by the name that the keeper was started with.
    pub device: String,
    /// The interface's name, if it has another one now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub interface: Option<String>,
    /// The keeper's process.
    pub keeper: u32,
    /// The version of the keeper's program.
    pub version: String,
    /// What the keeper does.
    pub state: DeviceState,
    /// The time at which that began, in seconds since 1970.
    pub since: u64,
    /// How often a server of the device ended and another one followed, other than for an upgrade.
    pub restarts: u64,
    /// The last such end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_end: Option<ServerEnd>,
}

/// Returns the path of the status file of a device, by the path of the server's socket.
#[must_use]
pub fn status_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

/// Returns what the keeper of the server with this socket tells; `None` if no keeper lives there.
#[must_use]
pub fn device_status(socket: &Path) -> Option<DeviceStatus> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(status_path(socket)).ok()?;
    if !file.metadata().ok()?.is_file()
        || flock(&file, FlockOperation::NonBlockingLockShared) != Err(Errno::WOULDBLOCK)
    {
        return None;
    }
    (0..ATTEMPTS).find_map(|attempt| {
        if attempt >= ATTEMPTS_AT_ONCE {
            std::thread::sleep(PAUSE);
        }
        read(&file)
    })
}

/// Reads the file; `None` if it changes meanwhile.
fn read(file: &File) -> Option<DeviceStatus> {
    let digit = || {
        let mut digit = [0];
        file.read_exact_at(&mut digit, 0).ok()?;
        digit[0].is_ascii_digit().then_some(digit[0])
    };
    let before = digit().filter(|digit| (digit - b'0').is_multiple_of(2))?;
    let mut text = [0; BYTES - 1];
    file.read_exact_at(&mut text, 1).ok()?;
    if digit()? != before {
        return None;
    }
    serde_json::from_slice(&text).ok()
}

/// The file of a device's keeper. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct StatusFile {
    file: File,
    path: PathBuf,
    changes: u8,
}

impl StatusFile {
    /// Makes the file, in place of one that a killed keeper left behind. `owner`: its user and group,
    /// who can then remove it in a directory where only owners remove files.
    pub(super) fn create(path: &Path, owner: Option<(u32, u32)>) -> io::Result<StatusFile> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Until the lock is taken, other users cannot open it.
        let options =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let made = StatusFile { file: options?, path: path.to_owned(), changes: 0 };
        flock(&made.file, FlockOperation::NonBlockingLockExclusive)?;
        made.file.write_all_at(&[b' '; BYTES], 0)?;
        made.file.set_permissions(PermissionsExt::from_mode(0o644))?;
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::fchown(&made.file, Some(uid), Some(gid))?;
        }
        Ok(made)
    }

    /// Writes what readers find from now on.
    pub(super) fn write(&mut self, status: &DeviceStatus) -> io::Result<()> {
        let mut text = serde_json::to_vec(status)?;
        text.resize(BYTES - 2, b' ');
        text.push(b'\n');
        self.change()?;
        self.file.write_all_at(&text, 1)?;
        self.change()
    }

    fn change(&mut self) -> io::Result<()> {
        self.changes = (self.changes + 1) % 10;
        self.file.write_all_at(&[b'0' + self.changes], 0)
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns the time, in seconds since 1970.
pub(super) fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(restarts: u64, reason: &str) -> DeviceStatus {
        DeviceStatus {
            device: "tap0".into(),
            interface: None,
            keeper: 7,
            version: "0.1.0".into(),
            state: DeviceState::Serving,
            since: 1,
            restarts,
            last_end: Some(ServerEnd::now(reason)),
        }
    }

    #[test]
    fn readers_find_a_whole_status_while_the_keeper_lives() {
        let directory = std::env::temp_dir().join(format!("towpath-status-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("s.sock");
        assert_eq!(device_status(&socket), None);
        let mut file = StatusFile::create(&status_path(&socket), None).unwrap();
        assert_eq!(device_status(&socket), None, "empty");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while last < 2000 {
                    let Some(found) = device_status(&socket) else { continue };
                    assert!(found.restarts >= last);
                    last = found.restarts;
                    // The length says which of the changes it is.
                    let end = found.last_end.unwrap();
                    assert_eq!(end.reason, "x".repeat(found.restarts as usize % 500));
                }
            });
            for restarts in 0..=2000 {
                let reason = "x".repeat(restarts % 500);
                file.write(&status(restarts as u64, &reason)).unwrap();
                std::thread::sleep(Duration::from_micros(20));
            }
            reader.join().unwrap();
        });
        // The keeper loses its processor in the middle of a change.
        file.change().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| device_status(&socket));
            std::thread::sleep(Duration::from_millis(30));
            file.change().unwrap();
            assert_eq!(reader.join().unwrap().map(|found| found.restarts), Some(2000));
        });
        // The next program of the process.
        let mut next = StatusFile::create(&status_path(&socket), None).unwrap();
        next.write(&status(9, "y\n\u{1b}[2J")).unwrap();
        let found = device_status(&socket).unwrap();
        assert_eq!((found.restarts, &*found.last_end.unwrap().reason), (9, "y  [2J"));
        let left = directory.join("left");
        std::fs::hard_link(status_path(&socket), &left).unwrap();
        drop(next);
        assert!(!status_path(&socket).exists());
        // As a killed keeper leaves it.
        std::fs::rename(&left, status_path(&socket)).unwrap();
        assert_eq!(device_status(&socket), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_reason_has_an_end() {
        assert_eq!(printable(&"ä".repeat(600), MOST_REASON_BYTES).len(), MOST_REASON_BYTES);
        let long = status(u64::MAX, &"\"\\".repeat(600));
        assert!(serde_json::to_vec(&long).unwrap().len() < BYTES);
    }
}
