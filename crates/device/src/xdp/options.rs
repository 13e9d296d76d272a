//! What an AF_XDP device is opened with, and what it tells the operator.

use super::socket::{CopyMode, TxChecksum};

/// How the kernel runs the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Physical interfaces: native, or generic if the driver refuses. Virtual interfaces: generic,
    /// or native if that fails; native first before Linux 6.6.
    #[default]
    Auto,
    /// In the interface's driver, before the kernel makes a packet of its own
    /// (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// In the kernel's network stack (`XDP_FLAGS_SKB_MODE`). Every driver can.
    Generic,
}

/// The interface, and the driver's requests for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The interface's name.
    pub interface: String,
    /// The interface's number, if the caller knows it: the driver then finds the interface by it, under any name.
    pub index: Option<u32>,
    /// How the kernel runs the program.
    pub mode: Mode,
    /// Copy or zero-copy mode.
    pub copying: CopyMode,
    /// The component that completes checksums that applications leave partial.
    pub tx_checksum: TxChecksum,
    /// `true` to poll the hardware from the engine's thread, by system calls, in place of
    /// interrupts (`SO_PREFER_BUSY_POLL`, Linux 5.11).
    pub busy_poll: bool,
    /// `true` to carry packets between applications and the kernel's sockets of this host, too, if
    /// they share the interface's addresses (Linux 6.6).
    pub host: bool,
    /// The user that rules of the host's firewall see as the owner of packets to the kernel's
    /// sockets; this process's user if `None`.
    pub owner: Option<u32>,
    /// `true` to take every packet from the kernel, which then receives none on this interface.
    pub exclusive: bool,
    /// The number of queues to open, each for a thread of its own: at most as many as the interface
    /// has. Queue i serves the interface's queues i, i + `lanes`, i + 2 `lanes`, ... 0 means 1.
    pub lanes: usize,
    /// The hardware queues that sessions may have to themselves. If there are any, the device takes
    /// at most half of the limit of locked memory, because the memory of sessions' own queues
    /// counts, too. The keeper makes the sockets for them, or this process with CAP_NET_RAW if
    /// there is no keeper.
    pub own_queues: Vec<u32>,
}

/// What the operator should know, one line each.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) notes: Vec<String>,
    pub(super) warnings: Vec<String>,
}
