//! Segmentation of a PDU into cells.

use super::aal34::{self, END_BYTES, Fields, PIECE_BYTES, SegmentType};
use super::cell::{Cell, CellHeader};
use super::check::Crc32;
use super::circuit::Circuit;
use super::sizes::{CELL_BYTES, HEADER_BYTES, MAX_MID, MAX_PDU_BYTES, PAYLOAD_BYTES};

/// The bytes of AAL5's trailer.
pub(super) const AAL5_TRAILER_BYTES: usize = 8;

/// The reason why a PDU cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The length is 0, which would abort the PDU, or more than 65 535.
    #[error("a PDU of {0} bytes: it needs 1 to {MAX_PDU_BYTES}")]
    Length(usize),
    /// The VCI is reserved.
    #[error("VCI {} is reserved; the lowest is 32", .0.vci)]
    Reserved(Circuit),
    /// The multiplexing identifier has more than 10 bits.
    #[error("MID {0}: the highest is {MAX_MID}")]
    Mid(u16),
}

/// The fields of the adaptation layer.
#[derive(Clone, Copy, Debug)]
enum LayerFields {
    Aal5 { user_to_user: u8, crc: Crc32 },
    Aal34 { mid: u16, tag: u8, sequence: u8 },
}

/// Segments one PDU. It keeps no bytes of the PDU: it asks for those of each cell.
#[derive(Clone, Debug)]
pub struct Segmenter {
    circuit: Circuit,
    low_priority: bool,
    layer: LayerFields,
    pdu_bytes: usize,
    /// The number of the next cell.
    next: usize,
    cells: usize,
}

impl Segmenter {
    /// Begins a PDU of that many bytes with AAL5.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// // 100 bytes, and 8 of the trailer, in payloads of 48 bytes.
    /// let segmenter = Segmenter::aal5(circuit, 100).unwrap();
    /// assert_eq!(segmenter.cells(&[7; 100]).len(), 3);
    /// // A PDU has at least one byte.
    /// assert!(Segmenter::aal5(circuit, 0).is_err());
    /// ```
    ///
    /// # Errors
    /// The length is not 1 to 65 535, or the VCI is reserved.
    pub fn aal5(circuit: Circuit, pdu_bytes: usize) -> Result<Segmenter, SegmentError> {
        let layer = LayerFields::Aal5 { user_to_user: 0, crc: Crc32::default() };
        Segmenter::new(circuit, layer, pdu_bytes, aal5_cells(pdu_bytes))
    }

    /// Begins a PDU of that many bytes with AAL3/4. The tag should differ from that of the previous
    /// PDU of this circuit and MID. Otherwise the receiver may join the beginning of one PDU to the
    /// end of another.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// // Two PDUs of one circuit, whose cells may alternate.
    /// let mut first = Segmenter::aal34(circuit, 1, 0, 100).unwrap().cells(&[1; 100]);
    /// let mut second = Segmenter::aal34(circuit, 2, 0, 100).unwrap().cells(&[2; 100]);
    /// let cells = [first.next().unwrap(), second.next().unwrap(), first.next().unwrap()];
    /// assert_eq!(cells.map(|cell| CellHeader::parse(&cell).unwrap().circuit), [circuit; 3]);
    /// ```
    ///
    /// # Errors
    /// The length is not 1 to 65 535, the VCI is reserved, or the MID is over 1 023.
    pub fn aal34(
        circuit: Circuit,
        mid: u16,
        tag: u8,
        pdu_bytes: usize,
    ) -> Result<Segmenter, SegmentError> {
        if mid > MAX_MID {
            return Err(SegmentError::Mid(mid));
        }
        let layer = LayerFields::Aal34 { mid, tag, sequence: 0 };
        let cells = aal34::with_ends(pdu_bytes.min(MAX_PDU_BYTES)).div_ceil(PIECE_BYTES);
        Segmenter::new(circuit, layer, pdu_bytes, cells)
    }

    fn new(
        circuit: Circuit,
        layer: LayerFields,
        pdu_bytes: usize,
        cells: usize,
    ) -> Result<Segmenter, SegmentError> {
        if !(1..=MAX_PDU_BYTES).contains(&pdu_bytes) {
            return Err(SegmentError::Length(pdu_bytes));
        }
        if circuit.is_reserved() {
            return Err(SegmentError::Reserved(circuit));
        }
        Ok(Segmenter { circuit, low_priority: false, layer, pdu_bytes, next: 0, cells })
    }

    /// Sets AAL5's byte from user to user. AAL3/4 has none, and ignores it.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// let segmenter = Segmenter::aal5(circuit, 5).unwrap().user_to_user(9);
    /// let cell = segmenter.cells(b"hello").next().unwrap();
    /// // The first byte of the trailer of 8 bytes.
    /// assert_eq!(cell[45], 9);
    /// ```
    #[must_use]
    pub fn user_to_user(mut self, value: u8) -> Segmenter {
        if let LayerFields::Aal5 { user_to_user, .. } = &mut self.layer {
            *user_to_user = value;
        }
        self
    }

    /// Lets the network discard the cells first (CLP).
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// let segmenter = Segmenter::aal5(circuit, 5).unwrap().low_priority();
    /// let cell = segmenter.cells(b"hello").next().unwrap();
    /// assert!(CellHeader::parse(&cell).unwrap().low_priority);
    /// ```
    #[must_use]
    pub fn low_priority(mut self) -> Segmenter {
        self.low_priority = true;
        self
    }

    /// Sets the sequence number of AAL3/4's first cell, modulo 16. AAL5 has none, and ignores it.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// // The sequence goes on behind the previous PDU of this MID, whose last cell had 6.
    /// let segmenter = Segmenter::aal34(circuit, 1, 4, 100).unwrap().first_sequence(7);
    /// let cell = segmenter.cells(&[7; 100]).next().unwrap();
    /// assert_eq!(cell[5] >> 2 & 0xf, 7);
    /// ```
    #[must_use]
    pub fn first_sequence(mut self, value: u8) -> Segmenter {
        if let LayerFields::Aal34 { sequence, .. } = &mut self.layer {
            *sequence = value & 0xf;
        }
        self
    }

    /// Returns the number of cells that remain.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// let mut segmenter = Segmenter::aal5(circuit, 50).unwrap();
    /// assert_eq!(segmenter.remaining(), 2);
    /// segmenter.next_cell(|_, bytes| bytes.fill(7));
    /// assert_eq!(segmenter.remaining(), 1);
    /// ```
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.cells - self.next
    }

    /// Returns the next cell, or `None` after the last. Calls `read` at most once, to fill the slice
    /// with the PDU's bytes from that offset on.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// // The PDU lies in a file or a ring: `read` fetches the bytes of one cell.
    /// let pdu = [7; 100];
    /// let mut segmenter = Segmenter::aal5(circuit, pdu.len()).unwrap();
    /// let mut cells = Vec::new();
    /// while let Some(cell) =
    ///     segmenter.next_cell(|offset, to| to.copy_from_slice(&pdu[offset..][..to.len()]))
    /// {
    ///     cells.push(cell);
    /// }
    /// assert_eq!(cells.len(), 3);
    /// ```
    pub fn next_cell(&mut self, read: impl FnOnce(usize, &mut [u8])) -> Option<Cell> {
        if self.next == self.cells {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let is_last = self.next == self.cells;
        let mut cell = [0; CELL_BYTES];
        let payload = <&mut [u8; PAYLOAD_BYTES]>::try_from(&mut cell[HEADER_BYTES..])
            .expect("the payload has 48 bytes");
        let payload_type = match &mut self.layer {
            LayerFields::Aal5 { user_to_user, crc } => {
                let start = number * PAYLOAD_BYTES;
                place(payload, start, 0, self.pdu_bytes, read);
                if is_last {
                    let trailer = &mut payload[PAYLOAD_BYTES - AAL5_TRAILER_BYTES..];
                    trailer[0] = *user_to_user;
                    trailer[2..4].copy_from_slice(&(self.pdu_bytes as u16).to_be_bytes());
                    crc.update(&payload[..PAYLOAD_BYTES - 4]);
                    payload[PAYLOAD_BYTES - 4..].copy_from_slice(&crc.value().to_be_bytes());
                } else {
                    crc.update(payload);
                }
                u8::from(is_last)
            }
            LayerFields::Aal34 { mid, tag, sequence } => {
                let start = number * PIECE_BYTES;
                let piece = &mut payload[2..2 + PIECE_BYTES];
                place(piece, start, END_BYTES, self.pdu_bytes, read);
                let len = self.pdu_bytes as u16;
                let total = aal34::with_ends(self.pdu_bytes);
                let [high, low] = len.to_be_bytes();
                write(piece, start, 0, [0, *tag, high, low]);
                write(piece, start, total - END_BYTES, [0, *tag, high, low]);
                let length = PIECE_BYTES.min(total - start) as u8;
                let segment_type = SegmentType::of(number == 0, is_last);
                Fields { segment_type, sequence: *sequence, mid: *mid, length }.write(payload);
                *sequence = (*sequence + 1) & 0xf;
                0
            }
        };
        let Segmenter { circuit, low_priority, .. } = *self;
        CellHeader { circuit, payload_type, low_priority }.write(&mut cell);
        Some(cell)
    }

    /// Returns the cells of a PDU that lies in one slice.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// let cells: Vec<_> = Segmenter::aal5(circuit, 5).unwrap().cells(b"hello").collect();
    /// assert_eq!(cells.len(), 1);
    /// assert_eq!(&cells[0][5..10], b"hello");
    /// ```
    ///
    /// # Panics
    /// If the slice has another length than the PDU.
    #[must_use]
    pub fn cells(self, pdu: &[u8]) -> Cells<'_> {
        assert_eq!(pdu.len(), self.pdu_bytes, "the slice has another length than the PDU");
        Cells { segmenter: self, pdu }
    }
}

/// The cells of a PDU ([`Segmenter::cells`]).
#[derive(Clone, Debug)]
pub struct Cells<'a> {
    segmenter: Segmenter,
    pdu: &'a [u8],
}

impl Iterator for Cells<'_> {
    type Item = Cell;

    fn next(&mut self) -> Option<Cell> {
        let pdu = self.pdu;
        self.segmenter.next_cell(|offset, to| to.copy_from_slice(&pdu[offset..offset + to.len()]))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.segmenter.remaining(), Some(self.segmenter.remaining()))
    }
}

impl ExactSizeIterator for Cells<'_> {}

/// Returns the number of cells that a PDU of that many bytes needs with AAL5.
pub(super) fn aal5_cells(pdu_bytes: usize) -> usize {
    pdu_bytes.saturating_add(AAL5_TRAILER_BYTES).div_ceil(PAYLOAD_BYTES)
}

/// Fills a piece that begins at `start` with the bytes of the PDU that are in it. The PDU lies
/// `lead` bytes behind the beginning of the first piece.
fn place(
    piece: &mut [u8],
    start: usize,
    lead: usize,
    pdu_bytes: usize,
    read: impl FnOnce(usize, &mut [u8]),
) {
    let from = lead.max(start);
    let to = (lead + pdu_bytes).min(start + piece.len());
    if from < to {
        read(from - lead, &mut piece[from - start..to - start]);
    }
}

/// Writes a header or trailer at offset `at` of the joined pieces, if the piece that begins at
/// `start` holds it. Both offsets are multiples of 4, so one piece holds all of it.
fn write(piece: &mut [u8], start: usize, at: usize, bytes: [u8; END_BYTES]) {
    if (start..start + piece.len()).contains(&at) {
        piece[at - start..at - start + END_BYTES].copy_from_slice(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CIRCUIT: Circuit = Circuit { vpi: 0, vci: 32 };

    #[test]
    fn numbers_of_cells() {
        for (pdu_bytes, aal5, aal34) in [
            (1, 1, 1),
            (36, 1, 1),
            (37, 1, 2),
            (40, 1, 2),
            (41, 2, 2),
            (80, 2, 2),
            (81, 2, 3),
            (88, 2, 3),
            (89, 3, 3),
            (65_535, 1366, 1490),
        ] {
            let cells = Segmenter::aal5(CIRCUIT, pdu_bytes).unwrap().remaining();
            assert_eq!(cells, aal5, "{pdu_bytes} bytes");
            let segmenter = Segmenter::aal34(CIRCUIT, 0, 0, pdu_bytes).unwrap();
            assert_eq!(segmenter.remaining(), aal34, "{pdu_bytes} bytes");
            assert_eq!(segmenter.cells(&vec![0; pdu_bytes]).count(), aal34);
        }
    }

    #[test]
    fn pdus_that_cannot_be_sent() {
        for len in [0, 65_536, usize::MAX] {
            let error = SegmentError::Length(len);
            assert_eq!(Segmenter::aal5(CIRCUIT, len).unwrap_err(), error);
            assert_eq!(Segmenter::aal34(CIRCUIT, 0, 0, len).unwrap_err(), error);
        }
        let reserved = Circuit { vpi: 3, vci: 31 };
        let error = SegmentError::Reserved(reserved);
        assert_eq!(Segmenter::aal5(reserved, 1).unwrap_err(), error);
        assert_eq!(error.to_string(), "VCI 31 is reserved; the lowest is 32");
        let error = Segmenter::aal34(CIRCUIT, 1024, 0, 1).unwrap_err();
        assert_eq!(error, SegmentError::Mid(1024));
    }

    #[test]
    fn every_byte_is_where_the_document_says() {
        let pdu: Vec<u8> = (1..=41).collect();
        let cells: Vec<_> =
            Segmenter::aal5(CIRCUIT, 41).unwrap().user_to_user(0x99).cells(&pdu).collect();
        assert_eq!(cells[0][3] >> 1 & 7, 0);
        assert_eq!(cells[0][5..46], pdu);
        assert_eq!(cells[0][46..], [0; 7]);
        assert_eq!(cells[1][3] >> 1 & 7, 1);
        assert_eq!(cells[1][5..45], [0; 40]);
        assert_eq!(cells[1][45..49], [0x99, 0, 0, 41]);
        let cells: Vec<_> = Segmenter::aal34(CIRCUIT, 0x3ff, 0x77, 41)
            .unwrap()
            .first_sequence(15)
            .cells(&pdu)
            .collect();
        assert_eq!(cells[0][5..11], [2 << 6 | 15 << 2 | 3, 0xff, 0, 0x77, 0, 41]);
        assert_eq!(cells[0][11..51], pdu[..40]);
        assert_eq!(cells[0][51] >> 2, 44);
        assert_eq!(cells[1][5..15], [1 << 6 | 3, 0xff, 41, 0, 0, 0, 0, 0x77, 0, 41]);
        assert_eq!(cells[1][15..51], [0; 36]);
        assert_eq!(cells[1][51] >> 2, 8);
    }
}
