//! The directory of the socket: it exists, belongs to no other user, and is writable by the
//! server's user.
//!
//! A server that changes its user binds its socket after the change, so that it owns the socket and
//! can remove it at the end. The directory therefore belongs to root and to the server's group,
//! which may create files in it. The directory has the sticky bit: each server can remove its own
//! socket and no other.
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Gid, geteuid};

use towpath_protocol::admin_socket::{
    MOST_PATH_BYTES, admin_socket, is_admin_socket, without_admin,
};

use super::settings::Settings;
use super::values::Identity;
use crate::failure::{Failure, says};

/// Write permission for the directory: its owner alone, or also a group, with the sticky bit.
const OWNERS: u32 = 0o755;
const GROUPS: u32 = 0o1775;

/// Prepares the directories of both sockets of a server, whose settings name at least one.
pub(super) fn prepare_both(settings: &Settings) -> Result<(), Failure> {
    let (socket, user) =
        (settings.socket.as_deref().unwrap_or(Path::new("")), settings.user.as_ref());
    prepare(socket, user)?;
    match &settings.admin_socket {
        Some(admin) => prepare(admin, user),
        None => check_length(&settings.admin_path(), "--socket, or give --admin-socket"),
    }
}

/// Checks that the kernel has room for the path of a socket.
fn check_length(socket: &Path, remedy: &str) -> Result<(), Failure> {
    let length = socket.as_os_str().len();
    if length <= MOST_PATH_BYTES {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{}: a socket's path of {length} bytes; {MOST_PATH_BYTES} are possible: choose a shorter one with {remedy}",
        socket.display()
    )))
}

/// Prepares the directory of `socket` for a server that runs as `user`. A directory that an
/// operator made stays as it is.
pub(super) fn prepare(socket: &Path, user: Option<&Identity>) -> Result<(), Failure> {
    check_length(socket, if is_admin_socket(socket) { "--admin-socket" } else { "--socket" })?;
    // A user other than the current one, which may lack its rights.
    let other = user.filter(|user| user.uid != geteuid().as_raw());
    let Some(directory) = socket.parent().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(());
    };
    let failed = |error: &io::Error| {
        Failure::new(format!(
            "{}: {}; with --socket, choose a path that this user may write to",
            directory.display(),
            says(error)
        ))
    };
    let ours = socket.parent() == towpath_client::default_socket("x").parent();
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new()
                .recursive(true)
                .mode(OWNERS)
                .create(directory)
                .map_err(|error| failed(&error))?;
            // Undoes the effect of the umask.
            set(directory, OWNERS).map_err(|error| failed(&error))?;
            if let Some(user) = other {
                share(directory, user).map_err(|error| failed(&error))?;
            }
        }
        Err(error) => return Err(failed(&error)),
        Ok(found) if ours => {
            check_owner(directory, &found)?;
            if let Some(user) = other {
                share_ours(directory, &found, user)?;
            }
        }
        Ok(_) => {}
    }
    take_over(socket, user.map_or(geteuid().as_raw(), |user| user.uid))
}

/// Checks that only root or this user could have made the default directory: applications trust the
/// sockets in it.
fn check_owner(directory: &Path, found: &fs::Metadata) -> Result<(), Failure> {
    let shown = directory.display();
    if !found.is_dir() {
        let text = format!("{shown} is not a directory; remove it, or choose another --socket");
        return Err(Failure::new(text));
    }
    if found.uid() != 0 && found.uid() != geteuid().as_raw() {
        return Err(Failure::new(format!(
            "{shown} belongs to user {}; remove it, or choose another --socket",
            found.uid()
        )));
    }
    let open = found.mode() & 0o022;
    if open & 0o002 != 0 || (open != 0 && found.mode() & 0o1000 == 0) {
        return Err(Failure::new(format!(
            "{shown} is writable for others; chmod {OWNERS:o} {shown}, or choose another --socket"
        )));
    }
    Ok(())
}

/// Gives the default directory to the group of the server's user, unless another one has it.
fn share_ours(directory: &Path, found: &fs::Metadata, user: &Identity) -> Result<(), Failure> {
    let shown = directory.display();
    if found.gid() == user.gid && found.mode() & 0o020 != 0 {
        return Ok(());
    }
    if found.gid() != 0 && found.mode() & 0o020 != 0 {
        return Err(Failure::new(format!(
            "{shown} belongs to the servers of group {0}; serve with --user {1}:{0}, choose another \
             --socket, or, if no other server uses it, remove the directory",
            found.gid(),
            user.uid
        )));
    }
    share(directory, user).map_err(|error| Failure::new(format!("{shown}: {}", says(&error))))
}

fn share(directory: &Path, user: &Identity) -> io::Result<()> {
    rustix::fs::chown(directory, None, Some(Gid::from_raw(user.gid)))?;
    set(directory, GROUPS)
}

fn set(directory: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(directory, Permissions::from_mode(mode))
}

/// Returns the path of the file beside a socket that the listening server keeps locked.
pub(super) fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

/// Returns the failure to serve at a socket where a server lives.
pub(super) fn busy(socket: &Path) -> Failure {
    Failure::new(format!(
        "{}: another server serves here; stop it, or choose another socket path with --socket",
        socket.display()
    ))
}

/// Removes the sockets that a killed server of another user left, while root still can: a server of
/// this user could not take them over.
fn take_over(socket: &Path, uid: u32) -> Result<(), Failure> {
    let failed = |path: &Path, error: &io::Error| {
        Failure::new(format!("{}: {}", path.display(), says(error)))
    };
    // The lock of an administration socket is that of the applications' socket to which it belongs.
    let applications = without_admin(socket);
    let lock_path = lock_path(applications);
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = match rustix::fs::open(&lock_path, flags, Mode::empty()) {
        Ok(lock) => lock,
        // There is no lock; or this user may not open it, which the server will report.
        Err(_) => return Ok(()),
    };
    if rustix::fs::fstat(&lock).is_ok_and(|found| found.st_uid == uid) {
        return Ok(());
    }
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(busy(socket));
        }
        Err(errno) => return Err(failed(&lock_path, &errno.into())),
    }
    for socket in [applications, &admin_socket(applications)] {
        if fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(socket).map_err(|error| failed(socket, &error))?;
        }
    }
    fs::remove_file(&lock_path).map_err(|error| failed(&lock_path, &error))
}
