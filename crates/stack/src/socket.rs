//! Ids, errors and readiness, common to sockets of all kinds.

use std::net::SocketAddr;

use crate::{MOST_SEGMENTS, TcpState};

/// Identifies a UDP socket of a stack. An id becomes invalid when its socket ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Identifies a listener of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Identifies a TCP connection of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Identifies a socket of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketId {
    /// A UDP socket.
    Udp(UdpId),
    /// A TCP listener.
    Listener(ListenerId),
    /// A TCP connection.
    Tcp(TcpId),
}

/// What a socket is ready for. A condition that concerns both directions, such as a reset, sets several
/// of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// `true` if a read or an accept would not have to wait: for data, a connection, the end of the
    /// stream or an error.
    pub readable: bool,
    /// `true` if a write would not have to wait, also if it would fail.
    pub writable: bool,
    /// `true` if no further data will arrive: the peer closed its direction, this side does not read
    /// any more, or the connection is over.
    pub read_closed: bool,
    /// `true` if this side cannot write any more.
    pub write_closed: bool,
    /// `true` if an error is pending.
    pub error: bool,
    /// `true` if the received data has urgent data that was not read.
    pub urgent: bool,
}

/// A socket, as lists show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketInfo {
    /// The socket's id.
    pub id: SocketId,
    /// Its address and port.
    pub local: SocketAddr,
    /// The peer's address and port, if the socket is connected.
    pub peer: Option<SocketAddr>,
    /// The state of a connection; `None` for other sockets.
    pub state: Option<TcpState>,
    /// What waits to be read: bytes of a connection, bytes of datagrams and their addresses, or connections to accept.
    pub received: usize,
    /// What waits to be sent or acknowledged: bytes of a connection.
    pub unsent: usize,
}

/// A flow of packets between a socket and its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The IP protocol: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// The socket's address and port.
    pub local: SocketAddr,
    /// The peer's address and port, of the same family.
    pub remote: SocketAddr,
}

/// The reason why an operation on a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// There is nothing to read, or no room to write, at present.
    #[error("the operation would have to wait")]
    WouldBlock,
    /// The peer refused: a reset in answer to the connect, or an ICMP port unreachable.
    #[error("the other side refused")]
    Refused,
    /// The peer reset the connection.
    #[error("the other side reset the connection")]
    Reset,
    /// The peer ended its direction, and then refused further data.
    #[error("the other side has closed the connection, and takes no more data")]
    Broken,
    /// The peer did not answer in time.
    #[error("the other side did not answer in time")]
    TimedOut,
    /// This side aborted the connection.
    #[error("the connection was aborted on this side")]
    Aborted,
    /// There is no connection, or the call names no destination.
    #[error("not connected")]
    NotConnected,
    /// A write after this side closed its direction.
    #[error("this side's direction of the connection is closed")]
    Closed,
    /// Another socket uses the address and port.
    #[error("the address is in use")]
    AddressInUse,
    /// The socket has joined the multicast group already.
    #[error("the socket has already joined the group")]
    AlreadyJoined,
    /// The socket has not joined the multicast group.
    #[error("the socket has not joined the group")]
    NotJoined,
    /// The address is no multicast group's, or of a family that the socket does not take.
    #[error("the address is no multicast group of the socket's family")]
    NotGroup,
    /// The address does not belong to this stack. Or the connection names no local port, and no ephemeral port (49152 to
    /// 65535) is free for this peer.
    #[error("the address is not this host's, or no ephemeral port is free for the peer")]
    AddressNotAvailable,
    /// There is no route, or the next hop does not answer.
    #[error("the destination cannot be reached")]
    Unreachable,
    /// The datagram is longer than UDP over this IP version can carry, or needs fragments, and the socket, or a host
    /// that shares its addresses, sends none.
    #[error("the datagram is too long")]
    MessageTooLong,
    /// One call sends more than [`MOST_SEGMENTS`](crate::MOST_SEGMENTS) datagrams.
    #[error("one call sends at most {MOST_SEGMENTS} datagrams: pass less data, or longer segments")]
    TooManySegments,
    /// A datagram of several that one call sends would need fragments.
    #[error("the path's MTU allows datagrams of at most {most} bytes: choose shorter segments")]
    SegmentTooLong {
        /// The most bytes of a datagram's data.
        most: usize,
    },
    /// The destination is a broadcast address, and the socket may not send to such addresses.
    #[error("the socket may not send to a broadcast address: enable broadcasts")]
    BroadcastNotEnabled,
    /// This host shares its addresses with the kernel, and only the kernel receives datagrams to multicast groups.
    #[error(
        "a host that shares its addresses with the kernel joins no multicast groups: use a kernel socket, or an \
         address of the application's own"
    )]
    NoGroups,
    /// The port belongs to this host no more.
    #[error(
        "the server's policy does not grant this port any more; ask the administrator for a grant, and \
         bind again"
    )]
    Revoked,
    /// Another network has taken over this host's addresses, after `Network::hand_over`. Connections continue; nothing new
    /// arrives.
    #[error(
        "another process has taken over the network's addresses: finish the open connections, and end"
    )]
    HandedOver,
    /// A limit of this stack is reached.
    #[error(
        "a limit of this host is reached: close sockets or leave groups, or raise `Limits` of its configuration"
    )]
    LimitReached,
    /// The port is zero, or no packet can be sent to the address.
    #[error("the address names no destination")]
    InvalidAddress,
    /// The id does not identify a socket (any more).
    #[error("no such socket")]
    NoSocket,
}
