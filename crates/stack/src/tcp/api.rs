//! The application's operations on connections.

use std::net::SocketAddr;
use std::time::Duration;

use smoltcp::socket::tcp::{RecvError, State};

use super::connection::{self, Connection, Owner, Tuple, smol_endpoint};
use super::table::Tcp;
use crate::bindings::ephemeral_ports;
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

/// A connection's state, as RFC 9293 names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// The handshake is in progress.
    Connecting,
    /// Both directions are open.
    Established,
    /// The peer has ended its direction (CLOSE-WAIT).
    PeerClosed,
    /// This side has ended its direction (FIN-WAIT-1, FIN-WAIT-2).
    Closed,
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
        let ip = remote.ip();
        if remote.port() == 0 || ip.is_multicast() || ip.is_unspecified() || host.is_broadcast(ip) {
            return Err(SocketError::InvalidAddress);
        }
        let route = host.route(ip).ok_or(SocketError::Unreachable)?;
        let mut from = SocketAddr::new(route.src, 0);
        if let Some(local) = local {
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
            0 => ephemeral_ports(&mut host.random).find(|&port| free(port)),
            port => Some(port).filter(|&port| free(port)),
        };
        from.set_port(port.ok_or(SocketError::AddressInUse)?);
        let tuple = Tuple { local: from, remote };
        let path = self.path(now, host, from.ip(), ip);
        let config = &host.config.tcp;
        let mut connection = Connection::new(tuple, path, Owner::Application, config, now);
        connection.give_up_at = Some(now + timeout.unwrap_or(config.connect_timeout));
        self.reseed(now, host, &tuple);
        let local: smoltcp::wire::IpListenEndpoint = smol_endpoint(from).into();
        connection
            .socket_mut()
            .connect(self.interface.context(), smol_endpoint(remote), local)
            .map_err(|_| SocketError::InvalidAddress)?;
        let id = self.insert(connection);
        self.mark(id.index);
        Ok(id)
    }

    /// Writes as many bytes as the send buffer has room for, at least one.
    pub(crate) fn send(&mut self, id: TcpId, data: &[u8]) -> Result<usize, SocketError> {
        let connection = self.owned(id)?;
        // The next check may report the connection again: another thread may wait for the other
        // direction.
        connection.told = false;
        if let Some(error) = connection.error.take() {
            return Err(error);
        }
        if connection.connecting() {
            return Err(SocketError::WouldBlock);
        }
        if connection.finishing {
            return Err(SocketError::Closed);
        }
        let sent = connection.socket_mut().send_slice(data).map_err(|_| SocketError::Closed)?;
        if sent == 0 && !data.is_empty() {
            return Err(SocketError::WouldBlock);
        }
        self.mark(id.index);
        Ok(sent)
    }

    /// Reads received data, or with `peek` copies and keeps it. Returns 0 at the end of the stream.
    pub(crate) fn recv(
        &mut self,
        now: Instant,
        id: TcpId,
        buffer: &mut [u8],
        peek: bool,
    ) -> Result<usize, SocketError> {
        let connection = self.owned(id)?;
        connection.told = false;
        if connection.read_shut {
            return Ok(0);
        }
        if connection.connecting() {
            return Err(connection.error.take().unwrap_or(SocketError::WouldBlock));
        }
        let read = if peek {
            match connection.socket_mut().peek_slice(buffer) {
                Ok(0) if connection.socket().may_recv() => Ok(0),
                Ok(0) => connection.socket_mut().recv_slice(&mut []),
                other => other,
            }
        } else {
            connection.socket_mut().recv_slice(buffer)
        };
        match read {
            Ok(0) if !buffer.is_empty() => Err(SocketError::WouldBlock),
            Ok(len) => {
                if let Some(connection) = self.slots[id.index as usize].connection.as_mut()
                    && !peek
                {
                    connection.window.read(len);
                }
                // The read made room: a window update may be due at once.
                let poll_at = match (peek, self.slots[id.index as usize].connection.as_mut()) {
                    (false, Some(connection)) if !connection.detached => {
                        self.interface.poll_at(now.to_smoltcp(), connection.sockets())
                    }
                    _ => None,
                };
                if poll_at.is_some_and(|at| at <= now.to_smoltcp()) {
                    self.mark(id.index);
                }
                Ok(len)
            }
            Err(RecvError::Finished) => Ok(0),
            Err(RecvError::InvalidState) => match connection.error.take() {
                Some(error) => Err(error),
                // The error was already reported, or this side ended the connection.
                None => Ok(0),
            },
        }
    }

    /// Shuts one direction or both.
    pub(crate) fn shutdown(
        &mut self,
        host: &mut Host,
        id: TcpId,
        how: Shutdown,
    ) -> Result<(), SocketError> {
        let connection = self.owned(id)?;
        if connection.connecting() || connection.state() == State::Closed {
            return Err(SocketError::NotConnected);
        }
        if how != Shutdown::Read {
            connection.finish();
        }
        if how != Shutdown::Write {
            connection.read_shut = true;
            self.discard(host, id.index);
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
        let unread = connection.socket().recv_queue() > 0 && !connection.read_shut;
        connection.owner = Owner::None;
        connection.keep_alive = None;
        if connection.detached || connection.state() == State::SynSent {
            self.remove(host, id.index);
        } else if unread && connection.state() != State::TimeWait {
            self.abort_now(now, host, id.index);
        } else {
            connection.finish();
            connection.note_time(now, &host.config.tcp);
            self.mark(id.index);
            self.settle(now, host, id.index);
        }
        Ok(())
    }

    /// Ends a connection at once, with a reset; unsent data is lost. Later reads and writes return
    /// that error.
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
        let connection = self.owned(id)?;
        Ok(match connection.state() {
            _ if connection.finishing => TcpState::Over,
            State::Listen | State::SynSent | State::SynReceived => TcpState::Connecting,
            State::Established => TcpState::Established,
            State::CloseWait => TcpState::PeerClosed,
            State::FinWait1 | State::FinWait2 => TcpState::Closed,
            State::Closing | State::LastAck | State::TimeWait | State::Closed => TcpState::Over,
        })
    }

    pub(crate) fn addresses(&mut self, id: TcpId) -> Result<(SocketAddr, SocketAddr), SocketError> {
        let tuple = self.owned(id)?.tuple;
        Ok((tuple.local, tuple.remote))
    }

    pub(crate) fn take_error(&mut self, id: TcpId) -> Result<Option<SocketError>, SocketError> {
        Ok(self.owned(id)?.error.take())
    }

    pub(crate) fn readiness(&mut self, id: TcpId) -> Result<Readiness, SocketError> {
        let connection = self.owned(id)?;
        connection.told = false;
        Ok(Readiness {
            readable: connection.readable(),
            writable: connection.writable(),
            closed: connection.closed(),
        })
    }

    pub(crate) fn set_nodelay(&mut self, id: TcpId, nodelay: bool) -> Result<(), SocketError> {
        self.owned(id)?.socket_mut().set_nagle_enabled(!nodelay);
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn nodelay(&mut self, id: TcpId) -> Result<bool, SocketError> {
        Ok(!self.owned(id)?.socket().nagle_enabled())
    }

    pub(crate) fn set_keep_alive(
        &mut self,
        now: Instant,
        id: TcpId,
        interval: Option<Duration>,
    ) -> Result<(), SocketError> {
        let interval = interval.map(|interval| interval.max(Duration::from_millis(1)));
        let connection = self.owned(id)?;
        connection.keep_alive = interval;
        // Silence before this call does not count.
        connection.last_heard = now;
        connection.socket_mut().set_keep_alive(interval.map(connection::smol));
        self.mark(id.index);
        Ok(())
    }

    /// Returns the number of written bytes that the peer has not acknowledged, and of received
    /// bytes not read.
    pub(crate) fn queues(&mut self, id: TcpId) -> Result<(usize, usize), SocketError> {
        let connection = self.owned(id)?;
        Ok((connection.socket().send_queue(), connection.socket().recv_queue()))
    }
}
