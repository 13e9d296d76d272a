//! The keeper: a process beside a server that shares the host's addresses.
//!
//! It has two tasks.
//!
//! **Privileged acts.** A server gives up its privileges before it serves. For each privileged act
//! later, it sends a request of a fixed size to the keeper, which has two capabilities: to bind ports below 1024
//! (`CAP_NET_BIND_SERVICE`), and to have the kernel confirm a neighbour (`CAP_NET_ADMIN`). The keeper
//! checks each request against the interface that it was started for.
//!
//! **A killed server.** The keeper has copies of the descriptors that keep applications' flows from
//! the kernel: the attachments of the programs, and the sockets that hold ports. If the server ends
//! without a word, the keeper holds them for a while. The kernel then answers no packet of these flows:
//! a reset would tell the peers at once that the connection is gone. The next server takes over, or the time
//! expires; then the keeper closes everything, and the kernel removes what was attached.

mod client;
#[allow(unsafe_code)]
mod holder;
mod process;
mod take_over;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub(crate) use client::KeeperClient;
pub(crate) use holder::PortProtocol;
pub use process::run_keeper;
pub use take_over::{TakeOver, take_over};

/// The longest time that a server waits for a keeper's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after an operation for which there is no memory or descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// Makes the connection between a server and its keeper, and returns the two ends: the server's for
/// [`HostAccess`](super::HostAccess), and the keeper's for [`run_keeper`].
///
/// # Errors
/// Fails with the error of `socketpair`.
pub fn keeper_connection() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The options of a keeper.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The interface whose addresses the server shares.
    pub interface: String,
    /// The time for which flows stay closed to the kernel after a server that was killed.
    pub hold: Duration,
    /// The path of the socket at which the next server takes over.
    pub path: PathBuf,
}

/// Returns the path at which the keeper of a server listens, by the path of the server's socket.
#[must_use]
pub fn keeper_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".keeper");
    path.into()
}
