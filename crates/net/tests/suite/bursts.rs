//! A burst of packets that arrive while no thread of the network runs.

use std::time::{Duration, Instant};

use towpath_client::{Options, Session, report_over};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_net::{Driving, Network, SessionLink, UdpSocket};
use towpath_packet::build::Flow;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets};

/// The time for the whole burst.
const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 7;
/// The packets of the burst: as many as a network has receive buffers.
const BURST: u32 = 4096;
/// The most packets that wait at the server's device: fewer than the engine drops as over budget.
const BATCH: u32 = 64;

/// Returns the number of packets that the session received, and the number that the engine dropped without a buffer.
fn received(server: &Server) -> (u64, u64) {
    let report = report_over(server.connect().unwrap()).unwrap();
    let endpoints = report["sessions"][0]["endpoints"].as_array().unwrap();
    let count = |name: &str| {
        let counts = endpoints.iter().filter_map(|one| one["counters"][name].as_u64());
        counts.sum()
    };
    (count("rx_packets"), count("rx_dropped_no_buffers"))
}

#[test]
fn a_network_has_a_buffer_for_each_packet_of_a_long_burst() {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let subnets = Subnets { ipv4: Some(Subnet::new([10, 77, 0, 1].into(), 24)), ipv6: None };
    let config = Config { subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let session = Session::attach_over(server.connect().unwrap(), &SessionLink::options("burst"));
    let session = session.unwrap();
    let (mac, own) = (session.info().mac, session.info().ipv4.unwrap().0);
    // With this setting, a thread drives the network only while it is in a call.
    let network = Network::builder().driving(Driving::Application).over(session).unwrap();
    let socket = UdpSocket::bind(&network, (own, PORT)).unwrap();
    let flow = Flow::v4().macs([2, 0, 0, 0, 0, 99], mac).ports(9, PORT);
    let flow = flow.addresses(std::net::Ipv4Addr::new(10, 77, 0, 99), own);
    let until = Instant::now() + PATIENCE;
    for number in 0..BURST {
        while !far.send(&flow.udp(&number.to_be_bytes()), Meta::FULL) {
            assert!(Instant::now() < until, "the server takes nothing any more");
            std::thread::yield_now();
        }
        while (number + 1) % BATCH == 0 && received(&server).0 <= u64::from(number) {
            assert!(Instant::now() < until, "{:?} of {}", received(&server), number + 1);
        }
    }
    assert_eq!(received(&server), (BURST.into(), 0));
    let mut payload = [0; 8];
    for number in 0..BURST {
        assert_eq!(socket.recv(&mut payload).unwrap(), 4);
        assert_eq!(payload[..4], number.to_be_bytes());
    }
    server.stop().unwrap();
}

/// A program that does not drive its network fast enough learns how many packets it has lost.
#[test]
fn a_network_counts_what_was_lost_before_it() {
    const BUFFERS: u32 = 64;
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let mut far = DeviceFarEnd::new(Box::new(far));
    let subnets = Subnets { ipv4: Some(Subnet::new([10, 77, 0, 1].into(), 24)), ipv6: None };
    let config = Config { subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let options = Options { receive_slots: BUFFERS, ..SessionLink::options("lost") };
    let session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    let (mac, own) = (session.info().mac, session.info().ipv4.unwrap().0);
    let network = Network::builder().driving(Driving::Application).over(session).unwrap();
    let socket = UdpSocket::bind(&network, (own, PORT)).unwrap();
    assert_eq!(network.lost(), 0);
    let flow = Flow::v4().macs([2, 0, 0, 0, 0, 99], mac).ports(9, PORT);
    let flow = flow.addresses(std::net::Ipv4Addr::new(10, 77, 0, 99), own);
    let until = Instant::now() + PATIENCE;
    for number in 0..2 * BUFFERS {
        while !far.send(&flow.udp(&number.to_be_bytes()), Meta::FULL) {
            assert!(Instant::now() < until, "the server takes nothing any more");
            std::thread::yield_now();
        }
        while received(&server).0 + received(&server).1 <= u64::from(number) {
            assert!(Instant::now() < until, "{:?} of {}", received(&server), number + 1);
        }
    }
    let (_, dropped) = received(&server);
    assert!(dropped > 0, "the session has {BUFFERS} buffers");
    assert_eq!(network.lost(), dropped);
    assert_eq!(socket.dropped().unwrap(), 0, "the socket's queue was not full");
    server.stop().unwrap();
}
