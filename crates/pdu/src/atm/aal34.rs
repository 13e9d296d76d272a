//! The fields that AAL3/4 has in each payload.

use super::check;
use super::sizes::PAYLOAD_BYTES;

/// The bytes of a piece.
pub(super) const PIECE_BYTES: usize = 44;
/// The bytes of a PDU's header, and of its trailer.
pub(super) const END_BYTES: usize = 4;
/// A piece ends at a multiple of this.
pub(super) const ALIGNMENT: usize = 4;
/// The length in an EOM that aborts its PDU.
const ABORT: u8 = 63;

/// The position of a piece in its PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentType {
    /// COM.
    Continuation,
    /// EOM.
    End,
    /// BOM.
    Beginning,
    /// SSM: beginning and end.
    Single,
}

impl SegmentType {
    pub(super) fn of(begins: bool, ends: bool) -> SegmentType {
        match (begins, ends) {
            (false, false) => SegmentType::Continuation,
            (false, true) => SegmentType::End,
            (true, false) => SegmentType::Beginning,
            (true, true) => SegmentType::Single,
        }
    }

    pub(super) fn begins(self) -> bool {
        matches!(self, SegmentType::Beginning | SegmentType::Single)
    }

    pub(super) fn ends(self) -> bool {
        matches!(self, SegmentType::End | SegmentType::Single)
    }

    /// Returns `true` if a piece of this type can have that length.
    fn allows(self, length: u8) -> bool {
        let most = PIECE_BYTES as u8;
        match self {
            SegmentType::Continuation | SegmentType::Beginning => length == most,
            // It holds the header and the trailer.
            SegmentType::Single => length.is_multiple_of(4) && (8..=most).contains(&length),
            SegmentType::End => {
                length == ABORT || length.is_multiple_of(4) && (4..=most).contains(&length)
            }
        }
    }
}

/// The fields of a payload, but for its CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) segment_type: SegmentType,
    /// Modulo 16.
    pub(super) sequence: u8,
    pub(super) mid: u16,
    /// The bytes of the piece, or 63 in an EOM that aborts its PDU.
    pub(super) length: u8,
}

/// The reason why a payload has no usable piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// Its CRC-10 is wrong.
    Crc,
    /// Its type does not allow its length.
    Length,
}

impl Fields {
    /// Parses a payload. The piece begins at its byte 2.
    #[inline]
    pub(super) fn parse(payload: &[u8; PAYLOAD_BYTES]) -> Result<Fields, Unusable> {
        if !check::has_right_crc10(payload) {
            return Err(Unusable::Crc);
        }
        let segment_type = match payload[0] >> 6 {
            0 => SegmentType::Continuation,
            1 => SegmentType::End,
            2 => SegmentType::Beginning,
            _ => SegmentType::Single,
        };
        let fields = Fields {
            segment_type,
            sequence: payload[0] >> 2 & 0xf,
            mid: u16::from(payload[0] & 3) << 8 | u16::from(payload[1]),
            length: payload[46] >> 2,
        };
        if segment_type.allows(fields.length) { Ok(fields) } else { Err(Unusable::Length) }
    }

    /// Writes the fields and the CRC around the piece, which begins at byte 2.
    pub(super) fn write(&self, payload: &mut [u8; PAYLOAD_BYTES]) {
        let segment = match self.segment_type {
            SegmentType::Continuation => 0,
            SegmentType::End => 1,
            SegmentType::Beginning => 2,
            SegmentType::Single => 3,
        };
        payload[0] = segment << 6 | (self.sequence & 0xf) << 2 | (self.mid >> 8 & 3) as u8;
        payload[1] = self.mid as u8;
        payload[46] = self.length << 2;
        payload[47] = 0;
        let sum = check::crc10(payload);
        payload[46] |= (sum >> 8) as u8;
        payload[47] = sum as u8;
    }

    pub(super) fn aborts(&self) -> bool {
        self.segment_type == SegmentType::End && self.length == ABORT
    }
}

/// Returns the bytes of all pieces of a PDU: padded, with header and trailer.
pub(super) const fn with_ends(pdu_bytes: usize) -> usize {
    pdu_bytes.next_multiple_of(ALIGNMENT) + 2 * END_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_written() {
        let types = [(false, false), (false, true), (true, false), (true, true)];
        for segment_type in types.map(|(begins, ends)| SegmentType::of(begins, ends)) {
            for length in 0..64 {
                for (sequence, mid) in [(0, 0), (15, 1023), (9, 0x155), (6, 0x2aa)] {
                    let mut payload = [0xa5; PAYLOAD_BYTES];
                    let fields = Fields { segment_type, sequence, mid, length };
                    fields.write(&mut payload);
                    let allowed = match segment_type {
                        SegmentType::Beginning | SegmentType::Continuation => length == 44,
                        SegmentType::Single => {
                            [8, 12, 16, 20, 24, 28, 32, 36, 40, 44].contains(&length)
                        }
                        SegmentType::End => {
                            [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 63].contains(&length)
                        }
                    };
                    let expected = if allowed { Ok(fields) } else { Err(Unusable::Length) };
                    assert_eq!(Fields::parse(&payload), expected);
                    payload[20] ^= 1;
                    assert_eq!(Fields::parse(&payload), Err(Unusable::Crc));
                }
            }
        }
    }

    #[test]
    fn every_bit_is_where_the_document_says() {
        let mut payload = [0; PAYLOAD_BYTES];
        let segment_type = SegmentType::Beginning;
        Fields { segment_type, sequence: 5, mid: 0x301, length: 44 }.write(&mut payload);
        assert_eq!(payload[..2], [2 << 6 | 5 << 2 | 3, 0x01]);
        assert_eq!(payload[46] >> 2, 44);
    }
}
