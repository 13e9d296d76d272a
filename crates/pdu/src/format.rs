//! A fragment's header on the wire, as `docs/pdu.md` describes it.

use towpath_client::MacAddr;

/// Local experimental ethertype 1 (IEEE Std 802, 9.2.4).
pub const ETHERTYPE: u16 = 0x88b5;
/// The version of the format.
pub const VERSION: u8 = 1;
/// Bytes of the header, after the Ethernet header.
pub const HEADER_BYTES: usize = 28;
/// Bytes of a fragment's frame before its part of the PDU: Ethernet header and header.
pub const OVERHEAD_BYTES: usize = ETHERNET_BYTES + HEADER_BYTES;
/// The longest PDU, in bytes: 64 KiB.
pub const MAX_PDU_BYTES: usize = 65_536;

const ETHERNET_BYTES: usize = 14;
/// Offset of the header check, which covers all bytes before it.
const CHECK: usize = 38;

/// The fields of a fragment's Ethernet header and of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Destination MAC address.
    pub destination: MacAddr,
    /// Source MAC address; never a group address.
    pub source: MacAddr,
    /// The channel, as the VCI and MID of ATM. Any number.
    pub channel: u32,
    /// The PDU's number, which its sender chooses.
    pub id: u32,
    /// Length of the PDU, in bytes: 0 to 65 536.
    pub total: u32,
    /// Where this fragment's part begins in the PDU, in bytes.
    pub offset: u32,
    /// Length of this fragment's part, in bytes; 0 only for an empty PDU.
    pub len: u16,
    /// CRC-32C (RFC 9260, appendix A) of the PDU's bytes; the same in all its fragments.
    pub crc: u32,
}

/// The reason why a frame is not a valid fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The frame is shorter than the headers.
    #[error("shorter than its headers")]
    Short,
    /// Another ethertype.
    #[error("another ethertype than 0x88b5")]
    Ethertype,
    /// Another version of the format.
    #[error("another version than 1")]
    Version,
    /// The header check is wrong: the headers were damaged or forged.
    #[error("the header check is wrong")]
    Check,
    /// Flags that this version does not know.
    #[error("flags that must be zero")]
    Flags,
    /// The source is a group address, which no sender has.
    #[error("from a group address")]
    Source,
    /// The lengths contradict each other: beyond the PDU, over 64 KiB, or an empty part.
    #[error("lengths that contradict each other")]
    Lengths,
    /// The frame ends before the fragment does.
    #[error("the frame ends before the fragment does")]
    Truncated,
}

impl Fragment {
    /// Parses the headers at the beginning of a frame of `frame_bytes` bytes. The bytes after the
    /// fragment are padding, which it ignores.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let frame = frame(1, 0, b"hello");
    /// let fragment = Fragment::parse(frame.first_chunk().unwrap(), frame.len()).unwrap();
    /// assert_eq!((fragment.channel, fragment.total), (7, 5));
    /// // A frame that has lost its end is refused.
    /// assert!(Fragment::parse(frame.first_chunk().unwrap(), frame.len() - 1).is_err());
    /// ```
    ///
    /// # Errors
    /// The first check that failed. No field of the frame can be trusted then.
    #[inline]
    pub fn parse(
        headers: &[u8; OVERHEAD_BYTES],
        frame_bytes: usize,
    ) -> Result<Fragment, Malformed> {
        let word = |at: usize| {
            u32::from_be_bytes([headers[at], headers[at + 1], headers[at + 2], headers[at + 3]])
        };
        if headers[12..14] != ETHERTYPE.to_be_bytes() {
            return Err(Malformed::Ethertype);
        }
        // Before the header check, which another version may keep elsewhere.
        if headers[14] != VERSION {
            return Err(Malformed::Version);
        }
        if word(CHECK) != crc32c::crc32c(&headers[..CHECK]) {
            return Err(Malformed::Check);
        }
        if headers[15] != 0 {
            return Err(Malformed::Flags);
        }
        let mac =
            |at: usize| headers[at..].first_chunk().copied().map(MacAddr::new).unwrap_or_default();
        let fragment = Fragment {
            destination: mac(0),
            source: mac(6),
            channel: word(18),
            id: word(22),
            total: word(26),
            offset: word(30),
            len: u16::from_be_bytes([headers[16], headers[17]]),
            crc: word(34),
        };
        if fragment.source.is_multicast() {
            return Err(Malformed::Source);
        }
        let len = u32::from(fragment.len);
        // In this order: no sum can overflow.
        if fragment.total > MAX_PDU_BYTES as u32
            || fragment.offset > fragment.total
            || len > fragment.total - fragment.offset
            || (len == 0) != (fragment.total == 0)
        {
            return Err(Malformed::Lengths);
        }
        if OVERHEAD_BYTES + fragment.len as usize > frame_bytes {
            return Err(Malformed::Truncated);
        }
        Ok(fragment)
    }

    /// Writes the headers, including the header check.
    ///
    /// ```
    /// # use towpath_pdu::{Fragment, OVERHEAD_BYTES};
    /// let fragment = Fragment {
    ///     destination: [2, 0, 0, 0, 0, 1].into(),
    ///     source: [2, 0, 0, 0, 0, 2].into(),
    ///     channel: 7,
    ///     id: 1,
    ///     total: 5,
    ///     offset: 0,
    ///     len: 5,
    ///     // The CRC-32C of "hello".
    ///     crc: 0x9a71_bb4c,
    /// };
    /// let mut headers = [0; OVERHEAD_BYTES];
    /// fragment.write(&mut headers);
    /// let frame = [&headers[..], b"hello"].concat();
    /// ```
    pub fn write(&self, headers: &mut [u8; OVERHEAD_BYTES]) {
        headers[..6].copy_from_slice(&self.destination.octets());
        headers[6..12].copy_from_slice(&self.source.octets());
        headers[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        headers[14] = VERSION;
        headers[15] = 0;
        headers[16..18].copy_from_slice(&self.len.to_be_bytes());
        let words = [self.channel, self.id, self.total, self.offset, self.crc];
        for (place, word) in words.into_iter().enumerate() {
            headers[18 + place * 4..22 + place * 4].copy_from_slice(&word.to_be_bytes());
        }
        let check = crc32c::crc32c(&headers[..CHECK]);
        headers[CHECK..].copy_from_slice(&check.to_be_bytes());
    }

    /// Returns `true` if the fragment is all of its PDU.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let frame = frame(1, 0, b"hel");
    /// let fragment = Fragment::parse(frame.first_chunk().unwrap(), frame.len()).unwrap();
    /// // Three of five bytes.
    /// assert!(!fragment.is_whole());
    /// ```
    #[must_use]
    pub fn is_whole(&self) -> bool {
        u32::from(self.len) == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates any valid fragment.
    fn fragment() -> impl Strategy<Value = Fragment> {
        let lengths = (0..=MAX_PDU_BYTES as u32).prop_flat_map(|total| {
            (Just(total), 0..total.max(1)).prop_flat_map(|(total, offset)| {
                let most = (total - offset).min(u32::from(u16::MAX));
                (Just(total), Just(offset), total.min(1)..=most)
            })
        });
        (any::<[u8; 6]>(), any::<[u8; 6]>(), any::<[u32; 3]>(), lengths).prop_map(
            |(destination, mut source, [channel, id, crc], (total, offset, len))| {
                source[0] &= 0xfe;
                let len = len as u16;
                let (destination, source) = (destination.into(), source.into());
                Fragment { destination, source, channel, id, total, offset, len, crc }
            },
        )
    }

    fn written(fragment: &Fragment) -> [u8; OVERHEAD_BYTES] {
        let mut headers = [0xee; OVERHEAD_BYTES];
        fragment.write(&mut headers);
        headers
    }

    proptest! {
        #[test]
        fn encoded_values_decode_unchanged(fragment in fragment(), padding in 0_usize..100) {
            let frame_bytes = OVERHEAD_BYTES + fragment.len as usize;
            let headers = written(&fragment);
            prop_assert_eq!(Fragment::parse(&headers, frame_bytes + padding), Ok(fragment));
            prop_assert_eq!(
                Fragment::parse(&headers, frame_bytes - 1), Err(Malformed::Truncated)
            );
        }

        #[test]
        fn any_one_bit_is_noticed(fragment in fragment(), bit in 0..OVERHEAD_BYTES * 8) {
            let mut headers = written(&fragment);
            headers[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                12 | 13 => Malformed::Ethertype,
                14 => Malformed::Version,
                _ => Malformed::Check,
            };
            prop_assert_eq!(Fragment::parse(&headers, usize::MAX), Err(expected));
        }

        #[test]
        fn every_parsed_fragment_is_in_bounds(
            mut headers in prop::collection::vec(any::<u8>(), OVERHEAD_BYTES),
            len: usize,
        ) {
            headers[12..16].copy_from_slice(&[0x88, 0xb5, 1, 0]);
            let check = crc32c::crc32c(&headers[..CHECK]);
            headers[CHECK..].copy_from_slice(&check.to_be_bytes());
            let headers: [u8; OVERHEAD_BYTES] = headers.try_into().unwrap();
            if let Ok(read) = Fragment::parse(&headers, len) {
                prop_assert!(read.total as usize <= MAX_PDU_BYTES);
                prop_assert!(u64::from(read.offset) + u64::from(read.len) <= u64::from(read.total));
                prop_assert!(read.len as usize + OVERHEAD_BYTES <= len);
                prop_assert_eq!(written(&read), headers);
            }
        }
    }

    #[test]
    fn every_byte_is_where_the_document_says() {
        let fragment = Fragment {
            destination: [1, 2, 3, 4, 5, 6].into(),
            source: [0x10, 0x12, 0x13, 0x14, 0x15, 0x16].into(),
            channel: 0x2122_2324,
            id: 0x3132_3334,
            total: 0x0001_0000,
            offset: 0x0000_5152,
            len: 0x6162,
            crc: 0x7172_7374,
        };
        let headers = written(&fragment);
        #[rustfmt::skip]
        let expected = [
            1, 2, 3, 4, 5, 6, 0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x88, 0xb5,
            1, 0, 0x61, 0x62, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34,
            0, 1, 0, 0, 0, 0, 0x51, 0x52, 0x71, 0x72, 0x73, 0x74,
        ];
        assert_eq!(headers[..CHECK], expected);
        // Bit by bit: CRC-32C is reflected, of polynomial 0x1edc6f41, with initial value and final
        // xor of all ones.
        let mut crc = !0_u32;
        for byte in expected {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
            }
        }
        assert_eq!(headers[CHECK..], (!crc).to_be_bytes());
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let good = Fragment {
            destination: [2; 6].into(),
            source: [4; 6].into(),
            channel: 0,
            id: 0,
            total: 100,
            offset: 50,
            len: 50,
            crc: 0,
        };
        let read = |fragment: Fragment| Fragment::parse(&written(&fragment), usize::MAX);
        assert_eq!(read(good), Ok(good));
        for (total, offset, len) in [
            (100, 51, 50),
            (100, 100, 0),
            (100, 0, 0),
            (0, 0, 1),
            (0, 1, 0),
            (65_537, 0, 100),
            (u32::MAX, u32::MAX, 1),
            (u32::MAX, 0, u16::MAX),
            (100, u32::MAX, 100),
            (100, u32::MAX - 49, 50),
        ] {
            let bad = Fragment { total, offset, len, ..good };
            assert_eq!(read(bad), Err(Malformed::Lengths), "{bad:?}");
        }
        assert_eq!(read(Fragment { source: [1; 6].into(), ..good }), Err(Malformed::Source));
        let mut flags = written(&good);
        flags[15] = 1;
        let check = crc32c::crc32c(&flags[..CHECK]);
        flags[CHECK..].copy_from_slice(&check.to_be_bytes());
        assert_eq!(Fragment::parse(&flags, usize::MAX), Err(Malformed::Flags));
    }
}
