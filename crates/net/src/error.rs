//! Conversion of errors to those of `std::io`.

use std::io::{self, Error, ErrorKind};

use towpath_memory::ForkGuard;
use towpath_stack::SocketError;

use crate::LinkError;

/// Returns the error of `std::io` with the same meaning, which contains the cause.
pub(crate) fn socket(error: SocketError) -> Error {
    let kind = match error {
        SocketError::WouldBlock => ErrorKind::WouldBlock,
        SocketError::Refused => ErrorKind::ConnectionRefused,
        SocketError::Reset => ErrorKind::ConnectionReset,
        SocketError::TimedOut => ErrorKind::TimedOut,
        SocketError::Aborted => ErrorKind::ConnectionAborted,
        SocketError::NotConnected | SocketError::NoSocket => ErrorKind::NotConnected,
        SocketError::Closed | SocketError::Broken => ErrorKind::BrokenPipe,
        SocketError::AddressInUse | SocketError::AlreadyJoined => ErrorKind::AddrInUse,
        SocketError::AddressNotAvailable | SocketError::NotJoined | SocketError::HandedOver => {
            ErrorKind::AddrNotAvailable
        }
        SocketError::Unreachable => ErrorKind::HostUnreachable,
        SocketError::Revoked | SocketError::BroadcastNotEnabled => ErrorKind::PermissionDenied,
        SocketError::NoGroups => ErrorKind::Unsupported,
        SocketError::LimitReached => ErrorKind::QuotaExceeded,
        SocketError::MessageTooLong | SocketError::InvalidAddress | SocketError::NotGroup => {
            ErrorKind::InvalidInput
        }
        SocketError::TooManySegments | SocketError::SegmentTooLong { .. } => {
            ErrorKind::InvalidInput
        }
    };
    Error::new(kind, error)
}

/// Returns the error of every call on a dead link, or in a child made by `fork`.
pub(crate) fn link(error: &LinkError) -> Error {
    Error::new(ErrorKind::NetworkDown, error.clone())
}

/// Checks that this process made the network or poller that `guard` belongs to.
#[inline]
pub(crate) fn not_forked(guard: &ForkGuard) -> io::Result<()> {
    if guard.is_parent() { Ok(()) } else { Err(link(&LinkError::Forked)) }
}

/// Returns the error of a timeout, the same as that of `std::net` on Linux.
pub(crate) fn timeout() -> Error {
    Error::new(ErrorKind::WouldBlock, "the timeout passed")
}
