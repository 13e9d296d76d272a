//! The path of a server's administration socket, by the path of its applications' socket.
//!
//! A server listens at two sockets. Over the **applications' socket**, every user gets what the policy grants, root
//! included. Over the **administration socket**, root and the server's user have all rights. A container with the
//! applications' socket therefore gives its root no right over the server.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The end of an administration socket's path.
pub const ADMIN_SUFFIX: &str = ".admin";

/// The longest path of a Unix socket, in bytes (`sockaddr_un`, unix(7)), without its zero.
pub const MOST_PATH_BYTES: usize = 107;

/// Returns the default path of the administration socket of the server whose applications' socket is at `socket`.
///
/// ```
/// use towpath_protocol::admin_socket::admin_socket;
///
/// let admin = admin_socket("/run/towpath/tap0.sock".as_ref());
/// assert_eq!(admin.to_str(), Some("/run/towpath/tap0.sock.admin"));
/// ```
#[must_use]
pub fn admin_socket(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(ADMIN_SUFFIX);
    path.into()
}

/// Returns `true` if a path is that of an administration socket.
///
/// ```
/// use towpath_protocol::admin_socket::is_admin_socket;
///
/// assert!(is_admin_socket("/run/towpath/tap0.sock.admin".as_ref()));
/// assert!(!is_admin_socket("/run/towpath/tap0.sock".as_ref()));
/// ```
#[must_use]
pub fn is_admin_socket(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(ADMIN_SUFFIX.as_bytes())
}

/// Returns the path without the end of an administration socket's path: the default path of the applications' socket.
///
/// ```
/// use towpath_protocol::admin_socket::without_admin;
///
/// let socket = without_admin("/run/towpath/tap0.sock.admin".as_ref());
/// assert_eq!(socket.to_str(), Some("/run/towpath/tap0.sock"));
/// assert_eq!(without_admin(socket), socket);
/// ```
#[must_use]
pub fn without_admin(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(bytes.strip_suffix(ADMIN_SUFFIX.as_bytes()).unwrap_or(bytes)))
}
