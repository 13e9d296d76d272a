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
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # let cells = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9).cells(b"hello");
    /// # let cells: Vec<_> = cells.collect();
    /// # let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cells[0]) else { panic!() };
    /// assert_eq!(pdu.circuit(), Circuit { vpi: 0, vci: 100 });
    /// ```
    #[must_use]
    pub fn circuit(&self) -> Circuit {
        self.described.circuit
    }

    /// Returns the multiplexing identifier; 0 with AAL5.
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// reassembler.open(circuit, Adaptation::Aal34).unwrap();
    /// for cell in Segmenter::aal34(circuit, 12, 0, 5).unwrap().cells(b"hello") {
    ///     if let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cell) {
    ///         assert_eq!(pdu.mid(), 12);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn mid(&self) -> u16 {
        self.described.mid
    }

    /// Returns the byte from user to user of AAL5; 0 with AAL3/4.
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # let cells = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9).cells(b"hello");
    /// # let cells: Vec<_> = cells.collect();
    /// # let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cells[0]) else { panic!() };
    /// // What the sender set by `Segmenter::user_to_user`.
    /// assert_eq!(pdu.user_to_user(), 9);
    /// ```
    #[must_use]
    pub fn user_to_user(&self) -> u8 {
        self.described.user_to_user
    }

    /// Returns `true` if a switch on the way of its last cell was congested.
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # let cells = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9).cells(b"hello");
    /// # let cells: Vec<_> = cells.collect();
    /// # let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cells[0]) else { panic!() };
    /// if pdu.is_congested() {
    ///     println!("ask the sender of {:?} to send more slowly", pdu.circuit());
    /// }
    /// # assert!(!pdu.is_congested());
    /// ```
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.described.is_congested
    }

    /// Returns the number of bytes.
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # let cells = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9).cells(b"hello");
    /// # let cells: Vec<_> = cells.collect();
    /// # let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cells[0]) else { panic!() };
    /// let mut memory = vec![0; pdu.len()];
    /// pdu.copy_to(&mut memory);
    /// assert_eq!(memory, b"hello");
    /// ```
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a PDU in cells has at least one byte")]
    pub fn len(&self) -> usize {
        self.described.len
    }

    /// Returns the bytes in pieces of at most 48.
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # let cells = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9).cells(b"hello");
    /// # let cells: Vec<_> = cells.collect();
    /// # let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cells[0]) else { panic!() };
    /// // Without a copy of the whole PDU.
    /// let ones: u32 = pdu.chunks().flatten().map(|byte| byte.count_ones()).sum();
    /// assert_eq!(ones, 21);
    /// ```
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
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # let cells = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9).cells(b"hello");
    /// # let cells: Vec<_> = cells.collect();
    /// # let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cells[0]) else { panic!() };
    /// let mut memory = [0; 65_535];
    /// pdu.copy_to(&mut memory);
    /// assert_eq!(&memory[..pdu.len()], b"hello");
    /// ```
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
    ///
    /// ```
    /// # use std::time::Instant;
    /// # use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # let cells = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9).cells(b"hello");
    /// # let cells: Vec<_> = cells.collect();
    /// # let Ok(Accepted::Complete(pdu)) = reassembler.accept(Instant::now(), &cells[0]) else { panic!() };
    /// assert_eq!(pdu.to_vec(), b"hello");
    /// ```
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
