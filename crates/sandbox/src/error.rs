//! What a machine does not allow, and what else may go wrong.
#![forbid(unsafe_code)]

use std::io;

/// The exit status of a program that cannot run on this machine: neither success nor failure
/// (as automake and many test drivers have it).
pub const EXIT_UNAVAILABLE: u8 = 77;

/// Something that this machine, or this user on it, may not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}\n{remedy}")]
pub struct Unavailable {
    /// What is refused, in one line.
    pub cause: String,
    /// What the administrator or the user may do about it, in one line.
    pub remedy: String,
}

/// Why a sandbox was not set up.
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
        /// What was tried.
        what: String,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl Error {
    /// As an error of a call: with what was tried.
    pub fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |cause| Error::Failed { what, cause }
    }

    /// As [`failed`](Error::failed), for what rustix returns.
    pub fn refused(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Error {
        let what = what.into();
        move |errno| Error::Failed { what, cause: errno.into() }
    }

    /// What the machine does not allow, if that is it.
    #[must_use]
    pub fn unavailable(&self) -> Option<&Unavailable> {
        match self {
            Error::Unavailable(unavailable) => Some(unavailable),
            _ => None,
        }
    }
}
