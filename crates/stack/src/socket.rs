//! Names, errors and news, common to sockets of all kinds.

/// Names a UDP socket of a stack. A name outlives its socket and is then invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Names a listener of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Names a TCP connection of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Names a socket of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketId {
    /// A UDP socket.
    Udp(UdpId),
    /// A TCP listener.
    Listener(ListenerId),
    /// A TCP connection.
    Tcp(TcpId),
}

/// The operations that a socket can do without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// `true` if a read, or an accept, would not have to wait: data, end of stream or an error is
    /// there.
    pub readable: bool,
    /// `true` if a write would not have to wait.
    pub writable: bool,
    /// `true` if the connection is over in both directions, or an error waits to be fetched.
    pub closed: bool,
}

/// The reason why an operation on a socket failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// Nothing to read, or no room to write, at present.
    #[error("the operation would have to wait")]
    WouldBlock,
    /// The peer refused: a reset in answer to the connect, or an ICMP port unreachable.
    #[error("the other side refused")]
    Refused,
    /// The peer reset the connection.
    #[error("the other side reset the connection")]
    Reset,
    /// The peer fell silent.
    #[error("the other side did not answer in time")]
    TimedOut,
    /// This side gave the connection up.
    #[error("the connection was aborted on this side")]
    Aborted,
    /// There is no connection, or no destination was named.
    #[error("not connected")]
    NotConnected,
    /// A write after this side closed its half.
    #[error("this side's half of the connection is closed")]
    Closed,
    /// The address and port are another socket's.
    #[error("the address is in use")]
    AddressInUse,
    /// The address is not one of this stack.
    #[error("the address is not this host's")]
    AddressNotAvailable,
    /// There is no route, or the next hop does not answer.
    #[error("the destination cannot be reached")]
    Unreachable,
    /// A datagram longer than UDP over this IP version can carry.
    #[error("the datagram is too long")]
    MessageTooLong,
    /// A limit of this stack is reached.
    #[error("a limit of this host is reached")]
    LimitReached,
    /// Port zero, or an address that no packet can be sent to.
    #[error("the address names no destination")]
    InvalidAddress,
    /// The name does not name a socket (any more).
    #[error("no such socket")]
    NoSocket,
}
