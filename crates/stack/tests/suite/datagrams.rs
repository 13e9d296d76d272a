//! Options of UDP sockets: hop limits, and the permission to send to broadcast addresses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::simulation::{V4, World, config};
use towpath_stack::{SocketError, UdpId};

/// Sends a datagram, and returns the hop limit with which it arrives.
fn hop_limit(world: &mut World, from: UdpId, to: SocketAddr) -> u8 {
    world.heard.clear();
    let now = world.now;
    world.nodes[0].stack.udp_send(now, from, b"datagram", Some(to)).unwrap();
    world.idle(Duration::from_millis(10));
    let is_datagram = |frame: &[u8]| match frame[12..14] {
        [8, 0] => frame[23] == 17,
        _ => frame[20] == 17,
    };
    let (frame, _) = world.heard.iter().find(|(frame, _)| is_datagram(frame)).expect("a datagram");
    if to.is_ipv4() { frame[22] } else { frame[21] }
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
        stack.udp_set_hop_limit(socket, 7).unwrap();
        stack.udp_set_multicast_hop_limit(socket, 3).unwrap();
        assert_eq!(stack.udp_hop_limit(socket), Ok(7));
        assert_eq!(stack.udp_multicast_hop_limit(socket), Ok(3));
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
        assert_eq!(stack.udp_broadcast(from), Ok(false));
        let refused = stack.udp_send(now, from, b"all", broadcast);
        assert_eq!(refused, Err(SocketError::BroadcastNotEnabled));
        stack.udp_set_broadcast(from, true).unwrap();
        stack.udp_send(now, from, b"all", broadcast).unwrap();
        stack.udp_set_broadcast(from, false).unwrap();
        world.idle(Duration::from_millis(10));
        let received = world.nodes[1].stack.udp_recv(to, &mut [0; 10], false).unwrap();
        assert_eq!(received.len, 3);
    }
}
