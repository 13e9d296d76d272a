//! The keeper's socket: the next keeper takes over there from a server that was killed, and an
//! administrator asks there for an upgrade.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use towpath_protocol::peer::Peer;

use super::held::Held;
use super::notify::{MESSAGE_BYTES, Notification, parse, store};
use super::options::{ANSWER_TIMEOUT, PAUSE, UPGRADE_TIMEOUT, keeper_path};
use super::wire::{Received, is_gone, receive, send};

/// What a process asks at a keeper's socket.
const TAKE_OVER: &[u8] = b"TAKE-OVER";
const UPGRADE: &[u8] = b"UPGRADE";

/// The longest time from a connection to its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The answers of a keeper to another one that wants to take over.
const BUSY: u8 = 0;
const GIVEN_UP: u8 = 1;

/// The first byte of the answer to a request for an upgrade. The reason follows a refusal.
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

/// What a process asks, with its connection.
pub(super) enum SocketRequest {
    TakeOver(OwnedFd),
    Upgrade(UpgradeRequest),
}

/// An administrator that waits for an upgrade.
pub(super) struct UpgradeRequest(OwnedFd);

impl UpgradeRequest {
    /// Tells the administrator the outcome: the reason, if there was no upgrade.
    pub(super) fn answer(self, outcome: Result<(), &str>) {
        let text = match outcome {
            Ok(()) => vec![UPGRADED],
            Err(why) => {
                [&[NOT_UPGRADED], &why.as_bytes()[..why.len().min(MAX_ANSWER - 1)]].concat()
            }
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(&self.0, &text, flags);
    }
}

/// The socket at which the next server takes over, and an administrator asks for an upgrade.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    path: PathBuf,
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
        let listener = Listener { socket, path: path.to_owned() };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path, mode)?;
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
        }
        rustix::net::listen(&listener.socket, 8)?;
        Ok(listener)
    }

    /// Accepts a process, and reads what it asks. Refuses users other than root and its own.
    fn accept(&self) -> Option<SocketRequest> {
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
        set_socket_timeout(&peer, Timeout::Recv, Some(REQUEST_TIMEOUT)).ok()?;
        let mut request = [0; 16];
        let received = receive(&peer, &mut request).ok()?;
        match &request[..received.bytes] {
            TAKE_OVER => Some(SocketRequest::TakeOver(peer)),
            UPGRADE => Some(SocketRequest::Upgrade(UpgradeRequest(peer))),
            _ => None,
        }
    }

    /// Answers a process that wants to take over: the server lives. Returns one that asks for an
    /// upgrade.
    pub(super) fn answer(&self) -> Option<UpgradeRequest> {
        match self.accept()? {
            SocketRequest::TakeOver(peer) => {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let _ = rustix::net::send(&peer, &[BUSY], flags);
                None
            }
            SocketRequest::Upgrade(asking) => Some(asking),
        }
    }

    /// Waits until another server takes over, and returns its connection; or until the time expires
    /// or the process must stop.
    pub(super) fn wait(&self, until: Instant, stop: BorrowedFd<'_>) -> Option<OwnedFd> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut heard = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            match poll(&mut heard, Some(&timeout)) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return None,
                Ok(_) if !heard[1].revents().is_empty() => return None,
                Ok(_) => match self.accept() {
                    Some(SocketRequest::TakeOver(server)) => return Some(server),
                    Some(SocketRequest::Upgrade(asking)) => asking.answer(Err(
                        "the server was killed, and this process holds its objects; start towpath \
                         serve again",
                    )),
                    None => {}
                },
            }
        }
    }

    /// Gives everything to the next server, if there is one, and closes it here.
    pub(super) fn hand_over(self, next: Option<OwnedFd>, held: Held) {
        if let Some(server) = &next {
            let limited = set_socket_timeout(server, Timeout::Send, Some(ANSWER_TIMEOUT));
            // A server that does not read gets less, and the rest is closed.
            let _ = limited.and_then(|()| {
                held.all().try_for_each(|(name, descriptor)| {
                    send(server, store(name).as_bytes(), &[descriptor], SendFlags::empty())
                })
            });
        }
        held.give_up();
        // The next server's keeper may bind the path from the answer on.
        drop(self);
        if let Some(server) = next {
            let _ = send(&server, &[GIVEN_UP], &[], SendFlags::empty());
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The outcome of [`take_over`].
#[derive(Debug)]
pub enum TakeOver {
    /// No keeper was there, or it held nothing any more.
    Nothing,
    /// The descriptors of a server that was killed, with their names. Its keeper holds them no
    /// longer.
    Done(Vec<(String, OwnedFd)>),
    /// The other server lives.
    Busy,
}

/// Takes over from a killed server with this socket: its keeper hands over what it holds. This
/// process needs as many descriptors as the keeper has. `user`: the user as which this server, and
/// so the other one, runs.
///
/// # Errors
/// Fails with the error of a system call, such as `EACCES` for another user's server.
pub fn take_over(socket: &Path, user: Option<u32>) -> io::Result<TakeOver> {
    let Some(keeper) = connect(socket, user)? else { return Ok(TakeOver::Nothing) };
    match rustix::net::send(&keeper, TAKE_OVER, SendFlags::NOSIGNAL) {
        // It has ended.
        Err(errno) if is_gone(errno) => return Ok(TakeOver::Nothing),
        other => other?,
    };
    let mut taken = Vec::new();
    let mut buffer = [0; MESSAGE_BYTES];
    loop {
        let Received { bytes, descriptors, .. } = match receive(&keeper, &mut buffer) {
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Ok(TakeOver::Nothing),
            other => other?,
        };
        match &buffer[..bytes] {
            [] => return Ok(TakeOver::Nothing),
            [GIVEN_UP] => return Ok(TakeOver::Done(taken)),
            [_] => return Ok(TakeOver::Busy),
            text => {
                if let Some(Notification::Store(name)) = parse(text) {
                    taken.extend(descriptors.into_iter().map(|one| (name.to_owned(), one)));
                }
            }
        }
    }
}

/// The outcome of [`upgrade`].
#[derive(Debug)]
pub enum Upgrade {
    /// A server of the program that is installed now serves.
    Done,
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
        [NOT_UPGRADED, why @ ..] => Ok(Upgrade::Refused(String::from_utf8_lossy(why).into_owned())),
        _ => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the keeper closed the connection without an answer",
        )),
    }
}
