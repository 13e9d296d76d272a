//! Errors of bpf(2).

use std::io;

/// A command that the kernel refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process may not use BPF.
    #[error(
        "{what}: {cause}; needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN to open an object by its id"
    )]
    NotPermitted {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The kernel's verifier did not accept a program.
    #[error("loading a program: {cause}: {log}")]
    Rejected {
        /// The kernel's error.
        cause: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// A key or a value has another size than those of the map, or a descriptor is something else.
    #[error("{what}: {why}")]
    Mismatch {
        /// The operation.
        what: &'static str,
        /// What does not fit.
        why: &'static str,
    },
    /// The kernel refused another operation.
    #[error("{what}: {cause}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl Error {
    /// Returns the error of an operation.
    pub(crate) fn of(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |cause| match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::NotPermitted { what, cause },
            _ => Error::Refused { what, cause },
        }
    }

    /// Returns the kernel's error number, if the kernel refused.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::NotPermitted { cause, .. }
            | Error::Rejected { cause, .. }
            | Error::Refused { cause, .. } => cause.raw_os_error(),
            Error::Mismatch { .. } => None,
        }
    }
}

impl From<Error> for io::Error {
    /// Keeps the kernel's error number, except for [`Error::Rejected`], whose text has the
    /// verifier's log.
    fn from(error: Error) -> io::Error {
        match error {
            Error::NotPermitted { cause, .. } | Error::Refused { cause, .. } => cause,
            other => io::Error::other(other),
        }
    }
}
