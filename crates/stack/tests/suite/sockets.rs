//! Sockets at their limits: backlogs, addresses, timeouts, paths, many connections.

use std::net::SocketAddr;
use std::time::Duration;

use crate::simulation;
use crate::simulation::{V4, World, config, sum};
use fastrand::Rng;
use towpath_stack::{
    Config, Instant, KeepAlive, Meta, Offload, Shutdown, SocketError, SocketId, TcpId, TcpState,
};

fn world(seed: u64) -> World {
    World::new(seed, [config(0), config(1)])
}

fn at(node: usize, port: u16) -> SocketAddr {
    SocketAddr::new(V4[node].parse().unwrap(), port)
}

fn connect(world: &mut World, to: SocketAddr) -> TcpId {
    let now = world.now;
    world.nodes[0].stack.tcp_connect(now, to, None, None).unwrap()
}

/// Makes a segment from node 0's network to node 1 with right checksums, from a source of the
/// caller's choice.
fn segment(from: ([u8; 4], u16), port: u16, numbers: (u32, u32), flags: u8) -> Vec<u8> {
    let mut frame =
        vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    frame.extend_from_slice(&from.0);
    frame.extend_from_slice(&[10, 0, 0, 2]);
    let value = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&value.to_be_bytes());
    frame.extend_from_slice(&from.1.to_be_bytes());
    frame.extend_from_slice(&port.to_be_bytes());
    frame.extend_from_slice(&numbers.0.to_be_bytes());
    frame.extend_from_slice(&numbers.1.to_be_bytes());
    frame.extend_from_slice(&[0x50, flags, 0x40, 0, 0, 0, 0, 0]);
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend_from_slice(&[0, 6, 0, 20]);
    pseudo.extend_from_slice(&frame[34..]);
    let value = !sum(&pseudo);
    frame[50..52].copy_from_slice(&value.to_be_bytes());
    frame
}

#[test]
fn a_flood_of_syns_leaves_room_for_the_honest() {
    let mut world = world(1);
    let listener = world.nodes[1].stack.tcp_listen(at(1, 80), 16).unwrap();
    for number in 0..5000u32 {
        let from = ([10, 0, 0, (number % 250) as u8 + 3], 1000 + number as u16);
        let now = world.now;
        let syn = segment(from, 80, (number, 0), 2);
        world.nodes[1].stack.input(now, &syn, Meta::FULL);
        assert!(world.nodes[1].stack.tcp_sizes().0 <= 128);
        world.now = world.now + Duration::from_micros(10);
    }
    assert!(world.nodes[1].stack.counters().tcp_cookies_sent >= 4870);
    let client = connect(&mut world, at(1, 80));
    let until = world.now + Duration::from_secs(5);
    assert!(world.run(until, |world| world.nodes[1].stack.tcp_accept(listener).is_ok()));
    assert_eq!(world.nodes[0].stack.tcp_state(client), Ok(TcpState::Established));
    // The other connections time out.
    world.idle(Duration::from_secs(60));
    assert_eq!(world.nodes[1].stack.tcp_sizes().0, 1);
}

#[test]
fn connections_beyond_the_backlog_wait_for_accept() {
    let mut world = world(2);
    let listener = world.nodes[1].stack.tcp_listen(at(1, 80), 4).unwrap();
    let clients: Vec<_> = (0..10).map(|_| connect(&mut world, at(1, 80))).collect();
    world.idle(Duration::from_millis(500));
    // The peer has completed the handshake. Node 1 has not, while the accept queue is full.
    assert!(world.nodes[1].stack.counters().tcp_accept_overflow > 0);
    let mut accepted = 0;
    let until = world.now + Duration::from_secs(10);
    world.run(until, |world| {
        while world.nodes[1].stack.tcp_accept(listener).is_ok() {
            accepted += 1;
        }
        false
    });
    assert_eq!(accepted, 10);
    for client in clients {
        assert_eq!(world.nodes[0].stack.tcp_state(client), Ok(TcpState::Established));
    }
}

#[test]
fn limits_refuse_and_addresses_are_held() {
    let mut small = config(0);
    small.limits.connections = 3;
    small.limits.sockets = 4;
    let mut world = World::new(3, [small, config(1)]);
    world.nodes[1].stack.tcp_listen(at(1, 80), 8).unwrap();
    for _ in 0..3 {
        connect(&mut world, at(1, 80));
    }
    let now = world.now;
    let stack = &mut world.nodes[0].stack;
    let refused = stack.tcp_connect(now, at(1, 80), None, None);
    assert_eq!(refused, Err(SocketError::LimitReached));
    let sockets: Vec<_> = (0..4).map(|port| stack.udp_bind(at(0, 1000 + port)).unwrap()).collect();
    assert_eq!(stack.udp_bind(at(0, 2000)), Err(SocketError::LimitReached));
    stack.udp_close(sockets[0]).unwrap();
    assert_eq!(stack.udp_bind(at(0, 1001)), Err(SocketError::AddressInUse));
    assert_eq!(stack.udp_bind("0.0.0.0:1001".parse().unwrap()), Err(SocketError::AddressInUse));
    assert_eq!(stack.udp_bind(at(1, 53)), Err(SocketError::AddressNotAvailable));
    assert_eq!(stack.udp_close(sockets[0]), Err(SocketError::NoSocket));
    let listener = stack.tcp_listen("[::]:80".parse().unwrap(), 1).unwrap();
    assert_eq!(stack.tcp_listen("[::]:80".parse().unwrap(), 1), Err(SocketError::AddressInUse));
    stack.tcp_close_listener(now, listener).unwrap();
    stack.tcp_listen("[::]:80".parse().unwrap(), 1).unwrap();
    // A connection without a local port, to a peer to which all ephemeral ports lead already.
    let mut many = config(0);
    many.limits.connections = 20_000;
    let mut world = World::new(3, [many, config(1)]);
    let now = world.now;
    let stack = &mut world.nodes[0].stack;
    for _ in 0..16_384 {
        stack.tcp_connect(now, at(1, 80), None, None).unwrap();
    }
    let refused = stack.tcp_connect(now, at(1, 80), None, None);
    assert_eq!(refused, Err(SocketError::AddressNotAvailable));
    stack.tcp_connect(now, at(1, 81), None, None).unwrap();
    for (to, error) in [
        ("10.0.0.2:0", SocketError::InvalidAddress),
        ("10.0.0.255:80", SocketError::InvalidAddress),
        ("224.0.0.1:80", SocketError::InvalidAddress),
        ("192.0.2.1:80", SocketError::Unreachable),
        ("127.0.0.1:80", SocketError::Unreachable),
    ] {
        assert_eq!(stack.tcp_connect(now, to.parse().unwrap(), None, None), Err(error), "{to}");
    }
}

#[test]
fn a_closed_port_refuses_and_an_absent_host_does_not_answer() {
    let mut world = world(4);
    let refused = connect(&mut world, at(1, 9));
    let now = world.now;
    let absent: SocketAddr = "10.0.0.77:80".parse().unwrap();
    let absent = world.nodes[0].stack.tcp_connect(now, absent, None, None).unwrap();
    world.idle(Duration::from_secs(10));
    let stack = &mut world.nodes[0].stack;
    let now = world.now;
    assert_eq!(stack.tcp_recv(now, refused, &mut [0; 4]), Err(SocketError::Refused));
    assert_eq!(stack.tcp_send(absent, b"x"), Err(SocketError::Unreachable));
    assert!(world.nodes[0].news.contains(&SocketId::Tcp(absent)));
    assert_eq!(world.nodes[0].stack.counters().neighbour_failures, 1);
    // No answer: all frames to node 1 are lost.
    world.faults.lost = 1000;
    let now = world.now;
    let wait = Some(Duration::from_secs(3));
    let silent = world.nodes[0].stack.tcp_connect(now, at(1, 80), None, wait).unwrap();
    world.idle(Duration::from_secs(4));
    assert_eq!(world.nodes[0].stack.tcp_send(silent, b"x"), Err(SocketError::TimedOut));
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut world = world(5);
    let (kept, other) = world.connected(80, false);
    let (owing, _) = world.connected(81, false);
    let now = world.now;
    let second = Some(KeepAlive::every(Duration::from_secs(1)));
    world.nodes[0].stack.tcp_set_keep_alive(now, kept, second).unwrap();
    world.idle(Duration::from_secs(60));
    assert_eq!(world.nodes[0].stack.tcp_state(kept), Ok(TcpState::Established));
    assert_eq!(world.nodes[1].stack.tcp_state(other), Ok(TcpState::Established));
    world.faults.lost = 1000;
    world.idle(Duration::from_secs(12));
    let now = world.now;
    let told = world.nodes[0].stack.tcp_recv(now, kept, &mut [0; 4]);
    assert_eq!(told, Err(SocketError::TimedOut));
    // Without keep-alive the stack does not notice a silent peer until the peer owes an
    // acknowledgement.
    assert_eq!(world.nodes[0].stack.tcp_state(owing), Ok(TcpState::Established));
    world.nodes[0].stack.tcp_send(owing, b"hello?").unwrap();
    world.idle(Duration::from_secs(890));
    assert_eq!(world.nodes[0].stack.tcp_state(owing), Ok(TcpState::Established));
    world.idle(Duration::from_secs(20));
    assert_eq!(world.nodes[0].stack.tcp_send(owing, b"x"), Err(SocketError::TimedOut));
    let counters = world.nodes[0].stack.counters();
    assert_eq!(counters.tcp_timeouts, 2);
    assert!(counters.neighbour_failures >= 10);
}

/// As under a debugger, or in a machine that is stopped: all probes are due at once, but the peer has time for each answer.
#[test]
fn a_living_peer_outlives_a_host_that_stands_still() {
    let mut world = world(5);
    let (kept, other) = world.connected(80, false);
    let now = world.now;
    let second = Some(KeepAlive::every(Duration::from_secs(1)));
    world.nodes[0].stack.tcp_set_keep_alive(now, kept, second).unwrap();
    for _ in 0..3 {
        world.now = world.now + Duration::from_secs(3600);
        world.idle(Duration::from_secs(5));
        assert_eq!(world.nodes[0].stack.tcp_state(kept), Ok(TcpState::Established));
        assert_eq!(world.nodes[1].stack.tcp_state(other), Ok(TcpState::Established));
    }
}

#[test]
fn an_orphan_ends_by_itself() {
    let mut world = world(6);
    let (client, _server) = world.connected(80, false);
    world.faults.lost = 1000;
    world.nodes[0].stack.tcp_send(client, &[1; 5000]).unwrap();
    let now = world.now;
    world.nodes[0].stack.tcp_close(now, client).unwrap();
    assert_eq!(world.nodes[0].stack.tcp_send(client, b"x"), Err(SocketError::NoSocket));
    assert_eq!(world.nodes[0].stack.tcp_sizes(), (1, 0));
    world.idle(Duration::from_secs(70));
    assert_eq!(world.nodes[0].stack.tcp_sizes(), (0, 0));
}

#[test]
fn unread_data_resets_and_aborts_are_heard() {
    let mut world = world(7);
    let (client, server) = world.connected(80, false);
    world.nodes[0].stack.tcp_send(client, b"unread").unwrap();
    world.idle(Duration::from_millis(10));
    let now = world.now;
    world.nodes[1].stack.tcp_close(now, server).unwrap();
    world.idle(Duration::from_millis(10));
    let now = world.now;
    assert_eq!(world.nodes[0].stack.tcp_recv(now, client, &mut [0; 4]), Err(SocketError::Reset));
    let (client, server) = world.connected(81, false);
    world.nodes[1].stack.tcp_send(server, b"last words").unwrap();
    world.idle(Duration::from_millis(10));
    let now = world.now;
    world.nodes[1].stack.tcp_abort(now, server).unwrap();
    world.idle(Duration::from_millis(10));
    let now = world.now;
    // Data from before the reset is still readable; then a read returns the reset, then the end.
    let mut buffer = [0; 20];
    assert_eq!(world.nodes[0].stack.tcp_recv(now, client, &mut buffer), Ok(10));
    assert_eq!(world.nodes[0].stack.tcp_recv(now, client, &mut buffer), Err(SocketError::Reset));
    assert_eq!(world.nodes[0].stack.tcp_recv(now, client, &mut buffer), Ok(0));
    assert_eq!(world.nodes[1].stack.tcp_send(server, b"x"), Err(SocketError::Aborted));
}

#[test]
fn data_survives_time_wait_until_it_is_read() {
    let mut world = world(8);
    let (client, server) = world.connected(80, false);
    let now = world.now;
    world.nodes[0].stack.tcp_shutdown(now, client, Shutdown::Write).unwrap();
    world.idle(Duration::from_millis(10));
    world.nodes[1].stack.tcp_send(server, b"late").unwrap();
    let now = world.now;
    world.nodes[1].stack.tcp_shutdown(now, server, Shutdown::Write).unwrap();
    world.idle(Duration::from_secs(200));
    let (now, mut buffer) = (world.now, [0; 10]);
    assert_eq!(world.nodes[0].stack.tcp_recv(now, client, &mut buffer), Ok(4));
    assert_eq!(world.nodes[0].stack.tcp_recv(now, client, &mut buffer), Ok(0));
    world.nodes[0].stack.tcp_close(now, client).unwrap();
    world.idle(Duration::from_secs(1));
    assert_eq!(world.nodes[0].stack.tcp_sizes(), (0, 0));
}

#[test]
fn a_newer_syn_takes_an_address_out_of_time_wait() {
    let mut world = world(9);
    let listener = world.nodes[1].stack.tcp_listen(at(1, 80), 8).unwrap();
    let from = Some(at(0, 5000));
    for round in 0..10 {
        let now = world.now;
        let client = world.nodes[0].stack.tcp_connect(now, at(1, 80), from, None).unwrap();
        let mut server = None;
        let until = world.now + Duration::from_secs(30);
        let made = world.run(until, |world| {
            server = world.nodes[1].stack.tcp_accept(listener).ok();
            server.is_some()
        });
        assert!(made, "round {round}");
        // The server closes first, so its side stays in TIME-WAIT.
        world.nodes[1].stack.tcp_close(now, server.unwrap().0).unwrap();
        world.idle(Duration::from_millis(20));
        world.nodes[0].stack.tcp_close(now, client).unwrap();
        world.idle(Duration::from_millis(20));
        assert_eq!(world.nodes[0].stack.tcp_sizes(), (0, 0));
        assert_eq!(world.nodes[1].stack.tcp_sizes(), (0, 1));
    }
    // Sequence numbers advance with the clock: each is newer than the last.
    assert_eq!(world.nodes[1].stack.counters().tcp_time_wait_reused, 9);
    assert_eq!(world.nodes[0].stack.counters().tcp_retransmitted, 0);
    let syns =
        world.received.iter().filter(|(frame, to)| *to == 1 && frame.len() > 47 && frame[47] == 2);
    let numbers: Vec<u32> = syns
        .map(|(frame, _)| u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]))
        .collect();
    assert_eq!(numbers.len(), 10);
    // A little over forty milliseconds, at four microseconds per number.
    assert!(numbers.windows(2).all(|two| (10_000..20_000).contains(&two[1].wrapping_sub(two[0]))));
}

#[test]
fn a_narrow_path_is_learned() {
    for offload in [false, true] {
        let make = |node| {
            let mut config = config(node);
            let max_frame_bytes = 65_535;
            config.offload =
                Offload { checksum: offload, tcp_segmentation: offload, max_frame_bytes };
            config
        };
        let mut world = World::new(10, [make(0), make(1)]);
        world.cuts = true;
        let (client, server) = world.connected(80, false);
        // A router between the two reports an MTU of 1000 bytes, about a segment in flight.
        assert_eq!(world.nodes[0].stack.tcp_send(client, &[7; 1460]), Ok(1460));
        let until = world.now + Duration::from_secs(1);
        let is_full = |(frame, to): &&(Vec<u8>, usize)| *to == 1 && frame.len() == 1514;
        assert!(world.run(until, |world| world.received.iter().any(|received| is_full(&received))));
        let sent = world.received.iter().find(is_full).unwrap();
        let mut message = vec![3, 4, 0, 0, 0, 0, 0x03, 0xe8];
        message.extend_from_slice(&sent.0[14..54]);
        let value = !sum(&message);
        message[2..4].copy_from_slice(&value.to_be_bytes());
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0];
        frame.extend_from_slice(&(20 + message.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
        let value = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&value.to_be_bytes());
        frame.extend_from_slice(&message);
        let now = world.now;
        world.nodes[0].stack.input(now, &frame, Meta::FULL);
        assert_eq!(world.nodes[0].stack.counters().path_mtu_lowered, 1);
        world.idle(Duration::from_secs(1));
        let now = world.now;
        let got = world.nodes[1].stack.tcp_recv(now, server, &mut [0; 2000]);
        assert_eq!(got, Ok(1460));
        world.received.clear();
        let bytes = simulation::bytes(&mut world.random, 300_000);
        let until = world.now + Duration::from_secs(60);
        world.echo(client, server, &bytes, until);
        let longest = world.received.iter().filter(|(_, to)| *to == 1).map(|(f, _)| f.len()).max();
        assert_eq!(longest, Some(1014), "offload {offload}");
        // What the router dropped was sent again, in two smaller segments.
        assert_eq!(world.nodes[0].stack.counters().tcp_retransmitted, 2 - u64::from(offload));
        // The stack rejects a forged report, about a packet not in flight.
        let now = world.now;
        world.nodes[0].stack.input(now, &frame, Meta::FULL);
        assert_eq!(world.nodes[0].stack.counters().path_mtu_lowered, 1);
    }
}

#[test]
fn datagrams_wait_are_dropped_and_counted() {
    // Sixteen short frames wait for the neighbour; further ones evict the oldest.
    let mut small = config(0);
    small.limits.pending_bytes = 16 * (128 + 43);
    let mut world = World::new(11, [small, config(1)]);
    let from = world.nodes[0].stack.udp_bind(at(0, 1000)).unwrap();
    let to = world.nodes[1].stack.udp_bind(at(1, 1000)).unwrap();
    let now = world.now;
    for number in 0..40u8 {
        world.nodes[0].stack.udp_send(now, from, &[number], Some(at(1, 1000))).unwrap();
    }
    world.idle(Duration::from_millis(10));
    let (mut buffer, mut got) = ([0; 4], Vec::new());
    while let Ok(received) = world.nodes[1].stack.udp_recv(to, &mut buffer, false) {
        assert_eq!((received.len, received.from), (1, at(0, 1000)));
        got.push(buffer[0]);
    }
    assert_eq!(got, (24..40).collect::<Vec<u8>>());
    assert_eq!(world.nodes[0].stack.counters().neighbour_dropped, 24);
    // A queue that no application empties.
    for _ in 0..40 {
        let now = world.now;
        world.nodes[0].stack.udp_send(now, from, &[0; 60_000], Some(at(1, 1000))).unwrap();
        world.idle(Duration::from_millis(10));
    }
    assert_eq!(world.nodes[1].stack.udp_dropped(to), Ok(40 - 17));
    // A link without room: the sender waits, and the stack reports the socket once there is room.
    world.nodes[0].end.room = Some(0);
    let now = world.now;
    let mut accepted = 0;
    let refused = loop {
        match world.nodes[0].stack.udp_send(now, from, &[0; 1000], Some(at(1, 1000))) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 100_000);
    };
    assert_eq!(refused, SocketError::WouldBlock);
    world.idle(Duration::from_secs(1));
    assert!(world.nodes[0].stack.is_blocked());
    world.nodes[0].news.clear();
    world.nodes[0].end.room = None;
    world.idle(Duration::from_secs(1));
    assert_eq!(world.nodes[0].news, [SocketId::Udp(from)]);
}

/// Short frames count by their lengths also after the neighbour's answer: they take no room from later datagrams, nor
/// from the stack's own frames.
#[test]
fn short_datagrams_that_waited_for_a_neighbour_count_by_their_lengths() {
    let mut small = config(0);
    small.limits.transmit_bytes = 1 << 18;
    let most = small.limits.pending_bytes / (128 + 43);
    let mut world = World::new(14, [small, config(1)]);
    let from = world.nodes[0].stack.udp_bind(at(0, 1000)).unwrap();
    let to = world.nodes[1].stack.udp_bind(at(1, 1000)).unwrap();
    let send = |world: &mut World| {
        let now = world.now;
        world.nodes[0].stack.udp_send(now, from, &[1], Some(at(1, 1000)))
    };
    // The first poll asks for the neighbour, whose answer comes after 20 ms.
    world.delay_us = 10_000;
    for _ in 0..most {
        send(&mut world).unwrap();
        world.idle(Duration::ZERO);
    }
    assert_eq!(world.nodes[0].stack.unsent(), most);
    world.nodes[0].end.room = Some(0);
    world.idle(Duration::from_millis(30));
    assert!(world.nodes[0].stack.is_blocked());
    assert_eq!(send(&mut world), Ok(()));
    world.nodes[0].end.room = None;
    world.idle(Duration::from_millis(30));
    let (mut buffer, mut got) = ([0; 4], 0);
    while world.nodes[1].stack.udp_recv(to, &mut buffer, false).is_ok() {
        got += 1;
    }
    assert_eq!((got, world.nodes[0].stack.counters().neighbour_dropped), (most + 1, 0));
}

#[test]
fn a_link_without_room_loses_no_segment() {
    let mut world = world(12);
    let (client, server) = world.connected(80, false);
    let bytes = simulation::bytes(&mut world.random, 200_000);
    let (mut sent, mut got, mut turn) = (0, Vec::new(), 0u64);
    let mut rooms = Rng::with_seed(12);
    let until = world.now + Duration::from_secs(60);
    let done = world.run(until, |world| {
        turn += 1;
        for node in &mut world.nodes {
            node.end.room = Some(rooms.usize(..4) + usize::from(turn % 8 == 0));
        }
        if sent < bytes.len()
            && let Ok(len) = world.nodes[0].stack.tcp_send(client, &bytes[sent..])
        {
            sent += len;
        }
        let (now, mut buffer) = (world.now, [0; 4000]);
        while let Ok(len @ 1..) = world.nodes[1].stack.tcp_recv(now, server, &mut buffer) {
            got.extend_from_slice(&buffer[..len]);
        }
        got.len() == bytes.len()
    });
    assert!(done && got == bytes, "{}", got.len());
    assert_eq!(world.nodes[0].stack.counters().tcp_retransmitted, 0);
    assert_eq!(world.nodes[0].stack.counters().tcp_transmit_refused, 0);
}

fn thrifty(node: usize) -> Config {
    let mut config = config(node);
    config.tcp.receive_buffer_bytes = 4096;
    config.tcp.send_buffer_bytes = 4096;
    config
}

#[test]
fn the_cost_of_an_event_does_not_grow_with_the_connections() {
    let mut costs = Vec::new();
    for count in [10, 3000] {
        let mut world = World::new(13, [thrifty(0), thrifty(1)]);
        let listener = world.nodes[1].stack.tcp_listen(at(1, 80), 4096).unwrap();
        let clients: Vec<_> = (0..count).map(|_| connect(&mut world, at(1, 80))).collect();
        let mut servers = Vec::new();
        let until = world.now + Duration::from_secs(60);
        assert!(world.run(until, |world| {
            while let Ok((server, _)) = world.nodes[1].stack.tcp_accept(listener) {
                servers.push(server);
            }
            servers.len() == count
        }));
        world.idle(Duration::from_secs(10));
        assert_eq!(world.nodes[1].stack.tcp_sizes().0, count);
        let visits = |world: &World| -> u64 {
            world.nodes.iter().map(|n| n.stack.counters().tcp_visits).sum()
        };
        let before = visits(&world);
        // One connection transfers data, the others are idle.
        let bytes = simulation::bytes(&mut world.random, 50_000);
        let until = world.now + Duration::from_secs(60);
        let peer = world.nodes[0].stack.tcp_addresses(clients[count / 2]).unwrap().0;
        let stack = &mut world.nodes[1].stack;
        let server =
            servers.iter().find(|server| stack.tcp_addresses(**server).unwrap().1 == peer).unwrap();
        world.echo(clients[count / 2], *server, &bytes, until);
        costs.push(visits(&world) - before);
        let carried = world.carried;
        world.idle(Duration::from_secs(600));
        // The point of this test: idle connections cause no work.
        assert!(world.carried - carried <= 4, "{}", world.carried - carried);
    }
    assert_eq!(costs[0], costs[1], "connections visited");
}

#[test]
fn thousands_of_connections_come_work_and_go() {
    const COUNT: usize = 4000;
    let mut world = World::new(14, [thrifty(0), thrifty(1)]);
    let listener = world.nodes[1].stack.tcp_listen(at(1, 80), COUNT).unwrap();
    let clients: Vec<_> = (0..COUNT).map(|_| connect(&mut world, at(1, 80))).collect();
    let mut greeted = vec![false; COUNT];
    let (mut servers, mut answered) = (Vec::new(), 0);
    let until = world.now + Duration::from_secs(120);
    let done = world.run(until, |world| {
        let now = world.now;
        for (index, client) in clients
            .iter()
            .enumerate()
            .filter(|(index, _)| !greeted[*index])
            .take(50)
            .collect::<Vec<_>>()
        {
            greeted[index] = world.nodes[0].stack.tcp_send(*client, b"hello").is_ok();
        }
        while let Ok((server, _)) = world.nodes[1].stack.tcp_accept(listener) {
            servers.push(server);
        }
        for news in std::mem::take(&mut world.nodes[1].news) {
            if let SocketId::Tcp(server) = news
                && world.nodes[1].stack.tcp_recv(now, server, &mut [0; 10]) == Ok(5)
            {
                answered += 1;
                world.nodes[1].stack.tcp_close(now, server).unwrap();
            }
        }
        // A connection may receive data before the accept.
        for server in std::mem::take(&mut servers) {
            match world.nodes[1].stack.tcp_recv(now, server, &mut [0; 10]) {
                Ok(5) => {
                    answered += 1;
                    world.nodes[1].stack.tcp_close(now, server).unwrap();
                }
                other => assert_eq!(other, Err(SocketError::WouldBlock)),
            }
        }
        answered == COUNT
    });
    assert!(done, "{answered}");
    let now = world.now;
    for client in clients {
        world.nodes[0].stack.tcp_close(now, client).unwrap();
    }
    world.idle(Duration::from_secs(1));
    assert_eq!(world.nodes[0].stack.tcp_sizes().0, 0);
    assert_eq!(world.nodes[1].stack.tcp_sizes(), (0, COUNT));
    world.idle(Duration::from_secs(100));
    // Each poll removes a part of the expired entries.
    for _ in 0..COUNT / 500 {
        world.idle(Duration::ZERO);
    }
    assert_eq!(world.nodes[1].stack.tcp_sizes(), (0, 0));
    assert_eq!(world.nodes[1].stack.poll_at(world.now), None::<Instant>);
}

#[test]
fn an_address_conflict_is_counted_and_answered_once() {
    let mut world = world(15);
    world.idle(Duration::from_secs(1));
    let sent = world.nodes[0].stack.counters().arp_sent;
    let mut claim = vec![0xff; 6];
    claim.extend_from_slice(&[2, 0, 0, 0, 0, 66, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    claim.extend_from_slice(&[2, 0, 0, 0, 0, 66, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    for _ in 0..5 {
        let now = world.now;
        world.nodes[0].stack.input(now, &claim, Meta::FULL);
    }
    world.idle(Duration::from_secs(1));
    let counters = world.nodes[0].stack.counters();
    assert_eq!((counters.address_conflicts, counters.arp_sent - sent), (5, 1));
}

/// The longest datagram over IPv4 has 45 fragments, all of which wait for the answer to the same question.
#[test]
fn the_longest_datagram_reaches_a_peer_that_was_unknown() {
    let mut world = world(23);
    let from = world.nodes[0].stack.udp_bind(at(0, 1000)).unwrap();
    let to = world.nodes[1].stack.udp_bind(at(1, 1000)).unwrap();
    let (now, data) = (world.now, vec![7; 65_507]);
    world.nodes[0].stack.udp_send(now, from, &data, Some(at(1, 1000))).unwrap();
    world.idle(Duration::from_millis(100));
    let mut buffer = vec![0; 65_535];
    let received = world.nodes[1].stack.udp_recv(to, &mut buffer, false).unwrap();
    assert_eq!((received.len, &buffer[..received.len]), (data.len(), &data[..]));
}

/// A burst of connections from a neighbour of which the host has not yet received: no answer to a SYN is dropped while
/// the host asks for the neighbour's link address.
#[test]
fn each_syn_of_an_unknown_neighbour_is_answered() {
    const COUNT: u16 = 500;
    let mut world = world(24);
    world.nodes[1].stack.tcp_listen(at(1, 80), COUNT.into()).unwrap();
    let now = world.now;
    for port in 1..=COUNT {
        let syn = segment(([10, 0, 0, 77], port), 80, (5, 0), 2);
        world.nodes[1].stack.input(now, &syn, Meta::FULL);
    }
    world.idle(Duration::from_millis(10));
    let mut answer = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 77, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2];
    answer.extend_from_slice(&[2, 0, 0, 0, 0, 77, 10, 0, 0, 77, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
    let now = world.now;
    world.nodes[1].stack.input(now, &answer, Meta::FULL);
    world.received.clear();
    world.idle(Duration::from_millis(10));
    let is_answer = |frame: &[u8]| frame[12..14] == [8, 0] && frame.get(47) == Some(&18);
    let count = world.received.iter().filter(|(frame, _)| is_answer(frame)).count();
    assert_eq!((count, world.nodes[1].stack.counters().neighbour_dropped), (COUNT.into(), 0));
}

/// As Linux does: a reset for a closed port, and nothing for one where a socket listens.
#[test]
fn a_syn_with_fin_is_refused_at_a_closed_port() {
    let mut world = world(25);
    world.nodes[1].stack.tcp_listen(at(1, 80), 8).unwrap();
    for (port, flags, resets) in [(81, 3, 1), (80, 3, 0), (81, 6, 0), (81, 7, 0)] {
        let before = *world.nodes[1].stack.counters();
        let now = world.now;
        let frame = segment(([10, 0, 0, 1], 9), port, (5, 0), flags);
        world.nodes[1].stack.input(now, &frame, Meta::FULL);
        world.idle(Duration::from_millis(10));
        let after = world.nodes[1].stack.counters();
        assert_eq!(after.tcp_resets_sent - before.tcp_resets_sent, resets, "{port} {flags}");
        assert_eq!(after.tcp_malformed - before.tcp_malformed, 1 - resets, "{port} {flags}");
    }
    // It acknowledges the SYN and the FIN.
    let reset = world.received.iter().find(|(frame, _)| frame.get(47) == Some(&20)).unwrap();
    assert_eq!(reset.0[42..46], [0, 0, 0, 7]);
}

#[test]
fn more_neighbours_than_the_table_holds() {
    let mut small = config(0);
    small.limits.neighbours = 4;
    let mut world = World::new(16, [small, config(1)]);
    world.nodes[1].stack.tcp_listen(at(1, 80), 8).unwrap();
    let client = connect(&mut world, at(1, 80));
    // Before node 1 can answer, other neighbours evict it from the table.
    let now = world.now;
    for host in 50..90 {
        let to = SocketAddr::new([10, 0, 0, host].into(), 80);
        world.nodes[0].stack.tcp_connect(now, to, None, None).unwrap();
    }
    world.idle(Duration::from_secs(20));
    assert!(world.nodes[0].stack.neighbours() <= 4);
    assert!(world.nodes[0].stack.counters().neighbour_limit > 0);
    world.idle(Duration::from_secs(60));
    assert_eq!(world.nodes[0].stack.tcp_state(client), Ok(TcpState::Established));
}

/// Another thread may wait for room while one writes a little.
#[test]
fn a_small_write_does_not_forget_a_waiting_writer() {
    let mut world = world(21);
    let (client, server) = world.connected(80, false);
    let fill = |world: &mut World| {
        while world.nodes[0].stack.tcp_send(client, &[7; 4096]).is_ok() {}
        world.idle(Duration::from_millis(20));
    };
    // Both buffers are full at last.
    for _ in 0..20 {
        fill(&mut world);
    }
    assert_eq!(world.nodes[0].stack.tcp_send(client, &[7; 4096]), Err(SocketError::WouldBlock));
    let read = |world: &mut World, most: usize| {
        let (mut buffer, now) = (vec![0; most], world.now);
        let got = world.nodes[1].stack.tcp_recv(now, server, &mut buffer).unwrap_or(0);
        world.idle(Duration::from_millis(20));
        got
    };
    while world.nodes[0].stack.tcp_queues(client).unwrap().0 == 64 * 1024 {
        assert!(read(&mut world, 4096) > 0);
    }
    assert_eq!(world.nodes[0].stack.tcp_send(client, &[7; 20]), Ok(20));
    world.nodes[0].news.clear();
    while read(&mut world, 65_536) > 0 {}
    assert!(world.nodes[0].news.contains(&SocketId::Tcp(client)));
}

/// A listener of addresses that another host has taken over gives out the connections that have come, also half-open ones,
/// and then says so. UDP sockets do with datagrams, unless they have a peer.
#[test]
fn sockets_of_addresses_that_are_taken_over_end_in_order() {
    let mut world = World::new(5, [config(0), config(1)]);
    let listener = world.nodes[1].stack.tcp_listen(at(1, 80), 8).unwrap();
    let now = world.now;
    let first = world.nodes[0].stack.tcp_connect(now, at(1, 80), None, None).unwrap();
    world.idle(Duration::from_millis(50));
    assert!(world.nodes[0].stack.tcp_readiness(first).unwrap().writable);
    // The acknowledgement of the second connection is on the way while the addresses change hands.
    let now = world.now;
    let second = world.nodes[0].stack.tcp_connect(now, at(1, 80), None, None).unwrap();
    let half_open = |world: &mut World| world.nodes[1].stack.tcp_sizes().0 == 2;
    assert!(world.run(now + Duration::from_secs(1), half_open));
    let any = world.nodes[1].stack.udp_bind(at(1, 9)).unwrap();
    let connected = world.nodes[1].stack.udp_bind(at(1, 10)).unwrap();
    world.nodes[1].stack.udp_connect(connected, Some(at(0, 11))).unwrap();
    let mut flows: Vec<u16> = world.nodes[1].stack.flows().map(|one| one.local.port()).collect();
    flows.sort_unstable();
    assert_eq!(flows, [10, 80]);
    assert_eq!(world.nodes[1].stack.half_open_flows().count(), 1);
    let sender = world.nodes[0].stack.udp_bind(at(0, 11)).unwrap();
    let now = world.now;
    for port in [9, 10] {
        world.nodes[0].stack.udp_send(now, sender, b"x", Some(at(1, port))).unwrap();
    }
    let stack = &mut world.nodes[1].stack;
    stack.hand_over();
    assert!(stack.tcp_accept(listener).is_ok(), "the first connection");
    assert_eq!(stack.tcp_accept(listener), Err(SocketError::WouldBlock), "one is half-open");
    assert!(!stack.tcp_listener_readiness(listener).unwrap().readable);
    world.idle(Duration::from_millis(50));
    assert!(world.nodes[0].stack.tcp_readiness(second).unwrap().writable);
    let stack = &mut world.nodes[1].stack;
    assert!(stack.tcp_accept(listener).is_ok(), "the second connection");
    assert_eq!(stack.tcp_accept(listener), Err(SocketError::HandedOver));
    let ready = stack.tcp_listener_readiness(listener).unwrap();
    assert!(ready.readable && ready.error);
    let mut bytes = [0; 8];
    for socket in [any, connected] {
        assert_eq!(stack.udp_recv(socket, &mut bytes, false).unwrap().len, 1);
    }
    assert_eq!(stack.udp_recv(any, &mut bytes, false), Err(SocketError::HandedOver));
    assert!(stack.udp_readiness(any).unwrap().readable);
    assert_eq!(stack.udp_recv(connected, &mut bytes, false), Err(SocketError::WouldBlock));
    let now = world.now;
    assert_eq!(world.nodes[1].stack.udp_send(now, any, b"x", Some(at(0, 11))), Ok(()));
}

/// A half-open connection that ends without an acknowledgement does not hold back the end of a listener.
#[test]
fn a_taken_over_listener_ends_with_its_last_half_open_connection() {
    let mut world = World::new(6, [config(0), config(1)]);
    let listener = world.nodes[1].stack.tcp_listen(at(1, 80), 8).unwrap();
    let now = world.now;
    let client = world.nodes[0].stack.tcp_connect(now, at(1, 80), None, None).unwrap();
    assert!(
        world.run(now + Duration::from_secs(1), |world| world.nodes[1].stack.tcp_sizes().0 == 1)
    );
    world.nodes[1].stack.hand_over();
    assert_eq!(world.nodes[1].stack.tcp_accept(listener), Err(SocketError::WouldBlock));
    let now = world.now;
    world.nodes[0].stack.tcp_abort(now, client).unwrap();
    world.nodes[1].news.clear();
    world.idle(Duration::from_secs(90));
    assert!(world.nodes[1].news.contains(&SocketId::Listener(listener)));
    assert_eq!(world.nodes[1].stack.tcp_accept(listener), Err(SocketError::HandedOver));
}
