//! Tests of the work per poll iteration for costly packets, by the engine's own counters. Hostile
//! applications' sessions run beside neighbours that send ordinary packets.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::Sender;

use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_memory::Region;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::offload::MAX_SENT_SEGMENTS;
use towpath_packet::{FlowRule, FlowVlan};
use towpath_protocol::counters::{Device as DeviceCount, Endpoint as Count};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::descriptor::{
    Descriptor, EXPEDITED, EXPEDITED_BYTES, HEADROOM_BYTES, MAX_PACKET_BYTES, META, MORE, TOGETHER,
};
use towpath_queue::events::{self, Marker};
use towpath_queue::receive::ReceiveConsumer;
use towpath_queue::transmit::TransmitProducer;

use super::{COPY_BYTES, ITERATION_BYTES};
use crate::commands::{Command, EngineReport};
use crate::rights::{Addresses, Rights};
use crate::session::endpoints::Endpoint;
use crate::wiring::{self, ApplicationSide, BUDGETS, Wired};
use crate::{Budgets, Engine, WaitStrategy};

const PORT: u16 = 2000;

struct World {
    engine: Engine,
    commands: Sender<(u64, Command)>,
    reports: std::sync::mpsc::Receiver<EngineReport>,
    far: DeviceFarEnd,
    apps: u32,
}

/// An application that writes arbitrary data into its memory.
struct App {
    number: u32,
    shape: SessionShape,
    pool: Region,
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
    fn new(strategy: WaitStrategy, budgets: Budgets, device: &loopback::Config) -> World {
        let (mut near, far) = loopback::pair(device).unwrap();
        let mut values = Values::from(strategy);
        values.set(Setting::TickHz, 1).unwrap();
        let Wired { engine, commands, reports, .. } =
            Wired::new(&mut near, &values, budgets).unwrap();
        World { engine, commands, reports, far: DeviceFarEnd::new(Box::new(far)), apps: 0 }
    }

    /// Runs poll iterations with only commands to execute.
    fn ordered(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.commands.send((0, command)).unwrap();
        }
        while self.engine.poll_once().unwrap() > 0 {}
        self.reports.try_iter().for_each(drop);
    }

    /// Attaches a session with endpoints, whose receive queue has room for all packets that a test
    /// delivers.
    fn attach(&mut self, transmit: (u32, u32), receive: (u32, u32), opens: &[Open]) -> App {
        self.apps += 1;
        let number = self.apps;
        let endpoints = opens.len() as u32;
        let shape =
            SessionShape::new(1, endpoints, transmit.0, receive.0, transmit.1, receive.1).unwrap();
        let (session, side) = wiring::session(number, shape).unwrap();
        let ApplicationSide { transmit, receive, marker, pool, .. } = side;
        let mut commands = vec![Command::AddSession(session)];
        let addresses = Addresses { ipv4: Some(ip(number).to_bits()), ipv6: [None; 2] };
        for (endpoint_number, open) in opens.iter().enumerate() {
            let own = FlowRule {
                mac: Some(mac(number)),
                vlan: FlowVlan::Untagged,
                ..FlowRule::default()
            };
            let rule = match *open {
                Open::Port(port) | Open::Large(port) => FlowRule { port: Some(port), ..own },
                Open::Member(member) => {
                    FlowRule { ip: Some(Ipv4Addr::new(10, 78, 0, member).into()), ..own }
                }
            };
            let rights = Rights::new(own, mac(number), addresses);
            let offload = matches!(open, Open::Large(_));
            let endpoint = Box::new(Endpoint { offload, ..wiring::endpoint(rule, rights) });
            let group = matches!(open, Open::Member(_));
            let (session, number) = (number, endpoint_number as u32);
            commands.push(Command::AddEndpoint {
                session,
                number,
                endpoint,
                listening: None,
                group,
            });
        }
        self.ordered(commands);
        App { number, shape, pool, transmit, _receive: receive, marker, next: 0 }
    }

    fn count(&self, app: &App, endpoint: u32, count: Count) -> u64 {
        let key = self.engine.sessions().key(app.number).unwrap();
        let session = self.engine.sessions().get(key).unwrap();
        session.receive.endpoints.counted(endpoint, count)
    }

    /// Returns the sum over all of the session's endpoints.
    fn sum(&self, app: &App, count: Count) -> u64 {
        (0..app.shape.endpoints).map(|endpoint| self.count(app, endpoint, count)).sum()
    }
}

impl App {
    /// Writes an arbitrary packet into unused buffers and queues it.
    fn send(&mut self, packet: &[u8], meta: Meta, flags: u16) {
        let pool = self.shape.transmit_pool;
        let room = pool.data_bytes() as usize;
        let mut chain: Vec<Descriptor> = Vec::new();
        for part in packet.chunks(room) {
            let buffer = self.next;
            self.next += 1;
            let start = pool.buffer_offset(buffer);
            assert!(self.pool.copy_in(start + HEADROOM_BYTES as usize, part));
            let (start, len) = (HEADROOM_BYTES, part.len() as u32);
            chain.push(Descriptor { buffer, start, len, endpoint: 0, flags: flags | MORE });
        }
        if meta != Meta::FULL {
            let start = pool.buffer_offset(chain[0].buffer);
            for (key, word) in meta.to_words().iter().enumerate() {
                assert!(self.pool.copy_in(start + key * 8, &word.to_ne_bytes()));
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
    let mut world = World::new(WaitStrategy::Poll, BUDGETS, &loopback::Config::default());
    let mut hostile = world.attach((64, 261_888), (8, 64), &ONE);
    let victim = world.attach((8, 64), (2048, 2048), &[Open::Large(80)]);
    let flow = flow(&hostile, &victim).ports(PORT, 80);
    let (good, meta) = flow.tcp_large(&Tcp::default(), &[7; 60_000], 1000);
    for more in [1, 65_536 - 60_000, 12_000_000] {
        hostile.send(&[&good[..], &vec![0; more]].concat(), meta, 0);
    }
    // This packet is longer than an IP packet, and longer than its header states.
    let longer = [&flow.udp(b"x")[..], &vec![0; MAX_PACKET_BYTES]].concat();
    hostile.send(&longer, Meta::FULL, 0);
    hostile.flush();
    while world.engine.poll_once().unwrap() > 0 {}
    assert_eq!(world.count(&hostile, 0, Count::TxMalformed), 3);
    assert_eq!(world.count(&hostile, 0, Count::TxTooLong), 1);
    assert_eq!(world.sum(&victim, Count::RxCopies), 0);
    assert!(
        world.reports.try_iter().all(|event| matches!(event, EngineReport::Done { .. })),
        "no violation"
    );
    hostile.send(&good, meta, 0);
    hostile.flush();
    world.engine.poll_once().unwrap();
    assert_eq!(world.sum(&victim, Count::RxBytes), good.len() as u64);
}

#[test]
fn a_packet_becomes_a_bounded_number_of_segments() {
    for offloads in [true, false] {
        let device = loopback::Config { offloads, ..loopback::Config::default() };
        let mut world = World::new(WaitStrategy::Poll, BUDGETS, &device);
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
        while world.engine.poll_once().unwrap() > 0 {}
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
        while world.engine.poll_once().unwrap() > 0 {
            left += std::iter::from_fn(|| world.far.receive()).count();
        }
        assert_eq!(world.sum(&victim, Count::RxCopies), MAX_SENT_SEGMENTS as u64);
        assert_eq!(left, if offloads { 1 } else { MAX_SENT_SEGMENTS });
    }
}

#[test]
fn each_segment_is_a_packet_of_the_receivers_budget() {
    let budgets = Budgets { receive_budget: 100, ..BUDGETS };
    let mut world = World::new(WaitStrategy::Poll, budgets, &loopback::Config::default());
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
    world.engine.poll_once().unwrap();
    // Over the budget are the last segments of the second packet, and the third packet, which
    // counts as one because the engine does not segment it.
    assert_eq!(counted(&world), [100, 5 + 1]);
    // The next poll iteration has a new budget.
    sender.send(&packet, meta, 0);
    sender.flush();
    world.engine.poll_once().unwrap();
    assert_eq!(counted(&world), [145, 6]);
}

/// Copies of one poll iteration, and the packets that the neighbour's receiver had by then.
struct Iteration {
    copies: u64,
    bytes: u64,
    neighbours: u64,
}

/// Runs poll iterations until all packets are done. One application sends `packet` as often as its
/// queue has room. A neighbour sends 32 ordinary packets to another, all at once.
fn attacked(hostile: &[Open], packet: impl Fn(&App) -> (Vec<u8>, Meta, u16)) -> Vec<Iteration> {
    let mut world = World::new(WaitStrategy::Poll, BUDGETS, &loopback::Config::default());
    let mut attacker = world.attach((1024, 2048), (8192, 640), hostile);
    let mut neighbour = world.attach((64, 2048), (8, 64), &ONE);
    let other = world.attach((8, 64), (64, 2048), &ONE);
    let (bytes, meta, flags) = packet(&attacker);
    let chain = bytes.len().div_ceil(attacker.shape.transmit_pool.data_bytes() as usize);
    for _ in 0..(1024 / chain).min(128) {
        attacker.send(&bytes, meta, flags);
    }
    for _ in 0..32 {
        neighbour.send(&flow(&neighbour, &other).udp(&[1; 1000]), Meta::FULL, 0);
    }
    attacker.flush();
    neighbour.flush();
    let (mut iterations, mut copies, mut bytes) = (Vec::new(), 0, 0);
    while world.engine.poll_once().unwrap() > 0 {
        let neighbours = world.sum(&other, Count::RxPackets);
        let now = world.sum(&attacker, Count::RxCopies) + neighbours;
        let now_bytes = world.sum(&attacker, Count::RxBytes) + world.sum(&other, Count::RxBytes);
        iterations.push(Iteration { copies: now - copies, bytes: now_bytes - bytes, neighbours });
        (copies, bytes) = (now, now_bytes);
        let _ = std::iter::from_fn(|| world.far.receive()).count();
    }
    assert_eq!(world.sum(&attacker, Count::TxMalformed), 0);
    assert_eq!(world.sum(&attacker, Count::TxTooLong), 0);
    iterations
}

/// Checks that the maximum cost of a poll iteration is as stated in docs/trust.md.
fn bounded(iterations: &[Iteration], one_packets_copies: u64, one_packets_bytes: u64) {
    let most_copies = (BUDGETS.iteration_budget + 8) as u64 + one_packets_copies;
    let most_cost = ITERATION_BYTES + one_packets_bytes + one_packets_copies * COPY_BYTES;
    for (number, iteration) in iterations.iter().enumerate() {
        assert!(iteration.copies <= most_copies, "iteration {number}: {} copies", iteration.copies);
        // One copy of each packet is free.
        assert!(iteration.bytes <= most_cost, "iteration {number}: {} bytes", iteration.bytes);
    }
    let copies: u64 = iterations.iter().map(|iteration| iteration.copies).sum();
    assert!(iterations.len() as u64 > copies / most_copies, "the rest of a batch waits");
    assert_eq!(iterations[0].neighbours, 32, "the neighbour waits for nothing");
}

#[test]
fn packets_of_many_segments_use_up_the_iteration_budget() {
    let open = [Open::Port(80)];
    let iterations = attacked(&open, |app| {
        let flow = flow(app, app).ports(PORT, 80);
        let (packet, meta) = flow.tcp_large(&Tcp::default(), &[7; 65_495], 512);
        (packet, meta, 0)
    });
    let copies: u64 = iterations.iter().map(|iteration| iteration.copies).sum();
    assert_eq!(copies, 1024 / 33 * 128 + 32);
    bounded(&iterations, 128, 128 * 566);
}

#[test]
fn packets_for_many_members_use_up_the_iteration_budget() {
    let members: Vec<Open> = (0..24).map(Open::Member).collect();
    for (flags, len) in [(0, 500), (TOGETHER, 60), (EXPEDITED, EXPEDITED_BYTES as usize - 42)] {
        let iterations =
            attacked(&members, |app| (to_all(app).udp(&vec![7; len]), Meta::FULL, flags));
        let copies: u64 = iterations.iter().map(|iteration| iteration.copies).sum();
        assert_eq!(copies, 128 * 23 + 32);
        bounded(&iterations, 23, 23 * 542);
    }
}

#[test]
fn a_received_batch_may_span_several_iterations() {
    for strategy in WaitStrategy::ALL {
        let mut world = World::new(strategy, BUDGETS, &loopback::Config::default());
        let members: Vec<Open> = (0..100).map(Open::Member).collect();
        let app = world.attach((8, 64), (8192, 64), &members);
        let flow = Flow { source_mac: [2, 9, 9, 9, 9, 9], ..to_all(&app) };
        let packet = flow.udp(&[7; 22]);
        for _ in 0..60 {
            assert!(world.far.send(&packet, Meta::FULL));
        }
        let (mut iterations, mut copies) = (0, 0);
        loop {
            let work = world.engine.poll_once().unwrap();
            let now = world.sum(&app, Count::RxCopies);
            assert!(
                now - copies <= ITERATION_BYTES / COPY_BYTES + 100,
                "{strategy:?}: {}",
                now - copies
            );
            (copies, iterations) = (now, iterations + 1);
            if !world.engine.rx().has_left() {
                break;
            }
            assert!(work > 0 && !world.engine.is_idle(), "{strategy:?}");
            world.engine.pause(work).unwrap();
        }
        let sleeps = world.engine.counters().get(DeviceCount::Sleeps);
        assert_eq!((copies, iterations, sleeps), (6000, 6, 0), "{strategy:?}");
    }
}
