//! An incomplete PDU, and the checks of AAL3/4 pieces against its header and trailer.

use super::dropped::Dropped;
use crate::atm::aal34::{self, END_BYTES, Fields};
use crate::atm::cell_pool::Chain;
use crate::atm::check::Crc32;
use crate::atm::limits::Limits;

/// An incomplete PDU.
#[derive(Debug, Default)]
pub(super) struct Partial {
    pub(super) payloads: Chain,
    /// AAL5: the CRC of the payloads.
    pub(super) crc: Crc32,
    /// AAL3/4: the bytes of the pieces, with the PDU's header and trailer.
    pub(super) bytes: usize,
    /// AAL3/4: the tag of the header.
    pub(super) tag: u8,
    /// AAL3/4: the BASize of the header.
    pub(super) buffer_size: u16,
    /// AAL3/4: the sequence number of the next cell.
    pub(super) sequence: u8,
}

/// Checks a piece against its PDU's header and the pieces before, and notes what it says.
pub(super) fn check_piece(
    partial: &mut Partial,
    fields: &Fields,
    piece: &[u8],
    limits: Limits,
) -> Result<(), Dropped> {
    if fields.aborts() {
        return Err(Dropped::Aborted);
    }
    if !fields.segment_type.begins() && fields.sequence != partial.sequence {
        return Err(Dropped::OutOfSequence);
    }
    if fields.segment_type.begins() {
        let [cpi, tag, high, low] =
            *piece.first_chunk::<END_BYTES>().expect("a first piece has 8 bytes");
        partial.tag = tag;
        partial.buffer_size = u16::from_be_bytes([high, low]);
        if cpi != 0 {
            return Err(Dropped::Malformed);
        }
        if usize::from(partial.buffer_size) > limits.pdu_bytes {
            return Err(Dropped::TooLong);
        }
    }
    partial.sequence = (fields.sequence + 1) & 0xf;
    partial.bytes += piece.len();
    if partial.bytes > aal34::with_ends(partial.buffer_size.into()) {
        return Err(Dropped::Malformed);
    }
    Ok(())
}

/// Checks the trailer at the end of the last piece, and returns the length of the PDU.
pub(super) fn check_end(partial: &Partial, piece: &[u8]) -> Result<usize, Dropped> {
    let [alignment, tag, high, low] =
        *piece.last_chunk::<END_BYTES>().expect("a last piece has 4 bytes");
    let len = u16::from_be_bytes([high, low]);
    if alignment != 0
        || tag != partial.tag
        || len == 0
        || len > partial.buffer_size
        || aal34::with_ends(len.into()) != partial.bytes
    {
        return Err(Dropped::Malformed);
    }
    Ok(len.into())
}
