//! Doorbells: the sockets by which a server notifies its sessions.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair, sockopt,
};

/// Makes a doorbell: the server's end and the application's. The application can neither send through its
/// end nor attach a filter, which the kernel would run when the server sends.
///
/// # Errors
/// What the kernel answers, `EMFILE` without descriptors among it.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // A stream, so that one call takes all notifications that have come.
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    shutdown(&ours, Shutdown::Read)?;
    crate::peer::lock_filter(&theirs)?;
    let _ = sockopt::set_socket_send_buffer_size(&ours, 4096);
    Ok((ours, theirs))
}
