//! The addresses of a frame, and the headers around InfiniBand's.

use std::net::IpAddr;

use crate::bytes::be16;
use crate::numbers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// The UDP port that RoCEv2 frames go to.
pub const UDP_PORT: u16 = 4791;

pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const IPV4_BYTES: usize = 20;
pub(super) const IPV6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;

/// The addresses of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The Ethernet source.
    pub source_mac: [u8; 6],
    /// The Ethernet destination.
    pub destination_mac: [u8; 6],
    /// The source address.
    pub source: IpAddr,
    /// The destination address, of the same family.
    pub destination: IpAddr,
    /// The UDP source port, which spreads flows over a network's links. The destination port is
    /// [`UDP_PORT`].
    pub source_port: u16,
    /// The sender understands explicit congestion notification. A frame is written with the
    /// codepoint ECT(0); what is read is any codepoint but 0.
    pub ecn: bool,
}

/// Cuts the IP packet out of an untagged Ethernet frame, without the frame's padding. `None` if it
/// is no IP packet, or not whole.
#[inline]
#[must_use]
pub fn ip_packet(frame: &[u8]) -> Option<&[u8]> {
    let (ethernet, rest) = frame.split_first_chunk::<ETHERNET_BYTES>()?;
    match (be16(ethernet[12], ethernet[13]), rest.first()? >> 4) {
        (ETHERTYPE_IPV4, 4) => {
            let header = rest.first_chunk::<IPV4_BYTES>()?;
            let total = usize::from(be16(header[2], header[3]));
            rest.get(..total).filter(|packet| packet.len() >= IPV4_BYTES)
        }
        (ETHERTYPE_IPV6, 6) => {
            let header = rest.first_chunk::<IPV6_BYTES>()?;
            rest.get(..IPV6_BYTES + usize::from(be16(header[4], header[5])))
        }
        _ => None,
    }
}
