//! The server's sockets in the file system, and the locks that claim their paths.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode as FileMode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use towpath_device::close_early;
use towpath_protocol::admin_socket::{MOST_PATH_BYTES, admin_socket, without_admin};

use crate::config::StartError;
use crate::policy::Policy;

/// The backlog of a listening socket: Linux queues one connection more. The kernel serves them in the order of arrival and ignores their
/// users. While the queue is full, connecting waits. So a flooding user waits most of the time, and few of its connections
/// are ahead of another user's. During a flood by one thread, attaching took 70 ms at the 99th percentile with a backlog
/// of 4096, and 6 ms with 16.
pub(crate) const BACKLOG: u8 = 16;

/// A socket's path and the lock that claims it. Dropping this removes both, if they are this
/// server's. The lock of the applications' socket also claims an administration socket at the default path.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    lock: Option<Lock>,
    /// `true` if dropping this removes both. `false` while they are an earlier server's, whose sessions
    /// another one may resume if this one does not start, and once they are left to the next server.
    is_own: bool,
}

/// The file beside a socket that the listening server keeps locked.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: OwnedFd,
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
            if let Some(lock) = &self.lock {
                let _ = std::fs::remove_file(&lock.path);
            }
        }
    }
}

/// The names of the listening sockets in the store: of applications, and of administrators.
pub(crate) const STORED_NAME: &str = "listener";
pub(crate) const STORED_ADMIN_NAME: &str = "admin-listener";

/// Binds the applications' socket.
///
/// # Errors
/// Another server lives at the path, or the path cannot be used.
pub(crate) fn bind(
    path: &Path,
    policy: &Policy,
    left: &mut Option<OwnedFd>,
) -> Result<(OwnedFd, Bound), StartError> {
    // The server decides by the kernel's peer credentials. The file's mode only rejects users without
    // any right early.
    let mode = if policy.admits_others() { 0o666 } else { 0o600 };
    bind_with(path, mode, Some(lock(path)?), left)
}

/// Binds the administration socket of a server: at `own`, or beside the applications' socket, which the server has
/// bound already.
///
/// # Errors
/// As [`bind`].
pub(crate) fn bind_admin(
    applications: &Path,
    own: Option<&Path>,
    left: &mut Option<OwnedFd>,
) -> Result<(OwnedFd, Bound, PathBuf), StartError> {
    let is_default = |own: &Path| canonical(own) == canonical(&admin_socket(applications));
    let (path, lock) = match own {
        Some(own) if own == applications => return Err(StartError::OneSocket(own.to_owned())),
        // The lock of the applications' socket to which this path belongs: its server may live, and listen here, too.
        Some(own) if !is_default(own) => {
            let lock = lock(without_admin(own)).map_err(|error| match error {
                StartError::InUse(_) => StartError::InUse(own.to_owned()),
                StartError::Socket { cause, .. } => {
                    StartError::Socket { path: own.to_owned(), cause }
                }
                other => other,
            })?;
            (own.to_owned(), Some(lock))
        }
        Some(own) => (own.to_owned(), None),
        None => (admin_socket(applications), None),
    };
    let length = path.as_os_str().len();
    if length > MOST_PATH_BYTES {
        return Err(StartError::LongAdminPath { path, length });
    }
    let (socket, bound) = bind_with(&path, 0o600, lock, left)?;
    Ok((socket, bound, path))
}

/// Returns the path of a socket without symbolic links in its directory.
fn canonical(path: &Path) -> PathBuf {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).canonicalize();
    directory
        .map_or(path.to_owned(), |directory| directory.join(path.file_name().unwrap_or_default()))
}

/// Takes the lock that claims the path of a socket, after checking that no living server has it.
fn lock(path: &Path) -> Result<Lock, StartError> {
    let failed = |error: rustix::io::Errno| StartError::Socket {
        path: path.to_owned(),
        cause: error.into(),
    };
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file =
        rustix::fs::open(&lock_path, flags, FileMode::RUSR | FileMode::WUSR).map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // The next server of a killed one needs the lock.
        Ok(()) => Ok(Lock { path: lock_path.into(), _file: close_early(file) }),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StartError::InUse(path.to_owned())),
        Err(other) => Err(failed(other)),
    }
}

/// Binds a socket with a mode. If the listening socket of an earlier server is in `left`, takes that one: applications
/// may be waiting there already.
fn bind_with(
    path: &Path,
    mode: u32,
    lock: Option<Lock>,
    left: &mut Option<OwnedFd>,
) -> Result<(OwnedFd, Bound), StartError> {
    let failed = |cause: io::Error| StartError::Socket { path: path.to_owned(), cause };
    let mut bound = Bound { path: path.to_owned(), lock, is_own: true };
    if let Some(socket) = left.take_if(|socket| listens_at(socket, path)) {
        bound.leave();
        set_mode(path, mode).map_err(failed)?;
        // An earlier version's queue had another length.
        rustix::net::listen(&socket, BACKLOG.into()).map_err(|error| failed(error.into()))?;
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
    set_mode(path, mode).map_err(failed)?;
    rustix::net::listen(&socket, BACKLOG.into()).map_err(|error| failed(error.into()))?;
    Ok((socket, bound))
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two servers never share a path, whichever of their sockets has it.
    #[test]
    fn an_administration_socket_takes_no_other_servers_place() {
        let directory =
            std::env::temp_dir().join(format!("towpath-sockets-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = |name: &str| directory.join(name);
        let policy = Policy::default();
        let _first = bind(&path("first"), &policy, &mut None).unwrap();
        let (_socket, _bound, at) = bind_admin(&path("first"), None, &mut None).unwrap();
        let taken = bind_admin(&path("second"), Some(&at), &mut None);
        assert!(matches!(taken, Err(StartError::InUse(path)) if path == at));
        // The other way round: the path of a server that starts later.
        let third = path("third.admin");
        let _third = bind_admin(&path("second"), Some(&third), &mut None).unwrap();
        let taken = bind(&path("third"), &policy, &mut None);
        assert!(matches!(taken, Err(StartError::InUse(of)) if of == path("third")));
        // The default path in another spelling is the server's own.
        let _fourth = bind(&path("fourth"), &policy, &mut None).unwrap();
        let other = directory.join(".").join("fourth.admin");
        assert!(bind_admin(&path("fourth"), Some(&other), &mut None).is_ok());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
