//! The metadata that AF_XDP does not carry, read from the packet itself.
//!
//! A packet that comes from this host's kernel (veth), or that the kernel merged (GRO), has a
//! partial checksum, and may be larger than the MTU. The descriptor says neither. A TCP or UDP
//! checksum field that equals the sum of the pseudo-header counts as partial. One in 65 536 full
//! checksums has that value by chance, too. To complete it then yields the same field if it was
//! right, so nothing changes but one check of the payload.

use towpath_packet::checksum::Sum;
use towpath_packet::headers::{Fragment, Headers, Network, PROTOCOL_TCP, PROTOCOL_UDP};

use crate::{
    Checksum, ETHERNET_HEADER_BYTES, Meta, Segmentation, SegmentationKind, VLAN_TAG_BYTES,
};

/// The bytes of a packet's beginning that [`meta`] needs: as many as the headers' parser.
pub(super) const BEGINNING_BYTES: usize = towpath_packet::headers::PREFIX_BYTES;

/// The offset of the checksum field in a TCP header (RFC 9293, 3.1), in bytes.
const TCP_CHECKSUM: usize = 16;
/// The offset of the checksum field in a UDP header (RFC 768), in bytes.
const UDP_CHECKSUM: usize = 6;

/// Returns the metadata of a packet of `len` bytes that begins with `beginning`. `None` for a
/// packet that is longer than `frame_bytes`, the longest frame, and not TCP with a partial
/// checksum: nothing in a UDP packet gives its segment size (UDP_SEGMENT, udp(7)).
pub(super) fn meta(beginning: &[u8], len: usize, frame_bytes: usize) -> Option<Meta> {
    let fits = || (len <= frame_bytes).then_some(Meta::FULL);
    let Ok(headers) = Headers::parse(beginning, len) else { return fits() };
    let Some((l4, protocol)) = headers.l4_offset().zip(headers.protocol()) else { return fits() };
    let field = match protocol {
        PROTOCOL_TCP => TCP_CHECKSUM,
        PROTOCOL_UDP => UDP_CHECKSUM,
        _ => return fits(),
    };
    let Some(&[high, low]) = beginning.get(l4 + field..).and_then(<[u8]>::first_chunk) else {
        return fits();
    };
    let (pseudo, kind) = match &headers.network {
        Network::Ipv4(ip) if ip.fragment == Fragment::Whole => {
            let l4_bytes = ip.total_bytes.saturating_sub(ip.l4_offset - headers.l3_offset);
            let sum = Sum::pseudo4(ip.source, ip.destination, protocol, l4_bytes);
            (sum, SegmentationKind::Tcp4)
        }
        Network::Ipv6(ip) if ip.fragment == Fragment::Whole => {
            let l4_bytes = ip.total_bytes.saturating_sub(ip.l4_offset - headers.l3_offset);
            let sum = Sum::pseudo6(ip.source, ip.destination, protocol, u32::from(l4_bytes));
            (sum, SegmentationKind::Tcp6)
        }
        _ => return fits(),
    };
    if u16::from_be_bytes([high, low]) != pseudo.folded() {
        return fits();
    }
    let checksum = Checksum::Partial { start: l4 as u16, offset: field as u16 };
    if len <= frame_bytes {
        return Some(Meta { checksum, segmentation: None });
    }
    if protocol != PROTOCOL_TCP {
        return None;
    }
    let &[offset_and_flags, flags] = beginning.get(l4 + 12..)?.first_chunk()?;
    let header_bytes = l4 + usize::from(offset_and_flags >> 4) * 4;
    // The longest frame has a VLAN tag.
    let longest =
        frame_bytes - VLAN_TAG_BYTES - ETHERNET_HEADER_BYTES + usize::from(headers.l3_offset);
    let segment_bytes = longest.checked_sub(header_bytes).filter(|bytes| *bytes > 0)?;
    let segmentation = Segmentation {
        kind,
        segment_bytes: u16::try_from(segment_bytes).ok()?,
        header_bytes: 0,
        ecn: flags & 0x80 != 0,
    };
    Some(Meta { checksum, segmentation: Some(segmentation) })
}

#[cfg(test)]
mod tests {
    use towpath_packet::build::{Flow, Tcp};

    use super::*;

    const MTU: usize = 1500;
    /// With a VLAN tag.
    const FRAME_BYTES: usize = MTU + 18;

    #[test]
    fn a_partial_checksum_is_found() {
        for flow in [Flow::v4(), Flow::v6(), Flow::v4().vlan(7)] {
            for (frame, meta_of) in
                [flow.udp_partial(&[7; 100]), flow.tcp_partial(&Tcp::default(), &[8; 99])]
            {
                let beginning = &frame[..frame.len().min(BEGINNING_BYTES)];
                assert_eq!(meta(beginning, frame.len(), FRAME_BYTES), Some(meta_of));
            }
            let full = [flow.udp(&[7; 100]), flow.tcp(&Tcp::default(), &[8; 99])];
            for frame in full {
                assert_eq!(meta(&frame, frame.len(), FRAME_BYTES), Some(Meta::FULL));
            }
        }
    }

    #[test]
    fn a_large_tcp_packet_is_segmented_and_a_large_udp_packet_is_dropped() {
        for flow in [Flow::v4(), Flow::v6()] {
            let (frame, _) = flow.tcp_large(&Tcp::default(), &[8; 9000], 1000);
            let found = meta(&frame[..BEGINNING_BYTES], frame.len(), FRAME_BYTES).unwrap();
            let segmentation = found.segmentation.unwrap();
            let headers = frame.len() - 9000;
            assert_eq!(usize::from(segmentation.segment_bytes), MTU + 14 - headers);
            let (udp, _) = flow.udp_partial(&[7; 9000]);
            assert_eq!(meta(&udp[..BEGINNING_BYTES], udp.len(), FRAME_BYTES), None);
            let full = flow.tcp(&Tcp::default(), &[8; 9000]);
            assert_eq!(meta(&full[..BEGINNING_BYTES], full.len(), FRAME_BYTES), None);
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let (frame, _) = Flow::v6().tcp_large(&Tcp::default(), &[8; 9000], 1000);
        for len in 0..BEGINNING_BYTES {
            meta(&frame[..len], len, FRAME_BYTES);
            meta(&frame[..len], 60_000, FRAME_BYTES);
        }
        assert_eq!(meta(&[1; 60], 60, FRAME_BYTES), Some(Meta::FULL));
    }
}
