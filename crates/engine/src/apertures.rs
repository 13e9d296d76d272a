//! Apertures and tripwires: memory that applications export to each other (Riddoch and Pope).
//!
//! An aperture is for the connection of two endpoints. The engine ends the aperture when the
//! connection ends. Its state is a word in the server pages of both sessions, and the word of the
//! exporting session counts: a successor enters only apertures that are valid there.
//!
//! An aperture is reached by requests, which the engine carries out in the scheduler's order, or it
//! is mapped. An application that accessed mapped memory names a tripwire in its event queue, and
//! the engine fires the tripwire in the session that set it.

pub mod commands;
pub mod memory;
mod places;
pub(crate) mod requests;
pub mod states;
mod table;

pub(crate) use table::ApertureTable;

#[cfg(test)]
mod tests;
