//! The process from which the workers are forked.
//!
//! The server forks the spawner when it starts, before there is a session. The spawner holds no
//! application's descriptor and maps no session's memory, and the same is true of the workers that
//! it forks. It has one thread, so a fork of it is not a fork of a multi-threaded program. It ends
//! when the server's end of its socket is closed, also by the kernel.
//!
//! This module uses unsafe code for `clone`, and for the code that runs behind it. That code
//! consists only of system calls, because another thread may have held any lock, the allocator's
//! among them, when this process was made.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use towpath_device::close_early;

use super::process::{Tables, Worker};
use super::wire::{self, Descriptors, Head, MAX_PACKET_BYTES};

/// The time that the spawner waits for workers to end, in milliseconds.
const REAP_TIMEOUT_MS: u32 = 500;

/// The server's handle of the spawner.
#[derive(Debug)]
pub(crate) struct Spawner {
    socket: Option<OwnedFd>,
    pid: libc::pid_t,
    /// `true` if dropping this value does not wait for the process.
    leaves: bool,
}

impl Spawner {
    /// Makes the process. Each worker begins with `tables`.
    ///
    /// # Errors
    /// Fails with the error of `socketpair` or `clone`.
    pub(crate) fn start(tables: Tables) -> io::Result<Spawner> {
        let (ours, theirs) = pair()?;
        let buffer = Box::new([0; MAX_PACKET_BYTES]);
        match fork(0)? {
            0 => spawn_workers(theirs, tables, buffer),
            pid => Ok(Spawner { socket: Some(close_early(ours)), pid, leaves: false }),
        }
    }

    /// Makes a spawner without a process. The workers' channels stay open while the test keeps the
    /// returned socket, and no worker reads them.
    #[cfg(test)]
    pub(crate) fn without_process() -> io::Result<(Spawner, OwnedFd)> {
        let (ours, theirs) = pair()?;
        Ok((Spawner { socket: Some(ours), pid: -1, leaves: true }, theirs))
    }

    /// Makes the drop of this value return at once. The process ends by itself.
    pub(crate) fn leave(&mut self) {
        self.leaves = true;
    }

    /// Returns `true` if the spawner takes a request now.
    pub(crate) fn has_room(&self) -> bool {
        let Some(socket) = &self.socket else { return true };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Asks for a worker. The arguments are the worker's end of a channel, the engines' epoll sets,
    /// and the eventfd by which the engines call the worker. If the spawner cannot make the worker,
    /// the channel ends.
    ///
    /// # Errors
    /// Fails with the kernel's error; `EAGAIN` while the spawner is busy.
    pub(crate) fn spawn(
        &self,
        channel: BorrowedFd<'_>,
        engines: &[OwnedFd],
        notified: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let mut descriptors = vec![channel, notified];
        descriptors.extend(engines.iter().map(AsFd::as_fd));
        let head = Head::default();
        Ok(wire::send(socket.as_fd(), head, &[], &descriptors, SendFlags::DONTWAIT)?)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.socket = None;
        if self.leaves {
            return;
        }
        // The spawner touches no object that an application can reach, so it ends.
        let mut status = 0;
        // SAFETY: the address is that of a local number; the process is a child of this one.
        while unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// Makes a connected pair of sockets, one for each side.
///
/// # Errors
/// Fails with the error of `socketpair`.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Forks without `fork`'s handlers. The child's end sends `signal`. Without a signal, an embedding
/// program neither sees the child in its `wait` nor gets `SIGCHLD`.
fn fork(signal: libc::c_int) -> io::Result<libc::pid_t> {
    // SAFETY: with only a signal and no stack, `clone` is `fork`. The code that runs in the child
    // is in this module and in `process`, and makes only system calls.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(signal), 0, 0, 0, 0) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as libc::pid_t) }
}

fn exit() -> ! {
    // SAFETY: the call ends the process without running any of its code.
    unsafe { libc::_exit(0) }
}

/// Runs the spawner's own loop.
fn spawn_workers(socket: OwnedFd, tables: Tables, mut buffer: Box<[u8; MAX_PACKET_BYTES]>) -> ! {
    be_alone(&[socket.as_raw_fd()]);
    loop {
        let mut descriptors = Descriptors::default();
        match wire::receive(socket.as_fd(), &mut buffer, &mut descriptors, RecvFlags::empty()) {
            Ok(Some(_)) => {}
            // Memory or descriptors may be available again a little later.
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::MFILE | Errno::NFILE) => {
                wait_ms(1);
                continue;
            }
            Ok(None) | Err(_) => {
                wait_for_workers();
                exit();
            }
        }
        let [channel, notified, engines @ ..] = &mut descriptors;
        let (Some(channel), Some(notified)) = (channel.take(), notified.take()) else { continue };
        let mut epolls = Descriptors::default();
        for (epoll, engine) in epolls.iter_mut().zip(engines) {
            *epoll = engine.take();
        }
        // If no process is available, the spawner closes the channel here, which informs the
        // server.
        if matches!(fork(libc::SIGCHLD), Ok(0)) {
            drop(socket);
            if let Ok(worker) = Worker::new(channel, epolls, notified, tables) {
                name(c"towpath-worker");
                worker.run(&mut buffer);
            }
            exit();
        }
    }
}

/// Waits until the workers have ended, which they do when the server does. Only the spawner, their
/// parent, can see that. It leaves workers that hang to the process that adopts them.
fn wait_for_workers() {
    for _ in 0..REAP_TIMEOUT_MS {
        // SAFETY: the call passes no address and only takes the ends of children.
        if unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } < 0 {
            return;
        }
        wait_ms(1);
    }
}

fn wait_ms(ms: libc::c_int) {
    // SAFETY: the call sleeps and polls no descriptor.
    unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
}

/// Releases inherited resources that the process does not need: descriptors, signal handlers, the
/// terminal's signals.
fn be_alone(kept: &[i32]) {
    name(c"towpath-spawner");
    // SAFETY: the block fills a set of signals and blocks them; the addresses are those of locals.
    // A worker ends when the server does, also when a terminal or a service manager signals all
    // processes at once.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        // The kernel reaps workers that end; the spawner need not wait for each.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
    let mut from = 0;
    for descriptor in kept {
        close_from(from, *descriptor - 1);
        from = *descriptor + 1;
    }
    close_from(from, i32::MAX);
}

fn close_from(first: i32, last: i32) {
    if first <= last {
        // SAFETY: the call closes descriptors that nothing in this process uses any more.
        unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0_u32) };
    }
}

fn name(name: &std::ffi::CStr) {
    // SAFETY: the address is that of a string with its terminator.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}
