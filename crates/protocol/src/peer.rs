//! The identity of the peer of a control connection. The kernel reports the identity that the peer
//! had when it connected; the peer's own claims do not count.
//!
//! Unsafe lives here because two socket options have no safe wrapper.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::FromBytes;

/// A peer.
#[derive(Debug)]
pub struct Peer {
    /// Its user, as this process' user namespace numbers it.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its supplementary groups, at most 1024.
    pub groups: Vec<u32>,
    /// Its process identifier, for people to read; 0 if the peer is neither in this process' pid namespace nor in one
    /// below it.
    pub pid: i32,
    /// Its process as a descriptor, in any pid namespace; `None` before Linux 6.5, or if the peer has ended.
    pub process: Option<OwnedFd>,
}

/// The user that stands for all users that a user namespace has no number for
/// (`/proc/sys/kernel/overflowuid`).
pub const OVERFLOW_UID: u32 = 65_534;

/// Returns `true` if this process' user namespace has a number for every user
/// (`/proc/self/uid_map`), as the initial one has. Then [`OVERFLOW_UID`] is a user like any other;
/// most systems name it `nobody`.
#[must_use]
pub fn every_user_has_a_number() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map))
}

fn maps_all(map: &str) -> bool {
    let lengths = map.lines().map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    // The highest number stands for "no user" (`chown(2)`).
    lengths.sum::<Option<u64>>().is_some_and(|all| all >= u64::from(u32::MAX))
}

const SO_PEERCRED: i32 = libc::SO_PEERCRED;
const SO_PEERGROUPS: i32 = 59;
const SO_PEERPIDFD: i32 = 77;
const MAX_GROUPS: usize = 1024;
/// The user that the kernel reports for a socket without a peer.
const NO_USER: u32 = u32::MAX;

/// Asks the kernel for the process identifier, the user and the group of a socket's peer (`struct ucred`). The wrapper
/// of rustix takes an identifier of 0 for an error, and so refuses each peer outside of this process' pid namespace.
fn credentials(socket: BorrowedFd<'_>) -> io::Result<[u32; 3]> {
    let mut credentials = [0u32; 3];
    option(socket, SO_PEERCRED, &mut credentials)?;
    Ok(credentials)
}

/// Returns the user of a socket's peer; `None` if the kernel does not say.
#[must_use]
pub fn user_of(socket: impl AsFd) -> Option<u32> {
    credentials(socket.as_fd()).ok().map(|[_, uid, _]| uid).filter(|uid| *uid != NO_USER)
}

impl Peer {
    /// Asks the kernel for the peer of a socket.
    ///
    /// # Errors
    /// The error of `getsockopt`, in words. A socket without a peer is an error, as is a peer with more than 1024
    /// groups.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let socket = socket.as_fd();
        let [pid, uid, gid] =
            credentials(socket).map_err(|error| explained("SO_PEERCRED", &error))?;
        if uid == NO_USER {
            let text = "no process is at the other end, or the socket is no Unix socket";
            return Err(io::Error::new(io::ErrorKind::NotConnected, text));
        }
        let mut groups = vec![0u32; MAX_GROUPS];
        let len = option(socket, SO_PEERGROUPS, &mut groups)
            .map_err(|error| explained("SO_PEERGROUPS", &error))?;
        groups.truncate(len / size_of::<u32>());
        let mut process = [-1i32];
        let process = match option(socket, SO_PEERPIDFD, &mut process) {
            // SAFETY: the kernel has just opened this descriptor for us.
            Ok(_) if process[0] >= 0 => Some(unsafe { OwnedFd::from_raw_fd(process[0]) }),
            // The kernel is older than Linux 6.5, or the peer has ended.
            _ => None,
        };
        Ok(Peer { uid, gid, groups, pid: pid as i32, process })
    }
}

/// Puts the cause of a socket option's failure into words.
fn explained(option: &str, error: &io::Error) -> io::Error {
    let cause = match error.raw_os_error() {
        Some(libc::ERANGE) => {
            format!("your process has more than {MAX_GROUPS} groups; start it with fewer")
        }
        Some(libc::ENOPROTOOPT) => {
            format!("the server's kernel has no {option}; the server needs Linux 4.13 or newer")
        }
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            format!(
                "a filter of system calls refuses {option} to the server; allow getsockopt in the filter"
            )
        }
        Some(number) => format!("{option} failed with error {number}"),
        None => format!("{option} failed: {error}"),
    };
    io::Error::new(error.kind(), cause)
}

/// The kind of file system of process descriptors, from Linux 6.9 on (`PID_FS_MAGIC`).
const PID_FS_MAGIC: i64 = 0x5049_4446;

/// Returns `true` if a process descriptor's process has ended.
///
/// # Errors
/// The error of `poll`.
pub fn has_ended(process: impl AsFd) -> io::Result<bool> {
    let mut descriptors = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    loop {
        match poll(&mut descriptors, Some(&Timespec::default())) {
            Err(Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

/// Returns `true` if two process descriptors are of one process, which still runs.
///
/// # Errors
/// The kernel's error. Before Linux 6.9 that of reading `/proc/self/fdinfo`.
pub fn is_same_process(one: impl AsFd, other: impl AsFd) -> io::Result<bool> {
    let (one, other) = (one.as_fd(), other.as_fd());
    if has_ended(one)? || has_ended(other)? {
        return Ok(false);
    }
    let is_numbered =
        |fd| -> io::Result<bool> { Ok(rustix::fs::fstatfs(fd)?.f_type as i64 == PID_FS_MAGIC) };
    if is_numbered(one)? && is_numbered(other)? {
        let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
        return Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino));
    }
    // Two processes that both still run have different numbers.
    let number = |fd: BorrowedFd<'_>| -> io::Result<Option<i32>> {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pid:"));
        Ok(line.and_then(|number| number.trim().parse().ok()).filter(|number| *number > 0))
    };
    let first = number(one)?;
    Ok(first.is_some() && first == number(other)?)
}

const SO_LOCK_FILTER: i32 = 44;
const SO_PASSRIGHTS: i32 = 83;

/// Locks a socket's filter: no process can attach one afterwards.
///
/// # Errors
/// The error of `setsockopt`.
pub(crate) fn lock_filter(socket: impl AsFd) -> io::Result<()> {
    set_option(socket.as_fd(), SO_LOCK_FILTER, 1)
}

/// Makes the kernel refuse descriptors sent to this socket and to sockets accepted from it
/// (`SO_PASSRIGHTS`); the sender gets `EPERM`.
///
/// # Errors
/// The error of `setsockopt`: `ENOPROTOOPT` before Linux 6.16.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    set_option(socket.as_fd(), SO_PASSRIGHTS, 0)
}

/// Returns the number of bytes sent through a Unix socket that the other side has yet to read, as
/// the kernel counts them (`SIOCOUTQ`).
///
/// # Errors
/// The error of `ioctl`.
pub fn unread_bytes(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the address is that of a number of this function, as the request wants it.
    let outcome =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if outcome == 0 { Ok(bytes as usize) } else { Err(io::Error::last_os_error()) }
}

fn set_option(socket: BorrowedFd<'_>, name: i32, value: i32) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    let value = &raw const value;
    // SAFETY: the address and the length are those of a number of this function.
    let outcome =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value.cast(), len) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a socket option into `values`; returns the number of bytes read.
fn option<T: FromBytes>(socket: BorrowedFd<'_>, name: i32, values: &mut [T]) -> io::Result<usize> {
    let mut len = size_of_val(values) as libc::socklen_t;
    // SAFETY: the address and the length are those of `values`, whose type any bytes fit.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            values.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if outcome == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_user_map_leaves_users_out() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(maps_all("0 100000 2147483647\n2147483647 5 2147483648\n"));
        assert!(!maps_all("0 1000 1\n") && !maps_all("0 100000 65536\n"));
        assert!(!maps_all("") && !maps_all("what\n"));
    }
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn processes_are_told_apart() {
        let flags = rustix::process::PidfdFlags::empty();
        let open = |pid| rustix::process::pidfd_open(pid, flags).unwrap();
        let me = rustix::process::getpid();
        // It waits for a line that never comes.
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read -r line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let number = rustix::process::Pid::from_child(&child);
        let [first, again, other] = [open(me), open(me), open(number)];
        assert!(is_same_process(&first, &again).unwrap());
        assert!(!is_same_process(&first, &other).unwrap());
        assert!(is_same_process(&other, open(number)).unwrap());
        assert!(!has_ended(&other).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&other).unwrap());
        assert!(!is_same_process(&other, &other).unwrap(), "it has ended");
    }

    #[test]
    fn a_socket_without_a_peer_is_an_error_in_words() {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let said = Peer::of(&udp).unwrap_err().to_string();
        assert!(said.starts_with("no process is at the other end"), "{said}");
        let explained =
            |number| explained("SO_X", &io::Error::from_raw_os_error(number)).to_string();
        assert_eq!(
            explained(libc::ERANGE),
            "your process has more than 1024 groups; start it with fewer"
        );
        let expected = "the server's kernel has no SO_X; the server needs Linux 4.13 or newer";
        assert_eq!(explained(libc::ENOPROTOOPT), expected);
        let expected =
            "a filter of system calls refuses SO_X to the server; allow getsockopt in the filter";
        assert_eq!(explained(libc::EPERM), expected);
        assert_eq!(explained(libc::EBADF), "SO_X failed with error 9");
    }

    #[test]
    fn a_socketpair_reports_this_process_as_peer() {
        let (a, _b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let peer = Peer::of(&a).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        assert_eq!(peer.pid, std::process::id() as i32);
    }
}
