//! The calls for memory, apertures and tripwires that ask the server.

use std::ops::Range;
use std::os::fd::OwnedFd;

use towpath_memory::SharedFile;
use towpath_protocol::apertures::{Access, Sharing};
use towpath_protocol::message::{self, Message};
use towpath_queue::tripwire::ArmedWord;

use crate::aperture_table::not_mapped;
use crate::error::{Lost, OpenError};
use crate::memory::{Aperture, ApertureKey, Export, Memory};
use crate::options::Endpoint;
use crate::session::Session;
use crate::tripwire_table::{ImportedTripwire, Tripwire};

impl Session {
    /// Creates memory of at least `bytes` bytes, up to 1 GiB, of which the session can export
    /// ranges. The server allocates it, and its bytes count against the policy's `session-bytes`
    /// and `bytes-per-user`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn create_memory(&mut self, bytes: usize, sharing: Sharing) -> Result<Memory, OpenError> {
        self.check()?;
        let create = message::CreateMemory {
            bytes: bytes as u64,
            sharing: sharing as u32,
            sequence: self.next_sequence(),
        };
        let (answer, descriptors) = self.ask_with(&Message::CreateMemory(create))?;
        let (Message::Created(created), Some(file)) = (answer, descriptors.into_iter().next())
        else {
            return Err(self.over().into());
        };
        let common = SharedFile::adopt(file).and_then(|file| file.map_common(true));
        let common = common.map_err(not_mapped)?;
        common.mapping().populate();
        Ok(Memory { number: created.number, common, sharing })
    }

    /// Exports a range of a memory to the peer of an endpoint, with these rights, for as long as
    /// their connection lasts. The peer needs the key, which an out-of-band message can tell it.
    /// Also after the connection has ended, the aperture counts as one of the session's, and keeps
    /// its range, until [`Session::revoke`]. For [`Aperture::load`] and `store`, the range begins
    /// at a multiple of 8.
    ///
    /// If the memory's sharing is not [`Sharing::Requests`], the peer **maps all of the memory**,
    /// and the rights of a mapping cannot be taken back. docs/apertures.md has more.
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
        self.check()?;
        let export = message::Export {
            offset: range.start as u64,
            len: range.end.saturating_sub(range.start) as u64,
            endpoint: endpoint.number,
            memory: memory.number,
            access: access as u32,
            sequence: self.next_sequence(),
        };
        match self.ask_with(&Message::Export(export))? {
            (Message::Created(created), _) => {
                Ok(Export { number: created.number, key: ApertureKey(created.key) })
            }
            _ => Err(self.over().into()),
        }
    }

    /// Revokes an aperture that this session exports, or forgets one that has ended: the server may
    /// give its number to another one. When the call returns, the peer's library refuses each
    /// access, and the server carries out no request. A peer that mapped the memory and does not
    /// use this library can still access it, so the owner uses such memory for this peer alone.
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
    /// # Errors
    /// [`OpenError`]: there is no such aperture for this endpoint, it is imported already, or a limit is
    /// reached.
    pub fn import(&mut self, endpoint: Endpoint, key: ApertureKey) -> Result<Aperture, OpenError> {
        self.check()?;
        let import = message::Import {
            endpoint: endpoint.number,
            key: key.0,
            sequence: self.next_sequence(),
            reserved: 0,
        };
        let (answer, descriptors) = self.ask_with(&Message::Import(import))?;
        let Message::Imported(imported) = answer else { return Err(self.over().into()) };
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
        let wrong = || OpenError::from(Lost::ServerWrong(towpath_queue::Violation::Range));
        let access = Access::from_number(imported.access).ok_or_else(wrong)?;
        let sharing = Sharing::from_number(imported.sharing).ok_or_else(wrong)?;
        let (Ok(offset), Ok(len)) =
            (usize::try_from(imported.offset), usize::try_from(imported.len))
        else {
            return Err(wrong());
        };
        let number = imported.number as usize;
        let Some(apertures) = self.apertures.as_mut().filter(|one| number < one.states.len())
        else {
            return Err(wrong());
        };
        let mut mapped = None;
        if sharing.is_mapped() {
            let id = (imported.memory, access.writes());
            let memory = apertures.map(id, file, wrong)?;
            mapped = memory.part(offset, len);
            if mapped.is_none() {
                apertures.unmap(id);
                return Err(wrong());
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
    /// # Errors
    /// [`OpenError`].
    pub fn release_aperture(&mut self, aperture: Aperture) -> Result<(), OpenError> {
        if let Some(apertures) = self.apertures.as_mut().filter(|_| aperture.mapped.is_some()) {
            apertures.unmap((aperture.memory, aperture.access.writes()));
        }
        self.ask_release(message::RELEASE_APERTURE, aperture.number)
    }

    /// Releases a memory without exported apertures and without tripwires. Its content is lost,
    /// unless an importer still maps it; the value is of no more use.
    ///
    /// # Errors
    /// [`OpenError`]; then the memory is as before.
    pub fn release_memory(&mut self, memory: &Memory) -> Result<(), OpenError> {
        self.ask_release(message::RELEASE_MEMORY, memory.number)
    }

    /// Sets a tripwire on a range of a memory of this session. It tells of these kinds of access,
    /// once it is armed ([`Session::arm_tripwire`]). It may overlap at most 8 others.
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
        self.check()?;
        let set = message::SetTripwire {
            offset: range.start as u64,
            len: range.end.saturating_sub(range.start) as u64,
            memory: memory.number,
            access: access as u32,
            sequence: self.next_sequence(),
            reserved: 0,
        };
        match self.ask_with(&Message::SetTripwire(set))? {
            (Message::Created(created), _) => Ok(Tripwire { number: created.number }),
            _ => Err(self.over().into()),
        }
    }

    /// Imports a tripwire of an aperture's owner that lies in the aperture, by its number
    /// ([`Tripwire::number`]), so that this application can fire it after it has accessed the
    /// memory ([`Session::trip`]). The owner tells the number, in an out-of-band message for
    /// instance. Both sessions need [`Options::tripwires`](crate::Options::tripwires).
    ///
    /// # Errors
    /// [`OpenError`]: the aperture has ended, or contains no such tripwire; or this session has as many as
    /// it asked for.
    pub fn import_tripwire(
        &mut self,
        aperture: &Aperture,
        number: u32,
    ) -> Result<ImportedTripwire, OpenError> {
        self.check()?;
        let import = message::ImportTripwire {
            aperture: aperture.number,
            tripwire: number,
            sequence: self.next_sequence(),
            reserved: 0,
        };
        let (answer, descriptors) = self.ask_with(&Message::ImportTripwire(import))?;
        let Message::Created(created) = answer else { return Err(self.over().into()) };
        let wrong = || OpenError::from(Lost::ServerWrong(towpath_queue::Violation::Range));
        let Some(apertures) = &mut self.apertures else { return Err(wrong()) };
        let armed = apertures.armed(created.key, descriptors.into_iter().next(), wrong)?;
        let armed = ArmedWord::new(armed, number).ok_or_else(wrong)?;
        if let Some(table) = &mut apertures.tripwires {
            table.import(created.number, armed);
        }
        Ok(ImportedTripwire { number: created.number })
    }

    /// Releases a tripwire that this session set.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn release_tripwire(&mut self, tripwire: Tripwire) -> Result<(), OpenError> {
        self.forget_tripwire(tripwire.number)
    }

    /// Releases a tripwire that this session imported.
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
        if let Some(table) = self.apertures.as_mut().and_then(|one| one.tripwires.as_mut()) {
            table.forget(number);
        }
        Ok(())
    }

    fn ask_release(&mut self, kind: u32, number: u32) -> Result<(), OpenError> {
        self.check()?;
        self.ask_with(&Message::Release(message::Release { kind, number })).map(|_| ())
    }
}
