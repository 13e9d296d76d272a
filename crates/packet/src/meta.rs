//! Metadata beside a frame's bytes: partial checksum and segmentation.
//!
//! The meaning is that of `struct virtio_net_hdr` (virtio 1.2, section 5.1.6), on which a TAP
//! device, a vhost-user peer and an application agree.

/// The state of a frame's TCP, UDP or ICMPv6 checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The sender wrote the checksum; no device verified it.
    #[default]
    Full,
    /// The sender wrote the checksum, and a device verified it.
    Verified,
    /// Partial: the field holds the pseudo-header's sum. The device sums everything from `start` to
    /// the end of the packet, and writes the complement of the 16-bit one's complement sum to
    /// `start + offset`.
    Partial {
        /// Start of the sum, in bytes from the Ethernet header's first byte.
        start: u16,
        /// Offset of the checksum field, in bytes from `start`.
        offset: u16,
    },
}

/// The kind of segments of a large packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP segments over IPv4.
    Tcp4,
    /// TCP segments over IPv6.
    Tcp6,
}

/// The segmentation of a packet larger than the MTU, by the device or by software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// The kind of segments.
    pub kind: SegmentationKind,
    /// Payload bytes of each segment (the TCP maximum segment size); never 0.
    pub segment_bytes: u16,
    /// Ethernet, VLAN, IP and TCP header together, in bytes; each segment repeats them. 0 if the
    /// sender states none. The segmenter reads the length from the headers, and compares a stated
    /// one.
    pub header_bytes: u16,
    /// `true` if the TCP header carries CWR, which only the first segment keeps.
    pub ecn: bool,
}

/// Metadata beside a frame's bytes. The default is a full checksum and no segmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The checksum's state.
    pub checksum: Checksum,
    /// The segmentation, if any. A packet with this always has [`Checksum::Partial`].
    pub segmentation: Option<Segmentation>,
}

impl Meta {
    /// A complete packet, whose bytes go on the wire as they are.
    pub const FULL: Meta = Meta { checksum: Checksum::Full, segmentation: None };

    /// Returns `true` if the bytes go on the wire as they are.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.segmentation.is_none() && !matches!(self.checksum, Checksum::Partial { .. })
    }

    /// Returns the metadata of the packet after a VLAN tag of `bytes` bytes is inserted. The
    /// offsets that follow the Ethernet header move.
    #[must_use]
    pub fn with_tag(mut self, bytes: u16) -> Meta {
        if let Checksum::Partial { start, .. } = &mut self.checksum {
            *start = start.saturating_add(bytes);
        }
        if let Some(Segmentation { header_bytes, .. }) = &mut self.segmentation
            && *header_bytes > 0
        {
            *header_bytes = header_bytes.saturating_add(bytes);
        }
        self
    }

    /// Returns the metadata of the same packet without a VLAN tag of `bytes` bytes in its bytes,
    /// the reverse of [`Meta::with_tag`]; `None` if an offset is smaller than the tag.
    #[must_use]
    pub fn without_tag(mut self, bytes: u16) -> Option<Meta> {
        if let Checksum::Partial { start, .. } = &mut self.checksum {
            *start = start.checked_sub(bytes)?;
        }
        if let Some(Segmentation { header_bytes, .. }) = &mut self.segmentation
            && *header_bytes > 0
        {
            *header_bytes = header_bytes.checked_sub(bytes)?;
        }
        Some(self)
    }

    /// Encodes the metadata as the two words in a buffer's headroom.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let checksum = match self.checksum {
            Checksum::Full => 0,
            Checksum::Verified => 1,
            Checksum::Partial { start, offset } => {
                2 | u64::from(start) << 16 | u64::from(offset) << 32
            }
        };
        let segmentation = match self.segmentation {
            None => 0,
            Some(s) => {
                let kind = match s.kind {
                    SegmentationKind::Tcp4 => 1,
                    SegmentationKind::Tcp6 => 2,
                };
                kind | u64::from(s.ecn) << 8
                    | u64::from(s.segment_bytes) << 16
                    | u64::from(s.header_bytes) << 32
            }
        };
        [checksum, segmentation]
    }

    /// Decodes words that [`Meta::to_words`] wrote. The words may come from a hostile peer: returns
    /// `None` for words that encode no `Meta`. The caller checks that the offsets lie inside the
    /// packet.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Option<Meta> {
        let half = |word: u64, shift: u32| (word >> shift) as u16;
        let checksum = match words[0] & 0xffff {
            0 if words[0] == 0 => Checksum::Full,
            1 if words[0] == 1 => Checksum::Verified,
            2 if words[0] >> 48 == 0 => {
                Checksum::Partial { start: half(words[0], 16), offset: half(words[0], 32) }
            }
            _ => return None,
        };
        let segmentation = if words[1] == 0 {
            None
        } else {
            let kind = match words[1] & 0xff {
                1 => SegmentationKind::Tcp4,
                2 => SegmentationKind::Tcp6,
                _ => return None,
            };
            let ecn = match (words[1] >> 8) & 0xff {
                0 => false,
                1 => true,
                _ => return None,
            };
            let segment_bytes = half(words[1], 16);
            if segment_bytes == 0
                || words[1] >> 48 != 0
                || !matches!(checksum, Checksum::Partial { .. })
            {
                return None;
            }
            Some(Segmentation { kind, segment_bytes, header_bytes: half(words[1], 32), ecn })
        };
        Some(Meta { checksum, segmentation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_round_trips() {
        let large = Meta {
            checksum: Checksum::Partial { start: 34, offset: 16 },
            segmentation: Some(Segmentation {
                kind: SegmentationKind::Tcp6,
                segment_bytes: 1440,
                header_bytes: 74,
                ecn: true,
            }),
        };
        for meta in [
            Meta::FULL,
            Meta { checksum: Checksum::Verified, segmentation: None },
            Meta { checksum: large.checksum, segmentation: None },
            large,
        ] {
            assert_eq!(Meta::from_words(meta.to_words()), Some(meta));
        }
    }

    #[test]
    fn a_tag_moves_the_offsets_behind_it() {
        let segmentation = Segmentation {
            kind: SegmentationKind::Tcp4,
            segment_bytes: 1448,
            header_bytes: 54,
            ecn: false,
        };
        let large = Meta {
            checksum: Checksum::Partial { start: 34, offset: 16 },
            segmentation: Some(segmentation),
        };
        let tagged = large.with_tag(4);
        assert_eq!(tagged.checksum, Checksum::Partial { start: 38, offset: 16 });
        assert_eq!(tagged.segmentation.map(|one| one.header_bytes), Some(58));
        assert_eq!(tagged.without_tag(4), Some(large));
        assert_eq!(Meta::FULL.with_tag(4), Meta::FULL);
        let within = Meta { checksum: Checksum::Partial { start: 3, offset: 0 }, ..Meta::FULL };
        assert_eq!(within.without_tag(4), None);
        let stated_none = Segmentation { header_bytes: 0, ..segmentation };
        let unstated = Meta { segmentation: Some(stated_none), ..large };
        assert_eq!(unstated.with_tag(4).segmentation, unstated.segmentation);
    }

    #[test]
    fn hostile_words_are_refused() {
        for words in [[3, 0], [1 << 48, 0], [0, 1], [2, 1], [2, 3 | 1 << 16], [2, 1 | 2 << 8]] {
            assert_eq!(Meta::from_words(words), None, "{words:?}");
        }
    }
}
