//! Tests of the work per poll iteration for costly packets, by the engine's own counters. Hostile
//! applications' sessions run beside neighbours that send ordinary packets.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use towpath_device::conformance::{DeviceFarEnd, FarEnd};
use towpath_device::{Meta, loopback};
use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::offload::MAX_SENT_SEGMENTS;
use towpath_protocol::counters::{Device as DeviceCount, Endpoint as Count};
use towpath_protocol::layout::{STATE_WORDS, SessionShape};
use towpath_protocol::settings::{Setting, Values};
use towpath_protocol::store::MemoryStore;
use towpath_queue::descriptor::{
    Descriptor, HEADROOM_BYTES, MAX_PACKET_BYTES, META, MORE, SMALL, SMALL_BYTES, TOGETHER,
};
use towpath_queue::events::{self, Marker};
use towpath_queue::receive::{ReceiveConsumer, application_side};
use towpath_queue::transmit::TransmitProducer;

use super::{COPY_BYTES, TURN_BYTES};
use crate::copy::session_word;
use crate::demux::{Rule, Vlan};
use crate::engine::{Budgets, Engine, Link, Mode};
use crate::orders::{Event, Order};
use crate::prepare::{Prepared, Relay};
use crate::relays::Relays;
use crate::rights::{Addresses, Rights};
use crate::session::{Endpoint, Session};

const BUDGETS: Budgets =
    Budgets { batch: 64, receive_budget: 1024, transmit_budget: 64, turn_budget: 512 };
const PORT: u16 = 2000;

struct World {
    engine: Engine,
    orders: Sender<(u64, Order)>,
    events: std::sync::mpsc::Receiver<Event>,
    far: DeviceFarEnd,
    apps: u32,
}

/// An application that writes arbitrary data into its memory.
struct App {
    number: u32,
    shape: SessionShape,
    heap: Region,
    transmit: TransmitProducer,
    _receive: ReceiveConsumer,
    marker: Marker,
    next: u32,
}

/// The packets that a test's endpoint receives. All endpoints send arbitrary packets from their own
/// addresses.
#[derive(Clone, Copy)]
enum Open {
    /// Packets for a port.
    Port(u16),
    /// Packets for a port, large ones included.
    Large(u16),
    /// Broadcast packets, and packets for an IP address of its own.
    Member(u8),
}

const ONE: [Open; 1] = [Open::Port(PORT)];

fn mac(number: u32) -> [u8; 6] {
    [2, 0, 0, 0, 0, number as u8]
}

fn ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number as u8)
}

fn flow(from: &App, to: &App) -> Flow {
    Flow::v4()
        .macs(mac(from.number), mac(to.number))
        .addresses(ip(from.number), ip(to.number))
        .ports(PORT, PORT)
}

fn to_all(from: &App) -> Flow {
    let all = IpAddr::V4(Ipv4Addr::BROADCAST);
    Flow { destination_mac: [0xff; 6], destination: all, ..flow(from, from) }
}

impl World {
    fn new(mode: Mode, budgets: Budgets, device: &loopback::Config) -> World {
        let (near, far) = loopback::pair(device).unwrap();
        let event =
            || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (orders, engine_orders) = channel();
        let (engine_events, events) = channel();
        let (wake, control_wake) = (event(), event());
        let relays = Relays::none().unwrap();
        let link =
            Link { orders: engine_orders, events: engine_events, wake, control_wake, relays };
        let state = Region::private(STATE_WORDS * 8).unwrap();
        let mut values = Values::from(mode);
        values.set(Setting::ClockHz, 1).unwrap();
        let engine = Engine::new(Box::new(near), state, 1, 1, &values, budgets, link).unwrap();
        World { engine, orders, events, far: DeviceFarEnd::new(Box::new(far)), apps: 0 }
    }

    /// Runs poll iterations with only commands to execute.
    fn ordered(&mut self, orders: Vec<Order>) {
        for order in orders {
            self.orders.send((0, order)).unwrap();
        }
        while self.engine.turn().unwrap() > 0 {}
        self.events.try_iter().for_each(drop);
    }

    /// Attaches a session with endpoints, whose receive queue has room for all packets that a test
    /// delivers.
    fn attach(&mut self, transmit: (u32, u32), receive: (u32, u32), opens: &[Open]) -> App {
        self.apps += 1;
        let number = self.apps;
        let endpoints = opens.len() as u32;
        let shape =
            SessionShape::new(1, endpoints, transmit.0, receive.0, transmit.1, receive.1).unwrap();
        let state = SharedFile::create("state", 4096).unwrap().into();
        let (prepared, mut handed) =
            Prepared::new(number, shape, &state, &mut MemoryStore::default()).unwrap();
        let mut file = |place| SharedFile::adopt(handed.remove(place)).unwrap();
        let [heap, application, server] = [4, 3, 0].map(&mut file);
        let server = Arc::new(server.map_readable().unwrap());
        let application = application.map_writable().unwrap();
        let heap = heap.map_writable().unwrap();
        let pages = shape.server_peer(&peer_words(&server));
        let mut own = shape.application_own(own_words(application));
        let sets = own.queue_sets.remove(0);
        let (transmit, mut receive) =
            application_side(&shape.queues, shape.receive_heap, sets, &pages.queue_sets[0]);
        for frame in 0..shape.receive_heap.frames() {
            assert!(receive.provide(frame));
        }
        receive.publish();
        let marker = Marker::new(shape.events(), own.events, &pages.acknowledgements);
        let mut orders = vec![Order::AddSession(self.map(prepared, number))];
        let addresses = Addresses { ipv4: Some(ip(number).to_bits()), ipv6: [None; 2] };
        for (endpoint_number, open) in opens.iter().enumerate() {
            let own = Rule { mac: Some(mac(number)), vlan: Vlan::Untagged, ..Rule::default() };
            let rule = match *open {
                Open::Port(port) | Open::Large(port) => Rule { port: Some(port), ..own },
                Open::Member(member) => {
                    Rule { ip: Some(Ipv4Addr::new(10, 78, 0, member).into()), ..own }
                }
            };
            let endpoint = Box::new(Endpoint {
                queue_set: 0,
                rule,
                rights: Rights::new(own, mac(number), addresses),
                coalescing: crate::coalescing::UNSET,
                offload: matches!(open, Open::Large(_)),
                tap: false,
                turn: 0,
                received: 0,
            });
            let group = matches!(open, Open::Member(_));
            let (session, number) = (number, endpoint_number as u32);
            orders.push(Order::AddEndpoint { session, number, endpoint, tap: None, group });
        }
        self.ordered(orders);
        App { number, shape, heap, transmit, _receive: receive, marker, next: 0 }
    }

    fn map(&self, prepared: Prepared, number: u32) -> Box<Session> {
        let relay = Relay { number: 0, worker: self.engine.wake.clone(), trusted: true };
        prepared.map(number, relay).unwrap().session
    }

    fn count(&self, app: &App, endpoint: u32, count: Count) -> u64 {
        let place = self.engine.places[&app.number];
        let session = self.engine.sessions[place as usize].as_ref().unwrap();
        session.counters.get(session_word(endpoint, count))
    }

    /// Returns the sum over all of the session's endpoints.
    fn sum(&self, app: &App, count: Count) -> u64 {
        (0..app.shape.endpoints).map(|endpoint| self.count(app, endpoint, count)).sum()
    }
}

impl App {
    /// Writes an arbitrary packet into unused buffers and queues it.
    fn send(&mut self, packet: &[u8], meta: Meta, flags: u16) {
        let heap = self.shape.transmit_heap;
        let room = heap.data_bytes() as usize;
        let mut chain: Vec<Descriptor> = Vec::new();
        for part in packet.chunks(room) {
            let frame = self.next;
            self.next += 1;
            let start = heap.frame_offset(frame);
            assert!(self.heap.copy_in(start + HEADROOM_BYTES as usize, part));
            let (start, len) = (HEADROOM_BYTES, part.len() as u32);
            chain.push(Descriptor { frame, start, len, endpoint: 0, flags: flags | MORE });
        }
        if meta != Meta::FINISHED {
            let start = heap.frame_offset(chain[0].frame);
            for (place, word) in meta.to_words().iter().enumerate() {
                assert!(self.heap.copy_in(start + place * 8, &word.to_ne_bytes()));
            }
            chain[0].flags |= META;
        }
        chain.last_mut().unwrap().flags &= !MORE;
        assert!(self.transmit.push(&chain), "the test's queue has room");
    }

    fn flush(&mut self) {
        self.transmit.publish();
        self.marker.mark(events::fence(), 0).unwrap();
        self.marker.publish();
    }
}

#[test]
fn a_packet_is_no_longer_than_ip_packets_are() {
    let mut world = World::new(Mode::Poll, BUDGETS, &loopback::Config::default());
    let mut hostile = world.attach((64, 261_888), (8, 64), &ONE);
    let victim = world.attach((8, 64), (2048, 2048), &[Open::Large(80)]);
    let flow = flow(&hostile, &victim).ports(PORT, 80);
    let (good, meta) = flow.tcp_large(&Tcp::default(), &[7; 60_000], 1000);
    for more in [1, 65_536 - 60_000, 12_000_000] {
        hostile.send(&[&good[..], &vec![0; more]].concat(), meta, 0);
    }
    // This packet is longer than an IP packet, and longer than its header states.
    let longer = [&flow.udp(b"x")[..], &vec![0; MAX_PACKET_BYTES]].concat();
    hostile.send(&longer, Meta::FINISHED, 0);
    hostile.flush();
    while world.engine.turn().unwrap() > 0 {}
    assert_eq!(world.count(&hostile, 0, Count::TxMalformed), 3);
    assert_eq!(world.count(&hostile, 0, Count::TxTooLong), 1);
    assert_eq!(world.sum(&victim, Count::RxCopies), 0);
    assert!(
        world.events.try_iter().all(|event| matches!(event, Event::Done { .. })),
        "no violation"
    );
    hostile.send(&good, meta, 0);
    hostile.flush();
    world.engine.turn().unwrap();
    assert_eq!(world.sum(&victim, Count::RxBytes), good.len() as u64);
}

#[test]
fn a_packet_is_cut_into_a_bounded_number_of_segments() {
    for offloads in [true, false] {
        let device = loopback::Config { offloads, ..loopback::Config::default() };
        let mut world = World::new(Mode::Poll, BUDGETS, &device);
        let mut hostile = world.attach((512, 2048), (8, 64), &ONE);
        let victim = world.attach((8, 64), (2048, 2048), &[Open::Port(80)]);
        let here = flow(&hostile, &victim).ports(PORT, 80);
        let elsewhere = Flow { destination_mac: [2, 9, 9, 9, 9, 9], ..here };
        let most = MAX_SENT_SEGMENTS * 88;
        for flow in [here, elsewhere] {
            for (len, size) in [(65_495, 88), (65_495, 500), (most + 1, 88)] {
                let (packet, meta) = flow.tcp_large(&Tcp::default(), &vec![7; len], size);
                hostile.send(&packet, meta, 0);
            }
        }
        // These are segments that TCP cannot use, and a large broadcast packet.
        let (packet, meta) = here.tcp_large(&Tcp::default(), &[7; 4000], 87);
        hostile.send(&packet, meta, 0);
        let all = to_all(&hostile).ports(PORT, 80);
        let (packet, meta) = all.tcp_large(&Tcp::default(), &[7; 4000], 1000);
        hostile.send(&packet, meta, 0);
        hostile.flush();
        while world.engine.turn().unwrap() > 0 {}
        assert_eq!(world.count(&hostile, 0, Count::TxTooLong), 6);
        assert_eq!(world.count(&hostile, 0, Count::TxMalformed), 2);
        assert_eq!(world.sum(&victim, Count::RxCopies), 0);
        assert!(world.far.receive().is_none());
        let (packet, meta) = here.tcp_large(&Tcp::default(), &vec![7; most], 88);
        hostile.send(&packet, meta, 0);
        let (packet, meta) = elsewhere.tcp_large(&Tcp::default(), &vec![7; most], 88);
        hostile.send(&packet, meta, 0);
        hostile.flush();
        let mut left = 0;
        while world.engine.turn().unwrap() > 0 {
            left += std::iter::from_fn(|| world.far.receive()).count();
        }
        assert_eq!(world.sum(&victim, Count::RxCopies), MAX_SENT_SEGMENTS as u64);
        assert_eq!(left, if offloads { 1 } else { MAX_SENT_SEGMENTS });
    }
}

#[test]
fn each_segment_is_a_packet_of_the_receivers_budget() {
    let budgets = Budgets { receive_budget: 100, ..BUDGETS };
    let mut world = World::new(Mode::Poll, budgets, &loopback::Config::default());
    let mut sender = world.attach((128, 2048), (8, 64), &ONE);
    let victim = world.attach((8, 64), (512, 2048), &[Open::Port(80)]);
    let flow = flow(&sender, &victim).ports(PORT, 80);
    for len in [60_000, 5000] {
        let (packet, meta) = flow.tcp_large(&Tcp::default(), &vec![7; len], 1000);
        sender.send(&packet, meta, 0);
    }
    let counted = |world: &World| {
        [Count::RxPackets, Count::RxOverBudget].map(|count| world.count(&victim, 0, count))
    };
    // Packets received from the device count against the same budget.
    sender.flush();
    let (packet, meta) = flow.tcp_large(&Tcp::default(), &[7; 45_000], 1000);
    assert!(world.far.send(&packet, meta));
    world.engine.turn().unwrap();
    // Over the budget are the last segments of the second packet, and the third packet, which
    // counts as one because the engine does not look at it.
    assert_eq!(counted(&world), [100, 5 + 1]);
    // The next poll iteration has a new budget.
    sender.send(&packet, meta, 0);
    sender.flush();
    world.engine.turn().unwrap();
    assert_eq!(counted(&world), [145, 6]);
}

/// Copies of one poll iteration, and the packets that the neighbour's receiver had by then.
struct Turn {
    copies: u64,
    bytes: u64,
    neighbours: u64,
}

/// Runs poll iterations until all packets are done. One application sends `packet` as often as its
/// queue has room. A neighbour sends 32 ordinary packets to another, all at once.
fn attacked(hostile: &[Open], packet: impl Fn(&App) -> (Vec<u8>, Meta, u16)) -> Vec<Turn> {
    let mut world = World::new(Mode::Poll, BUDGETS, &loopback::Config::default());
    let mut attacker = world.attach((1024, 2048), (8192, 640), hostile);
    let mut neighbour = world.attach((64, 2048), (8, 64), &ONE);
    let other = world.attach((8, 64), (64, 2048), &ONE);
    let (bytes, meta, flags) = packet(&attacker);
    let chain = bytes.len().div_ceil(attacker.shape.transmit_heap.data_bytes() as usize);
    for _ in 0..(1024 / chain).min(128) {
        attacker.send(&bytes, meta, flags);
    }
    for _ in 0..32 {
        neighbour.send(&flow(&neighbour, &other).udp(&[1; 1000]), Meta::FINISHED, 0);
    }
    attacker.flush();
    neighbour.flush();
    let (mut turns, mut copies, mut bytes) = (Vec::new(), 0, 0);
    while world.engine.turn().unwrap() > 0 {
        let neighbours = world.sum(&other, Count::RxPackets);
        let now = world.sum(&attacker, Count::RxCopies) + neighbours;
        let now_bytes = world.sum(&attacker, Count::RxBytes) + world.sum(&other, Count::RxBytes);
        turns.push(Turn { copies: now - copies, bytes: now_bytes - bytes, neighbours });
        (copies, bytes) = (now, now_bytes);
        let _ = std::iter::from_fn(|| world.far.receive()).count();
    }
    assert_eq!(world.sum(&attacker, Count::TxMalformed), 0);
    assert_eq!(world.sum(&attacker, Count::TxTooLong), 0);
    turns
}

/// Checks that the maximum cost of a poll iteration is as stated in docs/trust.md.
fn bounded(turns: &[Turn], one_packets_copies: u64, one_packets_bytes: u64) {
    let most_copies = (BUDGETS.turn_budget + 8) as u64 + one_packets_copies;
    let most_cost = TURN_BYTES + one_packets_bytes + one_packets_copies * COPY_BYTES;
    for (number, turn) in turns.iter().enumerate() {
        assert!(turn.copies <= most_copies, "turn {number}: {} copies", turn.copies);
        // One copy of each packet is free.
        assert!(turn.bytes <= most_cost, "turn {number}: {} bytes", turn.bytes);
    }
    let copies: u64 = turns.iter().map(|turn| turn.copies).sum();
    assert!(turns.len() as u64 > copies / most_copies, "the rest of a batch waits");
    assert_eq!(turns[0].neighbours, 32, "the neighbour waits for nothing");
}

#[test]
fn large_packets_of_many_segments_end_their_share_of_a_turn() {
    let open = [Open::Port(80)];
    let turns = attacked(&open, |app| {
        let flow = flow(app, app).ports(PORT, 80);
        let (packet, meta) = flow.tcp_large(&Tcp::default(), &[7; 65_495], 512);
        (packet, meta, 0)
    });
    let copies: u64 = turns.iter().map(|turn| turn.copies).sum();
    assert_eq!(copies, 1024 / 33 * 128 + 32);
    bounded(&turns, 128, 128 * 566);
}

#[test]
fn packets_for_many_members_end_their_share_of_a_turn() {
    let members: Vec<Open> = (0..24).map(Open::Member).collect();
    for (flags, len) in [(0, 500), (TOGETHER, 60), (SMALL, SMALL_BYTES as usize - 42)] {
        let turns =
            attacked(&members, |app| (to_all(app).udp(&vec![7; len]), Meta::FINISHED, flags));
        let copies: u64 = turns.iter().map(|turn| turn.copies).sum();
        assert_eq!(copies, 128 * 23 + 32);
        bounded(&turns, 23, 23 * 542);
    }
}

#[test]
fn the_rest_of_a_received_batch_waits_for_the_next_turn() {
    for mode in [Mode::Poll, Mode::Interrupt, Mode::Adaptive, Mode::Clocked, Mode::Auto] {
        let mut world = World::new(mode, BUDGETS, &loopback::Config::default());
        let members: Vec<Open> = (0..100).map(Open::Member).collect();
        let app = world.attach((8, 64), (8192, 64), &members);
        let flow = Flow { source_mac: [2, 9, 9, 9, 9, 9], ..to_all(&app) };
        let packet = flow.udp(&[7; 22]);
        for _ in 0..60 {
            assert!(world.far.send(&packet, Meta::FINISHED));
        }
        let (mut turns, mut copies) = (0, 0);
        loop {
            let work = world.engine.turn().unwrap();
            let now = world.sum(&app, Count::RxCopies);
            assert!(now - copies <= TURN_BYTES / COPY_BYTES + 100, "{mode:?}: {}", now - copies);
            (copies, turns) = (now, turns + 1);
            if !world.engine.has_received_left() {
                break;
            }
            assert!(work > 0 && !world.engine.is_idle(), "{mode:?}");
            world.engine.pause(work).unwrap();
        }
        let sleeps = world.engine.counters.get(DeviceCount::Sleeps as usize);
        assert_eq!((copies, turns, sleeps), (6000, 6, 0), "{mode:?}");
    }
}
