//! Neighbour discovery and multicast groups of IPv6 (RFC 4861, RFC 4862, RFC 3810).

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::simulation::{World, config};
use crate::wire::sum;
use towpath_stack::Meta;

/// Returns a frame with a neighbour solicitation of duplicate address detection (RFC 4862, 5.4.2).
fn detection(target: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = target.octets();
    let group =
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&target.octets());
    icmpv6([2, 0, 0, 0, 0, 66], (Ipv6Addr::UNSPECIFIED, group), &message)
}

/// Returns a frame with an ICMPv6 message, whose checksum is computed here.
fn icmpv6(mac: [u8; 6], (src, dst): (Ipv6Addr, Ipv6Addr), message: &[u8]) -> Vec<u8> {
    let mut pseudo = [src.octets(), dst.octets()].concat();
    pseudo.extend_from_slice(&(message.len() as u32).to_be_bytes());
    pseudo.extend_from_slice(&[0, 0, 0, 58]);
    pseudo.extend_from_slice(message);
    let sum = (!sum(&pseudo)).to_be_bytes();
    let [.., a, b, c, d] = dst.octets();
    let mut frame = vec![0x33, 0x33, a, b, c, d];
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, message.len() as u8, 58, 255]);
    frame.extend_from_slice(&src.octets());
    frame.extend_from_slice(&dst.octets());
    frame.extend_from_slice(&[message[0], message[1], sum[0], sum[1]]);
    frame.extend_from_slice(&message[4..]);
    frame
}

/// A forged claim on one address takes no defence from another one.
#[test]
fn each_duplicate_address_detection_is_answered() {
    let mut world = World::new(22, [config(0), config(1)]);
    world.idle(Duration::from_secs(1));
    let IpAddr::V6(target) = world.v6(0) else { unreachable!() };
    let mut claim = vec![0xff; 6];
    claim.extend_from_slice(&[2, 0, 0, 0, 0, 66, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    claim.extend_from_slice(&[2, 0, 0, 0, 0, 66, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    let now = world.now;
    world.nodes[0].stack.input(now, &claim, Meta::FULL);
    world.idle(Duration::from_millis(10));
    for count in 1..=5 {
        world.received.clear();
        let now = world.now;
        world.nodes[0].stack.input(now, &detection(target), Meta::FULL);
        world.idle(Duration::from_millis(10));
        let answers: Vec<_> =
            world.received.iter().filter(|(frame, _)| frame.get(54) == Some(&136)).collect();
        let [(answer, _)] = answers.as_slice() else { panic!("{count}: {answers:x?}") };
        // To all nodes, about this address, not solicited, and overriding (RFC 4861, 7.2.4).
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!((&answer[62..78], answer[58]), (&target.octets()[..], 0x20));
        assert_eq!(world.nodes[0].stack.counters().address_conflicts, 1 + count);
    }
}

/// Returns a frame with a query of multicast listeners: its source, its hop limit, and its hop-by-hop option.
fn query(src: Ipv6Addr, hop_limit: u8, option: u8) -> Vec<u8> {
    let mut message = vec![130, 0, 0, 0, 0, 100, 0, 0];
    message.extend_from_slice(&[0; 16]);
    message.extend_from_slice(&[2, 125, 0, 0]);
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut frame = icmpv6([2, 0, 0, 0, 0, 66], (src, all), &message);
    frame[19] += 8;
    frame[20] = 0;
    frame[21] = hop_limit;
    frame.splice(54..54, [58, 0, option, 2, 0, 0, 1, 0]);
    frame
}

/// Returns the groups of each report that was received, and checks its headers.
fn reports(world: &mut World) -> Vec<Vec<Ipv6Addr>> {
    let received = std::mem::take(&mut world.received);
    let frames = received.iter().map(|(frame, _)| frame);
    let frames = frames.filter(|frame| frame.get(62) == Some(&143) && frame[20] == 0);
    let mut found = Vec::new();
    for frame in frames {
        let own = world.nodes[0].stack.addresses().filter_map(|(address, _)| match address {
            IpAddr::V6(own) if own.is_unicast_link_local() => Some(own),
            _ => None,
        });
        let src = own.min().unwrap_or(Ipv6Addr::UNSPECIFIED);
        // The report is from the link-local address, or from `::` without one. It goes to all routers of MLDv2, with a
        // hop limit of 1 and a router alert.
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        assert_eq!((frame[21], &frame[22..38]), (1, &src.octets()[..]));
        assert_eq!(frame[38..54], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16).octets());
        assert_eq!(frame[54..62], [58, 0, 5, 2, 0, 0, 1, 0]);
        let message = &frame[62..];
        let mut pseudo = frame[22..54].to_vec();
        pseudo.extend_from_slice(&(message.len() as u32).to_be_bytes());
        pseudo.extend_from_slice(&[0, 0, 0, 58]);
        pseudo.extend_from_slice(message);
        assert_eq!(sum(&pseudo), 0xffff);
        let groups = message[8..].chunks(20);
        found.push(
            groups.map(|record| <[u8; 16]>::try_from(&record[4..]).unwrap().into()).collect(),
        );
    }
    found
}

#[test]
fn groups_are_reported_at_the_start_and_to_queriers() {
    let mut world = World::new(23, [config(0), config(1)]);
    let IpAddr::V6(own) = world.v6(0) else { unreachable!() };
    let [.., a, b, c] = own.octets();
    let group =
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    world.idle(Duration::from_secs(2));
    let from_node_0 = |reports: Vec<Vec<Ipv6Addr>>| -> usize {
        reports.iter().filter(|groups| **groups == [group]).count()
    };
    world.received.retain(|(_, to)| *to == 1);
    assert_eq!(from_node_0(reports(&mut world)), 2);
    let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    for (frame, answers) in [
        (query(router, 1, 5), 1),
        // From beyond the link, or without the option that shows it to hosts of the link.
        (query(global, 1, 5), 0),
        (query(router, 2, 5), 0),
        (query(router, 1, 6), 0),
    ] {
        let now = world.now;
        world.nodes[0].stack.input(now, &frame, Meta::FULL);
        world.idle(Duration::from_millis(200));
        world.received.retain(|(_, to)| *to == 1);
        assert_eq!(from_node_0(reports(&mut world)), answers);
    }
    let counters = world.nodes[0].stack.counters();
    assert_eq!((counters.mld_received, counters.mld_sent, counters.rx_malformed), (4, 3, 3));
}

/// Solicitations for the addresses of a host without a link-local address also arrive (RFC 3590).
#[test]
fn a_host_without_a_link_local_address_reports_its_groups() {
    let global = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, 0x3456);
    let mut without = config(0);
    without.ipv6_link_local = false;
    without.ipv6 = vec![(global, 64)];
    let mut world = World::new(28, [without, config(1)]);
    world.idle(Duration::from_secs(2));
    world.received.retain(|(_, to)| *to == 1);
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff12, 0x3456);
    assert_eq!(reports(&mut world), [[group], [group]]);
    let now = world.now;
    let router = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    world.nodes[0].stack.input(now, &query(router, 1, 5), Meta::FULL);
    world.idle(Duration::from_millis(200));
    world.received.retain(|(_, to)| *to == 1);
    assert_eq!(reports(&mut world), [[group]]);
}

/// Returns the frames of node 0 that answer a frame.
fn answers(world: &mut World, frame: &[u8]) -> Vec<Vec<u8>> {
    world.received.clear();
    let now = world.now;
    world.nodes[0].stack.input(now, frame, Meta::FULL);
    world.idle(Duration::from_millis(10));
    let received =
        world.received.iter().filter(|(frame, to)| *to == 1 && frame[12..14] == [0x86, 0xdd]);
    received.map(|(frame, _)| frame.clone()).collect()
}

/// A world in which node 0 knows node 1, and the addresses of both.
fn acquainted(seed: u64) -> (World, Ipv6Addr, Ipv6Addr) {
    let mut world = World::new(seed, [config(0), config(1)]);
    let (IpAddr::V6(own), IpAddr::V6(peer)) = (world.v6(0), world.v6(1)) else { unreachable!() };
    world.idle(Duration::from_secs(2));
    let socket = world.nodes[0].stack.udp_bind("[::]:9".parse().unwrap()).unwrap();
    let now = world.now;
    world.nodes[0].stack.udp_send(now, socket, b"hello", Some((peer, 9).into())).unwrap();
    world.idle(Duration::from_millis(100));
    (world, own, peer)
}

/// RFC 8200, 4 and 4.2: what a report names, and where its pointer leads. `frame` is from the Ethernet header on.
#[test]
fn headers_that_a_host_refuses_are_reported() {
    let (mut world, own, peer) = acquainted(24);
    let mac = [2, 0, 0, 0, 0, 1];
    let packet = |dst: Ipv6Addr, first: u8, rest: &[u8]| {
        let mut frame = mac.to_vec();
        if dst.is_multicast() {
            frame = vec![0x33, 0x33, 0, 0, 0, 1];
        }
        frame.extend_from_slice(&[
            2,
            0,
            0,
            0,
            0,
            2,
            0x86,
            0xdd,
            0x60,
            0,
            0,
            0,
            0,
            rest.len() as u8,
        ]);
        frame.extend_from_slice(&[first, 64]);
        frame.extend_from_slice(&peer.octets());
        frame.extend_from_slice(&dst.octets());
        frame.extend_from_slice(rest);
        frame
    };
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let skipped = [60, 0, 1, 4, 0, 0, 0, 0];
    let option = |kind: u8, next: u8| [next, 0, kind, 4, 0, 0, 0, 0];
    let error = [1, 4, 0, 0, 0, 0, 0, 0];
    let cases = [
        ("an unknown protocol", packet(own, 200, &[0; 8]), Some((1, 6))),
        (
            "behind two extensions",
            packet(own, 0, &[&skipped[..], &[200, 0, 1, 4, 0, 0, 0, 0], &[0; 8]].concat()),
            Some((1, 48)),
        ),
        ("option 10", packet(own, 60, &option(0x80, 59)), Some((2, 42))),
        ("option 11", packet(own, 60, &option(0xc0, 59)), Some((2, 42))),
        ("option 01", packet(own, 60, &option(0x40, 59)), None),
        ("option 10 to a group", packet(all, 60, &option(0x80, 59)), Some((2, 42))),
        ("option 11 to a group", packet(all, 60, &option(0xc0, 59)), None),
        ("segments left", packet(own, 43, &[59, 0, 4, 1, 0, 0, 0, 0]), Some((0, 42))),
        ("no segments left", packet(own, 43, &[59, 0, 4, 0, 0, 0, 0, 0]), None),
        (
            "a second hop-by-hop header",
            packet(own, 0, &[[0, 0, 1, 4, 0, 0, 0, 0], [59, 0, 1, 4, 0, 0, 0, 0]].concat()),
            Some((1, 40)),
        ),
        ("an error", packet(own, 60, &[&option(0x80, 58)[..], &error].concat()), None),
        (
            "an error behind an authentication header",
            packet(own, 60, &[&option(0x80, 51)[..], &[58, 0, 0, 0, 0, 0, 0, 0], &error].concat()),
            None,
        ),
        (
            "a redirect",
            packet(own, 60, &[&option(0x80, 58)[..], &[137, 0, 0, 0, 0, 0, 0, 0]].concat()),
            None,
        ),
    ];
    for (name, frame, expected) in cases {
        let found = answers(&mut world, &frame);
        let Some((code, pointer)) = expected else {
            assert!(found.is_empty(), "{name}: {found:x?}");
            continue;
        };
        let [report] = found.as_slice() else { panic!("{name}: {found:x?}") };
        assert_eq!((report[20], &report[22..38]), (58, &own.octets()[..]), "{name}");
        assert_eq!(report[54..56], [4, code], "{name}");
        assert_eq!(report[58..62], u32::to_be_bytes(pointer), "{name}");
        assert_eq!(report[62..], frame[14..], "{name}");
    }
}

/// As Linux does; the code of a request is that of its answer.
#[test]
fn echoes_to_all_nodes_are_answered() {
    let (mut world, own, peer) = acquainted(25);
    for (dst, code) in [(own, 0), (own, 7), (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0)] {
        let mut frame = icmpv6([2, 0, 0, 0, 0, 2], (peer, dst), &[128, code, 0, 0, 1, 2, 3, 4, 5]);
        if !dst.is_multicast() {
            frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        }
        let found = answers(&mut world, &frame);
        let [answer] = found.as_slice() else { panic!("{dst}: {found:x?}") };
        assert_eq!((&answer[22..38], &answer[38..54]), (&own.octets()[..], &peer.octets()[..]));
        assert_eq!((&answer[54..56], &answer[58..]), (&[129, code][..], &[1, 2, 3, 4, 5][..]));
    }
}

/// RFC 6980, 5: a switch that inspects neighbour discovery sees no fragments.
#[test]
fn neighbour_discovery_in_fragments_is_ignored() {
    let (mut world, own, peer) = acquainted(26);
    // An advertisement with another link address for node 1.
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend_from_slice(&peer.octets());
    message.extend_from_slice(&[2, 1, 2, 0, 0, 0, 0, 99]);
    let whole = icmpv6([2, 0, 0, 0, 0, 2], (peer, own), &message);
    let message = &whole[54..];
    let fragment = |offset: u16, more: u16, part: &[u8]| {
        let mut frame = whole[..54].to_vec();
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[19] = part.len() as u8 + 8;
        frame[20] = 44;
        frame.extend_from_slice(&[58, 0]);
        frame.extend_from_slice(&(offset | more).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 5]);
        frame.extend_from_slice(part);
        frame
    };
    let before = *world.nodes[0].stack.counters();
    for frame in [fragment(0, 1, &message[..24]), fragment(24, 0, &message[24..])] {
        assert!(answers(&mut world, &frame).is_empty());
    }
    let after = world.nodes[0].stack.counters();
    assert_eq!(after.reassembled - before.reassembled, 1);
    assert_eq!(after.rx_malformed - before.rx_malformed, 1);
    assert_eq!(after.ndp_received, before.ndp_received);
}

/// The host whose addresses a stack shares reports what it receives; the server counts the stack's own reports as
/// forbidden.
#[test]
fn a_stack_that_shares_addresses_reports_nothing() {
    let mut shared = config(0);
    shared.shares_addresses = true;
    let mut world = World::new(27, [shared, config(1)]);
    let (IpAddr::V6(own), IpAddr::V6(peer)) = (world.v6(0), world.v6(1)) else { unreachable!() };
    world.idle(Duration::from_secs(2));
    assert_eq!(world.nodes[0].stack.counters().mld_sent, 0);
    let packet = |first: u8, rest: &[u8]| {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0];
        frame.extend_from_slice(&[rest.len() as u8, first, 64]);
        frame.extend_from_slice(&peer.octets());
        frame.extend_from_slice(&own.octets());
        frame.extend_from_slice(rest);
        frame
    };
    for frame in [packet(60, &[59, 0, 0x80, 4, 0, 0, 0, 0]), packet(200, &[0; 8])] {
        assert!(answers(&mut world, &frame).is_empty());
    }
}
