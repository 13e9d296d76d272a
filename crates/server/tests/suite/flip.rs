//! The flip test on a live server. An application constantly changes the headers of its packets
//! between its own address and a forged one, while the server fetches and checks them. The server
//! delivers exactly the bytes that it checked: no forged packet ever arrives.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use towpath_client::{Options, QueuePair, Rule, Session};
use towpath_device_testing::loopback;
use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_packet::build::Flow;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{self, Attach, Message, Open};
use towpath_protocol::store::MemoryStore;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES};
use towpath_queue::doorbell::{self, PeerSleepFlag};
use towpath_queue::events::{self, Marker};
use towpath_queue::receive::application_side;
use towpath_queue::transmit::TransmitProducer;
use towpath_server::{Config, Server, Subnet, Subnets};

/// An application that uses the protocol without restraint.
struct Raw {
    _channel: Channel,
    _doorbell: std::os::fd::OwnedFd,
    wake: std::os::fd::OwnedFd,
    shape: SessionShape,
    heap: Option<Region>,
    transmit: TransmitProducer,
    marker: Marker,
    sleep_flag: PeerSleepFlag,
    mac: [u8; 6],
    ipv4: Ipv4Addr,
}

fn answer(channel: &Channel, message: &Message) -> (Message, Vec<std::os::fd::OwnedFd>) {
    channel.send(message, &[]).unwrap();
    match channel.receive().unwrap() {
        Incoming::Message(message, descriptors) => (message, descriptors),
        other => panic!("{other:?}"),
    }
}

impl Raw {
    fn attach(server: &Server, open: Open) -> Raw {
        let channel = Channel::new(server.connect().unwrap());
        let attach = Attach {
            queue_pairs: 1,
            endpoints: 1,
            transmit_slots: 64,
            receive_slots: 8,
            transmit_buffer_bytes: 2048,
            receive_buffer_bytes: 2048,
            name: message::fixed_name("raw"),
            ipv4: [0; 4],
            flags: 0,
            apertures: 0,
            tripwires: 0,
        };
        let shape = SessionShape::new(1, 1, 64, 8, 2048, 2048).unwrap();
        let (Message::Attached(attached), descriptors) = answer(&channel, &Message::Attach(attach))
        else {
            panic!("not attached");
        };
        let [server, _receive_pool, state, application, heap, doorbell, wake] =
            <[_; 7]>::try_from(descriptors).unwrap();
        let readable = |file| Arc::new(SharedFile::adopt(file).unwrap().map_readable().unwrap());
        let writable = |file| {
            let mut region = SharedFile::adopt(file).unwrap().map_writable().unwrap();
            region.allocate().unwrap();
            region
        };
        let (server, state) = (readable(server), readable(state));
        let (application, heap) = (writable(application), writable(heap));
        assert_eq!(answer(&channel, &Message::Mapped).0, Message::Done);
        assert!(matches!(answer(&channel, &Message::Open(open)).0, Message::Opened(_)));
        let pages = shape.server_peer(&peer_words(&server));
        let mut own = shape.application_own(own_words(application));
        let (transmit, _) = application_side(
            &shape.queues,
            shape.receive_pool,
            own.queue_pairs.remove(0),
            &pages.queue_pairs[0],
        );
        Raw {
            _channel: channel,
            _doorbell: doorbell,
            wake,
            shape,
            heap: Some(heap),
            transmit,
            marker: Marker::new(shape.events_to_server(), own.events, &pages.acknowledgements),
            sleep_flag: PeerSleepFlag::new(
                peer_words(&state).part(towpath_protocol::layout::STATE_SLEEP_WORD, 1),
            ),
            mac: attached.mac,
            ipv4: attached.ipv4.into(),
        }
    }

    fn flush(&mut self) {
        self.transmit.publish();
        self.marker.mark(events::fence(), 0).unwrap();
        if self.marker.publish()
            && self.sleep_flag.must_notify(doorbell::fence(), false) == doorbell::Due::Now
        {
            rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

/// The bytes that an application constantly changes: at an offset, between permitted and forbidden
/// values.
struct Flip {
    at: usize,
    good: Vec<u8>,
    forged: Vec<u8>,
}

const FORGED_MAC: [u8; 6] = [2, 0xba, 0xdb, 0xad, 0, 1];

/// Frames of a separate protocol take the full path through the server.
#[test]
fn checked_bytes_are_the_delivered_bytes() {
    let open = Open { given: message::RULE_ETHERTYPE, ethertype: 0x88b5, ..Open::default() };
    flip(open, &Rule::new().ethertype(0x88b5), |raw, to, len| {
        let mut buffer = [&to.info().mac.octets()[..], &raw.mac, &[0x88, 0xb5]].concat();
        buffer.resize(len, 0);
        let good = raw.mac.to_vec();
        (buffer, vec![Flip { at: 6, good, forged: FORGED_MAC.to_vec() }])
    });
}

/// UDP packets take the fast path.
#[test]
fn checked_bytes_of_plain_packets_are_the_delivered_bytes() {
    let given = message::RULE_PROTOCOL | message::RULE_PORT;
    let open = Open { given, protocol: 17, port: 1000, ..Open::default() };
    flip(open, &Rule::new().udp(2000), |raw, to, len| {
        let flow = Flow::v4()
            .macs(raw.mac, to.info().mac)
            .addresses(raw.ipv4, to.info().ipv4.unwrap().0)
            .ports(1000, 2000);
        let flips = vec![
            Flip { at: 6, good: raw.mac.to_vec(), forged: FORGED_MAC.to_vec() },
            Flip { at: 26, good: raw.ipv4.octets().to_vec(), forged: vec![10, 77, 0, 99] },
            Flip { at: 34, good: vec![3, 0xe8], forged: vec![0, 53] },
        ];
        (flow.udp(&vec![0; len - 42]), flips)
    });
}

fn flip(open: Open, rule: &Rule, buffer: impl Fn(&Raw, &Session, usize) -> (Vec<u8>, Vec<Flip>)) {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let config = Config {
        subnets: Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)), ipv6: None },
        ..Config::default()
    };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let mut raw = Raw::attach(&server, open);
    let mut receiver =
        Session::attach_over(server.connect().unwrap(), &Options::default()).unwrap();
    receiver.open(rule).unwrap();
    let buffer_start =
        |buffer: u32| raw.shape.transmit_pool.buffer_offset(buffer) + HEADROOM_BYTES as usize;
    let starts: Vec<usize> = (0..64).map(buffer_start).collect();
    // The engine copies small packets whole, and of larger ones the beginning.
    let length = |buffer: usize| if buffer.is_multiple_of(2) { 60 } else { 1400 };
    let mut flips = Vec::new();
    let mut heap = raw.heap.take().unwrap();
    for (number, start) in starts.iter().enumerate() {
        let (bytes, all) = buffer(&raw, &receiver, length(number));
        assert!(heap.copy_in(*start, &bytes));
        flips = all;
    }
    let stop = AtomicBool::new(false);
    let (mut arrived, mut wrong) = (0u64, 0u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for flip in &flips {
                    for bytes in [&flip.forged, &flip.good] {
                        for start in &starts {
                            let _ = heap.copy_in(start + flip.at, bytes);
                        }
                    }
                }
            }
        });
        let until = Instant::now() + Duration::from_millis(1500);
        let mut free: Vec<u32> = (0..64).collect();
        let mut iteration = 0u32;
        while Instant::now() < until {
            iteration += 1;
            while let Some(buffer) = free.pop() {
                let len = length(buffer as usize) as u32;
                let one = Descriptor { buffer, start: HEADROOM_BYTES, len, endpoint: 0, flags: 0 };
                if !raw.transmit.push(&[one]) {
                    free.push(buffer);
                    break;
                }
            }
            raw.flush();
            receiver
                .receiver()
                .receive(QueuePair::FIRST, 64, |packet| {
                    let bytes = packet.contiguous().unwrap();
                    arrived += 1;
                    let right = |flip: &Flip| bytes[flip.at..].starts_with(&flip.good);
                    wrong += u64::from(!flips.iter().all(right));
                })
                .unwrap();
            raw.transmit.reclaim(|buffer| free.push(buffer)).unwrap();
            if iteration.is_multiple_of(64) {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let report = report(&server);
    let counters = report["sessions"][0]["endpoints"][0]["counters"].as_object().unwrap();
    let refused: u64 = counters
        .iter()
        .filter(|(name, _)| name.starts_with("tx_dropped"))
        .map(|(_, count)| count.as_u64().unwrap())
        .sum();
    assert_eq!(
        wrong, 0,
        "of {arrived} packets, {wrong} came with an address that was never checked"
    );
    assert!(
        arrived > 1000 && refused > 1000,
        "arrived {arrived}, refused {refused}: nothing tried"
    );
    server.stop().unwrap();
}

fn report(server: &Server) -> serde_json::Value {
    towpath_client::report_over(server.connect().unwrap()).unwrap()
}
