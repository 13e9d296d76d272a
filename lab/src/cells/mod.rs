//! A pair of devices that send packets as ATM cells over an OC-3c link, as Smith and Traw's host
//! interface does: the transmission card segments each frame into cells, which leave at the rate of
//! the link; the reception card has room for 7 000 cells, and reassembles them. A frame is a PDU of
//! AAL5 or AAL3/4.
//!
//! The hardware is simulated by the thread that calls the device: cells cross an in-memory queue with
//! the time at which each arrives. Cells that find the receiver's memory full are lost, as on the
//! card. The device has no interrupts: the engine polls it all the time, or at
//! its ticks.

mod device;
mod link;
mod process;
mod queue;
mod sizes;

pub(crate) use process::{CellProcess, CellServers};
pub(crate) use sizes::{CELLS_PER_S, MTU_BYTES, RECEIVE_CELLS};
