//! Tests of each kind of packet that plays a part in the network. The server refuses it from an ordinary session, in
//! every disguise. It sends it for an administrator's session, and for one with the role. Packets of ordinary hosts in
//! the same protocols pass.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_packet::build::{Flow, Tcp};
use towpath_packet::plain;
use towpath_packet::{FlowRule, FlowVlan};

use super::*;
use crate::rights::{Addresses, Rights};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn v4() -> Flow {
    Flow { source_mac: MAC, ..Flow::v4() }
}

fn v6() -> Flow {
    Flow { source_mac: MAC, ..Flow::v6() }
}

fn own6() -> Ipv6Addr {
    match v6().source {
        IpAddr::V6(own) => own,
        IpAddr::V4(_) => unreachable!("of version 6"),
    }
}

/// Returns the rights of an ordinary session, and those of an administrator's.
fn rights() -> [Rights; 2] {
    let bits = |ip| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let addresses = Addresses {
        ipv4: Some(bits(v4().source) as u32),
        ipv6: [Some(bits(v6().source)), Some(0xfe80 << 112 | 9)],
    };
    let rule = FlowRule { mac: Some(MAC), vlan: FlowVlan::Any, ..FlowRule::default() };
    let ordinary = Rights::new(rule, MAC, addresses);
    [ordinary, ordinary.with_roles(Roles::ALL)]
}

/// Returns the result of both checks of a frame. The full check permits every packet that the fast
/// one permits. The fast one leaves DHCP, and every packet for a group, to the full one.
fn check(rights: &Rights, frame: &[u8]) -> Result<(), Refused> {
    let looked = &frame[..frame.len().min(PREFIX_BYTES)];
    let headers = Headers::parse(looked, frame.len()).unwrap();
    let outcome = rights.check(&headers, || looked);
    if let Some(plain) = plain::read(frame, frame.len()).filter(|plain| !plain.is_for_group()) {
        assert!(!rights.allow(&plain) || outcome.is_ok(), "{frame:02x?}");
        assert!(rights.allow(&plain) || outcome.is_err() || may_concern(&plain), "{frame:02x?}");
    }
    outcome
}

/// Asserts that the server refuses an ordinary session's frame with this counter, and sends an
/// administrator's.
fn refused(what: &str, frame: &[u8], counter: Refused) {
    let [ordinary, administrator] = rights();
    assert_eq!(check(&ordinary, frame), Err(counter), "{what}");
    assert_eq!(check(&administrator, frame), Ok(()), "{what}");
}

fn is_refused(what: &str, frame: &[u8]) {
    refused(what, frame, Refused::TxOutsideRule);
}

/// Asserts that a frame needs this role, and no other one.
fn needs(role: Role, what: &str, frame: &[u8]) {
    is_refused(what, frame);
    let [ordinary, _] = rights();
    let others = Role::ALL.into_iter().filter(|other| *other != role).collect();
    assert_eq!(check(&ordinary.with_roles(others), frame), Err(Refused::TxOutsideRule), "{what}");
    let only = ordinary.with_roles([role].into_iter().collect());
    assert_eq!(check(&only, frame), Ok(()), "{what} as {role}");
}

fn is_sent(what: &str, frame: &[u8]) {
    for rights in rights() {
        assert_eq!(check(&rights, frame), Ok(()), "{what}");
    }
}

/// Returns the frame's packet behind IPv6 extension headers. The arguments are their numbers, and
/// their bytes except the first of each, which is the next header's number.
fn behind(frame: &[u8], headers: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = frame[..54].to_vec();
    let last = out[20];
    out[20] = headers[0].0;
    for (place, (_, rest)) in headers.iter().enumerate() {
        out.push(headers.get(place + 1).map_or(last, |next| next.0));
        out.extend_from_slice(rest);
    }
    out.extend_from_slice(&frame[54..]);
    let payload = (out.len() - 54) as u16;
    out[18..20].copy_from_slice(&payload.to_be_bytes());
    out
}

/// Router alert for MLD (RFC 2711), in a hop-by-hop header.
const ROUTER_ALERT: (u8, &[u8]) = (0, &[0, 5, 2, 0, 0, 1, 0]);
const DESTINATION_OPTIONS: (u8, &[u8]) = (60, &[0, 1, 4, 0, 0, 0, 0]);
/// All of a packet in one fragment (RFC 6946).
const ATOMIC: (u8, &[u8]) = (44, &[0, 0, 0, 0, 0, 0, 7]);
const FIRST: (u8, &[u8]) = (44, &[0, 0, 1, 0, 0, 0, 7]);
const AUTHENTICATION: (u8, &[u8]) =
    (51, &[4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

/// Returns a packet over IPv6 as it is and in all disguises.
fn disguised(frame: &[u8]) -> Vec<Vec<u8>> {
    // A fragment before others has a multiple of eight bytes.
    let mut padded = frame.to_vec();
    padded.resize(54 + (frame.len() - 54).next_multiple_of(8), 0);
    let many = [DESTINATION_OPTIONS; 7];
    vec![
        frame.to_vec(),
        behind(frame, &[ROUTER_ALERT]),
        behind(frame, &[ROUTER_ALERT, DESTINATION_OPTIONS]),
        behind(frame, &[AUTHENTICATION]),
        behind(frame, &[ATOMIC]),
        behind(frame, &many),
        behind(&padded, &[FIRST]),
        behind(&padded, &[ROUTER_ALERT, FIRST, DESTINATION_OPTIONS]),
    ]
}

/// Returns a fragment of an IPv4 packet: with more behind it, or from `offset` on.
fn fragment4(frame: &[u8], offset: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let pieces = if offset == 0 { 0x2000 } else { offset / 8 };
    frame[20..22].copy_from_slice(&pieces.to_be_bytes());
    frame.truncate(34 + (frame.len() - 34) / 8 * 8);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame
}

fn to_group(flow: Flow, group: impl Into<IpAddr>) -> Flow {
    Flow { destination: group.into(), destination_mac: [1, 0, 0x5e, 0, 0, 1], ..flow }
}

#[test]
fn dhcp_servers_and_relay_agents() {
    let message = |kind: u8| vec![kind; 240];
    for (flow, server, client, request, answers) in
        [(v4(), 67, 68, 1, &[2, 0, 255][..]), (v6(), 547, 546, 1, &[2, 7, 10, 13][..])]
    {
        for vlan in [false, true] {
            let flow = if vlan { flow.vlan(7) } else { flow };
            for (from, to) in [(server, client), (server, 5000), (5000, client), (server, server)] {
                is_refused("a server's", &flow.ports(from, to).udp(&message(request)));
            }
            for answer in answers {
                for from in [client, 5000] {
                    is_refused("an answer", &flow.ports(from, server).udp(&message(*answer)));
                }
            }
            // An empty message does not show its kind.
            is_refused("an empty one", &flow.ports(client, server).udp(&[]));
            is_sent("a client's", &flow.ports(client, server).udp(&message(request)));
            is_sent("another port", &flow.ports(68, 5000).udp(&message(2)));
            is_sent("another protocol", &flow.ports(server, client).tcp(&Tcp::default(), b"x"));
        }
    }
    let answer = v4().ports(67, 68).udp(&message(2));
    is_refused("the first fragment", &fragment4(&answer, 0));
    is_refused("a request in fragments", &fragment4(&v4().ports(68, 67).udp(&message(1)), 0));
    for frame in disguised(&v6().ports(547, 546).udp(&message(7))) {
        is_refused("a disguised one", &frame);
    }
    for frame in disguised(&v6().ports(546, 547).udp(&message(7))) {
        is_refused("a disguised answer", &frame);
    }
}

#[test]
fn igmp_queries() {
    let all: IpAddr = Ipv4Addr::new(224, 0, 0, 1).into();
    let message = |kind: u8| vec![kind, 0, 0, 0, 0, 0, 0, 0];
    // IGMPv2 and 3 set router alert in the IPv4 header (RFC 3376, 4).
    let alerted = |kind: u8| {
        let mut frame = to_group(v4(), all).ip(2, &[&[0x94, 4, 0, 0], &message(kind)[..]].concat());
        frame[14] = 0x46;
        frame
    };
    for flow in [v4(), to_group(v4(), all), to_group(v4(), all).vlan(7)] {
        is_refused("a query", &flow.ip(2, &message(0x11)));
        is_refused("no type", &flow.ip(2, &[]));
        // These are reports of versions 1 to 3, and a leave message.
        for report in [0x12, 0x16, 0x17, 0x22] {
            is_sent("a report", &flow.ip(2, &message(report)));
        }
    }
    is_refused("a query with an option", &alerted(0x11));
    is_sent("a report with an option", &alerted(0x22));
    is_refused("a first fragment", &fragment4(&v4().ip(2, &message(0x22)), 0));
    is_refused("a later one", &fragment4(&v4().ip(2, &message(0x22)), 8));
}

#[test]
fn mld_queries() {
    let query = |kind: u8| to_group(v6(), ALL_NODES).icmp(vec![kind; 24]);
    for frame in disguised(&query(130)) {
        is_refused("a query", &frame);
    }
    // These are reports of both versions, and a leave message.
    for report in [131, 132, 143] {
        is_sent("a report", &behind(&query(report), &[ROUTER_ALERT]));
    }
}

#[test]
fn virtual_routers() {
    let message = [0x21; 20];
    for flow in [v4(), v6(), v4().vlan(7)] {
        needs(Role::Router, "to one station", &flow.ip(112, &message));
        needs(Role::OtherProtocols, "another protocol", &flow.ip(113, &message));
    }
    is_refused("a first fragment", &fragment4(&v4().ip(112, &message), 0));
    is_refused("a later one", &fragment4(&v4().ip(112, &message), 8));
    for frame in disguised(&v6().ip(112, &message)) {
        is_refused("a disguised one", &frame);
    }
    let groups: [(Flow, IpAddr); 2] = [
        (v4(), Ipv4Addr::new(224, 0, 0, 18).into()),
        (v6(), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12).into()),
    ];
    for (flow, group) in groups {
        // The check also refuses packets that may hide in IPv4's authentication header, which it
        // does not parse.
        for protocol in [112, 51, 250] {
            is_refused("to the group", &to_group(flow, group).ip(protocol, &[4; 40]));
        }
        needs(Role::Router, "UDP to the group", &to_group(flow, group).udp(b"x"));
    }
}

#[test]
fn routers() {
    for kind in [134, 137] {
        let mut message = vec![kind];
        message.resize(40, 0);
        for frame in disguised(&to_group(v6(), ALL_NODES).icmp(message)) {
            is_refused("an advertisement or a redirect", &frame);
        }
    }
    for kind in [5, 9] {
        is_refused("the same of IPv4", &v4().icmp(vec![kind; 28]));
        is_refused("a first fragment", &fragment4(&v4().icmp(vec![kind; 28]), 0));
    }
    is_sent("an echo", &v4().echo(true, 1, 1, b"x"));
    for frame in disguised(&v6().echo(true, 1, 1, b"x")) {
        is_sent("an echo", &frame);
    }
}

#[test]
fn switches() {
    is_refused("a PAUSE frame to one station", &v4().ethernet(0x8808, &[0; 46]));
    for last in 0..0x10 {
        let flow = Flow { destination_mac: [1, 0x80, 0xc2, 0, 0, last], ..v4() };
        for ethertype in [0x8808, 0x8809, 0x88cc, 0x88b5] {
            is_refused("a frame for bridges", &flow.ethernet(ethertype, &[0; 46]));
        }
        is_refused("IP for bridges", &flow.udp(b"x"));
        is_refused("a tagged one", &flow.vlan(7).udp(b"x"));
    }
    for beside in [[1, 0x80, 0xc2, 0, 0, 0x10], [1, 0x80, 0xc2, 0, 1, 0], [1, 0x80, 0xc3, 0, 0, 1]]
    {
        is_sent("another group", &Flow { destination_mac: beside, ..v4() }.udp(b"x"));
    }
    is_sent("another ethertype", &v4().ethernet(0x88b5, &[0; 46]));
}

/// Returns neighbour discovery with options of these kinds, units of length, and addresses.
fn discovery(kind: u8, options: &[(u8, u8, [u8; 6])]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    if kind != 133 {
        message.extend_from_slice(&own6().octets());
    }
    for (option, units, mac) in options {
        message.extend_from_slice(&[*option, *units]);
        message.extend_from_slice(mac);
    }
    v6().icmp(message)
}

#[test]
fn neighbours_link_layer_addresses() {
    for (kind, option) in [(133, 1), (135, 1), (136, 2)] {
        is_sent("one's own", &discovery(kind, &[(option, 1, MAC)]));
        is_sent("none", &discovery(kind, &[]));
        is_sent("a nonce before it", &discovery(kind, &[(14, 1, [7; 6]), (option, 1, MAC)]));
        let others = discovery(kind, &[(option, 1, OTHER_MAC)]);
        refused("a neighbour's", &others, Refused::TxSourceMac);
        for second in [1, 2] {
            let both =
                discovery(kind, &[(option, 1, MAC), (14, 1, [0; 6]), (second, 1, OTHER_MAC)]);
            refused("a neighbour's behind one's own", &both, Refused::TxSourceMac);
        }
        let long = discovery(kind, &[(option, 2, MAC), (0, 0, [0; 6])]);
        refused("a longer one", &long, Refused::TxSourceMac);
        for units in [0, 2, 255] {
            let broken = discovery(kind, &[(14, units, [7; 6])]);
            refused("of no length, or over the end", &broken, Refused::TxMalformed);
        }
        // The check cannot see options beyond the bytes that it reads.
        let far: Vec<_> = (0..40).map(|_| (14, 1, [7; 6])).collect();
        refused("many options", &discovery(kind, &far), Refused::TxMalformed);
        for (place, frame) in disguised(&others).iter().enumerate() {
            let counter = if place < 6 { Refused::TxSourceMac } else { Refused::TxOutsideRule };
            refused("a disguised one", frame, counter);
        }
        let fragment = &disguised(&discovery(kind, &[(option, 1, MAC)]))[6];
        is_refused("in fragments", fragment);
    }
}

#[test]
fn later_fragments_lie_over_no_header() {
    let later = |offset: u16| {
        let pieces = offset.to_be_bytes();
        behind(&v6().udp(&[0; 56]), &[(44, &[0, pieces[0], pieces[1], 0, 0, 0, 7])])
    };
    for offset in [8, 16, 248] {
        is_refused("it could be laid over a header", &later(offset));
    }
    for offset in [256, 1232, 60_000] {
        is_sent("it could not", &later(offset));
    }
}

/// Returns a flow to a group of IPv4 or IPv6.
fn group(text: &str) -> Flow {
    let group: IpAddr = text.parse().unwrap();
    to_group(if group.is_ipv4() { v4() } else { v6() }, group)
}

#[test]
fn protocols_among_routers() {
    for protocol in AMONG_ROUTERS {
        for flow in [v4(), v6(), group("224.0.0.5"), group("ff02::5")] {
            needs(Role::Router, "by its protocol", &flow.ip(protocol, &[1; 40]));
        }
    }
    for kind in IGMP_OF_ROUTERS {
        needs(Role::Router, "by IGMP's type", &v4().ip(2, &[kind, 0, 0, 0, 0, 0, 0, 0]));
    }
    for kind in ICMPV6_OF_ROUTERS {
        needs(Role::Router, "by ICMPv6's type", &v6().icmp(vec![kind; 40]));
    }
    for kind in ICMP_OF_ROUTERS {
        needs(Role::Router, "by ICMP's type", &v4().icmp(vec![kind; 28]));
    }
    // HSRP, GLBP, and RIP, to groups of routers, to all hosts, and to another group.
    for (to, port) in [
        ("224.0.0.2", 1985),
        ("224.0.0.102", 3222),
        ("224.0.0.9", 520),
        ("ff02::9", 521),
        ("ff02::66", 2029),
        ("224.0.0.1", 1985),
        ("ff02::1", 2029),
        ("239.1.2.3", 3222),
    ] {
        needs(Role::Router, to, &group(to).ports(port, port).udp(b"x"));
    }
    // A receiver looks at the IP address, and a switch brings it the frame by its own MAC address.
    for (to, port) in
        [("224.0.0.2", 1985), ("224.0.0.2", 646), ("239.1.2.3", 1985), ("ff02::66", 2029)]
    {
        let flow = group(to).ports(port, port);
        let to_one = Flow { destination_mac: v4().destination_mac, ..flow };
        needs(Role::Router, "in a frame for one station", &to_one.udp(b"x"));
    }
    for flow in [v4(), v6()] {
        needs(Role::Router, "a router's answer", &flow.ports(520, 5000).udp(b"x"));
        is_sent("a station's question", &flow.ports(5000, 520).udp(b"x"));
        is_sent("another protocol", &flow.ports(520, 520).tcp(&Tcp::default(), b"x"));
        is_sent("a port of HSRP to one station", &flow.ports(1985, 1985).udp(b"x"));
    }
}

#[test]
fn clocks() {
    needs(Role::Clock, "over Ethernet", &v4().ethernet(0x88f7, &[0; 46]));
    for port in PTP {
        for flow in [v4(), v6(), group("224.0.1.129"), group("ff0e::181")] {
            needs(Role::Clock, "to a clock", &flow.ports(5000, port).udp(b"x"));
            needs(Role::Clock, "from a clock", &flow.ports(port, 5000).udp(b"x"));
        }
    }
}

#[test]
fn tunnels() {
    for protocol in WITHIN_IP {
        needs(Role::Tunnel, "within IPv4", &v4().ip(protocol, &[0x45; 40]));
        needs(Role::Tunnel, "within IPv6", &v6().ip(protocol, &[0x45; 40]));
    }
    for ethertype in OF_TUNNELS {
        needs(Role::Tunnel, "within Ethernet", &v4().ethernet(ethertype, &[0; 46]));
    }
}

/// Headers that hosts may read as extension headers, and this check does not.
#[test]
fn other_protocols() {
    for header in [135, 139, 140] {
        let advertisement = [&[58, 0, 0, 0, 0, 0, 0, 0, 134][..], &[0; 31]].concat();
        needs(
            Role::OtherProtocols,
            "behind mobility, HIP or shim6",
            &v6().ip(header, &advertisement),
        );
    }
    for ethertype in [0x8035, 0x8137, 0x88e5, 0x8906, 0x22ea, 0xffff] {
        needs(Role::OtherProtocols, "an ethertype", &v4().ethernet(ethertype, &[0; 46]));
    }
    for kind in [4, 15, 17, 37, 42, 255] {
        needs(Role::OtherProtocols, "a type of ICMP", &v4().icmp(vec![kind; 28]));
    }
    for kind in [0, 5, 127, 139, 141, 148, 155, 255] {
        needs(Role::OtherProtocols, "a type of ICMPv6", &v6().icmp(vec![kind; 40]));
    }
}

/// The first fragment shows the protocol behind the extension header.
#[test]
fn later_fragments_behind_extension_headers() {
    for header in EXTENSIONS {
        let later = behind(&v6().udp(&[0; 56]), &[(44, &[0, 1, 0, 0, 0, 0, 7])]);
        let mut frame = later;
        // The fragment header names the extension header.
        frame[54] = header;
        is_sent("a later fragment", &frame);
    }
}

#[test]
fn an_ethertype_that_the_grant_names_needs_no_role() {
    let [ordinary, _] = rights();
    let rule = FlowRule { ethertype: Some(0x8137), ..ordinary.rule };
    let named = Rights::new(rule, MAC, ordinary.addresses).with_named_ethertype();
    assert_eq!(check(&named, &v4().ethernet(0x8137, &[0; 46])), Ok(()));
    // A frame that bridges believe still needs the role.
    let rule = FlowRule { ethertype: Some(0x88cc), ..ordinary.rule };
    let named = Rights::new(rule, MAC, ordinary.addresses).with_named_ethertype();
    assert_eq!(check(&named, &v4().ethernet(0x88cc, &[0; 46])), Err(Refused::TxOutsideRule));
}

#[test]
fn what_ordinary_hosts_send() {
    for flow in [v4(), v6()] {
        is_sent("UDP", &flow.udp(b"x"));
        is_sent("TCP", &flow.tcp(&Tcp::default(), b"x"));
        // The authentication header has content that the check reads; `disguised` has one.
        for protocol in OTHER_TRANSPORTS.into_iter().filter(|one| *one != 51) {
            is_sent("another transport", &flow.ip(protocol, &[0; 40]));
        }
        is_sent("an echo request", &flow.echo(true, 1, 1, b"x"));
        is_sent("an echo", &flow.echo(false, 1, 1, b"x"));
    }
    for kind in ICMP {
        is_sent("a type of ICMP", &v4().icmp(vec![kind; 28]));
    }
    for kind in ICMPV6 {
        is_sent("a type of ICMPv6", &v6().icmp(vec![kind; 40]));
    }
    for (to, port) in [
        ("224.0.0.251", 5353),
        ("224.0.0.252", 5355),
        ("224.0.0.1", 9999),
        ("239.255.255.250", 1900),
        ("ff02::fb", 5353),
        ("ff02::1:3", 5355),
        ("ff02::1", 9999),
        ("ff02::c", 1900),
        ("ff02::fd", 5683),
        ("ff0e::1234", 9999),
    ] {
        is_sent(to, &group(to).ports(5000, port).udp(b"x"));
    }
    for ethertype in EXPERIMENTS {
        is_sent("an experiment", &v4().ethernet(ethertype, &[0; 46]));
    }
}
