//! The process that the workers are made from.
//!
//! It is forked when the server starts, before there is a session: it holds no application's
//! descriptor and maps no session's memory, and so do the workers that it forks. It has one thread, so
//! that a fork of it is not a fork of a program with threads. It ends when the server's end of its
//! socket is closed, also by the kernel.
//!
//! Unsafe lives here for `clone`, and for what runs behind it: system calls alone, since another thread
//! may have held any lock, the allocator's among them, when this process was made.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

use super::process::{Tables, Worker};
use super::wire::{self, Descriptors, Head, MAX_PACKET_BYTES};

/// How long the spawner stays for workers that end, in milliseconds.
const REAP_TIMEOUT_MS: u32 = 500;

/// The server's hold on the spawner.
#[derive(Debug)]
pub(crate) struct Spawner {
    socket: Option<OwnedFd>,
    pid: libc::pid_t,
}

impl Spawner {
    /// Makes the process. `tables` is what each worker begins with.
    ///
    /// # Errors
    /// What `socketpair` or `clone` answer.
    pub(crate) fn start(tables: Tables) -> io::Result<Spawner> {
        let (ours, theirs) = pair()?;
        let buffer = Box::new([0; MAX_PACKET_BYTES]);
        match fork(0)? {
            0 => spawn_workers(theirs, tables, buffer),
            pid => Ok(Spawner { socket: Some(ours), pid }),
        }
    }

    /// Asks for a worker with its end of a channel, the engine's epoll, and the eventfd by which the
    /// engine calls it. A worker that cannot be made shows as the end of the channel.
    ///
    /// # Errors
    /// What the kernel answers; `EAGAIN` while the spawner is busy.
    pub(crate) fn spawn(
        &self,
        channel: BorrowedFd<'_>,
        engine: BorrowedFd<'_>,
        notified: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let descriptors = [channel, engine, notified];
        let head = Head::default();
        Ok(wire::send(socket.as_fd(), head, &[], &descriptors, SendFlags::DONTWAIT)?)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.socket = None;
        // It touches nothing that an application can reach, so it ends.
        let mut status = 0;
        // SAFETY: the address is that of a local number; the process is a child of this one.
        while unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// A connected pair of sockets, one for each side.
///
/// # Errors
/// What `socketpair` answers.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Forks without `fork`'s handlers. `signal` is what the child's end sends; without one, an embedding
/// program neither sees the child in its `wait` nor gets `SIGCHLD`.
fn fork(signal: libc::c_int) -> io::Result<libc::pid_t> {
    // SAFETY: with a signal alone and no stack, `clone` is `fork`. What runs in the child is in this
    // module and in `process`, and makes system calls alone.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(signal), 0, 0, 0, 0) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as libc::pid_t) }
}

fn exit() -> ! {
    // SAFETY: ends the process without running anything of it.
    unsafe { libc::_exit(0) }
}

/// The spawner's own loop.
fn spawn_workers(socket: OwnedFd, tables: Tables, mut buffer: Box<[u8; MAX_PACKET_BYTES]>) -> ! {
    be_alone(&[socket.as_raw_fd()]);
    loop {
        let mut descriptors = Descriptors::default();
        match wire::receive(socket.as_fd(), &mut buffer, &mut descriptors, RecvFlags::empty()) {
            Ok(Some(_)) => {}
            // Memory or descriptors may be there again a little later.
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::MFILE | Errno::NFILE) => {
                wait_ms(1);
                continue;
            }
            Ok(None) | Err(_) => {
                wait_for_workers();
                exit();
            }
        }
        let [Some(channel), Some(engine), Some(notified), ..] = descriptors else { continue };
        // Where there is no process to be had, the channel is closed here, which tells it.
        if matches!(fork(libc::SIGCHLD), Ok(0)) {
            drop(socket);
            if let Ok(worker) = Worker::new(channel, engine, notified, tables) {
                name(c"towpath-worker");
                worker.run(&mut buffer);
            }
            exit();
        }
    }
}

/// Stays until the workers have ended, which they do when the server does: their ends are this
/// process' to take note of. Workers that hang are left to whatever adopts them.
fn wait_for_workers() {
    for _ in 0..REAP_TIMEOUT_MS {
        // SAFETY: no address is given; ends of children are taken.
        if unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } < 0 {
            return;
        }
        wait_ms(1);
    }
}

fn wait_ms(ms: libc::c_int) {
    // SAFETY: sleeps, for no descriptor.
    unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
}

/// Gives back what was inherited and is not needed: descriptors, signal handlers, the terminal's signals.
fn be_alone(kept: &[i32]) {
    name(c"towpath-spawner");
    // SAFETY: a set of signals is filled and blocked; addresses are those of locals. A worker ends when
    // the server does, also when a terminal or a service manager signals all processes at once.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        // Workers that end are not waited for.
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
        // SAFETY: descriptors that nothing in this process uses any more.
        unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0_u32) };
    }
}

fn name(name: &std::ffi::CStr) {
    // SAFETY: the address is that of a string with its end.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}
