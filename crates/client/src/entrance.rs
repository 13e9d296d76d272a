//! The choice between a server's two sockets, by the path of the applications' socket.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use towpath_protocol::admin_socket::{MOST_PATH_BYTES, admin_socket, is_admin_socket};

/// Returns the path of the administration socket that a client of this process tries before `path`, the applications'
/// socket; `None` if there is none for this user. Only root and the server's user have one. It is beside the
/// applications' socket, and belongs to the same user.
///
/// [`Session::attach`](crate::Session::attach), [`report()`](crate::report()) and [`set`](crate::set()) try both by
/// themselves. A program needs this only to look whether a server listens.
///
/// ```
/// use towpath_client::administration_socket;
///
/// assert_eq!(administration_socket("/no/such/tap0.sock".as_ref()), None);
/// ```
#[must_use]
pub fn administration_socket(path: &Path) -> Option<PathBuf> {
    if is_admin_socket(path) {
        return None;
    }
    let mut found = path.symlink_metadata().ok()?;
    let mut admin = admin_socket(path);
    if found.is_symlink() {
        let target = path.canonicalize().ok()?;
        found = target.symlink_metadata().ok()?;
        admin = admin_socket(&target);
    }
    let uid = rustix::process::geteuid().as_raw();
    let is_for_user = uid == 0 || uid == found.uid();
    // In a directory that several servers share, another server could have made this file.
    let is_its = || {
        admin
            .symlink_metadata()
            .is_ok_and(|admin| admin.file_type().is_socket() && admin.uid() == found.uid())
    };
    let fits = admin.as_os_str().len() <= MOST_PATH_BYTES;
    (is_for_user && fits && is_its()).then_some(admin)
}

/// Returns `true` if this process has to use the applications' socket after this error of the administration socket.
/// The administration socket does not exist, refuses this user, or is that of a server that has ended.
pub(crate) fn is_for_applications(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::ACCESS | Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
    };

    use super::*;
    use crate::control::{Deadline, connect};
    use crate::error::AttachError;

    fn listener(path: &Path, backlog: i32) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, backlog).unwrap();
        socket
    }

    fn has_connection(listener: &OwnedFd) -> bool {
        rustix::net::accept_with(listener, SocketFlags::CLOEXEC).is_ok()
    }

    /// Signals end the kernel's wait for a place in the queue; the deadline counts from the first one.
    #[test]
    fn signals_do_not_prolong_the_wait_for_a_server() {
        extern "C" fn ignore(_: libc::c_int) {}
        let directory = std::env::temp_dir().join(format!("towpath-busy-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s.sock");
        let _full = listener(&path, 0);
        let _waiting = connect(&path, Deadline::after(Duration::from_secs(20))).unwrap();
        let handler: extern "C" fn(libc::c_int) = ignore;
        // SAFETY: the handler does nothing, so it is safe at any time.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        let (send, thread) = std::sync::mpsc::channel();
        let blocked = std::thread::spawn({
            let path = path.clone();
            move || {
                // SAFETY: the call has no conditions.
                send.send(unsafe { libc::pthread_self() }).unwrap();
                connect(&path, Deadline::after(Duration::from_millis(300)))
            }
        });
        let thread = thread.recv().unwrap();
        let began = std::time::Instant::now();
        while !blocked.is_finished() {
            assert!(began.elapsed() < Duration::from_secs(30), "signals prolong the wait");
            // SAFETY: the thread is not joined yet.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(matches!(blocked.join().unwrap(), Err(AttachError::NoAnswer { .. })));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_administration_socket_is_tried_first_and_its_errors_are_told() {
        let directory = std::env::temp_dir().join(format!("towpath-two-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (path, admin) = (directory.join("s.sock"), directory.join("s.sock.admin"));
        let connect = || connect(&path, Deadline::after(Duration::from_millis(50)));
        assert!(
            matches!(connect(), Err(AttachError::NoServer { path: named, .. }) if named == path)
        );

        let applications = listener(&path, 8);
        let both = || administration_socket(&path);
        let _one = connect().unwrap();
        assert!(both().is_none() && has_connection(&applications), "as with an earlier server");
        std::fs::write(&admin, "").unwrap();
        assert!(both().is_none(), "a file is no socket");
        std::fs::remove_file(&admin).unwrap();

        let administrators = listener(&admin, 0);
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let canonical = admin.canonicalize().unwrap();
        assert_eq!((both(), administration_socket(&link)), (Some(admin.clone()), Some(canonical)));
        assert_eq!(administration_socket(&admin), None, "it is the administration socket itself");
        let _one = connect().unwrap();
        assert!(has_connection(&administrators) && !has_connection(&applications));

        // A server that is too busy for the administrator is no reason to come as an application.
        let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).take(100).collect();
        assert!(waiting.len() < 100);
        assert!(matches!(connect(), Err(AttachError::NoAnswer { .. })));
        assert!(!has_connection(&applications));

        drop((administrators, waiting));
        assert!(both().is_some(), "a dead server's socket");
        let _one = connect().unwrap();
        assert!(has_connection(&applications));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&admin, Some(4242), None).unwrap();
            assert!(both().is_none(), "another server's");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
