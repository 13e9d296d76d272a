//! Options of UDP sockets: hop limits, traffic classes, and the permission to send to broadcast addresses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::simulation::{V4, World, config, sum};
use towpath_stack::{Meta, SocketError, UdpId};

/// Returns the next frame with this protocol.
fn next_frame(world: &mut World, protocol: u8) -> Vec<u8> {
    world.idle(Duration::from_millis(10));
    let is_it = |frame: &[u8]| match frame[12..14] {
        [8, 0] => frame[23] == protocol,
        _ => frame[20] == protocol,
    };
    let (frame, _) = world.received.iter().find(|(frame, _)| is_it(frame)).expect("a packet");
    frame.clone()
}

/// Sends a datagram, and returns the frame in which it arrives.
fn sent_datagram(world: &mut World, from: UdpId, to: SocketAddr) -> Vec<u8> {
    world.received.clear();
    let now = world.now;
    world.nodes[0].stack.udp_send(now, from, b"datagram", Some(to)).unwrap();
    next_frame(world, 17)
}

fn hop_limit(world: &mut World, from: UdpId, to: SocketAddr) -> u8 {
    let frame = sent_datagram(world, from, to);
    if to.is_ipv4() { frame[22] } else { frame[21] }
}

/// Returns the type of service (IPv4) or traffic class (IPv6) of a frame.
fn class(frame: &[u8]) -> u8 {
    match frame[12..14] {
        [8, 0] => frame[15],
        _ => frame[14] << 4 | frame[15] >> 4,
    }
}

#[test]
fn traffic_classes_of_packets() {
    let mut world = World::new(3, [config(0), config(1)]);
    for ip in [V4[1].parse::<IpAddr>().unwrap(), world.v6(1)] {
        let (any, to) = (if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }, SocketAddr::new(ip, 9));
        let socket = world.nodes[0].stack.udp_bind(any.parse().unwrap()).unwrap();
        assert_eq!(class(&sent_datagram(&mut world, socket, to)), 0);
        let stack = &mut world.nodes[0].stack;
        // Expedited forwarding, with congestion notification.
        stack.udp_options(socket).unwrap().traffic_class = 0xba;
        assert_eq!(stack.udp_options(socket).unwrap().traffic_class, 0xba);
        assert_eq!(class(&sent_datagram(&mut world, socket, to)), 0xba);

        world.received.clear();
        let now = world.now;
        let stack = &mut world.nodes[0].stack;
        let connection = stack.tcp_connect(now, to, None, None).unwrap();
        stack.tcp_set_traffic_class(connection, 0xbb).unwrap();
        assert_eq!(stack.tcp_traffic_class(connection), Ok(0xb8), "TCP notifies by itself");
        assert_eq!(class(&next_frame(&mut world, 6)), 0xb8);
    }
}

#[test]
fn hop_limits_of_datagrams() {
    let mut world = World::new(1, [config(0), config(1)]);
    for ip in [V4[1].parse::<IpAddr>().unwrap(), world.v6(1)] {
        let (any, group) = match ip {
            IpAddr::V4(_) => ("0.0.0.0:0", "224.0.0.251:9"),
            IpAddr::V6(_) => ("[::]:0", "[ff02::fb]:9"),
        };
        let (to, group) = (SocketAddr::new(ip, 9), group.parse().unwrap());
        let socket = world.nodes[0].stack.udp_bind(any.parse().unwrap()).unwrap();
        assert_eq!(hop_limit(&mut world, socket, to), 64);
        assert_eq!(hop_limit(&mut world, socket, group), 1);
        let stack = &mut world.nodes[0].stack;
        stack.udp_options(socket).unwrap().hop_limit = 7;
        stack.udp_options(socket).unwrap().multicast_hop_limit = 3;
        assert_eq!(stack.udp_options(socket).unwrap().hop_limit, 7);
        assert_eq!(stack.udp_options(socket).unwrap().multicast_hop_limit, 3);
        // The ICMP error about the first datagram is not for this socket, which is not connected.
        assert_eq!(hop_limit(&mut world, socket, to), 7);
        assert_eq!(hop_limit(&mut world, socket, group), 3);
    }
}

#[test]
fn a_broadcast_needs_permission() {
    let mut world = World::new(2, [config(0), config(1)]);
    let stack = &mut world.nodes[0].stack;
    let from = stack.udp_bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let to = world.nodes[1].stack.udp_bind("0.0.0.0:9".parse().unwrap()).unwrap();
    let now = world.now;
    for broadcast in ["10.0.0.255:9", "255.255.255.255:9"] {
        let broadcast = Some(broadcast.parse().unwrap());
        let stack = &mut world.nodes[0].stack;
        assert!(!stack.udp_options(from).unwrap().broadcast);
        let refused = stack.udp_send(now, from, b"all", broadcast);
        assert_eq!(refused, Err(SocketError::BroadcastNotEnabled));
        stack.udp_options(from).unwrap().broadcast = true;
        stack.udp_send(now, from, b"all", broadcast).unwrap();
        stack.udp_options(from).unwrap().broadcast = false;
        world.idle(Duration::from_millis(10));
        let received = world.nodes[1].stack.udp_recv(to, &mut [0; 10], false).unwrap();
        assert_eq!(received.len, 3);
    }
}

/// Returns a packet over IPv4 from node 1 to node 0, from the Ethernet header on.
fn v4_packet(dst: [u8; 4], (id, fragment): (u8, u16), options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mac = if dst[3] == 255 { [0xff; 6] } else { [2, 0, 0, 0, 0, 1] };
    let words = 5 + options.len() as u8 / 4;
    let total = (usize::from(words) * 4 + payload.len()) as u16;
    let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 2, 8, 0, 0x40 | words, 0]].concat();
    frame.extend_from_slice(&total.to_be_bytes());
    frame.extend_from_slice(&[0, id]);
    frame.extend_from_slice(&fragment.to_be_bytes());
    frame.extend_from_slice(&[64, 17, 0, 0, 10, 0, 0, 2]);
    frame.extend_from_slice(&dst);
    frame.extend_from_slice(options);
    let value = !sum(&frame[14..]);
    frame[24..26].copy_from_slice(&value.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A datagram without checksum to a port.
fn datagram(port: u16, data: &[u8]) -> Vec<u8> {
    let len = (8 + data.len()) as u16;
    [&[0, 9][..], &port.to_be_bytes(), &len.to_be_bytes(), &[0, 0], data].concat()
}

#[test]
fn a_broadcast_in_fragments_is_received() {
    let mut world = World::new(3, [config(0), config(1)]);
    let socket = world.nodes[0].stack.udp_bind("0.0.0.0:9".parse().unwrap()).unwrap();
    let whole = datagram(9, &[5; 1600]);
    for broadcast in [[10, 0, 0, 255], [255; 4]] {
        let now = world.now;
        let first = v4_packet(broadcast, (broadcast[0], 0x2000), &[], &whole[..1480]);
        let second = v4_packet(broadcast, (broadcast[0], 1480 / 8), &[], &whole[1480..]);
        for frame in [first, second] {
            world.nodes[0].stack.input(now, &frame, Meta::FULL);
        }
        let received = world.nodes[0].stack.udp_recv(socket, &mut [0; 2000], false).unwrap();
        assert_eq!((received.len, received.to), (1600, broadcast.into()));
    }
}

/// Returns the ICMP messages with which node 0 answers a frame.
fn icmp_answers(world: &mut World, frame: &[u8]) -> Vec<Vec<u8>> {
    world.received.clear();
    let now = world.now;
    world.nodes[0].stack.input(now, frame, Meta::FULL);
    world.idle(Duration::from_millis(10));
    let received = world.received.iter().filter(|(frame, to)| *to == 1 && frame[12..14] == [8, 0]);
    received.filter(|(frame, _)| frame[23] == 1).map(|(frame, _)| frame[34..].to_vec()).collect()
}

#[test]
fn datagrams_to_port_zero_are_refused_as_those_to_closed_ports() {
    let mut world = World::new(4, [config(0), config(1)]);
    for port in [0, 7] {
        let frame = v4_packet([10, 0, 0, 1], (1, 0), &[], &datagram(port, b"x"));
        let found = icmp_answers(&mut world, &frame);
        assert_eq!(found.len(), 1, "{port}");
        assert_eq!((&found[0][..2], &found[0][8..]), (&[3, 3][..], &frame[14..]), "{port}");
    }
}

/// RFC 1122, 3.2.1.8 and 3.2.2.5: a report names the byte that is wrong. Source routes are dropped without a report.
#[test]
fn malformed_options_of_ipv4_are_reported() {
    let mut world = World::new(5, [config(0), config(1)]);
    let socket = world.nodes[0].stack.udp_bind("0.0.0.0:9".parse().unwrap()).unwrap();
    for (options, pointer, received) in [
        ([1, 1, 1, 0], None, true),
        ([7, 0, 0, 0], Some(20), false),
        ([1, 7, 9, 0], Some(21), false),
        ([131, 3, 4, 0], None, false),
    ] {
        let frame = v4_packet([10, 0, 0, 1], (1, 0), &options, &datagram(9, b"x"));
        let found = icmp_answers(&mut world, &frame);
        let pointers: Vec<_> =
            found.iter().map(|report| (report[0], report[1], report[4])).collect();
        let expected: Vec<_> = pointer.map(|at| (12, 0, at)).into_iter().collect();
        assert_eq!(pointers, expected, "{options:?}");
        let got = world.nodes[0].stack.udp_recv(socket, &mut [0; 8], false);
        assert_eq!(got.is_ok(), received, "{options:?}");
    }
}

/// As on Linux: an error comes before datagrams that wait, outlives a connect to another peer, and a call that fails by
/// itself leaves it to the next one.
#[test]
fn an_error_of_a_peer_comes_with_the_next_call_that_could_succeed() {
    let mut world = World::new(8, [config(0), config(1)]);
    let at = |node: usize, port| SocketAddr::new(V4[node].parse().unwrap(), port);
    let sender = world.nodes[1].stack.udp_bind(at(1, 7)).unwrap();
    let socket = world.nodes[0].stack.udp_bind(at(0, 7)).unwrap();
    let now = world.now;
    world.nodes[1].stack.udp_send(now, sender, b"waits", Some(at(0, 7))).unwrap();
    world.idle(Duration::from_millis(10));
    let refuse = |world: &mut World| {
        let now = world.now;
        let stack = &mut world.nodes[0].stack;
        stack.udp_connect(socket, Some(at(1, 9))).unwrap();
        stack.udp_send(now, socket, b"to no socket", None).unwrap();
        world.idle(Duration::from_millis(10));
        assert!(world.nodes[0].stack.udp_readiness(socket).unwrap().error);
    };
    refuse(&mut world);
    let stack = &mut world.nodes[0].stack;
    stack.udp_connect(socket, Some(at(1, 7))).unwrap();
    assert_eq!(stack.udp_recv(socket, &mut [0; 9], true), Err(SocketError::Refused));
    assert_eq!(stack.udp_recv(socket, &mut [0; 9], false).unwrap().len, 5);
    refuse(&mut world);
    let (now, stack) = (world.now, &mut world.nodes[0].stack);
    let too_long = stack.udp_send(now, socket, &[0; 65_508], None);
    assert_eq!(too_long, Err(SocketError::MessageTooLong));
    assert_eq!(stack.udp_send(now, socket, b"again", None), Err(SocketError::Refused));
    assert_eq!(stack.udp_send(now, socket, b"again", None), Ok(()));
}
