//! The apertures that sessions import.

use std::os::fd::AsFd;

use towpath_protocol::apertures::{Access, Sharing};
use towpath_protocol::message::{Import, Imported, Message, Refusal};

use super::lookup::refused;
use super::objects::{Entry, EntryWord, What};
use super::tables::{ApertureTables, ExportedAperture};
use crate::account::Account;
use crate::connection::Refused;
use crate::control::Control;
use crate::engine::apertures::commands::ApertureCommand;
use crate::engines::Reply;

impl Control {
    /// Has the engine let a session use an aperture that its endpoint was given.
    pub(crate) fn import(&mut self, token: u64, import: &Import) -> Result<(), Refused> {
        let what = "import";
        let objects = &self.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(import.sequence, Entry::IMPORTED) {
            self.answer_import(token, number);
            return Ok(());
        }
        let (number, apertures) = self.number_for(token, What::Aperture, what)?;
        if import.reserved != 0 {
            return Err(refused(Refusal::Malformed, "import: the reserved field must be 0"));
        }
        let session = apertures.objects.session;
        let unknown = || {
            let text = "import: no aperture has this key and is for this endpoint's connection; the \
                        peer exports one, and sends its key; one of another host is used by requests";
            refused(Refusal::NotFound, text)
        };
        let key = *self.exported_apertures.get(&import.key).ok_or_else(unknown)?;
        let (exported, memory) = self.exported(&key).ok_or_else(unknown)?;
        if (exported.other_session, exported.other) != (session, import.endpoint) {
            return Err(unknown());
        }
        if key.imported.is_some() {
            let text = "import: the aperture is imported already; use it, or release it first";
            return Err(refused(Refusal::InUse, text));
        }
        let is_mapped = Sharing::from_number(memory.access).is_some_and(Sharing::is_mapped);
        let writes = Access::from_number(exported.access).is_some_and(Access::writes);
        if let (true, Some(owner)) = (is_mapped && writes, self.account_of_session(key.owner))
            && let Some(importer) = self.account_of_session(session)
        {
            self.check_shared(importer, owner)?;
        }
        let entry = Entry {
            kind: Entry::IMPORTED,
            sequence: import.sequence,
            key: import.key,
            endpoint: import.endpoint,
            access: exported.access,
            other_session: key.owner,
            other: key.number,
            offset: memory.offset,
            len: if is_mapped { memory.len } else { 0 },
            ..Entry::default()
        };
        self.charge_import(token, &entry)?;
        self.apertures(token, what)?.objects.put(What::Aperture, number, entry);
        if let Some(key) = self.exported_apertures.get_mut(&import.key) {
            key.imported = Some((session, number));
        }
        let command = ApertureCommand::Import { key: import.key, session, number };
        self.command_first_lane(command, Reply::Imported(token, number));
        Ok(())
    }

    /// Returns the tables of a session, also if its application has yet to claim it.
    pub(super) fn tables_of(&self, session: u32) -> Option<&ApertureTables> {
        let token = self.connections.token_of(session)?;
        self.connections.get(token)?.apertures.as_deref()
    }

    /// Returns the account of a session.
    fn account_of_session(&self, session: u32) -> Option<Account> {
        let token = self.connections.token_of(session)?;
        self.connections.get(token).map(|one| one.account)
    }

    /// Returns an exported aperture, and its memory.
    pub(super) fn exported(&self, key: &ExportedAperture) -> Option<(Entry, Entry)> {
        let apertures = self.tables_of(key.owner)?;
        let exported = apertures.objects.get(What::Aperture, key.number)?;
        let memory = apertures.objects.get(What::Memory, exported.memory)?;
        (exported.kind == Entry::EXPORTED).then_some((exported, memory))
    }

    /// Counts the bytes of a memory that a session is about to map against its limits, unless it
    /// has the memory mapped already.
    fn charge_import(&mut self, token: u64, imported: &Entry) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let limits = self.parts.policy.limits(&connection.terms);
        let bytes = self.apertures(token, "import")?.map(imported);
        let charged = self.connections.charge_bytes(token, &limits, bytes);
        charged.map_err(|text| {
            if let Ok(apertures) = self.apertures(token, "import") {
                apertures.unmap(imported);
            }
            refused(Refusal::Limit, format!("import: {text}"))
        })
    }

    /// Records that the engine does not let a session use an aperture: it ended meanwhile.
    pub(super) fn aperture_imported(&mut self, session: u32, number: u32, entered: bool) {
        let Some(token) = self.connections.token_of(session).filter(|_| !entered) else { return };
        let connection = self.connections.get_mut(token);
        let Some(apertures) = connection.and_then(|one| one.apertures.as_mut()) else { return };
        if let Some(entry) = apertures.objects.get_mut(What::Aperture, number) {
            entry.access = 0;
        }
    }

    /// Answers a request to import, once the engine has let the session use the aperture.
    pub(crate) fn answer_import(&mut self, token: u64, number: u32) {
        if let Err(refused) = self.try_answer_import(token, number) {
            if let Some(release) = self.release_import(token, number) {
                self.command_first_lane(release, Reply::Nothing);
            }
            self.refuse(token, &refused);
        }
    }

    fn try_answer_import(&mut self, token: u64, number: u32) -> Result<(), Refused> {
        let gone = || refused(Refusal::State, "import: the aperture was revoked meanwhile");
        let apertures = self.apertures(token, "import")?;
        let entry = apertures.objects.get(What::Aperture, number);
        let entry = entry.filter(|one| one.access != 0).ok_or_else(gone)?;
        let key = *self.exported_apertures.get(&entry.key).ok_or_else(gone)?;
        let (exported, memory) = self.exported(&key).ok_or_else(gone)?;
        let sharing = Sharing::from_number(memory.access).unwrap_or(Sharing::Requests);
        let mut handed = Vec::new();
        if sharing.is_mapped() {
            let owner = self.tables_of(key.owner).ok_or_else(gone)?;
            let file = owner.files.get(&exported.memory);
            let file = &file.ok_or_else(gone)?.file;
            let writes = Access::from_number(exported.access).is_some_and(Access::writes);
            let descriptor = match writes {
                true => file.as_fd().try_clone_to_owned(),
                false => file.read_only(),
            };
            let failed = |error| refused(Refusal::Limit, format!("import: {error}"));
            handed.push(descriptor.map_err(failed)?);
            if writes {
                self.note_writer(token, &key, exported.memory);
            }
        }
        let imported = Imported {
            offset: exported.offset,
            len: exported.len,
            memory: memory.offset,
            number,
            access: exported.access,
            sharing: memory.access,
            reserved: 0,
        };
        self.apertures(token, "import")?.objects.record(What::Aperture, number);
        self.answer_with(token, &Message::Imported(imported), handed, 0);
        Ok(())
    }

    /// Records that an importer's user can write to the file of a memory, if the memory is another user's.
    fn note_writer(&mut self, token: u64, key: &ExportedAperture, memory: u32) {
        let writer = self.connections.get(token).map(|one| one.account);
        let Some(owners) = self.connections.token_of(key.owner) else { return };
        let (Some(writer), Some(owner)) = (writer, self.connections.get_mut(owners)) else {
            return;
        };
        if owner.account.user() == writer.user() {
            return;
        }
        let Some(apertures) = &mut owner.apertures else { return };
        if let Some(entry) = apertures.objects.get_mut(What::Memory, memory) {
            entry.endpoint = writer.uid.saturating_add(1);
        }
        apertures.objects.record_word(What::Memory, memory, EntryWord::Endpoint);
        self.stop_mapping_memory(owners, memory);
    }

    /// Forgets an aperture that a session imported. Takes the memory's bytes off the session's if
    /// that was its last aperture there. Returns the command by which the engine forgets it.
    pub(super) fn release_import(&mut self, token: u64, number: u32) -> Option<ApertureCommand> {
        let apertures = self.apertures(token, "release").ok()?;
        let session = apertures.objects.session;
        let entry = apertures.objects.get(What::Aperture, number)?;
        let entry = Some(entry).filter(|one| one.kind == Entry::IMPORTED)?;
        apertures.objects.remove(What::Aperture, number);
        if let Some(key) = self.exported_apertures.get_mut(&entry.key) {
            key.imported = key.imported.filter(|one| *one != (session, number));
        }
        let bytes = self.apertures(token, "release").map_or(0, |one| one.unmap(&entry));
        self.connections.take_bytes(token, bytes);
        self.free_if_unmapped(entry.offset);
        Some(ApertureCommand::ReleaseImport { key: entry.key, session, number })
    }
}
