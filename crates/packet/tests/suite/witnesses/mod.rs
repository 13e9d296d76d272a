//! Implementations of the Internet checksum that share no code with the crate under test.

use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use smoltcp::wire::{
    Icmpv4Packet, Icmpv6Packet, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

/// The checksum by its definition: 16-bit words in network byte order, added with end-around carry
/// (RFC 1071, section 1), one byte after the other.
#[derive(Default)]
pub(crate) struct ByWords {
    sum: u16,
    /// `true` if the next byte is the lower half of a word.
    odd: bool,
}

impl ByWords {
    /// Adds a byte. The last byte of an odd number is the upper half of a word.
    pub(crate) fn push(&mut self, byte: u8) {
        let word = if self.odd { u16::from(byte) } else { u16::from(byte) << 8 };
        let (sum, carry) = self.sum.overflowing_add(word);
        self.sum = sum + u16::from(carry);
        self.odd = !self.odd;
    }

    /// Returns the sum.
    pub(crate) fn folded(&self) -> u16 {
        self.sum
    }

    fn of(parts: &[&[u8]]) -> u16 {
        let mut sum = ByWords::default();
        parts.iter().copied().flatten().for_each(|byte| sum.push(*byte));
        sum.sum
    }
}

/// Whether each witness finds a checksum right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) by_words: bool,
    pub(crate) smoltcp: bool,
    pub(crate) etherparse: bool,
}

impl Found {
    const RIGHT: Found = Found { by_words: true, smoltcp: true, etherparse: true };

    /// Returns what all witnesses find.
    pub(crate) fn agreed(self) -> bool {
        assert_eq!(self.by_words, self.smoltcp, "the witnesses disagree: {self:?}");
        assert_eq!(self.by_words, self.etherparse, "the witnesses disagree: {self:?}");
        self.by_words
    }
}

/// What the witnesses find of a frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    /// The IPv4 header's; right for IPv6, which has none.
    pub(crate) header: Found,
    /// That of TCP, UDP or ICMP. A checksum of 0 in UDP counts as every other value.
    pub(crate) transport: Found,
}

impl Verified {
    /// All is right for all.
    pub(crate) const ALL: Verified = Verified { header: Found::RIGHT, transport: Found::RIGHT };

    /// Verifies a frame of TCP, UDP or ICMP over IP without extension headers.
    pub(crate) fn of(frame: &[u8]) -> Verified {
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        let ip = &frame[if frame[12..14] == [0x81, 0] { 18 } else { 14 }..];
        if ip[0] >> 4 == 4 { v4(ip, &sliced) } else { v6(ip, &sliced) }
    }
}

fn v4(ip: &[u8], sliced: &SlicedPacket<'_>) -> Verified {
    let Some(NetSlice::Ipv4(slice)) = &sliced.net else { panic!("{sliced:?}") };
    let header_bytes = usize::from(ip[0] & 15) * 4;
    let (header, rest) = ip.split_at(header_bytes);
    let rest = &rest[..usize::from(u16::from_be_bytes([ip[2], ip[3]])) - header_bytes];
    let packet = Ipv4Packet::new_checked(ip).unwrap();
    let stated = slice.header();
    let header = Found {
        by_words: ByWords::of(&[header]) == 0xffff,
        smoltcp: packet.verify_checksum(),
        etherparse: same(stated.header_checksum(), stated.to_header().calc_header_checksum()),
    };
    let length = (rest.len() as u16).to_be_bytes();
    let pseudo = [&ip[12..20], &[0, ip[9]], &length];
    let pseudo: &[&[u8]] = if ip[9] == 1 { &[] } else { &pseudo };
    let by_words = ByWords::of(&[pseudo, &[rest]].concat()) == 0xffff;
    let addresses = (packet.src_addr().into(), packet.dst_addr().into());
    let (from, to) = (stated.source(), stated.destination());
    let etherparse = match sliced.transport.as_ref().unwrap() {
        TransportSlice::Udp(udp) => {
            let sum = udp.to_header().calc_checksum_ipv4_raw(from, to, udp.payload()).unwrap();
            same(udp.checksum(), sum)
        }
        TransportSlice::Tcp(tcp) => same(tcp.checksum(), tcp.calc_checksum_ipv4(from, to).unwrap()),
        TransportSlice::Icmpv4(icmp) => {
            same(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()))
        }
        other => panic!("{other:?}"),
    };
    let smoltcp = smoltcp(ip[9], rest, addresses);
    Verified { header, transport: Found { by_words, smoltcp, etherparse } }
}

fn v6(ip: &[u8], sliced: &SlicedPacket<'_>) -> Verified {
    let Some(NetSlice::Ipv6(slice)) = &sliced.net else { panic!("{sliced:?}") };
    let rest = &ip[40..40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]))];
    let packet = Ipv6Packet::new_checked(ip).unwrap();
    let length = (rest.len() as u32).to_be_bytes();
    let by_words = ByWords::of(&[&ip[8..40], &length, &[0, 0, 0, ip[6]], rest]) == 0xffff;
    let addresses = (packet.src_addr().into(), packet.dst_addr().into());
    let (from, to) = (slice.header().source(), slice.header().destination());
    let etherparse = match sliced.transport.as_ref().unwrap() {
        TransportSlice::Udp(udp) => {
            let sum = udp.to_header().calc_checksum_ipv6_raw(from, to, udp.payload()).unwrap();
            same(udp.checksum(), sum)
        }
        TransportSlice::Tcp(tcp) => same(tcp.checksum(), tcp.calc_checksum_ipv6(from, to).unwrap()),
        TransportSlice::Icmpv6(icmp) => {
            let sum = icmp.icmp_type().calc_checksum(from, to, icmp.payload()).unwrap();
            same(icmp.checksum(), sum)
        }
        other => panic!("{other:?}"),
    };
    let smoltcp = smoltcp(ip[6], rest, addresses);
    Verified { header: Found::RIGHT, transport: Found { by_words, smoltcp, etherparse } }
}

/// Compares checksums as one's complement numbers, in which 0xffff equals 0.
fn same(stated: u16, computed: u16) -> bool {
    stated % 0xffff == computed % 0xffff
}

fn smoltcp(protocol: u8, rest: &[u8], (from, to): (IpAddress, IpAddress)) -> bool {
    match (protocol, from, to) {
        (17, ..) => {
            let udp = UdpPacket::new_checked(rest).unwrap();
            // smoltcp takes a checksum of 0 as right, without a look at the rest.
            if udp.checksum() != 0 {
                return udp.verify_checksum(&from, &to);
            }
            let mut other = rest.to_vec();
            other[6..8].fill(0xff);
            UdpPacket::new_checked(&other[..]).unwrap().verify_checksum(&from, &to)
        }
        (6, ..) => TcpPacket::new_checked(rest).unwrap().verify_checksum(&from, &to),
        (1, ..) => Icmpv4Packet::new_checked(rest).unwrap().verify_checksum(),
        (58, IpAddress::Ipv6(from), IpAddress::Ipv6(to)) => {
            Icmpv6Packet::new_checked(rest).unwrap().verify_checksum(&from, &to)
        }
        other => panic!("{other:?}"),
    }
}

/// Returns a frame's TCP segment.
pub(crate) fn tcp<'a>(sliced: &SlicedPacket<'a>) -> TcpSlice<'a> {
    match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => tcp.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns an IPv4 packet's identification.
pub(crate) fn id(sliced: &SlicedPacket<'_>) -> Option<u16> {
    match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => Some(ip.header().identification()),
        _ => None,
    }
}

/// Returns the length of what follows the IP header, as that header states it.
pub(crate) fn ip_payload_bytes(sliced: &SlicedPacket<'_>) -> usize {
    match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            usize::from(header.total_len()) - header.slice().len()
        }
        Some(NetSlice::Ipv6(ip)) => ip.header().payload_length().into(),
        other => panic!("{other:?}"),
    }
}
