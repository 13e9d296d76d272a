//! Packets by which a host claims a role in the network: router, DHCP server, querier of multicast
//! groups, switch. Other hosts believe them regardless of their source address, so only sessions of
//! root and of the server's own user may send them.
//!
//! The check refuses headers that it cannot see: none of these packets can hide in fragments or
//! behind extension headers. The checked headers lie in a packet's first [`PREFIX_BYTES`]; a packet
//! whose headers continue behind those is malformed.

use towpath_packet::headers::{
    Fragment, Headers, Ip, Network, PREFIX_BYTES, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP,
    PROTOCOL_UDP,
};
use towpath_packet::mld;
use towpath_packet::plain::{Plain, kind};
use towpath_packet::transport::Transport;

use super::refused::Refused;
use crate::engine::demux::is_group;

/// Frames of MAC control, PAUSE among them (IEEE 802.3, 31.4.1.3): they stop the host or the switch
/// at the other end of a link.
const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
/// Spanning tree, link aggregation, PAUSE and similar protocols. These are the first five bytes of
/// the addresses that bridges do not forward; the last byte is below 0x10 (IEEE 802.1Q, table 8-1).
const RESERVED_MAC: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];

const PROTOCOL_IGMP: u8 = 2;
/// RFC 9568, 5.1.1.4 and 5.1.2.4.
const PROTOCOL_VRRP: u8 = 112;
/// 224.0.0.18, RFC 9568, 5.1.1.2.
const VRRP_GROUP_V4: u32 = 0xe000_0012;
/// ff02::12, RFC 9568, 5.1.2.2.
const VRRP_GROUP_V6: u128 = 0xff02_0000_0000_0000_0000_0000_0000_0012;

/// The address of another router (RFC 792).
const ICMP_REDIRECT: u8 = 5;
/// RFC 1256, 3.
const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;
/// RFC 3376, 4.1, and RFC 2236, 2.1.
const IGMP_QUERY: u8 = 0x11;
/// RFC 2710, 3, and RFC 3810, 5.1.
/// RFC 4861, 4.1.
const ROUTER_SOLICITATION: u8 = 133;
/// RFC 4861, 4.2.
const ROUTER_ADVERTISEMENT: u8 = 134;
/// RFC 4861, 4.5.
const REDIRECT: u8 = 137;

/// RFC 2131, 4.1.
const DHCP: Dhcp = Dhcp { server: 67, client: 68 };
/// RFC 8415, 7.2.
const DHCPV6: Dhcp = Dhcp { server: 547, client: 546 };

/// The largest port that concerns this check.
const LARGEST_PORT: u16 = 547;

/// Returns `true` if a plain packet may claim a role; the full path decides.
#[inline]
pub(super) fn may_concern(packet: &Plain) -> bool {
    // The port occupies the highest bits of the word.
    const ABOVE: u64 = kind(0, 0, 0, LARGEST_PORT + 1);
    let [from, to] = [packet.source[1], packet.destination[1]];
    from.min(to) < ABOVE && has_dhcp_port(from >> 32, to >> 32)
}

#[cold]
fn has_dhcp_port(from: u64, to: u64) -> bool {
    [from, to].iter().any(|port| matches!(port, 67 | 68 | 546 | 547))
}

/// Returns `true` if [`check`] could refuse a packet. A unicast packet with other ports cannot be
/// refused.
#[inline]
pub(super) fn concerns(headers: &Headers) -> bool {
    is_group(headers.destination)
        || headers.ports().is_none_or(|(from, to)| from.min(to) <= LARGEST_PORT)
}

/// Checks a packet. `bytes` are its first bytes, from which the headers were read, and `mac` is its
/// sender's.
///
/// # Errors
/// Fails with the counter of the violation.
#[inline(never)]
pub(super) fn check(headers: &Headers, bytes: &[u8], mac: [u8; 6]) -> Result<(), Refused> {
    if headers.ethertype == ETHERTYPE_MAC_CONTROL
        || headers.destination.strip_prefix(&RESERVED_MAC).is_some_and(|last| last[0] < 0x10)
    {
        return Err(Refused::TxOutsideRule);
    }
    match &headers.network {
        Network::Ipv4(ip) => check_ipv4(ip, headers, bytes),
        Network::Ipv6(ip) => check_ipv6(ip, headers, bytes, mac),
        Network::Arp(_) | Network::Other => Ok(()),
    }
}

/// Returns the visible part of a packet's message, from the transport header's first byte, and the
/// message's length.
fn message<'a>(headers: &Headers, bytes: &'a [u8]) -> (&'a [u8], usize) {
    let (Some(start), Some(end)) = (headers.l4_offset(), headers.ip_end()) else { return (&[], 0) };
    let seen = bytes.get(start..end.min(bytes.len())).unwrap_or_default();
    (seen, end.saturating_sub(start))
}

fn check_ipv4(ip: &Ip<u32>, headers: &Headers, bytes: &[u8]) -> Result<(), Refused> {
    let refused = match ip.protocol {
        PROTOCOL_UDP => DHCP.is_servers(&ip.fragment, &ip.transport, || {
            // BOOTREPLY (RFC 2131, 2).
            message(headers, bytes).0.get(8) != Some(&1)
        }),
        PROTOCOL_ICMP => matches!(
            ip.transport,
            Transport::Icmp { kind: ICMP_REDIRECT | ICMP_ROUTER_ADVERTISEMENT, .. }
        ),
        // No group's message is long enough for fragments.
        PROTOCOL_IGMP => {
            let kind = message(headers, bytes).0.first();
            ip.fragment != Fragment::Whole || kind.is_none_or(|kind| *kind == IGMP_QUERY)
        }
        PROTOCOL_TCP => false,
        // Any other protocol for the group's routers may be VRRP behind a header that the check
        // does not read.
        protocol => protocol == PROTOCOL_VRRP || ip.destination == VRRP_GROUP_V4,
    };
    if refused { Err(Refused::TxOutsideRule) } else { Ok(()) }
}

fn check_ipv6(ip: &Ip<u128>, headers: &Headers, bytes: &[u8], mac: [u8; 6]) -> Result<(), Refused> {
    // No later fragment may overlap headers that were checked in the first one, even for a receiver
    // that reassembles overlapping fragments (which RFC 5722 forbids). No link has so small an MTU.
    let overlaps = matches!(ip.fragment, Fragment::Later { offset, .. }
        if usize::from(offset) < PREFIX_BYTES);
    if overlaps {
        return Err(Refused::TxOutsideRule);
    }
    match ip.protocol {
        PROTOCOL_UDP => {
            let is_servers = DHCPV6.is_servers(&ip.fragment, &ip.transport, || {
                // ADVERTISE, REPLY, RECONFIGURE, RELAY-REPL (RFC 8415, 7.3).
                let kind = message(headers, bytes).0.get(8);
                kind.is_none_or(|kind| matches!(kind, 2 | 7 | 10 | 13))
            });
            if is_servers { Err(Refused::TxOutsideRule) } else { Ok(()) }
        }
        PROTOCOL_ICMPV6 => {
            let options = match ip.transport {
                Transport::Icmp { kind: mld::QUERY | ROUTER_ADVERTISEMENT | REDIRECT, .. } => {
                    return Err(Refused::TxOutsideRule);
                }
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
        PROTOCOL_TCP => Ok(()),
        protocol if protocol == PROTOCOL_VRRP || ip.destination == VRRP_GROUP_V6 => {
            Err(Refused::TxOutsideRule)
        }
        _ => Ok(()),
    }
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
        transport: &Transport,
        answers: impl FnOnce() -> bool,
    ) -> bool {
        let Transport::Udp { source, destination } = *transport else { return false };
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
