//! The apertures that sessions import.

use std::os::fd::AsFd;

use towpath_engine::apertures::commands::ApertureCommand;
use towpath_protocol::apertures::{Access, Sharing};
use towpath_protocol::message::{Import, Imported, Message, Refusal};

use super::exported::ExportedAperture;
use super::lookup::{NewObject, refused};
use super::objects::{Entry, EntryWord, ObjectKind};
use crate::control::Control;
use crate::engines::Reply;
use crate::refusal::Refused;

impl Control {
    /// Has the engine let a session use an aperture that its endpoint was given.
    pub(crate) fn import(&mut self, token: u64, import: &Import) -> Result<(), Refused> {
        let what = "import";
        let objects = &self.connections.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(import.sequence, Entry::IMPORTED) {
            self.answer_import(token, number);
            return Ok(());
        }
        let NewObject { number, account: importer, apertures, .. } =
            self.connections.new_object(token, ObjectKind::Aperture, what)?;
        if import.reserved != 0 {
            return Err(refused(Refusal::Malformed, "import: the reserved field must be 0"));
        }
        let session = apertures.objects.session;
        let unknown = || {
            let text = "import: no aperture has this key and is for this endpoint's connection; the \
                        peer exports one, and sends its key; one of another host is used by requests";
            refused(Refusal::NotFound, text)
        };
        let key = self.shared.exported.get(import.key).ok_or_else(unknown)?;
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
        let owner = self.connections.of_session(key.owner).map(|one| one.application.account);
        if let Some(owner) = owner.filter(|_| is_mapped && writes) {
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
        self.connections.apertures(token, what)?.objects.put(ObjectKind::Aperture, number, entry);
        self.shared.exported.import(import.key, key.owner, session, number);
        let command = ApertureCommand::Import { key: import.key, session, number };
        self.command_first_lane(command, Reply::Imported(token, number));
        Ok(())
    }

    /// Returns an exported aperture, and its memory.
    pub(super) fn exported(&self, key: &ExportedAperture) -> Option<(Entry, Entry)> {
        let apertures = self.connections.apertures_of(key.owner)?;
        let exported = apertures.objects.get(ObjectKind::Aperture, key.number)?;
        let memory = apertures.objects.get(ObjectKind::Memory, exported.memory)?;
        (exported.kind == Entry::EXPORTED).then_some((exported, memory))
    }

    /// Counts the bytes of a memory that a session is about to map against its limits, unless it
    /// has the memory mapped already.
    fn charge_import(&mut self, token: u64, imported: &Entry) -> Result<(), Refused> {
        let bytes = self.connections.apertures(token, "import")?.map(imported);
        let charged = self.connections.charge_bytes(token, self.access.policy(), bytes);
        charged.map_err(|text| {
            if let Ok(apertures) = self.connections.apertures(token, "import") {
                apertures.unmap(imported);
            }
            refused(Refusal::Limit, format!("import: {text}"))
        })
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
        let apertures = self.connections.apertures(token, "import")?;
        let entry = apertures.objects.get(ObjectKind::Aperture, number);
        let entry = entry.filter(|one| one.access != 0).ok_or_else(gone)?;
        let key = self.shared.exported.get(entry.key).ok_or_else(gone)?;
        let (exported, memory) = self.exported(&key).ok_or_else(gone)?;
        let sharing = Sharing::from_number(memory.access).unwrap_or(Sharing::Requests);
        let mut handed = Vec::new();
        if sharing.is_mapped() {
            let owner = self.connections.apertures_of(key.owner).ok_or_else(gone)?;
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
        self.connections.apertures(token, "import")?.objects.record(ObjectKind::Aperture, number);
        self.answer_with(token, &Message::Imported(imported), handed, 0);
        Ok(())
    }

    /// Records that an importer's user can write to the file of a memory, if the memory is another user's.
    fn note_writer(&mut self, token: u64, key: &ExportedAperture, memory: u32) {
        let writer = self.connections.get(token).map(|one| one.application.account);
        let owner = self.connections.of_session_mut(key.owner);
        let owner = owner.filter(|(_, one)| {
            writer.is_some_and(|writer| one.application.account.user() != writer.user())
        });
        let owner = owner.and_then(|(owners, one)| Some((owners, one.apertures_mut()?)));
        let (Some(writer), Some((owners, apertures))) = (writer, owner) else { return };
        if let Some(entry) = apertures.objects.get_mut(ObjectKind::Memory, memory) {
            entry.endpoint = writer.uid.saturating_add(1);
        }
        apertures.objects.record_word(ObjectKind::Memory, memory, EntryWord::Endpoint);
        self.stop_mapping_memory(owners, memory);
    }

    /// Forgets an aperture that a session imported. Takes the memory's bytes off the session's if
    /// that was its last aperture there. Returns the command by which the engine forgets it.
    pub(super) fn release_import(&mut self, token: u64, number: u32) -> Option<ApertureCommand> {
        let apertures = self.connections.apertures(token, "release").ok()?;
        let session = apertures.objects.session;
        let entry = apertures.objects.get(ObjectKind::Aperture, number)?;
        let entry = Some(entry).filter(|one| one.kind == Entry::IMPORTED)?;
        apertures.objects.remove(ObjectKind::Aperture, number);
        let bytes = apertures.unmap(&entry);
        self.shared.exported.release(entry.key, session, number);
        self.connections.take_bytes(token, bytes);
        self.free_if_unmapped(entry.offset);
        Some(ApertureCommand::ReleaseImport { key: entry.key, session, number })
    }
}
