//! What a side of a channel has of its own in the server's tables.

use crate::error::OpenError;
use crate::memory::{Export, Memory};
use crate::session::Session;
use crate::tripwire_table::Tripwire;

/// The aperture that a side exports for the peer's messages, with its tripwire.
#[derive(Debug)]
pub(super) struct OwnPart {
    pub(super) export: Export,
    pub(super) tripwire: Tripwire,
    /// The memory, if the channel created it.
    pub(super) memory: Option<Memory>,
}

impl OwnPart {
    /// Revokes the export, and releases the tripwire, and the memory if the channel created it.
    pub(super) fn release(self, session: &mut Session) -> Result<(), OpenError> {
        session.memories().revoke(self.export)?;
        session.memories().release_tripwire(self.tripwire)?;
        self.memory.map_or(Ok(()), |memory| session.memories().release(&memory))
    }
}
