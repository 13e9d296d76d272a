//! The engine: one thread that runs one poll iteration after the other.
//!
//! The engine consists of parts that own their state, and that receive each other as arguments:
//!
//! | part | file | owns |
//! |---|---|---|
//! | [`DevicePort`] | `port.rs` | the device, its memory, the watchdog |
//! | [`SessionTable`] | `sessions.rs` | the sessions, active or parked, and those to close |
//! | [`TransmitMemories`] | `memories.rs` | the memories from which sessions send, for reading |
//! | [`FlowTable`] | `demux.rs` | flow rules, captures, the last-flow cache, freed leases |
//! | [`OobTable`] | `oob.rs` | the addresses of endpoints for out-of-band messages |
//! | [`ApertureTable`] | `apertures.rs` | the apertures that may be used |
//! | [`RemoteTable`] | `remote.rs` | the connections with other hosts |
//! | [`Delivery`] | `delivery.rs` | nothing: it borrows what a delivery needs |
//! | [`RxPath`] | `rx.rs` | the device's free buffers, the received batch |
//! | [`TxPath`] | `tx.rs` | scheduler, batch, bounce buffers, backlog, packets in flight |
//! | [`Notifier`] | `notifier.rs` | touched queue pairs, deferred notifications |
//! | [`EngineWait`] | `wait.rs` | wait strategy, epoll set, sleep flag |
//! | [`CommandPort`] | `commands.rs` | the channels to the control thread |
//!
//! Every loop has a budget. The engine itself does not allocate, lock, log or make a system call
//! per packet; only the driver may.

pub(crate) mod apertures;
mod closing;
pub(crate) mod coalescing;
pub(crate) mod commands;
#[allow(unsafe_code)]
mod copy;
mod deadlines;
mod delivery;
pub(crate) mod demux;
mod device_counters;
mod draining;
mod execute;
pub(crate) mod forbidden;
pub(crate) mod freed;
pub(crate) mod last_sent;
mod memories;
mod meter;
pub(crate) mod neighbours;
mod notifier;
pub(crate) mod oob;
pub(crate) mod own;
mod port;
pub(crate) mod relays;
pub(crate) mod remote;
mod rx;
mod schedule;
pub(crate) mod session;
mod sessions;
pub(crate) mod solo;
mod source;
#[cfg(test)]
pub(crate) mod testing;
mod tx;
mod untagged;
mod wait;
mod waiter;
pub(crate) mod watchdog;
pub(crate) mod wiring;
mod work;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use towpath_device::{Device, DeviceError};
use towpath_memory::{Mapping, Region};
use towpath_protocol::counters::Device as Count;
use towpath_protocol::settings::{Setting, Values};
use towpath_waiting::{Found, Next, Step};

use apertures::ApertureTable;
use closing::ClosingSessions;
use commands::{Command, CommandPort, EngineReport};
use delivery::Delivery;
use demux::{FlowCache, FlowTable};
use device_counters::DeviceCounters;
use draining::DrainingSessions;
use memories::TransmitMemories;
use notifier::Notifier;
use oob::{OobTable, Parts};
use own::{Checked, HeaderMemory};
use port::DevicePort;
use relays::Relays;
use remote::table::RemoteTable;
use remote::{Inbox, Way};
use rx::RxPath;
use rx::own::OwnRx;
use sessions::SessionTable;
use source::SoftwareOffloads;
use tx::{MAX_EXPEDITED, TxContext, TxPath};
use wait::{EngineWait, Leftovers, WaitContext, Woken};
use watchdog::Verdict;

use crate::clock::clock_ns;
use crate::position::{Phase, Position};

pub(crate) use wait::wake_data;
pub use waiter::WaitStrategy;

/// Limits of one poll iteration; see [`crate::Config`].
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Packets that the engine takes from the device per poll iteration.
    pub batch: usize,
    /// Packets, and segments of large ones, that an endpoint may receive per poll iteration.
    pub receive_budget: u32,
    /// Packets that the engine takes per poll iteration for each queue pair in line. A packet that
    /// the engine copies or segments counts once per copy or segment.
    pub transmit_budget: usize,
    /// Packets that the engine takes from all queue pairs per poll iteration, counted the same way.
    pub iteration_budget: usize,
}

/// The channels between an engine and its control thread.
#[derive(Debug)]
pub struct Link {
    /// The number of the device's queue that the engine serves.
    pub lane: usize,
    /// Commands, each with a ticket. The control thread writes `wake` after sending one.
    pub commands: Receiver<(u64, Command)>,
    /// Replies and reports. The engine writes `control_wake` after sending one.
    pub events: Sender<EngineReport>,
    /// Wakes the engine.
    pub wake: Arc<OwnedFd>,
    /// Wakes the control thread.
    pub control_wake: Arc<OwnedFd>,
    /// Asks workers to notify applications.
    pub relays: Relays,
    /// `true` if a next server can resume the sessions when this engine fails.
    pub has_successor: bool,
    /// Where the engine records its position.
    pub position: Position,
    /// The memory for what the next server needs of connections with other hosts, if endpoints may
    /// have some, by RoCEv2.
    pub rdma: Option<Region>,
}

/// The longest time in which an engine finishes what it has begun before it leaves, in nanoseconds:
/// within the pause that an upgrade may take.
const FINISH_NS: u64 = 20_000_000;

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
    /// For the control thread.
    headers: Option<HeaderMemory>,
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
        link: Link,
    ) -> Result<Engine, DeviceError> {
        let Budgets { batch, receive_budget, transmit_budget, iteration_budget } = budgets;
        let (port, mut memory) =
            DevicePort::start(device, link.lane, batch, link.rdma.is_some(), values)?;
        let headers = memory.headers.take();
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
            commands: CommandPort::new(link.commands, link.events, link.control_wake),
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
            headers,
        })
    }

    /// Returns the device's name, and the memory of its packets.
    pub(crate) fn packet_memory(&self) -> (&str, &Mapping) {
        (self.port.name(), self.port.memory())
    }

    /// Sets the device's name in the log.
    pub(crate) fn set_device_name(&mut self, name: &str) {
        self.port.set_name(name);
    }

    /// Returns `true` if the engine goes on with the memory of an earlier server's packets.
    pub(crate) fn goes_on(&self) -> bool {
        self.port.goes_on()
    }

    /// Takes the bounce buffers as a part of the memory of sessions' own queues; `None` for a
    /// device without such queues.
    pub(crate) fn take_headers(&mut self) -> Option<HeaderMemory> {
        self.headers.take()
    }

    /// Returns the epoll set in which the workers enter each session's `Session::wake`, with
    /// [`wake_data`].
    #[must_use]
    pub fn epoll(&self) -> &OwnedFd {
        self.wait.epoll()
    }

    /// Returns the file of the device's memory, if a keeper can hold it.
    pub(crate) fn memory_file(&self) -> Option<BorrowedFd<'_>> {
        self.port.memory_file()
    }

    /// Makes packets take the path for captures and promiscuous endpoints although there are none.
    /// Measurements use this to show how much the separate path saves.
    pub fn assume_captures(&mut self, assumed: bool) {
        self.flows.assume_captures(assumed);
    }

    /// Runs until the control thread stops the engine or the device fails. Then closes every
    /// session, or leaves all to the next server.
    pub fn run(mut self) {
        self.sessions.position.start();
        self.sessions.position.begin(Phase::Commands);
        self.wait.begin(&self.values, &self.port);
        // The engine first executes the commands that came before the start, such as those that add
        // resumed sessions.
        while self.execute_commands() > 0 {}
        self.remote.set_time(clock_ns());
        self.oob_parts().restore_remote();
        self.oob_parts().restore();
        let outcome = loop {
            let work = match self.poll_once() {
                Ok(_) if self.stop => break Ok(()),
                Ok(work) => work,
                Err(error) => break Err(error),
            };
            if work > 0 {
                self.counters.add(Count::BusyIterations, 1);
            }
            if let Err(error) = self.pause(work) {
                break Err(error);
            }
        };
        let outcome = outcome.and_then(|()| if self.leaves { self.finish() } else { Ok(()) });
        let fails = outcome.as_ref().is_err_and(|error| !error.is_gone());
        let leaves = self.leaves || self.has_successor && fails;
        let Engine { port, mut sessions, commands, .. } = self;
        let mut position = std::mem::take(&mut sessions.position);
        // The device stops before the control thread unmaps the memory that it reads.
        drop(port);
        for mut session in sessions.take_all().filter(|_| !leaves) {
            if let Some(doorbell) = session.close(0) {
                commands.tell(EngineReport::Closed { session: session.number, doorbell });
            }
            commands.tell(EngineReport::Removed(session));
        }
        position.begin(Phase::None);
        commands.tell(EngineReport::Ended(outcome));
    }

    /// Delivers the packets that the engine has taken from the device, and collects the completions
    /// of those that the device has sent. The next server sends what is left.
    fn finish(&mut self) -> Result<(), DeviceError> {
        let until = clock_ns() + FINISH_NS;
        loop {
            let received = if self.rx.has_left() { self.receive()? } else { 0 };
            let completed = self.complete()?;
            self.notifier.publish(&mut self.sessions, &mut self.counters);
            self.notifier.notify_deferred(&mut self.sessions, &mut self.counters);
            let is_over = !self.rx.has_left() && self.port.in_flight() == 0;
            if received + completed == 0 && is_over || clock_ns() >= until {
                if !self.rx.has_left() {
                    // The device learns that the engine has handled all packets.
                    self.port.fill(&[]);
                }
                return Ok(());
            }
            if received + completed == 0 {
                rustix::thread::sched_yield();
            }
        }
    }

    /// Runs one poll iteration and returns the amount of work done.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub fn poll_once(&mut self) -> Result<usize, DeviceError> {
        self.iteration += 1;
        self.sessions.position.iterate(self.iteration);
        if self.remote.is_on() {
            // For all that commands, requests and packets do with connections in this iteration.
            self.remote.set_time(self.wait.take_time());
        }
        self.sessions.position.begin(Phase::Commands);
        let ticks = self.wait.ticks();
        self.tx.count_ticks(ticks);
        let mut work = self.execute_commands();
        self.sessions.position.begin(Phase::Receive);
        self.sessions.meter.begin(self.iteration);
        let began = self.sessions.meter.now();
        let received = self.receive()?;
        self.sessions.meter.received(began);
        self.sessions.position.begin(Phase::Transmit);
        if self.flows.freed_mut().has_pending() {
            self.answer_for_ended()?;
        }
        let sent = self.transmit()? + self.serve_other_hosts()?;
        self.found = Found { packets: received + sent, received, work: 0 };
        work += received + sent;
        work += self.complete()?;
        self.sessions.position.begin(Phase::Rest);
        work += self.look_after_device()?;
        self.notifier.publish(&mut self.sessions, &mut self.counters);
        self.notifier.notify_deferred(&mut self.sessions, &mut self.counters);
        work += self.close_condemned();
        if !self.draining.is_empty() {
            work += self.go_on_draining(work > 0);
        }
        work += self.go_on_closing();
        if self.apertures.has_ending() {
            work += self.apertures.remove_ended(&mut self.sessions);
        }
        work += usize::from(self.has_commands_left());
        self.sessions.iteration_over(work);
        if work > 0 {
            self.counters.beat(self.iteration);
        }
        // An engine that never sleeps publishes the driver's own counters periodically, and more often after its
        // start: the new server then counts the packets that a kill lost, and another kill would lose these counts.
        if self.iteration.is_multiple_of(4096) || self.iteration.is_power_of_two() {
            self.publish_counts();
        }
        Ok(work)
    }

    /// Takes a batch from the device and delivers it.
    fn receive(&mut self) -> Result<usize, DeviceError> {
        let mut delivery = Delivery::new(
            &mut self.sessions,
            &mut self.notifier,
            &mut self.software,
            self.receive_budget,
            self.iteration,
        );
        let (port, flows, counters) = (&mut self.port, &mut self.flows, &mut self.counters);
        let inbox = &mut self.inbox;
        let received = self.rx.poll(port, flows, &mut delivery, inbox, counters)?;
        if port.own().0.is_empty() {
            return Ok(received);
        }
        Ok(received + self.own_rx.poll(port, flows, &mut delivery, counters)?)
    }

    /// Takes packets from the sessions, and delivers them or hands them to the device.
    fn transmit(&mut self) -> Result<usize, DeviceError> {
        if self.sessions.must_ask() {
            self.ask()?;
        }
        self.tx.discover(&mut self.port, &mut self.sessions)?;
        while let Some((session, number)) = self.sessions.take_tripped() {
            let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
            self.apertures.trip(session, number, sessions, notifier);
        }
        let delivery = Delivery::new(
            &mut self.sessions,
            &mut self.notifier,
            &mut self.software,
            self.receive_budget,
            self.iteration,
        );
        let outcome = self.tx.transmit(&mut TxContext {
            port: &mut self.port,
            memories: &self.memories,
            flows: &mut self.flows,
            oob: &self.oob,
            apertures: &mut self.apertures,
            remote: &mut self.remote,
            delivery,
            counters: &mut self.counters,
        });
        for request in self.tx.take_neighbour_requests() {
            self.commands.tell(EngineReport::NeighbourWanted(request));
        }
        outcome
    }

    /// Sends the answers to packets for the addresses of freed leases. Reports the leases with addresses that other
    /// hosts have claimed.
    #[cold]
    fn answer_for_ended(&mut self) -> Result<(), DeviceError> {
        let (now, freed) = (clock_ns(), self.flows.freed_mut());
        while let Some(mac) = freed.take_claimed() {
            self.commands.tell(EngineReport::FreedClaimed { mac });
        }
        let way = &mut tx::own_packets::OwnPackets { tx: &mut self.tx, port: &mut self.port };
        while let Some(answer) = freed.next_answer(now) {
            // The peer of an answer without room repeats its packet.
            if way.has_room() {
                way.send(answer.frame())?;
                self.counters.add(Count::FreedAnswers, 1);
            }
        }
        Ok(())
    }

    /// Receives and sends packets of connections with other hosts.
    fn serve_other_hosts(&mut self) -> Result<usize, DeviceError> {
        if !self.remote.is_on() || self.inbox.is_empty() && self.remote.is_idle() {
            return Ok(0);
        }
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let (apertures, remote) = (&mut self.apertures, &mut self.remote);
        let parts = &mut Parts { sessions, notifier, apertures, remote };
        let way = &mut tx::own_packets::OwnPackets { tx: &mut self.tx, port: &mut self.port };
        remote::poll(&mut self.inbox, &self.oob, parts, way, &mut self.counters)
    }

    /// Gives the device what waits for it, and collects its completions.
    fn complete(&mut self) -> Result<usize, DeviceError> {
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        self.tx.complete(&mut self.port, sessions, notifier, &mut self.counters)
    }

    /// Checks whether the device completes packets, and resets a stalled one. Returns the amount of
    /// work done.
    #[inline]
    fn look_after_device(&mut self) -> Result<usize, DeviceError> {
        if !self.port.own().0.is_empty() {
            let reset = self.look_after_own_queues()?;
            if reset > 0 {
                return Ok(reset);
            }
        }
        match self.port.check(self.sessions.has_ending()) {
            Verdict::Fine => Ok(0),
            Verdict::Stalled { new } => {
                if new {
                    let packets = self.port.in_flight();
                    self.commands.tell(EngineReport::Stalled { packets });
                }
                self.reset_device()
            }
            Verdict::Recovered { resets } => {
                self.commands.tell(EngineReport::Recovered { resets });
                Ok(0)
            }
        }
    }

    /// Checks whether sessions' own queues complete packets. Returns the number of queues that were
    /// reset: these have packets to send again, and no buffers to receive into.
    fn look_after_own_queues(&mut self) -> Result<usize, DeviceError> {
        let sessions = &self.sessions;
        let ends = |key| sessions.get(key).is_some_and(|session| session.closing);
        let Checked { returned, broken } = self.port.check_own(ends)?;
        let count = returned.len();
        rx::own::take_back(returned, &mut self.sessions);
        for key in broken {
            let Some(session) = self.sessions.get(key) else { continue };
            if let Some(own) = session.own.place()
                && let Some(fd) = self.port.own_sleep_fd(own.number)
            {
                // Nothing takes its events any more.
                self.wait.forget_own(fd);
            }
            self.commands.tell(EngineReport::OwnQueueBroke { session: session.number });
        }
        Ok(count)
    }

    /// Resets the device, and sends the packets that it kept once more.
    #[cold]
    fn reset_device(&mut self) -> Result<usize, DeviceError> {
        let (mut buffers, mut completions) = (Vec::new(), Vec::new());
        self.port.reset(&mut buffers, &mut completions)?;
        self.rx.take_back(&self.port, &buffers);
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let kept = self.tx.land_all(&completions, sessions, notifier, &mut self.counters);
        self.publish_counts();
        Ok(kept)
    }

    /// Continues, spins or sleeps after a poll iteration that did `work`, as the strategy says.
    fn pause(&mut self, work: usize) -> Result<(), DeviceError> {
        self.sessions.position.begin(Phase::Pause);
        // Taken events count as work, even if they led to no packet.
        let events = self.sessions.has_left();
        let found = Found { work: work.max(usize::from(events)), ..self.found };
        let next = self.wait.after(found, self.is_drained());
        if matches!(next, Next::Take(Step::Poll)) {
            return Ok(());
        }
        if !matches!(next, Next::Take(Step::Spin { .. })) {
            self.publish_counts();
        }
        let left = self.leftovers();
        let (port, sessions) = (&mut self.port, &mut self.sessions);
        let context = &mut WaitContext { port, sessions, counters: &mut self.counters };
        let mut woken = self.wait.sleep(next, &left, context)?;
        while woken != Woken::Poll && !self.stop {
            if woken == Woken::Commands {
                if self.remote.is_on() {
                    self.remote.set_time(clock_ns());
                }
                self.execute_commands();
                if self.stop {
                    break;
                }
                self.wait.executed();
            }
            let commands = self.commands.has_left() || self.tx.is_hurrying();
            let (port, sessions) = (&mut self.port, &mut self.sessions);
            let context = &mut WaitContext { port, sessions, counters: &mut self.counters };
            woken = self.wait.go_on(commands, context)?;
        }
        self.note_commands();
        Ok(())
    }

    /// Asks for notifications without a sleep.
    fn ask(&mut self) -> Result<(), DeviceError> {
        let (port, sessions) = (&mut self.port, &mut self.sessions);
        self.wait.ask(&mut WaitContext { port, sessions, counters: &mut self.counters })?;
        self.note_commands();
        Ok(())
    }

    /// Returns `true` if a sleep may begin.
    #[cfg(test)]
    fn is_idle(&mut self) -> bool {
        !self.has_commands_left() && !self.rx.has_left() && self.sessions.is_idle()
    }

    fn note_commands(&mut self) {
        if self.wait.take_commands() {
            self.commands.arrived();
        }
    }

    /// Returns `true` if the poll iteration left nothing behind that another one could take up at
    /// once. A batch that was not full took every packet there was.
    fn is_drained(&self) -> bool {
        !self.rx.was_full()
            && !self.rx.has_left()
            && !self.own_rx.was_full()
            && !self.own_rx.has_left()
            && !self.sessions.has_left()
            && !self.has_commands_left()
            && !self.tx.can_transmit(&self.port)
            && !(self.remote.has_work() && self.tx.has_room(&self.port))
    }

    /// Returns what the poll iteration left behind.
    fn leftovers(&self) -> Leftovers {
        let watchdog = self.port.next_due(self.sessions.has_ending());
        let own = self.own_rx.next_due();
        let remote = self.remote.next_due();
        let draining = self.draining.next_due();
        let due = [self.notifier.next_due(), self.tx.next_due(), watchdog, own, remote, draining];
        Leftovers {
            commands: self.has_commands_left(),
            received: self.rx.has_left() || self.own_rx.has_left(),
            to_send: self.tx.can_transmit(&self.port)
                || self.remote.has_work() && self.tx.has_room(&self.port),
            tick: self.tx.waits_for_tick(),
            for_room: self.tx.waits_for_room() || self.remote.has_work() && self.tx.is_link_up(),
            due: due.into_iter().flatten().min(),
        }
    }

    /// Publishes the counts of other parts in the state page: before each sleep, and periodically.
    fn publish_counts(&mut self) {
        let (driver, device) = (self.port.driver_counters(), self.port.counts());
        let (handed, waited) = (self.tx.handoff_counts(), self.wait.counts());
        let (flows, classes, cached) = self.flows.summary();
        let (sessions, dog) = (self.sessions.counts(), self.port.watchdog_counts());
        for (count, value) in [
            (Count::RxDriver, driver.rx_dropped),
            (Count::TxDriver, driver.tx_dropped),
            (Count::DriverCalls, driver.system_calls),
            (Count::RxSoftwareOffloads, self.software.packets),
            (Count::TxPackets, device.taken),
            (Count::TxBytes, device.taken_bytes),
            (Count::Backlogged, handed.backlogged),
            (Count::TxDirect, handed.direct),
            (Count::TxQueued, handed.queued),
            (Count::TxDrained, handed.drained),
            (Count::TxFull, handed.full),
            (Count::TxExpedited, handed.expedited),
            (Count::SessionPolls, sessions.polls),
            (Count::SessionsParked, sessions.parks),
            (Count::DoorbellPolls, sessions.asked),
            (Count::Ticks, waited.ticks),
            (Count::TicksMissed, waited.missed),
            (Count::TicksLateNs, waited.late_ns),
            (Count::TickLatestNs, waited.latest_ns),
            (Count::WaitSwitches, waited.switches),
            (Count::LatePackets, waited.late_packets),
            (Count::SpinsPreempted, waited.preempted),
            (Count::Throttled, waited.throttled),
            (Count::TicksAwake, waited.awake),
            (Count::FlowLookups, flows.lookups),
            (Count::FlowCompared, flows.compared),
            (Count::FlowHits, flows.hits),
            (Count::FlowSwitches, flows.switches),
            (Count::FlowClasses, classes),
            (Count::FlowCacheClasses, cached),
            (Count::WatchdogArms, dog.arms),
            (Count::WatchdogStops, dog.stops),
            (Count::WatchdogChecks, dog.checks),
            (Count::DeviceStalls, dog.stalls),
            (Count::DeviceResets, dog.resets),
        ] {
            self.counters.set(count, value);
        }
    }
}
