//! The stack verifies checksums that no device has verified, and counts the wrong ones. Two other
//! implementations say which are wrong: a loop over the words, and smoltcp's.

use std::net::IpAddr;
use std::ops::Range;

use crate::simulation::{V4, World, config, sum};
use smoltcp::wire::{
    Icmpv4Packet, Icmpv6Packet, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};
use towpath_packet::build::{Flow, Tcp};
use towpath_stack::{Checksum, Meta};

/// Where the IP packet begins.
const L3: usize = 14;

/// A packet to node 1 that the stack accepts, and its bytes that do not decide how it is parsed.
struct Sample {
    name: &'static str,
    frame: Vec<u8>,
    bytes: Vec<Range<usize>>,
}

/// Returns packets of each protocol over both versions of IP, to open ports of node 1.
fn samples(world: &mut World) -> Vec<Sample> {
    let mut samples = Vec::new();
    let v4: [IpAddr; 2] = V4.map(|address| address.parse().unwrap());
    for [from, to] in [v4, [world.v6(0), world.v6(1)]] {
        let node = &mut world.nodes[1].stack;
        node.udp_bind((to, 53).into()).unwrap();
        node.tcp_listen((to, 80).into(), 4).unwrap();
        let flow = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Flow::v4().addresses(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => Flow::v6().addresses(from, to),
            _ => unreachable!(),
        };
        let flow = flow.macs([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let l4 = if to.is_ipv4() { L3 + 20 } else { L3 + 40 };
        let mut add = |name, frame: Vec<u8>, bytes: &[Range<usize>]| {
            let last = if bytes.is_empty() { l4 + 8 } else { l4 + 20 };
            let mut bytes: Vec<_> = bytes.iter().map(|one| l4 + one.start..l4 + one.end).collect();
            bytes.push(last..frame.len());
            samples.push(Sample { name, frame, bytes });
        };
        let tcp = Tcp { flags: 2, acknowledgement: 0, ..Tcp::default() };
        // Ports, sequence number, window and checksum; not the flags, nor the header's length.
        add("TCP", flow.ports(4000, 80).tcp(&tcp, b""), &[0..12, 14..18]);
        add("UDP", flow.ports(4000, 53).udp(b"an odd number of bytes"), &[]);
        add("echo", flow.echo(true, 1, 2, b"an even number of bytes"), &[]);
    }
    samples
}

/// Returns `true` if the checksum of the packet in IP is right, as smoltcp sees it.
fn smoltcp_finds_right(ip: &[u8]) -> bool {
    let (protocol, payload, from, to): (u8, &[u8], IpAddress, IpAddress) = if ip[0] >> 4 == 4 {
        let packet = Ipv4Packet::new_checked(ip).unwrap();
        assert!(packet.verify_checksum());
        (ip[9], packet.payload(), packet.src_addr().into(), packet.dst_addr().into())
    } else {
        let packet = Ipv6Packet::new_checked(ip).unwrap();
        (ip[6], packet.payload(), packet.src_addr().into(), packet.dst_addr().into())
    };
    match (protocol, from, to) {
        (6, ..) => TcpPacket::new_checked(payload).unwrap().verify_checksum(&from, &to),
        (17, ..) => UdpPacket::new_checked(payload).unwrap().verify_checksum(&from, &to),
        (1, ..) => Icmpv4Packet::new_checked(payload).unwrap().verify_checksum(),
        (58, IpAddress::Ipv6(from), IpAddress::Ipv6(to)) => {
            Icmpv6Packet::new_checked(payload).unwrap().verify_checksum(&from, &to)
        }
        other => panic!("{other:?}"),
    }
}

/// The same, by the definition.
fn the_words_are_right(ip: &[u8]) -> bool {
    let (addresses, protocol, payload) = if ip[0] >> 4 == 4 {
        (&ip[12..20], ip[9], &ip[20..])
    } else {
        (&ip[8..40], ip[6], &ip[40..])
    };
    let mut bytes = if protocol == 1 { Vec::new() } else { addresses.to_vec() };
    if protocol != 1 {
        bytes.extend_from_slice(&[0, protocol]);
        bytes.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    }
    bytes.extend_from_slice(payload);
    sum(&bytes) == 0xffff
}

/// Passes a frame to node 1. Returns how many wrong checksums that counts: IP's and others.
fn wrong(world: &mut World, frame: &[u8], meta: Meta) -> [u64; 2] {
    let before = world.nodes[1].stack.counters();
    let before = [before.rx_ip_checksum, before.rx_checksum];
    let now = world.now;
    world.nodes[1].stack.input(now, frame, meta);
    let after = world.nodes[1].stack.counters();
    [after.rx_ip_checksum - before[0], after.rx_checksum - before[1]]
}

#[test]
fn each_wrong_bit_is_counted_unless_a_device_verified_the_checksum() {
    let mut world = World::new(1, [config(0), config(1)]);
    for Sample { name, frame, bytes } in samples(&mut world) {
        assert!(smoltcp_finds_right(&frame[L3..]) && the_words_are_right(&frame[L3..]), "{name}");
        assert_eq!(wrong(&mut world, &frame, Meta::FULL), [0, 0], "{name}");
        for at in bytes.into_iter().flatten() {
            for bit in 0..8 {
                let mut changed = frame.clone();
                changed[at] ^= 1 << bit;
                let ip = &changed[L3..];
                assert!(!smoltcp_finds_right(ip) && !the_words_are_right(ip), "{name} {at} {bit}");
                assert_eq!(wrong(&mut world, &changed, Meta::FULL), [0, 1], "{name} {at} {bit}");
                let start = (if frame[L3] >> 4 == 4 { L3 + 20 } else { L3 + 40 }) as u16;
                for checksum in [Checksum::Verified, Checksum::Partial { start, offset: 6 }] {
                    let meta = Meta { checksum, segmentation: None };
                    assert_eq!(wrong(&mut world, &changed, meta), [0, 0], "{name} {at} {bit}");
                }
            }
        }
    }
}

/// The checksum of IPv4's own header is verified whatever a device says of TCP's or UDP's.
#[test]
fn each_wrong_bit_of_an_ipv4_header_is_counted() {
    let mut world = World::new(1, [config(0), config(1)]);
    let sample = samples(&mut world).swap_remove(1);
    // Service, identification, time to live, protocol, checksum and addresses.
    for at in [1..2, 4..6, 8..20].into_iter().flatten() {
        for bit in 0..8 {
            let mut changed = sample.frame.clone();
            changed[L3 + at] ^= 1 << bit;
            assert!(!Ipv4Packet::new_checked(&changed[L3..]).unwrap().verify_checksum());
            assert_ne!(sum(&changed[L3..L3 + 20]), 0xffff);
            for checksum in [Checksum::Full, Checksum::Verified] {
                let meta = Meta { checksum, segmentation: None };
                assert_eq!(wrong(&mut world, &changed, meta), [1, 0], "{at} {bit}");
            }
        }
    }
}
