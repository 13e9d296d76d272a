//! The process that outlives a driver's process, as the driver sees it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Makes a driver's sockets that need a privilege, and holds sockets that must outlive the driver's
/// process. Any thread may call it; a call takes as long as the other process needs.
pub trait Keeper: Send + Sync {
    /// Returns a new AF_XDP socket for the device's interface, which is not bound yet.
    ///
    /// # Errors
    /// If the keeper has ended, or the kernel refuses the socket.
    fn xdp_socket(&self) -> io::Result<OwnedFd>;

    /// Holds a copy of a socket under a name.
    ///
    /// # Errors
    /// If the keeper has no room, or does not answer. A keeper that has ended is no error.
    fn hold_socket(&self, name: &str, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Closes the copies under these names, if there are any. Returns when they are closed.
    ///
    /// # Errors
    /// If the keeper does not answer. A keeper that has ended is no error.
    fn release_sockets(&self, names: &[String]) -> io::Result<()>;
}
