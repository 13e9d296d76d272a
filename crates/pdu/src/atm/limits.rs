//! The limits of a receiver of cells.

use std::time::Duration;

use super::aal34::{self, PIECE_BYTES};
use super::sizes::MAX_PDU_BYTES;

/// The cells of the longest PDU: AAL3/4 needs more than AAL5.
const CELLS_OF_LONGEST_PDU: usize = aal34::with_ends(MAX_PDU_BYTES).div_ceil(PIECE_BYTES);
/// The maximum of [`Limits::cells`].
const MAX_CELLS: usize = 1 << 24;
/// The maximum of [`Limits::partials`] and of [`Limits::circuits`].
const MAX_PARTIALS: usize = 1 << 16;

/// The limits of a receiver of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cells of incomplete PDUs, all together, 1 490 (for the longest PDU) to 2^24. The receiver
    /// allocates 52 bytes for each at the start. At the limit it evicts the oldest PDU of the
    /// circuit that holds the most cells.
    pub cells: usize,
    /// Incomplete PDUs, all together, 1 to 65 536. At the limit the receiver evicts the oldest one.
    pub partials: usize,
    /// Incomplete PDUs per circuit, at least 1: AAL3/4 has one per MID. At the limit the receiver
    /// evicts the oldest of that circuit.
    pub partials_of_circuit: usize,
    /// Open circuits, 1 to 65 536.
    pub circuits: usize,
    /// The time that a PDU may take from its first cell to its last.
    pub time: Duration,
    /// The longest PDU that the receiver accepts, in bytes, 1 to 65 535.
    pub pdu_bytes: usize,
}

impl Default for Limits {
    /// Returns limits with room for 7 000 cells, as in Smith and Traw's reassembler.
    fn default() -> Limits {
        Limits {
            cells: 7000,
            partials: 64,
            partials_of_circuit: 16,
            circuits: 1024,
            time: Duration::from_secs(2),
            pdu_bytes: MAX_PDU_BYTES,
        }
    }
}

impl Limits {
    /// Replaces each limit that is out of range by the nearest value in range.
    pub(super) fn in_range(self) -> Limits {
        Limits {
            cells: self.cells.clamp(CELLS_OF_LONGEST_PDU, MAX_CELLS),
            partials: self.partials.clamp(1, MAX_PARTIALS),
            partials_of_circuit: self.partials_of_circuit.max(1),
            circuits: self.circuits.clamp(1, MAX_PARTIALS),
            time: self.time,
            pdu_bytes: self.pdu_bytes.clamp(1, MAX_PDU_BYTES),
        }
    }
}
