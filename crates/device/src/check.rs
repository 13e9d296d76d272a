//! The checks that every driver makes of a packet before it accesses the parts.

use crate::{
    Capabilities, Checksum, Info, LARGE_FRAME_BYTES, Meta, Packet, Part, SpaceId, Spaces,
    longest_frame,
};

/// The limits of a device's packets.
#[derive(Clone, Copy, Debug)]
pub struct PacketLimits {
    /// The capabilities that the device offers.
    pub can: Capabilities,
    /// The longest frame, in bytes.
    pub frame_bytes: usize,
    /// The longest packet that the device will segment, in bytes.
    pub large_bytes: usize,
    /// The most parts of a packet.
    pub parts: usize,
    /// `true` if the device reaches only registered spaces.
    pub registered: bool,
    /// The space of the receive buffers, once the engine provided some.
    pub pool: Option<SpaceId>,
}

impl PacketLimits {
    /// Returns the limits that a device's properties give. `registered`: the device reaches only
    /// registered spaces.
    #[inline]
    #[must_use]
    pub fn of(info: &Info, registered: bool, pool: Option<SpaceId>) -> PacketLimits {
        PacketLimits {
            can: info.can,
            frame_bytes: longest_frame(info.mtu),
            large_bytes: LARGE_FRAME_BYTES,
            parts: info.limits.tx_packet_parts,
            registered,
            pool,
        }
    }

    /// Returns the packet's length in bytes; `None` for a packet that the device must not send:
    /// [`PacketLimits::packet_len`] says which, or the device inserts no tags and the packet has one
    /// to insert. Without its tag it would be in no VLAN.
    #[inline]
    #[must_use]
    pub fn len_of(&self, packet: &Packet<'_>) -> Option<usize> {
        if packet.tag.is_some() && !self.can.tx_tag {
            return None;
        }
        self.packet_len(packet.parts, packet.meta)
    }

    /// Returns the packet's length in bytes; `None` for a packet that the device must not send.
    /// Such a packet has no parts or too many, is empty or too long, or has metadata that the
    /// device does not offer or that names offsets outside of the packet. Or it has a part outside
    /// of the pool, although the device sends only from the pool. The drivers check later whether
    /// the parts lie inside their spaces.
    #[inline]
    #[must_use]
    pub fn packet_len(&self, parts: &[Part], meta: Meta) -> Option<usize> {
        if parts.is_empty() || parts.len() > self.parts {
            return None;
        }
        if !self.can.tx_in_place && parts.iter().any(|part| Some(part.space) != self.pool) {
            return None;
        }
        let len: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
        let longest = if meta.segmentation.is_some() { self.large_bytes } else { self.frame_bytes };
        let len = usize::try_from(len).ok().filter(|len| (1..=longest).contains(len))?;
        self.metadata_fits(len, meta).then_some(len)
    }

    /// Returns `true` if the device reaches all parts of a packet.
    #[inline]
    #[must_use]
    pub fn reaches(&self, spaces: &Spaces, parts: &[Part]) -> bool {
        !self.registered
            || parts
                .iter()
                .all(|part| spaces.device_address(part.space, part.offset, part.len).is_some())
    }

    #[inline]
    fn metadata_fits(&self, len: usize, meta: Meta) -> bool {
        if let Checksum::Partial { start, offset } = meta.checksum {
            // The checksum's two bytes lie inside.
            if !self.can.tx_checksum || usize::from(start) + usize::from(offset) + 2 > len {
                return false;
            }
        }
        meta.segmentation.is_none_or(|segmentation| {
            self.can.tx_segmentation
                && (!segmentation.ecn || self.can.tx_segmentation_ecn)
                && segmentation.segment_bytes > 0
                && usize::from(segmentation.header_bytes) <= len
                && matches!(meta.checksum, Checksum::Partial { .. })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_PARTS, Segmentation, SegmentationKind, TagProtocol, VlanTag};

    const PARTIAL: Meta =
        Meta { checksum: Checksum::Partial { start: 34, offset: 16 }, segmentation: None };

    fn limits() -> PacketLimits {
        let can = Capabilities { tx_in_place: true, tx_checksum: true, ..Default::default() };
        PacketLimits {
            can,
            frame_bytes: 1518,
            large_bytes: 65549,
            parts: MAX_PARTS,
            registered: false,
            pool: None,
        }
    }

    fn part(len: u32) -> Part {
        Part { space: SpaceId(0), offset: 0, len }
    }

    #[test]
    fn lengths() {
        let limits = limits();
        assert_eq!(limits.packet_len(&[part(1000), part(518)], Meta::FULL), Some(1518));
        assert_eq!(limits.packet_len(&[part(1000), part(519)], Meta::FULL), None);
        assert_eq!(limits.packet_len(&[part(u32::MAX); 3], Meta::FULL), None);
        assert_eq!(limits.packet_len(&[], Meta::FULL), None);
        assert_eq!(limits.packet_len(&[part(0)], Meta::FULL), None);
        assert_eq!(limits.packet_len(&[part(1); MAX_PARTS], Meta::FULL), Some(MAX_PARTS));
        assert_eq!(limits.packet_len(&[part(1); MAX_PARTS + 1], Meta::FULL), None);
    }

    #[test]
    fn metadata() {
        let mut limits = limits();
        let segmentation = Segmentation {
            kind: SegmentationKind::Tcp4,
            segment_bytes: 1460,
            header_bytes: 54,
            ecn: false,
        };
        let large = Meta { segmentation: Some(segmentation), ..PARTIAL };
        assert_eq!(limits.packet_len(&[part(52)], PARTIAL), Some(52));
        assert_eq!(limits.packet_len(&[part(51)], PARTIAL), None, "a checksum outside");
        assert_eq!(limits.packet_len(&[part(9000)], large), None, "not offered");
        limits.can.tx_segmentation = true;
        assert_eq!(limits.packet_len(&[part(9000)], large), Some(9000));
        let congested = Some(Segmentation { ecn: true, ..segmentation });
        let congested = Meta { segmentation: congested, ..large };
        assert_eq!(limits.packet_len(&[part(9000)], congested), None, "CWR not offered");
        limits.can.tx_segmentation_ecn = true;
        assert_eq!(limits.packet_len(&[part(9000)], congested), Some(9000));
        let finished = Meta { checksum: Checksum::Full, ..large };
        assert_eq!(limits.packet_len(&[part(9000)], finished), None, "a full checksum");
        limits.can.tx_checksum = false;
        assert_eq!(limits.packet_len(&[part(52)], PARTIAL), None, "not offered");
    }

    #[test]
    fn the_pool_alone() {
        let mut limits = limits();
        limits.can.tx_in_place = false;
        assert_eq!(limits.packet_len(&[part(60)], Meta::FULL), None);
        limits.pool = Some(SpaceId(0));
        assert_eq!(limits.packet_len(&[part(60)], Meta::FULL), Some(60));
    }

    #[test]
    fn a_tag_to_insert_needs_a_device_that_inserts() {
        let mut limits = limits();
        let parts = [part(60)];
        let tag = Some(VlanTag { protocol: TagProtocol::Customer, control: 7 });
        for (tx_tag, tag, len) in
            [(false, tag, None), (false, None, Some(60)), (true, tag, Some(60))]
        {
            limits.can.tx_tag = tx_tag;
            let packet = Packet { parts: &parts, meta: Meta::FULL, tag, token: 0 };
            assert_eq!(limits.len_of(&packet), len);
        }
    }
}
