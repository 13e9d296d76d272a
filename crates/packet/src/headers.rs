//! The headers of a frame: parsed once, in one pass, from its first bytes.
//!
//! The bytes are the network's or an application's and may be hostile. The parser never panics, and
//! every walk is bounded. It distinguishes kinds of malformed frames so that the caller can count
//! them. Each layer is independent. A frame with a malformed IP header still has its Ethernet
//! fields; a frame with a malformed TCP header still has its addresses.

use crate::bytes::{be16, piece};
use crate::extension::{Chain, is_extension};
use crate::transport::{self, Transport};

pub use crate::extension::MAX_EXTENSION_HEADERS;
pub use crate::fragment::Fragment;
pub use crate::malformed::Malformed;
pub use crate::numbers::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN,
    PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP,
};

/// The maximum number of a frame's first bytes that [`Headers::parse`] needs. It is enough for
/// Ethernet, a VLAN tag, IPv4 and TCP with options, and all but unusual chains of IPv6 extension
/// headers.
pub const PREFIX_BYTES: usize = 256;

/// A frame's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The Ethernet destination.
    pub destination: [u8; 6],
    /// The Ethernet source.
    pub source: [u8; 6],
    /// The VLAN's number. `None` for an untagged frame, and for a frame whose tag has the number 0:
    /// such a tag carries a priority and names no VLAN (IEEE 802.1Q, 9.6).
    pub vlan: Option<u16>,
    /// The ethertype, after the VLAN tag if there is one. Below 1536 it is a length (IEEE 802.3).
    pub ethertype: u16,
    /// Offset of the network header, in bytes: 14, or 18 after a VLAN tag.
    pub l3_offset: u16,
    /// The network header's fields.
    pub network: Network,
    /// The frame's defect, if any. Every field before the defect is valid.
    pub malformed: Option<Malformed>,
}

/// The fields of a network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Unknown: another ethertype, a second VLAN tag, or a malformed header.
    Other,
    /// ARP about Ethernet and IPv4.
    Arp(Arp),
    /// IPv4.
    Ipv4(Ip<u32>),
    /// IPv6.
    Ipv6(Ip<u128>),
}

/// The fields of an ARP packet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// 1: request, 2: reply.
    pub operation: u16,
    /// The sender's hardware address.
    pub sender_mac: [u8; 6],
    /// The sender's IPv4 address, as [`std::net::Ipv4Addr::from_bits`] takes it.
    pub sender_ip: u32,
    /// The target's hardware address; meaningless in a request.
    pub target_mac: [u8; 6],
    /// The target's IPv4 address.
    pub target_ip: u32,
}

/// The fields of an IP header. Addresses are numbers, as [`std::net::Ipv4Addr::from_bits`] and
/// [`std::net::Ipv6Addr::from_bits`] take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip<Address> {
    /// The source address.
    pub source: Address,
    /// The destination address.
    pub destination: Address,
    /// The next protocol, in IPv6 after the extension headers. If their chain is malformed, the
    /// number of the unreadable header.
    pub protocol: u8,
    /// Time to live, or hop limit. Neighbour discovery requires 255 (RFC 4861, 7.1).
    pub hops: u8,
    /// The part of the packet that the frame holds.
    pub fragment: Fragment,
    /// Length of header and payload, in bytes from the network header's first; at most the frame's
    /// content. The rest of the frame is Ethernet's padding.
    pub total_bytes: u16,
    /// Start of the transport header, or of a later fragment's payload, in bytes from the frame's
    /// first.
    pub l4_offset: u16,
    /// The transport header's fields.
    pub transport: Transport,
}

impl Headers {
    /// Empty headers: an initial value for [`Headers::read`].
    pub const NONE: Headers = Headers {
        destination: [0; 6],
        source: [0; 6],
        vlan: None,
        ethertype: 0,
        l3_offset: 14,
        network: Network::Other,
        malformed: None,
    };

    /// Parses the headers of a frame of `packet_len` bytes, of which `prefix` are the first: all of
    /// them, or at least [`PREFIX_BYTES`].
    ///
    /// # Errors
    /// [`Malformed::EthernetShort`] for a frame shorter than an Ethernet header.
    /// [`Headers::malformed`] has any other defect, beside the valid fields.
    #[inline]
    pub fn parse(prefix: &[u8], packet_len: usize) -> Result<Headers, Malformed> {
        let mut headers = Headers::NONE;
        headers.read(prefix, packet_len)?;
        Ok(headers)
    }

    /// Parses as [`Headers::parse`] does, into an existing value. A caller that parses many packets
    /// avoids one move per packet. On a processor that cannot forward small stores to large loads,
    /// that move costs more than the parsing.
    ///
    /// # Errors
    /// As [`Headers::parse`]; the value is then meaningless.
    #[inline]
    pub fn read(&mut self, prefix: &[u8], packet_len: usize) -> Result<(), Malformed> {
        let prefix = if prefix.len() > packet_len { &prefix[..packet_len] } else { prefix };
        let Some((ethernet, mut rest)) = prefix.split_first_chunk::<14>() else {
            return Err(Malformed::EthernetShort);
        };
        self.destination = piece(ethernet, 0);
        self.source = piece(ethernet, 6);
        self.vlan = None;
        self.ethertype = be16(ethernet[12], ethernet[13]);
        self.l3_offset = 14;
        self.network = Network::Other;
        if matches!(self.ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) {
            let Some((&[v0, v1, t0, t1], after)) = rest.split_first_chunk() else {
                self.malformed = Some(Malformed::VlanShort.missing(18, packet_len));
                return Ok(());
            };
            self.vlan = Some(be16(v0, v1) & 0xfff).filter(|&number| number != 0);
            self.ethertype = be16(t0, t1);
            self.l3_offset = 18;
            rest = after;
        }
        let offset = self.l3_offset;
        let in_packet = packet_len - usize::from(offset);
        let network = &mut self.network;
        self.malformed = match self.ethertype {
            ETHERTYPE_IPV4 => ipv4(network, rest, in_packet, offset),
            ETHERTYPE_IPV6 => ipv6(network, rest, in_packet, offset),
            ETHERTYPE_ARP => arp(network, rest, in_packet),
            _ => None,
        };
        Ok(())
    }

    /// Returns `true` if there is a VLAN tag, even one with only a priority.
    #[must_use]
    pub fn is_tagged(&self) -> bool {
        self.l3_offset != 14
    }

    /// Returns `true` if there is a VLAN tag that carries only a priority (IEEE 802.1Q, 9.6).
    #[must_use]
    pub fn is_priority_tagged(&self) -> bool {
        self.is_tagged() && self.vlan.is_none()
    }

    /// Returns the IP protocol number, if this is IP.
    #[must_use]
    pub fn protocol(&self) -> Option<u8> {
        match &self.network {
            Network::Ipv4(ip) => Some(ip.protocol),
            Network::Ipv6(ip) => Some(ip.protocol),
            Network::Arp(_) | Network::Other => None,
        }
    }

    /// Returns the transport header's fields; [`Transport::None`] without one.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match &self.network {
            Network::Ipv4(ip) => ip.transport,
            Network::Ipv6(ip) => ip.transport,
            Network::Arp(_) | Network::Other => Transport::None,
        }
    }

    /// Returns source and destination port, if there are any.
    #[inline]
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        self.transport().ports()
    }

    /// Returns the offset of the transport header, in bytes, if this is IP and no later fragment,
    /// and the chain of headers before it is valid.
    #[must_use]
    pub fn l4_offset(&self) -> Option<usize> {
        let (reached, fragment, offset) = match &self.network {
            Network::Ipv4(ip) => (true, ip.fragment, ip.l4_offset),
            Network::Ipv6(ip) => (!is_extension(ip.protocol), ip.fragment, ip.l4_offset),
            Network::Arp(_) | Network::Other => return None,
        };
        (reached && !matches!(fragment, Fragment::Later { .. })).then_some(usize::from(offset))
    }

    /// Returns the offset of the IP packet's end, in bytes; only padding follows.
    #[must_use]
    pub fn ip_end(&self) -> Option<usize> {
        let total = match &self.network {
            Network::Ipv4(ip) => ip.total_bytes,
            Network::Ipv6(ip) => ip.total_bytes,
            Network::Arp(_) | Network::Other => return None,
        };
        Some(usize::from(self.l3_offset) + usize::from(total))
    }
}

// Each of the following functions writes its fields in place, and returns the defect. Returning the
// large value through a tuple would copy it once more. Inlining all three into one function makes
// that function spill its registers. Both were slower by 10 to 20 percent.

#[inline(never)]
fn ipv4(network: &mut Network, rest: &[u8], in_packet: usize, l3_offset: u16) -> Option<Malformed> {
    let Some(header) = rest.first_chunk::<20>() else {
        return Some(Malformed::IpShort.missing(20, in_packet));
    };
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(be16(header[2], header[3]));
    if header[0] >> 4 != 4 {
        return Some(Malformed::IpVersion);
    }
    if header_bytes < 20 || header_bytes > in_packet {
        return Some(Malformed::IpHeaderLength);
    }
    if total < header_bytes || total > in_packet {
        return Some(Malformed::IpLength);
    }
    let pieces = be16(header[6], header[7]);
    let payload = total - header_bytes;
    let (fragment, mut malformed) = if pieces & 0x3fff == 0 {
        (Fragment::Whole, None)
    } else {
        let id = u32::from(be16(header[4], header[5]));
        Fragment::read(id, (pieces & 0x1fff) * 8, pieces & 0x2000 != 0, payload)
    };
    let protocol = header[9];
    let mut transport = Transport::None;
    if malformed.is_none() && !matches!(fragment, Fragment::Later { .. }) {
        let reachable = rest.get(header_bytes..rest.len().min(total)).unwrap_or_default();
        let whole = matches!(fragment, Fragment::Whole);
        (transport, malformed) = transport::read4(reachable, payload, protocol, whole);
    }
    *network = Network::Ipv4(Ip {
        source: u32::from_be_bytes(piece(header, 12)),
        destination: u32::from_be_bytes(piece(header, 16)),
        protocol,
        hops: header[8],
        fragment,
        total_bytes: total as u16,
        l4_offset: l3_offset + header_bytes as u16,
        transport,
    });
    malformed
}

#[inline(never)]
fn ipv6(network: &mut Network, rest: &[u8], in_packet: usize, l3_offset: u16) -> Option<Malformed> {
    let Some(header) = rest.first_chunk::<40>() else {
        return Some(Malformed::IpShort.missing(40, in_packet));
    };
    if header[0] >> 4 != 6 {
        return Some(Malformed::IpVersion);
    }
    // A jumbogram (RFC 2675) has 0 here, and does not fit into a frame: its payload counts as
    // padding.
    let payload = usize::from(be16(header[4], header[5]));
    let total = 40 + payload;
    if total > in_packet || total > 0xffff {
        return Some(Malformed::IpLength);
    }
    let reachable = &rest[..rest.len().min(total)];
    let mut chain = Chain::new(header[6]);
    if is_extension(chain.protocol) {
        chain.walk(reachable, total);
    }
    let mut transport = Transport::None;
    if chain.malformed.is_none() && !matches!(chain.fragment, Fragment::Later { .. }) {
        let whole = matches!(chain.fragment, Fragment::Whole);
        let after = reachable.get(chain.at..).unwrap_or_default();
        (transport, chain.malformed) =
            transport::read6(after, total - chain.at, chain.protocol, whole);
    }
    *network = Network::Ipv6(Ip {
        source: u128::from_be_bytes(piece(header, 8)),
        destination: u128::from_be_bytes(piece(header, 24)),
        protocol: chain.protocol,
        hops: header[7],
        fragment: chain.fragment,
        total_bytes: total as u16,
        l4_offset: l3_offset + chain.at as u16,
        transport,
    });
    chain.malformed
}

fn arp(network: &mut Network, rest: &[u8], in_packet: usize) -> Option<Malformed> {
    let Some(p) = rest.first_chunk::<28>() else {
        return Some(Malformed::ArpShort.missing(28, in_packet));
    };
    if p[..6] != [0, 1, 8, 0, 6, 4] {
        return Some(Malformed::ArpKind);
    }
    *network = Network::Arp(Arp {
        operation: be16(p[6], p[7]),
        sender_mac: piece(p, 8),
        sender_ip: u32::from_be_bytes(piece(p, 14)),
        target_mac: piece(p, 18),
        target_ip: u32::from_be_bytes(piece(p, 24)),
    });
    None
}
