//! Taking over from a server that was killed: the socket at which its keeper waits for the next one.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use towpath_protocol::peer::Peer;

use super::{ANSWER_TIMEOUT, PAUSE, keeper_path};

/// The answers of a keeper to a server that wants to take over.
pub(super) const BUSY: u8 = 0;
const GIVEN_UP: u8 = 1;

/// The socket at which the next server takes over.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Binds the socket, in place of one that a killed keeper left behind.
    pub(super) fn bind(path: &Path) -> io::Result<Listener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let listener = Listener { socket, path: path.to_owned() };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, mode)?;
        rustix::net::listen(&listener.socket, 8)?;
        Ok(listener)
    }

    /// Accepts a server that wants to take over, if one does. Refuses users other than root and
    /// its own.
    fn accept(&self) -> Option<OwnedFd> {
        let server = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(server) => server,
            Err(_) => {
                // The connection stays, for example while there is no descriptor for it.
                std::thread::sleep(PAUSE);
                return None;
            }
        };
        let uid = Peer::of(&server).ok()?.uid;
        (uid == 0 || uid == rustix::process::geteuid().as_raw()).then_some(server)
    }

    pub(super) fn answer(&self, word: u8) {
        if let Some(server) = self.accept() {
            let _ = rustix::net::send(&server, &[word], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Waits until another server takes over, the time expires or the process must stop. Then calls
    /// `give_up`, and tells the other server.
    pub(super) fn wait(self, until: Instant, stop: BorrowedFd<'_>, give_up: impl FnOnce()) {
        let mut server = None;
        while server.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut heard = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            match poll(&mut heard, Some(&timeout)) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => break,
                Ok(_) if !heard[1].revents().is_empty() => break,
                Ok(_) => server = self.accept(),
            }
        }
        give_up();
        // The next server's keeper may bind the path from the answer on.
        drop(self);
        if let Some(server) = server {
            let _ = rustix::net::send(&server, &[GIVEN_UP], SendFlags::NOSIGNAL);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The outcome of [`take_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// No keeper was there, or it held nothing any more.
    Nothing,
    /// The keeper of a server that was killed has closed what it held.
    Done,
    /// The other server lives.
    Busy,
}

/// Takes over from a killed server with this socket: its keeper closes the flows and ports that it
/// still holds. `user`: the user as which this server, and so the other one, runs.
///
/// # Errors
/// Fails with the error of a system call, such as `EACCES` for another user's server.
pub fn take_over(socket: &Path, user: Option<u32>) -> io::Result<TakeOver> {
    let flags = SocketFlags::CLOEXEC;
    let keeper = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&keeper, direction, Some(ANSWER_TIMEOUT))?;
    }
    match rustix::net::connect(&keeper, &SocketAddrUnix::new(keeper_path(socket))?) {
        Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(TakeOver::Nothing),
        other => other?,
    }
    // Where others may write the directory, the socket may be anyone's.
    let uid = Peer::of(&keeper)?.uid;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() && Some(uid) != user {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("it is user {uid}'s")));
    }
    let mut word = [0];
    match rustix::net::recv(&keeper, &mut word, RecvFlags::empty()) {
        Ok((_, 1)) if word[0] == GIVEN_UP => Ok(TakeOver::Done),
        Ok((_, 1)) => Ok(TakeOver::Busy),
        Ok(_) | Err(Errno::CONNRESET) => Ok(TakeOver::Nothing),
        Err(errno) => Err(errno.into()),
    }
}
