//! The switch in memory, for the tests of programs.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use towpath_net::testing::{Fate, Faults, Switch};
use towpath_net::{Driving, Network, TcpListener, TcpStream, UdpSocket};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// Returns a switch with two hosts.
fn hosts() -> (Switch, Network, Network) {
    let switch = Switch::new();
    let (one, other) = (switch.host().unwrap(), switch.host().unwrap());
    (switch, one, other)
}

/// Returns faults with a change.
fn faults(change: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    change(&mut faults);
    faults
}

#[test]
fn a_stream_is_whole_over_a_switch_with_all_faults() {
    for at in ["10.0.0.1:80", "[fd00::1]:80"] {
        let (switch, server, client) = hosts();
        let listener = TcpListener::bind(&server, at).unwrap();
        let mut stream = TcpStream::connect(&client, at).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        switch.set_faults(faults(|faults| {
            (faults.loss, faults.duplication, faults.reordering) = (0.02, 0.02, 0.1);
            (faults.corruption, faults.seed) = (0.01, 7);
        }));
        let sent: Vec<u8> =
            (0..4_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let received = std::thread::scope(|scope| {
            let sent = &sent;
            scope.spawn(move || {
                stream.write_all(sent).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let receiving = scope.spawn(move || {
                accepted.set_read_timeout(LIMIT).unwrap();
                let mut received = Vec::new();
                accepted.read_to_end(&mut received).unwrap();
                received
            });
            // Retransmissions take no time.
            while !receiving.is_finished() {
                switch.advance(Duration::from_millis(1));
                std::thread::sleep(Duration::from_micros(100));
            }
            receiving.join().unwrap()
        });
        assert!(received == sent, "{at}: {} of {} bytes", received.len(), sent.len());
        let counters = switch.counters();
        let all = [counters.lost, counters.duplicated, counters.reordered, counters.corrupted];
        assert!(all.iter().all(|count| *count > 0) && counters.held == 0, "{at}: {counters:?}");
    }
}

/// Sends a thousand datagrams over a switch with a seed. Returns those that arrived.
fn arrived(seed: u64) -> BTreeSet<u32> {
    let (switch, one, other) = hosts();
    let receiver = UdpSocket::bind(&other, "10.0.0.2:7").unwrap();
    let sender = UdpSocket::bind(&one, "10.0.0.1:7").unwrap();
    let mut bytes = [0; 4];
    // The hosts know each other's link addresses afterwards.
    sender.send_to(&[0; 4], "10.0.0.2:7").unwrap();
    receiver.recv(&mut bytes).unwrap();
    switch.set_faults(faults(|faults| (faults.loss, faults.seed) = (0.3, seed)));
    for number in 0..1000_u32 {
        sender.send_to(&number.to_ne_bytes(), "10.0.0.2:7").unwrap();
    }
    // The last one arrives.
    switch.set_faults(Faults::default());
    sender.send_to(&u32::MAX.to_ne_bytes(), "10.0.0.2:7").unwrap();
    receiver.set_read_timeout(LIMIT).unwrap();
    let mut arrived = BTreeSet::new();
    while receiver.recv(&mut bytes).unwrap() == 4 && bytes != u32::MAX.to_ne_bytes() {
        arrived.insert(u32::from_ne_bytes(bytes));
    }
    assert_eq!(arrived.len() as u64, 1000 - switch.counters().lost);
    arrived
}

#[test]
fn the_same_seed_loses_the_same_frames() {
    let first = arrived(3);
    assert!((600..800).contains(&first.len()), "{}", first.len());
    assert_eq!(first, arrived(3));
    assert_ne!(first, arrived(4));
}

#[test]
fn frames_of_a_group_reach_all_other_hosts() {
    let (switch, one, other) = hosts();
    let third = switch.host().unwrap();
    let receivers = [&other, &third].map(|host| UdpSocket::bind(host, "0.0.0.0:7").unwrap());
    let sender = UdpSocket::bind(&one, "10.0.0.1:0").unwrap();
    sender.set_broadcast(true).unwrap();
    sender.send_to(b"to all", "10.0.0.255:7").unwrap();
    for receiver in receivers {
        receiver.set_read_timeout(LIMIT).unwrap();
        let mut bytes = [0; 16];
        let (len, from) = receiver.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], from), (&b"to all"[..], sender.local_addr().unwrap()));
    }
}

#[test]
fn the_clock_of_hosts_advances_for_their_timers_alone() {
    let (switch, server, client) = hosts();
    let listener = TcpListener::bind(&server, "10.0.0.1:80").unwrap();
    let mut stream = TcpStream::connect(&client, "10.0.0.1:80").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    // A lost segment comes again only by a timer.
    switch.set_filter(|frame| if frame.len() > 80 { Fate::Lose } else { Fate::Deliver });
    stream.write_all(&[7; 100]).unwrap();
    while switch.counters().lost == 0 {
        std::thread::yield_now();
    }
    switch.set_filter(|_| Fate::Deliver);
    switch.advance(Duration::from_secs(120));
    let mut received = [0; 100];
    accepted.set_read_timeout(LIMIT).unwrap();
    accepted.read_exact(&mut received).unwrap();
    assert_eq!(received, [7; 100]);
    // A call's timeout is of the machine's clock.
    accepted.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| accepted.read(&mut received).unwrap());
        switch.advance(Duration::from_secs(120));
        stream.write_all(b"later").unwrap();
        assert_eq!(waits.join().unwrap(), 5);
    });
}

#[test]
fn a_host_may_be_driven_by_its_program() {
    let switch = Switch::new();
    let echo = switch.host().unwrap();
    let host = switch.host_with(Network::builder().driving(Driving::Application)).unwrap();
    let far = UdpSocket::bind(&echo, "[fd00::1]:7").unwrap();
    let near = UdpSocket::bind(&host, "[fd00::2]:0").unwrap();
    near.send_to(b"question", "[fd00::1]:7").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 16];
            let (len, from) = far.recv_from(&mut bytes).unwrap();
            far.send_to(&bytes[..len], from).unwrap();
        });
        near.set_read_timeout(LIMIT).unwrap();
        assert_eq!(near.recv(&mut [0; 16]).unwrap(), 8);
    });
}

#[test]
fn what_a_switch_has_no_room_for_is_counted_or_refused() {
    let (switch, one, other) = hosts();
    let receiver = UdpSocket::bind(&other, "10.0.0.2:7").unwrap();
    let sender = UdpSocket::bind(&one, "10.0.0.1:7").unwrap();
    sender.send_to(b"first", "10.0.0.2:7").unwrap();
    receiver.recv(&mut [0; 16]).unwrap();
    // Datagrams alone: IPv4, with the protocol UDP.
    switch.set_filter(|frame| match (&frame[12..14], frame[23]) {
        ([8, 0], 17) => Fate::Hold,
        _ => Fate::Deliver,
    });
    for _ in 0..5000 {
        sender.send_to(b"held", "10.0.0.2:7").unwrap();
    }
    // The switch is locked meanwhile, so the receiver takes none.
    assert_eq!(switch.release(), 5000);
    let counters = switch.counters();
    assert_eq!((counters.held, counters.overflowed, other.lost()), (5000, 904, 904));
    let switch = Switch::new();
    let builder = || Network::builder().driving(Driving::Application);
    let hosts: Vec<_> = (0..254).map(|_| switch.host_with(builder()).unwrap()).collect();
    let error = switch.host_with(builder()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{error}");
    let addresses = hosts[253].addresses();
    assert!(addresses.contains(&"10.0.0.254".parse().unwrap()), "{addresses:?}");
}
