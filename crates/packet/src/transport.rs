//! Transport headers: ports, flags, ICMP's type, a neighbour's address.

use crate::bytes::be16;
use crate::malformed::Malformed;
use crate::numbers::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP};

/// The fields of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// None: a later fragment, a protocol without ports, or a malformed header.
    None,
    /// TCP (RFC 9293).
    Tcp {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
        /// The flags: [`tcp_flags`].
        flags: u8,
        /// The header with its options, in bytes: 20 to 60, and not beyond the packet's end.
        header_bytes: u8,
    },
    /// UDP (RFC 768).
    Udp {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// SCTP (RFC 9260).
    Sctp {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// ICMP over IPv4 (RFC 792) or ICMPv6 over IPv6 (RFC 4443).
    Icmp {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
        /// Bytes 4 and 5: in an echo request or reply the identifier.
        id: u16,
    },
    /// A neighbour solicitation or advertisement (RFC 4861).
    Neighbour {
        /// The type: [`NEIGHBOUR_SOLICITATION`] or [`NEIGHBOUR_ADVERTISEMENT`].
        kind: u8,
        /// The address in question, as [`std::net::Ipv6Addr::from_bits`] takes it.
        target: u128,
    },
}

/// The ICMPv6 type of a neighbour solicitation.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// The ICMPv6 type of a neighbour advertisement.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// TCP's flags (RFC 9293, 3.1).
pub mod tcp_flags {
    /// The sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Pass the data to the application at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// The receiver saw congestion (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// The sender reduced its congestion window (RFC 3168).
    pub const CWR: u8 = 0x80;
}

impl Transport {
    /// Returns source and destination port, if there are any.
    #[inline]
    #[must_use]
    pub fn ports(self) -> Option<(u16, u16)> {
        match self {
            Transport::Tcp { source, destination, .. }
            | Transport::Udp { source, destination }
            | Transport::Sctp { source, destination } => Some((source, destination)),
            Transport::None | Transport::Icmp { .. } | Transport::Neighbour { .. } => None,
        }
    }
}

type Read = (Transport, Option<Malformed>);

/// Parses the transport header of an IPv4 packet. `bytes`: the copied bytes from the header's
/// start, none beyond the packet's end. `payload`: the number of such bytes in the packet. `whole`:
/// `false` for a first fragment.
#[inline]
pub(crate) fn read4(bytes: &[u8], payload: usize, protocol: u8, whole: bool) -> Read {
    match protocol {
        PROTOCOL_UDP => udp(bytes, payload, whole),
        PROTOCOL_TCP => tcp(bytes, payload),
        PROTOCOL_ICMP => icmp(bytes, payload),
        PROTOCOL_SCTP => sctp(bytes, payload),
        _ => (Transport::None, None),
    }
}

/// Parses as [`read4`] does, for an IPv6 packet.
#[inline]
pub(crate) fn read6(bytes: &[u8], payload: usize, protocol: u8, whole: bool) -> Read {
    match protocol {
        PROTOCOL_UDP => udp(bytes, payload, whole),
        PROTOCOL_TCP => tcp(bytes, payload),
        PROTOCOL_ICMPV6 => icmp6(bytes, payload),
        PROTOCOL_SCTP => sctp(bytes, payload),
        _ => (Transport::None, None),
    }
}

#[cold]
fn short(needed: usize, payload: usize) -> Read {
    (Transport::None, Some(Malformed::TransportShort.missing(needed, payload)))
}

#[inline]
fn udp(bytes: &[u8], payload: usize, whole: bool) -> Read {
    let Some(h) = bytes.first_chunk::<8>() else { return short(8, payload) };
    let len = usize::from(be16(h[4], h[5]));
    // The UDP length in a first fragment is that of the whole datagram, beyond the fragment's own.
    if len < 8 || (whole && len > payload) {
        return (Transport::None, Some(Malformed::UdpLength));
    }
    (Transport::Udp { source: be16(h[0], h[1]), destination: be16(h[2], h[3]) }, None)
}

#[inline]
fn tcp(bytes: &[u8], payload: usize) -> Read {
    let Some(h) = bytes.first_chunk::<20>() else { return short(20, payload) };
    let header_bytes = (h[12] >> 4) * 4;
    if header_bytes < 20 || usize::from(header_bytes) > payload {
        return (Transport::None, Some(Malformed::TcpHeaderLength));
    }
    // The segmenter needs the options, too.
    if usize::from(header_bytes) > bytes.len() {
        return short(usize::from(header_bytes), payload);
    }
    let tcp = Transport::Tcp {
        source: be16(h[0], h[1]),
        destination: be16(h[2], h[3]),
        flags: h[13],
        header_bytes,
    };
    (tcp, None)
}

fn sctp(bytes: &[u8], payload: usize) -> Read {
    let Some(h) = bytes.first_chunk::<12>() else { return short(12, payload) };
    (Transport::Sctp { source: be16(h[0], h[1]), destination: be16(h[2], h[3]) }, None)
}

fn icmp(bytes: &[u8], payload: usize) -> Read {
    let Some(h) = bytes.first_chunk::<8>() else { return short(8, payload) };
    (Transport::Icmp { kind: h[0], code: h[1], id: be16(h[4], h[5]) }, None)
}

fn icmp6(bytes: &[u8], payload: usize) -> Read {
    match bytes.first() {
        Some(&kind @ (NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT)) => {
            let Some(h) = bytes.first_chunk::<24>() else { return short(24, payload) };
            let target = h.last_chunk::<16>().copied().unwrap_or_default();
            (Transport::Neighbour { kind, target: u128::from_be_bytes(target) }, None)
        }
        _ => icmp(bytes, payload),
    }
}
