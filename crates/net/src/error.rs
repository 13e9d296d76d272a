//! Errors as `std::io` has them.

use std::io::{Error, ErrorKind};

use towpath_stack::SocketError;

use crate::LinkError;

/// The error of `std::io` that says the same; the cause stays inside.
pub(crate) fn socket(error: SocketError) -> Error {
    let kind = match error {
        SocketError::WouldBlock => ErrorKind::WouldBlock,
        SocketError::Refused => ErrorKind::ConnectionRefused,
        SocketError::Reset => ErrorKind::ConnectionReset,
        SocketError::TimedOut => ErrorKind::TimedOut,
        SocketError::Aborted => ErrorKind::ConnectionAborted,
        SocketError::NotConnected | SocketError::NoSocket => ErrorKind::NotConnected,
        SocketError::Closed => ErrorKind::BrokenPipe,
        SocketError::AddressInUse => ErrorKind::AddrInUse,
        SocketError::AddressNotAvailable => ErrorKind::AddrNotAvailable,
        SocketError::Unreachable => ErrorKind::HostUnreachable,
        SocketError::LimitReached => ErrorKind::QuotaExceeded,
        SocketError::MessageTooLong | SocketError::InvalidAddress => ErrorKind::InvalidInput,
    };
    Error::new(kind, error)
}

/// The link is gone, and every call says so.
pub(crate) fn link(error: &LinkError) -> Error {
    Error::new(ErrorKind::NetworkDown, error.clone())
}

/// A timeout passed. What `std::net` says on Linux too.
pub(crate) fn timeout() -> Error {
    Error::new(ErrorKind::WouldBlock, "the timeout passed")
}
