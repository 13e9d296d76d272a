//! The fast path for reading most frames: untagged, IPv4 without options or IPv6 without extension
//! headers, whole, and UDP or TCP.
//!
//! [`read`] returns the fields that [`crate::Headers`] has for both sides of such a frame, as keys
//! for comparison and lookup. For any other frame [`read`] returns `None`, and the caller uses the
//! full parser. Tests and the fuzzer check that both agree.

use crate::bytes::piece;
use crate::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Fragment, Headers, Network, PROTOCOL_TCP, PROTOCOL_UDP,
};
use crate::transport::Transport;

/// One side of a packet: VLAN and MAC address ([`link`]); ethertype, protocol and port ([`kind`]);
/// the low and the high half of the IP address.
pub type Key = [u64; 4];

/// The first word of a [`Key`].
#[inline]
#[must_use]
pub const fn link(mac: [u8; 6], vlan: Option<u16>) -> u64 {
    let [a, b, c, d, e, f] = mac;
    let [g, h] = match vlan {
        Some(vlan) => vlan.to_be_bytes(),
        None => [0; 2],
    };
    u64::from_be_bytes([g, h, a, b, c, d, e, f])
}

/// The second word of a [`Key`]. Version: 4, 6, or 0 without an IP address.
#[inline]
#[must_use]
pub const fn kind(ethertype: u16, protocol: u8, version: u8, port: u16) -> u64 {
    ethertype as u64 | (protocol as u64) << 16 | (version as u64) << 24 | (port as u64) << 32
}

/// The two sides of a plain frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain {
    /// Destination.
    pub destination: Key,
    /// Source.
    pub source: Key,
}

impl Plain {
    /// Returns the same result from parsed headers, as the reference for [`read`].
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Plain> {
        let (Transport::Tcp { source: from, destination: to, .. }
        | Transport::Udp { source: from, destination: to }) = headers.transport()
        else {
            return None;
        };
        if headers.malformed.is_some() || headers.is_tagged() {
            return None;
        }
        let (version, source, destination) = match headers.network {
            Network::Ipv4(ip) if ip.fragment == Fragment::Whole && ip.l4_offset == 34 => {
                (4, u128::from(ip.source), u128::from(ip.destination))
            }
            Network::Ipv6(ip) if ip.fragment == Fragment::Whole && ip.l4_offset == 54 => {
                (6, ip.source, ip.destination)
            }
            _ => return None,
        };
        let protocol = headers.protocol()?;
        let key = |mac, port, ip: u128| {
            let kind = kind(headers.ethertype, protocol, version, port);
            [link(mac, None), kind, ip as u64, (ip >> 64) as u64]
        };
        Some(Plain {
            destination: key(headers.destination, to, destination),
            source: key(headers.source, from, source),
        })
    }

    /// Returns `true` if the destination is a group: broadcast or multicast.
    #[inline]
    #[must_use]
    pub const fn is_for_group(&self) -> bool {
        self.destination[0] >> 40 & 1 != 0
    }
}

/// Reads a number of a header, at an offset inside it.
macro_rules! number {
    ($number:ty, $header:expr, $at:literal) => {
        <$number>::from_be_bytes(piece($header, $at))
    };
}

/// Reads a frame of `len` bytes, of which `prefix` are the first. Returns `None` if the frame is
/// not plain, a header is malformed, or the prefix is too short to tell.
#[inline]
#[must_use]
pub fn read(prefix: &[u8], len: usize) -> Option<Plain> {
    let mut plain = Plain::default();
    read_into(prefix, len, &mut plain).map(|()| plain)
}

/// Reads a frame as [`read`] does, into a place of the caller's. The place has no meaning
/// afterwards if this returns `None`.
#[inline(always)]
pub fn read_into(prefix: &[u8], len: usize, plain: &mut Plain) -> Option<()> {
    let header = prefix.first_chunk::<42>()?;
    plain.destination[0] = number!(u64, header, 0) >> 16;
    plain.source[0] = number!(u64, header, 6) >> 16;
    // Ethertype, version and the length of IPv4's header, ...
    let first = number!(u64, header, 12);
    let (protocol, kind, transport, payload) = if first >> 40 == 0x08_0045 {
        // ... its total length; then fragment, time to live, protocol.
        let total = (first >> 16 & 0xffff) as usize;
        let second = number!(u64, header, 20);
        let whole = second >> 48 & 0x3fff == 0;
        if !whole || total < 20 || total + 14 > len {
            return None;
        }
        plain.source[2] = u64::from(number!(u32, header, 26));
        plain.destination[2] = u64::from(number!(u32, header, 30));
        (plain.source[3], plain.destination[3]) = (0, 0);
        let protocol = (second >> 32) as u8;
        (protocol, kind(ETHERTYPE_IPV4, protocol, 4, 0), &prefix[34..], total - 20)
    } else if first >> 44 == 0x8_6dd6 {
        let header = prefix.first_chunk::<54>()?;
        let payload = usize::from(number!(u16, header, 18));
        if payload + 54 > len || payload + 40 > 0xffff {
            return None;
        }
        plain.source[2] = number!(u64, header, 30);
        plain.source[3] = number!(u64, header, 22);
        plain.destination[2] = number!(u64, header, 46);
        plain.destination[3] = number!(u64, header, 38);
        let protocol = header[20];
        (protocol, kind(ETHERTYPE_IPV6, protocol, 6, 0), &prefix[54..], payload)
    } else {
        return None;
    };
    let ports = transport.first_chunk::<8>()?;
    match protocol {
        PROTOCOL_UDP => {
            let datagram = usize::from(number!(u16, ports, 4));
            if datagram < 8 || datagram > payload {
                return None;
            }
        }
        PROTOCOL_TCP => {
            let header_bytes = usize::from(transport.first_chunk::<20>()?[12] >> 4) * 4;
            if header_bytes < 20 || header_bytes > payload {
                return None;
            }
        }
        _ => return None,
    }
    plain.source[1] = kind | u64::from(number!(u16, ports, 0)) << 32;
    plain.destination[1] = kind | u64::from(number!(u16, ports, 2)) << 32;
    Some(())
}
