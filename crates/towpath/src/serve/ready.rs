//! Tells the program that started the server that applications can attach.
//!
//! Unsafe lives here for taking over a descriptor by its number.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use towpath_keeper::drop_capabilities;
use tracing::warn;

use super::notify::{has_service_manager, notify_until};

use crate::failure::{Failure, says};

/// The longest time that a service manager may take for READY=1: longer than it waits for a service that starts.
const READY_PATIENCE: Duration = Duration::from_secs(3600);

/// The receivers of the readiness message beside the service manager.
#[derive(Debug)]
pub(super) struct Ready {
    to: Option<File>,
}

impl Ready {
    /// Takes an inherited descriptor by its number. Call it before this process opens a descriptor.
    pub(super) fn take(number: Option<i32>) -> Result<Ready, Failure> {
        let Some(number) = number else { return Ok(Ready { to: None }) };
        if number < 3 {
            // Standard streams stay open: the server writes to a duplicate and closes that.
            // SAFETY: borrowed for one call; a number that names no open descriptor is an error.
            let stream = unsafe { BorrowedFd::borrow_raw(number) };
            let copy = rustix::io::fcntl_dupfd_cloexec(stream, 3)
                .map_err(|errno| bad(number, &errno.into()))?;
            return Ok(Ready { to: Some(File::from(copy)) });
        }
        let given = inherited(number).map_err(|error| bad(number, &error))?;
        Ok(Ready { to: Some(File::from(given)) })
    }

    /// Writes a line `ready DEVICE SOCKET` for each device that is served, and closes the descriptor. Sends READY=1 to
    /// systemd if `NOTIFY_SOCKET` is set. Both happen in separate threads, because the readers may not read for long,
    /// or never. Call it when the process has given up its rights.
    pub(super) fn tell<'a>(self, served: impl Iterator<Item = (&'a str, &'a Path)>) {
        if let Some(mut to) = self.to {
            let line =
                |(device, socket): (&str, &Path)| format!("ready {device} {}\n", socket.display());
            let lines: String = served.map(line).collect();
            in_a_thread("--ready-fd", move || match to.write_all(lines.as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                other => other,
            });
        }
        if has_service_manager() {
            in_a_thread("NOTIFY_SOCKET", || {
                notify_until(&[NotifyState::Ready], &[], Instant::now() + READY_PATIENCE)
            });
        }
    }
}

/// Tells another program something in a thread without capabilities. `to` names the program in a warning.
fn in_a_thread(to: &'static str, tell: impl FnOnce() -> io::Result<()> + Send + 'static) {
    let run = move || {
        drop_capabilities();
        if let Err(error) = tell() {
            warn!("{to}: {}", says(&error));
        }
    };
    let thread = std::thread::Builder::new().name("towpath-ready".to_owned()).spawn(run);
    if let Err(error) = thread {
        warn!("{to}: no thread that writes to it: {}", says(&error));
    }
}

/// Takes a descriptor over by its number, which the program that started this one has named. Call it
/// once for a number, and before this process opens a descriptor.
pub(super) fn inherited(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: borrowed for one call; a number that names no open descriptor is an error.
    let given = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(given, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and nothing in this process owns it: the caller opens nothing before,
    // and the program that started us named it as ours.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn bad(number: i32, error: &io::Error) -> Failure {
    let said = says(error);
    Failure::usage(format!("--ready-fd {number}: {said}; give the number of an open descriptor"))
}
