//! Messages to the service manager (sd_notify(3)), which wait for it no longer than they are told to.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sd_notify::NotifyState;

/// The time that a service manager may take for a message without which it does not go on.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns `true` if there is a service manager, which may have a store.
pub(super) fn has_service_manager() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Tells the service manager something without which it does not go on, such as READY=1. Does nothing without one.
///
/// # Errors
/// `WouldBlock` if it reads no messages for a second, or a system call's error.
pub(super) fn notify(states: &[NotifyState<'_>]) -> io::Result<()> {
    notify_until(states, &[], Instant::now() + PATIENCE)
}

/// Tells the service manager something that it can do without, such as STOPPING=1. If it takes no message now, the
/// message is lost.
pub(super) fn notify_now(states: &[NotifyState<'_>]) {
    let _ = notify_until(states, &[], Instant::now());
}

/// Tells the service manager something, with descriptors, by a time. Does nothing without a service manager.
///
/// # Errors
/// `WouldBlock` if it reads no messages until then, or a system call's error.
pub(super) fn notify_until(
    states: &[NotifyState<'_>],
    descriptors: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let mut text = String::new();
    for state in states {
        // No error comes from a String.
        let _ = writeln!(text, "{state}");
    }
    let socket = connect(&address)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let text = [IoSlice::new(text.as_bytes())];
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&socket, &text, &mut control, flags) {
            Err(Errno::AGAIN) => wait_for_room(&socket, until)?,
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()).map_err(io::Error::from),
        }
    }
}

/// Connects to a socket by its path, or by its abstract name after `@`.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    // The kernel only looks the address up: datagrams do not wait for it.
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// Waits until the socket takes a message: `WouldBlock` if the time is over.
fn wait_for_room(socket: &UnixDatagram, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut room = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
    match poll(&mut room, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
