//! PDUs in ATM cells, as Smith and Traw's host interface has them ("Giving Applications Access to
//! Gb/s Networking", section 2.1): segmentation and reassembly by AAL5 and AAL3/4, multiplexed by
//! VCI and MID. `docs/atm.md` describes the cells bit by bit, and the receiver's rules.
//!
//! ```
//! use std::time::Instant;
//! use towpath_pdu::atm::{Accepted, Adaptation, Circuit, Limits, Reassembler, Segmenter};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let circuit = Circuit { vpi: 0, vci: 100 };
//! let mut reassembler = Reassembler::new(Limits::default());
//! reassembler.open(circuit, Adaptation::Aal5)?;
//! for cell in Segmenter::aal5(circuit, 1000)?.cells(&[7; 1000]) {
//!     if let Accepted::Complete(pdu) = reassembler.accept(Instant::now(), &cell)? {
//!         assert_eq!(pdu.to_vec(), [7; 1000]);
//!     }
//! }
//! assert_eq!(reassembler.counters().complete, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here does input or output or has a clock: the time is an argument.

mod aal34;
mod cell;
mod cell_pool;
mod check;
mod counters;
mod limits;
mod pdu;
mod reassembler;
mod segmenter;

pub use cell::{CELL_BYTES, Cell, CellHeader, Circuit, PAYLOAD_BYTES, WrongHec};
pub use counters::Counters;
pub use limits::Limits;
pub use pdu::Pdu;
pub use reassembler::{Accepted, Dropped, OpenError, Reassembler};
pub use segmenter::{Cells, SegmentError, Segmenter};

/// The maximum length of a PDU in cells, in bytes.
pub const MAX_PDU_BYTES: usize = 65_535;

/// The maximum multiplexing identifier of AAL3/4: it has 10 bits.
pub const MAX_MID: u16 = 1023;

/// The adaptation layer of a circuit. A cell does not say which one it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptation {
    /// AAL5 (ITU-T I.363.5): one PDU after the other.
    Aal5,
    /// AAL3/4 (ITU-T I.363.3): several PDUs at once, by MID.
    Aal34,
}

/// Compiles the example of `docs/atm.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/atm.md")]
struct Page;
