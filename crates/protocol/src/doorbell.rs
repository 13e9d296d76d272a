//! Doorbells: the sockets through which a server notifies its sessions.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair, sockopt,
};

/// Makes a doorbell and returns the server's end and the application's end.
///
/// The application can neither send through its end nor attach a filter. The kernel would run such
/// a filter whenever the server sends.
///
/// # Errors
/// Returns the kernel's error, for example `EMFILE` if the process has no descriptors left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // With a stream, the application reads all pending notifications with one call.
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    shutdown(&ours, Shutdown::Read)?;
    crate::peer::lock_filter(&theirs)?;
    let _ = sockopt::set_socket_send_buffer_size(&ours, 4096);
    Ok((ours, theirs))
}

/// Sends a notification. A full socket already holds one.
pub fn notify(doorbell: &OwnedFd) {
    let _ = rustix::net::send(doorbell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}
