//! The order in which the kernel ends processes if memory runs out (proc_pid_oom_score_adj(5)): a server before
//! its keeper. The keeper starts the next server, and holds the sessions until then.
//!
//! A server inherits the value, because Landlock lets a keeper and its servers open no file of `/proc` for writing.
//! So the keeper has the higher value while it starts a server. Its descriptor outlives its confinement and an upgrade.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::{FdFlags, fcntl_setfd};

const FILE: &str = "/proc/self/oom_score_adj";

/// The points, of a thousandth of the memory each, that a server is ahead of its keeper. A server that starts is about
/// as large as its keeper.
const AHEAD: i32 = 50;

/// The highest value.
const MOST: i32 = 1000;

/// The value of a keeper, and the means to change it.
#[derive(Debug)]
pub(super) struct OomScore {
    file: File,
    keepers: i32,
}

impl OomScore {
    /// Opens the value of this process; `None` if the system does not let it.
    pub(super) fn open() -> Option<OomScore> {
        OomScore::of(OpenOptions::new().read(true).write(true).open(FILE).ok()?)
    }

    /// Finds the descriptor that the keeper's earlier program left; `None` if there is none.
    pub(super) fn inherited() -> Option<OomScore> {
        let own = format!("/proc/{}/oom_score_adj", std::process::id());
        let mut entries = std::fs::read_dir("/proc/self/fd").ok()?.flatten();
        let entry = entries.find(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == own.as_str())
        })?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        OomScore::of(File::from(super::ready::inherited(number).ok()?))
    }

    fn of(file: File) -> Option<OomScore> {
        let mut text = [0; 16];
        let len = file.read_at(&mut text, 0).ok()?;
        let keepers = std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()?;
        Some(OomScore { file, keepers })
    }

    /// Starts a process that the kernel ends before this one. Where the system does not let this process change
    /// its value, the new process has the same one.
    pub(super) fn start<T>(&self, start: impl FnOnce() -> T) -> T {
        let _ = self.set((self.keepers + AHEAD).min(MOST));
        let started = start();
        // A process may always go back to its first value.
        if let Err(error) = self.set(self.keepers) {
            tracing::warn!("the keeper's oom_score_adj: {error}");
        }
        started
    }

    fn set(&self, value: i32) -> io::Result<()> {
        self.file.write_at(value.to_string().as_bytes(), 0).map(drop)
    }

    /// Lets the next program of this process have the descriptor, or no longer.
    pub(super) fn leave_to_next_program(&self, leaves: bool) {
        let flags = if leaves { FdFlags::empty() } else { FdFlags::CLOEXEC };
        let _ = fcntl_setfd(&self.file, flags);
    }
}
