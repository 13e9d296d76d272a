//! The flow of a frame, as a number: which queue of several a sender uses.

use crate::bytes::piece;
use crate::numbers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, PROTOCOL_ICMP,
    PROTOCOL_ICMPV6, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP,
};

/// Bytes at the beginning of a frame that [`flow_hash`] reads at most.
pub const FLOW_BYTES: usize = 128;

const PROTOCOL_IGMP: u8 = 2;

/// Returns a number for the flow of a frame of which `prefix` is the beginning: the same for all
/// packets with the same addresses, protocol and ports, in either direction. Fragments count
/// without their ports, which only the first one has. Returns 0 for frames that belong to no flow:
/// ARP, ICMP, and all that is not IP.
#[must_use]
pub fn flow_hash(prefix: &[u8]) -> u32 {
    hash(prefix).unwrap_or(0)
}

fn hash(frame: &[u8]) -> Option<u32> {
    let (ethertype, start) = network(frame)?;
    let packet = frame.get(start..)?;
    let (addresses, protocol, transport) = match ethertype {
        ETHERTYPE_IPV4 => ipv4(packet)?,
        ETHERTYPE_IPV6 => ipv6(packet)?,
        _ => return None,
    };
    let ports = match protocol {
        PROTOCOL_ICMP | PROTOCOL_IGMP | PROTOCOL_ICMPV6 => return None,
        PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_SCTP => transport
            .and_then(|at| packet.get(at..)?.first_chunk::<4>())
            .map_or(0, |[a, b, c, d]| both(number(&[*a, *b]), number(&[*c, *d]))),
        _ => 0,
    };
    let mixed = (addresses ^ u64::from(protocol)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32 ^ ports).wrapping_mul(0xd6e8_feb8_6659_fd93);
    Some((mixed >> 32) as u32)
}

/// Returns the ethertype behind up to two VLAN tags, and the offset of what follows.
fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    for _ in 0..3 {
        let ethertype = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        at += 2;
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_SERVICE_VLAN {
            return Some((ethertype, at));
        }
        at += 2;
    }
    None
}

/// Returns the number of two addresses, the protocol, and the offset of the ports, if there are
/// any.
fn ipv4(packet: &[u8]) -> Option<(u64, u8, Option<usize>)> {
    let header = packet.first_chunk::<20>()?;
    let is_whole = u16::from_be_bytes(piece(header, 6)) & 0x3fff == 0;
    let header_bytes = usize::from(header[0] & 15) * 4;
    let addresses = both(number(&header[12..16]), number(&header[16..20]));
    Some((addresses, header[9], is_whole.then_some(header_bytes)))
}

/// As [`ipv4`]. A packet with extension headers counts without its ports.
fn ipv6(packet: &[u8]) -> Option<(u64, u8, Option<usize>)> {
    let header = packet.first_chunk::<40>()?;
    let halves = |at: usize| number(&header[at..at + 8]) ^ number(&header[at + 8..at + 16]);
    Some((both(halves(8), halves(24)), header[6], Some(40)))
}

/// Combines the two sides of a packet, in either order.
fn both(a: u64, b: u64) -> u64 {
    a.wrapping_add(b) ^ (a ^ b).rotate_left(32)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::build::Flow;

    #[test]
    fn both_directions_of_a_flow_have_one_number() {
        for flow in [Flow::v4(), Flow::v6()] {
            let there = flow_hash(&flow.udp(b"x"));
            assert_ne!(there, 0);
            assert_eq!(there, flow_hash(&flow.udp(&[7; 900])), "whatever the payload");
            let (source, destination) = (flow.destination, flow.source);
            let (a, b) = (flow.destination_port, flow.source_port);
            let back = Flow { source, destination, source_port: a, destination_port: b, ..flow };
            assert_eq!(flow_hash(&back.udp(b"x")), there);
            assert_eq!(flow_hash(&flow.who_has()), 0, "no flow");
        }
    }

    #[test]
    fn flows_spread() {
        let mut lanes = [0; 4];
        for port in 0..4000 {
            let hash = flow_hash(&Flow::v4().ports(port, 7).udp(b"x"));
            lanes[((u64::from(hash) * 4) >> 32) as usize] += 1;
        }
        assert!(lanes.iter().all(|count| (800..1200).contains(count)), "{lanes:?}");
    }

    proptest! {
        #[test]
        fn only_the_beginning_counts(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let beginning = &bytes[..bytes.len().min(FLOW_BYTES)];
            prop_assert_eq!(flow_hash(&bytes), flow_hash(beginning));
        }
    }
}
