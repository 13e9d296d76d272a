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
//!     match reassembler.accept(Instant::now(), &cell) {
//!         Ok(Accepted::Complete(pdu)) => assert_eq!(pdu.to_vec(), [7; 1000]),
//!         Ok(Accepted::Waits) => {}
//!         // Lost and damaged cells are usual: the next PDU may be whole.
//!         Err(dropped) => eprintln!("{dropped}"),
//!     }
//! }
//! assert_eq!(reassembler.counters().complete, 1);
//! # Ok(())
//! # }
//! ```
//!
//! The module does no input or output, and has no clock: the time is an argument. A program moves the
//! cells by itself; [`PduEndpoint`](crate::PduEndpoint) sends Ethernet frames.

mod aal34;
mod cell;
mod cell_pool;
mod check;
mod circuit;
mod counters;
mod limits;
mod pdu;
mod reassembler;
mod segmenter;
mod sizes;

pub use cell::{Cell, CellHeader, WrongHec};
pub use circuit::{Adaptation, Circuit};
pub use counters::Counters;
pub use limits::Limits;
pub use pdu::Pdu;
pub use reassembler::{Accepted, Dropped, OpenError, Reassembler};
pub use segmenter::{Cells, SegmentError, Segmenter};
pub use sizes::{CELL_BYTES, MAX_MID, MAX_PDU_BYTES, PAYLOAD_BYTES};

/// Compiles the example of `docs/atm.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/atm.md")]
struct Page;
