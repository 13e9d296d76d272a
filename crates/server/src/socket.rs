//! The server's socket in the file system, and the lock that claims its path.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode as FileMode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::config::StartError;
use crate::policy::Policy;

/// A socket's path and the lock that claims it. Dropping this removes both, if they are this
/// server's.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    lock_path: PathBuf,
    /// `true` if dropping this removes both. `false` while they are an earlier server's, whose sessions
    /// another one may resume if this one does not start, and once they are left to the next server.
    is_own: bool,
    _lock: OwnedFd,
}

impl Bound {
    /// Makes the socket this server's.
    pub(crate) fn take(&mut self) {
        self.is_own = true;
    }

    /// Leaves the socket to the next server.
    pub(crate) fn leave(&mut self) {
        self.is_own = false;
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(&self.path);
            let _ = std::fs::remove_file(&self.lock_path);
        }
    }
}

/// The name of the listening socket in the store.
pub(crate) const STORED_NAME: &str = "listener";

/// Binds the socket, after checking that no living server holds it. If the listening socket of an
/// earlier server is in `left`, takes that one: applications may be waiting there already.
pub(crate) fn bind(
    path: &Path,
    policy: &Policy,
    left: &mut Option<OwnedFd>,
) -> Result<(OwnedFd, Bound), StartError> {
    let failed = |cause: io::Error| StartError::Socket { path: path.to_owned(), cause };
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock = rustix::fs::open(
        &lock_path,
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        FileMode::RUSR | FileMode::WUSR,
    )
    .map_err(|error| failed(error.into()))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(
        |error| match error {
            rustix::io::Errno::WOULDBLOCK => StartError::InUse(path.to_owned()),
            other => failed(other.into()),
        },
    )?;
    let mut bound = Bound { path: path.to_owned(), lock_path, is_own: true, _lock: lock };
    if let Some(socket) = left.take_if(|socket| listens_at(socket, path)) {
        bound.leave();
        set_mode(path, policy).map_err(failed)?;
        return Ok((socket, bound));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) => {
            if !found.file_type().is_socket() {
                let cause =
                    io::Error::new(io::ErrorKind::AlreadyExists, "exists, and is no socket");
                bound.leave();
                return Err(failed(cause));
            }
            // A killed server left the socket behind: its lock is free.
            std::fs::remove_file(path).map_err(failed)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    // Before Linux 6.16, the workers close descriptors that a peer sends.
    let _ = towpath_protocol::peer::refuse_descriptors(&socket);
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
    set_mode(path, policy).map_err(failed)?;
    rustix::net::listen(&socket, 128).map_err(|error| failed(error.into()))?;
    Ok((socket, bound))
}

/// The server decides by the kernel's peer credentials. The file's mode only rejects users without
/// any right early.
fn set_mode(path: &Path, policy: &Policy) -> io::Result<()> {
    let mode = if policy.admits_others() { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Returns `true` if an earlier server's socket is bound to this path, and the path is a socket of
/// this user.
fn listens_at(socket: &OwnedFd, path: &Path) -> bool {
    let bound = rustix::net::getsockname(socket).ok();
    let bound = bound.and_then(|address| SocketAddrUnix::try_from(address).ok());
    let is_there = bound.is_some_and(|bound| {
        bound.path_bytes().is_some_and(|bytes| bytes == path.as_os_str().as_bytes())
    });
    is_there
        && std::fs::symlink_metadata(path).is_ok_and(|found| {
            found.file_type().is_socket() && found.uid() == rustix::process::geteuid().as_raw()
        })
}
