//! The reasons for dropped cells.

use crate::atm::counters::Counters;

/// The reason why a cell was dropped. Each has a counter ([`Counters`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Dropped {
    /// Its HEC is wrong.
    #[error("the HEC of the cell's header is wrong")]
    Hec,
    /// It is idle or unassigned.
    #[error("the cell is idle")]
    Idle,
    /// Its circuit is not open.
    #[error("the cell's circuit is not open")]
    NoCircuit,
    /// It is a cell of operation and maintenance, of resource management, or reserved.
    #[error("the cell carries no user data")]
    Management,
    /// It belongs to the rest of an AAL5 PDU that was too long or evicted.
    #[error("the cell belongs to the rest of a PDU that was too long or evicted")]
    Skipped,
    /// Its CRC-10 is wrong.
    #[error("the CRC-10 of the cell is wrong")]
    CellCrc,
    /// Its segment type (ST) does not allow its length (LI).
    #[error("the cell's segment type does not allow its length")]
    CellLength,
    /// The beginning of its PDU is missing.
    #[error("the beginning of the cell's PDU is missing")]
    NoBeginning,
    /// The CRC-32 of its PDU is wrong: a cell was lost, damaged or misinserted.
    #[error("the CRC-32 of the PDU is wrong")]
    Damaged,
    /// The sender aborted its PDU.
    #[error("the sender aborted the PDU")]
    Aborted,
    /// Its PDU contradicts its own header, trailer or length.
    #[error("the PDU contradicts its own header, trailer or length")]
    Malformed,
    /// Its PDU is longer than the receiver accepts.
    #[error("the PDU is longer than the receiver accepts")]
    TooLong,
    /// A cell before it was lost or misinserted.
    #[error("a cell of the PDU was lost or misinserted")]
    OutOfSequence,
    /// The receiver has no memory for it, and its PDU is the oldest of the circuit that holds the
    /// most cells.
    #[error("the receiver has no memory for the cell, and its circuit holds the most cells")]
    NoRoom,
}

impl Dropped {
    /// Returns `true` if the cell ended its PDU, which the receiver has given up.
    ///
    /// ```
    /// # use towpath_pdu::atm::Dropped;
    /// assert!(Dropped::Damaged.ends_pdu());
    /// // An idle cell is of no PDU.
    /// assert!(!Dropped::Idle.ends_pdu());
    /// ```
    #[must_use]
    pub fn ends_pdu(self) -> bool {
        matches!(
            self,
            Dropped::Damaged
                | Dropped::Aborted
                | Dropped::Malformed
                | Dropped::TooLong
                | Dropped::OutOfSequence
                | Dropped::NoRoom
        )
    }

    pub(super) fn counter(self, counters: &mut Counters) -> &mut u64 {
        match self {
            Dropped::Hec => &mut counters.hec,
            Dropped::Idle => &mut counters.idle,
            Dropped::NoCircuit => &mut counters.no_circuit,
            Dropped::Management => &mut counters.management,
            Dropped::Skipped => &mut counters.skipped,
            Dropped::CellCrc => &mut counters.cell_crc,
            Dropped::CellLength => &mut counters.cell_length,
            Dropped::NoBeginning => &mut counters.no_beginning,
            Dropped::Damaged => &mut counters.damaged,
            Dropped::Aborted => &mut counters.aborted,
            Dropped::Malformed => &mut counters.malformed,
            Dropped::TooLong => &mut counters.too_long,
            Dropped::OutOfSequence => &mut counters.out_of_sequence,
            Dropped::NoRoom => &mut counters.gave_way_for_cells,
        }
    }
}
