//! The operations of listeners.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::answer::Reply;
use super::connection::Owner;
use super::listener::Listener;
use super::segment::{ACK, RST};
use super::table::Tcp;
use crate::bindings::{BindMode, Bound};
use crate::host::Host;
use crate::{Instant, ListenerId, Readiness, SocketError, SocketId, TcpId};

impl Tcp {
    /// Starts to listen.
    pub(crate) fn listen(
        &mut self,
        host: &mut Host,
        local: SocketAddr,
        mode: BindMode,
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
        let bound = listeners.bindings.bind(Bound::new(local, mode), index, &mut host.random)?;
        bound.addresses().for_each(|local| self.ports.add(local));
        listeners.generation += 1;
        let generation = listeners.generation;
        let listener = Listener {
            generation,
            bound,
            backlog: backlog.max(1),
            half_open: 0,
            accept: VecDeque::new(),
            told: false,
            revoked: false,
            handed_over: false,
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
        Ok(self.listeners.get(id)?.bound.local)
    }

    /// Accepts the oldest waiting connection.
    pub(crate) fn accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), SocketError> {
        loop {
            let listener = self.listeners.get(id)?;
            listener.told = false;
            let none = listener.error().unwrap_or(SocketError::WouldBlock);
            let tcp = listener.accept.pop_front().ok_or(none)?;
            let bound = listener.bound;
            let Ok(connection) = self.get(tcp) else { continue };
            connection.owner = Owner::Application;
            connection.is_mapped = bound.is_dual && connection.tuple.remote.is_ipv4();
            return Ok((tcp, bound.shown(connection.tuple.remote)));
        }
    }

    /// Returns the listener's readiness: readable if a connection waits.
    pub(crate) fn listener_readiness(&mut self, id: ListenerId) -> Result<Readiness, SocketError> {
        let listener = self.listeners.get(id)?;
        listener.told = false;
        let error = listener.error().is_some();
        let readable = !listener.accept.is_empty() || error;
        Ok(Readiness { readable, error, ..Readiness::default() })
    }

    /// Stops listening, and resets connections that were not accepted.
    pub(crate) fn close_listener(
        &mut self,
        now: Instant,
        host: &mut Host,
        id: ListenerId,
    ) -> Result<(), SocketError> {
        let listener = self.listeners.get(id)?;
        let bound = listener.bound;
        let waiting = std::mem::take(&mut listener.accept);
        self.listeners.listeners[id.index as usize] = None;
        self.listeners.free.push(id.index);
        self.listeners.bindings.unbind(bound, id.index);
        self.forget_half_open(now, host, id);
        bound.addresses().for_each(|local| self.ports.remove(local));
        for tcp in waiting {
            if let Ok(connection) = self.get(tcp) {
                connection.owner = Owner::None;
                self.abort_now(now, host, tcp.index);
            }
        }
        Ok(())
    }

    /// Resets the half-open connections of a listener.
    fn forget_half_open(&mut self, now: Instant, host: &mut Host, id: ListenerId) {
        let mut ended = Vec::new();
        let table = &mut self.half_open;
        table.remove_of(id, |tuple, entry| ended.push((tuple, entry.agreement)));
        for (tuple, agreement) in ended {
            self.ports.remove(tuple.local);
            if host.may_refuse(now) {
                host.counters.tcp_resets_sent += 1;
                let (ours, theirs) = (agreement.ours + 1, agreement.theirs + 1);
                let reply = Reply::closed(ours, theirs, RST | ACK);
                self.send_reply(now, host, &tuple, reply, None);
            }
        }
    }

    /// Fails the listeners once all connections are accepted: another host has taken over the addresses.
    pub(crate) fn hand_over(&mut self, host: &mut Host) {
        for (listener, index) in self.listeners.listeners.iter_mut().zip(0..) {
            let Some(listener) = listener else { continue };
            listener.handed_over = true;
            let id = ListenerId { index, generation: listener.generation };
            host.news.push_back(SocketId::Listener(id));
        }
    }

    /// Fails the listeners and the connections of a port, which belongs to this host no more.
    pub(crate) fn revoke(&mut self, now: Instant, host: &mut Host, is_ipv4: bool, port: u16) {
        let mut revoked = Vec::new();
        for (listener, index) in self.listeners.listeners.iter_mut().zip(0..) {
            let Some(listener) = listener else { continue };
            if listener.bound.takes(is_ipv4) && listener.bound.local.port() == port {
                listener.revoked = true;
                let id = ListenerId { index, generation: listener.generation };
                host.news.push_back(SocketId::Listener(id));
                revoked.push(id);
            }
        }
        for id in revoked {
            self.forget_half_open(now, host, id);
        }
        let uses = |local: SocketAddr| local.is_ipv4() == is_ipv4 && local.port() == port;
        let theirs = self.by_tuple.iter().filter(|(tuple, _)| uses(tuple.local));
        for index in theirs.map(|(_, index)| *index).collect::<Vec<u32>>() {
            self.fail(now, host, index, SocketError::Revoked);
        }
    }
}
