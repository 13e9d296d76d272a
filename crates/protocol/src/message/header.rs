//! The beginning of every message, and what all messages have in common.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout::MAX_LANES;

/// "Towp", in each message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"Towp");
/// The largest message: a page of a report.
pub const MAX_BYTES: usize = 32 << 10;
/// The largest message that an application sends. The largest message of a fixed size, an error,
/// has 256 bytes.
pub const MAX_REQUEST_BYTES: usize = 512;
/// The most descriptors with a message: the answer to attach carries up to this many, and no other
/// message more.
pub const MAX_DESCRIPTORS: usize = 7 + MAX_LANES;

/// The beginning of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// The sender's [`VERSION`](crate::VERSION).
    pub version: u16,
    /// The kind of the body that follows.
    pub kind: u16,
}
