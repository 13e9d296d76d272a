//! The order in which the kernel ends processes if memory runs out (proc_pid_oom_score_adj(5)): a server before
//! its keeper. The keeper starts the next server, and holds the sessions until then.
//!
//! A server inherits the value, because Landlock lets no server open a file of `/proc` for writing. So the keeper has
//! the higher value while it starts a server. The keeper opens the file before its confinement, and keeps the
//! descriptor over an upgrade.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::{FdFlags, fcntl_setfd};

const FILE: &str = "/proc/self/oom_score_adj";

/// The difference between the values of a server and of its keeper, in thousandths of the memory. A new server needs
/// about as much memory as its keeper, so that a small difference decides.
const DIFFERENCE: i32 = 50;

/// The highest value.
const MOST: i32 = 1000;

/// The file with the keeper's value.
#[derive(Debug)]
pub(super) struct OomScore {
    file: File,
}

impl OomScore {
    /// Opens the value of this process; `None` if the system does not allow that.
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
        let score = OomScore { file };
        score.value().map(|_| score)
    }

    /// Returns the present value of this process, which an administrator may have changed.
    fn value(&self) -> Option<i32> {
        let mut text = [0; 16];
        let len = self.file.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
    }

    /// Calls `start`, which starts a process that the kernel ends before this one. If this process may not change
    /// its value, both processes have the same value.
    pub(super) fn start<T>(&self, start: impl FnOnce() -> T) -> T {
        let Some(keepers) = self.value() else { return start() };
        let _ = self.set((keepers + DIFFERENCE).min(MOST));
        let started = start();
        // A process may always return to its first value.
        if let Err(error) = self.set(keepers) {
            tracing::warn!(
                "the keeper cannot restore its oom_score_adj: {error}; if memory runs out, the kernel may end \
                 the keeper before a server"
            );
        }
        started
    }

    fn set(&self, value: i32) -> io::Result<()> {
        self.file.write_at(value.to_string().as_bytes(), 0).map(drop)
    }

    /// Sets whether the next program of this process inherits the descriptor.
    pub(super) fn set_inheritable(&self, is_inheritable: bool) {
        let flags = if is_inheritable { FdFlags::empty() } else { FdFlags::CLOEXEC };
        let _ = fcntl_setfd(&self.file, flags);
    }
}
