//! Refusals of the machine, and other errors.
#![forbid(unsafe_code)]

use std::io;

/// The exit status of a program that cannot run on this machine: neither success nor failure
/// (as automake and many test drivers have it).
pub const EXIT_UNAVAILABLE: u8 = 77;

/// Something that this machine forbids, or forbids this user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}\n{remedy}")]
pub struct Unavailable {
    /// The refusal, in one line.
    pub cause: String,
    /// A remedy for the administrator or the user, in one line.
    pub remedy: String,
}

/// The reason why a sandbox was not set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine does not allow it.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// An interface, address or route.
    #[error(transparent)]
    Netlink(#[from] towpath_netlink::Error),
    /// Anything else.
    #[error("{what}: {cause}")]
    Failed {
        /// The attempted operation.
        what: String,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl Error {
    /// Returns a function that makes a call's error from the attempted operation and the kernel's
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
