//! Refusals of the machine, and other errors.
#![forbid(unsafe_code)]

use std::io;

/// The exit status of a program that cannot run on this machine: neither success nor failure (a
/// convention of automake and many test drivers).
pub const EXIT_UNAVAILABLE: u8 = 77;

/// An operation that this machine forbids, to all users or to this one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}\n{remedy}")]
pub struct Unavailable {
    /// The refusal, in one line.
    pub cause: String,
    /// A remedy for the administrator or the user, in one line.
    pub remedy: String,
}

/// The reason why setting up a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine does not allow it.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// An operation on an interface, address or route failed.
    #[error(transparent)]
    Netlink(#[from] towpath_netlink::Error),
    /// Another operation failed.
    #[error("{what}: {cause}")]
    Failed {
        /// The attempted operation.
        what: String,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl Error {
    /// Returns a function that makes an [`Error`] of the attempted operation from the kernel's
    /// error.
    pub fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |cause| Error::Failed { what, cause }
    }

    /// Returns the same as [`failed`](Error::failed), for errors of rustix.
    pub fn refused(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Error {
        let what = what.into();
        move |errno| Error::Failed { what, cause: errno.into() }
    }

    /// Returns the machine's refusal, if the error is one.
    #[must_use]
    pub fn unavailable(&self) -> Option<&Unavailable> {
        match self {
            Error::Unavailable(unavailable) => Some(unavailable),
            _ => None,
        }
    }
}
