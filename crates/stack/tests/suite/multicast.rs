//! UDP sockets in multicast groups (RFC 1112, RFC 3376, RFC 3810).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::simulation::{World, config, finished};
use crate::wire::sum;
use towpath_stack::{BindMode, Meta, SocketError, UdpId};

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 4));

fn group_v6() -> IpAddr {
    "ff05::1:3".parse().unwrap()
}

fn unspecified(of: IpAddr, port: u16) -> SocketAddr {
    let text = if of.is_ipv4() { "0.0.0.0" } else { "::" };
    SocketAddr::new(text.parse().unwrap(), port)
}

/// Sends a datagram of node `from`, and waits until it has arrived.
fn send(world: &mut World, from: usize, id: UdpId, to: SocketAddr) {
    let now = world.now;
    world.nodes[from].stack.udp_send(now, id, b"to a group", Some(to)).unwrap();
    world.idle(Duration::from_millis(10));
}

/// Returns the number of datagrams that a socket received, and drops these.
fn received(world: &mut World, node: usize, id: UdpId) -> usize {
    let mut count = 0;
    while let Ok(received) = world.nodes[node].stack.udp_recv(id, &mut [0; 64], false) {
        assert!(received.to.is_multicast(), "{received:?}");
        count += 1;
    }
    count
}

/// Removes the IGMP messages that nodes have received. Returns each one's IPv4 destination and its bytes, and checks its
/// headers.
fn igmp(world: &mut World) -> Vec<(Ipv4Addr, Vec<u8>)> {
    let frames = std::mem::take(&mut world.received).into_iter().map(|(frame, _)| frame);
    let reports = frames.filter(|frame| frame[12..15] == [8, 0, 0x46] && frame[23] == 2);
    let reports = reports.map(|frame| {
        // Network control, a time to live of 1, and a router alert (RFC 3376, 4).
        assert_eq!((frame[15], frame[22], &frame[34..38]), (0xc0, 1, &[0x94, 4, 0, 0][..]));
        assert_eq!((sum(&frame[14..38]), sum(&frame[38..])), (0xffff, 0xffff));
        let dst = Ipv4Addr::from(<[u8; 4]>::try_from(&frame[30..34]).unwrap());
        let [_, b, c, d] = dst.octets();
        assert_eq!(frame[..6], [1, 0, 0x5e, b & 0x7f, c, d]);
        (dst, frame[38..].to_vec())
    });
    reports.collect()
}

#[test]
fn a_socket_receives_the_datagrams_to_its_groups() {
    for group in [GROUP, group_v6()] {
        let mut world = World::new(61, [config(0), config(1)]);
        let any = unspecified(group, 5000);
        let sender = world.nodes[0].stack.udp_bind(any).unwrap();
        let member = world.nodes[1].stack.udp_bind(any).unwrap();
        let to = SocketAddr::new(group, 5000);
        send(&mut world, 0, sender, to);
        assert_eq!(received(&mut world, 1, member), 0, "before it has joined");
        world.nodes[1].stack.udp_join(member, group).unwrap();
        send(&mut world, 0, sender, to);
        assert_eq!(received(&mut world, 1, member), 1);
        // The sender has not joined.
        assert_eq!(received(&mut world, 0, sender), 0);
        // Another socket of the host, which has not joined.
        let other = world.nodes[1].stack.udp_bind(unspecified(group, 5001)).unwrap();
        send(&mut world, 0, sender, SocketAddr::new(group, 5001));
        assert_eq!(received(&mut world, 1, other), 0);
        world.nodes[1].stack.udp_leave(member, group).unwrap();
        send(&mut world, 0, sender, to);
        assert_eq!(received(&mut world, 1, member), 0, "after it has left");
        // No answer says that no socket has the port (RFC 1122, 3.2.2).
        assert_eq!(world.nodes[1].stack.counters().icmp_errors_sent, 0);
    }
}

/// A fragmented datagram to a group arrives whole, and a socket bound to the group's address receives it.
#[test]
fn a_socket_bound_to_a_group_receives_long_datagrams() {
    let mut world = World::new(62, [config(0), config(1)]);
    let sender = world.nodes[0].stack.udp_bind(unspecified(GROUP, 0)).unwrap();
    let to = SocketAddr::new(GROUP, 5000);
    let member = world.nodes[1].stack.udp_bind(to).unwrap();
    world.nodes[1].stack.udp_join(member, GROUP).unwrap();
    let now = world.now;
    world.nodes[0].stack.udp_send(now, sender, &[7; 5000], Some(to)).unwrap();
    world.idle(Duration::from_millis(10));
    let mut buffer = [0; 6000];
    let received = world.nodes[1].stack.udp_recv(member, &mut buffer, false).unwrap();
    assert_eq!((received.len, received.to), (5000, GROUP));
    // What it sends comes from the host's own address.
    send(&mut world, 1, member, received.from);
    let answer = world.nodes[0].stack.udp_recv(sender, &mut buffer, false).unwrap();
    assert_eq!(answer.from, "10.0.0.2:5000".parse().unwrap());
}

#[test]
fn a_host_receives_its_own_datagrams_if_it_listens() {
    for group in [GROUP, group_v6()] {
        let mut world = World::new(63, [config(0), config(1)]);
        let socket = world.nodes[0].stack.udp_bind(unspecified(group, 5000)).unwrap();
        let member = world.nodes[1].stack.udp_bind(unspecified(group, 5000)).unwrap();
        let to = SocketAddr::new(group, 5000);
        for (node, id) in [(0, socket), (1, member)] {
            world.nodes[node].stack.udp_join(id, group).unwrap();
        }
        assert!(world.nodes[0].stack.udp_options(socket).unwrap().multicast_loop);
        send(&mut world, 0, socket, to);
        assert_eq!((received(&mut world, 0, socket), received(&mut world, 1, member)), (1, 1));
        world.nodes[0].stack.udp_options(socket).unwrap().multicast_loop = false;
        send(&mut world, 0, socket, to);
        assert_eq!((received(&mut world, 0, socket), received(&mut world, 1, member)), (0, 1));
    }
}

/// The first socket of a group makes the host report it, and the last one that leaves or closes ends that.
#[test]
fn groups_of_sockets_are_reported() {
    let mut world = World::new(64, [config(0), config(1)]);
    world.idle(Duration::from_secs(2));
    world.received.clear();
    let sockets: Vec<UdpId> =
        (0..3).map(|_| world.nodes[0].stack.udp_bind(unspecified(GROUP, 0)).unwrap()).collect();
    for &id in &sockets[..2] {
        world.nodes[0].stack.udp_join(id, GROUP).unwrap();
    }
    assert!(world.nodes[0].stack.wants_poll());
    world.idle(Duration::from_secs(2));
    let to_routers = Ipv4Addr::new(224, 0, 0, 22);
    let begins = vec![0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3];
    let without_sum = |reports: Vec<(Ipv4Addr, Vec<u8>)>| -> Vec<(Ipv4Addr, Vec<u8>)> {
        let clear = |mut message: Vec<u8>| {
            message[2..4].fill(0);
            message
        };
        reports.into_iter().map(|(dst, message)| (dst, clear(message))).collect()
    };
    let expected = vec![(to_routers, begins.clone()); 2];
    assert_eq!(without_sum(igmp(&mut world)), expected, "twice, for two sockets");
    // The host does not report the group of all hosts.
    world.nodes[0].stack.udp_join(sockets[2], Ipv4Addr::new(224, 0, 0, 1).into()).unwrap();
    world.nodes[0].stack.udp_leave(sockets[0], GROUP).unwrap();
    world.idle(Duration::from_secs(2));
    assert_eq!(igmp(&mut world), []);
    world.nodes[0].stack.udp_close(sockets[1]).unwrap();
    assert!(world.nodes[0].stack.wants_poll());
    world.idle(Duration::from_secs(2));
    let mut ends = begins;
    ends[8] = 3;
    assert_eq!(without_sum(igmp(&mut world)), vec![(to_routers, ends); 2]);
    assert_eq!(world.nodes[0].stack.counters().igmp_sent, 4);
    assert_eq!(world.nodes[1].stack.counters().igmp_received, 0);
}

/// Returns a frame with a query of IGMPv2 for all groups.
fn query(src: [u8; 4], time_to_live: u8) -> Vec<u8> {
    let mut frame = vec![1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 66, 8, 0];
    frame.extend_from_slice(&[0x46, 0xc0, 0, 32, 0, 0, 0, 0, time_to_live, 2, 0, 0]);
    frame.extend_from_slice(&src);
    frame.extend_from_slice(&[224, 0, 0, 1, 0x94, 4, 0, 0]);
    frame.extend_from_slice(&[0x11, 10, 0xee, 0xf5, 0, 0, 0, 0]);
    complete(&mut frame);
    frame
}

/// Writes the checksum of the IPv4 header.
fn complete(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let header_sum = (!sum(&frame[14..38])).to_be_bytes();
    frame[24..26].copy_from_slice(&header_sum);
}

/// A switch asks from 0.0.0.0 (RFC 4541, 2.1.1), and a router from its address.
#[test]
fn queries_are_answered() {
    let mut world = World::new(65, [config(0), config(1)]);
    let socket = world.nodes[0].stack.udp_bind(unspecified(GROUP, 0)).unwrap();
    world.nodes[0].stack.udp_join(socket, GROUP).unwrap();
    world.idle(Duration::from_secs(2));
    igmp(&mut world);
    let mut wrong_sum = query([10, 0, 0, 9], 1);
    wrong_sum[39] ^= 1;
    let mut unicast = query([203, 0, 113, 5], 1);
    unicast[..6].copy_from_slice(&config(0).mac.octets());
    unicast[30..34].copy_from_slice(&[10, 0, 0, 1]);
    complete(&mut unicast);
    let mut without_alert = query([10, 0, 0, 9], 1);
    without_alert[34] ^= 1;
    complete(&mut without_alert);
    // Of the first fragment, which has the whole query, and of the last one, which has nothing that counts.
    let mut fragments = [query([10, 0, 0, 9], 1), query([10, 0, 0, 9], 1)];
    fragments[0][20] = 0x20;
    fragments[1][21] = 1;
    fragments.iter_mut().for_each(|frame| complete(frame));
    let [first, second] = fragments;
    for (frame, answers) in [
        (query([0; 4], 1), 1),
        (query([10, 0, 0, 9], 1), 1),
        (query([10, 0, 0, 9], 2), 0),
        // A switch may have any address. To another address than all hosts, a sender beyond the link can choose the time
        // to live.
        (query([203, 0, 113, 5], 1), 1),
        (unicast, 0),
        (without_alert, 0),
        (first, 0),
        (second, 0),
        (wrong_sum, 0),
    ] {
        let now = world.now;
        world.nodes[0].stack.input(now, &frame, Meta::FULL);
        world.idle(Duration::from_secs(3));
        let reports = igmp(&mut world);
        assert_eq!(reports.len(), answers, "{reports:x?}");
        // The querier of version 2 gets its version, to the group itself.
        assert!(
            reports.iter().all(|(dst, message)| IpAddr::V4(*dst) == GROUP && message[0] == 0x16)
        );
    }
    let counters = world.nodes[0].stack.counters();
    assert_eq!((counters.igmp_received, counters.rx_checksum, counters.rx_malformed), (7, 1, 4));
}

/// A flood of forged queries of an old version leads to few reports, whatever the number of groups.
#[test]
fn a_flood_of_queries_gets_few_reports() {
    let mut world = World::new(68, [config(0), config(1)]);
    let socket = world.nodes[0].stack.udp_bind(unspecified(GROUP, 0)).unwrap();
    for n in 0..500_u16 {
        let [high, low] = n.to_be_bytes();
        world.nodes[0].stack.udp_join(socket, Ipv4Addr::new(239, 9, high, low).into()).unwrap();
    }
    world.idle(Duration::from_secs(3));
    let before = world.nodes[0].stack.counters().igmp_sent;
    // The same query of version 3, which also leads to answers of version 2.
    let mut latest = query([10, 0, 0, 9], 1);
    latest[17] += 4;
    latest[39] = 0;
    latest[40..42].copy_from_slice(&[0xee, 0xff]);
    latest.extend_from_slice(&[0; 4]);
    complete(&mut latest);
    for n in 0..1000 {
        let now = world.now;
        let frame = if n % 2 == 0 { query([10, 0, 0, 9], 1) } else { latest.clone() };
        world.nodes[0].stack.input(now, &frame, Meta::FULL);
        world.idle(Duration::from_millis(10));
    }
    let reports = world.nodes[0].stack.counters().igmp_sent - before;
    // In ten seconds, a report per group for each of two queries.
    assert!((500..=1500).contains(&reports), "{reports}");
    let counters = world.nodes[0].stack.counters();
    assert_eq!(counters.rx_checksum, 0);
    assert!(counters.group_queries_limited > 900, "{}", counters.group_queries_limited);
}

#[test]
fn mistakes_are_errors() {
    let mut world = World::new(66, [config(0), config(1)]);
    let mut small = config(0);
    small.limits.memberships = 2;
    let stack = &mut world.nodes[0].stack;
    let v4 = stack.udp_bind(unspecified(GROUP, 0)).unwrap();
    let v6 = stack.udp_bind(unspecified(group_v6(), 0)).unwrap();
    let dual = stack
        .udp_bind_with(
            unspecified(group_v6(), 0),
            BindMode { is_dual: true, ..BindMode::default() },
        )
        .unwrap();
    assert_eq!(stack.udp_join(v4, "10.0.0.2".parse().unwrap()), Err(SocketError::NotGroup));
    assert_eq!(stack.udp_join(v4, group_v6()), Err(SocketError::NotGroup));
    assert_eq!(stack.udp_join(v6, GROUP), Err(SocketError::NotGroup));
    assert_eq!(stack.udp_join(dual, GROUP), Ok(()));
    assert_eq!(stack.udp_join(dual, group_v6()), Ok(()));
    assert_eq!(stack.udp_join(dual, GROUP), Err(SocketError::AlreadyJoined));
    assert_eq!(stack.udp_leave(dual, OTHER), Err(SocketError::NotJoined));
    assert_eq!(stack.udp_leave(dual, "::1".parse().unwrap()), Err(SocketError::NotGroup));
    stack.udp_close(dual).unwrap();
    assert_eq!(stack.udp_join(dual, GROUP), Err(SocketError::NoSocket));

    let mut world = World::new(66, [small, config(1)]);
    let stack = &mut world.nodes[0].stack;
    let first = stack.udp_bind(unspecified(GROUP, 0)).unwrap();
    let second = stack.udp_bind(unspecified(GROUP, 0)).unwrap();
    assert_eq!(stack.udp_join(first, GROUP), Ok(()));
    assert_eq!(stack.udp_join(second, GROUP), Ok(()));
    assert_eq!(stack.udp_join(second, OTHER), Err(SocketError::LimitReached));
    stack.udp_close(first).unwrap();
    assert_eq!(stack.udp_join(second, OTHER), Ok(()));

    let mut shared = config(0);
    shared.shares_addresses = true;
    let mut world = World::new(66, [shared, config(1)]);
    let stack = &mut world.nodes[0].stack;
    let socket = stack.udp_bind(unspecified(GROUP, 0)).unwrap();
    assert_eq!(stack.udp_join(socket, GROUP), Err(SocketError::NoGroups));

    let mut only_v4 = config(0);
    only_v4.ipv6_link_local = false;
    only_v4.ipv6.clear();
    let mut world = World::new(66, [only_v4, config(1)]);
    let stack = &mut world.nodes[0].stack;
    let socket = stack.udp_bind(unspecified(group_v6(), 0)).unwrap();
    assert_eq!(stack.udp_join(socket, group_v6()), Err(SocketError::AddressNotAvailable));
}

/// Routers forward no packet from a link-local address (RFC 4291, 2.5.6; RFC 6724, 5, rule 2).
#[test]
fn the_source_of_a_datagram_has_the_scope_of_its_group() {
    let mut sender = config(0);
    sender.ipv6 = vec![("fd00::1".parse().unwrap(), 64)];
    let mut world = World::new(71, [sender, config(1)]);
    for (group, is_local) in [("ff02::5", true), ("ff05::5", false), ("ff0e::5", false)] {
        let group: IpAddr = group.parse().unwrap();
        let socket = world.nodes[1].stack.udp_bind(unspecified(group, 5000)).unwrap();
        world.nodes[1].stack.udp_join(socket, group).unwrap();
        let from = world.nodes[0].stack.udp_bind(unspecified(group, 0)).unwrap();
        send(&mut world, 0, from, SocketAddr::new(group, 5000));
        let received = world.nodes[1].stack.udp_recv(socket, &mut [0; 64], false).unwrap();
        let IpAddr::V6(source) = received.from.ip() else { unreachable!() };
        assert_eq!(source.is_unicast_link_local(), is_local, "{group} from {source}");
        world.nodes[1].stack.udp_close(socket).unwrap();
    }
}

/// Routers may forward a socket's group: an answer to each member's echo request would amplify a forged one.
#[test]
fn echo_requests_to_groups_of_sockets_are_not_answered() {
    let mut world = World::new(67, [config(0), config(1)]);
    let socket = world.nodes[1].stack.udp_bind(unspecified(group_v6(), 0)).unwrap();
    world.nodes[1].stack.udp_join(socket, group_v6()).unwrap();
    // The host answers requests to all nodes, whether a socket has joined them or not.
    world.nodes[1].stack.udp_join(socket, "ff02::1".parse().unwrap()).unwrap();
    world.idle(Duration::from_secs(2));
    for (group, answers) in [("ff05::1:3", 0), ("ff02::1", 1)] {
        let IpAddr::V6(group) = group.parse().unwrap() else { unreachable!() };
        let IpAddr::V6(src) = world.v6(0) else { unreachable!() };
        let [.., a, b, c, d] = group.octets();
        let mut frame = vec![0x33, 0x33, a, b, c, d];
        frame.extend_from_slice(&config(0).mac.octets());
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 58, 64]);
        frame.extend_from_slice(&[src.octets(), group.octets()].concat());
        frame.extend_from_slice(&[128, 0, 0, 0, 0, 1, 0, 1]);
        let mut pseudo = frame[22..54].to_vec();
        pseudo.extend_from_slice(&[0, 0, 0, 8, 0, 0, 0, 58, 128, 0, 0, 0, 0, 1, 0, 1]);
        let message_sum = (!sum(&pseudo)).to_be_bytes();
        frame[56..58].copy_from_slice(&message_sum);
        world.inject(1, finished(frame, Meta::FULL), Meta::FULL);
        world.idle(Duration::from_millis(10));
        assert_eq!(world.nodes[1].stack.counters().icmp_echoes, answers, "{group}");
    }
}

/// Packets to groups of interface-local scope leave no host, and come from none (RFC 4291, 2.7).
#[test]
fn groups_of_interface_local_scope_stay_in_the_host() {
    let mut world = World::new(69, [config(0), config(1)]);
    let group: IpAddr = "ff01::5".parse().unwrap();
    let bind = |world: &mut World, node: usize| {
        let id = world.nodes[node].stack.udp_bind(unspecified(group, 5000)).unwrap();
        world.nodes[node].stack.udp_join(id, group).unwrap();
        id
    };
    let (own, other) = (bind(&mut world, 0), bind(&mut world, 1));
    world.idle(Duration::from_secs(3));
    world.received.clear();
    send(&mut world, 0, own, SocketAddr::new(group, 5000));
    assert_eq!((received(&mut world, 0, own), received(&mut world, 1, other)), (1, 0));
    assert!(world.received.is_empty(), "{:x?}", world.received);
    // The same datagram to a group of the link, changed on its way.
    send(&mut world, 0, own, "[ff02::5]:5000".parse().unwrap());
    let (mut frame, _) = world.received.pop().unwrap();
    assert_eq!(frame[38..40], [0xff, 2]);
    frame[39] = 1;
    let sum_at = 60;
    let sum = u16::from_be_bytes([frame[sum_at], frame[sum_at + 1]]);
    frame[sum_at..sum_at + 2].copy_from_slice(&(sum + 1).to_be_bytes());
    let now = world.now;
    world.nodes[1].stack.input(now, &frame, Meta::FULL);
    world.idle(Duration::from_millis(10));
    assert_eq!(received(&mut world, 1, other), 0);
    assert_eq!(world.nodes[1].stack.counters().rx_checksum, 0);
}

/// Each socket receives datagrams to all hosts of the link, without a membership. So does the sender's host.
#[test]
fn datagrams_to_all_hosts_reach_each_socket() {
    for group in ["224.0.0.1", "ff02::1"] {
        let mut world = World::new(70, [config(0), config(1)]);
        let to = SocketAddr::new(group.parse().unwrap(), 5000);
        let bind = |world: &mut World, node: usize| {
            world.nodes[node].stack.udp_bind(unspecified(to.ip(), 5000)).unwrap()
        };
        let (own, other) = (bind(&mut world, 0), bind(&mut world, 1));
        send(&mut world, 0, own, to);
        assert_eq!(
            (received(&mut world, 0, own), received(&mut world, 1, other)),
            (1, 1),
            "{group}"
        );
    }
}

/// A socket whose port has been revoked is in no group any more.
#[test]
fn a_revoked_port_leaves_its_groups() {
    let mut world = World::new(76, [config(0), config(1)]);
    let socket = world.nodes[0].stack.udp_bind(unspecified(GROUP, 5000)).unwrap();
    world.nodes[0].stack.udp_join(socket, GROUP).unwrap();
    world.idle(Duration::from_secs(2));
    igmp(&mut world);
    world.nodes[0].stack.udp_revoke(true, 5000);
    world.idle(Duration::from_secs(2));
    let reports = igmp(&mut world);
    assert_eq!(reports.iter().map(|(_, message)| message[8]).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(world.nodes[0].stack.udp_join(socket, OTHER), Err(SocketError::Revoked));
}
