//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_packet::{igmp, mld};

use crate::checksum::Sum;

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// The hop limit of this host's packets; NDP has its own.
pub(crate) const HOP_LIMIT: u8 = 64;
/// The bits of the traffic class for explicit congestion notification, and their values: "congestion
/// experienced", and "the transport is capable of ECN" (RFC 3168, 5).
pub(crate) const ECN_BITS: u8 = 3;
const CONGESTED: u8 = 3;
const CAPABLE: u8 = 2;
/// The maximum number of extension headers; no honest packet has more.
const MAX_EXTENSIONS: usize = 8;

/// The packet that a fragment belongs to, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentOf {
    pub(crate) id: u32,
    /// In bytes from the start of the fragmented part.
    pub(crate) offset: usize,
    pub(crate) more: bool,
}

/// A packet with a parsed header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) hop_limit: u8,
    /// The offset of the byte that states the protocol, from the IP header's first byte.
    pub(crate) protocol_at: usize,
    /// The bytes after all IP headers.
    pub(crate) payload: &'a [u8],
    /// From the IP header's first byte to the packet's end, without the frame's padding.
    pub(crate) bytes: &'a [u8],
    pub(crate) fragment: Option<FragmentOf>,
    /// The type of service (IPv4) or traffic class (IPv6).
    pub(crate) traffic_class: u8,
}

impl Packet<'_> {
    /// Returns `true` if a router marked the packet as having met congestion (CE; RFC 3168, 5).
    pub(crate) fn is_congested(&self) -> bool {
        self.traffic_class & ECN_BITS == CONGESTED
    }
}

/// The reason why the stack drops a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Malformed,
    Checksum,
    Extension,
    /// A header that the sender gets a report about.
    Parameter(Parameter),
}

/// A header field to report by Parameter Problem (RFC 792; RFC 4443, 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// The code of the report (RFC 4443, 3.4).
    pub(crate) code: u8,
    /// The offset of the wrong byte, from the IP header's first byte.
    pub(crate) at: usize,
    /// `true` if the report is also due about a packet to a group.
    pub(crate) even_to_group: bool,
}

impl Refusal {
    /// Returns a refusal that is reported only about packets to this host's own addresses.
    fn parameter(code: u8, at: usize) -> Refusal {
        Refusal::Parameter(Parameter { code, at, even_to_group: false })
    }
}

/// Code of Parameter Problem: an erroneous header field.
const ERRONEOUS_FIELD: u8 = 0;
/// Code of Parameter Problem: an unrecognized next header.
pub(crate) const UNKNOWN_PROTOCOL: u8 = 1;
/// Code of Parameter Problem: an unrecognized IPv6 option.
const UNKNOWN_OPTION: u8 = 2;

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Parses an IPv4 header. A `large` packet's length field and checksum may be incomplete.
pub(crate) fn parse_v4(bytes: &[u8], large: bool) -> Result<Packet<'_>, Refusal> {
    if bytes.len() < 20 || bytes[0] >> 4 != 4 {
        return Err(Refusal::Malformed);
    }
    let header = usize::from(bytes[0] & 15) * 4;
    let total = usize::from(be16(bytes, 2));
    let total = if large && total == 0 { bytes.len() } else { total };
    if header < 20 || total < header || total > bytes.len() {
        return Err(Refusal::Malformed);
    }
    if !large && Sum::default().add(&bytes[..header]).folded() != 0xffff {
        return Err(Refusal::Checksum);
    }
    if header > 20 {
        check_v4_options(&bytes[..header])?;
    }
    Ok(outline_v4(&bytes[..total]))
}

/// Reads an IPv4 header. The caller has checked its lengths.
fn outline_v4(bytes: &[u8]) -> Packet<'_> {
    let flags = be16(bytes, 6);
    let (more, offset) = (flags & 0x2000 != 0, usize::from(flags & 0x1fff) * 8);
    let address = |at| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
    Packet {
        src: address(12).into(),
        dst: address(16).into(),
        protocol: bytes[9],
        hop_limit: bytes[8],
        protocol_at: 9,
        payload: &bytes[usize::from(bytes[0] & 15) * 4..],
        bytes,
        fragment: (more || offset != 0).then(|| FragmentOf {
            id: u32::from(be16(bytes, 4)),
            offset,
            more,
        }),
        traffic_class: bytes[1],
    }
}

/// Checks the options of an IPv4 header (RFC 791, 3.1). The stack passes over all but source routes: with those, a
/// sender chooses the path of the answers (RFC 7126, 4.3 and 4.4).
fn check_v4_options(header: &[u8]) -> Result<(), Refusal> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    let mut at = 20;
    while let Some(&kind) = header.get(at) {
        match kind {
            END => break,
            NO_OPERATION => at += 1,
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(Refusal::Extension),
            _ => {
                let len = header.get(at + 1).map_or(0, |&len| usize::from(len));
                if len < 2 || len > header.len() - at {
                    return Err(Refusal::parameter(ERRONEOUS_FIELD, at));
                }
                at += len;
            }
        }
    }
    Ok(())
}

/// Reads the fixed part of the headers of a packet that was refused with [`Refusal::Parameter`].
pub(crate) fn outline(bytes: &[u8]) -> Packet<'_> {
    let is_v4 = bytes[0] >> 4 == 4;
    let (stated, before) = if is_v4 { (be16(bytes, 2), 0) } else { (be16(bytes, 4), 40) };
    // A large packet may state no length.
    let len = if stated == 0 { bytes.len() } else { usize::from(stated) + before };
    if is_v4 { outline_v4(&bytes[..len]) } else { outline_v6(&bytes[..len]) }
}

/// Skips the extension headers of an IPv6 packet. Returns the protocol behind them and the remaining bytes, which are
/// empty if a header is cut off; of an IPv4 packet, its own. Returns `None` for a later fragment of IPv6.
pub(crate) fn beyond_extensions<'a>(packet: &Packet<'a>) -> Option<(u8, &'a [u8])> {
    let (mut protocol, mut rest) = (packet.protocol, packet.payload);
    if packet.src.is_ipv4() {
        return Some((protocol, rest));
    }
    while matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS)
        && rest.len() >= 8
    {
        let is_fragment = protocol == FRAGMENT;
        if is_fragment && be16(rest, 2) & 0xfff8 != 0 {
            return None;
        }
        let len = match protocol {
            FRAGMENT => 8,
            // RFC 4302, 2.2.
            AUTHENTICATION => (usize::from(rest[1]) + 2) * 4,
            _ => 8 + usize::from(rest[1]) * 8,
        };
        protocol = rest[0];
        rest = rest.get(len..).unwrap_or_default();
    }
    Some((protocol, rest))
}

/// Reads the fixed part of an IPv6 header.
fn outline_v6(bytes: &[u8]) -> Packet<'_> {
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[at..at + 16]);
        IpAddr::from(Ipv6Addr::from(octets))
    };
    Packet {
        src: address(8),
        dst: address(24),
        protocol: bytes[6],
        hop_limit: bytes[7],
        protocol_at: 6,
        payload: &bytes[40..],
        bytes,
        fragment: None,
        traffic_class: bytes[0] << 4 | bytes[1] >> 4,
    }
}

/// Parses an IPv6 header and walks its extensions up to a fragment header or the payload.
pub(crate) fn parse_v6(bytes: &[u8], large: bool) -> Result<Packet<'_>, Refusal> {
    if bytes.len() < 40 || bytes[0] >> 4 != 6 {
        return Err(Refusal::Malformed);
    }
    let len = usize::from(be16(bytes, 4));
    let total = if large && len == 0 { bytes.len() } else { len + 40 };
    if total > bytes.len() {
        return Err(Refusal::Malformed);
    }
    let bytes = &bytes[..total];
    let mut packet = outline_v6(bytes);
    for count in 0..=MAX_EXTENSIONS {
        let payload = packet.payload;
        match packet.protocol {
            HOP_BY_HOP if count == 0 => {}
            // Only the first extension header may be hop-by-hop options (RFC 8200, 4).
            HOP_BY_HOP => return Err(Refusal::parameter(UNKNOWN_PROTOCOL, packet.protocol_at)),
            ROUTING | FRAGMENT | DESTINATION_OPTIONS => {}
            _ => return Ok(packet),
        }
        if count == MAX_EXTENSIONS {
            return Err(Refusal::Extension);
        }
        let at = bytes.len() - payload.len();
        if payload.len() < 8 {
            return Err(Refusal::Malformed);
        }
        if packet.protocol == FRAGMENT {
            let field = be16(payload, 2);
            let (offset, more) = (usize::from(field & 0xfff8), field & 1 != 0);
            packet.protocol = payload[0];
            packet.protocol_at = at;
            packet.payload = &payload[8..];
            // An atomic fragment is a whole packet (RFC 6946).
            if offset != 0 || more {
                let id = u32::from_be_bytes([payload[4], payload[5], payload[6], payload[7]]);
                packet.fragment = Some(FragmentOf { id, offset, more });
                return Ok(packet);
            }
            continue;
        }
        let len = 8 + usize::from(payload[1]) * 8;
        if payload.len() < len {
            return Err(Refusal::Malformed);
        }
        if packet.protocol != ROUTING {
            check_options(&payload[2..len], at + 2)?;
        } else if payload[3] != 0 {
            // Segments that are left ask this host to act as a router. It knows no type of routing (RFC 8200, 4.4;
            // RFC 5095, 3).
            return Err(Refusal::parameter(ERRONEOUS_FIELD, at + 2));
        }
        packet.protocol = payload[0];
        packet.protocol_at = at;
        packet.payload = &payload[len..];
    }
    Err(Refusal::Extension)
}

/// Returns `true` if a parsed packet has the router alert option, over IPv6 in its hop-by-hop options.
pub(crate) fn has_router_alert(packet: &Packet<'_>) -> bool {
    let bytes = packet.bytes;
    match packet.src {
        IpAddr::V4(_) => igmp::has_router_alert(&bytes[20..usize::from(bytes[0] & 15) * 4]),
        IpAddr::V6(_) => {
            bytes[6] == HOP_BY_HOP
                && mld::has_router_alert(&bytes[42..48 + usize::from(bytes[41]) * 8])
        }
    }
}

/// Checks that a host may skip each option that it does not know (RFC 8200, 4.2). `at` is the offset of `options` in
/// the packet.
fn check_options(options: &[u8], at: usize) -> Result<(), Refusal> {
    let mut rest = options;
    while let [kind, after @ ..] = rest {
        if *kind == 0 {
            rest = after;
            continue;
        }
        let Some((&len, after)) = after.split_first() else { return Err(Refusal::Extension) };
        if after.len() < usize::from(len) {
            return Err(Refusal::Extension);
        }
        let at = at + options.len() - rest.len();
        match kind >> 6 {
            0 => {}
            1 => return Err(Refusal::Extension),
            action => {
                let even_to_group = action == 2;
                return Err(Refusal::Parameter(Parameter {
                    code: UNKNOWN_OPTION,
                    at,
                    even_to_group,
                }));
            }
        }
        rest = &after[usize::from(len)..];
    }
    Ok(())
}

/// Returns the length of a header without options, in bytes.
pub(crate) fn header_len(of: IpAddr) -> usize {
    match of {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    }
}

/// Returns the ethertype of this address family.
pub(crate) fn ethertype(of: IpAddr) -> u16 {
    match of {
        IpAddr::V4(_) => crate::ethernet::IPV4,
        IpAddr::V6(_) => crate::ethernet::IPV6,
    }
}

/// Fields of a header.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) hop_limit: u8,
    /// The traffic class (IPv6), or type of service (IPv4).
    pub(crate) traffic_class: u8,
    /// Bytes after the IP header; with `fragment` over IPv6 this includes the fragment header.
    pub(crate) payload_bytes: usize,
    pub(crate) fragment: Option<FragmentOf>,
}

impl Header {
    /// Returns the number of bytes that [`Header::write`] writes.
    pub(crate) fn len(&self) -> usize {
        header_len(self.src)
            + usize::from(self.fragment.is_some() && matches!(self.src, IpAddr::V6(_))) * 8
    }

    /// Writes the header; source and destination are of one family.
    pub(crate) fn write(&self, to: &mut [u8]) {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let total = (20 + self.payload_bytes) as u16;
                // Routers must not fragment an unfragmented packet, so that their errors report the
                // path's MTU (RFC 1191).
                let (id, flags) = match self.fragment {
                    None => (0, 0x4000),
                    Some(f) => (f.id as u16, u16::from(f.more) << 13 | (f.offset / 8) as u16),
                };
                to[..2].copy_from_slice(&[0x45, self.traffic_class]);
                to[2..4].copy_from_slice(&total.to_be_bytes());
                to[4..6].copy_from_slice(&id.to_be_bytes());
                to[6..8].copy_from_slice(&flags.to_be_bytes());
                to[8..12].copy_from_slice(&[self.hop_limit, self.protocol, 0, 0]);
                to[12..16].copy_from_slice(&src.octets());
                to[16..20].copy_from_slice(&dst.octets());
                let sum = Sum::default().add(&to[..20]).finish();
                to[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let next = if self.fragment.is_some() { FRAGMENT } else { self.protocol };
                let class = self.traffic_class;
                to[..4].copy_from_slice(&[0x60 | class >> 4, class << 4, 0, 0]);
                to[4..6].copy_from_slice(&(self.payload_bytes as u16).to_be_bytes());
                to[6..8].copy_from_slice(&[next, self.hop_limit]);
                to[8..24].copy_from_slice(&src.octets());
                to[24..40].copy_from_slice(&dst.octets());
                if let Some(f) = self.fragment {
                    to[40..42].copy_from_slice(&[self.protocol, 0]);
                    let field = f.offset as u16 | u16::from(f.more);
                    to[42..44].copy_from_slice(&field.to_be_bytes());
                    to[44..48].copy_from_slice(&f.id.to_be_bytes());
                }
            }
            _ => unreachable!("a route's source is of its destination's family"),
        }
    }
}

/// Marks a packet with a written header as one of a transport that is capable of ECN. `of`: an
/// address of its family.
pub(crate) fn mark_capable(packet: &mut [u8], of: IpAddr) {
    match of {
        IpAddr::V4(_) => {
            packet[1] |= CAPABLE;
            packet[10..12].fill(0);
            let sum = Sum::default().add(&packet[..20]).finish();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        IpAddr::V6(_) => packet[1] |= CAPABLE << 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_headers_read_back() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
            for fragment in [None, Some(FragmentOf { id: 77, offset: 1480, more: true })] {
                let mut header = Header {
                    src,
                    dst,
                    protocol: UDP,
                    hop_limit: 3,
                    traffic_class: 0,
                    payload_bytes: 9,
                    fragment,
                };
                if fragment.is_some() && src.is_ipv6() {
                    header.payload_bytes += 8;
                }
                let mut bytes = vec![0xaa; header.len() + 9 + 30];
                header.write(&mut bytes);
                let read = if src.is_ipv4() { parse_v4 } else { parse_v6 };
                let packet = read(&bytes, false).unwrap();
                assert_eq!((packet.src, packet.dst, packet.protocol), (src, dst, UDP));
                assert_eq!((packet.payload, packet.fragment), (&[0xaa; 9][..], fragment));
                assert_eq!((packet.hop_limit, packet.is_congested()), (3, false));
                mark_capable(&mut bytes, src);
                assert!(!read(&bytes, false).unwrap().is_congested());
            }
        }
    }

    #[test]
    fn ipv4_options_are_passed_over_or_refused() {
        for (options, expected) in [
            ([1, 1, 1, 0], Ok(())),
            ([7, 4, 0, 0], Ok(())),
            ([0, 9, 9, 9], Ok(())),
            ([7, 0, 0, 0], Err(Refusal::parameter(ERRONEOUS_FIELD, 20))),
            ([1, 7, 1, 0], Err(Refusal::parameter(ERRONEOUS_FIELD, 21))),
            ([7, 5, 0, 0], Err(Refusal::parameter(ERRONEOUS_FIELD, 20))),
            ([1, 1, 1, 7], Err(Refusal::parameter(ERRONEOUS_FIELD, 23))),
            ([131, 3, 4, 0], Err(Refusal::Extension)),
            ([137, 3, 4, 0], Err(Refusal::Extension)),
        ] {
            let mut header = vec![0x46; 20];
            header.extend_from_slice(&options);
            assert_eq!(check_v4_options(&header), expected, "{options:?}");
        }
    }

    #[test]
    fn extension_headers_are_walked_or_refused() {
        let header = Header {
            src: "fe80::1".parse().unwrap(),
            dst: "fe80::2".parse().unwrap(),
            protocol: HOP_BY_HOP,
            hop_limit: 64,
            traffic_class: 0,
            payload_bytes: 8 + 8 + 3,
            fragment: None,
        };
        let mut bytes = vec![0; 40 + 19];
        header.write(&mut bytes);
        bytes[40] = DESTINATION_OPTIONS;
        bytes[41..48].copy_from_slice(&[0, 1, 4, 0, 0, 0, 0]);
        bytes[48] = UDP;
        bytes[49..56].copy_from_slice(&[0, 1, 4, 0, 0, 0, 0]);
        let packet = parse_v6(&bytes, false).unwrap();
        assert_eq!((packet.protocol, packet.payload.len()), (UDP, 3));
        assert_eq!(packet.protocol_at, 48);
        // An option that must not be skipped.
        bytes[50] = 0xc2;
        let parameter =
            |code, at, even_to_group| Refusal::Parameter(Parameter { code, at, even_to_group });
        for (kind, refusal) in [
            (0xc2, parameter(UNKNOWN_OPTION, 50, false)),
            (0x82, parameter(UNKNOWN_OPTION, 50, true)),
            (0x42, Refusal::Extension),
        ] {
            bytes[50] = kind;
            assert_eq!(parse_v6(&bytes, false).unwrap_err(), refusal, "{kind:x}");
        }
        // Hop-by-hop options anywhere but first.
        bytes[40] = HOP_BY_HOP;
        assert_eq!(parse_v6(&bytes, false).unwrap_err(), parameter(UNKNOWN_PROTOCOL, 40, false));
        // A routing header with segments left.
        bytes[40] = ROUTING;
        bytes[50] = 1;
        bytes[51] = 3;
        assert_eq!(parse_v6(&bytes, false).unwrap_err(), parameter(ERRONEOUS_FIELD, 50, false));
    }
}
