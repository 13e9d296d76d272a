//! Requests to end or to read files again: SIGTERM, SIGINT and SIGHUP as a descriptor to wait for,
//! so that they interrupt no system call of any thread.
//!
//! Unsafe lives here for calls on signals, which rustix does not have.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Signals within this time are one.
const TOGETHER: Duration = Duration::from_millis(100);

/// Requests from the service manager, the keyboard, and the terminal's end.
const ASKING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The signals, blocked for the thread that made this value and all threads that it starts later.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: OwnedFd,
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals. Call it before any thread starts: the kernel would deliver a signal to a
    /// thread without the block, and end the process.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub(crate) fn block() -> io::Result<Signals> {
        Signals::block_these(&ASKING)
    }

    /// Blocks SIGUSR2 as well, with which a keeper has its server leave everything to the next one.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub(crate) fn block_with_leave() -> io::Result<Signals> {
        let [term, interrupt, hang_up] = ASKING;
        Signals::block_these(&[term, interrupt, hang_up, libc::SIGUSR2])
    }

    fn block_these(signals: &[libc::c_int]) -> io::Result<Signals> {
        // SAFETY: a set of signals is an array of integers; all zeros is a value.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        for signal in signals.iter().copied() {
            // SAFETY: a live set, and a signal's number.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: reads a live set; nothing is to be written to.
        let outcome =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if outcome != 0 {
            return Err(io::Error::from_raw_os_error(outcome));
        }
        // SAFETY: reads a live set; the answer is checked before it is owned.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just opened, with no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd, set })
    }

    /// Takes the next signal that has arrived: its number.
    pub(crate) fn take(&self) -> Option<libc::c_int> {
        let mut taken = [0; size_of::<libc::signalfd_siginfo>()];
        let length = rustix::io::read(&self.fd, &mut taken).ok()?;
        // The signal's number is the first field (signalfd(2)).
        let number = taken.first_chunk().filter(|_| length == taken.len())?;
        Some(u32::from_ne_bytes(*number) as libc::c_int)
    }

    /// Does the same as [`Signals::release`], after a tenth of a second. `timeout` (coreutils) signals
    /// its program and then the program's group: such a second signal belongs to the first.
    pub(crate) fn release_soon(self) {
        let signals = Arc::new(self);
        let others = signals.clone();
        let release = move || {
            std::thread::sleep(TOGETHER);
            others.release();
            // From now on, the kernel may deliver a signal of the process to this thread.
            loop {
                std::thread::park();
            }
        };
        if std::thread::Builder::new().name("signals".into()).spawn(release).is_err() {
            signals.release();
        }
    }

    /// Restores the former effect of each signal: a second signal ends the process, in case an
    /// orderly end takes too long. A pending signal ends the process at once.
    pub(crate) fn release(&self) {
        // The kernel does not deliver a signal again that was read from the descriptor.
        let mut taken = [0; size_of::<libc::signalfd_siginfo>() * ASKING.len()];
        let _ = rustix::io::read(&self.fd, &mut taken);
        // SAFETY: reads a live set; nothing is to be written to.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.set, std::ptr::null_mut());
        }
    }
}

/// Makes a write to a closed pipe an error, as it is by default in a program of Rust.
pub(crate) fn ignore_broken_pipes() {
    // SAFETY: no handler is installed: the signal is ignored.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Makes a write beyond the file size limit (`ulimit -f`) an error, which would otherwise end the
/// process. The limit holds for memory files too.
pub(crate) fn survive_file_limit() {
    // SAFETY: no handler is installed: the signal is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

impl AsFd for Signals {
    /// Returns a descriptor that becomes readable when one of the signals arrives.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
