//! A server in this process over an in-memory device, with sessions attached to it: what is sent
//! by one is received by the other, and by the device's far end.

use std::time::Duration;

use towpath_client::{AttachError, Lost, Meta, Options, Rule, SendError, Session};
use towpath_device::conformance::DeviceFarEnd;
use towpath_device::loopback;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Mode, Server, Subnets};

fn serve(mode: Mode) -> (Server, loopback::LoopbackDevice) {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let subnets = Subnets {
        ipv4: Some(("10.77.0.1".parse().unwrap(), 24)),
        ipv6: Some(("fd77::1".parse().unwrap(), 64)),
    };
    let config = Config { settings: mode.into(), subnets, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    (server, far)
}

fn attach(server: &Server, name: &str) -> Session {
    let options = Options { name: name.into(), ..Options::default() };
    Session::attach_over(server.connect().unwrap(), &options).unwrap()
}

fn frame(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&from);
    frame.extend_from_slice(&[0x88, 0xb5]);
    frame.extend_from_slice(&number.to_le_bytes());
    frame.resize(60 + (number as usize * 7) % 1400, number as u8);
    frame
}

fn exchange(mode: Mode) {
    let (server, _far) = serve(mode);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let (from_a, from_b) = (a.open(&rule).unwrap(), b.open(&rule).unwrap());
    let (mac_a, mac_b) = (a.info().mac, b.info().mac);
    assert_eq!(a.info().ipv4, Some(("10.77.0.2".parse().unwrap(), 24)));
    for number in 0..5000 {
        let packet = frame(mac_b, mac_a, number);
        a.send_bytes(from_a, &packet).unwrap();
        a.flush().unwrap();
        assert!(b.wait(Some(Duration::from_secs(5))).unwrap());
        let got = b.receive_one(0).unwrap().unwrap();
        assert_eq!(got, packet);
        b.send_bytes(from_b, &frame(mac_a, mac_b, number)).unwrap();
        b.flush().unwrap();
        assert!(a.wait(Some(Duration::from_secs(5))).unwrap());
        assert_eq!(a.receive_one(0).unwrap().unwrap(), frame(mac_a, mac_b, number));
    }
    let counters: std::collections::BTreeMap<_, _> = a.counters(from_a).into_iter().collect();
    assert_eq!(counters["tx_packets"], 5000);
    assert_eq!(counters["rx_packets"], 5000);
    assert_eq!(counters["rx_copies"], 5000, "one copy a packet received");
    assert_eq!(counters["tx_copies"], 5000, "at most one copy a packet sent");
    server.stop().unwrap();
}

#[test]
fn endpoint_to_endpoint_asleep() {
    exchange(Mode::Interrupt);
}

#[test]
fn endpoint_to_endpoint_polling() {
    exchange(Mode::Poll);
}

#[test]
fn to_the_far_end_and_back() {
    use towpath_device::conformance::FarEnd;
    let (server, far) = serve(Mode::Interrupt);
    let mut far = DeviceFarEnd::new(Box::new(far));
    let mut a = attach(&server, "a");
    let endpoint = a.open(&Rule::new().ethertype(0x88b5).with_group()).unwrap();
    let mac = a.info().mac;
    let other = [2, 9, 9, 9, 9, 9];
    for number in 0..300 {
        a.send_bytes(endpoint, &frame(other, mac, number)).unwrap();
        a.flush().unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(5);
        let (seen, _) = loop {
            assert!(std::time::Instant::now() < until, "nothing arrived");
            if let Some(seen) = far.receive() {
                break seen;
            }
        };
        assert_eq!(seen, frame(other, mac, number));
        for to in [mac, [0xff; 6]] {
            assert!(far.send(&frame(to, other, number), Meta::FINISHED));
            assert!(a.wait(Some(Duration::from_secs(5))).unwrap());
            assert_eq!(a.receive_one(0).unwrap().unwrap(), frame(to, other, number));
        }
    }
    server.stop().unwrap();
}

#[test]
fn a_full_queue_is_back_pressure_and_room_wakes() {
    let (server, _far) = serve(Mode::Interrupt);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let endpoint = a.open(&rule).unwrap();
    let theirs = b.open(&rule).unwrap();
    let packet = frame(b.info().mac, a.info().mac, 1);
    let mut sent = 0u64;
    for _ in 0..20_000 {
        loop {
            match a.send_bytes(endpoint, &packet) {
                Ok(()) => break,
                Err(SendError::Full) => {
                    a.want_room(0).unwrap();
                    assert!(a.wait(Some(Duration::from_secs(5))).unwrap(), "no room came");
                    a.receive(0, 1, |_| ()).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        sent += 1;
    }
    a.flush().unwrap();
    while a.unsent(0).unwrap() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Nobody read: the receiver's frames are full, the rest was dropped and counted there.
    let received = b.counters(theirs).into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(received["rx_packets"] + received["rx_dropped_no_frames"], sent);
    assert_eq!(received["rx_packets"], 256);
    server.stop().unwrap();
}

#[test]
fn the_servers_end_is_noticed_at_once() {
    let (server, _far) = serve(Mode::Interrupt);
    let mut a = attach(&server, "a");
    a.open(&Rule::new()).unwrap();
    let waiter = std::thread::spawn(move || {
        let outcome = a.wait(Some(Duration::from_secs(30)));
        (outcome, std::time::Instant::now())
    });
    std::thread::sleep(Duration::from_millis(100));
    let stopped = std::time::Instant::now();
    server.stop().unwrap();
    let (outcome, at) = waiter.join().unwrap();
    assert_eq!(outcome, Err(Lost::ServerGone));
    assert!(at.duration_since(stopped) < Duration::from_millis(100));
}

#[test]
fn who_forges_is_counted_and_not_sent() {
    let (server, _far) = serve(Mode::Interrupt);
    let (mut a, mut b) = (attach(&server, "a"), attach(&server, "b"));
    let rule = Rule::new().ethertype(0x88b5);
    let endpoint = a.open(&rule).unwrap();
    b.open(&rule).unwrap();
    // Somebody else's address.
    a.send_bytes(endpoint, &frame(b.info().mac, [2, 1, 1, 1, 1, 1], 1)).unwrap();
    // Another ethertype than the rule's.
    let mut other = frame(b.info().mac, a.info().mac, 2);
    other[13] = 0xb6;
    a.send_bytes(endpoint, &other).unwrap();
    a.send_bytes(endpoint, &frame(b.info().mac, a.info().mac, 3)).unwrap();
    a.flush().unwrap();
    assert!(b.wait(Some(Duration::from_secs(5))).unwrap());
    assert_eq!(b.receive_one(0).unwrap().unwrap(), frame(b.info().mac, a.info().mac, 3));
    let counters: std::collections::BTreeMap<_, _> = a.counters(endpoint).into_iter().collect();
    assert_eq!(counters["tx_dropped_source_mac"], 1);
    assert_eq!(counters["tx_dropped_outside_rule"], 1);
    server.stop().unwrap();
}

#[test]
fn rules_belong_to_one() {
    let (server, _far) = serve(Mode::Interrupt);
    let mut a = attach(&server, "a");
    let rule = Rule::new().udp(53);
    let endpoint = a.open(&rule).unwrap();
    let twice = a.open(&rule).unwrap_err().to_string();
    assert!(twice.contains("same flow rule"), "{twice}");
    a.close(endpoint).unwrap();
    a.open(&rule).unwrap();
    let stolen = a.open(&Rule::new().ip("10.77.0.9".parse().unwrap())).unwrap_err().to_string();
    assert!(stolen.contains("10.77.0.9"), "{stolen}");
    drop(a);
    let too_large = Options { transmit_slots: 1 << 18, ..Options::default() };
    let refused = Session::attach_over(server.connect().unwrap(), &too_large).unwrap_err();
    assert!(matches!(refused, AttachError::Refused { .. }), "{refused}");
    server.stop().unwrap();
}
