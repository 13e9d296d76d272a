//! The headers of a received packet, and its flow.

use towpath_packet::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Headers, Malformed, PREFIX_BYTES, PROTOCOL_UDP,
};
use towpath_packet::plain::{self, Plain};
use towpath_packet::roce::UDP_PORT;

use crate::demux::{Destination, Direction, FlowTable};
use crate::source::Source;

/// The engine reads headers from a copy of this many bytes first, and of 256 where they are longer.
pub(super) const FIRST_READ_BYTES: usize = 128;

/// `true` if a packet is for connections with other hosts.
#[inline(always)]
pub(super) fn is_rdma(plain: &Plain) -> bool {
    const IPV4: u64 = plain::kind(ETHERTYPE_IPV4, PROTOCOL_UDP, 4, UDP_PORT);
    const IPV6: u64 = plain::kind(ETHERTYPE_IPV6, PROTOCOL_UDP, 6, UDP_PORT);
    matches!(plain.destination[1], IPV4 | IPV6)
}

/// Returns the endpoint of a packet that is to no group, whose first bytes are `beginning`.
#[inline(always)]
pub(super) fn flow_of(
    headers: &Headers,
    beginning: &[u8],
    flows: &mut FlowTable,
) -> Option<Destination> {
    flows.lookup(Direction::Received, headers).or_else(|| {
        // An ICMP error goes to the flow that it is about.
        flows.lookup(Direction::Received, &headers.as_quoted_flow(beginning)?)
    })
}

/// Copies the beginning of a packet and reads its headers there. Returns the number of bytes copied, and the headers
/// unless they are malformed; `None` if the packet is not in the pool.
#[inline(always)]
pub(super) fn read_headers(
    source: &Source<'_>,
    prefix: &mut [u8; PREFIX_BYTES],
) -> Option<(usize, Option<Headers>)> {
    let len = source.len();
    let mut read = len.min(FIRST_READ_BYTES);
    if !source.copy_beginning(&mut prefix[..read]) {
        return None;
    }
    let mut headers = Headers::parse(&prefix[..read], len);
    if let Ok(first) = &headers
        && first.malformed == Some(Malformed::BeyondPrefix)
    {
        read = len.min(PREFIX_BYTES);
        if source.copy_beginning(&mut prefix[..read]) {
            headers = Headers::parse(&prefix[..read], len);
        }
    }
    Some((read, headers.ok().filter(|headers| headers.malformed.is_none())))
}
