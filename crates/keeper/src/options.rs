//! The options of a keeper, and the ways to it: its connection to the server, and its socket's
//! path.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use towpath_protocol::admin_socket::without_admin;

/// The longest time that a server waits for a keeper's answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time that a server takes to end for the next one, or that the next one takes to serve,
/// in an upgrade.
pub(super) const UPGRADE_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after an operation for which there is no memory or descriptor.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// The beginning of the names of the keeper's own objects, which are not a server's.
pub const OWN: &str = "keeper-";

/// Makes the connection between a server and its keeper, and returns the two ends: the server's for
/// [`KeeperAccess`](super::KeeperAccess), and the keeper's.
///
/// # Errors
/// Fails with the error of `socketpair`.
pub(super) fn keeper_connection() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The way in which a keeper follows the interface of its servers when an administrator renames the interface. The
/// keeper tells its servers ([`followed_interface`](super::followed_interface)) and all users the present name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The keeper follows no interface: the device is no interface of the kernel.
    Nothing,
    /// The keeper follows the interface's number, which it looks up by the name before the first server starts.
    Interface,
    /// The keeper takes the interface's name and number from the TAP's descriptor, which a server leaves.
    Tap,
}

/// The options of a keeper.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The interface that the server serves.
    pub interface: String,
    /// The way in which the keeper follows the interface when the interface gets another name.
    pub follows: Follows,
    /// The number of the keeper's devices, which share the descriptors that it can hold equally.
    pub devices: usize,
    /// `true` if the server may have the keeper bind ports of the interface's addresses, and have
    /// the kernel confirm neighbours there.
    pub shares_host: bool,
    /// The time for which the keeper holds flows, ports and sessions while no server serves. With
    /// zero, no other server follows that gets them.
    pub hold: Duration,
    /// `true` if a server that fails or ends does not end the supervision: another one starts without
    /// the objects of the one before, again and again.
    pub retries: bool,
    /// `true` if SIGHUP is for the device's server, too.
    pub passes_hangup: bool,
    /// `true` if, at SIGTERM, the server leaves and the caller gets its objects
    /// ([`Supervision::Left`](super::Supervision::Left)).
    pub leaves_at_sigterm: bool,
    /// The user and the group that the keeper changes to when its first server serves, if it does:
    /// the owners of its socket.
    pub owner: Option<(u32, u32)>,
    /// The path of the socket at which an administrator asks for an upgrade ([`keeper_path`]).
    pub path: PathBuf,
    /// The path of the file that tells every user how the device is
    /// ([`status_path`](super::status_path)).
    pub status: PathBuf,
}

/// Returns the path at which the keeper of a server listens, by the path of the server's socket. Of an administration
/// socket, the keeper's socket is in the same directory.
#[must_use]
pub fn keeper_path(socket: &Path) -> PathBuf {
    let mut path = without_admin(socket).as_os_str().to_owned();
    path.push(".keeper");
    path.into()
}
