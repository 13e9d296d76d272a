//! The sockets' interface: thin, since each protocol has its own.

use std::net::SocketAddr;
use std::time::Duration;

use super::Stack;
use crate::tcp::{Shutdown, TcpState};
use crate::udp::Received;
use crate::{Instant, ListenerId, Readiness, SocketError, TcpId, UdpId};

/// UDP.
///
/// Every operation fails with [`SocketError::NoSocket`] when the name names no socket any more.
impl Stack {
    /// Binds a UDP socket. An unspecified address stands for every address of its kind, port 0 for
    /// any free one. IPv4 and IPv6 are separate: `[::]` does not receive IPv4.
    ///
    /// # Errors
    /// When the address is not ours or in use, or there are too many sockets.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, SocketError> {
        self.udp.bind(&mut self.host, local)
    }

    /// Closes a socket and drops its received datagrams.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn udp_close(&mut self, id: UdpId) -> Result<(), SocketError> {
        self.udp.close(id)
    }

    /// Sets the peer to which the socket sends unless told otherwise, and from which alone it
    /// receives; or removes that peer.
    ///
    /// # Errors
    /// When the peer is of the other kind of address, has port 0 or cannot be routed to.
    pub fn udp_connect(&mut self, id: UdpId, peer: Option<SocketAddr>) -> Result<(), SocketError> {
        self.udp.connect(&self.host, id, peer)
    }

    /// Sends a datagram, to the connected peer unless `to` names another. It may be up to 65 507
    /// bytes long over IPv4, 65 527 over IPv6; the stack fragments it when the path does not carry
    /// it.
    ///
    /// # Errors
    /// When there is no room now, no route, no destination, it is too long, or an ICMP error about
    /// an earlier datagram came.
    pub fn udp_send(
        &mut self,
        now: Instant,
        id: UdpId,
        data: &[u8],
        to: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        self.udp.send(now, &mut self.host, id, data, to)
    }

    /// Takes the oldest datagram, or with `peek` copies it and leaves it.
    ///
    /// # Errors
    /// When there is none, or an ICMP error came.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
        peek: bool,
    ) -> Result<Received, SocketError> {
        self.udp.recv(id, buffer, peek)
    }

    /// Returns the operations that are possible without waiting.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn udp_readiness(&mut self, id: UdpId) -> Result<Readiness, SocketError> {
        self.udp.readiness(&self.host, id)
    }

    /// Returns the socket's address and port.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn udp_local(&mut self, id: UdpId) -> Result<SocketAddr, SocketError> {
        self.udp.local(id)
    }

    /// Returns the peer to which the socket is connected.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn udp_peer(&mut self, id: UdpId) -> Result<Option<SocketAddr>, SocketError> {
        self.udp.peer(id)
    }

    /// Returns the number of datagrams dropped because the receive queue was full.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn udp_dropped(&mut self, id: UdpId) -> Result<u64, SocketError> {
        self.udp.dropped(id)
    }

    /// Takes the pending error, if any.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn udp_take_error(&mut self, id: UdpId) -> Result<Option<SocketError>, SocketError> {
        self.udp.take_error(id)
    }
}

/// TCP.
///
/// Every operation fails with [`SocketError::NoSocket`] when the name names no socket any more.
impl Stack {
    /// Listens. At most `backlog` connections wait to be accepted. As many, or 128 if that is more,
    /// may be half open: of these the oldest gives way.
    ///
    /// # Errors
    /// When the address is not ours or in use, or there are too many listeners.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<ListenerId, SocketError> {
        self.tcp.listen(&mut self.host, local, backlog)
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn tcp_listener_local(&mut self, id: ListenerId) -> Result<SocketAddr, SocketError> {
        self.tcp.listener_local(id)
    }

    /// Accepts the oldest waiting connection, and returns it with its peer.
    ///
    /// # Errors
    /// When there is none.
    pub fn tcp_accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), SocketError> {
        self.tcp.accept(id)
    }

    /// Returns the readiness to accept a connection.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn tcp_listener_readiness(&mut self, id: ListenerId) -> Result<Readiness, SocketError> {
        self.tcp.listener_readiness(id)
    }

    /// Stops listening, and resets connections that were not accepted.
    ///
    /// # Errors
    /// When there is no such listener.
    pub fn tcp_close_listener(&mut self, now: Instant, id: ListenerId) -> Result<(), SocketError> {
        self.tcp.close_listener(now, &mut self.host, id)
    }

    /// Starts a connection, from `local` if given. The connection is writable once established;
    /// when it fails, reads and writes return the reason.
    ///
    /// # Errors
    /// When the destination is none, there is no route, the local address is not ours or in use, or
    /// there are too many connections.
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> Result<TcpId, SocketError> {
        self.tcp.connect(now, &mut self.host, remote, local, timeout)
    }

    /// Writes as much as there is room for. Returns the number of bytes.
    ///
    /// # Errors
    /// When there is no room or no connection yet ([`SocketError::WouldBlock`]), this side's half
    /// is closed, or the connection failed.
    pub fn tcp_send(&mut self, id: TcpId, data: &[u8]) -> Result<usize, SocketError> {
        self.tcp.send(id, data)
    }

    /// Reads the received data. 0 at the end of the stream.
    ///
    /// # Errors
    /// When there is nothing yet ([`SocketError::WouldBlock`]), or the connection failed.
    pub fn tcp_recv(
        &mut self,
        now: Instant,
        id: TcpId,
        buffer: &mut [u8],
    ) -> Result<usize, SocketError> {
        self.tcp.recv(now, id, buffer, false)
    }

    /// Reads as [`Stack::tcp_recv`] does, but leaves the data in the buffer.
    ///
    /// # Errors
    /// As there.
    pub fn tcp_peek(
        &mut self,
        now: Instant,
        id: TcpId,
        buffer: &mut [u8],
    ) -> Result<usize, SocketError> {
        self.tcp.recv(now, id, buffer, true)
    }

    /// Shuts one half of a connection, or both.
    ///
    /// # Errors
    /// When there is no connection.
    pub fn tcp_shutdown(&mut self, id: TcpId, how: Shutdown) -> Result<(), SocketError> {
        self.tcp.shutdown(&mut self.host, id, how)
    }

    /// Drops a connection: its name becomes invalid. The stack still sends written data, in the
    /// background. If the application left received data unread, the peer gets a reset instead.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_close(&mut self, now: Instant, id: TcpId) -> Result<(), SocketError> {
        self.tcp.close(now, &mut self.host, id)
    }

    /// Ends a connection with a reset. The name stays valid until [`Stack::tcp_close`].
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_abort(&mut self, now: Instant, id: TcpId) -> Result<(), SocketError> {
        self.tcp.abort(now, &mut self.host, id)
    }

    /// Returns the state of the connection.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_state(&mut self, id: TcpId) -> Result<TcpState, SocketError> {
        self.tcp.state(id)
    }

    /// Returns the operations that are possible without waiting.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_readiness(&mut self, id: TcpId) -> Result<Readiness, SocketError> {
        self.tcp.readiness(id)
    }

    /// Returns this side's address and the peer's.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_addresses(&mut self, id: TcpId) -> Result<(SocketAddr, SocketAddr), SocketError> {
        self.tcp.addresses(id)
    }

    /// Takes the pending error, if any.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_take_error(&mut self, id: TcpId) -> Result<Option<SocketError>, SocketError> {
        self.tcp.take_error(id)
    }

    /// With `nodelay`, the stack sends small segments at once; without, only while no data is in
    /// flight (Nagle's algorithm, the default).
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_set_nodelay(&mut self, id: TcpId, nodelay: bool) -> Result<(), SocketError> {
        self.tcp.set_nodelay(id, nodelay)
    }

    /// Returns `true` if the stack sends small segments at once.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_nodelay(&mut self, id: TcpId) -> Result<bool, SocketError> {
        self.tcp.nodelay(id)
    }

    /// Probes a silent peer every `interval`; after ten probes without an answer the connection
    /// fails with [`SocketError::TimedOut`]. `None`, the default: never.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_set_keep_alive(
        &mut self,
        now: Instant,
        id: TcpId,
        interval: Option<Duration>,
    ) -> Result<(), SocketError> {
        self.tcp.set_keep_alive(now, id, interval)
    }

    /// Returns the number of written bytes that the peer has not acknowledged, and of received
    /// bytes not yet read.
    ///
    /// # Errors
    /// When there is no such connection.
    pub fn tcp_queues(&mut self, id: TcpId) -> Result<(usize, usize), SocketError> {
        self.tcp.queues(id)
    }
}
