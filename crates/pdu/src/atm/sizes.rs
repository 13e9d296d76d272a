//! The sizes of cells and PDUs.

/// The bytes of a cell.
pub const CELL_BYTES: usize = 53;
/// The bytes of a cell's payload.
pub const PAYLOAD_BYTES: usize = 48;
/// The bytes of a cell's header.
pub(super) const HEADER_BYTES: usize = CELL_BYTES - PAYLOAD_BYTES;

/// The maximum length of a PDU in cells, in bytes.
pub const MAX_PDU_BYTES: usize = 65_535;

/// The maximum multiplexing identifier of AAL3/4: it has 10 bits.
pub const MAX_MID: u16 = 1023;
