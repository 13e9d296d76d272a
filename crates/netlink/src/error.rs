//! Errors, which name the operation and the interface.

use std::io;

use rustix::io::Errno;

/// The reason why a request failed. Only [`Error::Refused`] is the kernel's decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Opening, writing or reading the socket failed.
    #[error("netlink: {operation}: {}", io::Error::from(*errno))]
    Socket {
        /// The attempted operation.
        operation: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel did not answer in time.
    #[error("{operation} {subject}: no answer from the kernel")]
    NoAnswer {
        /// The requested operation.
        operation: &'static str,
        /// The interface, address or route.
        subject: String,
    },
    /// The kernel refused.
    #[error("{operation} {subject}: {}{}{}", io::Error::from(*errno), said(detail), hint(*errno))]
    Refused {
        /// The requested operation.
        operation: &'static str,
        /// The interface, address or route.
        subject: String,
        /// The error of the acknowledgement.
        errno: Errno,
        /// The kernel's own message, if any (`NLMSGERR_ATTR_MSG`).
        detail: Option<String>,
    },
    /// There is no such interface in this network namespace.
    #[error("no interface {name} in this network namespace")]
    NoSuchLink {
        /// Its name.
        name: String,
    },
    /// No interface can have this name.
    #[error("{name:?} cannot be an interface's name: {cause}")]
    BadName {
        /// The given name.
        name: String,
        /// Its defect.
        cause: &'static str,
    },
    /// The value is impossible, such as a prefix of 33 bits.
    #[error("{what}: {value:?} is not possible")]
    BadValue {
        /// The kind of value.
        what: &'static str,
        /// The given value.
        value: String,
    },
    /// The answer is inconsistent, or longer than that of any host.
    #[error("{operation}: unreadable answer: {cause}")]
    Malformed {
        /// The requested operation.
        operation: &'static str,
        /// Its defect.
        cause: &'static str,
    },
}

impl Error {
    /// Returns the kernel's error number, if any.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Socket { errno, .. } | Error::Refused { errno, .. } => Some(*errno),
            Error::NoSuchLink { .. } => Some(Errno::NODEV),
            _ => None,
        }
    }

    /// Returns `true` if the object to create exists already.
    #[must_use]
    pub fn already_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Returns `true` if the object to change or remove does not exist.
    #[must_use]
    pub fn not_found(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::NODEV | Errno::NOENT | Errno::SRCH | Errno::ADDRNOTAVAIL)
        )
    }

    /// Returns `true` if this process lacks the right to the operation.
    #[must_use]
    pub fn not_permitted(&self) -> bool {
        self.errno() == Some(Errno::PERM)
    }
}

fn said(detail: &Option<String>) -> String {
    detail.as_ref().map_or_else(String::new, |detail| format!("; the kernel says: {detail}"))
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        // The kernel returns `EACCES` for other causes, such as an interface with IPv6 disabled.
        Errno::PERM => "; needs CAP_NET_ADMIN in this network namespace",
        Errno::OPNOTSUPP => "; is the kernel's module for it there?",
        _ => "",
    }
}
