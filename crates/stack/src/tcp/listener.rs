//! Listeners, and the connections that wait to be accepted.

use std::collections::VecDeque;

use super::tuple::Tuple;
use crate::bindings::{self, Bindings, Bound};
use crate::host::Host;
use crate::random::Random;
use crate::{ListenerId, SocketError, SocketId, TcpId};

pub(super) struct Listener {
    pub(super) generation: u32,
    pub(super) bound: Bound,
    /// The maximum number of connections that wait to be accepted.
    pub(super) backlog: usize,
    pub(super) half_open: usize,
    pub(super) accept: VecDeque<TcpId>,
    pub(super) told: bool,
    /// `true` if the port belongs to this host no more.
    pub(super) revoked: bool,
    /// `true` if another host has taken over the addresses: no further connections arrive.
    pub(super) handed_over: bool,
}

impl Listener {
    /// Returns the error of `accept` while no connection waits.
    pub(super) fn error(&self) -> Option<SocketError> {
        // A half-open connection may still become one to accept.
        let is_over = self.handed_over && self.half_open == 0;
        let handed_over = is_over.then_some(SocketError::HandedOver);
        self.revoked.then_some(SocketError::Revoked).or(handed_over)
    }
}

/// All listeners.
pub(super) struct Listeners {
    pub(super) listeners: Vec<Option<Listener>>,
    pub(super) free: Vec<u32>,
    pub(super) generation: u32,
    pub(super) bindings: Bindings<u32>,
}

impl Listeners {
    pub(super) fn new() -> Self {
        Listeners {
            listeners: Vec::new(),
            free: Vec::new(),
            generation: 0,
            bindings: Bindings::new(),
        }
    }

    pub(super) fn get(&mut self, id: ListenerId) -> Result<&mut Listener, SocketError> {
        self.listeners
            .get_mut(id.index as usize)
            .and_then(Option::as_mut)
            .filter(|listener| listener.generation == id.generation)
            .ok_or(SocketError::NoSocket)
    }

    /// Returns the listener of a connection: one at the address, or else one at the unspecified address. Of several there, each
    /// peer's address and port choose one, in a way that the network cannot predict.
    pub(super) fn find(
        &mut self,
        random: &Random,
        tuple: &Tuple,
    ) -> Option<(ListenerId, &mut Listener)> {
        let [specific, any] = self.bindings.find(tuple.local.ip(), tuple.local.port());
        let sockets = if specific.is_empty() { any } else { specific };
        // A single listener also refuses connections itself once its port is revoked.
        let is_open = |index: u32| {
            let listener = self.listeners.get(index as usize).and_then(Option::as_ref);
            sockets.len() == 1 || listener.is_some_and(|one| !one.revoked)
        };
        let index = bindings::choose(sockets, random, &("listener", tuple), is_open)?;
        let listener = self.listeners.get_mut(index as usize)?.as_mut()?;
        Some((ListenerId { index, generation: listener.generation }, listener))
    }

    /// Returns `true` if the listener's accept queue is full.
    pub(super) fn is_full(&mut self, id: ListenerId) -> bool {
        self.get(id).is_ok_and(|listener| listener.accept.len() >= listener.backlog)
    }

    /// Queues an established connection for its listener.
    pub(super) fn established(&mut self, host: &mut Host, id: ListenerId, tcp: TcpId) {
        let Ok(listener) = self.get(id) else { return };
        listener.accept.push_back(tcp);
        host.counters.tcp_accepted += 1;
        if !listener.told {
            listener.told = true;
            host.news.push_back(SocketId::Listener(id));
        }
    }

    /// Handles the end of a half-open connection.
    pub(super) fn half_open_ended(&mut self, host: &mut Host, id: ListenerId) {
        if let Ok(listener) = self.get(id) {
            listener.half_open = listener.half_open.saturating_sub(1);
            if listener.error().is_some() && !std::mem::replace(&mut listener.told, true) {
                host.news.push_back(SocketId::Listener(id));
            }
        }
    }

    /// Handles the end of a connection that waited to be accepted.
    pub(super) fn gone(&mut self, id: ListenerId, tcp: TcpId) {
        if let Ok(listener) = self.get(id) {
            listener.accept.retain(|other| *other != tcp);
        }
    }
}
