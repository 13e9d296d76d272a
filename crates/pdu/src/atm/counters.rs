//! Counters. Every reason for a drop has one; `docs/atm.md` has the rules.

/// The outcome of received cells and of incomplete PDUs. [`Counters::adds_up`] checks that each
/// counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Cells examined.
    pub cells: u64,
    /// Cells that began, continued, completed or ended a PDU.
    pub of_pdus: u64,
    /// Cells dropped: wrong HEC.
    pub hec: u64,
    /// Cells without anything in them: idle or unassigned.
    pub idle: u64,
    /// Cells dropped: no circuit is open for them.
    pub no_circuit: u64,
    /// Cells dropped: no user data (operation and maintenance, resource management, reserved).
    pub management: u64,
    /// Cells dropped (AAL5): of the rest of a PDU that was too long or evicted.
    pub skipped: u64,
    /// Cells dropped (AAL3/4): wrong CRC-10.
    pub cell_crc: u64,
    /// Cells dropped (AAL3/4): a length (LI) that the segment type (ST) does not allow.
    pub cell_length: u64,
    /// Cells dropped (AAL3/4): the beginning of their PDU is missing.
    pub no_beginning: u64,
    /// PDUs that a received cell began.
    pub started: u64,
    /// PDUs reassembled and delivered.
    pub complete: u64,
    /// PDUs given up (AAL5): wrong CRC-32.
    pub damaged: u64,
    /// PDUs given up: their sender aborted them.
    pub aborted: u64,
    /// PDUs given up: their header, trailer or length contradicts itself or the received cells.
    pub malformed: u64,
    /// PDUs given up: longer than [`Limits::pdu_bytes`](super::Limits::pdu_bytes).
    pub too_long: u64,
    /// PDUs given up (AAL3/4): a cell came out of sequence.
    pub out_of_sequence: u64,
    /// PDUs given up (AAL3/4): the next one began before their end.
    pub unfinished: u64,
    /// PDUs given up: their time expired.
    pub expired: u64,
    /// PDUs given up: their circuit was closed.
    pub closed: u64,
    /// PDUs evicted for a newer one: too many of that circuit.
    pub gave_way_of_circuit: u64,
    /// PDUs evicted for a newer one: too many altogether.
    pub gave_way: u64,
    /// PDUs evicted: too many cells altogether, and no circuit held more than theirs.
    pub gave_way_for_cells: u64,
}

impl Counters {
    /// Returns `true` if every cell, and every started PDU but for the `waiting` incomplete ones,
    /// counts once.
    ///
    /// ```
    /// # use towpath_pdu::atm::{Adaptation, Circuit, Limits, Reassembler, Segmenter};
    /// # let circuit = Circuit { vpi: 0, vci: 100 };
    /// # let mut reassembler = Reassembler::new(Limits::default());
    /// # reassembler.open(circuit, Adaptation::Aal5).unwrap();
    /// # use std::time::Instant;
    /// // One of two cells.
    /// let first = Segmenter::aal5(circuit, 50).unwrap().cells(&[7; 50]).next().unwrap();
    /// reassembler.accept(Instant::now(), &first).unwrap();
    /// assert!(reassembler.counters().adds_up(reassembler.waiting()));
    /// assert_eq!(reassembler.waiting(), 1);
    /// ```
    #[must_use]
    pub fn adds_up(&self, waiting: usize) -> bool {
        let dropped = self.hec
            + self.idle
            + self.no_circuit
            + self.management
            + self.skipped
            + self.cell_crc
            + self.cell_length
            + self.no_beginning;
        let given_up = self.damaged
            + self.aborted
            + self.malformed
            + self.too_long
            + self.out_of_sequence
            + self.unfinished
            + self.expired
            + self.closed
            + self.gave_way_of_circuit
            + self.gave_way
            + self.gave_way_for_cells;
        self.cells == self.of_pdus + dropped
            && self.started == self.complete + given_up + waiting as u64
    }
}
