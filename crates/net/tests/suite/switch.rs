//! The switch in memory, for the tests of programs.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_net::testing::{Fate, Faults, Switch};
use towpath_net::{Config, Driving, KeepAlive, Network, TcpListener, TcpStream, UdpSocket};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// Returns a switch with two hosts.
fn hosts() -> (Switch, Network, Network) {
    let switch = Switch::new();
    let (one, other) = (switch.host().unwrap(), switch.host().unwrap());
    (switch, one, other)
}

pub(crate) fn without_ipv6(config: &mut Config) {
    config.ipv6.clear();
    config.ipv6_link_local = false;
}

/// Returns sockets of two hosts, the sender's first. The hosts know each other's link addresses.
fn sockets(one: &Network, other: &Network) -> (UdpSocket, UdpSocket) {
    let receiver = UdpSocket::bind(other, "10.0.0.2:7").unwrap();
    let sender = UdpSocket::bind(one, "10.0.0.1:7").unwrap();
    receiver.set_read_timeout(LIMIT).unwrap();
    sender.send_to(b"first", "10.0.0.2:7").unwrap();
    receiver.recv(&mut [0; 16]).unwrap();
    (sender, receiver)
}

#[test]
fn a_stream_is_whole_over_a_switch_with_all_faults() {
    for at in ["10.0.0.1:80", "[fd00::1]:80"] {
        let (switch, server, client) = hosts();
        let listener = TcpListener::bind(&server, at).unwrap();
        let mut stream = TcpStream::connect(&client, at).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let faults = Faults::with_seed(7).loss(0.02).duplication(0.02);
        switch.set_faults(faults.reordering(0.1).corruption(0.01));
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
    let switch = Switch::new();
    // IPv6 sends frames of its own, which the faults would count.
    let host = || switch.host_with(Network::builder().stack(without_ipv6)).unwrap();
    let (one, other) = (host(), host());
    let (sender, receiver) = sockets(&one, &other);
    let mut bytes = [0; 4];
    let frames = || switch.counters().delivered + switch.counters().lost;
    let before = frames();
    switch.set_faults(Faults::with_seed(seed).loss(0.3));
    for number in 0..1000_u32 {
        sender.send_to(&number.to_ne_bytes(), "10.0.0.2:7").unwrap();
    }
    // Another thread may send the frames.
    while frames() < before + 1000 {
        std::thread::yield_now();
    }
    // The last one arrives.
    switch.set_faults(Faults::default());
    sender.send_to(&u32::MAX.to_ne_bytes(), "10.0.0.2:7").unwrap();
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
    switch.set_filter(|frame| if frame.bytes.len() > 80 { Fate::Lose } else { Fate::Deliver });
    stream.write_all(&[7; 100]).unwrap();
    while switch.counters().lost == 0 {
        std::thread::yield_now();
    }
    switch.clear_filter();
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
fn idle_and_kept_alive_connections_outlive_any_advance() {
    let (switch, server, client) = hosts();
    let listener = TcpListener::bind(&server, "10.0.0.1:80").unwrap();
    let mut stream = TcpStream::connect(&client, "10.0.0.1:80").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let hour = Duration::from_secs(3600);
    for kept_alive in [false, true] {
        if kept_alive {
            let minute = Duration::from_secs(60);
            let mut keep_alive = KeepAlive::every(minute);
            (keep_alive.idle, keep_alive.interval, keep_alive.probes) = (minute, minute / 6, 5);
            stream.set_keep_alive(Some(keep_alive)).unwrap();
        }
        for _ in 0..3 {
            stream.write_all(b"question").unwrap();
            accepted.read_exact(&mut [0; 8]).unwrap();
            accepted.write_all(b"answer").unwrap();
            stream.read_exact(&mut [0; 6]).unwrap();
            switch.advance(hour);
        }
    }
    // A peer that vanishes is missed after a minute and five probes.
    stream.write_all(b"question").unwrap();
    accepted.read_exact(&mut [0; 8]).unwrap();
    switch.advance(Duration::from_secs(1));
    server.end(Duration::ZERO);
    switch.advance(Duration::from_secs(105));
    assert!(stream.take_error().unwrap().is_none());
    switch.advance(Duration::from_secs(10));
    assert_eq!(stream.take_error().unwrap().unwrap().kind(), ErrorKind::TimedOut);
}

#[test]
fn a_panic_of_the_filter_is_the_tests() {
    let (switch, server, client) = hosts();
    let listener = TcpListener::bind(&server, "10.0.0.1:80").unwrap();
    let stream = TcpStream::connect(&client, "10.0.0.1:80").unwrap();
    listener.accept().unwrap();
    let handle = switch.clone();
    switch.set_filter(move |_| {
        let _ = handle.counters();
        Fate::Deliver
    });
    (&stream).write_all(b"lost").unwrap();
    let panicked = loop {
        let counted = AssertUnwindSafe(|| switch.counters());
        if let Err(panic) = catch_unwind(counted) {
            break panic;
        }
    };
    let text = panicked.downcast_ref::<&str>().unwrap();
    assert!(text.contains("must call neither"), "{text}");
    // The filter is gone.
    stream.set_nodelay(true).unwrap();
    switch.advance(Duration::from_secs(1));
    assert!(switch.counters().delivered > 0);
}

#[test]
fn ended_hosts_lose_their_frames_and_a_failed_one_takes_no_number() {
    let (switch, one, other) = hosts();
    let (sender, receiver) = sockets(&one, &other);
    drop(receiver);
    drop(other);
    let lost = switch.counters().lost;
    sender.send_to(b"second", "10.0.0.2:7").unwrap();
    assert!(switch.counters().lost > lost);
    let failed =
        switch.host_with(Network::builder().stack(|config| config.tcp.receive_buffer_bytes = 0));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::InvalidInput);
    let third = switch.host().unwrap();
    assert!(third.addresses().contains(&"10.0.0.3".parse().unwrap()));
}

/// Without it, each millisecond of the clock would wait for the thread of the ended host.
#[test]
fn a_clock_waits_for_no_ended_host() {
    let (switch, server, client) = hosts();
    let listener = TcpListener::bind(&server, "10.0.0.1:80").unwrap();
    let mut stream = TcpStream::connect(&client, "10.0.0.1:80").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    // Data that is not acknowledged leaves the ended host a timer that is due for ever.
    switch.set_filter(|_| Fate::Lose);
    accepted.write_all(b"lost").unwrap();
    server.end(Duration::ZERO);
    switch.clear_filter();
    stream.write_all(b"to a host that has ended").unwrap();
    let lost = switch.counters().lost;
    let passed = std::time::Instant::now();
    switch.advance(Duration::from_secs(20));
    println!("the clock advanced in {:?}", passed.elapsed());
    assert!(switch.counters().lost > lost && stream.take_error().unwrap().is_none());
}

/// As with sockets of the kernel, by which programs learn an address of their host.
#[test]
fn a_connected_socket_has_the_address_of_its_datagrams() {
    let kernel = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    kernel.connect("127.0.0.1:9").unwrap();
    assert_eq!(kernel.local_addr().unwrap().ip().to_string(), "127.0.0.1");
    let (_switch, one, other) = hosts();
    let receiver = UdpSocket::bind(&other, "[::]:7").unwrap();
    receiver.set_read_timeout(LIMIT).unwrap();
    for (bound, peer, local) in [
        ("0.0.0.0:7", "10.0.0.2:7", "10.0.0.1:7"),
        ("[::]:8", "[fd00::2]:7", "[fd00::1]:8"),
        ("[::]:9", "[::ffff:10.0.0.2]:7", "[::ffff:10.0.0.1]:9"),
        ("10.0.0.1:10", "10.0.0.2:7", "10.0.0.1:10"),
    ] {
        let socket = UdpSocket::bind(&one, bound).unwrap();
        assert_eq!(socket.local_addr().unwrap().to_string(), bound);
        socket.connect(peer).unwrap();
        assert_eq!(socket.local_addr().unwrap().to_string(), local);
        socket.send(b"question").unwrap();
        let (_, from) = receiver.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from.ip().to_canonical(), socket.local_addr().unwrap().ip().to_canonical());
        // The port is free again.
        drop(socket);
        UdpSocket::bind(&one, bound).unwrap();
    }
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
    let (sender, _receiver) = sockets(&one, &other);
    // Only datagrams: IPv4, with the protocol UDP.
    switch.set_filter(|frame| match (&frame.bytes[12..14], frame.bytes[23]) {
        ([8, 0], 17) => Fate::Hold,
        _ => Fate::Deliver,
    });
    for _ in 0..5000 {
        sender.send_to(b"held", "10.0.0.2:7").unwrap();
    }
    // The switch is locked during the call, so the receiver takes no frame.
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

/// Calls of sockets that need not wait are no work of the program's event loop.
#[test]
fn a_call_that_does_not_wait_makes_no_turn_due() {
    let switch = Switch::new();
    let host = switch.host_with(Network::builder().driving(Driving::Application)).unwrap();
    let socket = UdpSocket::bind(&host, "10.0.0.1:7").unwrap();
    socket.set_nonblocking(true).unwrap();
    let descriptor = host.work_fd().unwrap();
    let is_due = || {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    // A timer of the network may make a turn due at any time, but not each time.
    let is_quiet = |_| {
        while is_due() {
            host.turn().unwrap();
        }
        assert!(socket.recv(&mut [0]).is_err());
        socket.send_to(b"to itself", "10.0.0.1:9").unwrap();
        !is_due()
    };
    assert!((0..100).any(is_quiet));
}
