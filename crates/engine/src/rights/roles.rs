//! The packets that ordinary stations send. Each other packet plays a part in the network's operation, such as that of
//! a router or of a switch, and needs a [`Role`]. Other stations believe such packets whatever address they come from.
//!
//! The list names what is allowed, so that a protocol that it does not know needs a role. The check refuses headers
//! that it cannot see: no packet can hide in fragments or behind extension headers. The checked headers lie in a
//! packet's first [`PREFIX_BYTES`]; a packet whose headers continue behind those is malformed.

use towpath_packet::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Fragment, Headers, Ip, Network, PREFIX_BYTES,
    PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP,
};
use towpath_packet::mld;
use towpath_packet::plain::{Plain, kind};
use towpath_packet::transport::Transport;

use super::refused::Refused;
use crate::demux::is_group;
use crate::roles::{Role, Roles};

/// Spanning tree, link aggregation, PAUSE and similar protocols. These are the first five bytes of
/// the addresses that bridges do not forward; the last byte is below 0x10 (IEEE 802.1Q, table 8-1).
const RESERVED_MAC: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];

/// Ethertypes for local experiments (IEEE 802, 9.2.3).
const EXPERIMENTS: [u16; 2] = [0x88b5, 0x88b6];
/// MAC control with PAUSE (IEEE 802.3, 31), link aggregation and the other slow protocols (IEEE 802.3, 57A), LLDP and
/// EAPOL (IEEE 802.1AB, 802.1X), MVRP and MMRP (IEEE 802.1Q, table 10-2), and connectivity faults (IEEE 802.1Q,
/// 21.4.6).
const OF_SWITCHES: [u16; 7] = [0x8808, 0x8809, 0x88cc, 0x888e, 0x88f5, 0x88f6, 0x8902];
/// PTP over Ethernet (IEEE 1588, annex E).
const OF_CLOCKS: u16 = 0x88f7;
/// PPPoE (RFC 2516, 4), MPLS (RFC 5332, 3), and transparent Ethernet bridging (RFC 1701).
const OF_TUNNELS: [u16; 5] = [0x8863, 0x8864, 0x8847, 0x8848, 0x6558];

const PROTOCOL_IGMP: u8 = 2;
/// DCCP (RFC 4340), ESP and AH (RFC 4303, RFC 4302), UDP-Lite (RFC 3828), and experiments (RFC 3692).
const OTHER_TRANSPORTS: [u8; 6] = [33, 50, 51, 136, 253, 254];
/// Hop-by-hop options, a routing header, and destination options (RFC 8200, 4).
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// No next header (RFC 8200, 4.7).
const PROTOCOL_NONE: u8 = 59;
/// GGP, EGP, private interior protocols, RSVP, EIGRP, OSPF, PIM, VRRP and IS-IS, by their numbers of IANA.
const AMONG_ROUTERS: [u8; 9] = [3, 8, 9, 46, 88, 89, 103, 112, 124];
/// IPv4, IPv6, GRE, Ethernet (97 and 143), L2TP and MPLS within IP, by their numbers of IANA.
const WITHIN_IP: [u8; 7] = [4, 41, 47, 97, 115, 137, 143];

/// The ports of RIP and RIPng (RFC 2453, 3.6; RFC 2080, 2.5).
const RIP: [u16; 2] = [520, 521];
/// The ports of PTP (IEEE 1588, annexes C and D).
const PTP: [u16; 2] = [319, 320];
/// The ports of HSRP for IPv4 and IPv6 (RFC 2281, 5), of GLBP, and of OLSR (RFC 5498).
const TO_ROUTERS: [u16; 4] = [1985, 2029, 3222, 698];

/// Of 224.0.0.0/24, which no router forwards (RFC 5771, 4): all hosts, mDNS (RFC 6762, 3), and LLMNR (RFC 4795, 2).
const LOCAL_GROUPS_V4: [u32; 3] = [0xe000_0001, 0xe000_00fb, 0xe000_00fc];
/// The same groups of ff02::/16, SSDP, CoAP (RFC 7252, 12.8), and the agents of DHCPv6 (RFC 8415, 7.1).
const LOCAL_GROUPS_V6: [u128; 6] = [
    0xff02 << 112 | 0x1,
    0xff02 << 112 | 0xfb,
    0xff02 << 112 | 0x1_0003,
    0xff02 << 112 | 0xc,
    0xff02 << 112 | 0xfd,
    0xff02 << 112 | 0x1_0002,
];

/// Echo, unreachable, router solicitation, time exceeded, parameter problem, timestamps (RFC 792, RFC 1256).
const ICMP: [u8; 8] = [0, 3, 8, 10, 11, 12, 13, 14];
/// Redirects and router advertisements (RFC 792, RFC 1256).
const ICMP_OF_ROUTERS: [u8; 2] = [5, 9];
/// Reports of versions 1 to 3, and leave messages (RFC 1112, RFC 2236, RFC 3376).
const IGMP_OF_MEMBERS: [u8; 4] = [0x12, 0x16, 0x17, 0x22];
const IGMP_QUERY: u8 = 0x11;
/// DVMRP and PIM version 1, and multicast router discovery (RFC 4286).
const IGMP_OF_ROUTERS: [u8; 5] = [0x13, 0x14, 0x30, 0x31, 0x32];
/// Errors, echo, reports of groups and their end, and experiments (RFC 4443, RFC 2710, RFC 3810).
const ICMPV6: [u8; 13] = [1, 2, 3, 4, 100, 101, 128, 129, 131, 132, 143, 200, 201];
/// RFC 4861, 4.1.
const ROUTER_SOLICITATION: u8 = 133;
/// Router advertisements, redirects, renumbering, and multicast router discovery (RFC 4861, RFC 2894, RFC 4286).
const ICMPV6_OF_ROUTERS: [u8; 6] = [134, 137, 138, 151, 152, 153];

/// RFC 2131, 4.1.
const DHCP: Dhcp = Dhcp { server: 67, client: 68 };
/// RFC 8415, 7.2.
const DHCPV6: Dhcp = Dhcp { server: 547, client: 546 };

/// The largest port that concerns a packet to one station.
const LARGEST_PORT: u16 = 547;

/// Returns `true` if a plain packet may need a role; the full path decides.
#[inline]
pub(super) fn may_concern(packet: &Plain) -> bool {
    // The port occupies the highest bits of the word.
    const ABOVE: u64 = kind(0, 0, 0, LARGEST_PORT + 1);
    let [from, to] = [packet.source[1], packet.destination[1]];
    is_to_ip_group(packet) || from.min(to) < ABOVE && has_special_port(from >> 32, to >> 32)
}

/// Returns `true` if a plain packet's IP address is that of a group, whatever its MAC address is.
#[inline]
fn is_to_ip_group(packet: &Plain) -> bool {
    let [_, kind, low, high] = packet.destination;
    if kind >> 24 & 0xff == 4 { low >> 28 == 0xe } else { high >> 56 == 0xff }
}

/// Returns `true` if a packet is for a group, by its MAC address or by its IP address.
#[inline]
fn is_to_group(headers: &Headers) -> bool {
    is_group(headers.destination)
        || match &headers.network {
            Network::Ipv4(ip) => ip.destination >> 28 == 0xe,
            Network::Ipv6(ip) => ip.destination >> 120 == 0xff,
            Network::Arp(_) | Network::Other => false,
        }
}

#[cold]
fn has_special_port(from: u64, to: u64) -> bool {
    [from, to].iter().any(|port| matches!(port, 67 | 68 | 319 | 320 | 520 | 521 | 546 | 547))
}

/// Returns `true` if [`check`] could refuse a packet. A packet to one station with other ports cannot
/// be refused.
#[inline]
pub(super) fn concerns(headers: &Headers) -> bool {
    is_to_group(headers) || headers.ports().is_none_or(|(from, to)| from.min(to) <= LARGEST_PORT)
}

/// The rights that the check asks about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) roles: Roles,
    /// An ethertype that the session's grant names.
    pub(super) ethertype: Option<u16>,
    /// The sender's address.
    pub(super) mac: [u8; 6],
}

/// Checks a packet. `bytes` are its first bytes, from which the headers were read.
///
/// # Errors
/// Fails with the counter of the violation.
#[inline(never)]
pub(super) fn check(headers: &Headers, bytes: &[u8], asked: &Asked) -> Result<(), Refused> {
    let needed = of_link(headers, asked.ethertype).or_else(|| match &headers.network {
        Network::Ipv4(ip) => of_ipv4(ip, headers, bytes),
        Network::Ipv6(ip) => of_ipv6(ip, headers, bytes),
        Network::Arp(_) | Network::Other => None,
    });
    if needed.is_some_and(|role| !asked.roles.has(role)) {
        return Err(Refused::TxOutsideRule);
    }
    match &headers.network {
        Network::Ipv6(ip) => check_ipv6(ip, headers, bytes, asked.mac),
        _ => Ok(()),
    }
}

/// Returns the role that a frame needs by its destination and its ethertype. `named`: an ethertype that needs none.
fn of_link(headers: &Headers, named: Option<u16>) -> Option<Role> {
    if headers.destination.strip_prefix(&RESERVED_MAC).is_some_and(|last| last[0] < 0x10) {
        return Some(Role::Switch);
    }
    match headers.ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 | ETHERTYPE_ARP => None,
        one if OF_SWITCHES.contains(&one) => Some(Role::Switch),
        OF_CLOCKS => Some(Role::Clock),
        one if OF_TUNNELS.contains(&one) => Some(Role::Tunnel),
        one if EXPERIMENTS.contains(&one) || named == Some(one) => None,
        _ => Some(Role::OtherProtocols),
    }
}

/// Returns the visible part of a packet's message, from the transport header's first byte, and the
/// message's length.
fn message<'a>(headers: &Headers, bytes: &'a [u8]) -> (&'a [u8], usize) {
    let (Some(start), Some(end)) = (headers.l4_offset(), headers.ip_end()) else { return (&[], 0) };
    let seen = bytes.get(start..end.min(bytes.len())).unwrap_or_default();
    (seen, end.saturating_sub(start))
}

/// Returns the role that a packet of this IP protocol needs, whatever its content.
fn of_protocol(protocol: u8) -> Option<Role> {
    match protocol {
        PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_SCTP => None,
        one if OTHER_TRANSPORTS.contains(&one) => None,
        one if AMONG_ROUTERS.contains(&one) => Some(Role::Router),
        one if WITHIN_IP.contains(&one) => Some(Role::Tunnel),
        _ => Some(Role::OtherProtocols),
    }
}

/// Returns the role that a message of a type needs: none, that of routers, or that of other protocols. A later fragment
/// shows no type, and needs none: without its first fragment, it is no message.
fn of_type(kind: Option<u8>, is_later: bool, hosts: &[u8], routers: &[u8]) -> Option<Role> {
    match kind {
        None if is_later => None,
        Some(kind) if hosts.contains(&kind) => None,
        Some(kind) if routers.contains(&kind) => Some(Role::Router),
        _ => Some(Role::OtherProtocols),
    }
}

fn of_ipv4(ip: &Ip<u32>, headers: &Headers, bytes: &[u8]) -> Option<Role> {
    let is_later = matches!(ip.fragment, Fragment::Later { .. });
    match ip.protocol {
        PROTOCOL_ICMP => {
            let kind = match ip.transport {
                Transport::Icmp { kind, .. } => Some(kind),
                _ => None,
            };
            of_type(kind, is_later, &ICMP, &ICMP_OF_ROUTERS)
        }
        PROTOCOL_IGMP => match message(headers, bytes).0.first() {
            // No group's message is long enough for fragments.
            _ if ip.fragment != Fragment::Whole => Some(Role::Querier),
            None | Some(&IGMP_QUERY) => Some(Role::Querier),
            kind => of_type(kind.copied(), false, &IGMP_OF_MEMBERS, &IGMP_OF_ROUTERS),
        },
        // Another protocol for a group of routers may hide behind a header that the check does not read.
        protocol => of_protocol(protocol).or_else(|| {
            let is_local = ip.destination & 0xffff_ff00 == 0xe000_0000;
            if is_local && (protocol != PROTOCOL_UDP || !LOCAL_GROUPS_V4.contains(&ip.destination))
            {
                return Some(Role::Router);
            }
            // BOOTREPLY (RFC 2131, 2).
            of_ports(ip, &DHCP, is_to_group(headers), || {
                message(headers, bytes).0.get(8) != Some(&1)
            })
        }),
    }
}

fn of_ipv6(ip: &Ip<u128>, headers: &Headers, bytes: &[u8]) -> Option<Role> {
    let is_later = matches!(ip.fragment, Fragment::Later { .. });
    match ip.protocol {
        PROTOCOL_NONE => None,
        // The first fragment shows what is behind them.
        one if is_later && EXTENSIONS.contains(&one) => None,
        PROTOCOL_ICMPV6 => match ip.transport {
            Transport::Neighbour { .. } | Transport::Icmp { kind: ROUTER_SOLICITATION, .. } => None,
            Transport::Icmp { kind: mld::QUERY, .. } => Some(Role::Querier),
            Transport::Icmp { kind, .. } => {
                of_type(Some(kind), is_later, &ICMPV6, &ICMPV6_OF_ROUTERS)
            }
            _ => of_type(None, is_later, &ICMPV6, &ICMPV6_OF_ROUTERS),
        },
        protocol => of_protocol(protocol).or_else(|| {
            let is_local = ip.destination >> 112 == 0xff02;
            if is_local && (protocol != PROTOCOL_UDP || !LOCAL_GROUPS_V6.contains(&ip.destination))
            {
                return Some(Role::Router);
            }
            // ADVERTISE, REPLY, RECONFIGURE, RELAY-REPL (RFC 8415, 7.3).
            of_ports(ip, &DHCPV6, is_to_group(headers), || {
                let kind = message(headers, bytes).0.get(8);
                kind.is_none_or(|kind| matches!(kind, 2 | 7 | 10 | 13))
            })
        }),
    }
}

/// Returns the role that a datagram needs by its ports. `answers`: whether its message is an answer of DHCP.
fn of_ports<A>(
    ip: &Ip<A>,
    dhcp: &Dhcp,
    is_to_group: bool,
    answers: impl FnOnce() -> bool,
) -> Option<Role> {
    let Transport::Udp { source, destination } = ip.transport else { return None };
    let either = |ports: &[u16]| ports.contains(&source) || ports.contains(&destination);
    if dhcp.is_servers(&ip.fragment, (source, destination), answers) {
        Some(Role::DhcpServer)
    } else if either(&PTP) {
        Some(Role::Clock)
    } else if RIP.contains(&source) || is_to_group && (either(&TO_ROUTERS) || either(&RIP)) {
        // A router's answer to one station comes from this port, and a station's question need not.
        Some(Role::Router)
    } else {
        None
    }
}

/// Checks fragments and the options of neighbour discovery.
fn check_ipv6(ip: &Ip<u128>, headers: &Headers, bytes: &[u8], mac: [u8; 6]) -> Result<(), Refused> {
    // No later fragment may overlap headers that were checked in the first one, even for a receiver
    // that reassembles overlapping fragments (which RFC 5722 forbids). No link has so small an MTU.
    let overlaps = matches!(ip.fragment, Fragment::Later { offset, .. }
        if usize::from(offset) < PREFIX_BYTES);
    if overlaps {
        return Err(Refused::TxOutsideRule);
    }
    let options = match ip.transport {
        _ if ip.protocol != PROTOCOL_ICMPV6 => return Ok(()),
        Transport::Icmp { kind: ROUTER_SOLICITATION, .. } => 8,
        Transport::Neighbour { .. } => 24,
        _ => return Ok(()),
    };
    // Hosts ignore neighbour discovery in fragments (RFC 6980, 5), or should.
    if ip.fragment != Fragment::Whole {
        return Err(Refused::TxOutsideRule);
    }
    check_link_layer_options(message(headers, bytes), options, mac)
}

/// The ports of a version of DHCP.
struct Dhcp {
    server: u16,
    client: u16,
}

impl Dhcp {
    /// Returns `true` if only a server or a relay agent sends such a packet. It comes from a
    /// server's port, or goes to a client's, or is a server's answer to a relay agent, which
    /// `answers` detects. Requests are never fragmented.
    fn is_servers(
        &self,
        fragment: &Fragment,
        (source, destination): (u16, u16),
        answers: impl FnOnce() -> bool,
    ) -> bool {
        source == self.server
            || destination == self.client
            || destination == self.server && (*fragment != Fragment::Whole || answers())
    }
}

/// Checks that neighbour discovery gives only the sender's link-layer address (RFC 4861, 4.6.1).
/// Options start at `at` in a message; the arguments are its first bytes and its length.
fn check_link_layer_options(
    (seen, len): (&[u8], usize),
    at: usize,
    mac: [u8; 6],
) -> Result<(), Refused> {
    const SOURCE: u8 = 1;
    const TARGET: u8 = 2;
    let mut at = at;
    while at < len {
        let Some(&[kind, units]) = seen.get(at..).and_then(<[u8]>::first_chunk) else {
            // The option exists but cannot be seen, or it is cut off.
            return Err(Refused::TxMalformed);
        };
        let bytes = usize::from(units) * 8;
        if bytes == 0 || bytes > len - at {
            return Err(Refused::TxMalformed);
        }
        if matches!(kind, SOURCE | TARGET) && seen.get(at + 2..at + bytes) != Some(&mac) {
            return Err(Refused::TxSourceMac);
        }
        at += bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
