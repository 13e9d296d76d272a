//! The messages about memories, apertures and tripwires.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Creates a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateMemory {
    /// Its length in bytes, which the server rounds up to pages.
    pub bytes: u64,
    /// A [`crate::apertures::Sharing`].
    pub sharing: u32,
    /// The number of the request, as [`Open::sequence`](super::Open::sequence).
    pub sequence: u32,
}

/// The server created what the application asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Created {
    /// Its number in the session.
    pub number: u32,
    /// The key of an aperture; the session that set an imported tripwire; else 0.
    pub key: u32,
}

/// Exports a range of a memory as an aperture, for the connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Export {
    /// Where the range begins in the memory, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The endpoint's number in the session.
    pub endpoint: u32,
    /// The memory's number in the session.
    pub memory: u32,
    /// The rights of the importer: a [`crate::apertures::Access`].
    pub access: u32,
    /// The number of the request, as [`Open::sequence`](super::Open::sequence).
    pub sequence: u32,
}

/// Imports an aperture of an endpoint's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Import {
    /// The endpoint's number in the session.
    pub endpoint: u32,
    /// The aperture's key.
    pub key: u32,
    /// The number of the request, as [`Open::sequence`](super::Open::sequence).
    pub sequence: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The server imported an aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Imported {
    /// Where the aperture begins in its memory, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// A number of the memory that no other memory of this server has: apertures of one memory need
    /// one mapping.
    pub memory: u64,
    /// Its number in the session.
    pub number: u32,
    /// The importer's rights: a [`crate::apertures::Access`].
    pub access: u32,
    /// The memory's [`crate::apertures::Sharing`].
    pub sharing: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Sets a tripwire in a memory of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetTripwire {
    /// Where its place begins in the memory, in bytes.
    pub offset: u64,
    /// The length of its place, in bytes.
    pub len: u64,
    /// The memory's number in the session.
    pub memory: u32,
    /// The kinds of access of which it tells: a [`crate::apertures::Access`].
    pub access: u32,
    /// The number of the request, as [`Open::sequence`](super::Open::sequence).
    pub sequence: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Imports a tripwire in an aperture that the session has imported, so that the application can
/// have the server fire it after accesses of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ImportTripwire {
    /// The aperture's number in the session.
    pub aperture: u32,
    /// The tripwire's number in the session that set it.
    pub tripwire: u32,
    /// The number of the request, as [`Open::sequence`](super::Open::sequence).
    pub sequence: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Releases a memory, an aperture or a tripwire of the session. An aperture that the session
/// exported is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Release {
    /// [`RELEASE_MEMORY`], [`RELEASE_APERTURE`] or [`RELEASE_TRIPWIRE`].
    pub kind: u32,
    /// Its number in the session.
    pub number: u32,
}

/// The kind of a memory, of which no range is exported.
pub const RELEASE_MEMORY: u32 = 1;
/// The kind of an aperture.
pub const RELEASE_APERTURE: u32 = 2;
/// The kind of a tripwire.
pub const RELEASE_TRIPWIRE: u32 = 3;
