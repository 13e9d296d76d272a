//! Checks that a sender's offload request agrees with the packet's own headers.
//!
//! The sender is an application. Its [`Meta`] decides where a device or software writes a checksum,
//! and which bytes every segment repeats. A checksum written over the source address would undo the
//! check of that address. So the field must be the transport protocol's own; otherwise the check
//! refuses the packet.

use crate::headers::{
    Fragment, Headers, Network, PREFIX_BYTES, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
};
use crate::meta::{Checksum, Meta, Segmentation, SegmentationKind};
use crate::transport::{Transport, tcp_flags};

/// The minimum payload bytes of a segment (as Linux' `TCP_MIN_MSS`), which bounds the growth of one
/// large packet.
pub const MIN_SEGMENT_BYTES: u16 = 88;

/// The maximum number of segments of a large packet, from the network or from an application.
pub const MAX_SEGMENTS: usize = 0xffff_usize.div_ceil(MIN_SEGMENT_BYTES as usize);

/// The maximum number of segments of a packet that an application sends. Each segment costs the
/// engine a copy, so this bounds the work per packet. The largest IP packet needs 123 segments at
/// TCP's default for peers that state no size (536 bytes, RFC 9293, 3.7.1). So the limit concerns
/// only connections to peers that state less.
pub const MAX_SENT_SEGMENTS: usize = 128;

/// The reason why the check refuses an offload request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OffloadError {
    /// The headers are malformed, or longer than the examined bytes.
    #[error("headers that cannot be relied on")]
    Headers,
    /// The checksum is partial, but the packet is no whole TCP, UDP or ICMPv6 packet over IP.
    #[error("a partial checksum, but no TCP, UDP or ICMPv6 packet")]
    Protocol,
    /// The partial checksum's field is not the protocol's.
    #[error("a partial checksum in the wrong field")]
    ChecksumPlace,
    /// A large packet without a partial checksum.
    #[error("a large packet with a full checksum")]
    NotPartial,
    /// The packet is not large.
    #[error("not a large packet")]
    NotLarge,
    /// The segmentation kind names another IP version, or the packet is not TCP.
    #[error("a large packet of another protocol than its metadata says")]
    Kind,
    /// The headers have another length than the metadata says, or exceed [`PREFIX_BYTES`].
    #[error("a large packet with headers of another length than its metadata says")]
    HeaderBytes,
    /// Segments of under [`MIN_SEGMENT_BYTES`].
    #[error("segments too small")]
    SegmentBytes,
    /// A flag that segments cannot repeat: SYN, RST or URG.
    #[error("a large packet with SYN, RST or URG")]
    Flags,
    /// The large packet is longer than its IP header states: the rest would be copied for nothing.
    #[error("a large packet that is longer than its IP header states")]
    Length,
}

/// The shape of a TCP packet that is valid for segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Large {
    /// Offset of the IP header.
    pub(crate) l3: usize,
    /// Offset of the TCP header.
    pub(crate) l4: usize,
    /// Offset of the payload.
    pub(crate) payload: usize,
    /// Offset of the payload's end.
    pub(crate) end: usize,
    pub(crate) segmentation: Segmentation,
}

/// Checks a request against the headers of the packet, which has `packet_len` bytes. A large packet
/// must have exactly the length that its IP header states: the total length of IPv4 (RFC 791, 3.1),
/// the payload length of IPv6 (RFC 8200, 3). The check refuses a large packet that states a length
/// of 0, although some stacks make such packets beyond 64 KiB. A valid packet may go to a device as
/// it is, and to [`Segmenter::new`](crate::segment::Segmenter::new) or
/// [`complete`](crate::checksum::complete).
///
/// # Errors
/// If they disagree.
#[inline]
pub fn check(meta: &Meta, headers: &Headers, packet_len: usize) -> Result<(), OffloadError> {
    match (meta.checksum, meta.segmentation) {
        (Checksum::Full | Checksum::Verified, None) => Ok(()),
        (Checksum::Partial { start, offset }, None) => check_place(headers, start, offset),
        (_, Some(_)) => match check_large(meta, headers)?.end {
            end if end == packet_len => Ok(()),
            _ => Err(OffloadError::Length),
        },
    }
}

fn check_place(headers: &Headers, start: u16, offset: u16) -> Result<(), OffloadError> {
    if headers.malformed.is_some() {
        return Err(OffloadError::Headers);
    }
    let (protocol, fragment, l4, transport) = match &headers.network {
        Network::Ipv4(ip) => (ip.protocol, ip.fragment, ip.l4_offset, ip.transport),
        Network::Ipv6(ip) => (ip.protocol, ip.fragment, ip.l4_offset, ip.transport),
        Network::Arp(_) | Network::Other => return Err(OffloadError::Protocol),
    };
    // Without a known transport (ICMPv6 over IPv4, say) there is no checksum field.
    if fragment != Fragment::Whole || transport == Transport::None {
        return Err(OffloadError::Protocol);
    }
    let expected = match protocol {
        PROTOCOL_TCP => 16,
        PROTOCOL_UDP => 6,
        PROTOCOL_ICMPV6 => 2,
        _ => return Err(OffloadError::Protocol),
    };
    if (start, offset) == (l4, expected) { Ok(()) } else { Err(OffloadError::ChecksumPlace) }
}

pub(crate) fn check_large(meta: &Meta, headers: &Headers) -> Result<Large, OffloadError> {
    let segmentation = meta.segmentation.ok_or(OffloadError::NotLarge)?;
    let Checksum::Partial { start, offset } = meta.checksum else {
        return Err(OffloadError::NotPartial);
    };
    check_place(headers, start, offset)?;
    let (Transport::Tcp { flags, header_bytes, .. }, Some(end)) =
        (headers.transport(), headers.ip_end())
    else {
        return Err(OffloadError::Kind);
    };
    match (segmentation.kind, &headers.network) {
        (SegmentationKind::Tcp4, Network::Ipv4(_)) | (SegmentationKind::Tcp6, Network::Ipv6(_)) => {
        }
        _ => return Err(OffloadError::Kind),
    }
    let l4 = usize::from(start);
    let payload = l4 + usize::from(header_bytes);
    let said = usize::from(segmentation.header_bytes);
    if payload > PREFIX_BYTES || (said != 0 && said != payload) {
        return Err(OffloadError::HeaderBytes);
    }
    if segmentation.segment_bytes < MIN_SEGMENT_BYTES {
        return Err(OffloadError::SegmentBytes);
    }
    let one = end - payload <= usize::from(segmentation.segment_bytes);
    if !one && flags & (tcp_flags::SYN | tcp_flags::RST | tcp_flags::URG) != 0 {
        return Err(OffloadError::Flags);
    }
    Ok(Large { l3: usize::from(headers.l3_offset), l4, payload, end, segmentation })
}
