//! A reassembled PDU.

use std::fmt;

use super::cell_pool::{CellPool, Chain};
use super::circuit::Circuit;
use super::sizes::PAYLOAD_BYTES;

/// The fields of a complete PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PduFields {
    pub(super) circuit: Circuit,
    pub(super) mid: u16,
    pub(super) user_to_user: u8,
    pub(super) is_congested: bool,
    pub(super) len: usize,
    /// Bytes of each payload that belong to the PDU, its header or its trailer.
    pub(super) piece_bytes: usize,
    /// Bytes of the PDU's header, before its data.
    pub(super) header_bytes: usize,
}

/// A complete PDU, whose bytes lie in the payloads of its cells. The receiver reuses that memory for
/// the next cell.
#[derive(Clone, Copy)]
pub struct Pdu<'a> {
    described: PduFields,
    chain: &'a Chain,
    pool: &'a CellPool,
}

impl<'a> Pdu<'a> {
    pub(super) fn new(described: PduFields, chain: &'a Chain, pool: &'a CellPool) -> Pdu<'a> {
        Pdu { described, chain, pool }
    }

    /// Returns the circuit.
    #[must_use]
    pub fn circuit(&self) -> Circuit {
        self.described.circuit
    }

    /// Returns the multiplexing identifier; 0 with AAL5.
    #[must_use]
    pub fn mid(&self) -> u16 {
        self.described.mid
    }

    /// Returns the byte from user to user of AAL5; 0 with AAL3/4.
    #[must_use]
    pub fn user_to_user(&self) -> u8 {
        self.described.user_to_user
    }

    /// Returns `true` if a switch on the way of its last cell was congested.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.described.is_congested
    }

    /// Returns the number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a PDU in cells has at least one byte")]
    pub fn len(&self) -> usize {
        self.described.len
    }

    /// Returns the bytes in pieces of at most 48.
    pub fn chunks(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let PduFields { len, piece_bytes, header_bytes, .. } = self.described;
        debug_assert!(piece_bytes <= PAYLOAD_BYTES);
        self.pool.payloads(self.chain).enumerate().map_while(move |(number, payload)| {
            let start = number * piece_bytes;
            // The part of header_bytes..header_bytes + len that is in this piece.
            let from = header_bytes.max(start);
            let to = (header_bytes + len).min(start + piece_bytes);
            (from < to).then(|| &payload[from - start..to - start])
        })
    }

    /// Copies the PDU to the beginning of a slice, which must be at least as long.
    ///
    /// # Panics
    /// If the slice is shorter than the PDU.
    pub fn copy_to(&self, mut to: &mut [u8]) {
        assert!(to.len() >= self.len(), "the slice is shorter than the PDU");
        for chunk in self.chunks() {
            let (here, rest) = to.split_at_mut(chunk.len());
            here.copy_from_slice(chunk);
            to = rest;
        }
    }

    /// Returns a copy of the PDU.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        self.copy_to(&mut copy);
        copy
    }
}

impl fmt::Debug for Pdu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pdu").field(&self.described).finish()
    }
}
