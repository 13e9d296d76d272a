//! The application's operations on connections.

use std::net::SocketAddr;
use std::time::Duration;

use super::connection::{Connection, Owner, State};
use super::receiving::BYTES_UNDER_PRESSURE;
use super::sequence;
use super::table::Tcp;
use super::tuple::Tuple;
use crate::bindings::{ephemeral_ports, mapped};
use crate::host::Host;
use crate::{Instant, Readiness, SocketError, TcpId};

/// The direction of a connection to shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// The stack discards received data, and reads return the end of the stream.
    Read,
    /// The stack still sends written data, and then a FIN.
    Write,
    /// Both directions.
    Both,
}

/// The state of a connection, in groups of RFC 9293's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// The handshake is in progress.
    Connecting,
    /// Both directions are open.
    Established,
    /// The peer has ended its direction (CLOSE-WAIT).
    PeerClosed,
    /// This side has ended its direction (FIN-WAIT-1, FIN-WAIT-2).
    LocalClosed,
    /// Both sides have ended their direction; the last segments are in flight, or the connection is
    /// closed.
    Over,
}

impl Tcp {
    /// Starts a connection.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        host: &mut Host,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> Result<TcpId, SocketError> {
        // An IPv6 address of an IPv4 host.
        let is_mapped = remote.is_ipv6() && remote.ip().to_canonical().is_ipv4();
        let meant = |address: SocketAddr| match is_mapped {
            true => SocketAddr::new(address.ip().to_canonical(), address.port()),
            false => address,
        };
        let remote = meant(remote);
        let ip = remote.ip();
        if remote.port() == 0 || ip.is_multicast() || ip.is_unspecified() || host.is_broadcast(ip) {
            return Err(SocketError::InvalidAddress);
        }
        let route = host.route(ip).ok_or(SocketError::Unreachable)?;
        let mut from = SocketAddr::new(route.src, 0);
        if let Some(local) = local.map(meant) {
            if local.is_ipv4() != remote.is_ipv4() {
                return Err(SocketError::InvalidAddress);
            }
            if !local.ip().is_unspecified() {
                if !host.is_ours(local.ip()) {
                    return Err(SocketError::AddressNotAvailable);
                }
                from.set_ip(local.ip());
            }
            from.set_port(local.port());
        }
        if self.live >= host.config.limits.connections {
            host.counters.tcp_connection_limit += 1;
            return Err(SocketError::LimitReached);
        }
        let free = |port: u16| {
            let tuple = Tuple { local: SocketAddr::new(from.ip(), port), remote };
            !self.by_tuple.contains_key(&tuple)
                && self.time_wait.get(now, &tuple).is_none()
                && !self.listeners.bindings.is_taken(from.ip(), port)
        };
        let port = match from.port() {
            // No ephemeral port is free for this peer: EADDRNOTAVAIL of connect(2).
            0 => ephemeral_ports(&mut host.random)
                .find(|&port| free(port))
                .ok_or(SocketError::AddressNotAvailable)?,
            port => Some(port).filter(|&port| free(port)).ok_or(SocketError::AddressInUse)?,
        };
        from.set_port(port);
        let tuple = Tuple { local: from, remote };
        let sizes = self.sizes(now, host, ip);
        let config = &host.config.tcp;
        let initial = sequence::initial(now, &host.random, &tuple);
        let owner = Owner::Application;
        let mut connection = Connection::new(tuple, owner, sizes, config, initial, now);
        connection.is_mapped = is_mapped;
        connection.give_up_at = Some(now + timeout.unwrap_or(config.connect_timeout));
        connection.origin = sequence::timestamp_origin(&host.random, &tuple);
        let id = self.insert(connection);
        self.mark(id.index);
        Ok(id)
    }

    /// Writes as many bytes as the send buffer has room for, at least one.
    pub(crate) fn send(
        &mut self,
        host: &mut Host,
        id: TcpId,
        data: &[u8],
    ) -> Result<usize, SocketError> {
        let most = host.config.tcp.send_buffer_bytes;
        self.owned(id)?;
        let slot = &mut self.slots[id.index as usize];
        let Some(connection) = slot.connection.as_deref_mut() else {
            return Err(SocketError::NoSocket);
        };
        // The next check may report the connection again: another thread may wait for the other
        // direction.
        connection.told = false;
        if let Some(error) = connection.error.take() {
            return Err(error);
        }
        if connection.state.is_opening() {
            return Err(SocketError::WouldBlock);
        }
        if !connection.state.sends() {
            return Err(SocketError::Closed);
        }
        let mut room = connection.sending.room(most).min(data.len());
        if !self.pool.is_roomy() {
            room = room.min(BYTES_UNDER_PRESSURE.saturating_sub(connection.sending.buffer.len()));
        }
        let sent = connection.sending.buffer.write(&mut self.pool, &data[..room]);
        connection.wants_room |= sent < data.len();
        if sent < room && !connection.wants_memory {
            host.counters.tcp_buffer_limit += 1;
            connection.wants_memory = true;
            self.queue_for_memory(id);
        }
        if sent == 0 && !data.is_empty() {
            return Err(SocketError::WouldBlock);
        }
        self.mark(id.index);
        Ok(sent)
    }

    /// Writes data as [`Tcp::send`] does, and marks its end as the end of urgent data.
    pub(crate) fn send_urgent(
        &mut self,
        host: &mut Host,
        id: TcpId,
        data: &[u8],
    ) -> Result<usize, SocketError> {
        let sent = self.send(host, id, data)?;
        let sending = &mut self.owned(id)?.sending;
        sending.urgent = Some(sending.data_end());
        Ok(sent)
    }

    /// Returns the number of bytes to read until the end of the peer's urgent data, if any is left.
    pub(crate) fn urgent(&mut self, id: TcpId) -> Result<Option<usize>, SocketError> {
        let receiving = &self.owned(id)?.receiving;
        let read_to = receiving.nxt - receiving.buffer.len() as u32;
        let left = receiving.urgent.filter(|end| end.after(read_to));
        Ok(left.map(|end| end.since(read_to) as usize))
    }

    /// Reads received data, or with `peek` copies and keeps it. Returns 0 at the end of the stream.
    pub(crate) fn recv(
        &mut self,
        now: Instant,
        id: TcpId,
        buffer: &mut [u8],
        peek: bool,
    ) -> Result<usize, SocketError> {
        self.owned(id)?;
        let slot = &mut self.slots[id.index as usize];
        let Some(connection) = slot.connection.as_deref_mut() else {
            return Err(SocketError::NoSocket);
        };
        connection.told = false;
        if connection.read_shut {
            // After the peer's end of the stream, an error concerns writing only.
            let error = connection.error.take_if(|_| !connection.receiving.finished);
            return error.map_or(Ok(0), Err);
        }
        if connection.state.is_opening() {
            return Err(connection.error.take().unwrap_or(SocketError::WouldBlock));
        }
        let len = connection.receiving.read(&mut self.pool, buffer, peek);
        if len > 0 {
            let (round_trip, roomy) = (connection.sending.rtt.least(), self.pool.is_roomy());
            connection.receiving.tune(now, round_trip, roomy);
            // The read made room: a window update may be due at once.
            if connection.state.receives() && connection.receiving.should_update(!roomy) {
                connection.receiving.acknowledge_now();
                self.mark(id.index);
            }
            return Ok(len);
        }
        // As above.
        if connection.receiving.buffer.len() > 0 || connection.receiving.finished {
            return Ok(0);
        }
        match connection.error.take() {
            Some(error) => Err(error),
            // The error was already reported, or one of the sides ended the direction.
            None if !connection.state.receives() => Ok(0),
            None if buffer.is_empty() => Ok(0),
            None => Err(SocketError::WouldBlock),
        }
    }

    /// Shuts one direction or both.
    pub(crate) fn shutdown(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: TcpId,
        how: Shutdown,
    ) -> Result<(), SocketError> {
        let connection = self.owned(id)?;
        if connection.state == State::SynSent {
            // RFC 9293, 3.10.4: the connection attempt ends.
            self.fail(now, host, id.index, SocketError::Reset);
            return Ok(());
        }
        if connection.state.is_opening() || connection.state.is_over() {
            return Err(SocketError::NotConnected);
        }
        if how != Shutdown::Read {
            connection.finish();
        }
        if how != Shutdown::Write {
            connection.read_shut = true;
            self.discard(now, host, id.index);
            let under_pressure = !self.pool.is_roomy();
            if let Some(connection) = self.at(id.index)
                && connection.receiving.should_update(under_pressure)
            {
                connection.receiving.acknowledge_now();
            }
        }
        self.mark(id.index);
        self.tell(host, id.index);
        Ok(())
    }

    /// Drops a connection. The stack still sends written data; if the application left data unread,
    /// a reset tells the peer of the loss (RFC 2525, 2.17).
    pub(crate) fn close(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: TcpId,
    ) -> Result<(), SocketError> {
        let connection = self.owned(id)?;
        let unread = connection.receiving.buffer.len() > 0 && !connection.read_shut;
        let linger = connection.linger;
        connection.owner = Owner::None;
        connection.keep_alive = None;
        if connection.detached || connection.state == State::SynSent {
            self.remove(id.index);
        } else if connection.state == State::TimeWait {
            self.settle(now, host, id.index);
        } else if unread || linger == Some(Duration::ZERO) || connection.state == State::SynReceived
        {
            self.abort_now(now, host, id.index);
        } else {
            connection.finish();
            connection.give_up_at = linger.map(|linger| now + linger);
            connection.update_deadlines(now, &host.config.tcp);
            self.mark(id.index);
        }
        Ok(())
    }

    /// Ends a connection at once, with a reset; the stack discards unsent data. The next write, or
    /// the next read once no received data is left, returns [`SocketError::Aborted`].
    pub(crate) fn abort(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: TcpId,
    ) -> Result<(), SocketError> {
        let connection = self.owned(id)?;
        if connection.detached {
            return Ok(());
        }
        self.fail(now, host, id.index, SocketError::Aborted);
        Ok(())
    }

    pub(crate) fn state(&mut self, id: TcpId) -> Result<TcpState, SocketError> {
        Ok(self.owned(id)?.state())
    }

    pub(crate) fn addresses(&mut self, id: TcpId) -> Result<(SocketAddr, SocketAddr), SocketError> {
        let connection = self.owned(id)?;
        let tuple = connection.tuple;
        let shown = |address: SocketAddr| match connection.is_mapped {
            true => SocketAddr::new(mapped(address.ip()), address.port()),
            false => address,
        };
        Ok((shown(tuple.local), shown(tuple.remote)))
    }

    /// Returns the peer's address while there is a connection, as getpeername(2) does.
    pub(crate) fn peer(&mut self, id: TcpId) -> Result<SocketAddr, SocketError> {
        let (_, peer) = self.addresses(id)?;
        match self.owned(id)?.state {
            State::SynSent | State::TimeWait | State::Closed => Err(SocketError::NotConnected),
            _ => Ok(peer),
        }
    }

    pub(crate) fn take_error(&mut self, id: TcpId) -> Result<Option<SocketError>, SocketError> {
        Ok(self.owned(id)?.error.take())
    }

    pub(crate) fn readiness(&mut self, host: &Host, id: TcpId) -> Result<Readiness, SocketError> {
        let left = self.urgent(id)?;
        let connection = self.owned(id)?;
        // As on Linux, once its last byte has arrived.
        let urgent = left.is_some_and(|left| left <= connection.receiving.buffer.len());
        connection.told = false;
        let writable = connection.writable(&host.config.tcp);
        connection.wants_room |= !writable;
        Ok(Readiness {
            readable: connection.readable(),
            writable,
            read_closed: connection.read_closed(),
            write_closed: connection.write_closed(),
            error: connection.error.is_some(),
            urgent,
        })
    }
}
