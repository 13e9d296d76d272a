//! The reasons why the driver cannot serve an interface.

use std::io;

/// The reason why the driver cannot serve an interface, with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// There is no such interface, or the kernel does not say anything about it.
    #[error("{0}; ip link shows the interfaces of this network namespace")]
    NoInterface(#[from] towpath_netlink::Error),
    /// The interface has no Ethernet addresses.
    #[error("{name} is not an Ethernet interface")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// This user may not open the sockets, or load or attach the programs.
    #[error(
        "no permission to serve {name} with packet sockets ({what}: {cause}): needs CAP_NET_ADMIN, \
         CAP_BPF, CAP_PERFMON and CAP_NET_RAW"
    )]
    NotPermitted {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The kernel has no hook for a program that keeps packets from its network stack.
    #[error(
        "{name}: this kernel has no ingress hook for programs (TCX: {cause}); use Linux 6.6 or later, \
         or --device xdp:{name}"
    )]
    NoHook {
        /// The interface.
        name: String,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another Towpath server serves the interface.
    #[error(
        "another Towpath server serves {name}: program {program}; end that server, or see towpath \
         detach"
    )]
    OtherServer {
        /// The interface.
        name: String,
        /// The program's id, tag, name and link.
        program: String,
    },
    /// The kernel refused another operation.
    #[error("{name}: {what}: {cause}")]
    Refused {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// Returns a function that makes the error of an operation on an interface.
pub(super) fn refused(name: &str, what: &'static str) -> impl FnOnce(io::Error) -> PacketError {
    let name = name.to_owned();
    move |cause| match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PacketError::NotPermitted { name, what, cause },
        _ => PacketError::Refused { name, what, cause },
    }
}
