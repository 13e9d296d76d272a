//! A server's process, as its keeper sees it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// A server's process, which is a child of this one, and a descriptor that becomes readable when it
/// ends.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pid: Pid,
    pidfd: OwnedFd,
}

impl ServerProcess {
    /// Takes a process over that this one has started. Kills it if there is no descriptor for it.
    pub(super) fn new(mut child: Child) -> io::Result<ServerProcess> {
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(ServerProcess { pid, pidfd }),
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(errno.into())
            }
        }
    }

    /// Takes over a process that an earlier program of this process has started.
    pub(super) fn from_state(pid: i32, pidfd: OwnedFd) -> io::Result<ServerProcess> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        Ok(ServerProcess { pid, pidfd })
    }

    /// Returns the process's number.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal. A process that has ended is no error: the descriptor tells of its end.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Waits until the process has ended, and returns how.
    pub(super) fn wait(&self) -> io::Result<ExitStatus> {
        let ended = retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()))?;
        let (_, status) = ended.ok_or(Errno::CHILD)?;
        Ok(ExitStatus::from_raw(status.as_raw()))
    }
}

/// Returns the exit status of a child; `None` while it runs. A process that is no child counts as ended in order.
pub(super) fn try_reap(process: Pid) -> Option<ExitStatus> {
    match waitpid(Some(process), WaitOptions::NOHANG) {
        Ok(None) | Err(Errno::INTR) => None,
        Ok(Some((_, status))) => Some(ExitStatus::from_raw(status.as_raw())),
        Err(_) => Some(ExitStatus::default()),
    }
}

impl AsFd for ServerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
