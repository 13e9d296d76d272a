//! The engine: what it owns, and how it is made.

mod ending;
mod execute;
mod iteration;
mod published_counts;

use std::os::fd::{BorrowedFd, OwnedFd};

use towpath_device::{Device, DeviceError};
use towpath_memory::{Mapping, Region};
use towpath_protocol::settings::{Setting, Values};
use towpath_waiting::Found;

use crate::apertures::ApertureTable;
use crate::closing::ClosingSessions;
use crate::commands::CommandPort;
use crate::demux::{FlowCache, FlowTable};
use crate::device_counters::DeviceCounters;
use crate::draining::DrainingSessions;
use crate::memories::TransmitMemories;
use crate::notifier::Notifier;
use crate::oob::{OobParts, OobTable};
use crate::own::BounceFile;
use crate::port::DevicePort;
use crate::remote::Inbox;
use crate::remote::table::RemoteTable;
use crate::rx::RxPath;
use crate::rx::own::OwnRx;
use crate::sessions::SessionTable;
use crate::source::SoftwareOffloads;
use crate::tx::{MAX_EXPEDITED, TxPath};
use crate::wait::EngineWait;
use crate::{Budgets, ControlLink};

/// The engine of a device.
pub struct Engine {
    port: DevicePort,
    sessions: SessionTable,
    memories: TransmitMemories,
    flows: FlowTable,
    oob: OobTable,
    apertures: ApertureTable,
    remote: RemoteTable,
    inbox: Inbox,
    rx: RxPath,
    own_rx: OwnRx,
    tx: TxPath,
    notifier: Notifier,
    wait: EngineWait,
    commands: CommandPort,
    counters: DeviceCounters,
    values: Values,
    /// Packets that an endpoint may receive per poll iteration.
    receive_budget: u32,
    /// The number of the poll iteration.
    iteration: u64,
    software: SoftwareOffloads,
    /// Sessions under removal that still have flow rules.
    closing: ClosingSessions,
    /// Ended sessions whose last packets the engine still sends.
    draining: DrainingSessions,
    /// The packets of the last poll iteration.
    found: Found,
    stop: bool,
    /// `true` if the sessions go on with the next server.
    leaves: bool,
    /// `true` if a next server can resume the sessions.
    has_successor: bool,
    /// The file part with the bounce buffers, until the control thread takes it.
    bounce_file: Option<BounceFile>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("device", &self.port.name()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine that serves one queue of `device`, with its part of the state page.
    ///
    /// # Errors
    /// Fails if memory cannot be allocated or the queue does not open.
    pub fn new(
        device: &mut dyn Device,
        state: Region,
        epoch: u64,
        seed: u64,
        values: &Values,
        budgets: Budgets,
        link: ControlLink,
    ) -> Result<Engine, DeviceError> {
        let Budgets { batch, receive_budget, transmit_budget, iteration_budget } = budgets;
        let (port, mut memory) =
            DevicePort::start(device, link.lane, batch, link.rdma.is_some(), values)?;
        let bounce_file = memory.file.take();
        let (counters, flag) = DeviceCounters::new(state, epoch);
        let wait = EngineWait::new(&port, flag, link.wake, values)?;
        Ok(Engine {
            sessions: SessionTable::new(link.position),
            memories: TransmitMemories::default(),
            flows: FlowTable::new(seed, FlowCache::of(values.get(Setting::FlowCache))),
            oob: OobTable::default(),
            apertures: ApertureTable::default(),
            inbox: Inbox::new(if link.rdma.is_some() { batch } else { 0 }),
            remote: RemoteTable::new(link.rdma, port.mtu()),
            rx: RxPath::new(&port, batch, values),
            own_rx: OwnRx::new(batch, values),
            tx: TxPath::new(memory, transmit_budget, iteration_budget, values),
            notifier: Notifier::new(values, link.relays, iteration_budget + MAX_EXPEDITED),
            wait,
            commands: CommandPort::new(link.commands, link.reports, link.control_wake),
            port,
            counters,
            values: values.clone(),
            receive_budget,
            iteration: 0,
            software: SoftwareOffloads::new(),
            closing: ClosingSessions::default(),
            draining: DrainingSessions::default(),
            found: Found::default(),
            stop: false,
            leaves: false,
            has_successor: link.has_successor,
            bounce_file,
        })
    }

    /// Returns the device's name, and the memory of its packets.
    pub fn packet_memory(&self) -> (&str, &Mapping) {
        (self.port.name(), self.port.memory())
    }

    /// Sets the device's name in the log.
    pub fn set_device_name(&mut self, name: &str) {
        self.port.set_name(name);
    }

    /// Returns `true` if the engine uses the memory of an earlier server's packets.
    pub fn has_earlier_memory(&self) -> bool {
        self.port.has_earlier_memory()
    }

    /// Takes the bounce buffers as a part of the memory of sessions' own queues; `None` for a
    /// device without such queues.
    pub fn take_bounce_file(&mut self) -> Option<BounceFile> {
        self.bounce_file.take()
    }

    /// Returns the epoll set in which the workers enter each session's `Session::wake`, with
    /// [`wake_data`](crate::wake_data).
    #[must_use]
    pub fn epoll(&self) -> &OwnedFd {
        self.wait.wakes().epoll()
    }

    /// Returns the file of the device's memory, if a keeper can hold it.
    pub fn memory_file(&self) -> Option<BorrowedFd<'_>> {
        self.port.memory_file()
    }

    /// Makes packets take the path for captures and promiscuous endpoints although there are none.
    /// Measurements use this to show how much the separate path saves.
    pub fn assume_captures(&mut self, assumed: bool) {
        self.flows.assume_captures(assumed);
    }

    /// Returns the parts of the engine that changes of connections need.
    fn oob_parts(&mut self) -> OobParts<'_> {
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let (apertures, remote) = (&mut self.apertures, &mut self.remote);
        OobParts { sessions, notifier, apertures, remote }
    }
}

/// The parts that other modules' tests look at.
#[cfg(test)]
impl Engine {
    pub(crate) fn counters(&self) -> &DeviceCounters {
        &self.counters
    }

    pub(crate) fn sessions(&self) -> &SessionTable {
        &self.sessions
    }

    pub(crate) fn rx(&self) -> &RxPath {
        &self.rx
    }

    pub(crate) fn tx(&self) -> &TxPath {
        &self.tx
    }
}
