//! True and forged reports of routers that a packet was too big. The stack accepts a report only if
//! it quotes a packet that a socket has in flight.

use std::net::SocketAddr;
use std::time::Duration;

use crate::simulation::{V4, World, config, sum};
use towpath_stack::{Meta, UdpId};

/// Makes a report from a router that the path's MTU is `mtu`, which quotes `packet`.
fn too_big(v6: bool, mtu: u16, packet: &[u8]) -> Vec<u8> {
    let [high, low] = mtu.to_be_bytes();
    let mut message = if v6 { vec![2, 0] } else { vec![3, 4] };
    message.extend_from_slice(&[0, 0, 0, 0, high, low]);
    message.extend_from_slice(&packet[..packet.len().min(500)]);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9];
    let len = message.len() as u16;
    let mut pseudo = Vec::new();
    if v6 {
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend_from_slice(&len.to_be_bytes());
        frame.extend_from_slice(&[58, 64, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        frame.extend_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
        pseudo.extend_from_slice(&frame[22..54]);
        pseudo.extend_from_slice(&u32::from(len).to_be_bytes());
        pseudo.extend_from_slice(&[0, 0, 0, 58]);
    } else {
        frame.extend_from_slice(&[8, 0, 0x45, 0]);
        frame.extend_from_slice(&(20 + len).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
        let value = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&value.to_be_bytes());
    }
    pseudo.extend_from_slice(&message);
    let value = !sum(&pseudo);
    message[2..4].copy_from_slice(&value.to_be_bytes());
    frame.extend_from_slice(&message);
    frame
}

/// Passes a router's report to node 0. Returns the number of lowered path MTUs and of ignored
/// reports.
fn deliver(world: &mut World, frame: &[u8]) -> (u64, u64) {
    let counted = |world: &World| {
        let counters = world.nodes[0].stack.counters();
        (counters.path_mtu_lowered, counters.icmp_errors_unmatched)
    };
    let (before, now) = (counted(world), world.now);
    world.nodes[0].stack.input(now, frame, Meta::FULL);
    let after = counted(world);
    (after.0 - before.0, after.1 - before.1)
}

const BELIEVED: (u64, u64) = (1, 0);
const IGNORED: (u64, u64) = (0, 1);

/// Returns the packet that node 1 received last.
fn last(world: &World) -> Vec<u8> {
    world.received.iter().rfind(|(_, to)| *to == 1).unwrap().0[14..].to_vec()
}

/// Copies a packet with other bytes at an offset.
fn with(packet: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    packet
}

struct Talk {
    world: World,
    socket: UdpId,
    to: SocketAddr,
    /// Offset of the UDP or TCP header.
    transport: usize,
}

impl Talk {
    /// Makes a socket of node 0 at port 5000, another at port 5001, and one of node 1 at port 53.
    fn new(v6: bool) -> Talk {
        let mut world = World::new(31, [config(0), config(1)]);
        let ip = |world: &World, node: usize| {
            if v6 { world.v6(node) } else { V4[node].parse().unwrap() }
        };
        let (ours, to) = (ip(&world, 0), SocketAddr::new(ip(&world, 1), 53));
        let socket = world.nodes[0].stack.udp_bind(SocketAddr::new(ours, 5000)).unwrap();
        world.nodes[0].stack.udp_bind(SocketAddr::new(ours, 5001)).unwrap();
        world.nodes[1].stack.udp_bind(to).unwrap();
        Talk { world, socket, to, transport: if v6 { 40 } else { 20 } }
    }

    /// Sends a datagram, and returns the packet that arrived.
    fn send(&mut self, len: usize) -> Vec<u8> {
        let Talk { world, socket, to, .. } = self;
        let now = world.now;
        world.nodes[0].stack.udp_send(now, *socket, &vec![5; len], Some(*to)).unwrap();
        world.idle(Duration::from_millis(10));
        last(world)
    }

    fn deliver(&mut self, mtu: u16, packet: &[u8]) -> (u64, u64) {
        deliver(&mut self.world, &too_big(self.to.is_ipv6(), mtu, packet))
    }

    /// Asserts that the stack rejects reports that quote a packet unlike the true one.
    fn forgeries_are_ignored(&mut self, packet: &[u8]) {
        let at = self.transport;
        for (what, forged) in [
            ("from a port without a socket", with(packet, at, &[0x77, 0x77])),
            ("from another socket's port", with(packet, at, &5001_u16.to_be_bytes())),
            ("to another port", with(packet, at + 2, &54_u16.to_be_bytes())),
            ("to another host", with(packet, at - 1, &[77])),
            ("from another host", with(packet, if at == 20 { 15 } else { 23 }, &[77])),
            ("of another protocol", with(packet, if at == 20 { 9 } else { 6 }, &[6])),
            ("of no protocol", with(packet, if at == 20 { 9 } else { 6 }, &[99])),
            ("truncated", packet[..at + 6].to_vec()),
        ] {
            assert_eq!(self.deliver(1300, &forged), IGNORED, "{what}");
        }
        let len = if at == 20 { 1300 } else { 1400 };
        assert_eq!(self.deliver(1500, packet), IGNORED, "not too big for that");
        if at == 20 {
            assert_eq!(
                self.deliver(1300, &with(packet, 6, &[0, 100])),
                IGNORED,
                "a later fragment"
            );
            assert_eq!(self.deliver(len, &with(packet, 2, &[4, 0])), IGNORED, "1024 bytes fit");
        } else {
            assert_eq!(self.deliver(1279, packet), IGNORED, "a smaller MTU than IPv6 allows");
        }
    }
}

#[test]
fn only_genuine_errors_lower_a_datagrams_path_mtu() {
    for v6 in [false, true] {
        for connected in [false, true] {
            let mut talk = Talk::new(v6);
            if connected {
                let (socket, to) = (talk.socket, Some(talk.to));
                talk.world.nodes[0].stack.udp_connect(socket, to).unwrap();
            }
            let packet = talk.send(1400);
            talk.forgeries_are_ignored(&packet);
            assert_eq!(talk.world.nodes[0].stack.counters().fragments_sent, 0);
            assert_eq!(talk.deliver(1300, &packet), BELIEVED, "{v6} {connected}");
            assert_eq!(talk.deliver(1300, &packet), (0, 0), "no change");
            talk.send(1400);
            assert_eq!(talk.world.nodes[0].stack.counters().fragments_sent, 2);
            // Ten minutes later the report has expired.
            talk.world.idle(Duration::from_secs(601));
            talk.send(1400);
            assert_eq!(talk.world.nodes[0].stack.counters().fragments_sent, 2);
        }
    }
}

#[test]
fn sockets_without_recent_large_datagrams_ignore_errors() {
    for v6 in [false, true] {
        let mut talk = Talk::new(v6);
        let small = talk.send(400);
        let large = {
            let mut other = Talk::new(v6);
            other.send(1400)
        };
        assert_eq!(talk.deliver(1300, &large), IGNORED, "no datagram was that large");
        assert_eq!(talk.deliver(1300, &small), IGNORED);
        let packet = talk.send(1400);
        talk.world.idle(Duration::from_secs(11));
        assert_eq!(talk.deliver(1300, &packet), IGNORED, "too long ago");
        let packet = talk.send(1400);
        let socket = talk.socket;
        talk.world.nodes[0].stack.udp_close(socket).unwrap();
        assert_eq!(talk.deliver(1300, &packet), IGNORED, "the socket is closed");
        let local = SocketAddr::new(talk.world.nodes[0].stack.addresses().next().unwrap().0, 5000);
        let local = if v6 { SocketAddr::new(talk.world.v6(0), 5000) } else { local };
        talk.world.nodes[0].stack.udp_bind(local).unwrap();
        assert_eq!(talk.deliver(1300, &packet), IGNORED, "another socket");
    }
}

#[test]
fn only_errors_about_data_in_flight_lower_a_tcp_path_mtu() {
    for v6 in [false, true] {
        let mut world = World::new(32, [config(0), config(1)]);
        let (client, _server) = world.connected(80, v6);
        // Payload of a full segment, with timestamps.
        let (at, len) = if v6 { (40, 1428) } else { (20, 1448) };
        let flight = |world: &mut World| {
            world.idle(Duration::from_secs(1));
            world.received.clear();
            assert_eq!(world.nodes[0].stack.tcp_send(client, &vec![7; len]), Ok(len));
            let until = world.now + Duration::from_secs(1);
            let arrived =
                |world: &World| world.received.iter().any(|(f, to)| *to == 1 && f.len() == 1514);
            assert!(world.run(until, |world| arrived(world)));
            last(world)
        };
        let acknowledged = flight(&mut world);
        let packet = flight(&mut world);
        let sequence = u32::from_be_bytes(packet[at + 4..at + 8].try_into().unwrap());
        let of = |sequence: u32| with(&packet, at + 4, &sequence.to_be_bytes());
        for (what, forged) in [
            ("acknowledged", acknowledged),
            ("one byte before", of(sequence.wrapping_sub(1))),
            ("not sent yet", of(sequence.wrapping_add(len as u32))),
            ("anywhere", of(sequence.wrapping_add(1 << 31))),
            ("of another connection", with(&packet, at, &[0x77, 0x77])),
            ("to another port", with(&packet, at + 2, &[0, 81])),
            ("to another host", with(&packet, at - 1, &[77])),
            ("as a datagram", with(&packet, if v6 { 6 } else { 9 }, &[17])),
        ] {
            assert_eq!(deliver(&mut world, &too_big(v6, 1300, &forged)), IGNORED, "{what}");
        }
        assert_eq!(deliver(&mut world, &too_big(v6, 1300, &packet)), BELIEVED);
    }
}
