//! Tests of the receive path.

use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback::{self, Reception};
use towpath_memory::Region;
use towpath_packet::build::Tcp;
use towpath_packet::{FlowRule, FlowVlan};
use towpath_protocol::layout::STATE_WORDS;

use super::*;
use crate::demux::{Destination, FlowCache};
use crate::notifier::Notifier;
use crate::relays::Relays;
use crate::session::endpoints::Endpoint;
use crate::sessions::SessionTable;
use crate::source::SoftwareOffloads;
use crate::testing::{self, Application, PORT, inward};

struct World {
    port: DevicePort,
    far: DeviceFarEnd,
    flows: FlowTable,
    sessions: SessionTable,
    notifier: Notifier,
    counters: DeviceCounters,
    software: SoftwareOffloads,
    rx: RxPath,
    application: Application,
}

const BATCH: usize = 4;

impl World {
    fn new() -> World {
        World::on(&loopback::Config::default())
    }

    fn on(config: &loopback::Config) -> World {
        let (mut near, far) = loopback::pair(config).unwrap();
        let values = Values::default();
        let (port, _) = DevicePort::start(&mut near, 0, BATCH, false, &values).unwrap();
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
            software: SoftwareOffloads::new(),
            application,
        }
    }

    /// Opens an endpoint beside the first one.
    fn open(&mut self, number: u32, endpoint: Endpoint) {
        let (rule, captures) = (endpoint.rule, endpoint.captures);
        self.sessions.get_mut(0).unwrap().put_in(number, Box::new(endpoint));
        let destination = Destination { session: 0, endpoint: number };
        if captures {
            self.flows.add_capture(destination);
        } else {
            assert!(self.flows.insert(&rule, false, destination));
        }
    }

    /// Polls once. An endpoint may receive `budget` packets.
    fn poll(&mut self, budget: u32, iteration: u64) -> usize {
        let (sessions, notifier) = (&mut self.sessions, &mut self.notifier);
        let mut delivery = Delivery::new(sessions, notifier, &mut self.software, budget, iteration);
        let (port, flows) = (&mut self.port, &mut self.flows);
        let polled = self
            .rx
            .poll(port, flows, &mut delivery, &mut Inbox::default(), &mut self.counters)
            .unwrap();
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

/// Returns an endpoint for packets of a VLAN to [`PORT`].
fn tagged(number: u16) -> Endpoint {
    let rule = FlowRule { vlan: FlowVlan::Number(number), ..testing::rule(PORT) };
    Endpoint { rule, ..testing::endpoint(PORT) }
}

/// Returns packets to the endpoint without VLAN, to that of VLAN 7, and to neither.
fn of_all_kinds() -> Vec<(Vec<u8>, Meta)> {
    let flow = inward(PORT);
    let payload: Vec<u8> = (0..9000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut packets = Vec::new();
    // Another VLAN, and a priority alone.
    for flow in [flow, flow.vlan(7), flow.vlan(0xe007), flow.vlan(8), flow.vlan(0xe000)] {
        for len in [10, 100, 1400] {
            packets.push((flow.udp(&payload[..len]), Meta::FULL));
        }
        packets.push(flow.udp_partial(&payload[..700]));
        packets.push(flow.tcp_large(&Tcp::default(), &payload[..8000], 1000));
    }
    // A frame whose IP packet ends before the first buffer does.
    let mut padded = flow.udp(&payload[..10]);
    padded.resize(600, 0xee);
    packets.push((padded, Meta::FULL));
    packets
}

/// Returns what the application and the counters say of each packet.
fn outcomes(reception: Reception, offload: bool, captures: bool) -> Vec<String> {
    let mut world = World::on(&loopback::Config { reception, ..Default::default() });
    let mut tcp = testing::rule(PORT);
    tcp.protocol = Some(6);
    let tcp = Endpoint { rule: tcp, offload, ..testing::endpoint(PORT) };
    world.open(1, Endpoint { offload, ..tagged(7) });
    world.open(2, tcp);
    if captures {
        world.open(3, Endpoint { captures, offload, ..testing::endpoint(PORT) });
    }
    let packets = of_all_kinds().into_iter().zip(1..);
    packets
        .map(|((frame, meta), iteration)| {
            assert!(world.far.send(&frame, meta));
            assert_eq!(world.poll(64, iteration), 1);
            let got = world.application.packets();
            let count = |count| world.counters.get(count);
            let counts = [Count::RxPackets, Count::RxNoMatch, Count::RxMalformed].map(count);
            format!("{iteration}: {counts:?} {got:x?}")
        })
        .collect()
}

#[test]
fn tags_and_hashes_of_the_device_change_no_outcome() {
    let reception =
        Reception { removes_tags: true, verifies: true, hashes: true, ..Reception::default() };
    for (offload, captures) in [(false, false), (true, false), (false, true), (true, true)] {
        let expected = outcomes(Reception::default(), offload, captures);
        assert!(expected.iter().any(|outcome| outcome.contains("(1, ")), "VLAN 7");
        // Priority tags are removed.
        for (untagged, priority) in expected[..5].iter().zip(&expected[20..25]) {
            let got = |outcome: &str| outcome.split_once("] ").unwrap().1.to_owned();
            if !captures {
                assert_eq!(got(priority), got(untagged));
            }
        }
        for data_bytes in [None, Some(256), Some(300)] {
            let got = outcomes(Reception { data_bytes, ..reception }, offload, captures);
            for (got, expected) in got.iter().zip(&expected) {
                assert!(got == expected, "{data_bytes:?}, {offload}:\n{got}\n{expected}");
            }
            assert_eq!(got.len(), expected.len());
        }
    }
}

/// A promiscuous endpoint receives priority-tagged packets without the priority tag. Among them are packets that match
/// no rule, because of another address or a second tag.
#[test]
fn promiscuous_endpoints_receive_priority_tagged_packets() {
    for reception in
        [Reception::default(), Reception { removes_tags: true, ..Reception::default() }]
    {
        let mut world = World::on(&loopback::Config { reception, ..Default::default() });
        world.flows.add_promiscuous(Destination { session: 0, endpoint: 0 });
        let elsewhere = inward(PORT).macs([2, 0, 0, 0, 0, 66], [2, 0, 0, 0, 0, 77]);
        let mut twice = inward(PORT).vlan(7).udp(b"hello");
        let inside = twice.clone();
        twice.splice(12..12, [0x81, 0, 0xe0, 0]);
        let packets = [
            (inward(PORT).vlan(0xe000).udp(b"hello"), inward(PORT).udp(b"hello"), 2),
            (elsewhere.vlan(0).udp(b"hello"), elsewhere.udp(b"hello"), 1),
            (twice, inside, 1),
        ];
        for ((frame, expected, times), iteration) in packets.into_iter().zip(1..) {
            assert!(world.far.send(&frame, Meta::FULL));
            assert_eq!(world.poll(64, iteration), 1);
            assert_eq!(world.application.packets(), vec![(0, expected); times], "{iteration}");
        }
        assert_eq!(world.counters.get(Count::RxNoMatch), 0);
    }
}

#[test]
fn offloads_that_an_endpoint_does_not_take_are_counted() {
    for (port, offload, received, made) in [(PORT + 1, false, 5, 2), (PORT + 2, true, 3, 0)] {
        let mut world = World::new();
        for (number, protocol) in [(1, 17), (2, 6)] {
            let rule = FlowRule { protocol: Some(protocol), ..testing::rule(port) };
            world.open(number, Endpoint { rule, offload, ..testing::endpoint(port) });
        }
        let flow = inward(port);
        assert!(world.far.send(&flow.udp(&[7; 700]), Meta::FULL));
        for (frame, meta) in
            [flow.udp_partial(&[7; 700]), flow.tcp_large(&Tcp::default(), &[7; 2500], 1000)]
        {
            assert!(world.far.send(&frame, meta));
        }
        assert_eq!(world.poll(64, 1), 3);
        assert_eq!(world.application.received(), received, "three segments, or one large packet");
        assert_eq!((world.counters.get(Count::RxPartial), world.software.packets), (2, made));
    }
    // For a packet that finds no buffers, the engine makes nothing.
    let mut world = World::new();
    for iteration in 1..=20 {
        let (frame, meta) = inward(PORT).udp_partial(&[7; 700]);
        assert!(world.far.send(&frame, meta));
        assert_eq!(world.poll(64, iteration), 1);
    }
    assert_eq!((world.counters.get(Count::RxPartial), world.software.packets), (20, 16));
    assert_eq!(world.application.received(), 16);
}

#[test]
fn a_batch_counts_packets_and_gives_all_buffers_back() {
    let reception = Reception { data_bytes: Some(128), ..Reception::default() };
    let mut world = World::on(&loopback::Config { reception, ..Default::default() });
    let packet = inward(PORT).udp(&[7; 1000]);
    // Each packet takes 9 of the 64 buffers.
    for iteration in 1..=40 {
        (0..3).for_each(|_| assert!(world.far.send(&packet, Meta::FULL)));
        assert_eq!(world.poll(8, iteration), 3);
        assert!(world.application.packets().iter().all(|(_, bytes)| *bytes == packet));
    }
    assert_eq!(world.counters.get(Count::RxPackets), 120);
    assert_eq!(world.counters.get(Count::RxBytes), 120 * packet.len() as u64);
}

/// A driver hands up no such packets. The engine does not rely on that.
#[test]
fn a_packet_without_end_or_in_too_many_buffers_is_dropped_and_counted() {
    let mut world = World::new();
    for (count, ends, counter) in
        [(MAX_PARTS + 1, true, Count::RxTooManyBuffers), (3, false, Count::RxMalformed)]
    {
        world.rx = RxPath::new(&world.port, BATCH, &Values::default());
        for index in 0..count {
            let buffer = world.port.offset_of(world.rx.empty.take().unwrap());
            let space = towpath_device::SpaceId(0);
            let one = Received::whole(space, buffer, buffer + 128, 100, Meta::FULL);
            let continues = index + 1 < count || !ends;
            world.rx.received.push(Received { continues, ..one });
        }
        assert_eq!(world.poll(8, 1), 1);
        assert_eq!(world.counters.get(counter), 1);
        assert_eq!(world.application.received(), 0);
    }
}
