//! TCP sockets.

use std::net::SocketAddr;
use std::time::Duration;

use crate::config::KeepAlive;
use crate::stack::Stack;
use crate::tcp::{Shutdown, TcpInfo, TcpState};
use crate::{BindMode, Instant, ListenerId, Readiness, SocketError, TcpId};

/// TCP.
///
/// Every operation fails with [`SocketError::NoSocket`] if the id is no longer valid.
impl Stack {
    /// Starts to listen. At most `backlog` connections wait to be accepted. At most as many, or 128
    /// if that is more, are half open: beyond that the stack answers with SYN cookies.
    ///
    /// # Errors
    /// If the address is not ours or in use, or there are too many listeners.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<ListenerId, SocketError> {
        self.tcp_listen_with(local, BindMode::default(), backlog)
    }

    /// Listens as [`Stack::tcp_listen`] does, in a mode. Of several listeners that reuse a port, each peer's address and
    /// port choose one.
    ///
    /// # Errors
    /// As [`Stack::tcp_listen`].
    pub fn tcp_listen_with(
        &mut self,
        local: SocketAddr,
        mode: BindMode,
        backlog: usize,
    ) -> Result<ListenerId, SocketError> {
        self.tcp.listen(&mut self.host, local, mode, backlog)
    }

    /// Returns the listener's local address.
    ///
    /// # Errors
    /// If there is no such listener.
    pub fn tcp_listener_local(&mut self, id: ListenerId) -> Result<SocketAddr, SocketError> {
        self.tcp.listener_local(id)
    }

    /// Accepts the oldest waiting connection, and returns it with its peer.
    ///
    /// # Errors
    /// If no connection waits.
    pub fn tcp_accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), SocketError> {
        self.tcp.accept(id)
    }

    /// Returns the listener's readiness: readable if a connection waits.
    ///
    /// # Errors
    /// If there is no such listener.
    pub fn tcp_listener_readiness(&mut self, id: ListenerId) -> Result<Readiness, SocketError> {
        self.tcp.listener_readiness(id)
    }

    /// Stops listening, and resets connections that were not accepted.
    ///
    /// # Errors
    /// If there is no such listener.
    pub fn tcp_close_listener(&mut self, now: Instant, id: ListenerId) -> Result<(), SocketError> {
        self.tcp.close_listener(now, &mut self.host, id)
    }

    /// Starts a connection, from `local` if given. `timeout`: the time limit of the handshake, by
    /// default [`TcpConfig::connect_timeout`](crate::TcpConfig::connect_timeout). The connection is writable once established; if
    /// it fails, a read or write returns the reason.
    ///
    /// # Errors
    /// If the destination is invalid, there is no route, the local address is not ours or in use,
    /// or there are too many connections.
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> Result<TcpId, SocketError> {
        self.tcp.connect(now, &mut self.host, remote, local, timeout)
    }

    /// Writes as many bytes as the send buffer has room for. Returns their number.
    ///
    /// # Errors
    /// If there is no room or no connection yet ([`SocketError::WouldBlock`]), this side's
    /// direction is closed, or the connection failed.
    pub fn tcp_send(&mut self, id: TcpId, data: &[u8]) -> Result<usize, SocketError> {
        self.tcp.send(&mut self.host, id, data)
    }

    /// Writes data as [`Stack::tcp_send`] does, and tells the peer that it is urgent up to its end
    /// (RFC 9293, 3.8.5). New applications should not use it (RFC 6093, 5).
    ///
    /// # Errors
    /// As [`Stack::tcp_send`].
    pub fn tcp_send_urgent(&mut self, id: TcpId, data: &[u8]) -> Result<usize, SocketError> {
        self.tcp.send_urgent(&mut self.host, id, data)
    }

    /// Returns the number of bytes to read until the end of the peer's urgent data, which stays in
    /// the stream; `None` without urgent data.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_urgent(&mut self, id: TcpId) -> Result<Option<usize>, SocketError> {
        self.tcp.urgent(id)
    }

    /// Reads received data. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// If there is nothing to read yet ([`SocketError::WouldBlock`]), or the connection failed.
    pub fn tcp_recv(
        &mut self,
        now: Instant,
        id: TcpId,
        buffer: &mut [u8],
    ) -> Result<usize, SocketError> {
        self.tcp.recv(now, id, buffer, false)
    }

    /// Reads as [`Stack::tcp_recv`] does, but keeps the data in the receive buffer.
    ///
    /// # Errors
    /// As [`Stack::tcp_recv`].
    pub fn tcp_peek(
        &mut self,
        now: Instant,
        id: TcpId,
        buffer: &mut [u8],
    ) -> Result<usize, SocketError> {
        self.tcp.recv(now, id, buffer, true)
    }

    /// Shuts one direction of a connection, or both. While the handshake is in progress, ends the attempt with
    /// [`SocketError::Reset`].
    ///
    /// # Errors
    /// If there is no connection.
    pub fn tcp_shutdown(
        &mut self,
        now: Instant,
        id: TcpId,
        how: Shutdown,
    ) -> Result<(), SocketError> {
        self.tcp.shutdown(now, &mut self.host, id, how)
    }

    /// Drops a connection: its id becomes invalid. The stack still sends written data, in the
    /// background. If the application left received data unread, the peer gets a reset instead.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_close(&mut self, now: Instant, id: TcpId) -> Result<(), SocketError> {
        self.tcp.close(now, &mut self.host, id)
    }

    /// Ends a connection with a reset. The id stays valid until [`Stack::tcp_close`].
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_abort(&mut self, now: Instant, id: TcpId) -> Result<(), SocketError> {
        self.tcp.abort(now, &mut self.host, id)
    }

    /// Returns the state of the connection.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_state(&mut self, id: TcpId) -> Result<TcpState, SocketError> {
        self.tcp.state(id)
    }

    /// Returns the operations that are possible without waiting.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_readiness(&mut self, id: TcpId) -> Result<Readiness, SocketError> {
        self.tcp.readiness(&self.host, id)
    }

    /// Returns this side's address and the peer's.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_addresses(&mut self, id: TcpId) -> Result<(SocketAddr, SocketAddr), SocketError> {
        self.tcp.addresses(id)
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`] before the peer has answered, and once the connection is over; if there is no such
    /// connection.
    pub fn tcp_peer(&mut self, id: TcpId) -> Result<SocketAddr, SocketError> {
        self.tcp.peer(id)
    }

    /// Takes the pending error, if any.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_take_error(&mut self, id: TcpId) -> Result<Option<SocketError>, SocketError> {
        self.tcp.take_error(id)
    }

    /// Sets whether the stack sends small segments at once. By default it does not: at most one
    /// small segment is in flight (Nagle's algorithm, as Minshall refined it).
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_nodelay(&mut self, id: TcpId, nodelay: bool) -> Result<(), SocketError> {
        self.tcp.set_nodelay(id, nodelay)
    }

    /// Returns `true` if the stack sends small segments at once.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_nodelay(&mut self, id: TcpId) -> Result<bool, SocketError> {
        self.tcp.nodelay(id)
    }

    /// Sets whether the stack holds small segments back until they are full, for at most 200 ms (`TCP_CORK`). `false`, the
    /// default, sends at once what was held back, as far as Nagle's algorithm allows it.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_cork(&mut self, id: TcpId, cork: bool) -> Result<(), SocketError> {
        self.tcp.set_cork(id, cork)
    }

    /// Returns `true` if the stack holds small segments back.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_cork(&mut self, id: TcpId) -> Result<bool, SocketError> {
        self.tcp.cork(id)
    }

    /// Sets whether the stack acknowledges all data at once, and not after
    /// [`TcpConfig::ack_delay`](crate::TcpConfig::ack_delay). Default `false`.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_quickack(&mut self, id: TcpId, quickack: bool) -> Result<(), SocketError> {
        self.tcp.set_quickack(id, quickack)
    }

    /// Returns `true` if the stack acknowledges all data at once.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_quickack(&mut self, id: TcpId) -> Result<bool, SocketError> {
        self.tcp.quickack(id)
    }

    /// Sets the traffic class (IPv6) or type of service (IPv4) of the connection's packets, without its two lowest bits: those
    /// are for congestion notification. Default 0.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_traffic_class(&mut self, id: TcpId, class: u8) -> Result<(), SocketError> {
        self.tcp.set_traffic_class(id, class)
    }

    /// Returns the traffic class of the connection's packets.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_traffic_class(&mut self, id: TcpId) -> Result<u8, SocketError> {
        self.tcp.traffic_class(id)
    }

    /// Probes a silent peer, and fails the connection with [`SocketError::TimedOut`] if it does not
    /// answer. `None`, the default, disables probes.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_keep_alive(
        &mut self,
        now: Instant,
        id: TcpId,
        keep_alive: Option<KeepAlive>,
    ) -> Result<(), SocketError> {
        self.tcp.set_keep_alive(now, id, keep_alive)
    }

    /// Returns the value set by [`Stack::tcp_set_keep_alive`].
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_keep_alive(&mut self, id: TcpId) -> Result<Option<KeepAlive>, SocketError> {
        self.tcp.keep_alive(id)
    }

    /// Sets the time for which [`Stack::tcp_close`] tries to send what was written, after which a
    /// reset ends the connection. Zero resets it at once; `None`, the default, leaves the time to
    /// [`TcpConfig::orphan_timeout`](crate::TcpConfig::orphan_timeout).
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_linger(
        &mut self,
        id: TcpId,
        linger: Option<Duration>,
    ) -> Result<(), SocketError> {
        self.tcp.set_linger(id, linger)
    }

    /// Returns the value set by [`Stack::tcp_set_linger`].
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_linger(&mut self, id: TcpId) -> Result<Option<Duration>, SocketError> {
        self.tcp.linger(id)
    }

    /// Sets the hop limit (IPv4's time to live) of the connection's packets, at least 1. Default 64.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_hop_limit(&mut self, id: TcpId, hop_limit: u8) -> Result<(), SocketError> {
        self.tcp.set_hop_limit(id, hop_limit)
    }

    /// Returns the hop limit of the connection's packets.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_hop_limit(&mut self, id: TcpId) -> Result<u8, SocketError> {
        self.tcp.hop_limit(id)
    }

    /// Sets the connection's own user timeout; `None`, the default, leaves it to
    /// [`TcpConfig::user_timeout`](crate::TcpConfig::user_timeout).
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_set_user_timeout(
        &mut self,
        id: TcpId,
        timeout: Option<Duration>,
    ) -> Result<(), SocketError> {
        self.tcp.set_user_timeout(id, timeout)
    }

    /// Returns the value set by [`Stack::tcp_set_user_timeout`].
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_user_timeout(&mut self, id: TcpId) -> Result<Option<Duration>, SocketError> {
        self.tcp.user_timeout(id)
    }

    /// Returns what the connection has learned of its path.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_info(&mut self, id: TcpId) -> Result<TcpInfo, SocketError> {
        self.tcp.info(id)
    }

    /// Returns the number of written bytes that the peer has not acknowledged, and of received
    /// bytes not yet read.
    ///
    /// # Errors
    /// If there is no such connection.
    pub fn tcp_queues(&mut self, id: TcpId) -> Result<(usize, usize), SocketError> {
        self.tcp.queues(id)
    }
}
