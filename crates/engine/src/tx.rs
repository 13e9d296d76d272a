//! The transmit path, from the applications to the device and to each other. The engine serves the
//! queue pairs that have something to send, in the scheduler's order and within budgets.
//!
//! | stage | file | does |
//! |---|---|---|
//! | transmit | `turn.rs` | serves the queue pairs in the scheduler's order, within budgets |
//! | turn | `turn.rs` | serves one queue pair, a batch after the other |
//! | take | `take.rs` | takes descriptors out of a queue, a [`Batch`] at a time |
//! | fetch | `take.rs` | fetches headers into bounce buffers, and reads those of plain packets |
//! | local | `local.rs` | delivers most packets of this host: plain ones |
//! | out-of-band | `oob.rs` | delivers messages that are no packets |
//! | check | `check.rs` | checks one packet by its headers |
//! | tag | `tag.rs` | inserts the VLAN tag of an endpoint within a VLAN |
//! | route | `route.rs` | delivers it, or sends it towards the device |
//! | segment | `segments.rs` | segments a large packet, where the device does not |
//! | hand off | `handoff.rs` | gives packets to the device; the backlog |
//! | engine's packets | `engine_packets.rs` | sends the packets that the engine makes itself |
//! | complete | `complete.rs` | returns the buffers of packets that the device completed |

pub(crate) mod batch;
pub(crate) mod bounce;
pub(crate) mod check;
mod complete;
mod context;
pub(crate) mod engine_packets;
pub(crate) mod handoff;
mod in_flight;
mod local;
mod oob;
mod outcome;
mod outgoing;
mod requests;
mod route;
mod segments;
mod settings;
mod tag;
mod take;
mod turn;

use std::collections::VecDeque;

use towpath_device::{Completion, DeviceError};
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::Violation;
use towpath_queue::descriptor::{EXPEDITED, MAX_CHAIN};

use crate::clock::clock_ns;
use crate::closing::CLOSED_PER_ITERATION;
use crate::demux::Destination;
use crate::neighbours::{NeighbourRequest, REQUESTS_PER_ITERATION};
use crate::port::{BOUNCE_SLOTS, BounceMemory, DevicePort};
use crate::schedule::shape::Class;
use crate::schedule::{self, Due, Schedule};
use crate::session::Session;
use crate::sessions::SessionTable;
use crate::source::Piece;
use crate::tx::batch::{BATCH, Batch};
use crate::tx::bounce::BounceBuffers;
use crate::tx::handoff::{EXPEDITED_SLOTS, Handoff, HandoffMode, LinkDown};
use crate::tx::in_flight::InFlightTable;
use crate::work::Spent;

/// Upper limit of expedited packets per poll iteration, whatever the value of the setting
/// `expedited`. Expedited packets precede all others, and must not starve them.
pub(crate) const MAX_EXPEDITED: usize = 32;

pub(crate) use context::TxContext;

/// The transmit path's scheduler, buffers and tables.
pub(crate) struct TxPath {
    schedule: Schedule,
    batch: Option<Box<Batch>>,
    bounce: BounceBuffers,
    handoff: Handoff,
    in_flight: InFlightTable,
    /// Packets that the engine takes per poll iteration for each queue pair in line, and from all.
    transmit_budget: usize,
    iteration_budget: usize,
    /// Expedited packets that precede others per poll iteration.
    expedited_share: usize,
    /// Endpoints whose settings need the clock; without any, the engine does not read the clock to
    /// send.
    timed: usize,
    /// The monotonic clock's last reading, in nanoseconds.
    now: u64,
    /// The count of ticks for quotas: those of the clock, or poll iterations without a clock.
    tick: u64,
    /// The time at which the last unfinished request continues, in nanoseconds; `None`: in the unit's next turn.
    continues_at: Option<u64>,
    /// The cost of the current batch beyond its own bytes.
    spent: Spent,
    /// Bytes that this poll iteration may still send, weighted by their cost.
    iteration_bytes: i64,
    /// The pieces and the receivers of the current packet.
    pieces: Vec<Piece>,
    found: Vec<Destination>,
    /// Requests for link addresses that the control thread does not have yet.
    neighbour_requests: Vec<NeighbourRequest>,
    completions: Vec<Completion>,
    /// Sessions whose queue pairs the engine must check again, because settings changed.
    to_recheck: VecDeque<u32>,
    /// Sessions under removal that have nothing in flight any more.
    closing_done: Vec<u32>,
}

impl TxPath {
    /// Creates the path, with the memory of the bounce buffers.
    pub(crate) fn new(
        memory: BounceMemory,
        transmit_budget: usize,
        iteration_budget: usize,
        values: &Values,
    ) -> TxPath {
        let expedited_share = values.get(Setting::Expedited) as usize;
        let mode = HandoffMode::of(values.get(Setting::Handoff));
        let link_down = LinkDown::of(values.get(Setting::LinkDown));
        let policy = schedule::policy(values.get(Setting::Scheduler), transmit_budget);
        TxPath {
            schedule: Schedule::new(policy),
            batch: None,
            in_flight: InFlightTable::new(memory.slots),
            completions: Vec::with_capacity(memory.slots as usize),
            bounce: BounceBuffers::new(memory),
            handoff: Handoff::new(mode, link_down, expedited_share),
            transmit_budget,
            iteration_budget,
            expedited_share,
            timed: 0,
            now: clock_ns(),
            tick: 0,
            continues_at: None,
            spent: Spent::default(),
            iteration_bytes: 0,
            pieces: Vec::with_capacity(MAX_CHAIN + 1),
            found: Vec::with_capacity(64),
            neighbour_requests: Vec::with_capacity(REQUESTS_PER_ITERATION),
            to_recheck: VecDeque::new(),
            closing_done: Vec::new(),
        }
    }

    /// Enters a session's queue pairs into the scheduler.
    pub(crate) fn add(&mut self, key: u32, session: &mut Session) {
        for (number, queue) in session.transmit.queues().enumerate() {
            queue.unit = self.schedule.add(key, number as u32);
        }
    }

    /// Removes a queue pair of an ending session from the scheduler.
    pub(crate) fn remove_unit(&mut self, unit: u32) {
        self.schedule.remove([unit]);
    }

    /// Records ticks of the clock, or a poll iteration without a clock.
    pub(crate) fn count_ticks(&mut self, ticks: u64) {
        self.tick += ticks;
    }

    /// Returns the scheduler.
    #[cfg(test)]
    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Returns the scheduler.
    #[cfg(test)]
    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }

    /// Records that the device's link came up or went down.
    pub(crate) fn set_link(&mut self, up: bool) {
        self.handoff.set_link(up);
    }

    /// Takes the requests for link addresses that applications have sent.
    pub(crate) fn take_neighbour_requests(&mut self) -> impl Iterator<Item = NeighbourRequest> {
        self.neighbour_requests.drain(..)
    }

    /// Returns the hand-off's counts.
    pub(crate) fn handoff_counts(&self) -> handoff::Counts {
        self.handoff.counts
    }

    /// Returns the time at which the next packet may be sent, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.schedule.next_due()
    }

    /// Returns `true` if a queue pair waits for a tick.
    pub(crate) fn waits_for_tick(&self) -> bool {
        self.schedule.next_tick().is_some()
    }

    /// `true` if the device's link is up.
    pub(crate) fn is_link_up(&self) -> bool {
        self.handoff.is_link_up()
    }

    /// Returns `true` if packets that the engine has taken wait for the device.
    pub(crate) fn waits_for_device(&self) -> bool {
        self.handoff.is_waiting()
    }

    /// Returns `true` if packets wait for room in the device.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.handoff.is_link_up() && (self.handoff.is_waiting() || self.schedule.blocked() > 0)
    }

    /// Begins a poll iteration: finds the queue pairs with something to send.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn discover(
        &mut self,
        port: &mut DevicePort,
        sessions: &mut SessionTable,
    ) -> Result<(), DeviceError> {
        if self.timed > 0 || self.schedule.next_due().is_some() {
            self.now = clock_ns();
        }
        let mut gone = 0;
        while gone < CLOSED_PER_ITERATION
            && let Some(Due { unit, key, queue_pair }) = self.schedule.due(self.now, self.tick)
        {
            gone += usize::from(!self.activate_unit(unit, key, queue_pair, sessions));
        }
        sessions.discover(|_, session, queue_pair| self.found_news(session, queue_pair));
        if self.handoff.is_waiting() {
            self.handoff.flush(&self.bounce, port)?;
        }
        Ok(())
    }

    /// Returns `true` if a packet may be sent towards the device.
    #[inline]
    pub(crate) fn has_room(&self, port: &DevicePort) -> bool {
        self.handoff.has_room(1) && self.has_slots(1 + EXPEDITED_SLOTS, port)
    }

    /// Returns `true` if an expedited packet may be sent towards the device.
    #[inline]
    fn has_expedited_room(&self, port: &DevicePort) -> bool {
        self.handoff.has_expedited_room() && self.has_slots(1, port)
    }

    /// Returns `true` if packets in the backlog and in flight may take `slots` more bounce buffers.
    /// One batch's worth of slots stays reserved for packets under check, which may be for this
    /// host. There are as many in-flight entries as slots, and each entry has at least one slot.
    #[inline]
    fn has_slots(&self, slots: usize, port: &DevicePort) -> bool {
        let taken = self.handoff.held() + port.in_flight() as usize;
        taken + slots <= BOUNCE_SLOTS as usize - BATCH
    }

    /// Returns `true` if the engine has something to send that need not wait.
    pub(crate) fn can_transmit(&self, port: &DevicePort) -> bool {
        self.schedule.ready(self.has_room(port)) > 0
            || self.schedule.expedited(self.has_expedited_room(port)) > 0
    }

    /// Handles the news of a queue pair that its session named.
    ///
    /// # Errors
    /// The violation that the queue pair's indexes show.
    pub(crate) fn found_news(
        &mut self,
        session: &mut Session,
        queue_pair: u32,
    ) -> Result<(), Violation> {
        let queue = session.transmit.queue(queue_pair);
        let unit = queue.unit;
        if !self.schedule.is_active(unit) {
            return self.activate(unit, session, queue_pair);
        }
        queue.observe_arrivals(self.now);
        Ok(())
    }

    /// Puts a queue pair that stands in no line into the line of its next packet. Returns `false` if its session ends.
    fn activate_unit(
        &mut self,
        unit: u32,
        key: u32,
        queue_pair: u32,
        sessions: &mut SessionTable,
    ) -> bool {
        let Some(session) = sessions.get_mut(key).filter(|session| !session.is_closing()) else {
            self.schedule.idle(unit);
            return false;
        };
        if let Err(violation) = self.activate(unit, session, queue_pair) {
            sessions.condemn(key, violation);
        }
        true
    }

    /// Puts a queue pair that stands in no line into the line of its next packet.
    fn activate(
        &mut self,
        unit: u32,
        session: &mut Session,
        queue_pair: u32,
    ) -> Result<(), Violation> {
        if session.is_closing() {
            return Ok(());
        }
        let queue = session.transmit.queue(queue_pair);
        // The client writes this hint. The engine detects a false one when it takes the packet.
        let Some((endpoint, flags)) = queue.consumer.peek()? else {
            self.schedule.idle(unit);
            return Ok(());
        };
        queue.note_arrivals(self.now);
        let is_shaped = queue.is_shaped();
        let class = if is_shaped { session.transmit.class(endpoint) } else { Class::default() };
        let expedited = flags & EXPEDITED != 0 && self.expedited_share > 0;
        self.schedule.enter(unit, class, expedited, self.now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
    use towpath_device_testing::loopback;
    use towpath_memory::Region;
    use towpath_packet::build::Flow;
    use towpath_protocol::counters::{Device as Count, Endpoint as EndpointCount};
    use towpath_protocol::layout::STATE_WORDS;

    use super::*;
    use crate::apertures::ApertureTable;
    use crate::delivery::Delivery;
    use crate::demux::{FlowCache, FlowTable};
    use crate::device_counters::DeviceCounters;
    use crate::memories::TransmitMemories;
    use crate::notifier::Notifier;
    use crate::oob::OobTable;
    use crate::relays::Relays;
    use crate::remote::table::RemoteTable;
    use crate::source::SoftwareOffloads;
    use crate::testing::{self, Application, MAC, PORT, inward, outward};

    struct World {
        port: DevicePort,
        far: DeviceFarEnd,
        flows: FlowTable,
        sessions: SessionTable,
        memories: TransmitMemories,
        notifier: Notifier,
        counters: DeviceCounters,
        tx: TxPath,
        application: Application,
    }

    impl World {
        fn new() -> World {
            let (mut near, far) = loopback::pair(&loopback::Config::default()).unwrap();
            let values = Values::default();
            let (mut port, memory) = DevicePort::start(&mut near, 0, 64, false, &values).unwrap();
            let mut tx = TxPath::new(memory, 64, 512, &values);
            let (mut session, application) = testing::session(1);
            let (mut sessions, mut memories) =
                (SessionTable::default(), TransmitMemories::default());
            let mut flows = FlowTable::new(1, FlowCache::default());
            let key = sessions.reserve();
            session.put_in(0, Box::new(testing::endpoint(PORT)));
            port.add_space(key, &mut session);
            memories.insert(key, session.transmit.memory());
            tx.add(key, &mut session);
            sessions.insert(key, session);
            let destination = Destination { session: key, endpoint: 0 };
            assert!(flows.insert(&testing::rule(PORT), false, destination));
            let mut notifier = Notifier::new(&values, Relays::none().unwrap(), 64);
            notifier.reserve(sessions.keys());
            let state = Region::private(STATE_WORDS * 8).unwrap();
            let (counters, _) = DeviceCounters::new(state, 1);
            let far = DeviceFarEnd::new(Box::new(far));
            World { port, far, flows, sessions, memories, notifier, counters, tx, application }
        }

        /// Runs the transmit path once. Returns how many packets it took.
        fn transmit(&mut self) -> usize {
            self.tx.discover(&mut self.port, &mut self.sessions).unwrap();
            let mut software = SoftwareOffloads::new();
            let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
            let delivery = Delivery::new(sessions, notifier, &mut software, 1024, 1);
            let mut context = TxContext {
                port: &mut self.port,
                memories: &self.memories,
                flows: &mut self.flows,
                oob: &OobTable::default(),
                apertures: &mut ApertureTable::default(),
                remote: &mut RemoteTable::new(None, 0),
                delivery,
                counters: &mut self.counters,
            };
            let taken = self.tx.transmit(&mut context).unwrap();
            let (port, sessions) = (&mut self.port, &mut self.sessions);
            let notifier = &mut self.notifier;
            self.tx.complete(port, sessions, notifier, &mut self.counters).unwrap();
            self.notifier.publish(&mut self.sessions, &mut self.counters);
            taken
        }
    }

    #[test]
    fn a_packet_to_the_wire_is_completed_once_the_device_is_done() {
        let mut world = World::new();
        world.application.send(0, 0, &outward(PORT));
        assert_eq!(world.transmit(), 1);
        assert_eq!(world.far.receive().unwrap().0, outward(PORT));
        world.transmit();
        assert_eq!((world.application.completed(), world.application.received()), (1, 0));
    }

    #[test]
    fn a_packet_for_this_host_never_reaches_the_device() {
        let mut world = World::new();
        (0..3).for_each(|buffer| world.application.send(buffer, 0, &to_itself().udp(&[7; 22])));
        assert_eq!(world.transmit(), 3);
        assert_eq!((world.application.completed(), world.application.received()), (3, 3));
        assert_eq!(world.counters.get(Count::LocalPackets), 3);
        assert!(world.far.receive().is_none());
    }

    /// Returns a packet to the endpoint that sends it.
    fn to_itself() -> Flow {
        let own = inward(PORT).destination;
        Flow { source: own, ..inward(PORT) }.macs(MAC, MAC).ports(PORT, PORT)
    }

    #[test]
    fn packets_that_repeat_headers_follow_the_rules_of_the_moment() {
        let mut world = World::new();
        let packet = to_itself().udp(&[7; 22]);
        (0..3).for_each(|buffer| world.application.send(buffer, 0, &packet));
        assert_eq!((world.transmit(), world.application.received()), (3, 3));
        let destination = Destination { session: 0, endpoint: 0 };
        world.flows.remove(&testing::rule(PORT), destination);
        world.application.send(3, 0, &packet);
        assert_eq!((world.transmit(), world.application.received()), (1, 0));
        assert_eq!(world.far.receive().unwrap().0, packet, "no rule, so the device gets it");
    }

    #[test]
    fn a_packet_that_differs_from_its_predecessor_is_checked() {
        let mut world = World::new();
        let flow = to_itself();
        let packets = [flow, flow, flow.ports(PORT + 1, PORT), flow.macs([2; 6], MAC), flow];
        for (buffer, packet) in (0..).zip(packets) {
            world.application.send(buffer, 0, &packet.udp(&[7; 22]));
        }
        let mut short = flow.udp(&[7; 22]);
        // The length in the UDP header is longer than the packet.
        short[38] = 1;
        world.application.send(5, 0, &short);
        assert_eq!((world.transmit(), world.application.received()), (6, 3));
        let session = world.sessions.get(0).unwrap();
        let refused =
            [EndpointCount::TxOutsideRule, EndpointCount::TxSourceMac, EndpointCount::TxMalformed];
        for count in refused {
            assert_eq!(session.receive.endpoints.counted(0, count), 1, "{count:?}");
        }
        assert!(world.far.receive().is_none());
    }

    #[test]
    fn a_violation_condemns_the_sender_and_ends_its_turn() {
        let mut world = World::new();
        world.application.send(0, 9, &outward(PORT));
        world.application.send(1, 0, &outward(PORT));
        world.transmit();
        assert_eq!(world.sessions.take_condemned(), Some(0));
        assert_eq!(world.sessions.get(0).unwrap().violation(), Some(Violation::Endpoint));
        assert_eq!(world.transmit(), 0, "the engine serves the session no more");
        assert!(world.far.receive().is_none());
    }
}
