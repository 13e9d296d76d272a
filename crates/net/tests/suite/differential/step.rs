//! The calls of a sequence, and how a failure shows them.

use std::fmt;

/// The slots of sockets. The first half of the streams and of the UDP sockets is host B's, the client; the rest is
/// host A's. All listeners are host A's.
pub(super) const LISTENERS: u8 = 2;
pub(super) const STREAMS: u8 = 6;
pub(super) const UDPS: u8 = 4;

/// The address at which a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    V4,
    V6,
    /// `0.0.0.0`.
    AnyV4,
    /// `[::]`, for both families.
    Any,
    /// `[::]`, for IPv6 only.
    AnyV6,
}

/// How a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bind {
    pub(super) at: At,
    /// The slot of the socket whose port it asks for; any port without one.
    pub(super) port_of: Option<u8>,
    pub(super) reuse_port: bool,
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.at)?;
        self.port_of.map_or(Ok(()), |port| write!(f, ", the port of socket {port}"))?;
        f.write_str(if self.reuse_port { ", reuse_port" } else { "" })
    }
}

/// The destination of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// A listener, by IPv6 if it has both families and `v6` is set.
    Listener { listener: u8, v6: bool },
    /// A port that no socket has.
    Closed,
    /// A port that does not answer.
    Silent,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Udp(u8),
    /// A port that no socket has, of the socket's family.
    Closed,
    PortZero,
    /// An address of the other family.
    OtherFamily,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
    Both,
}

/// A socket's option, which a call sets and then gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Nonblocking(bool),
    ReadTimeout(Option<u64>),
    WriteTimeout(Option<u64>),
    Ttl(u32),
    Tos(u32),
    Nodelay(bool),
    Cork(bool),
    /// Seconds; those that are not zero are taken back at once, because a drop would wait.
    Linger(Option<u64>),
    /// Idle seconds.
    KeepAlive(Option<u64>),
    UserTimeout(Option<u64>),
    Broadcast(bool),
    MulticastTtl(u32),
    MulticastLoop(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamCall {
    Read(u16),
    ReadVectored(u16, u16),
    Peek(u16),
    Write(u16),
    WriteVectored(u16, u16),
    Shutdown(Direction),
    TakeError,
    LocalAddr,
    PeerAddr,
    Clone,
    Set(Setting),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UdpCall {
    Connect(Peer),
    Send(u32),
    SendTo(Peer, u32),
    Recv(u16),
    RecvFrom(u16),
    Peek(u16),
    PeekFrom(u16),
    TakeError,
    LocalAddr,
    PeerAddr,
    Clone,
    Set(Setting),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerCall {
    LocalAddr,
    TakeError,
    Clone,
    Ttl(u32),
}

/// A call. One that names an empty slot, or makes a socket in a full one, does nothing: so each part of a sequence is
/// a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Listens at any port, or at that of a listener.
    Listen {
        listener: u8,
        bind: Bind,
    },
    Listener {
        listener: u8,
        call: ListenerCall,
    },
    Connect {
        stream: u8,
        to: To,
        nonblocking: bool,
    },
    /// Connects from the local port of a stream to the stream's peer.
    ConnectAgain {
        stream: u8,
        of: u8,
    },
    Accept {
        listener: u8,
        stream: u8,
    },
    Stream {
        stream: u8,
        call: StreamCall,
    },
    /// Writes until there is no room, and reads all of it at the other end.
    Fill {
        stream: u8,
    },
    /// Binds to any port, or to that of a UDP socket of the same host.
    Bind {
        udp: u8,
        bind: Bind,
    },
    Udp {
        udp: u8,
        call: UdpCall,
    },
    DropListener {
        listener: u8,
    },
    DropStream {
        stream: u8,
    },
    DropUdp {
        udp: u8,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Listen { listener, bind } => {
                write!(f, "let l{listener} = TcpListener::bind_with(A, {bind})")
            }
            Step::Listener { listener, call } => write!(f, "l{listener}.{call:?}"),
            Step::Connect { stream, to, nonblocking } => {
                let name = if *nonblocking { "connect_nonblocking" } else { "connect" };
                write!(f, "let s{stream} = TcpStream::{name}(B, {to:?})")
            }
            Step::ConnectAgain { stream, of } => {
                write!(f, "let s{stream} = TcpStream::connect_from(s{of}.local_addr(), its peer)")
            }
            Step::Accept { listener, stream } => write!(f, "let s{stream} = l{listener}.accept()"),
            Step::Stream { stream, call } => write!(f, "s{stream}.{call:?}"),
            Step::Fill { stream } => write!(f, "s{stream}.fill()"),
            Step::Bind { udp, bind } => write!(f, "let u{udp} = UdpSocket::bind_with({bind})"),
            Step::Udp { udp, call } => write!(f, "u{udp}.{call:?}"),
            Step::DropListener { listener } => write!(f, "drop(l{listener})"),
            Step::DropStream { stream } => write!(f, "drop(s{stream})"),
            Step::DropUdp { udp } => write!(f, "drop(u{udp})"),
        }
    }
}
