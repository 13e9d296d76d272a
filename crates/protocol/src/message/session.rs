//! The messages by which a session begins, and goes on with another server.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Asks for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attach {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Endpoints, at most.
    pub endpoints: u32,
    /// Slots of each transmit queue.
    pub transmit_slots: u32,
    /// Slots of each receive queue.
    pub receive_slots: u32,
    /// Data bytes of each transmit buffer.
    pub transmit_buffer_bytes: u32,
    /// Data bytes of each receive buffer.
    pub receive_buffer_bytes: u32,
    /// The application's own name, UTF-8, padded with zeros; `towpath ls` shows it.
    pub name: [u8; 32],
    /// The IPv4 address that the application asks for, or zeros for any.
    pub ipv4: [u8; 4],
    /// [`ATTACH_OWN`], [`ATTACH_SHARED`], or 0 for either; [`ATTACH_OWN_QUEUE`]; [`ATTACH_REPLACE`]; and from
    /// [`ATTACH_OOB_SHIFT`] on the out-of-band messages that a queue holds.
    pub flags: u32,
    /// Apertures, at most. This field and the next are 0 from an application that speaks version 10
    /// or older, whose message ends before.
    pub apertures: u32,
    /// Tripwires, at most.
    pub tripwires: u32,
}

/// The bytes of [`Attach`] in version 10 and older.
pub(super) const OLD_ATTACH_BYTES: usize = 64;
/// The version since which [`Attach`] has all its fields.
pub(super) const NEW_ATTACH_SINCE: u16 = 11;

/// Asks for addresses of the session's own.
pub const ATTACH_OWN: u32 = 1;
/// Asks for the addresses of the host, which the session shares with the kernel and other sessions.
pub const ATTACH_SHARED: u32 = 2;

/// Asks for a hardware queue of the session's own.
pub const ATTACH_OWN_QUEUE: u32 = 4;
/// Asks for the addresses of an earlier session, which the new session replaces: the newest session of the same user
/// and name that has addresses of its own. Without such a session, the new session gets addresses as usual.
pub const ATTACH_REPLACE: u32 = 8;
/// All `ATTACH_…` bits.
pub const ATTACH_ALL: u32 = 15;
/// The first bit of [`Attach::flags`] that belongs to the number of out-of-band messages which each
/// endpoint's queue holds, 0 for none.
pub const ATTACH_OOB_SHIFT: u32 = 16;

/// The server's grant to a session. Descriptors come with it, in this order: server pages, receive
/// pool, state page (these three read-only), application pages, transmit pool (both to be mapped
/// writable now and sealed afterwards), the session's doorbell (a socket: readable after a
/// notification, hung up at the session's end), the armed words if the session may have tripwires
/// (as the application pages), and for each lane the eventfd that notifies its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attached {
    /// The server's number; another server has another number.
    pub epoch: u64,
    /// The session's number.
    pub session: u32,
    /// The device's MTU, in bytes.
    pub mtu: u16,
    /// The server's lanes, 1 to [`MAX_LANES`](crate::layout::MAX_LANES): parts of the session's memory.
    pub lanes: u16,
    /// Offloads that the application may leave to the device on transmit: [`CAN_CHECKSUM`],
    /// [`CAN_SEGMENT`].
    pub capabilities: u32,
    /// [`TRUSTED`], [`SHARED`], [`BY_PORT`], [`OWN_QUEUE`], [`RESUMABLE`], [`REPLACES`].
    pub flags: u32,
    /// The MAC address that the server gives the session.
    pub mac: [u8; 6],
    /// Prefix length of the IPv4 address; 0: the session has none.
    pub ipv4_prefix: u8,
    /// Prefix length of the IPv6 address; 0: the session has none.
    pub ipv6_prefix: u8,
    /// The session's IPv4 address.
    pub ipv4: [u8; 4],
    /// The IPv4 gateway, or zeros.
    pub ipv4_gateway: [u8; 4],
    /// The session's IPv6 address.
    pub ipv6: [u8; 16],
    /// The IPv6 gateway, or zeros.
    pub ipv6_gateway: [u8; 16],
    /// The device's name, padded with zeros.
    pub device: [u8; 16],
}

/// The device, or the server, completes partial checksums.
pub const CAN_CHECKSUM: u32 = 1;
/// The device, or the server, segments large TCP packets.
pub const CAN_SEGMENT: u32 = 2;
/// The application runs as root or as the server's user, so the server pages are not protected from
/// it.
pub const TRUSTED: u32 = 1;
/// The session's addresses are the host's own. They belong to the kernel, and to other sessions:
/// the session has the ports that it opens, and link addresses come from an endpoint with
/// [`OPEN_NEIGHBOURS`](super::OPEN_NEIGHBOURS).
pub const SHARED: u32 = 2;
/// No endpoint can receive all packets: the addresses are shared, or the grant limits ports or
/// ethertypes.
pub const BY_PORT: u32 = 4;

/// The session has a hardware queue of its own. The server fills the receive buffers of its first
/// queue pair in any order, and data may start anywhere behind a buffer's headroom, or where the
/// packet continues without a gap from the previous buffer of the pool.
pub const OWN_QUEUE: u32 = 8;

/// [`Attached::flags`]: if the server is killed, the next one resumes the session.
pub const RESUMABLE: u32 = 16;

/// [`Attached::flags`]: another session has the same addresses, which [`ATTACH_REPLACE`] asked for.
pub const REPLACES: u32 = 32;

/// Asks a server for a session of an earlier server that was killed. The peer must be the process
/// that attached. It has restarted its event queues, and does not touch them until the answer
/// arrives. With the answer come the session's new doorbell, and for each lane the eventfd that
/// notifies its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Resume {
    /// The epoch of the last server that the application knows ([`Attached::epoch`]), for the log.
    pub epoch: u64,
    /// The session's number.
    pub session: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Returns a name as messages carry it: truncated between characters, padded with zeros.
#[must_use]
pub fn fixed_name<const N: usize>(name: &str) -> [u8; N] {
    let mut end = name.len().min(N);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let mut fixed = [0; N];
    fixed[..end].copy_from_slice(&name.as_bytes()[..end]);
    fixed
}

/// Returns the name in a message that a hostile peer may have written: printable characters alone.
#[must_use]
pub fn shown_name(fixed: &[u8]) -> String {
    let end = fixed.iter().position(|byte| *byte == 0).unwrap_or(fixed.len());
    String::from_utf8_lossy(&fixed[..end])
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
