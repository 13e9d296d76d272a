//! The virtio-net header in front of each packet of a TAP (`struct virtio_net_hdr`, virtio 1.2,
//! section 5.1.6; `include/uapi/linux/virtio_net.h`), in host byte order, a TAP's default.

use crate::{Checksum, Meta, Segmentation, SegmentationKind};

/// The size of the header with the field for merged receive buffers, in bytes.
pub const HEADER_BYTES: usize = 12;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;
/// VIRTIO_NET_HDR_F_DATA_VALID.
const DATA_VALID: u8 = 2;
/// VIRTIO_NET_HDR_GSO_NONE.
const GSO_NONE: u8 = 0;
/// VIRTIO_NET_HDR_GSO_TCPV4.
const GSO_TCP4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6.
const GSO_TCP6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_ECN.
const GSO_ECN: u8 = 0x80;

/// Returns the header of a packet to send.
#[must_use]
pub fn header(meta: Meta) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    match meta.checksum {
        Checksum::Full => {}
        Checksum::Verified => header[0] = DATA_VALID,
        Checksum::Partial { start, offset } => {
            header[0] = NEEDS_CHECKSUM;
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..10].copy_from_slice(&offset.to_ne_bytes());
        }
    }
    if let Some(segmentation) = meta.segmentation {
        header[1] = match segmentation.kind {
            SegmentationKind::Tcp4 => GSO_TCP4,
            SegmentationKind::Tcp6 => GSO_TCP6,
        } | if segmentation.ecn { GSO_ECN } else { 0 };
        header[2..4].copy_from_slice(&segmentation.header_bytes.to_ne_bytes());
        header[4..6].copy_from_slice(&segmentation.segment_bytes.to_ne_bytes());
    }
    header
}

/// Returns the metadata in the header of a received packet of `len` bytes. `None` for a kind of
/// segmentation that the driver did not request, for segments without length or partial checksum,
/// and for offsets outside of the packet.
#[must_use]
pub fn meta(header: [u8; HEADER_BYTES], len: usize) -> Option<Meta> {
    let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let checksum = if header[0] & NEEDS_CHECKSUM != 0 {
        let (start, offset) = (field(6), field(8));
        if usize::from(start) + usize::from(offset) + 2 > len {
            return None;
        }
        Checksum::Partial { start, offset }
    } else if header[0] & DATA_VALID != 0 {
        Checksum::Verified
    } else {
        Checksum::Full
    };
    let kind = match header[1] & !GSO_ECN {
        GSO_NONE => return Some(Meta { checksum, segmentation: None }),
        GSO_TCP4 => SegmentationKind::Tcp4,
        GSO_TCP6 => SegmentationKind::Tcp6,
        _ => return None,
    };
    let segment_bytes = field(4);
    if segment_bytes == 0 || !matches!(checksum, Checksum::Partial { .. }) {
        return None;
    }
    // The driver ignores the field for the headers' length. The kernel stores there how much of its
    // buffer was contiguous (`virtio_net_hdr_from_skb`), which may be more or less.
    let ecn = header[1] & GSO_ECN != 0;
    Some(Meta {
        checksum,
        segmentation: Some(Segmentation { kind, segment_bytes, header_bytes: 0, ecn }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let partial = Checksum::Partial { start: 34, offset: 16 };
        for kind in [SegmentationKind::Tcp4, SegmentationKind::Tcp6] {
            for ecn in [false, true] {
                let segmentation =
                    Some(Segmentation { kind, segment_bytes: 1448, header_bytes: 0, ecn });
                let large = Meta { checksum: partial, segmentation };
                assert_eq!(meta(header(large), 9000), Some(large));
            }
        }
        for checksum in [Checksum::Full, Checksum::Verified, partial] {
            let small = Meta { checksum, segmentation: None };
            assert_eq!(meta(header(small), 60), Some(small));
        }
    }

    #[test]
    fn mangled_headers_are_refused() {
        let partial =
            Meta { checksum: Checksum::Partial { start: 34, offset: 16 }, segmentation: None };
        assert_eq!(meta(header(partial), 51), None, "a checksum outside");
        let mut udp = header(partial);
        udp[1] = 5;
        assert_eq!(meta(udp, 1000), None, "a kind that the driver did not request");
        let mut nothing = header(partial);
        nothing[1] = GSO_TCP4;
        assert_eq!(meta(nothing, 1000), None, "segments of no bytes");
        nothing[0] = 0;
        nothing[4] = 1;
        assert_eq!(meta(nothing, 1000), None, "segments without a partial checksum");
    }
}
