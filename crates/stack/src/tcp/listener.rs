//! Listeners: half-open connections (the SYN backlog) and connections that wait to be accepted.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::bindings::Bindings;
use crate::host::Host;
use crate::{ListenerId, SocketError, SocketId, TcpId};

pub(super) struct Listener {
    pub(super) generation: u32,
    pub(super) local: SocketAddr,
    /// The maximum number of connections that wait to be accepted.
    pub(super) backlog: usize,
    pub(super) half_open: usize,
    pub(super) accept: VecDeque<TcpId>,
    pub(super) told: bool,
    /// `true` if the port belongs to this host no more.
    pub(super) revoked: bool,
}

/// All listeners.
pub(super) struct Listeners {
    pub(super) listeners: Vec<Option<Listener>>,
    pub(super) free: Vec<u32>,
    pub(super) generation: u32,
    pub(super) bindings: Bindings<u32>,
    /// Half-open connections of all listeners, the oldest first; some may have become established.
    pub(super) half_open: VecDeque<(ListenerId, TcpId)>,
    pub(super) half_open_count: usize,
}

impl Listeners {
    pub(super) fn new() -> Self {
        Listeners {
            listeners: Vec::new(),
            free: Vec::new(),
            generation: 0,
            bindings: Bindings::new(),
            half_open: VecDeque::new(),
            half_open_count: 0,
        }
    }

    pub(super) fn get(&mut self, id: ListenerId) -> Result<&mut Listener, SocketError> {
        self.listeners
            .get_mut(id.index as usize)
            .and_then(Option::as_mut)
            .filter(|listener| listener.generation == id.generation)
            .ok_or(SocketError::NoSocket)
    }

    /// Returns `true` if the listener's accept queue is full.
    pub(super) fn is_full(&mut self, id: ListenerId) -> bool {
        self.get(id).is_ok_and(|listener| listener.accept.len() >= listener.backlog)
    }

    /// Handles a half-open connection that became established. Returns `false` if no listener can
    /// take it.
    pub(super) fn established(&mut self, host: &mut Host, id: ListenerId, tcp: TcpId) -> bool {
        self.half_open_count = self.half_open_count.saturating_sub(1);
        let Ok(listener) = self.get(id) else { return false };
        listener.half_open = listener.half_open.saturating_sub(1);
        if listener.accept.len() >= listener.backlog {
            host.counters.tcp_accept_overflow += 1;
            return false;
        }
        listener.accept.push_back(tcp);
        host.counters.tcp_accepted += 1;
        if !listener.told {
            listener.told = true;
            host.news.push_back(SocketId::Listener(id));
        }
        true
    }

    /// Handles the end of a connection that belonged to a listener.
    pub(super) fn gone(&mut self, id: ListenerId, tcp: TcpId, established: bool) {
        if !established {
            self.half_open_count = self.half_open_count.saturating_sub(1);
        }
        if let Ok(listener) = self.get(id) {
            if established {
                listener.accept.retain(|other| *other != tcp);
            } else {
                listener.half_open = listener.half_open.saturating_sub(1);
            }
        }
    }
}
