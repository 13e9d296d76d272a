//! The packet quoted in an ICMP error: a packet that could not be delivered. Its sender needs the
//! error.
//!
//! "Packet too big" and "port unreachable" come from any host on the path. So their own addresses
//! do not identify the flow, but the quoted packet does. Any host can forge one: the receiver
//! checks the quoted packet against its own traffic (RFC 5927).

use crate::bytes::{be16, piece};
use crate::extension::{Chain, is_extension};
use crate::headers::{
    Fragment, Headers, Ip, Malformed, Network, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_SCTP,
    PROTOCOL_TCP, PROTOCOL_UDP,
};
use crate::transport::Transport;

/// The quoted packet, seen from its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoted {
    /// IPv4, in an ICMP error.
    Ipv4(Quote<u32>),
    /// IPv6, in an ICMPv6 error.
    Ipv6(Quote<u128>),
}

/// The fields of a quoted packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote<Address> {
    /// Source of the quoted packet.
    pub source: Address,
    /// Destination of the quoted packet.
    pub destination: Address,
    /// The IP protocol number, in IPv6 after the extension headers.
    pub protocol: u8,
    /// The identification of the flow, if the quote contains it.
    pub flow: QuotedFlow,
}

/// The part of a quoted transport header that identifies its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotedFlow {
    /// Unknown: another protocol, a later fragment, or the quote ends before it.
    None,
    /// Source and destination port of TCP, UDP or SCTP.
    Ports(u16, u16),
    /// The identifier of an echo request.
    Echo(u16),
}

impl Headers {
    /// Returns the packet that this one quotes, if it is an ICMP error that quotes enough.
    /// `prefix`: the bytes from which these headers were parsed.
    #[must_use]
    pub fn quoted(&self, prefix: &[u8]) -> Option<Quoted> {
        let Transport::Icmp { kind, .. } = self.transport() else { return None };
        let end = prefix.len().min(self.ip_end()?);
        let quote = prefix.get(self.l4_offset()? + 8..end)?;
        match (&self.network, kind) {
            // Unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792).
            (Network::Ipv4(_), 3 | 4 | 5 | 11 | 12) => quoted4(quote).map(Quoted::Ipv4),
            // Unreachable, too big, time exceeded, parameter problem (RFC 4443).
            (Network::Ipv6(_), 1..=4) => quoted6(quote).map(Quoted::Ipv6),
            _ => None,
        }
    }

    /// Returns the headers that this packet would have as a packet of the flow that it quotes: from
    /// the quoted packet's destination to its source. The receiver of that flow is the receiver of
    /// the error. `None` if the packet is no ICMP error, or quotes too little.
    #[must_use]
    pub fn as_quoted_flow(&self, prefix: &[u8]) -> Option<Headers> {
        let network = match self.quoted(prefix)? {
            Quoted::Ipv4(quote) => Network::Ipv4(quote.reversed()),
            Quoted::Ipv6(quote) => Network::Ipv6(quote.reversed()),
        };
        Some(Headers { network, ..*self })
    }
}

impl<Address> Quote<Address> {
    /// Returns the IP header of a packet of the same flow from the quoted packet's destination.
    fn reversed(self) -> Ip<Address> {
        Ip {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            hops: 0,
            fragment: Fragment::Whole,
            total_bytes: 0,
            l4_offset: 0,
            transport: match self.flow {
                // The protocol is in the IP header.
                QuotedFlow::Ports(from, to) => Transport::Udp { source: to, destination: from },
                QuotedFlow::None | QuotedFlow::Echo(_) => Transport::None,
            },
        }
    }
}

// Routers truncate a quote at any length, so the lengths in its headers may exceed the quote.

fn quoted4(quote: &[u8]) -> Option<Quote<u32>> {
    let header = quote.first_chunk::<20>()?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || header_bytes < 20 {
        return None;
    }
    let later = be16(header[6], header[7]) & 0x1fff != 0;
    let transport = if later { &[] } else { quote.get(header_bytes..).unwrap_or_default() };
    Some(Quote {
        source: u32::from_be_bytes(piece(header, 12)),
        destination: u32::from_be_bytes(piece(header, 16)),
        protocol: header[9],
        flow: flow(transport, header[9], PROTOCOL_ICMP, 8),
    })
}

fn quoted6(quote: &[u8]) -> Option<Quote<u128>> {
    let header = quote.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let mut chain = Chain::new(header[6]);
    if is_extension(chain.protocol) {
        chain.walk(quote, quote.len());
    }
    // The truncated quote may seem to be a fragment of an impossible length, which does not matter
    // here.
    let read = matches!(chain.malformed, None | Some(Malformed::Fragment))
        && !matches!(chain.fragment, Fragment::Later { .. });
    let transport = if read { quote.get(chain.at..).unwrap_or_default() } else { &[] };
    Some(Quote {
        source: u128::from_be_bytes(piece(header, 8)),
        destination: u128::from_be_bytes(piece(header, 24)),
        protocol: chain.protocol,
        flow: flow(transport, chain.protocol, PROTOCOL_ICMPV6, 128),
    })
}

fn flow(bytes: &[u8], protocol: u8, icmp: u8, echo_request: u8) -> QuotedFlow {
    match (protocol, bytes.first_chunk::<8>()) {
        (PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_SCTP, Some(h)) => {
            QuotedFlow::Ports(be16(h[0], h[1]), be16(h[2], h[3]))
        }
        (_, Some(h)) if protocol == icmp && h[0] == echo_request => {
            QuotedFlow::Echo(be16(h[4], h[5]))
        }
        _ => QuotedFlow::None,
    }
}
