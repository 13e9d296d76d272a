//! A server with two engine threads in this process, over an in-memory device with two queues: each
//! flow stays on its lane, and sessions, settings and counters are one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_client::{
    Endpoint, Lost, Options, QueuePair, Rule, SendError, Session, Setting, WaitStrategy,
    report_over,
};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_memory::{Region, SharedFile, own_words};
use towpath_packet::Headers;
use towpath_packet::build::Flow;
use towpath_packet::headers::Network;
use towpath_packet::transport::Transport;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::layout::{MAX_LANES, SessionShape};
use towpath_protocol::message::{self, Attach, Message};
use towpath_protocol::store::MemoryStore;
use towpath_queue::Violation;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES};
use towpath_queue::receive::application_side;
use towpath_server::{Config, Server, StartError, Subnet, Subnets, WaitStrategy as EngineStrategy};
use zerocopy::FromZeros;

const LANES: usize = 2;
const FLOWS: u16 = 24;
const PER_FLOW: u32 = 200;
/// Ends a test that hangs. On a loaded machine, a thread may wait seconds for a processor.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    server: Server,
    far: Vec<DeviceFarEnd>,
}

fn config(mode: EngineStrategy) -> Config {
    let subnets = Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)), ipv6: None };
    Config { settings: mode.into(), subnets, lanes: LANES, ..Config::default() }
}

impl World {
    fn new(mode: EngineStrategy) -> World {
        let device = loopback::Config { queues: LANES, ..loopback::Config::default() };
        let (near, far) = loopback::pair(&device).unwrap();
        let far = DeviceFarEnd::of_all(Box::new(far));
        let store = Box::<MemoryStore>::default();
        World { server: Server::start(&config(mode), Box::new(near), store).unwrap(), far }
    }

    fn attach(&self, name: &str) -> (Session, Endpoint) {
        let options = Options {
            name: name.into(),
            receive_slots: 1024,
            wait_strategy: WaitStrategy::Block,
            ..Options::default()
        };
        let mut session = Session::attach_over(self.server.connect().unwrap(), &options).unwrap();
        assert_eq!(session.info().lanes as usize, LANES);
        let endpoint = session.open(&Rule::new()).unwrap();
        (session, endpoint)
    }

    fn report(&self) -> serde_json::Value {
        report_over(self.server.connect().unwrap()).unwrap()
    }

    /// Returns a counter of each lane, once the device's is their sum.
    fn lanes(&self, counter: &str) -> Vec<u64> {
        let mut lanes = Vec::new();
        // The engines publish the counts of their parts before each sleep, each at its own time.
        comes(counter, || {
            let report = self.report();
            let device = &report["device"];
            let counts = device["lanes"].as_array().unwrap();
            lanes = counts.iter().map(|lane| lane[counter].as_u64().unwrap()).collect();
            assert_eq!(lanes.len(), LANES);
            device["counters"][counter] == lanes.iter().sum::<u64>()
        });
        lanes
    }
}

fn comes(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a flow between two sessions, or from a session to an address outside.
fn flow(from: &Session, to: ([u8; 6], IpAddr), port: u16) -> Flow {
    let source = from.info().ipv4.unwrap().0.into();
    Flow { source, destination: to.1, ..Flow::v4() }
        .macs(from.info().mac, to.0)
        .ports(1000 + port, 7)
}

fn address(session: &Session) -> ([u8; 6], IpAddr) {
    (session.info().mac.octets(), session.info().ipv4.unwrap().0.into())
}

const OUTSIDE: ([u8; 6], IpAddr) =
    ([2, 9, 9, 9, 9, 9], IpAddr::V4(std::net::Ipv4Addr::new(10, 99, 0, 9)));

/// Returns the source port and the number of a packet.
fn read(packet: &[u8]) -> (u16, u32) {
    let headers = Headers::parse(packet, packet.len()).unwrap();
    let Network::Ipv4(ip) = headers.network else { panic!("{headers:?}") };
    let Transport::Udp { source, .. } = ip.transport else { panic!("{headers:?}") };
    let payload = &packet[usize::from(ip.l4_offset) + 8..];
    (source, u32::from_le_bytes(*payload.first_chunk().unwrap()))
}

/// Asserts that the packets of each flow come in order.
#[derive(Default)]
struct Order(BTreeMap<u16, u32>);

impl Order {
    fn came(&mut self, packet: &[u8]) -> u16 {
        let (port, number) = read(packet);
        let next = self.0.entry(port).or_default();
        assert_eq!(number, *next, "flow {port}");
        *next += 1;
        port
    }

    fn packets(&self) -> u32 {
        self.0.values().sum()
    }
}

fn receive(session: &mut Session, order: &mut Order) {
    let mut packets = Vec::new();
    session
        .receiver()
        .receive(QueuePair::FIRST, 64, |packet| packets.push(packet.contiguous().unwrap().to_vec()))
        .unwrap();
    packets.iter().for_each(|packet| _ = order.came(packet));
}

/// Sends as an application that knows nothing of lanes does.
fn send(session: &mut Session, from: Endpoint, packet: &[u8]) {
    while let Err(error) = session.sender().send_bytes(from, packet) {
        assert_eq!(error, SendError::Full);
        session.sender().flush().unwrap();
        session.sender().want_room(QueuePair::FIRST).unwrap();
        assert!(session.wait(Some(PATIENCE)).unwrap(), "no room");
    }
}

#[test]
fn received_flows_stay_in_order() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = World::new(mode);
        let (mut app, endpoint) = world.attach("app");
        let (mut order, mut sent) = (Order::default(), vec![0u32; usize::from(FLOWS)]);
        let to = address(&app);
        while order.packets() < u32::from(FLOWS) * PER_FLOW {
            for port in 0..FLOWS {
                let number = &mut sent[usize::from(port)];
                let payload = number.to_le_bytes();
                let flow = Flow { source: OUTSIDE.1, destination: to.1, ..Flow::v4() };
                let packet = flow.macs(OUTSIDE.0, to.0).ports(port, 7).udp(&payload);
                // The other end's device chooses the queue.
                let far = &mut world.far[usize::from(port) % LANES];
                *number += u32::from(*number < PER_FLOW && far.send(&packet, Meta::FULL));
            }
            if app.wait(Some(Duration::from_millis(10))).unwrap() {
                receive(&mut app, &mut order);
            }
        }
        let all = u64::from(FLOWS) * u64::from(PER_FLOW);
        assert_eq!(world.lanes("rx_packets"), [all / 2; LANES]);
        let counters: BTreeMap<_, _> = app.counters(endpoint).into_iter().collect();
        assert_eq!((counters["rx_packets"], counters["rx_copies"]), (all, all));
        let shown = &world.report()["sessions"][0]["endpoints"][0]["counters"];
        assert_eq!(shown["rx_packets"], all);
        world.server.stop().unwrap();
    }
}

#[test]
fn sent_flows_leave_by_one_queue_in_order() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let mut world = World::new(mode);
        let (mut app, endpoint) = world.attach("app");
        let mut order = Order::default();
        let mut queues: BTreeMap<u16, usize> = BTreeMap::new();
        let (mut next, all) = (0, u32::from(FLOWS) * PER_FLOW);
        let deadline = Instant::now() + PATIENCE;
        while order.packets() < all {
            assert!(Instant::now() < deadline, "{} of {all} packets", order.packets());
            for _ in 0..32.min(all - next) {
                let flow = flow(&app, OUTSIDE, (next % u32::from(FLOWS)) as u16);
                let packet = flow.udp(&(next / u32::from(FLOWS)).to_le_bytes());
                if app.sender().send_bytes(endpoint, &packet).is_err() {
                    break;
                }
                next += 1;
            }
            app.sender().flush().unwrap();
            for (queue, far) in world.far.iter_mut().enumerate() {
                while let Some((packet, _)) = far.receive() {
                    let port = order.came(&packet);
                    assert_eq!(*queues.entry(port).or_insert(queue), queue, "flow {port}");
                }
            }
        }
        for queue in 0..LANES {
            assert!(queues.values().any(|one| *one == queue), "queue {queue}: {queues:?}");
        }
        comes("the engines' counts", || {
            world.lanes("tx_packets").iter().sum::<u64>() == u64::from(all)
        });
        assert!(world.lanes("tx_packets").iter().all(|count| *count > 0));
        world.server.stop().unwrap();
    }
}

/// Both applications block while nothing comes, and the engines, too.
#[test]
fn applications_reach_each_other_on_every_lane() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let world = World::new(mode);
        let (mut a, from_a) = world.attach("a");
        let (mut b, from_b) = world.attach("b");
        let (to_a, to_b) = (address(&a), address(&b));
        let (mut at_a, mut at_b) = (Order::default(), Order::default());
        for number in 0..PER_FLOW {
            for port in 0..FLOWS {
                let packet = flow(&a, to_b, port).udp(&number.to_le_bytes());
                send(&mut a, from_a, &packet);
            }
            a.sender().flush().unwrap();
            while at_b.packets() < (number + 1) * u32::from(FLOWS) {
                assert!(b.wait(Some(PATIENCE)).unwrap(), "{} at b", at_b.packets());
                receive(&mut b, &mut at_b);
            }
            for port in 0..FLOWS {
                let packet = flow(&b, to_a, port).udp(&number.to_le_bytes());
                send(&mut b, from_b, &packet);
            }
            b.sender().flush().unwrap();
            while at_a.packets() < (number + 1) * u32::from(FLOWS) {
                assert!(a.wait(Some(PATIENCE)).unwrap(), "{} at a", at_a.packets());
                receive(&mut a, &mut at_a);
            }
        }
        assert!(world.lanes("busy_iterations").iter().all(|count| *count > 0));
        let counters: BTreeMap<_, _> = a.counters(from_a).into_iter().collect();
        let all = u64::from(FLOWS) * u64::from(PER_FLOW);
        assert_eq!((counters["tx_packets"], counters["rx_packets"]), (all, all));
        world.server.stop().unwrap();
    }
}

#[test]
fn a_sender_that_fills_its_queues_waits_for_room() {
    let world = World::new(EngineStrategy::Block);
    let (mut a, from_a) = world.attach("a");
    let (mut b, _) = world.attach("b");
    let to_b = address(&b);
    let all = 20_000u32;
    let receiver = std::thread::spawn(move || {
        let mut order = BTreeMap::new();
        let mut got = 0;
        while b.wait(Some(Duration::from_millis(500))).unwrap() {
            let mut packets = Vec::new();
            got += b
                .receiver()
                .receive(QueuePair::FIRST, 64, |one| {
                    packets.push(one.contiguous().unwrap().to_vec())
                })
                .unwrap();
            for packet in packets {
                let (port, number) = read(&packet);
                let last = order.insert(port, number);
                assert!(last.is_none_or(|last| last < number), "flow {port}");
            }
        }
        got
    });
    for number in 0..all {
        let packet = flow(&a, to_b, (number % 7) as u16).udp(&number.to_le_bytes());
        send(&mut a, from_a, &packet);
    }
    a.sender().flush().unwrap();
    // A receiver that is slower loses packets, in order.
    assert!(receiver.join().unwrap() > 0);
    comes("all buffers back", || a.sender().unsent(QueuePair::FIRST).unwrap() == 0);
    let counters: BTreeMap<_, _> = a.counters(from_a).into_iter().collect();
    assert_eq!(counters["tx_packets"], u64::from(all));
    world.server.stop().unwrap();
}

#[test]
fn sessions_and_settings_are_one() {
    let world = World::new(EngineStrategy::Block);
    let (mut a, from_a) = world.attach("a");
    let (b, _) = world.attach("b");
    a.set(from_a, Setting::RxFrames, 1).unwrap();
    a.close(from_a).unwrap();
    let again = a.open(&Rule::new()).unwrap();
    assert_eq!(again.id(), from_a.id());
    assert!(a.open(&Rule::new().mac(b.info().mac)).is_err(), "another session's");
    let sessions = |world: &World| world.report()["sessions"].as_array().unwrap().len();
    assert_eq!(sessions(&world), 2);
    drop(b);
    comes("the end of the session", || sessions(&world) == 1);
    let in_use = |world: &World| world.report()["device"]["addresses_in_use"].as_u64();
    comes("its address", || in_use(&world) == Some(1));
    world.server.stop().unwrap();
    assert!(matches!(a.wait(Some(PATIENCE)), Err(Lost::ServerGone)));
}

/// The answer to attach then carries the most descriptors.
#[test]
fn a_server_has_up_to_eight_lanes() {
    let device = loopback::Config { queues: MAX_LANES, ..loopback::Config::default() };
    let (near, _far) = loopback::pair(&device).unwrap();
    let config = Config { lanes: MAX_LANES, ..config(EngineStrategy::Block) };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    for _ in 0..3 {
        let attach = |name: &str| {
            let options = Options { name: name.into(), ..Options::default() };
            let mut session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
            let endpoint = session.open(&Rule::new()).unwrap();
            (session, endpoint)
        };
        let ((mut a, from_a), (mut b, _)) = (attach("a"), attach("b"));
        assert_eq!(a.info().lanes as usize, MAX_LANES);
        let (to_b, mut at_b) = (address(&b), Order::default());
        for port in 0..FLOWS {
            let packet = flow(&a, to_b, port).udp(&0u32.to_le_bytes());
            send(&mut a, from_a, &packet);
        }
        a.sender().flush().unwrap();
        while at_b.packets() < u32::from(FLOWS) {
            assert!(b.wait(Some(PATIENCE)).unwrap());
            receive(&mut b, &mut at_b);
        }
    }
    comes("the sessions' end", || {
        let report = report_over(server.connect().unwrap()).unwrap();
        report["device"]["addresses_in_use"] == 0
    });
    server.stop().unwrap();
}

#[test]
fn a_device_with_too_few_queues_is_refused() {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let store = Box::<MemoryStore>::default();
    let error = Server::start(&config(EngineStrategy::Block), Box::new(near), store).unwrap_err();
    assert!(matches!(error, StartError::Lanes { queues: 1, lanes: LANES, .. }), "{error}");
    let cpus = Config { engine_cpus: vec![0], ..config(EngineStrategy::Block) };
    let error = cpus.check().unwrap_err();
    assert!(matches!(error, StartError::Processors { given: 1, lanes: LANES }), "{error}");
}

/// A session without the client library, which can write anything.
struct Raw {
    channel: Channel,
    attached: message::Attached,
    memory: Vec<OwnedFd>,
    /// The transmit buffer pool.
    pool: Region,
    lanes: Vec<towpath_protocol::layout::ApplicationPages<towpath_queue::OwnWords>>,
}

fn raw(world: &World) -> Raw {
    let channel = Channel::new(world.server.connect().unwrap());
    let attach = Attach {
        queue_pairs: 1,
        endpoints: 1,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 2048,
        receive_buffer_bytes: 2048,
        name: message::fixed_name("hostile"),
        ipv4: [0; 4],
        flags: 0,
        apertures: 0,
        tripwires: 0,
    };
    let shape = SessionShape::new(1, 1, 8, 8, 2048, 2048).unwrap();
    channel.send(&Message::Attach(attach), &[]).unwrap();
    let Incoming::Message(Message::Attached(attached), memory) = channel.receive().unwrap() else {
        panic!("not attached")
    };
    assert_eq!((usize::from(attached.lanes), memory.len()), (LANES, 6 + LANES));
    let application = SharedFile::adopt(memory[3].try_clone().unwrap()).unwrap();
    let mut words = application.map_writable().unwrap();
    words.allocate().unwrap();
    let mut words = own_words(words);
    // From then on, the server permits no further writer.
    let pool = SharedFile::adopt(memory[4].try_clone().unwrap()).unwrap();
    let mut pool = pool.map_writable().unwrap();
    pool.allocate().unwrap();
    channel.send(&Message::Mapped, &[]).unwrap();
    let Incoming::Message(Message::Done, _) = channel.receive().unwrap() else {
        panic!("not mapped")
    };
    let part = |_| shape.application_own(words.split_off_front(shape.application_words()));
    let lanes = (0..LANES).map(part).collect();
    Raw { channel, attached, memory, pool, lanes }
}

impl Raw {
    /// Publishes a packet to the wire in one lane, without an event.
    fn publish(&mut self, lane: usize) {
        let open = message::Open::new_zeroed();
        self.channel.send(&Message::Open(open), &[]).unwrap();
        let Incoming::Message(Message::Opened(opened), _) = self.channel.receive().unwrap() else {
            panic!("not opened")
        };
        let shape = SessionShape::new(1, 1, 8, 8, 2048, 2048).unwrap();
        let server = SharedFile::adopt(self.memory[0].try_clone().unwrap()).unwrap();
        let words = towpath_memory::peer_words(&Arc::new(server.map_readable().unwrap()));
        let lane_words = shape.server_words();
        let pages = shape.server_peer(&words.part(lane * lane_words, lane_words));
        let own = self.lanes[lane].queue_pairs.pop().unwrap();
        let (queues, pool) = (&shape.queues, shape.receive_pool);
        let (mut transmit, _) = application_side(queues, pool, own, &pages.queue_pairs[0]);
        let (mac, ip) = (self.attached.mac, IpAddr::V4(self.attached.ipv4.into()));
        let flow = Flow { source: ip, destination: OUTSIDE.1, ..Flow::v4() }.macs(mac, OUTSIDE.0);
        let (packet, endpoint) = (flow.udp(b"late"), opened.endpoint);
        let len = packet.len() as u32;
        let descriptor = Descriptor { buffer: 0, start: HEADROOM_BYTES, len, endpoint, flags: 0 };
        assert!(self.pool.copy_in(descriptor.pool_offset(&shape.transmit_pool), &packet));
        assert!(transmit.push(&[descriptor]));
        transmit.publish();
    }

    /// Writes an impossible index in one lane, and notifies the engine.
    fn violate(&mut self, lane: usize) {
        self.lanes[lane].events.store(0, 1 << 40);
        rustix::io::write(&self.memory[6 + lane], &1u64.to_ne_bytes()).unwrap();
    }
}

/// An impossible index in one lane's part ends the session on all lanes. Other sessions go on, on
/// the same lane, too.
#[test]
fn a_violation_on_one_lane_ends_its_session_alone() {
    for lane in 0..LANES {
        let world = World::new(EngineStrategy::Block);
        let (mut a, from_a) = world.attach("a");
        let (mut b, _) = world.attach("b");
        let mut hostile = raw(&world);
        hostile.violate(lane);
        let violations = |world: &World| world.lanes("violations").iter().sum::<u64>();
        comes("the violation", || violations(&world) == 1);
        assert_eq!(world.lanes("violations")[lane], 1);
        // The doorbell hangs up once both engines have ended the session, for the reason that the
        // one wrote.
        comes("the end", || rustix::io::read(&hostile.memory[5], &mut [0; 64]) == Ok(0));
        let shape = SessionShape::new(1, 1, 8, 8, 2048, 2048).unwrap();
        let server = SharedFile::adopt(hostile.memory[0].try_clone().unwrap()).unwrap();
        let words = towpath_memory::peer_words(&Arc::new(server.map_readable().unwrap()));
        let closed = |lane| words.fetch(lane * shape.server_words()) as u32;
        assert!(Violation::from_number(closed(lane)).is_some(), "{}", closed(lane));
        assert_eq!(closed(1 - lane), 0);
        comes("its address", || world.report()["device"]["addresses_in_use"] == 2);
        let (to_b, mut at_b) = (address(&b), Order::default());
        for port in 0..FLOWS {
            let packet = flow(&a, to_b, port).udp(&0u32.to_le_bytes());
            send(&mut a, from_a, &packet);
        }
        a.sender().flush().unwrap();
        while at_b.packets() < u32::from(FLOWS) {
            assert!(b.wait(Some(PATIENCE)).unwrap());
            receive(&mut b, &mut at_b);
        }
        world.server.stop().unwrap();
    }
}

/// The packets of an application that detaches leave on every lane, also those without an event. After a violation on
/// one lane, the other lane sends no packet.
#[test]
fn last_packets_leave_on_every_lane_unless_one_lane_has_a_violation() {
    for (lane, violates) in [(0, true), (1, true), (0, false), (1, false)] {
        let mut world = World::new(EngineStrategy::Block);
        let mut hostile = raw(&world);
        hostile.publish(1 - lane);
        if violates {
            hostile.violate(lane);
            comes("the end", || rustix::io::read(&hostile.memory[5], &mut [0; 64]) == Ok(0));
        }
        drop(hostile);
        comes("its address", || world.report()["device"]["addresses_in_use"] == 0);
        let received = world.far[1 - lane].receive().is_some();
        assert_eq!(received, !violates, "violation on lane {lane}: {violates}");
        let ended = world.lanes("tx_dropped_session_ended");
        assert_eq!(ended[1 - lane], u64::from(violates), "it left or is counted");
        world.server.stop().unwrap();
    }
}
