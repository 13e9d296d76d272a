//! Memory that an application exports: its apertures, their rights and states, and tripwires.
//!
//! | object | of | is |
//! |---|---|---|
//! | memory | the session that created it | a sealed memory file, of which the session exports ranges |
//! | aperture | the session that exported it, and the one that imported it | a range of a memory, for the connection of one endpoint |
//! | tripwire | the session that set it, and those that imported it | a place in a memory, whose owner learns of accesses |
//!
//! Each session numbers its own. The numbers of apertures and tripwires also number words and bits
//! in the session's server pages, in which the server tells their state.

use zerocopy::{IntoBytes, TryFromBytes};

/// The most memories that a session creates.
pub const MAX_MEMORIES: u32 = 64;
/// The most apertures of a session, exported and imported.
pub(crate) const MAX_APERTURES: u32 = 32_768;
/// The most tripwires of a session, its own and imported.
pub(crate) const MAX_TRIPWIRES: u32 = 32_768;
/// The most other tripwires of a memory that a tripwire may overlap when its owner sets it.
pub const MAX_OVERLAPPING: usize = 8;

/// The way in which the importers of a memory's apertures reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub enum Sharing {
    /// By requests alone: no other application maps the memory.
    Requests = 1,
    /// Importers map the whole memory for reading.
    MapRead = 2,
    /// The importer, one other session, maps the whole memory: for writing only if the aperture's
    /// rights include writing.
    MapWrite = 3,
}

impl Sharing {
    /// Returns the sharing of a number; `None` if there is no such sharing.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Sharing> {
        Sharing::try_read_from_bytes(number.as_bytes()).ok()
    }

    /// `true` if importers map the memory.
    #[must_use]
    pub fn is_mapped(self) -> bool {
        self != Sharing::Requests
    }
}

/// Kinds of access: the rights of an aperture, or those that a tripwire tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u32)]
pub enum Access {
    /// Reading.
    Read = 1,
    /// Writing.
    Write = 2,
    /// Reading and writing.
    ReadWrite = 3,
}

impl Access {
    /// Returns the access of a number; `None` if there is no such access.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Access> {
        Access::try_read_from_bytes(number.as_bytes()).ok()
    }

    /// `true` if this includes reading.
    #[must_use]
    pub fn reads(self) -> bool {
        self.meets(Access::Read)
    }

    /// `true` if this includes writing.
    #[must_use]
    pub fn writes(self) -> bool {
        self.meets(Access::Write)
    }

    /// `true` if the two have a kind of access in common.
    #[must_use]
    pub fn meets(self, other: Access) -> bool {
        self as u32 & other as u32 != 0
    }
}

/// The state of an aperture, in a word of the server pages of both of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum ApertureState {
    /// There is no such aperture.
    None = 0,
    /// The importer may use it.
    Valid = 1,
    /// Its owner revoked it.
    Revoked = 2,
    /// The connection that it was for is closed.
    Closed = 3,
    /// The session at the other end of that connection has ended.
    Gone = 4,
}

impl ApertureState {
    /// Returns the state of a word. That of a later version is one in which nothing may be
    /// accessed.
    #[must_use]
    pub fn from_word(word: u64) -> ApertureState {
        use ApertureState::{Closed, Gone, None, Revoked, Valid};
        [None, Valid, Revoked, Closed, Gone]
            .into_iter()
            .find(|one| *one as u64 == word)
            .unwrap_or(Closed)
    }
}

/// Returns `true` if a range of bytes is not empty and lies in the first `bytes` bytes.
#[must_use]
pub fn is_inside(offset: u64, len: u64, bytes: u64) -> bool {
    len > 0 && offset < bytes && len <= bytes - offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inside_or_not() {
        assert!(is_inside(0, 1, 1) && is_inside(4095, 1, 4096) && is_inside(0, 4096, 4096));
        let outside = [(0, 0), (4096, 0), (4096, 1), (4095, 2), (u64::MAX, 1), (1, u64::MAX)];
        assert!(outside.into_iter().all(|(offset, len)| !is_inside(offset, len, 4096)));
    }

    #[test]
    fn numbers_there_and_back() {
        assert!((1..=3).all(|one| Sharing::from_number(one).unwrap() as u32 == one));
        assert!((1..=3).all(|one| Access::from_number(one).unwrap() as u32 == one));
        assert!([0, 4, u32::MAX].iter().all(|one| Sharing::from_number(*one).is_none()));
        assert!([0, 4, u32::MAX].iter().all(|one| Access::from_number(*one).is_none()));
        assert!((0..=4).all(|one| ApertureState::from_word(one) as u64 == one));
        assert_eq!(ApertureState::from_word(5), ApertureState::Closed);
    }
}
