//! Tests of the receive path.

use towpath_device::conformance::{DeviceFarEnd, FarEnd};
use towpath_device::loopback;
use towpath_memory::Region;
use towpath_protocol::layout::STATE_WORDS;

use super::*;
use crate::engine::demux::FlowCache;
use crate::engine::notifier::Notifier;
use crate::engine::relays::Relays;
use crate::engine::sessions::SessionTable;
use crate::engine::source::SegmentPieces;
use crate::engine::testing::{self, Application, PORT, inward};

struct World {
    port: DevicePort,
    far: DeviceFarEnd,
    flows: FlowTable,
    sessions: SessionTable,
    notifier: Notifier,
    counters: DeviceCounters,
    rx: RxPath,
    application: Application,
}

const BATCH: usize = 4;

impl World {
    fn new() -> World {
        let (mut near, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let values = Values::default();
        let (port, _) = DevicePort::start(&mut near, BATCH, &values).unwrap();
        let (mut session, application) = testing::session(1);
        session.put_in(0, Box::new(testing::endpoint(PORT)));
        let mut sessions = SessionTable::default();
        let key = sessions.reserve();
        sessions.insert(key, session);
        let mut flows = FlowTable::new(1, FlowCache::of(0));
        let destination = Destination { session: key, endpoint: 0 };
        assert!(flows.insert(&testing::rule(PORT), false, destination));
        let mut notifier = Notifier::new(&values, Relays::none().unwrap(), 8);
        notifier.reserve(sessions.keys());
        let state = Region::private(STATE_WORDS * 8).unwrap();
        World {
            rx: RxPath::new(&port, BATCH, &values),
            port,
            far: DeviceFarEnd::new(Box::new(far)),
            flows,
            sessions,
            notifier,
            counters: DeviceCounters::new(state, 1).0,
            application,
        }
    }

    /// Polls once. An endpoint may receive `budget` packets.
    fn poll(&mut self, budget: u32, iteration: u64) -> usize {
        let mut segment = SegmentPieces::new();
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let mut delivery = Delivery::new(sessions, notifier, &mut segment, budget, iteration);
        let (port, flows) = (&mut self.port, &mut self.flows);
        let polled = self.rx.poll(port, flows, &mut delivery, &mut self.counters).unwrap();
        self.notifier.publish(&mut self.sessions, &mut self.counters);
        polled
    }

    fn send(&mut self, port: u16, packets: usize) {
        let packet = inward(port).udp(&[7; 22]);
        (0..packets).for_each(|_| assert!(self.far.send(&packet, Meta::FULL)));
    }
}

#[test]
fn a_batch_is_delivered_by_the_flow_rules() {
    let mut world = World::new();
    world.send(PORT, 3);
    world.send(PORT + 1, 2);
    assert_eq!((world.poll(8, 1), world.rx.was_full(), world.rx.has_left()), (4, true, false));
    assert_eq!((world.poll(8, 2), world.rx.was_full()), (1, false));
    assert_eq!(world.application.received(), 3);
    assert_eq!(world.counters.get(Count::RxPackets), 5);
    assert_eq!(world.counters.get(Count::RxNoMatch), 2);
}

#[test]
fn an_endpoint_gets_no_more_than_its_budget_per_iteration() {
    let mut world = World::new();
    for iteration in 1..=2 {
        world.send(PORT, 3);
        assert_eq!(world.poll(2, iteration), 3);
        assert_eq!(world.application.received(), 2);
    }
}

#[test]
fn a_session_that_violated_the_protocol_receives_nothing() {
    let mut world = World::new();
    world.sessions.condemn(0, towpath_queue::Violation::Index);
    world.send(PORT, 2);
    assert_eq!((world.poll(8, 1), world.application.received()), (2, 0));
}

#[test]
fn buffers_go_round() {
    let mut world = World::new();
    let packets = world.port.pool_buffers() as usize + 1;
    for iteration in 0..packets {
        world.send(PORT + 1, 1);
        assert_eq!(world.poll(8, iteration as u64), 1, "packet {iteration}");
    }
}
