//! The engine and an application in two threads of one process, over one mapping of each memory.
//!
//! Elsewhere both sides map a memory file each, at two addresses, and ThreadSanitizer finds no race
//! between them. Here it sees each access of both. The application writes and reads its buffers
//! with plain accesses, as the client library does, so each packet shows whether the queues order
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use towpath_device_testing::loopback;
use towpath_engine::commands::Command;
use towpath_engine::last_sent::LastSent;
use towpath_engine::relays::Relays;
use towpath_engine::rights::{Addresses, Rights};
use towpath_engine::session::Session;
use towpath_engine::session::doorbell::Doorbell;
use towpath_engine::session::endpoints::Endpoint;
use towpath_engine::session::memories::Memories;
use towpath_engine::{Budgets, ControlLink, Engine};
use towpath_memory::{Mapping, Region, own_words, peer_words};
use towpath_packet::build::Flow;
use towpath_packet::{FlowRule, FlowVlan};
use towpath_protocol::layout::{STATE_WORDS, SessionShape};
use towpath_protocol::position::Position;
use towpath_queue::buffers::FreeBuffers;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN};
use towpath_queue::events::{self, Acknowledger, Marker};
use towpath_queue::receive::{ReceiveConsumer, application_side};
use towpath_queue::transmit::TransmitProducer;
use towpath_server::{Values, WaitStrategy as EngineStrategy};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PORT: u16 = 2000;
const SLOTS: u32 = 16;
const PACKETS: u64 = 5_000;
/// The maximum number of packets in flight: with three buffers each, they fit into the receive
/// queue.
const OUT: u64 = 4;
/// A packet that the engine copies whole, one whose beginning it copies, and one of several
/// buffers.
const BODY_BYTES: [usize; 3] = [18, 1400, 4000];

struct Application {
    shape: SessionShape,
    transmit: TransmitProducer,
    receive: ReceiveConsumer,
    marker: Marker,
    events: Acknowledger,
    free: FreeBuffers,
    transmit_pool: Region,
    receive_pool: Arc<Mapping>,
}

fn region(bytes: usize) -> Region {
    Region::private(bytes).unwrap()
}

/// Makes a session with one queue pair, and its application's side.
fn session() -> (Session, Application) {
    let shape = SessionShape::new(1, 1, SLOTS, SLOTS, 2048, 2048).unwrap();
    let server = region(shape.server_words() * 8);
    let application = region(shape.application_words() * 8);
    let ledger = region(shape.ledger_words() * 8);
    let receive_pool = region(shape.receive_pool.pool_bytes());
    let transmit_pool = region(shape.transmit_pool.pool_bytes());
    let pages = shape.server_peer(&peer_words(server.mapping()));
    let reader = receive_pool.mapping().clone();
    let memories = Memories {
        server,
        application: application.mapping().clone(),
        ledger,
        receive_pool,
        transmit_pool: transmit_pool.mapping().clone(),
        armed: None,
    };
    let mut own = shape.application_own(own_words(application));
    let words = own.queue_pairs.remove(0);
    let (transmit, mut receive) =
        application_side(&shape.queues, shape.receive_pool, words, &pages.queue_pairs[0]);
    for buffer in 0..SLOTS {
        assert!(receive.provide(buffer));
    }
    receive.publish();
    let (_bell, doorbell) = std::os::unix::net::UnixStream::pair().unwrap();
    let doorbell = Doorbell::direct(doorbell.into());
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let session = Session::new(1, shape, memories, doorbell, wake);
    let application = Application {
        shape,
        transmit,
        receive,
        marker: Marker::new(shape.events_to_server(), own.events, &pages.acknowledgements),
        events: Acknowledger::new(shape.events_to_server(), own.acknowledgements, &pages.events),
        free: FreeBuffers::new(0, SLOTS),
        transmit_pool,
        receive_pool: reader,
    };
    (session, application)
}

impl Application {
    /// Sends a packet in as many buffers as it needs. Returns `false` if there are too few.
    fn send(&mut self, packet: &[u8]) -> bool {
        let heap = self.shape.transmit_pool;
        let pieces = packet.chunks(heap.data_bytes() as usize);
        if self.free.len() < pieces.len() || (self.transmit.room() as usize) < pieces.len() {
            return false;
        }
        let chain: Vec<Descriptor> = pieces
            .map(|piece| {
                let buffer = self.free.take().unwrap();
                let len = piece.len() as u32;
                let one = Descriptor { buffer, start: HEADROOM_BYTES, len, endpoint: 0, flags: 0 };
                let at = one.pool_offset(&heap);
                // SAFETY: the buffer is free: no queue holds it, so the engine does not read it.
                let bytes = unsafe { self.transmit_pool.bytes_mut(at, piece.len()) };
                bytes.unwrap().copy_from_slice(piece);
                one
            })
            .collect();
        assert!(self.transmit.push(&chain));
        true
    }

    fn publish(&mut self) {
        // The application provides read buffers again before it sends more.
        self.receive.publish();
        self.transmit.publish();
        self.marker.mark(events::fence(), 0).unwrap();
        self.marker.publish();
    }

    /// Returns the next received packet.
    fn receive(&mut self) -> Option<Vec<u8>> {
        self.events.take(1, |_| {}).unwrap();
        self.receive.observe().unwrap();
        let mut chain = [Descriptor::default(); MAX_CHAIN];
        let count = self.receive.take(&mut chain).unwrap();
        let mut packet = Vec::new();
        for one in &chain[..count] {
            let at = one.pool_offset(&self.shape.receive_pool);
            // SAFETY: the queue gave the buffer to this side, and the engine writes it only after
            // this side has provided it again.
            let bytes = unsafe { self.receive_pool.bytes(at, one.len as usize) };
            packet.extend_from_slice(bytes.unwrap());
            assert!(self.receive.provide(one.buffer));
        }
        (count > 0).then_some(packet)
    }
}

#[test]
fn packets_are_handed_over_without_a_race() {
    let (mut near, _far) =
        loopback::pair(&loopback::Config { mtu: 9000, ..loopback::Config::default() }).unwrap();
    let event = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    let (commands, engine_commands) = channel();
    let (engine_events, _events) = channel();
    let (wake, control_wake, relays) = (event(), event(), Relays::none().unwrap());
    let link = ControlLink {
        lane: 0,
        commands: engine_commands,
        reports: engine_events,
        wake,
        control_wake,
        relays,
        has_successor: false,
        position: Position::default(),
        rdma: None,
    };
    let budgets =
        Budgets { batch: 64, receive_budget: 1024, transmit_budget: 64, iteration_budget: 512 };
    let values = Values::from(EngineStrategy::Poll);
    let state = region(STATE_WORDS * 8);
    let mut engine = Engine::new(&mut near, state, 1, 1, &values, budgets, link).unwrap();
    let (session, mut application) = session();
    commands.send((0, Command::AddSession(Box::new(session)))).unwrap();
    let rule = FlowRule {
        mac: Some(MAC),
        vlan: FlowVlan::Untagged,
        protocol: Some(17),
        port: Some(PORT),
        ..FlowRule::default()
    };
    let flow = Flow::v4().macs(MAC, MAC).ports(PORT, PORT);
    let flow = Flow { source: flow.destination, ..flow };
    let std::net::IpAddr::V4(ip) = flow.source else { unreachable!() };
    let addresses = Addresses { ipv4: Some(ip.to_bits()), ipv6: [None; 2] };
    let endpoint = Box::new(Endpoint {
        queue_pair: 0,
        rule,
        rights: Rights::new(rule, MAC, addresses),
        offload: false,
        within: None,
        captures: false,
        is_resumed: false,
        coalescing: (1, 0),
        iteration: 0,
        received: 0,
        requests_left: None,
        last_sent: LastSent::default(),
        oob: Box::default(),
        reachable: Box::default(),
    });
    let add =
        Command::AddEndpoint { session: 1, number: 0, endpoint, listening: None, group: false };
    commands.send((0, add)).unwrap();
    engine.poll_once().unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let far_stop = stop.clone();
    let engine = thread::spawn(move || {
        while !far_stop.load(Ordering::Relaxed) {
            if engine.poll_once().unwrap() == 0 {
                thread::yield_now();
            }
        }
    });
    let packet = |number: u64| {
        let mut body = vec![number as u8; BODY_BYTES[number as usize % BODY_BYTES.len()]];
        body[..8].copy_from_slice(&number.to_ne_bytes());
        flow.udp(&body)
    };
    let (mut sent, mut received) = (0, 0);
    while received < PACKETS {
        while sent < PACKETS.min(received + OUT) && application.send(&packet(sent)) {
            sent += 1;
        }
        application.publish();
        let mut came = 0;
        while let Some(bytes) = application.receive() {
            assert_eq!(bytes, packet(received), "packet {received}");
            received += 1;
            came += 1;
        }
        let free = &mut application.free;
        application.transmit.reclaim(|buffer| free.release(buffer)).unwrap();
        if came == 0 {
            thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    engine.join().unwrap();
}
