//! The table of connections.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use smoltcp::iface::Interface;
use smoltcp::phy::DeviceCapabilities;

use super::connection::{Connection, Owner, Tuple};
use super::interface::{capabilities, interface};
use super::listener::Listeners;
use super::narrow::Narrow;
use super::port::Path;
use super::ports::LocalPorts;
use super::time_wait::TimeWait;
use super::{segment, sequence};
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
    pub(super) interface: Interface,
    pub(super) narrow: Narrow,
    pub(super) capabilities: DeviceCapabilities,
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u32>,
    pub(super) live: usize,
    pub(super) by_tuple: HashMap<Tuple, u32>,
    pub(super) listeners: Listeners,
    pub(super) time_wait: TimeWait,
    pub(super) ports: LocalPorts,
    pub(super) wheel: Wheel,
    pub(super) dirty: VecDeque<u32>,
    /// Memory in which the stack rebuilds packets that smoltcp does not accept as received.
    pub(super) scratch: Vec<u8>,
}

impl Tcp {
    pub(crate) fn new(host: &Host, now: Instant) -> Self {
        let capabilities = capabilities(host);
        let limits = &host.config.limits;
        Tcp {
            time_wait: TimeWait::new(limits.time_wait, host.config.tcp.time_wait),
            interface: interface(host, &capabilities, now, 0),
            narrow: Narrow::new(host, &capabilities, now),
            capabilities,
            slots: Vec::new(),
            free: Vec::new(),
            live: 0,
            by_tuple: HashMap::new(),
            listeners: Listeners::new(),
            ports: LocalPorts::new(host.config.reports_unused_ports),
            wheel: Wheel::new(now),
            dirty: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// Queues a connection for a visit.
    pub(super) fn mark(&mut self, index: u32) {
        if let Some(connection) = self.slots[index as usize].connection.as_mut()
            && !connection.dirty
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

    /// Returns the path to `remote` that a new connection's segments take.
    pub(super) fn path(&self, now: Instant, host: &Host, local: IpAddr, remote: IpAddr) -> Path {
        let headers = ip::header_len(local) + segment::HEADER_BYTES;
        Path {
            local,
            remote,
            local_mss: host.config.mtu - headers,
            mss: host.paths.mtu(now, remote) - headers,
            offload: host.config.offload,
            sent_to: None,
            edge: None,
        }
    }

    /// Makes the next connection start with the sequence number of [`sequence::initial`].
    pub(super) fn reseed(&mut self, now: Instant, host: &mut Host, tuple: &Tuple) {
        let initial = sequence::initial(now, &host.random, tuple);
        let seed = sequence::seed(initial, host.random.next());
        self.interface = interface(host, &self.capabilities, now, seed);
    }

    /// Returns the next local port that nothing uses any more, with `true` for IPv4.
    pub(crate) fn next_unused_port(&mut self) -> Option<(bool, u16)> {
        self.ports.next_unused()
    }

    /// Returns the number of connections and of TIME-WAIT entries.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.live, self.time_wait.len())
    }
}
