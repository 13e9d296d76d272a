//! Memory that a session created, and apertures of other sessions' memory.

use towpath_memory::{CommonMemory, ForkGuard};
use towpath_protocol::apertures::{Access, ApertureState, Sharing};
use towpath_queue::PeerWords;

use crate::error::AccessError;

/// Memory that this session created, of which it exports ranges
/// ([`crate::Memories::create`]).
///
/// Others may write it at any time, by the rights of the apertures. So there are no references into
/// it: every access copies. The memory stays mapped while this value lives, also after the
/// session's end. Dropping the value unmaps it here, and releases nothing at the server: a release is a
/// question to the server over the session, which this value does not hold, and which may fail. See
/// [`crate::Memories::release`]. In a child made by `fork`, each access fails with [`AccessError::Forked`].
#[derive(Debug)]
pub struct Memory {
    pub(crate) number: u32,
    pub(crate) common: CommonMemory,
    pub(crate) sharing: Sharing,
    pub(crate) guard: ForkGuard,
}

/// The key of an aperture. The application at the other end of the connection imports the aperture
/// by it; anyone else can do nothing with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApertureKey(pub u32);

/// An aperture that this session exports ([`crate::Memories::export`]).
///
/// It is a number and a key, without a reference to the session. So dropping it revokes nothing: the
/// aperture stays exported until [`crate::Memories::revoke`], or until the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Export {
    pub(crate) number: u32,
    pub(crate) key: ApertureKey,
}

impl Export {
    /// Returns the key by which the peer imports the aperture.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, export: Export, peer: OobAddress) -> Result<(), Box<dyn std::error::Error>> {
    /// let key = export.key().0.to_le_bytes();
    /// session.oob().send(endpoint, peer, &key)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn key(&self) -> ApertureKey {
        self.key
    }
}

fn inside<T>(
    done: Option<T>,
    offset: usize,
    len: usize,
    memory: &CommonMemory,
) -> Result<T, AccessError> {
    done.ok_or(AccessError::Range { offset, len, bytes: memory.len() })
}

fn read(memory: &CommonMemory, offset: usize, to: &mut [u8]) -> Result<(), AccessError> {
    inside(memory.read(offset, to).then_some(()), offset, to.len(), memory)
}

fn write(memory: &CommonMemory, offset: usize, from: &[u8]) -> Result<(), AccessError> {
    inside(memory.write(offset, from).then_some(()), offset, from.len(), memory)
}

impl Memory {
    /// Returns the mapped memory.
    ///
    /// # Errors
    /// [`AccessError::Forked`]: this process is a child, which did not inherit the mapping.
    #[inline]
    fn mapped(&self) -> Result<&CommonMemory, AccessError> {
        if self.guard.is_parent() { Ok(&self.common) } else { Err(AccessError::Forked) }
    }

    /// Returns the length in bytes: as long as the application asked for, rounded up to pages.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(memory: &Memory) {
    /// println!("{} bytes", memory.len());
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.common.len()
    }

    /// Returns `false`: a memory has at least one page.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(memory: &Memory) {
    /// assert!(!memory.is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.common.is_empty()
    }

    /// Returns how the importers of its apertures reach the memory.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(memory: &Memory) {
    /// let is_mapped = memory.sharing() != Sharing::Requests;
    /// # }
    /// ```
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Copies bytes out of the memory. If others write them meanwhile, old and new bytes are mixed.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut header = [0; 64];
    /// memory.read(0, &mut header)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::Range`], or `Forked`.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), AccessError> {
        read(self.mapped()?, offset, to)
    }

    /// Copies bytes into the memory, in ascending order. A reader sees all or none of the new bytes
    /// of each aligned word of 8 bytes that the write covers completely.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// memory.write(64, b"for the peer")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::Range`], or `Forked`.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        write(self.mapped()?, offset, from)
    }

    /// Returns the aligned word of 8 bytes at an offset. The application then also sees all that
    /// the writer of the word wrote before it, here and in other memory.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// let sequence = memory.load(0)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::Range`], or `Forked`.
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, AccessError> {
        let mapped = self.mapped()?;
        inside(mapped.load(offset), offset, 8, mapped)
    }

    /// Stores an aligned word of 8 bytes. A reader that loads it also sees all that this thread
    /// wrote before.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// memory.write(64, b"for the peer")?;
    /// // A reader that loads 1 also sees the bytes.
    /// memory.store(0, 1)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::Range`], or `Forked`.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), AccessError> {
        let mapped = self.mapped()?;
        inside(mapped.store(offset, value).then_some(()), offset, 8, mapped)
    }
}

/// An aperture of another session's memory that this session imported ([`crate::Memories::import`]).
///
/// Each access first looks whether the aperture still exists: one load of a word that the server
/// writes. The owner can revoke the aperture at any time. Its memory stays mapped while this value
/// lives, and an access under way when the owner revokes it still takes place. Dropping the value
/// releases nothing at the server, as with [`Memory`]: see [`crate::Memories::release_aperture`].
#[derive(Debug)]
pub struct Aperture {
    pub(crate) number: u32,
    pub(crate) key: ApertureKey,
    pub(crate) access: Access,
    pub(crate) len: usize,
    /// The range; `None` if it is not mapped.
    pub(crate) mapped: Option<CommonMemory>,
    pub(crate) state: PeerWords,
    pub(crate) guard: ForkGuard,
    /// The number of the memory, of which the session has one mapping for each kind of access.
    pub(crate) memory: u64,
}

impl Aperture {
    /// Returns the length in bytes.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) {
    /// println!("{} bytes", aperture.len());
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: an aperture has at least one byte.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) {
    /// assert!(!aperture.is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the rights.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) {
    /// let is_writable = aperture.access() != Access::Read;
    /// # }
    /// ```
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the key.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, aperture: &Aperture, own: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// let request = Request::read(aperture.key(), 0).local(own, 0..4096);
    /// session.requests().queue(endpoint, &request)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn key(&self) -> ApertureKey {
        self.key
    }

    /// Returns the state: only a valid aperture can be accessed.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) {
    /// let is_usable = aperture.state() == ApertureState::Valid;
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn state(&self) -> ApertureState {
        if !self.guard.is_parent() {
            return ApertureState::None;
        }
        ApertureState::from_word(self.state.observe(0))
    }

    /// Returns an error unless the aperture can be accessed.
    #[inline]
    pub(crate) fn check_valid(&self) -> Result<(), AccessError> {
        // A child does not have the page of the state.
        if self.guard.is_parent() && self.state.observe(0) == ApertureState::Valid as u64 {
            return Ok(());
        }
        Err(self.why_not(self.state()))
    }

    #[inline]
    fn mapped(&self, has_right: bool) -> Result<&CommonMemory, AccessError> {
        self.check_valid()?;
        if !has_right {
            return Err(AccessError::Rights);
        }
        self.mapped.as_ref().ok_or(AccessError::NotMapped)
    }

    #[cold]
    fn why_not(&self, state: ApertureState) -> AccessError {
        match state {
            ApertureState::Revoked => AccessError::Revoked,
            ApertureState::Gone => AccessError::Gone,
            _ if !self.guard.is_parent() => AccessError::Forked,
            _ => AccessError::Closed,
        }
    }

    /// Copies bytes out of the aperture, as [`Memory::read`] does.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut header = [0; 64];
    /// aperture.read(0, &mut header)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), AccessError> {
        read(self.mapped(self.access.reads())?, offset, to)
    }

    /// Copies bytes into the aperture, as [`Memory::write`] does.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) -> Result<(), Box<dyn std::error::Error>> {
    /// aperture.write(64, b"for the owner")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        write(self.mapped(self.access.writes())?, offset, from)
    }

    /// Returns an aligned word, as [`Memory::load`] does. Words are aligned in the memory that the
    /// aperture is of.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) -> Result<(), Box<dyn std::error::Error>> {
    /// let sequence = aperture.load(0)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, AccessError> {
        let mapped = self.mapped(self.access.reads())?;
        inside(mapped.load(offset), offset, 8, mapped)
    }

    /// Stores an aligned word, as [`Memory::store`] does.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(aperture: &Aperture) -> Result<(), Box<dyn std::error::Error>> {
    /// aperture.write(64, b"for the owner")?;
    /// aperture.store(0, 1)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`AccessError`].
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), AccessError> {
        let mapped = self.mapped(self.access.writes())?;
        inside(mapped.store(offset, value).then_some(()), offset, 8, mapped)
    }
}
