//! Passive opens: the operations of listeners, and connections that begin with the peer's SYN.

use std::collections::VecDeque;
use std::net::SocketAddr;

use smoltcp::wire::IpListenEndpoint;

use super::connection::{Connection, Owner, Tuple, smol_endpoint};
use super::listener::Listener;
use super::segment::Segment;
use super::table::Tcp;
use crate::host::Host;
use crate::ip::Packet;
use crate::{Instant, ListenerId, Readiness, SocketError, SocketId, TcpId};

/// The minimum limit of half-open connections, even if the accept queue is shorter: they are no
/// load on the application.
const LEAST_HALF_OPEN: usize = 128;

impl Tcp {
    /// Starts to listen.
    pub(crate) fn listen(
        &mut self,
        host: &mut Host,
        mut local: SocketAddr,
        backlog: usize,
    ) -> Result<ListenerId, SocketError> {
        if !local.ip().is_unspecified() && !host.is_ours(local.ip()) {
            return Err(SocketError::AddressNotAvailable);
        }
        let listeners = &mut self.listeners;
        if listeners.bindings.len() >= host.config.limits.sockets {
            return Err(SocketError::LimitReached);
        }
        let index = listeners.free.last().copied().unwrap_or(listeners.listeners.len() as u32);
        local.set_port(listeners.bindings.bind(local, index, &mut host.random, |_| false)?);
        self.ports.add(local);
        listeners.generation += 1;
        let generation = listeners.generation;
        let listener = Listener {
            generation,
            local,
            backlog: backlog.max(1),
            half_open: 0,
            accept: VecDeque::new(),
            told: false,
            revoked: false,
        };
        if listeners.free.pop().is_some() {
            listeners.listeners[index as usize] = Some(listener);
        } else {
            listeners.listeners.push(Some(listener));
        }
        Ok(ListenerId { index, generation })
    }

    /// Returns the listener's local address.
    pub(crate) fn listener_local(&mut self, id: ListenerId) -> Result<SocketAddr, SocketError> {
        Ok(self.listeners.get(id)?.local)
    }

    /// Accepts the oldest waiting connection.
    pub(crate) fn accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), SocketError> {
        loop {
            let listener = self.listeners.get(id)?;
            listener.told = false;
            let none =
                if listener.revoked { SocketError::Revoked } else { SocketError::WouldBlock };
            let tcp = listener.accept.pop_front().ok_or(none)?;
            let Ok(connection) = self.get(tcp) else { continue };
            connection.owner = Owner::Application;
            return Ok((tcp, connection.tuple.remote));
        }
    }

    /// Returns the listener's readiness: readable if a connection waits.
    pub(crate) fn listener_readiness(&mut self, id: ListenerId) -> Result<Readiness, SocketError> {
        let listener = self.listeners.get(id)?;
        listener.told = false;
        let readable = !listener.accept.is_empty() || listener.revoked;
        Ok(Readiness { readable, ..Readiness::default() })
    }

    /// Stops listening, and resets connections that were not accepted.
    pub(crate) fn close_listener(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: ListenerId,
    ) -> Result<(), SocketError> {
        let local = self.listeners.get(id)?.local;
        let waiting = std::mem::take(&mut self.listeners.get(id)?.accept);
        let half_open: Vec<TcpId> = self
            .listeners
            .half_open
            .iter()
            .filter(|(of, _)| *of == id)
            .map(|(_, tcp)| *tcp)
            .collect();
        self.listeners.listeners[id.index as usize] = None;
        self.listeners.free.push(id.index);
        self.listeners.bindings.unbind(local);
        self.ports.remove(local);
        for tcp in waiting.into_iter().chain(half_open) {
            if let Ok(connection) = self.get(tcp)
                && connection.owner == Owner::Listener(id)
            {
                if !connection.established {
                    self.listeners.half_open_count -= 1;
                }
                let connection = self.get(tcp)?;
                connection.owner = Owner::None;
                connection.established = true;
                self.abort_now(now, host, tcp.index);
            }
        }
        Ok(())
    }

    /// Fails the listeners and the connections of a port, which belongs to this host no more.
    pub(crate) fn revoke(&mut self, now: Instant, host: &mut Host, is_ipv4: bool, port: u16) {
        for (listener, index) in self.listeners.listeners.iter_mut().zip(0..) {
            let Some(listener) = listener else { continue };
            if listener.local.is_ipv4() == is_ipv4 && listener.local.port() == port {
                listener.revoked = true;
                let id = ListenerId { index, generation: listener.generation };
                host.news.push_back(SocketId::Listener(id));
            }
        }
        let uses = |local: SocketAddr| local.is_ipv4() == is_ipv4 && local.port() == port;
        let theirs = self.by_tuple.iter().filter(|(tuple, _)| uses(tuple.local));
        for index in theirs.map(|(_, index)| *index).collect::<Vec<u32>>() {
            self.fail(now, host, index, SocketError::Revoked);
        }
    }

    /// Handles a SYN that belongs to no connection. Returns `false` if no socket listens.
    pub(super) fn open_passive(
        &mut self,
        now: Instant,
        host: &mut Host,
        tuple: Tuple,
        packet: &Packet<'_>,
        seg: &Segment,
    ) -> bool {
        let found = self.listeners.bindings.find(tuple.local.ip(), tuple.local.port()).copied();
        let Some(index) = found else { return false };
        let Some(listener) = self.listeners.listeners[index as usize].as_ref() else {
            return false;
        };
        let id = ListenerId { index, generation: listener.generation };
        // No route leads back to the sender.
        if host.route(tuple.remote.ip()).is_none() {
            host.counters.no_route += 1;
            return true;
        }
        // While the accept queue is full, the peer has to repeat its SYN.
        if listener.accept.len() >= listener.backlog {
            host.counters.tcp_accept_overflow += 1;
            return true;
        }
        let full = listener.half_open >= listener.backlog.max(LEAST_HALF_OPEN);
        if full || self.listeners.half_open_count >= host.config.limits.half_open {
            self.evict_half_open(host, full.then_some(id));
        }
        if self.live >= host.config.limits.connections {
            host.counters.tcp_connection_limit += 1;
            return true;
        }
        let path = self.path(now, host, tuple.local.ip(), tuple.remote.ip());
        let config = &host.config.tcp;
        let mut connection = Connection::new(tuple, path, Owner::Listener(id), config, now);
        connection.give_up_at = Some(now + config.syn_received_timeout);
        let endpoint: IpListenEndpoint = smol_endpoint(tuple.local).into();
        if connection.socket_mut().listen(endpoint).is_err() {
            return true;
        }
        self.reseed(now, host, &tuple);
        let tcp = self.insert(connection);
        if let Ok(listener) = self.listeners.get(id) {
            listener.half_open += 1;
        }
        self.listeners.half_open_count += 1;
        // Established connections stay in the list until there are too many.
        if self.listeners.half_open.len() > 2 * self.listeners.half_open_count + 64 {
            let mut order = std::mem::take(&mut self.listeners.half_open);
            order.retain(|(of, tcp)| self.is_half_open(*of, *tcp));
            self.listeners.half_open = order;
        }
        self.listeners.half_open.push_back((id, tcp));
        self.process(now, host, tcp.index, packet, seg);
        true
    }

    fn is_half_open(&mut self, of: ListenerId, tcp: TcpId) -> bool {
        self.get(tcp).is_ok_and(|c| c.owner == Owner::Listener(of) && !c.established)
    }

    /// Evicts the oldest half-open connection, of one listener or of all: in a flood of SYNs the
    /// oldest is the least likely to be honest.
    fn evict_half_open(&mut self, host: &mut Host, of: Option<ListenerId>) {
        let mut at = 0;
        while let Some(&(listener, tcp)) = self.listeners.half_open.get(at) {
            if !self.is_half_open(listener, tcp) {
                self.listeners.half_open.remove(at);
                continue;
            }
            if of.is_none_or(|wanted| wanted == listener) {
                self.listeners.half_open.remove(at);
                host.counters.tcp_half_open_evicted += 1;
                self.remove(host, tcp.index);
                return;
            }
            at += 1;
        }
    }
}
