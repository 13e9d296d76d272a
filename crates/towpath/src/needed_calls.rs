//! The system calls that a server and its keeper cannot do without, and that old kernels lack or containers' filters
//! refuse. `towpath serve` and `towpath up` try them before they make any object, and `towpath doctor` reports them.
//!
//! Unsafe lives here because no library wraps attempts of `clone3`, `close_range`, `signalfd4` and `vmsplice`, or
//! reports that a limit cannot be read.

use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, Mode, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::pipe::PipeFlags;
use rustix::process::{PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

use crate::failure::{Failure, remedy, says};

/// A call that the system refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedCall {
    pub(crate) name: &'static str,
    /// The Linux version that introduced the call.
    since: &'static str,
    errno: Errno,
}

impl RefusedCall {
    /// Returns the call and the kernel's error.
    pub(crate) fn found(&self) -> String {
        format!("{}: {}", self.name, says(&self.errno.into()))
    }

    /// Returns the two ways to get the call.
    pub(crate) fn remedy(&self) -> String {
        format!(
            "Linux {} or newer; in a container, a seccomp filter that allows {}",
            self.since, self.name
        )
    }
}

/// Checks all of the calls.
///
/// # Errors
/// Fails with the first call that the system refuses, and the remedy.
pub(crate) fn check() -> Result<(), Failure> {
    let checks = [sleeping, memory_files, processes, threads, descriptors, connections];
    checks.iter().try_for_each(|check| check()).map_err(failure_of)
}

/// Returns the failure of a start. A used-up resource is no refusal, and has its own remedy.
fn failure_of(refused: RefusedCall) -> Failure {
    let found = refused.found();
    match remedy(&refused.errno.into()) {
        "" => Failure::unavailable(format!(
            "this system refuses a call that a server needs: {found}; needed: {}",
            refused.remedy()
        )),
        remedy => Failure::new(format!("{found}{remedy}")),
    }
}

/// Sleeps as a server does.
pub(crate) fn sleeping() -> Result<(), RefusedCall> {
    let epoll = try_call("epoll_create1", "2.6.27", epoll::create(epoll::CreateFlags::CLOEXEC))?;
    // An allowed call fails because a set cannot hold itself.
    try_call("epoll_ctl", "2.6", allowed(epoll::delete(&epoll, &epoll), Errno::INVAL))?;
    let mut events = [const { MaybeUninit::uninit() }; 1];
    let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000 };
    let slept = epoll::wait(&epoll, &mut events[..], Some(&timeout));
    try_call("epoll_pwait2", "5.11", slept.map(drop))
}

/// Makes a memory file and seals it like a session's.
pub(crate) fn memory_files() -> Result<(), RefusedCall> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("towpath-check", flags);
    let file: OwnedFd = try_call("memfd_create", "3.17", file)?;
    try_call("fstat", "2.6", rustix::fs::fstat(&file).map(drop))?;
    try_call("lseek", "2.6", rustix::fs::seek(&file, SeekFrom::Start(0)).map(drop))?;
    // SAFETY: the range is empty.
    let advised = unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
    try_call("madvise", "2.6", outcome_of(advised.into()))?;
    try_call("pwrite64", "2.6", rustix::io::pwrite(&file, &[0], 0))?;
    let given = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096);
    try_call("fallocate", "3.5", given)?;
    try_call("ftruncate", "2.6", rustix::fs::ftruncate(&file, 4096))?;
    try_call("fchmod", "2.6", rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR))?;
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    try_call("flock", "2.6", locked)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    // The name of the seal says more than that of the call.
    try_call("F_SEAL_FUTURE_WRITE", "5.1", rustix::fs::fcntl_add_seals(&file, seals))
}

/// Opens a process and looks for it, as a keeper does with its server.
pub(crate) fn processes() -> Result<(), RefusedCall> {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let own = try_call("pidfd_open", "5.3", own)?;
    // The next server compares processes by this call, and gives no session back without the call.
    try_call("fstatfs", "2.6", rustix::fs::fstatfs(&own).map(drop))?;
    // By default, this signal does nothing.
    try_call("pidfd_send_signal", "5.1", pidfd_send_signal(&own, Signal::CONT))?;
    // An allowed call fails because no process is its own child.
    let waited = rustix::process::waitpid(Some(rustix::process::getpid()), WaitOptions::NOHANG);
    try_call("wait4", "2.6", allowed(waited, Errno::CHILD))?;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a live structure.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    try_call("prlimit64", "2.6.36", outcome_of(read.into()))
}

/// Exchanges a message over a connection and ends the connection, as a server does with an application. Every Linux
/// that can run a server has these calls, so only a filter refuses one.
pub(crate) fn connections() -> Result<(), RefusedCall> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let pair = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
    let (near, far) = try_call("socketpair", "2.6.27", pair)?;
    // An allowed call fails because no process can connect to this socket.
    let accepted = rustix::net::accept_with(&near, SocketFlags::CLOEXEC);
    try_call("accept4", "2.6.28", allowed(accepted, Errno::INVAL))?;
    socket_files()?;
    try_call("ioctl", "2.6", allowed(rustix::io::ioctl_fionread(&near), Errno::INVAL))?;
    let nothing = rustix::net::recv(&near, &mut [0], RecvFlags::DONTWAIT);
    try_call("recvfrom", "2.6", allowed(nothing, Errno::AGAIN))?;
    try_call("getsockopt", "2.6", sockopt::socket_type(&near).map(drop))?;
    try_call("setsockopt", "2.6", sockopt::set_socket_keepalive(&near, false))?;
    let sent = rustix::net::send(&near, &[1], SendFlags::NOSIGNAL);
    try_call("sendto", "2.6", sent)?;
    let mut none = SendAncillaryBuffer::default();
    let parts = [IoSlice::new(&[1])];
    let sent = rustix::net::sendmsg(&near, &parts, &mut none, SendFlags::NOSIGNAL);
    try_call("sendmsg", "2.6", sent)?;
    // A TAP device's packets leave by this call.
    try_call("writev", "2.6", rustix::io::writev(&near, &parts).map(drop))?;
    let mut polled = [PollFd::new(&far, PollFlags::IN)];
    try_call("ppoll", "2.6.16", poll(&mut polled, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })))?;
    let (mut none, mut byte) = (RecvAncillaryBuffer::default(), [0]);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let received = rustix::net::recvmsg(&far, &mut parts, &mut none, RecvFlags::DONTWAIT);
    try_call("recvmsg", "2.6", received.map(drop))?;
    try_call("shutdown", "2.6", rustix::net::shutdown(&near, Shutdown::Both))
}

/// The C library's calls that change a file's mode, remove a file, and copy a descriptor to a number.
const CHANGES_MODE: &str = if cfg!(target_arch = "x86_64") { "chmod" } else { "fchmodat" };
const REMOVES: &str = if cfg!(target_arch = "x86_64") { "unlink" } else { "unlinkat" };
const COPIES: &str = if cfg!(target_arch = "x86_64") { "dup2" } else { "dup3" };

/// Attempts the calls by which a server makes the file of its socket, and removes it. Makes no file.
fn socket_files() -> Result<(), RefusedCall> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let socket = try_call("socket", "2.6", socket)?;
    // An allowed call fails because the socket has no address.
    try_call("listen", "2.6", allowed(rustix::net::listen(&socket, 1), Errno::INVAL))?;
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC);
    let event = try_call("eventfd2", "2.6.27", event)?;
    // An allowed call fails because an eventfd is no socket.
    let bound = SocketAddrUnix::new("/").and_then(|path| rustix::net::bind(&event, &path));
    try_call("bind", "2.6", allowed(bound, Errno::NOTSOCK))?;
    // Allowed calls fail because no file has an empty name.
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let changed = std::fs::set_permissions("", Permissions::from_mode(0o600)).map_err(errno);
    try_call(CHANGES_MODE, "2.6.16", allowed(changed, Errno::NOENT))?;
    let removed = std::fs::remove_file("").map_err(errno);
    try_call(REMOVES, "2.6.16", allowed(removed, Errno::NOENT))
}

/// Attempts `clone`, which makes processes, and `clone3`. If the kernel has no `clone3`, the C library falls back to
/// `clone`. If a filter refuses `clone3` with an error other than ENOSYS, the C library starts no thread.
pub(crate) fn threads() -> Result<(), RefusedCall> {
    // SAFETY: the call makes nothing: these flags miss those that they depend on.
    let made = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_THREAD, 0, 0, 0, 0) };
    try_call("clone", "2.6", allowed(outcome_of(made), Errno::INVAL))?;
    // SAFETY: no memory has a length of 0, so the kernel reads none.
    let outcome = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0) };
    match outcome_of(outcome) {
        // An allowed call fails because of the length, and an old kernel has no such call.
        Err(errno)
            if ![Errno::INVAL, Errno::NOSYS].contains(&errno) && cfg!(target_env = "gnu") =>
        {
            try_call("clone3", "5.3", Err(errno))
        }
        _ => Ok(()),
    }
}

/// Makes the descriptors by which threads and processes wake each other, holds a page as a worker does, and closes
/// descriptors as the spawner does.
pub(crate) fn descriptors() -> Result<(), RefusedCall> {
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC);
    try_call("eventfd2", "2.6.27", event.map(drop))?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let pair = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
    try_call("socketpair", "2.6.27", pair.map(drop))?;
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (_reading, writing) = try_call("pipe2", "2.6.27", pipe)?;
    // SAFETY: without parts, the call reads no memory.
    let held = unsafe { libc::vmsplice(writing.as_raw_fd(), std::ptr::null(), 0, 0) };
    try_call("vmsplice", "2.6.17", outcome_of(held as libc::c_long))?;
    // SAFETY: no descriptor has this number.
    let copied = unsafe { libc::dup2(-1, 1) };
    try_call(COPIES, "2.6.27", allowed(outcome_of(copied.into()), Errno::BADF))?;
    let last = libc::c_uint::MAX;
    // SAFETY: no descriptor has this number.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, last, last, 0) };
    try_call("close_range", "5.9", outcome_of(closed))?;
    // SAFETY: a set of signals is an array of integers; all zeros is the empty set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: reads a live set, and changes nothing.
    let blocked =
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const none, std::ptr::null_mut()) };
    try_call("rt_sigprocmask", "2.6", outcome_of(blocked.into()))?;
    // SAFETY: reads a live set.
    let signals = unsafe { libc::signalfd(-1, &raw const none, libc::SFD_CLOEXEC) };
    try_call("signalfd4", "2.6.27", outcome_of(signals.into()))?;
    // SAFETY: the kernel has just made this descriptor for us.
    drop(unsafe { OwnedFd::from_raw_fd(signals) });
    Ok(())
}

/// Returns the outcome of a call that fails with this error wherever it is allowed.
fn allowed<T>(outcome: Result<T, Errno>, expected: Errno) -> Result<(), Errno> {
    outcome.map(drop).or_else(|errno| if errno == expected { Ok(()) } else { Err(errno) })
}

/// Returns the error of a call, by what the C library returned for it.
fn outcome_of(returned: libc::c_long) -> Result<(), Errno> {
    if returned >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn try_call<T>(
    name: &'static str,
    since: &'static str,
    outcome: Result<T, Errno>,
) -> Result<T, RefusedCall> {
    outcome.map_err(|errno| RefusedCall { name, since, errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_system_has_all_calls() {
        check().unwrap();
    }

    #[test]
    fn a_refusal_names_the_call_and_both_remedies() {
        let refused = try_call::<()>("epoll_pwait2", "5.11", Err(Errno::PERM)).unwrap_err();
        assert_eq!(refused.found(), "epoll_pwait2: Operation not permitted");
        let failure = failure_of(refused);
        assert!(failure.text().starts_with("this system refuses a call"), "{failure:?}");
        let full = try_call::<()>("eventfd2", "2.6.27", Err(Errno::MFILE)).unwrap_err();
        let expected = "eventfd2: Too many open files; raise the limit of open files (ulimit -n)";
        assert_eq!(failure_of(full), Failure::new(expected));
        let remedy = refused.remedy();
        assert!(
            remedy.contains("Linux 5.11") && remedy.ends_with("allows epoll_pwait2"),
            "{remedy}"
        );
    }
}
