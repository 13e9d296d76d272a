//! Reading a frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::bth::BTH_BYTES;
use super::error::RoceError;
use super::icrc::{ICRC_BYTES, has_good_icrc};
use super::path::{ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, Path, UDP_BYTES, UDP_PORT, ip_packet};
use super::segment::Segment;
use crate::bytes::{be16, piece};
use crate::numbers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_UDP};

/// The next header number of an IPv6 fragment header (RFC 8200, section 4.5).
const FRAGMENT_HEADER: u8 = 44;
/// The congestion codepoint of a packet that met congestion (RFC 3168, section 5).
const CONGESTION_EXPERIENCED: u8 = 3;

/// What a receiver needs of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The addresses as in the frame: the source is the sender.
    pub path: Path,
    /// A router or switch was congested, and has marked the packet (CE).
    pub congestion: bool,
    /// The packet.
    pub segment: Segment<'a>,
}

/// The fields of an IP header.
struct Ip {
    source: IpAddr,
    destination: IpAddr,
    codepoint: u8,
}

fn read_ipv4(packet: &[u8]) -> Result<(Ip, &[u8]), RoceError> {
    let (header, rest) = packet.split_first_chunk::<IPV4_BYTES>().ok_or(RoceError::Short)?;
    if header[0] != 0x45 {
        return Err(RoceError::IpHeader);
    }
    if be16(header[6], header[7]) & 0x3fff != 0 {
        return Err(RoceError::Fragment);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(RoceError::Protocol(header[9]));
    }
    let ip = Ip {
        source: Ipv4Addr::from(piece::<4>(header, 12)).into(),
        destination: Ipv4Addr::from(piece::<4>(header, 16)).into(),
        codepoint: header[1] & 3,
    };
    Ok((ip, rest))
}

fn read_ipv6(packet: &[u8]) -> Result<(Ip, &[u8]), RoceError> {
    let (header, rest) = packet.split_first_chunk::<IPV6_BYTES>().ok_or(RoceError::Short)?;
    match header[6] {
        PROTOCOL_UDP => {}
        FRAGMENT_HEADER => return Err(RoceError::Fragment),
        other => return Err(RoceError::Protocol(other)),
    }
    let ip = Ip {
        source: Ipv6Addr::from(piece::<16>(header, 8)).into(),
        destination: Ipv6Addr::from(piece::<16>(header, 24)).into(),
        codepoint: header[1] >> 4 & 3,
    };
    Ok((ip, rest))
}

/// Reads a frame: an untagged one, of one IP packet to [`UDP_PORT`], with a right invariant CRC.
/// What Ethernet's padding adds behind the packet does not count.
///
/// It checks neither the IPv4 header's checksum nor a UDP checksum. The CRC covers what both cover,
/// but for the fields that change on the way.
///
/// # Errors
/// The first defect.
#[inline]
pub fn read_frame(frame: &[u8]) -> Result<Received<'_>, RoceError> {
    let (ethernet, rest) = frame.split_first_chunk::<ETHERNET_BYTES>().ok_or(RoceError::Short)?;
    let ethertype = be16(ethernet[12], ethernet[13]);
    let (version, least) = match ethertype {
        ETHERTYPE_IPV4 => (4, IPV4_BYTES),
        ETHERTYPE_IPV6 => (6, IPV6_BYTES),
        other => return Err(RoceError::Ethertype(other)),
    };
    if rest.len() < least {
        return Err(RoceError::Short);
    }
    if rest[0] >> 4 != version {
        return Err(RoceError::IpHeader);
    }
    let packet = ip_packet(frame).ok_or(RoceError::IpLength)?;
    let (ip, datagram) = if version == 4 { read_ipv4(packet)? } else { read_ipv6(packet)? };
    let (udp, payload) = datagram.split_first_chunk::<UDP_BYTES>().ok_or(RoceError::Short)?;
    let port = be16(udp[2], udp[3]);
    if port != UDP_PORT {
        return Err(RoceError::Port(port));
    }
    if usize::from(be16(udp[4], udp[5])) != datagram.len() {
        return Err(RoceError::UdpLength);
    }
    let path = Path {
        source_mac: piece(ethernet, 6),
        destination_mac: piece(ethernet, 0),
        source: ip.source,
        destination: ip.destination,
        source_port: be16(udp[0], udp[1]),
        ecn: ip.codepoint != 0,
    };
    // A packet that its CRC does not confirm may have any defect: that is the first one.
    if payload.len() >= BTH_BYTES + ICRC_BYTES && !has_good_icrc(packet) {
        return Err(RoceError::Icrc);
    }
    let congestion = ip.codepoint == CONGESTION_EXPERIENCED;
    Ok(Received { path, congestion, segment: Segment::read(payload)? })
}
