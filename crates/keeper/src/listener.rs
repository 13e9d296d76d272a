//! The keeper's socket, where an administrator asks for an upgrade.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use towpath_protocol::peer::Peer;

use super::options::{ANSWER_TIMEOUT, PAUSE, UPGRADE_TIMEOUT, keeper_path};
use super::wire::{receive, receive_with};

/// What a process asks at a keeper's socket.
const UPGRADE: &[u8] = b"UPGRADE";

/// The longest time from a connection to its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The first byte of the answer to a request for an upgrade. The reason follows for a
/// refusal, and if the keeper keeps its program.
const UPGRADED: u8 = 0;
const NOT_UPGRADED: u8 = 1;

/// The longest answer to a request for an upgrade, in bytes.
const MAX_ANSWER: usize = 1024;

/// Returns the address of a socket, also if its path is longer than an address (107 bytes), by the
/// directory's descriptor. The address is good for as long as the descriptor is open.
fn address(path: &Path) -> Result<(SocketAddrUnix, Option<OwnedFd>), Errno> {
    match (SocketAddrUnix::new(path), path.parent(), path.file_name()) {
        (Err(Errno::NAMETOOLONG), Some(parent), Some(name)) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::open(parent, flags, Mode::empty())?;
            let opened = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
            Ok((SocketAddrUnix::new(opened.join(name))?, Some(directory)))
        }
        (address, ..) => Ok((address?, None)),
    }
}

/// Opens a connection to the keeper of the server with a socket; `None` if there is none. `user`:
/// the user as which that server runs, if it is known.
///
/// # Errors
/// Fails with the error of a system call, such as `EACCES` for another user's server.
fn connect(socket: &Path, user: Option<u32>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC;
    let keeper = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&keeper, direction, Some(ANSWER_TIMEOUT))?;
    }
    let (address, _directory) = match address(&keeper_path(socket)) {
        Err(Errno::NAMETOOLONG | Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        address => address?,
    };
    match rustix::net::connect(&keeper, &address) {
        Err(Errno::NOTDIR | Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
        other => other?,
    }
    // Where others may write the directory, the socket may be anyone's.
    let uid = Peer::of(&keeper)?.uid;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() && Some(uid) != user {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the process at this socket runs as user {uid}"),
        ));
    }
    Ok(Some(keeper))
}

/// An administrator that waits for an upgrade.
pub(super) struct UpgradeRequest(OwnedFd);

impl UpgradeRequest {
    /// Takes over the connection from an earlier program of this process.
    pub(super) fn from_state(connection: OwnedFd) -> UpgradeRequest {
        UpgradeRequest(connection)
    }

    /// Tells the administrator the outcome: the reason, if there was no upgrade, or if the keeper goes
    /// on with its program.
    pub(super) fn answer(self, outcome: Result<Option<&str>, &str>) {
        let (first, why) = match outcome {
            Ok(why) => (UPGRADED, why.unwrap_or_default()),
            Err(why) => (NOT_UPGRADED, why),
        };
        let text = [&[first], &why.as_bytes()[..why.len().min(MAX_ANSWER - 1)]].concat();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(&self.0, &text, flags);
    }
}

impl AsFd for UpgradeRequest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A process that has connected, and has not asked yet.
struct Asking {
    peer: OwnedFd,
    /// The time by which it must have asked.
    until: Instant,
}

/// The socket at which an administrator asks for an upgrade.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    path: PathBuf,
    /// The others wait in the socket.
    asking: Option<Asking>,
}

impl Listener {
    /// Binds the socket, in place of one that a killed keeper left behind. `owner`: its user and
    /// group, who can then bind another one in a directory where only owners remove files.
    pub(super) fn bind(path: &Path, owner: Option<(u32, u32)>) -> io::Result<Listener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (address, _directory) = address(path)?;
        rustix::net::bind(&socket, &address)?;
        let listener = Listener { socket, path: path.to_owned(), asking: None };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, mode)?;
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
        }
        rustix::net::listen(&listener.socket, 8)?;
        Ok(listener)
    }

    /// Takes over a socket that an earlier program of this process has bound.
    pub(super) fn from_state(socket: OwnedFd, path: &Path) -> Listener {
        Listener { socket, path: path.to_owned(), asking: None }
    }

    /// Returns the descriptor that the keeper waits for: a process that connects, or the request of one that has
    /// connected.
    pub(super) fn waits_for(&self) -> PollFd<'_> {
        PollFd::new(self.asking.as_ref().map_or(&self.socket, |asking| &asking.peer), PollFlags::IN)
    }

    /// Returns the time by which a process that has connected must have asked.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asking.as_ref().map(|asking| asking.until)
    }

    /// Accepts a process, or reads what it asks, if the descriptor of [`Listener::waits_for`] is
    /// readable. Never waits for the process.
    pub(super) fn advance(&mut self, is_readable: bool) -> Option<UpgradeRequest> {
        let Some(Asking { peer, until }) = self.asking.take() else {
            if is_readable {
                self.asking = self.accept();
            }
            return None;
        };
        if !is_readable {
            // A process that takes too long is closed.
            self.asking = (Instant::now() < until).then_some(Asking { peer, until });
            return None;
        }
        let mut request = [0; 16];
        let received = receive_with(&peer, &mut request, RecvFlags::DONTWAIT).ok()?;
        (&request[..received.bytes] == UPGRADE).then_some(UpgradeRequest(peer))
    }

    /// Accepts a process. Refuses users other than root and its own.
    fn accept(&self) -> Option<Asking> {
        let peer = match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(peer) => peer,
            Err(_) => {
                // The connection stays, for example while there is no descriptor for it.
                std::thread::sleep(PAUSE);
                return None;
            }
        };
        let uid = Peer::of(&peer).ok()?.uid;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return None;
        }
        Some(Asking { peer, until: Instant::now() + REQUEST_TIMEOUT })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The outcome of [`upgrade`].
#[derive(Debug)]
pub enum Upgrade {
    /// A server of the installed program serves, and the keeper runs that program, too.
    Done,
    /// A server of the installed program serves. The keeper goes on with its own program, with the
    /// reason.
    ServersAlone(String),
    /// There was no upgrade, with the reason. The previous server serves on, or another one of its
    /// program follows.
    Refused(String),
    /// No keeper has this socket.
    NoKeeper,
}

/// Has the keeper of the server with this socket start the program that is installed now as the
/// next server, and waits until it serves.
///
/// # Errors
/// Fails with the error of a system call, such as `EACCES` for another user's server.
pub fn upgrade(socket: &Path) -> io::Result<Upgrade> {
    // Only root and the server's user can connect, and neither must ask for another's keeper.
    let owner = std::fs::symlink_metadata(keeper_path(socket));
    let owner = owner.ok().map(|found| std::os::unix::fs::MetadataExt::uid(&found));
    let Some(keeper) = connect(socket, owner)? else { return Ok(Upgrade::NoKeeper) };
    // Each of two servers has time to end, or to start.
    set_socket_timeout(&keeper, Timeout::Recv, Some(UPGRADE_TIMEOUT * 4))?;
    rustix::net::send(&keeper, UPGRADE, SendFlags::NOSIGNAL)?;
    let mut answer = [0; MAX_ANSWER];
    let received = loop {
        match receive(&keeper, &mut answer) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    match &answer[..received.bytes] {
        [UPGRADED] => Ok(Upgrade::Done),
        [UPGRADED, why @ ..] => {
            Ok(Upgrade::ServersAlone(String::from_utf8_lossy(why).into_owned()))
        }
        [NOT_UPGRADED, why @ ..] => Ok(Upgrade::Refused(String::from_utf8_lossy(why).into_owned())),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the keeper closed the connection without an answer",
        )),
    }
}
