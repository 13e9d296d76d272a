//! Packets and rules, from few values, so that they often match.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_device_testing::random::Random;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::{Headers, Network};

use crate::{FlowRule, FlowVlan};

pub(super) const OWN: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const MACS: [[u8; 6]; 4] = [OWN[0], OWN[1], [2, 0, 0, 0, 0, 3], [3, 0, 0, 0, 0, 1]];
const EXTENSIONS: [u8; 6] = [0, 43, 44, 51, 60, 44];
const PROTOCOLS: [u8; 6] = [6, 17, 132, 1, 58, 89];

fn one<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

fn is(random: &mut Random, percent: u64) -> bool {
    random.below(100) < percent
}

fn address(random: &mut Random, v6: bool) -> IpAddr {
    let last = 1 + random.below(3) as u16;
    match v6 {
        false => IpAddr::V4(Ipv4Addr::new(192, 0, 2, last as u8)),
        true => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)),
    }
}

fn flow(random: &mut Random) -> Flow {
    let v6 = is(random, 50);
    let flow = if v6 { Flow::v6() } else { Flow::v4() };
    let (from, to) = (address(random, v6), address(random, v6));
    let mac = if is(random, 90) { one(random, &OWN) } else { one(random, &MACS) };
    let flow = flow
        .macs([2, 0, 0, 0, 0, 9], mac)
        .addresses(from, to)
        .ports(random.below(3) as u16, random.below(3) as u16);
    if is(random, 25) { flow.vlan(one(random, &[0, 0xe000, 5, 7, 0x6005])) } else { flow }
}

/// Returns the bytes behind the Ethernet header.
fn packet(flow: &Flow, frame: &[u8]) -> Vec<u8> {
    frame[if flow.tag.is_some() { 18 } else { 14 }..].to_vec()
}

/// Returns a transport packet that belongs to a protocol.
fn transport(random: &mut Random, flow: &Flow, protocol: u8) -> Vec<u8> {
    let payload = vec![9; random.below(40) as usize];
    let frame = match protocol {
        6 => {
            let options = vec![1; 4 * random.below(11) as usize];
            flow.tcp(&Tcp { options: &options, ..Tcp::default() }, &payload)
        }
        17 => flow.udp(&payload),
        1 | 58 => flow.echo(is(random, 50), 1, 2, &payload),
        _ => {
            let mut bytes = Vec::new();
            bytes.extend_from_slice(&flow.source_port.to_be_bytes());
            bytes.extend_from_slice(&flow.destination_port.to_be_bytes());
            bytes.extend(payload);
            return bytes;
        }
    };
    packet(flow, &frame)[if flow.source.is_ipv4() { 20 } else { 40 }..].to_vec()
}

/// Returns an ICMP error about a packet that went the other way.
fn icmp_error(random: &mut Random, flow: &Flow) -> Vec<u8> {
    let v6 = flow.source.is_ipv6();
    let sent = self::flow(random);
    let other = Flow { tag: None, ..flow.reversed() };
    let sent = if sent.source.is_ipv6() == v6 && is(random, 50) { sent } else { other };
    let quoted = match is(random, 75) {
        true => ip_packet(random, &Flow { tag: None, ..sent }),
        false => vec![0x60; random.below(80) as usize],
    };
    let kind =
        if v6 { one(random, &[1, 2, 3, 4, 5, 128]) } else { one(random, &[3, 4, 5, 11, 12, 6]) };
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    let shown = match random.below(10) {
        0..6 => quoted.len(),
        6..8 => random.below(70) as usize,
        _ => one(random, &[19, 20, 27, 28, 39, 40, 47, 48]),
    };
    message.extend(&quoted[..shown.min(quoted.len())]);
    flow.icmp(message)
}

/// Returns an IP packet without its Ethernet header.
fn ip_packet(random: &mut Random, flow: &Flow) -> Vec<u8> {
    let v6 = flow.source.is_ipv6();
    let protocol = one(random, &PROTOCOLS);
    let mut payload = transport(random, flow, protocol);
    if is(random, 15) {
        payload.truncate(one(random, &[7, 8, 11, 12, 19, 20, 27, 28, 47, 48]));
    }
    let (first, payload) = if v6 && is(random, 40) {
        extended(random, protocol, payload)
    } else {
        (protocol, payload)
    };
    let mut bytes = packet(flow, &flow.ip(first, &payload));
    if !v6 {
        if is(random, 20) {
            let words = random.below(11) as u8;
            let options = vec![1; 4 * usize::from(words)];
            bytes.splice(20..20, options);
            bytes[0] = 0x45 + words;
            let total = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&total.to_be_bytes());
        }
        if is(random, 20) {
            let pieces = one(random, &[0x2000, 0x2001, 0x0001, 0x1fff, 0x8000, 0x4000]);
            bytes[6..8].copy_from_slice(&u16::to_be_bytes(pieces));
        }
    }
    bytes
}

/// Puts IPv6 extension headers before a transport packet.
fn extended(random: &mut Random, protocol: u8, payload: Vec<u8>) -> (u8, Vec<u8>) {
    let most = if is(random, 30) { 10 } else { 4 };
    let count = 1 + random.below(most);
    let (mut next, mut all) = (protocol, payload);
    for _ in 0..count {
        let kind = one(random, &EXTENSIONS);
        let words = random.below(3) as u8;
        let bytes = match kind {
            44 => 8,
            51 => (usize::from(words) + 2) * 4,
            _ => (usize::from(words) + 1) * 8,
        };
        let mut header = vec![0; bytes.max(8)];
        (header[0], header[1]) = (next, words);
        if kind == 44 {
            let pieces = one(random, &[0, 0, 6, 1, 8, 0xfff8]);
            header[2..4].copy_from_slice(&u16::to_be_bytes(pieces));
        }
        header.truncate(bytes);
        header.extend(all);
        (next, all) = (kind, header);
    }
    (next, all)
}

/// Returns a frame, often a valid one.
pub(super) fn frame(random: &mut Random) -> Vec<u8> {
    let flow = flow(random);
    let mut frame = match random.below(20) {
        0 => flow.who_has(),
        1 => flow.ethernet(one(random, &[0x0806, 0x88b5, 0x0800, 0x86dd, 0x8100]), &[4; 60]),
        2..=5 => icmp_error(random, &flow),
        _ => {
            let bytes = ip_packet(random, &flow);
            flow.ethernet(if flow.source.is_ipv6() { 0x86dd } else { 0x0800 }, &bytes)
        }
    };
    if flow.tag.is_some() && is(random, 20) {
        frame[12..14].copy_from_slice(&[0x88, 0xa8]);
    }
    if is(random, 20) {
        let padding = random.below(30) as usize;
        frame.extend(vec![0; padding]);
    }
    if is(random, 10) {
        frame.truncate(random.below(frame.len() as u64 + 1) as usize);
    }
    if is(random, 30) {
        for _ in 0..=random.below(3) {
            let at = random.below(frame.len().min(130) as u64) as usize;
            if let Some(byte) = frame.get_mut(at) {
                *byte =
                    if is(random, 50) { random.draw() as u8 } else { *byte ^ 1 << random.below(8) };
            }
        }
    }
    frame
}

/// Returns a rule that a packet matches, or nearly.
pub(super) fn rule(random: &mut Random, frame: &[u8]) -> FlowRule {
    let headers = Headers::parse(frame, frame.len()).unwrap_or(Headers::NONE);
    let addresses: Option<(IpAddr, IpAddr)> = match &headers.network {
        Network::Ipv4(ip) => {
            Some((Ipv4Addr::from(ip.source).into(), Ipv4Addr::from(ip.destination).into()))
        }
        Network::Ipv6(ip) => {
            Some((Ipv6Addr::from(ip.source).into(), Ipv6Addr::from(ip.destination).into()))
        }
        _ => None,
    };
    let ports = headers.ports().or(Some((1, 2)));
    let mut given = |percent| is(random, percent);
    let mut rule = FlowRule {
        mac: given(50).then_some(headers.destination),
        vlan: match (given(30), headers.vlan) {
            (false, _) => FlowVlan::Any,
            (true, None) => FlowVlan::Untagged,
            (true, Some(number)) => FlowVlan::Number(number),
        },
        ethertype: given(30).then_some(headers.ethertype),
        ip: addresses.filter(|_| given(60)).map(|(_, local)| local),
        protocol: headers.protocol().filter(|_| given(60)),
        port: ports.filter(|_| given(50)).map(|(_, local)| local),
        remote_ip: addresses.filter(|_| given(25)).map(|(remote, _)| remote),
        remote_port: ports.filter(|_| given(25)).map(|(remote, _)| remote),
    };
    match random.below(12) {
        0 => rule.port = Some(random.below(3) as u16),
        1 => rule.protocol = Some(one(random, &PROTOCOLS)),
        2 => rule.ip = Some(address(random, false)),
        3 => rule.ip = Some(address(random, true)),
        4 => rule.protocol = Some(0),
        _ => {}
    }
    rule
}
