//! The table of connections.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::connection::{Connection, Env, Owner, Sizes};
use super::cookie::Cookies;
use super::half_open::HalfOpens;
use super::listener::Listeners;
use super::pool::Pool;
use super::ports::LocalPorts;
use super::segment;
use super::time_wait::TimeWait;
use super::tuple::Tuple;
use crate::host::Host;
use crate::ip;
use crate::wheel::Wheel;
use crate::{Instant, SocketError, SocketId, TcpId};

pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) connection: Option<Box<Connection>>,
}

/// See the module.
pub(crate) struct Tcp {
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u32>,
    /// Ended connections, whose memory new ones use. Boxed, since a connection stays where it is.
    #[expect(clippy::vec_box, reason = "the boxes are those of the slots")]
    pub(super) spare: Vec<Box<Connection>>,
    pub(super) live: usize,
    pub(super) by_tuple: HashMap<Tuple, u32>,
    /// The connection of the last segment: the next one is often for it.
    pub(super) last: Option<(Tuple, u32)>,
    pub(super) listeners: Listeners,
    pub(super) half_open: HalfOpens,
    pub(super) cookies: Cookies,
    pub(super) time_wait: TimeWait,
    pub(super) ports: LocalPorts,
    pub(super) wheel: Wheel,
    pub(super) dirty: VecDeque<u32>,
    pub(super) pool: Pool,
    /// Connections whose applications wait for memory to write.
    pub(super) memory_waiters: VecDeque<TcpId>,
}

impl Tcp {
    pub(crate) fn new(host: &Host, now: Instant) -> Self {
        let limits = &host.config.limits;
        Tcp {
            time_wait: TimeWait::new(limits.time_wait, host.config.tcp.time_wait),
            slots: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            live: 0,
            by_tuple: HashMap::new(),
            last: None,
            listeners: Listeners::new(),
            half_open: HalfOpens::new(host.config.tcp.syn_received_timeout),
            cookies: Cookies::default(),
            ports: LocalPorts::new(host.config.reports_unused_ports),
            wheel: Wheel::new(now),
            dirty: VecDeque::new(),
            pool: Pool::new(limits.tcp_buffer_bytes),
            memory_waiters: VecDeque::new(),
        }
    }

    /// Returns a connection with the parts of the stack that it uses.
    pub(super) fn connection_and_env<'a>(
        &'a mut self,
        now: Instant,
        host: &'a mut Host,
        index: u32,
    ) -> Option<(&'a mut Connection, Env<'a>)> {
        let connection = self.slots[index as usize].connection.as_deref_mut()?;
        let env = Env {
            now,
            config: &host.config.tcp,
            pool: &mut self.pool,
            counters: &mut host.counters,
        };
        Some((connection, env))
    }

    /// Returns a connection by its index.
    pub(super) fn at(&mut self, index: u32) -> Option<&mut Connection> {
        self.slots[index as usize].connection.as_deref_mut()
    }

    /// Returns the index of a tuple's connection.
    pub(super) fn find(&mut self, tuple: &Tuple) -> Option<u32> {
        if let Some((last, index)) = self.last
            && last == *tuple
        {
            return Some(index);
        }
        let &index = self.by_tuple.get(tuple)?;
        self.last = Some((*tuple, index));
        Some(index)
    }

    /// Queues a connection for a visit.
    pub(super) fn mark(&mut self, index: u32) {
        if let Some(connection) = self.slots[index as usize].connection.as_mut()
            && !connection.dirty
            && !connection.detached
        {
            connection.dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Reports the connection to the application, once until the application checks it.
    pub(super) fn tell(&mut self, host: &mut Host, index: u32) {
        let slot = &mut self.slots[index as usize];
        if let Some(connection) = slot.connection.as_mut()
            && connection.owner == Owner::Application
            && !connection.told
        {
            connection.told = true;
            let id = TcpId { index, generation: slot.generation };
            host.news.push_back(SocketId::Tcp(id));
        }
    }

    pub(super) fn get(&mut self, id: TcpId) -> Result<&mut Connection, SocketError> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation)
            .and_then(|slot| slot.connection.as_deref_mut())
            .ok_or(SocketError::NoSocket)
    }

    /// Returns a connection that the application owns.
    pub(super) fn owned(&mut self, id: TcpId) -> Result<&mut Connection, SocketError> {
        self.get(id).and_then(|connection| match connection.owner {
            Owner::Application => Ok(connection),
            Owner::Listener(_) | Owner::None => Err(SocketError::NoSocket),
        })
    }

    /// Returns the sizes of a new connection's segments; the peer's offer is not known yet.
    pub(super) fn sizes(&self, now: Instant, host: &Host, remote: IpAddr) -> Sizes {
        let headers = ip::header_len(remote) + segment::HEADER_BYTES;
        let local = host.config.mtu - headers;
        Sizes { local, remote: local, path: host.paths.mtu(now, remote) - headers }
    }

    /// Returns the next local port that nothing uses any more, with `true` for IPv4.
    pub(crate) fn next_unused_port(&mut self) -> Option<(bool, u16)> {
        self.ports.next_unused()
    }

    /// Returns the number of connections, half-open ones included, and of TIME-WAIT entries.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.live + self.half_open.len(), self.time_wait.len())
    }

    /// Returns the bytes in buffers, and the memory allocated for buffers.
    pub(crate) fn buffer_bytes(&self) -> (usize, usize) {
        self.pool.sizes()
    }
}
