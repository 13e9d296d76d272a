//! The commands of the control thread for memories, apertures and tripwires, and the engine's
//! reports.

use towpath_protocol::apertures::Access;

use super::memory::EngineMemory;
use crate::oob::connection::EndpointName;

/// A command for a memory, an aperture or a tripwire.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Debug)]
pub enum ApertureCommand {
    /// Enters an aperture. The engine reports the outcome.
    Export(Box<Exporting>),
    /// Lets a session use an aperture. The engine reports the outcome.
    Import { key: u32, session: u32, number: u32 },
    /// Enters a memory of a session.
    AddMemory { session: u32, number: u32, memory: EngineMemory },
    /// Has the engine reach a memory in another way. The control thread keeps the former mapping until then.
    ChangeMemory { session: u32, number: u32, memory: EngineMemory },
    /// Removes a memory of a session.
    RemoveMemory { session: u32, number: u32 },
    /// Enters a tripwire that a session set in its memory, or removes it.
    SetTripwire {
        session: u32,
        number: u32,
        memory: u32,
        /// Where its place begins in the memory, and the length, in bytes.
        range: (u64, u64),
        /// `None` to remove it.
        access: Option<Access>,
    },
    /// Revokes an aperture of the session that exported it.
    Revoke { key: u32, session: u32, number: u32 },
    /// Forgets that a session uses an aperture.
    ReleaseImport { key: u32, session: u32, number: u32 },
    /// Enters or removes a tripwire that a session imported.
    ImportTripwire { session: u32, number: u32, tripwire: Option<ImportedTripwire> },
}

/// What became of a command.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Debug)]
pub enum ApertureReport {
    /// The engine entered an aperture, for the endpoint `peer`; `None` if its endpoint is not
    /// connected.
    Exported { session: u32, number: u32, peer: Option<EndpointName> },
    /// The engine let a session use an aperture, unless there is no such aperture any more.
    Imported { session: u32, number: u32, entered: bool },
}

/// An aperture that a session exports.
#[derive(Clone, Copy, Debug)]
pub struct Exporting {
    /// The key by which requests name the aperture.
    pub key: u32,
    /// The exporting endpoint.
    pub owner: EndpointName,
    /// The aperture's number in its session.
    pub number: u32,
    /// The memory's number in the session.
    pub memory: u32,
    /// Where the aperture begins in the memory, in bytes.
    pub offset: u64,
    /// The aperture's length in bytes.
    pub len: u64,
    /// What the importer may do with the aperture.
    pub access: Access,
    /// The endpoint that it was for under an earlier server; `None` for a new aperture.
    pub resumed_for: Option<EndpointName>,
}

/// A tripwire that a session imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedTripwire {
    /// The key of the aperture that it is in.
    pub key: u32,
    /// The session that set it.
    pub owner: u32,
    /// Its number in that session.
    pub tripwire: u32,
}
