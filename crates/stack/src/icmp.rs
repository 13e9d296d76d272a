//! ICMP (RFC 792) and ICMPv6 (RFC 4443): echoes and errors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ip::{self, Parameter};
use crate::path;

/// The problem that an error reports, if a host uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// No socket listens on the port, or the host does not support the protocol.
    Refused,
    /// The host or network is unreachable.
    Unreachable,
    /// The packet exceeds the path's MTU; the value is that MTU, or 0 if not reported.
    TooBig(usize),
}

impl Problem {
    /// Returns `true` if an error cannot be about the packet that it quotes: the packet was no
    /// larger than the reported MTU (RFC 5927, 7.2), or that MTU is smaller than IPv6 allows
    /// (RFC 8201, 4).
    pub(crate) fn contradicts(self, quoted: &Quoted) -> bool {
        let Problem::TooBig(said) = self else { return false };
        if quoted.dst.is_ipv6() && said < path::LEAST_V6 {
            return true;
        }
        said != 0 && quoted.len <= said
    }
}

/// The packet that an error is about; this host sent it, if the error is honest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quoted {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    /// TCP's sequence number, if it is TCP.
    pub(crate) sequence: u32,
    /// The packet's full length.
    pub(crate) len: usize,
}

/// A parsed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The host echoes the same bytes.
    EchoRequest,
    /// An error about a packet of ours.
    Error(Problem, Quoted),
    /// An error that quotes no packet, too little of one, or a fragment without ports.
    Unreadable,
    /// A message that a host does not use.
    Other,
}

/// Returns the type of an answer to an echo request.
pub(crate) fn echo_reply(of: IpAddr) -> u8 {
    if of.is_ipv4() { 0 } else { 129 }
}

/// Returns `true` if a message of this type is an error: a host never answers an error with
/// another.
pub(crate) fn is_error(of: IpAddr, kind: u8) -> bool {
    // No host answers a redirect either (RFC 4443, 2.4).
    if of.is_ipv4() { matches!(kind, 3 | 4 | 5 | 11 | 12) } else { kind < 128 || kind == 137 }
}

/// Parses a message of at least eight bytes.
pub(crate) fn parse(of: IpAddr, message: &[u8]) -> Message {
    let (kind, code) = (message[0], message[1]);
    let problem = match (of, kind, code) {
        (IpAddr::V4(_), 8, _) | (IpAddr::V6(_), 128, _) => return Message::EchoRequest,
        (IpAddr::V4(_), 3, 2 | 3) | (IpAddr::V6(_), 1, 4) => Problem::Refused,
        (IpAddr::V4(_), 3, 4) => {
            Problem::TooBig(usize::from(u16::from_be_bytes([message[6], message[7]])))
        }
        (IpAddr::V6(_), 2, _) => {
            let mtu = u32::from_be_bytes([message[4], message[5], message[6], message[7]]);
            Problem::TooBig(mtu.min(65_535) as usize)
        }
        (IpAddr::V4(_), 3, _) | (IpAddr::V6(_), 1, _) => Problem::Unreachable,
        _ => return Message::Other,
    };
    quoted(of, &message[8..]).map_or(Message::Unreadable, |quoted| Message::Error(problem, quoted))
}

/// Parses the start of a quoted packet: addresses, ports, sequence number. Of its fragments only
/// the first has ports.
fn quoted(of: IpAddr, bytes: &[u8]) -> Option<Quoted> {
    let array4 = |at: usize| bytes.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
    let array16 = |at: usize| bytes.get(at..at + 16).and_then(|b| <[u8; 16]>::try_from(b).ok());
    let (src, dst, protocol, transport, len): (IpAddr, IpAddr, _, _, _) = if of.is_ipv4() {
        let first = *bytes.first()?;
        let header = usize::from(first & 15) * 4;
        if first >> 4 != 4 || header < 20 {
            return None;
        }
        let (src, dst) = (Ipv4Addr::from(array4(12)?), Ipv4Addr::from(array4(16)?));
        let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if u16::from_be_bytes([bytes[6], bytes[7]]) & 0x1fff != 0 {
            return None;
        }
        (src.into(), dst.into(), bytes[9], header, len)
    } else {
        if bytes.first()? >> 4 != 6 {
            return None;
        }
        let (src, dst) = (Ipv6Addr::from(array16(8)?), Ipv6Addr::from(array16(24)?));
        let len = usize::from(u16::from_be_bytes([bytes[4], bytes[5]])) + 40;
        // Of our own packets only fragments have an extension header.
        let (protocol, at) = if bytes[6] == 44 {
            let [protocol, _, offset, low] = array4(40)?;
            if u16::from_be_bytes([offset, low]) >> 3 != 0 {
                return None;
            }
            (protocol, 48)
        } else {
            (bytes[6], 40)
        };
        (src.into(), dst.into(), protocol, at, len)
    };
    let [a, b, c, d] = array4(transport)?;
    let sequence = array4(transport + 4)?;
    Some(Quoted {
        src,
        dst,
        protocol,
        src_port: u16::from_be_bytes([a, b]),
        dst_port: u16::from_be_bytes([c, d]),
        sequence: u32::from_be_bytes(sequence),
        len,
    })
}

/// An error that this host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// No socket listens on the port.
    Port,
    /// The host does not support the protocol; the value is the offset of its number in the packet
    /// (IPv6).
    Protocol(usize),
    /// A wrong header field (Parameter Problem).
    Parameter(Parameter),
}

impl Report {
    /// Returns the first eight bytes of the message, without its checksum.
    pub(crate) fn head(self, of: IpAddr) -> [u8; 8] {
        let (kind, code, pointer) = match (self, of) {
            (Report::Port, IpAddr::V4(_)) => (3, 3, 0),
            (Report::Port, IpAddr::V6(_)) => (1, 4, 0),
            (Report::Protocol(_), IpAddr::V4(_)) => (3, 2, 0),
            (Report::Protocol(at), IpAddr::V6(_)) => (4, ip::UNKNOWN_PROTOCOL, at as u32),
            // Over IPv4 one byte holds the pointer (RFC 792).
            (Report::Parameter(parameter), IpAddr::V4(_)) => {
                (12, parameter.code, (parameter.at as u32) << 24)
            }
            (Report::Parameter(parameter), IpAddr::V6(_)) => {
                (4, parameter.code, parameter.at as u32)
            }
        };
        let [a, b, c, d] = u32::to_be_bytes(pointer);
        [kind, code, 0, 0, a, b, c, d]
    }
}

/// Returns how many bytes of the packet an error may quote (RFC 1812, 4.3.2.3; RFC 4443, 2.4).
pub(crate) fn quote_bytes(of: IpAddr) -> usize {
    if of.is_ipv4() { 576 - 20 - 8 } else { 1280 - 40 - 8 }
}

/// Returns the protocol number of ICMP for this address family.
pub(crate) fn protocol(of: IpAddr) -> u8 {
    if of.is_ipv4() { ip::ICMP } else { ip::ICMPV6 }
}
