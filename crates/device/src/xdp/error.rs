//! The reasons why the driver cannot serve an interface.

use std::io;

/// The reason why the driver cannot serve an interface, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There is no such interface, or the kernel does not say anything about it.
    #[error("{0}; ip link shows the interfaces of this network namespace")]
    NoInterface(#[from] towpath_netlink::Error),
    /// The interface has no Ethernet addresses.
    #[error("{name} is not an Ethernet interface")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// This user may not load or attach an XDP program, or open the sockets.
    #[error(
        "no permission to serve {name} with AF_XDP ({what}: {cause}): needs CAP_NET_ADMIN, CAP_BPF, \
         CAP_PERFMON and CAP_NET_RAW"
    )]
    NotPermitted {
        /// The interface.
        name: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The kernel has no AF_XDP.
    #[error(
        "this kernel has no AF_XDP sockets ({cause}): it needs CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL"
    )]
    NoSockets {
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another XDP program is on the interface.
    #[error(
        "{name} has another XDP program already: {program}; end the process that attached it, or see \
         towpath detach"
    )]
    OtherProgram {
        /// The interface.
        name: String,
        /// The program's id, tag, name and link.
        program: String,
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
    /// The interface's driver does not run XDP programs itself, or not with these queues or this
    /// MTU.
    #[error("the driver of {name} refuses native XDP ({cause}); use mode=generic")]
    NoNative {
        /// The interface.
        name: String,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Native mode was asked for on a bond.
    #[error(
        "{name} is a bond: in native mode, packets come by the queues of its ports, and no AF_XDP \
         socket of {name} gets them; use mode=generic"
    )]
    NativeBond {
        /// The interface.
        name: String,
    },
    /// Zero-copy was asked for, and the kernel runs the program.
    #[error(
        "{name}: zero-copy needs native mode, and the program is attached in generic mode; add \
         mode=native, or leave zero-copy out"
    )]
    NoZeroCopy {
        /// The interface.
        name: String,
    },
    /// More queues to open than the interface has.
    #[error(
        "{name} has {queues} hardware queues, so at most {queues} engine threads can serve it, and \
         {lanes} are asked for; lower --lanes, or give the interface more queues (ethtool -L)"
    )]
    TooFewQueues {
        /// The interface.
        name: String,
        /// The interface's queues.
        queues: u32,
        /// The queues to open.
        lanes: usize,
    },
    /// The kernel cannot hand over packets in several buffers, and such packets will come.
    #[error(
        "{name}: {why}, and this kernel hands AF_XDP no packets in several buffers (Linux 6.6 \
         does); {remedy}"
    )]
    NoSpanning {
        /// The interface.
        name: String,
        /// Why packets need several buffers.
        why: &'static str,
        /// What the operator can do.
        remedy: String,
    },
    /// Neither kernel nor interface complete checksums of sent packets as asked.
    #[error(
        "{name} completes no checksums of sent packets: {why}; {remedy}, or leave tx-checksum out"
    )]
    NoTxChecksum {
        /// The interface.
        name: String,
        /// The obstacle.
        why: &'static str,
        /// What the operator can do.
        remedy: &'static str,
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
pub(super) fn refused(name: &str, what: &'static str) -> impl FnOnce(io::Error) -> XdpError {
    let name = name.to_owned();
    move |cause| match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => XdpError::NotPermitted { name, what, cause },
        Some(libc::EAFNOSUPPORT) => XdpError::NoSockets { cause },
        _ => XdpError::Refused { name, what, cause },
    }
}
