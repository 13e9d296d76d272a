//! Asserts that nothing allocates per packet: not the engine, the control thread, an application or
//! the far end of the device. The count covers the whole process, so this program has one test and
//! no further threads.

use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SegmentationKind, Session};
use towpath_device_testing::loopback;
use towpath_packet::build::{Flow, Tcp};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy as EngineStrategy};
use towpath_testkit::{Allocations, CountingAllocator};
use towpath_tests::far::Echo;
use towpath_tests::{PATIENCE, frames};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const BATCH: u64 = 16;

struct Bench {
    a: Session,
    b: Session,
    of_a: Endpoint,
    far: Echo,
    large: (Vec<u8>, Meta),
}

impl Bench {
    fn send(&mut self, to: [u8; 6], number: u64) {
        let own = self.a.info().mac;
        self.a
            .sender()
            .send(self.of_a, frames::len(1, number), Meta::FULL, |parts| {
                frames::write(parts[0], to, own.octets(), 1, number);
            })
            .expect("there is room");
    }

    /// Sends a batch to the other session, one through the device and back, and a large packet that
    /// the engine segments.
    fn round(&mut self, number: u64) {
        let (own, other) = (self.a.info().mac, self.b.info().mac);
        for step in number..number + BATCH {
            self.send(other.octets(), step);
            self.send(frames::ELSEWHERE, step);
        }
        self.a.sender().flush().expect("lives");
        for (session, from) in [(&mut self.b, own), (&mut self.a, frames::ELSEWHERE.into())] {
            let to = session.info().mac;
            let mut next = number;
            while next < number + BATCH {
                self.far.turn().expect("the device is there");
                session
                    .receiver()
                    .receive(QueuePair::FIRST, 64, |packet| {
                        let seen = packet.contiguous().expect("frames are larger");
                        frames::check(seen, to, from, 1, next).expect("the sent frame");
                        next += 1;
                    })
                    .expect("lives");
            }
        }
        let (large, meta) = &self.large;
        self.a
            .sender()
            .send(self.of_a, large.len(), *meta, |parts| {
                let mut rest = &large[..];
                for part in parts {
                    let (now, later) = rest.split_at(part.len());
                    part.copy_from_slice(now);
                    rest = later;
                }
            })
            .expect("there is room");
        self.a.sender().flush().expect("lives");
        let mut payload = 0;
        while payload < 20_000 {
            assert!(self.b.wait(Some(PATIENCE)).expect("lives"), "{payload} bytes came");
            self.b
                .receiver()
                .receive(QueuePair::FIRST, 64, |packet| payload += packet.len() - 54)
                .expect("lives");
        }
        assert_eq!(payload, 20_000);
    }
}

fn of_packets(mode: EngineStrategy) -> Allocations {
    let (near, far) = loopback::pair(&loopback::Config::default()).expect("a loopback");
    let subnets = Subnets {
        ipv4: Some(Subnet::new("10.77.0.1".parse().expect("an address"), 24)),
        ..Subnets::default()
    };
    let config = Config { settings: mode.into(), subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default())
        .expect("the server starts");
    let attach = || {
        let socket = server.connect().expect("a connection");
        let mut session = Session::attach_over(socket, &Options::default()).expect("attaches");
        let endpoint = session.open(&Rule::new()).expect("opens");
        (session, endpoint)
    };
    let ((a, of_a), (b, _)) = (attach(), attach());
    let ip = |session: &Session| session.info().ipv4.expect("an address").0;
    let flow = Flow::v4().macs(a.info().mac, b.info().mac).addresses(ip(&a), ip(&b));
    let large = flow.tcp_large(&Tcp::default(), &[7; 20_000], 1400);
    assert_eq!(large.1.segmentation.map(|one| one.kind), Some(SegmentationKind::Tcp4));
    let mut bench = Bench { a, b, of_a, far: Echo::new(Box::new(far)), large };
    for round in 0..100 {
        bench.round(round * BATCH);
    }
    let before = ALLOCATOR.of_process();
    for round in 100..700 {
        bench.round(round * BATCH);
    }
    let counted = ALLOCATOR.of_process().since(&before);
    // The far end goes last: without it the device is gone.
    let Bench { a, b, far, .. } = bench;
    drop((a, b));
    server.stop().expect("the server ends well");
    drop(far);
    counted
}

#[test]
fn no_allocation_for_any_packet() {
    assert!(CountingAllocator::is_installed());
    for mode in [EngineStrategy::Poll, EngineStrategy::Block] {
        let counted = of_packets(mode);
        assert_eq!(counted.calls(), 0, "{mode:?}: {counted:?}");
    }
}
