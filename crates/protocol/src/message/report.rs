//! The pages of a report.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::header::{Header, MAX_BYTES};

/// The position at which a page of a report begins; all zeros for the first page. The first page
/// also describes the device, and [`Cursor::END`] follows the last page. Endpoints of one session
/// may be on several pages.
///
/// A tool asks for each page, so the server keeps no state between two requests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Cursor {
    /// The next connection, as the server counts them.
    pub connection: u64,
    /// The next endpoint of that connection.
    pub endpoint: u32,
    /// Must be 0.
    pub reserved: u32,
}

impl Cursor {
    /// The cursor behind the last page.
    pub const END: Cursor = Cursor { connection: u64::MAX, endpoint: 0, reserved: 0 };
}

/// The most bytes of JSON on one page of a report.
pub const MAX_PAGE_BYTES: usize = MAX_BYTES - size_of::<Header>() - size_of::<Cursor>();
