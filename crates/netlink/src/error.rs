//! What went wrong, of which operation, on which interface.

use std::io;

use rustix::io::Errno;

/// Why a request did nothing. Whatever is not [`Error::Refused`] was not decided by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The socket itself could not be opened, written or read.
    #[error("netlink: {operation}: {}", io::Error::from(*errno))]
    Socket {
        /// What was tried.
        operation: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
    /// The kernel did not answer in time.
    #[error("{operation} {subject}: no answer from the kernel")]
    NoAnswer {
        /// What was asked for.
        operation: &'static str,
        /// Of which interface, address or route.
        subject: String,
    },
    /// The kernel said no.
    #[error("{operation} {subject}: {}{}{}", io::Error::from(*errno), said(detail), hint(*errno))]
    Refused {
        /// What was asked for.
        operation: &'static str,
        /// Of which interface, address or route.
        subject: String,
        /// The error of the acknowledgement.
        errno: Errno,
        /// The kernel's own words, where it has any (`NLMSGERR_ATTR_MSG`).
        detail: Option<String>,
    },
    /// There is no such interface in this network namespace.
    #[error("no interface {name} in this network namespace")]
    NoSuchLink {
        /// Its name.
        name: String,
    },
    /// No interface can be called so.
    #[error("{name:?} cannot be an interface's name: {cause}")]
    BadName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// A value that no kernel takes, such as a prefix of 33 bits.
    #[error("{what}: {value:?} is not possible")]
    BadValue {
        /// Of what.
        what: &'static str,
        /// What was given.
        value: String,
    },
    /// An answer that does not hold together, or more of it than any host has.
    #[error("{operation}: unreadable answer: {cause}")]
    Malformed {
        /// What was asked for.
        operation: &'static str,
        /// What is wrong with it.
        cause: &'static str,
    },
}

impl Error {
    /// The kernel's error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Socket { errno, .. } | Error::Refused { errno, .. } => Some(*errno),
            Error::NoSuchLink { .. } => Some(Errno::NODEV),
            _ => None,
        }
    }

    /// Whether what was to be made is there already.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Whether what was to be changed or taken away is not there.
    #[must_use]
    pub fn not_found(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::NODEV | Errno::NOENT | Errno::SRCH | Errno::ADDRNOTAVAIL)
        )
    }

    /// Whether this process lacks the right to do it.
    #[must_use]
    pub fn not_permitted(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERM | Errno::ACCESS))
    }
}

fn said(detail: &Option<String>) -> String {
    detail.as_ref().map_or_else(String::new, |detail| format!("; the kernel says: {detail}"))
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM | Errno::ACCESS => "; needs CAP_NET_ADMIN in this network namespace",
        Errno::OPNOTSUPP => "; is the kernel's module for it there?",
        _ => "",
    }
}
