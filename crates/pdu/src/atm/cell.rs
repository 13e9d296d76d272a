//! Cells and their headers.

use super::check;
use super::circuit::Circuit;
use super::sizes::CELL_BYTES;

/// A cell: five bytes of header, and the payload.
pub type Cell = [u8; CELL_BYTES];

/// Bit 0 of a payload type: the last cell of an AAL5 PDU.
const LAST: u8 = 1;
/// Bit 1: a switch was congested.
const CONGESTED: u8 = 2;
/// Bit 2: a cell without user data.
const MANAGEMENT: u8 = 4;

/// The HEC of a cell's header is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the HEC of the cell's header is wrong")]
pub struct WrongHec;

/// The header of a cell, of the user-network interface. The generic flow control field is 0 when
/// written, and ignored when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellHeader {
    /// The circuit.
    pub circuit: Circuit,
    /// The payload type, 0 to 7.
    pub payload_type: u8,
    /// `true` if the network may discard the cell first (CLP).
    pub low_priority: bool,
}

impl CellHeader {
    /// Parses a cell's header.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// let cell = Segmenter::aal5(circuit, 5).unwrap().cells(b"hello").next().unwrap();
    /// let header = CellHeader::parse(&cell).unwrap();
    /// assert_eq!(header.circuit, circuit);
    /// let mut damaged = cell;
    /// damaged[2] ^= 1;
    /// assert!(CellHeader::parse(&damaged).is_err());
    /// ```
    ///
    /// # Errors
    /// [`WrongHec`]: no field can be trusted.
    #[inline]
    pub fn parse(cell: &Cell) -> Result<CellHeader, WrongHec> {
        let [a, b, c, d, hec, ..] = *cell;
        if check::hec([a, b, c, d]) != hec {
            return Err(WrongHec);
        }
        let vci = u16::from(b & 0xf) << 12 | u16::from(c) << 4 | u16::from(d >> 4);
        let circuit = Circuit { vpi: a << 4 | b >> 4, vci };
        Ok(CellHeader { circuit, payload_type: d >> 1 & 7, low_priority: d & 1 != 0 })
    }

    /// Writes the header to the beginning of a cell, including the HEC.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CELL_BYTES, CellHeader, Circuit};
    /// let circuit = Circuit { vpi: 0x12, vci: 0x3456 };
    /// let header = CellHeader { circuit, payload_type: 1, low_priority: true };
    /// let mut cell = [0; CELL_BYTES];
    /// header.write(&mut cell);
    /// assert_eq!(cell[..4], [0x01, 0x23, 0x45, 0x63]);
    /// assert_eq!(CellHeader::parse(&cell), Ok(header));
    /// ```
    #[inline]
    pub fn write(self, cell: &mut Cell) {
        let CellHeader { circuit: Circuit { vpi, vci }, payload_type, low_priority } = self;
        let [high, low] = vci.to_be_bytes();
        let header = [
            vpi >> 4,
            vpi << 4 | high >> 4,
            high << 4 | low >> 4,
            low << 4 | (payload_type & 7) << 1 | u8::from(low_priority),
        ];
        cell[..4].copy_from_slice(&header);
        cell[4] = check::hec(header);
    }

    /// Returns `true` if the cell is the last one of an AAL5 PDU.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// // 100 bytes, and 8 of the trailer: three cells.
    /// let cells = Segmenter::aal5(circuit, 100).unwrap().cells(&[7; 100]);
    /// let are_last = cells.map(|cell| CellHeader::parse(&cell).unwrap().is_last());
    /// assert_eq!(are_last.collect::<Vec<_>>(), [false, false, true]);
    /// ```
    #[must_use]
    pub fn is_last(self) -> bool {
        self.payload_type & (MANAGEMENT | LAST) == LAST
    }

    /// Returns `true` if a switch on the cell's way was congested.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// // Bit 1 of the payload type of a user's cell.
    /// let header = CellHeader { circuit, payload_type: 0b010, low_priority: false };
    /// assert!(header.is_congested() && !header.is_last());
    /// ```
    #[must_use]
    pub fn is_congested(self) -> bool {
        self.payload_type & (MANAGEMENT | CONGESTED) == CONGESTED
    }

    /// Returns `true` if the cell carries no user data: operation and maintenance, resource
    /// management, or reserved.
    ///
    /// ```
    /// # use towpath_pdu::atm::{CellHeader, Circuit, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// // 5: operation and maintenance, from end to end (ITU-T I.361).
    /// let header = CellHeader { circuit, payload_type: 5, low_priority: false };
    /// assert!(header.is_management() && !header.is_last());
    /// ```
    #[must_use]
    pub fn is_management(self) -> bool {
        self.payload_type & MANAGEMENT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::sizes::{HEADER_BYTES, PAYLOAD_BYTES};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_are_read_as_written(vpi: u8, vci: u16, payload_type in 0_u8..8, low_priority: bool) {
            let header = CellHeader { circuit: Circuit { vpi, vci }, payload_type, low_priority };
            let mut cell = [0xee; CELL_BYTES];
            header.write(&mut cell);
            prop_assert_eq!(CellHeader::parse(&cell), Ok(header));
            prop_assert_eq!(&cell[HEADER_BYTES..], &[0xee; PAYLOAD_BYTES]);
            // A CRC of 8 bits finds one, two and three wrong bits of 40.
            for first in 0..40 {
                for second in first..40 {
                    let mut damaged = cell;
                    damaged[first / 8] ^= 1 << (first % 8);
                    if second != first {
                        damaged[second / 8] ^= 1 << (second % 8);
                    }
                    prop_assert_eq!(CellHeader::parse(&damaged), Err(WrongHec));
                }
            }
        }
    }

    #[test]
    fn every_bit_is_where_the_document_says() {
        let mut cell = [0; CELL_BYTES];
        let circuit = Circuit { vpi: 0x12, vci: 0x3456 };
        CellHeader { circuit, payload_type: 1, low_priority: true }.write(&mut cell);
        assert_eq!(cell[..4], [0x01, 0x23, 0x45, 0x63]);
        // The idle cell of ITU-T I.432: 0, 0, 0, 1 and the HEC 0x52.
        let circuit = Circuit { vpi: 0, vci: 0 };
        CellHeader { circuit, payload_type: 0, low_priority: true }.write(&mut cell);
        assert_eq!(cell[..5], [0, 0, 0, 1, 0x52]);
        assert!(circuit.is_idle() && circuit.is_reserved());
        assert!(!Circuit { vpi: 0, vci: 32 }.is_reserved());
    }

    #[test]
    fn payload_types_are_told_apart() {
        let circuit = Circuit { vpi: 0, vci: 32 };
        let of = |payload_type| CellHeader { circuit, payload_type, low_priority: false };
        let found: Vec<_> = (0..8)
            .map(of)
            .map(|header| (header.is_last(), header.is_congested(), header.is_management()))
            .collect();
        let user = [false, true, false, true].into_iter().zip([false, false, true, true]);
        let expected: Vec<_> = user
            .map(|(last, congested)| (last, congested, false))
            .chain([(false, false, true); 4])
            .collect();
        assert_eq!(found, expected);
    }
}
