//! Several sockets on one port (`SO_REUSEPORT` of Linux).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::simulation::{World, config};
use towpath_stack::{BindMode, ListenerId, SocketError, Stack, TcpId, UdpId};

const REUSE: BindMode = BindMode { is_dual: false, reuse_port: true };
const DUAL_REUSE: BindMode = BindMode { is_dual: true, reuse_port: true };

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Opens connections from node 0 to node 1. Returns the numbers of connections that each listener accepts.
fn connect(
    world: &mut World,
    listeners: &[ListenerId],
    to: SocketAddr,
    count: usize,
) -> Vec<usize> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let now = world.now;
        clients.push(world.nodes[0].stack.tcp_connect(now, to, None, None).unwrap());
    }
    world.idle(Duration::from_millis(200));
    let is_open = |stack: &mut Stack, id: TcpId| stack.tcp_readiness(id).unwrap().writable;
    assert!(clients.iter().all(|&id| is_open(&mut world.nodes[0].stack, id)));
    let accepted = |&listener: &ListenerId| {
        std::iter::from_fn(|| world.nodes[1].stack.tcp_accept(listener).ok()).count()
    };
    listeners.iter().map(accepted).collect()
}

#[test]
fn listeners_share_the_connections_of_a_port() {
    let mut world = World::new(71, [config(0), config(1)]);
    let to = address("10.0.0.2:80");
    let any = address("0.0.0.0:80");
    let listen = |world: &mut World| world.nodes[1].stack.tcp_listen_with(any, REUSE, 64).unwrap();
    let listeners: Vec<ListenerId> = (0..4).map(|_| listen(&mut world)).collect();
    let accepted = connect(&mut world, &listeners, to, 64);
    assert_eq!(accepted.iter().sum::<usize>(), 64);
    // With a share of 16 on average; a listener without connections has a probability of 10^-8.
    assert!(accepted.iter().all(|&count| count > 0), "{accepted:?}");
    let now = world.now;
    for listener in &listeners[1..] {
        world.nodes[1].stack.tcp_close_listener(now, *listener).unwrap();
    }
    assert_eq!(connect(&mut world, &listeners[..1], to, 16), [16]);
    world.nodes[1].stack.tcp_close_listener(now, listeners[0]).unwrap();
    // The port is free again for a listener that shares with no other.
    world.nodes[1].stack.tcp_listen(any, 8).unwrap();
}

/// A socket that does not reuse its port conflicts with each other one at an overlapping address.
#[test]
fn all_sockets_of_a_port_must_agree() {
    let mut world = World::new(72, [config(0), config(1)]);
    let stack = &mut world.nodes[0].stack;
    let (any, own) = (address("0.0.0.0:7"), address("10.0.0.1:7"));
    let in_use = Err(SocketError::AddressInUse);
    for (first, second) in [(any, any), (any, own), (own, any), (own, own)] {
        let id = stack.udp_bind_with(first, REUSE).unwrap();
        assert_eq!(stack.udp_bind(second), in_use, "{first} {second}");
        let other = stack.udp_bind_with(second, REUSE).unwrap();
        assert_eq!(stack.udp_bind(second), in_use, "{first} {second}");
        stack.udp_close(id).unwrap();
        assert_eq!(stack.udp_bind(first), in_use, "{first} {second}");
        stack.udp_close(other).unwrap();
        let id = stack.udp_bind(first).unwrap();
        assert_eq!(stack.udp_bind_with(second, REUSE), in_use, "{first} {second}");
        stack.udp_close(id).unwrap();
    }
    // Both families of a socket count.
    let dual = stack.udp_bind_with(address("[::]:7"), DUAL_REUSE).unwrap();
    assert_eq!(stack.udp_bind(any), in_use);
    let v4 = stack.udp_bind_with(own, REUSE).unwrap();
    stack.udp_close(dual).unwrap();
    assert_eq!(stack.udp_bind_with(any, BindMode::default()), in_use);
    stack.udp_close(v4).unwrap();
    stack.udp_bind(any).unwrap();
    // Without a number, each socket gets a port that no other has.
    let ports: BTreeSet<u16> = (0..50)
        .map(|_| stack.udp_bind_with(address("0.0.0.0:0"), REUSE).unwrap())
        .collect::<Vec<UdpId>>()
        .into_iter()
        .map(|id| stack.udp_local(id).unwrap().port())
        .collect();
    assert_eq!(ports.len(), 50);
}

/// Returns the numbers of datagrams that sockets received, and drops these.
fn received(world: &mut World, sockets: &[UdpId]) -> Vec<usize> {
    let mut count = |&id: &UdpId| {
        let stack = &mut world.nodes[1].stack;
        std::iter::from_fn(|| stack.udp_recv(id, &mut [0; 8], false).ok()).count()
    };
    sockets.iter().map(&mut count).collect()
}

#[test]
fn each_sender_reaches_one_socket() {
    let mut world = World::new(73, [config(0), config(1)]);
    let any = address("0.0.0.0:7");
    let bind = |world: &mut World| world.nodes[1].stack.udp_bind_with(any, REUSE).unwrap();
    let sockets: Vec<UdpId> = (0..3).map(|_| bind(&mut world)).collect();
    let mut reached = BTreeSet::new();
    let mut last = None;
    for _ in 0..40 {
        let sender = world.nodes[0].stack.udp_bind(address("0.0.0.0:0")).unwrap();
        for _ in 0..5 {
            let now = world.now;
            let to = Some(address("10.0.0.2:7"));
            world.nodes[0].stack.udp_send(now, sender, b"?", to).unwrap();
            world.idle(Duration::from_millis(5));
        }
        let counts = received(&mut world, &sockets);
        assert_eq!(counts.iter().filter(|&&count| count == 5).count(), 1, "{counts:?}");
        reached.insert(counts.iter().position(|&count| count == 5).unwrap());
        last = Some(sender);
    }
    assert_eq!(reached.len(), 3);
    // A socket that is connected to the sender comes first, and receives from no other.
    let sender = last.unwrap();
    let peer = SocketAddr::new("10.0.0.1".parse().unwrap(), {
        world.nodes[0].stack.udp_local(sender).unwrap().port()
    });
    for connected in 0..3 {
        world.nodes[1].stack.udp_connect(sockets[connected], Some(peer)).unwrap();
        let now = world.now;
        let to = Some(address("10.0.0.2:7"));
        world.nodes[0].stack.udp_send(now, sender, b"?", to).unwrap();
        world.idle(Duration::from_millis(5));
        let mut expected = [0; 3];
        expected[connected] = 1;
        assert_eq!(received(&mut world, &sockets), expected);
        world.nodes[1].stack.udp_connect(sockets[connected], None).unwrap();
    }
}

/// Each socket receives its own copy of a datagram to a group or to a broadcast address.
#[test]
fn each_socket_receives_what_is_for_all() {
    let mut world = World::new(74, [config(0), config(1)]);
    let group = address("239.1.2.3:7");
    let mut sockets = Vec::new();
    for (local, joins) in
        [("0.0.0.0:7", true), ("0.0.0.0:7", false), ("239.1.2.3:7", true), ("10.0.0.2:7", true)]
    {
        let stack = &mut world.nodes[1].stack;
        let id = stack.udp_bind_with(address(local), REUSE).unwrap();
        if joins {
            stack.udp_join(id, group.ip()).unwrap();
        }
        sockets.push(id);
    }
    let sender = world.nodes[0].stack.udp_bind(address("0.0.0.0:0")).unwrap();
    world.nodes[0].stack.udp_options(sender).unwrap().broadcast = true;
    // A socket at the host's own address receives neither, as on Linux.
    for (to, expected) in [(group, [1, 0, 1, 0]), (address("255.255.255.255:7"), [1, 1, 0, 0])] {
        let now = world.now;
        world.nodes[0].stack.udp_send(now, sender, b"all", Some(to)).unwrap();
        world.idle(Duration::from_millis(5));
        assert_eq!(received(&mut world, &sockets), expected, "{to}");
    }
}

/// A refused datagram is reported to the connected socket, whatever others share its port.
#[test]
fn an_error_finds_the_connected_socket() {
    let mut world = World::new(75, [config(0), config(1)]);
    let any = address("0.0.0.0:7");
    let bind = |world: &mut World| world.nodes[0].stack.udp_bind_with(any, REUSE).unwrap();
    let sockets: Vec<UdpId> = (0..3).map(|_| bind(&mut world)).collect();
    let to = address("10.0.0.2:9");
    world.nodes[0].stack.udp_connect(sockets[1], Some(to)).unwrap();
    let now = world.now;
    world.nodes[0].stack.udp_send(now, sockets[1], b"?", None).unwrap();
    world.idle(Duration::from_millis(20));
    let errors = sockets.iter().map(|&id| world.nodes[0].stack.udp_take_error(id).unwrap());
    assert_eq!(errors.collect::<Vec<_>>(), [None, Some(SocketError::Refused), None]);
}

/// A socket at the unspecified address takes the new peers, where the connected sockets are at the host's own address, and
/// the other way round.
#[test]
fn connected_sockets_and_the_others_may_have_different_addresses() {
    let specific = address("10.0.0.2:7");
    let any = address("0.0.0.0:7");
    for (of_peer, of_others) in [(specific, any), (any, specific)] {
        let mut world = World::new(77, [config(0), config(1)]);
        let stack = &mut world.nodes[0].stack;
        let [known, unknown] = [0; 2]
            .map(|port| stack.udp_bind(SocketAddr::new("0.0.0.0".parse().unwrap(), port)).unwrap());
        let port = stack.udp_local(known).unwrap().port();
        let stack = &mut world.nodes[1].stack;
        let connected = stack.udp_bind_with(of_peer, REUSE).unwrap();
        let others = stack.udp_bind_with(of_others, REUSE).unwrap();
        let peer = SocketAddr::new("10.0.0.1".parse().unwrap(), port);
        stack.udp_connect(connected, Some(peer)).unwrap();
        for (sender, expected) in [(known, [1, 0]), (unknown, [0, 1])] {
            let now = world.now;
            world.nodes[0].stack.udp_send(now, sender, b"?", Some(specific)).unwrap();
            world.idle(Duration::from_millis(5));
            assert_eq!(received(&mut world, &[connected, others]), expected, "{of_peer}");
        }
        // The connected socket gets the error about its datagram, also beside the other.
        world.nodes[0].stack.udp_close(known).unwrap();
        let now = world.now;
        world.nodes[1].stack.udp_send(now, connected, b"!", None).unwrap();
        world.idle(Duration::from_millis(20));
        let error = world.nodes[1].stack.udp_take_error(connected);
        assert_eq!(error, Ok(Some(SocketError::Refused)), "{of_peer}");
    }
}

/// With SYN cookies, the acknowledgement reaches the listener that the SYN reached.
#[test]
fn listeners_of_a_port_answer_with_cookies() {
    let mut small = config(1);
    small.limits.half_open = 0;
    let mut world = World::new(78, [config(0), small]);
    let any = address("0.0.0.0:80");
    let listen = |world: &mut World| world.nodes[1].stack.tcp_listen_with(any, REUSE, 64).unwrap();
    let listeners: Vec<ListenerId> = (0..3).map(|_| listen(&mut world)).collect();
    let accepted = connect(&mut world, &listeners, address("10.0.0.2:80"), 30);
    assert_eq!(accepted.iter().sum::<usize>(), 30);
    assert!(accepted.iter().all(|&count| count > 0), "{accepted:?}");
    assert!(world.nodes[1].stack.counters().tcp_cookies_sent > 0);
}
