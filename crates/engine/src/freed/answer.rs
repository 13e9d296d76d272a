//! The answers to packets for the addresses of a freed lease: a reset (RFC 9293, 3.10.7.1), "port unreachable" (RFC
//! 792; RFC 4443, 3.1), and the link address (RFC 826; RFC 4861, 7.2.4).
//!
//! The engine has only the beginning of a packet, so it cannot verify checksums over payload. A damaged packet gets an
//! answer to its damaged headers. Its sender ignores an answer that fits no connection.

use towpath_packet::checksum::Sum;
use towpath_packet::headers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Fragment, Headers, Ip, Network, PROTOCOL_ICMP,
    PROTOCOL_ICMPV6, PROTOCOL_TCP,
};
use towpath_packet::transport::{
    NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Transport, tcp_flags,
};

use super::lease::{BEGINNING_BYTES, FreedLease};

/// The longest answer: "port unreachable" over IPv6 about the longest beginning.
pub(super) const ANSWER_BYTES: usize = 14 + 40 + 8 + BEGINNING_BYTES;

/// The hop limit (IPv4: time to live) of an answer.
const HOPS: u8 = 64;
/// The hop limit of neighbour discovery (RFC 4861, 7.1).
const NEIGHBOUR_HOPS: u8 = 255;

/// Returns `true` if a MAC address is broadcast or multicast.
fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// An address that the sender of a packet has, or is about to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    V4(u32),
    V6(u128),
}

impl Claim {
    /// Returns the address that a packet's sender claims. A host claims an address by an announcement, by a probe
    /// before its first use (RFC 5227, 2.1.1; RFC 4862, 5.4), and when it asks for a link address. Linux sends no
    /// announcement after it has probed an IPv6 address. No other IP packet claims its source: a router may have
    /// forwarded the packet for a distant sender.
    pub(super) fn of(headers: &Headers) -> Option<Claim> {
        if is_group(headers.source) || headers.is_tagged() || headers.malformed.is_some() {
            return None;
        }
        match &headers.network {
            Network::Arp(arp) if arp.sender_ip == 0 => Some(Claim::V4(arp.target_ip)),
            Network::Arp(arp) => Some(Claim::V4(arp.sender_ip)),
            // No router forwards a packet with this hop limit.
            Network::Ipv6(ip) if ip.hops == NEIGHBOUR_HOPS => match ip.transport {
                Transport::Neighbour { kind: NEIGHBOUR_ADVERTISEMENT, target } => {
                    Some(Claim::V6(target))
                }
                Transport::Neighbour { kind: NEIGHBOUR_SOLICITATION, target } => {
                    Some(Claim::V6(if ip.source == 0 { target } else { ip.source }))
                }
                _ => None,
            },
            Network::Ipv4(_) | Network::Ipv6(_) | Network::Other => None,
        }
    }

    /// Returns `true` if another host than that of the lease claims an address of the lease. `source`: the MAC address
    /// of the claim's sender.
    pub(super) fn is_of(self, lease: &FreedLease, source: [u8; 6]) -> bool {
        let has = match self {
            Claim::V4(ip) => lease.ipv4.is_some_and(|(own, _)| own == ip),
            Claim::V6(ip) => lease.ipv6.contains(&Some(ip)),
        };
        has && source != lease.mac
    }
}

/// A frame that answers a packet.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    bytes: [u8; ANSWER_BYTES],
    len: usize,
}

impl Answer {
    /// Begins a frame from the MAC address `own` to the sender of a packet.
    fn to(packet: &Headers, own: [u8; 6], ethertype: u16) -> Answer {
        let mut answer = Answer { bytes: [0; ANSWER_BYTES], len: 0 };
        answer.put(&packet.source);
        answer.put(&own);
        answer.put(&ethertype.to_be_bytes());
        answer
    }

    fn put(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
    }

    pub(crate) fn frame(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The source and destination addresses of an IP answer.
#[derive(Clone, Copy)]
enum Ends {
    V4(u32, u32),
    V6(u128, u128),
}

impl Ends {
    fn of_answer(network: &Network) -> Option<Ends> {
        match network {
            Network::Ipv4(ip) => Some(Ends::V4(ip.destination, ip.source)),
            Network::Ipv6(ip) => Some(Ends::V6(ip.destination, ip.source)),
            _ => None,
        }
    }

    /// Appends an IP header for `payload_bytes` to a frame.
    fn put_header(self, answer: &mut Answer, protocol: u8, hops: u8, payload_bytes: u16) {
        match self {
            Ends::V4(from, to) => {
                let mut header =
                    [0x45, 0, 0, 0, 0, 0, 0x40, 0, hops, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                header[2..4].copy_from_slice(&(20 + payload_bytes).to_be_bytes());
                header[12..16].copy_from_slice(&from.to_be_bytes());
                header[16..20].copy_from_slice(&to.to_be_bytes());
                let mut sum = Sum::default();
                sum.add(&header);
                header[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
                answer.put(&header);
            }
            Ends::V6(from, to) => {
                answer.put(&[0x60, 0, 0, 0]);
                answer.put(&payload_bytes.to_be_bytes());
                answer.put(&[protocol, hops]);
                answer.put(&from.to_be_bytes());
                answer.put(&to.to_be_bytes());
            }
        }
    }

    /// Returns the sum of the pseudo-header; ICMP over IPv4 has none.
    fn pseudo(self, protocol: u8, payload_bytes: u16) -> Sum {
        match self {
            Ends::V4(..) if protocol == PROTOCOL_ICMP => Sum::default(),
            Ends::V4(from, to) => Sum::pseudo4(from, to, protocol, payload_bytes),
            Ends::V6(from, to) => Sum::pseudo6(from, to, protocol, payload_bytes.into()),
        }
    }

    /// Appends a header and a payload of two parts. `sum_at`: the offset of the checksum in the first part.
    fn put(
        self,
        answer: &mut Answer,
        protocol: u8,
        hops: u8,
        first: &mut [u8],
        rest: &[u8],
        sum_at: usize,
    ) {
        let len = (first.len() + rest.len()) as u16;
        self.put_header(answer, protocol, hops, len);
        let mut sum = self.pseudo(protocol, len);
        sum.add(first);
        sum.add(rest);
        first[sum_at..sum_at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
        answer.put(first);
        answer.put(rest);
    }
}

/// Returns `true` if the engine answers a packet for a freed lease, by the packet's headers only.
pub(super) fn is_answered(own: &FreedLease, headers: &Headers) -> bool {
    let is_from_no_host = headers.source == own.mac || is_group(headers.source);
    if is_from_no_host || headers.is_tagged() || headers.malformed.is_some() {
        return false;
    }
    let is_for_mac = headers.destination == own.mac;
    let ipv4 = own.ipv4.map(|(ip, _)| ip);
    let has_v6 = |ip: u128| own.ipv6.contains(&Some(ip));
    match &headers.network {
        Network::Arp(arp) => {
            let asks = arp.operation == 1 && ipv4 == Some(arp.target_ip);
            let is_from_host = arp.sender_ip != 0 && !is_group(arp.sender_mac);
            asks && is_from_host && (is_for_mac || is_group(headers.destination))
        }
        Network::Ipv4(ip) => {
            let is_for_lease = is_for_mac && ipv4 == Some(ip.destination);
            is_for_lease && is_host_v4(ip.source, own) && wants_answer(ip)
        }
        Network::Ipv6(ip) => match ip.transport {
            Transport::Neighbour { kind: NEIGHBOUR_SOLICITATION, target } => {
                ip.hops == NEIGHBOUR_HOPS && has_v6(target) && is_host_v6(ip.source)
            }
            _ => {
                let is_for_lease = is_for_mac && has_v6(ip.destination);
                is_for_lease && is_host_v6(ip.source) && wants_answer(ip)
            }
        },
        Network::Other => false,
    }
}

/// Returns `true` for an address that one host can have.
fn is_host_v4(ip: u32, own: &FreedLease) -> bool {
    let is_broadcast = own.ipv4.is_some_and(|(own_ip, bits)| {
        let hosts = u32::MAX.checked_shr(bits.into()).unwrap_or(0);
        ip == own_ip | hosts
    });
    let [first, ..] = ip.to_be_bytes();
    !is_broadcast && (1..224).contains(&first) && first != 127
}

/// Returns `true` for an address that one host can have.
fn is_host_v6(ip: u128) -> bool {
    let ip = std::net::Ipv6Addr::from_bits(ip);
    !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast()
}

/// Returns `true` for a whole segment that is no reset, or a whole datagram, if another address sent it.
fn wants_answer<Address: PartialEq>(ip: &Ip<Address>) -> bool {
    ip.fragment == Fragment::Whole
        && ip.source != ip.destination
        && match ip.transport {
            Transport::Tcp { flags, .. } => flags & tcp_flags::RST == 0,
            Transport::Udp { .. } => true,
            _ => false,
        }
}

/// Returns the answer to a packet that gets one; `None` if the beginning does not hold its headers.
pub(super) fn answer(own: &FreedLease, headers: &Headers, beginning: &[u8]) -> Option<Answer> {
    let (ethertype, (l4_offset, total_bytes)) = match &headers.network {
        Network::Arp(arp) => {
            let mut answer = Answer::to(headers, own.mac, ETHERTYPE_ARP);
            answer.put(&[0, 1, 8, 0, 6, 4, 0, 2]);
            answer.put(&own.mac);
            answer.put(&arp.target_ip.to_be_bytes());
            answer.put(&arp.sender_mac);
            answer.put(&arp.sender_ip.to_be_bytes());
            return Some(answer);
        }
        Network::Ipv4(ip) => (ETHERTYPE_IPV4, (ip.l4_offset, ip.total_bytes)),
        Network::Ipv6(ip) => {
            if let Transport::Neighbour { target, .. } = ip.transport {
                return Some(advertisement(own, headers, target, ip.source));
            }
            (ETHERTYPE_IPV6, (ip.l4_offset, ip.total_bytes))
        }
        Network::Other => return None,
    };
    let (l4_offset, total_bytes) = (usize::from(l4_offset), usize::from(total_bytes));
    let ends = Ends::of_answer(&headers.network)?;
    let mut answer = Answer::to(headers, own.mac, ethertype);
    match headers.transport() {
        Transport::Tcp { source, destination, flags, header_bytes } => {
            let header = beginning.get(l4_offset..)?.first_chunk::<20>()?;
            let payload = (usize::from(headers.l3_offset) + total_bytes)
                .checked_sub(l4_offset + usize::from(header_bytes))?;
            let mut reset = reset(header, source, destination, flags, payload as u32);
            ends.put(&mut answer, PROTOCOL_TCP, HOPS, &mut reset, &[], 16);
        }
        Transport::Udp { .. } => {
            let l3_offset = usize::from(headers.l3_offset);
            let end = match ends {
                // The IP header and 8 bytes (RFC 792).
                Ends::V4(..) => l4_offset + 8,
                // The whole beginning, without padding (RFC 4443, 3.1).
                Ends::V6(..) => beginning.len().min(l3_offset + total_bytes),
            };
            let quoted = beginning.get(l3_offset..end)?;
            let (protocol, kind, code) = match ends {
                Ends::V4(..) => (PROTOCOL_ICMP, 3, 3),
                Ends::V6(..) => (PROTOCOL_ICMPV6, 1, 4),
            };
            let mut unreachable = [kind, code, 0, 0, 0, 0, 0, 0];
            ends.put(&mut answer, protocol, HOPS, &mut unreachable, quoted, 2);
        }
        _ => return None,
    }
    Some(answer)
}

/// Returns the reset for a segment with `payload` bytes of data (RFC 9293, 3.10.7.1).
fn reset(segment: &[u8; 20], from: u16, to: u16, flags: u8, payload: u32) -> [u8; 20] {
    let word = |at: usize| {
        u32::from_be_bytes([segment[at], segment[at + 1], segment[at + 2], segment[at + 3]])
    };
    let (sequence, acknowledgement, answer) = if flags & tcp_flags::ACK != 0 {
        (word(8), 0, tcp_flags::RST)
    } else {
        // SYN and FIN each take a sequence number.
        let controls =
            u32::from(flags & tcp_flags::SYN != 0) + u32::from(flags & tcp_flags::FIN != 0);
        let end = word(4).wrapping_add(payload).wrapping_add(controls);
        (0, end, tcp_flags::RST | tcp_flags::ACK)
    };
    let mut reset = [0; 20];
    reset[..2].copy_from_slice(&to.to_be_bytes());
    reset[2..4].copy_from_slice(&from.to_be_bytes());
    reset[4..8].copy_from_slice(&sequence.to_be_bytes());
    reset[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    (reset[12], reset[13]) = (5 << 4, answer);
    reset
}

/// Returns a solicited advertisement, which overrides the link address that the asker has.
fn advertisement(own: &FreedLease, headers: &Headers, target: u128, asker: u128) -> Answer {
    let mut answer = Answer::to(headers, own.mac, ETHERTYPE_IPV6);
    let mut message = [0; 32];
    (message[0], message[4]) = (NEIGHBOUR_ADVERTISEMENT, 0x60);
    message[8..24].copy_from_slice(&target.to_be_bytes());
    // The target's link address.
    (message[24], message[25]) = (2, 1);
    message[26..].copy_from_slice(&own.mac);
    Ends::V6(target, asker).put(&mut answer, PROTOCOL_ICMPV6, NEIGHBOUR_HOPS, &mut message, &[], 2);
    answer
}
