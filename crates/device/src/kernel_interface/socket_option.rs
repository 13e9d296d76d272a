//! Options of sockets (setsockopt(2)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The memory that a socket's packets may take on their way through the kernel, in bytes. The
/// kernel's default of 208 KiB holds some hundred packets.
const SEND_BUFFER_BYTES: i32 = 16 << 20;

/// Sets an option whose value is a number, or a structure of the kernel's interface.
pub(crate) fn set<T>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (value, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the pointer and the length are those of a live value.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets the kernel keep more of what a socket sends, as much as this user may.
pub(crate) fn enlarge_send_buffer(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES)
        .or_else(|_| set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER_BYTES))
}
