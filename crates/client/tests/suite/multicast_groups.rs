//! The multicast groups of addresses that the engine answers for: reports at the start and to queries.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::connections::{PATIENCE, PORT, open, options};
use towpath_client::Session;
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_packet::checksum::Sum;
use towpath_packet::ipv6::{link_local, solicited_node};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy};

const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 99];
/// The types of records (RFC 3810, 5.2.12).
const IS_EXCLUDE: u8 = 2;
const TO_EXCLUDE: u8 = 4;

fn serve() -> (Server, DeviceFarEnd) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let far = DeviceFarEnd::new(Box::new(far));
    let ipv4 = Some(Subnet::new(Ipv4Addr::new(10, 77, 0, 1), 24));
    let ipv6 = Some(Subnet::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1), 64));
    let settings = WaitStrategy::Block.into();
    let subnets = Subnets { ipv4, ipv6 };
    let config = Config { settings, subnets, rdma: true, ..Config::default() };
    (Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap(), far)
}

fn attach(server: &Server) -> (Session, [u8; 6], Ipv6Addr) {
    let session = Session::attach_over(server.connect().unwrap(), &options("application")).unwrap();
    let (mac, (address, _)) = (session.info().mac, session.info().ipv6.unwrap());
    (session, mac.octets(), solicited_node(address))
}

/// Returns a general query of a router, which asks for answers within `delay_ms`.
fn query(delay_ms: u16) -> Vec<u8> {
    let (from, to) = (link_local(ROUTER_MAC), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let mut message = vec![130, 0, 0, 0];
    message.extend_from_slice(&delay_ms.to_be_bytes());
    message.resize(28, 0);
    let mut sum = Sum::pseudo6(from.to_bits(), to.to_bits(), 58, message.len() as u32);
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend_from_slice(&ROUTER_MAC);
    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8 + 28, 0, 1]);
    frame.extend_from_slice(&from.octets());
    frame.extend_from_slice(&to.octets());
    frame.extend_from_slice(&[58, 0, 5, 2, 0, 0, 1, 0]);
    frame.extend_from_slice(&message);
    frame
}

/// Waits for the next report. Returns its link address, and the type and group of its only record.
fn next_report(far: &mut DeviceFarEnd) -> ([u8; 6], u8, Ipv6Addr) {
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "no report came");
        let Some((frame, _)) = far.receive() else {
            std::thread::yield_now();
            continue;
        };
        if frame.get(62) != Some(&143) {
            continue;
        }
        let mac = *frame[6..].first_chunk().unwrap();
        assert_eq!(frame[22..38], link_local(mac).octets());
        assert_eq!(frame[62..].len(), 8 + 20, "one record");
        let group = Ipv6Addr::from(*frame[74..].first_chunk::<16>().unwrap());
        return (mac, frame[70], group);
    }
}

#[test]
fn the_engine_reports_the_groups_of_addresses_that_it_answers_for() {
    let (server, mut far) = serve();
    let (mut one, one_mac, one_group) = attach(&server);
    open(&mut one, PORT);
    // Twice: a report may be lost.
    assert_eq!(next_report(&mut far), (one_mac, TO_EXCLUDE, one_group));
    assert_eq!(next_report(&mut far), (one_mac, TO_EXCLUDE, one_group));
    let (mut two, two_mac, two_group) = attach(&server);
    open(&mut two, PORT);
    for _ in 0..2 {
        assert_eq!(next_report(&mut far), (two_mac, TO_EXCLUDE, two_group));
    }
    assert!(far.send(&query(1), Meta::FULL));
    let mut answers = [next_report(&mut far), next_report(&mut far)];
    answers.sort_unstable();
    let mut expected = [(one_mac, IS_EXCLUDE, one_group), (two_mac, IS_EXCLUDE, two_group)];
    expected.sort_unstable();
    assert_eq!(answers, expected);
    // The engine does not report the group of a session that has ended. Before that, each query has two answers, so at
    // most two in succession are of one session.
    drop(one);
    let until = Instant::now() + PATIENCE;
    let mut in_succession = 0;
    while in_succession < 3 {
        assert!(Instant::now() < until, "a session that has ended still has a group");
        // Answers are at least 100 ms apart.
        std::thread::sleep(Duration::from_millis(150));
        assert!(far.send(&query(1), Meta::FULL));
        let is_of_two = next_report(&mut far) == (two_mac, IS_EXCLUDE, two_group);
        in_succession = if is_of_two { in_succession + 1 } else { 0 };
    }
    server.stop().unwrap();
}
