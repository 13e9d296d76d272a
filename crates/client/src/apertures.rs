//! The calls for memory, apertures and tripwires that ask the server.

use std::ops::Range;
use std::os::fd::OwnedFd;

use towpath_protocol::apertures::{Access, Sharing};
use towpath_protocol::message::{self, Message};

use crate::aperture_table::map_common;
use crate::error::{OpenError, not_mapped, wrong_answer};
use crate::memory::{Aperture, ApertureKey, Export, Memory};
use crate::options::Endpoint;
use crate::session::Session;
use crate::tripwire_table::{ImportedTripwire, Tripwire};

/// The part of a session that asks the server for memory, apertures and tripwires
/// ([`Session::memories`]).
///
/// Each call waits for the server's answer. If the server was killed, the call continues once another
/// server has resumed the session, so this part borrows all of the session.
#[derive(Debug)]
pub struct Memories<'a> {
    session: &'a mut Session,
}

impl Session {
    /// Returns the part that asks the server for memory, apertures and tripwires.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = session.memories().create(4096, Sharing::Requests)?;
    /// # Ok(()) }
    /// ```
    pub fn memories(&mut self) -> Memories<'_> {
        Memories { session: self }
    }
}

impl Memories<'_> {
    /// Creates memory of at least `bytes` bytes, up to 1 GiB, of which the session can export
    /// ranges. The server allocates it, and its bytes count against the policy's `session-bytes`
    /// and `bytes-per-user`.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = session.memories().create(1 << 20, Sharing::MapWrite)?;
    /// assert_eq!(memory.len(), 1 << 20);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn create(&mut self, bytes: usize, sharing: Sharing) -> Result<Memory, OpenError> {
        let create = message::CreateMemory {
            bytes: bytes as u64,
            sharing: sharing as u32,
            sequence: self.session.next_sequence(),
        };
        let (created, file) = self.ask_created(&Message::CreateMemory(create))?;
        let file = file.ok_or_else(wrong_answer)?;
        let guard = self.session.status.guard().clone();
        match map_common(file, true) {
            Ok(common) => Ok(Memory { number: created.number, common, sharing, guard }),
            Err(error) => {
                // This session does not use it.
                self.ask_release(message::RELEASE_MEMORY, created.number)?;
                Err(not_mapped(error))
            }
        }
    }

    /// Exports a range of a memory to the peer of an endpoint, with these rights, for as long as
    /// their connection lasts. The peer needs the key, which an out-of-band message can tell it.
    /// Also after the connection has ended, the aperture counts as one of the session's, and keeps
    /// its range, until [`Memories::revoke`]. For [`Aperture::load`] and `store`, the range begins
    /// at a multiple of 8.
    ///
    /// If the memory's sharing is not [`Sharing::Requests`], the peer **maps all of the memory**,
    /// and the rights of a mapping cannot be taken back. docs/apertures.md has more.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// let export = session.memories().export(endpoint, memory, 0..4096, Access::Read)?;
    /// println!("the key for the peer is {:?}", export.key());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]: the endpoint is not connected, the range is empty, not inside, or overlaps that of
    /// another aperture and one of the two may be written, or the session has as many apertures as
    /// it asked for.
    pub fn export(
        &mut self,
        endpoint: Endpoint,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Export, OpenError> {
        let export = message::Export {
            offset: range.start as u64,
            len: range.end.saturating_sub(range.start) as u64,
            endpoint: endpoint.number,
            memory: memory.number,
            access: access as u32,
            sequence: self.session.next_sequence(),
        };
        let (created, _) = self.ask_created(&Message::Export(export))?;
        Ok(Export { number: created.number, key: ApertureKey(created.key) })
    }

    /// Revokes an aperture that this session exports, or forgets one that has ended: the server may
    /// give its number to another one. When the call returns, the peer's library refuses each
    /// access, and the server carries out no request. A peer that mapped the memory and does not
    /// use this library can still access it, so the owner uses such memory for this peer alone.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, export: Export) -> Result<(), Box<dyn std::error::Error>> {
    /// session.memories().revoke(export)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn revoke(&mut self, export: Export) -> Result<(), OpenError> {
        self.ask_release(message::RELEASE_APERTURE, export.number)
    }

    /// Imports an aperture that the peer of an endpoint exports for their connection. If its memory
    /// is mapped, its bytes count against the limits of this session too, until this session
    /// releases its last aperture there: the owner cannot take a mapping back.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, key: ApertureKey) -> Result<(), Box<dyn std::error::Error>> {
    /// let aperture = session.memories().import(endpoint, key)?;
    /// println!("{} bytes", aperture.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]: there is no such aperture for this endpoint, it is imported already, or a limit is
    /// reached.
    pub fn import(&mut self, endpoint: Endpoint, key: ApertureKey) -> Result<Aperture, OpenError> {
        self.session.status.check()?;
        let import = message::Import {
            endpoint: endpoint.number,
            key: key.0,
            sequence: self.session.next_sequence(),
            reserved: 0,
        };
        let (answer, descriptors) = self.session.ask_with(&Message::Import(import))?;
        let Message::Imported(imported) = answer else {
            return Err(self.session.status.over().into());
        };
        let aperture = self.adopt_aperture(key, &imported, descriptors.into_iter().next());
        if aperture.is_err() {
            // This session does not use it.
            self.ask_release(message::RELEASE_APERTURE, imported.number)?;
        }
        aperture
    }

    fn adopt_aperture(
        &mut self,
        key: ApertureKey,
        imported: &message::Imported,
        file: Option<OwnedFd>,
    ) -> Result<Aperture, OpenError> {
        let access = Access::from_number(imported.access).ok_or_else(wrong_answer)?;
        let sharing = Sharing::from_number(imported.sharing).ok_or_else(wrong_answer)?;
        let (Ok(offset), Ok(len)) =
            (usize::try_from(imported.offset), usize::try_from(imported.len))
        else {
            return Err(wrong_answer());
        };
        let number = imported.number as usize;
        let apertures = self.session.apertures.as_mut().filter(|one| number < one.states.len());
        let apertures = apertures.ok_or_else(wrong_answer)?;
        let mut mapped = None;
        if sharing.is_mapped() {
            let id = (imported.memory, access.writes());
            let memory = apertures.map(id, file)?;
            mapped = memory.part(offset, len);
            if mapped.is_none() {
                apertures.unmap(id);
                return Err(wrong_answer());
            }
        }
        Ok(Aperture {
            number: imported.number,
            key,
            access,
            len,
            mapped,
            state: apertures.states.part(number, 1),
            guard: apertures.guard.clone(),
            memory: imported.memory,
        })
    }

    /// Releases an imported aperture. Its memory counts against this session no more once it has no
    /// other aperture there.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, aperture: Aperture) -> Result<(), Box<dyn std::error::Error>> {
    /// session.memories().release_aperture(aperture)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn release_aperture(&mut self, aperture: Aperture) -> Result<(), OpenError> {
        if let Some(apertures) =
            self.session.apertures.as_mut().filter(|_| aperture.mapped.is_some())
        {
            apertures.unmap((aperture.memory, aperture.access.writes()));
        }
        self.ask_release(message::RELEASE_APERTURE, aperture.number)
    }

    /// Releases a memory without exported apertures and without tripwires. Its content is lost,
    /// unless an importer still maps it; the value is of no more use.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// session.memories().release(memory)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]; then the memory is as before.
    pub fn release(&mut self, memory: &Memory) -> Result<(), OpenError> {
        self.ask_release(message::RELEASE_MEMORY, memory.number)
    }

    /// Sets a tripwire on a range of a memory of this session. It tells of these kinds of access,
    /// once it is armed ([`Tripwires::arm`](crate::Tripwires::arm)). It may overlap at most 8 others.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, memory: &Memory) -> Result<(), Box<dyn std::error::Error>> {
    /// let tripwire = session.memories().set_tripwire(memory, 0..8, Access::Write)?;
    /// session.tripwires().arm(tripwire);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]: the range is empty or not inside, 8 others overlap it, or the session has as many as
    /// it asked for ([`Options::tripwires`](crate::Options::tripwires)).
    pub fn set_tripwire(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Tripwire, OpenError> {
        let set = message::SetTripwire {
            offset: range.start as u64,
            len: range.end.saturating_sub(range.start) as u64,
            memory: memory.number,
            access: access as u32,
            sequence: self.session.next_sequence(),
            reserved: 0,
        };
        let (created, _) = self.ask_created(&Message::SetTripwire(set))?;
        Ok(Tripwire { number: created.number })
    }

    /// Imports a tripwire of an aperture's owner that lies in the aperture, by its number
    /// ([`Tripwire::number`]), so that this application can fire it after it has accessed the
    /// memory ([`Tripwires::trip`](crate::Tripwires::trip)). The owner tells the number, in an out-of-band message for
    /// instance. Both sessions need [`Options::tripwires`](crate::Options::tripwires).
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, aperture: &Aperture, number: u32) -> Result<(), Box<dyn std::error::Error>> {
    /// let tripwire = session.memories().import_tripwire(aperture, number)?;
    /// aperture.store(0, 1)?;
    /// session.tripwires().trip(tripwire)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]: the aperture has ended, or contains no such tripwire; or this session has as many as
    /// it asked for.
    pub fn import_tripwire(
        &mut self,
        aperture: &Aperture,
        number: u32,
    ) -> Result<ImportedTripwire, OpenError> {
        let import = message::ImportTripwire {
            aperture: aperture.number,
            tripwire: number,
            sequence: self.session.next_sequence(),
            reserved: 0,
        };
        let (created, armed) = self.ask_created(&Message::ImportTripwire(import))?;
        let table = self.session.apertures.as_mut().and_then(|one| one.tripwires.as_mut());
        let table = table.ok_or_else(wrong_answer)?;
        if let Err(error) = table.import(created.number, created.key, number, armed) {
            // This session does not use it.
            self.ask_release(message::RELEASE_TRIPWIRE, created.number)?;
            return Err(error);
        }
        Ok(ImportedTripwire { number: created.number })
    }

    /// Releases a tripwire that this session set.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, tripwire: Tripwire) -> Result<(), Box<dyn std::error::Error>> {
    /// session.memories().release_tripwire(tripwire)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn release_tripwire(&mut self, tripwire: Tripwire) -> Result<(), OpenError> {
        self.forget_tripwire(tripwire.number)
    }

    /// Releases a tripwire that this session imported.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, tripwire: ImportedTripwire) -> Result<(), Box<dyn std::error::Error>> {
    /// session.memories().release_imported_tripwire(tripwire)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn release_imported_tripwire(
        &mut self,
        tripwire: ImportedTripwire,
    ) -> Result<(), OpenError> {
        self.forget_tripwire(tripwire.number)
    }

    fn forget_tripwire(&mut self, number: u32) -> Result<(), OpenError> {
        self.ask_release(message::RELEASE_TRIPWIRE, number)?;
        if let Some(table) = self.session.apertures.as_mut().and_then(|one| one.tripwires.as_mut())
        {
            table.forget(number);
        }
        Ok(())
    }

    /// Asks for something new. Returns what the server says of it, and its descriptor.
    fn ask_created(
        &mut self,
        message: &Message,
    ) -> Result<(message::Created, Option<OwnedFd>), OpenError> {
        self.session.status.check()?;
        match self.session.ask_with(message)? {
            (Message::Created(created), descriptors) => {
                Ok((created, descriptors.into_iter().next()))
            }
            _ => Err(self.session.status.over().into()),
        }
    }

    fn ask_release(&mut self, kind: u32, number: u32) -> Result<(), OpenError> {
        self.session.status.check()?;
        self.session.ask_with(&Message::Release(message::Release { kind, number })).map(|_| ())
    }
}
