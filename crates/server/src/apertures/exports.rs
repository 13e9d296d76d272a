//! The apertures that sessions export.

use towpath_engine::apertures::commands::{ApertureCommand, Exporting};
use towpath_engine::oob::connection::EndpointName;
use towpath_protocol::apertures::{Access, Sharing, is_inside};
use towpath_protocol::message::{Created, Export, Message, Refusal};

use super::lookup::{NewObject, outside, refused};
use super::objects::{Entry, EntryWord, ObjectKind};
use super::tables::ApertureTables;
use crate::control::Control;
use crate::engines::Reply;
use crate::refusal::Refused;

impl Control {
    /// Has the engine enter an aperture.
    pub(crate) fn export(&mut self, token: u64, export: &Export) -> Result<(), Refused> {
        let what = "export";
        let objects = &self.connections.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(export.sequence, Entry::EXPORTED) {
            self.answer_export(token, number);
            return Ok(());
        }
        let NewObject { number, endpoints, apertures, .. } =
            self.connections.new_object(token, ObjectKind::Aperture, what)?;
        let entry = apertures.read_export(export)?;
        let session = apertures.objects.session;
        let endpoint = endpoints.get(export.endpoint);
        if !endpoint.is_some_and(|one| one.out_of_band && !one.revoked) {
            let text = format!(
                "{what}: there is no endpoint {} that takes out-of-band messages; open one with \
                 Rule::out_of_band, and connect it",
                export.endpoint
            );
            return Err((Refusal::NotFound, text));
        }
        let key = self.shared.exported.new_key().map_err(|error| {
            refused(Refusal::Limit, format!("{what}: no random number for its key: {error}"))
        })?;
        let entry = Entry { key, ..entry };
        apertures.objects.put(ObjectKind::Aperture, number, entry);
        self.shared.exported.enter(key, session, number);
        let owner = EndpointName { session, endpoint: export.endpoint };
        let exporting = exporting(owner, number, &entry, None);
        self.command_first_lane(
            ApertureCommand::Export(Box::new(exporting)),
            Reply::Exported(token, number),
        );
        Ok(())
    }

    /// Answers a request to export, once the engine has entered the aperture.
    pub(crate) fn answer_export(&mut self, token: u64, number: u32) {
        let apertures = self.connections.apertures(token, "export").ok();
        let found =
            apertures.and_then(|one| Some((one.objects.get(ObjectKind::Aperture, number)?, one)));
        let Some((entry, apertures)) = found else { return };
        match apertures.check_peer(&entry) {
            Ok(()) => {
                apertures.objects.record(ObjectKind::Aperture, number);
                let created = Created { number, key: entry.key };
                self.answer(token, &Message::Created(created));
            }
            Err(refused) => {
                if let Some(revoke) = self.revoke_aperture(token, number) {
                    self.command_first_lane(revoke, Reply::Nothing);
                }
                self.refuse(token, &refused);
            }
        }
    }

    /// Forgets an aperture that a session exports. Returns the command that revokes it.
    pub(super) fn revoke_aperture(&mut self, token: u64, number: u32) -> Option<ApertureCommand> {
        let apertures = self.connections.apertures(token, "release").ok()?;
        let session = apertures.objects.session;
        let entry = apertures.objects.remove(ObjectKind::Aperture, number)?;
        self.shared.exported.remove(entry.key);
        Some(ApertureCommand::Revoke { key: entry.key, session, number })
    }
}

/// Returns an aperture as the engine enters it. `resumed_for`: the endpoint that it was for under
/// an earlier server.
pub(super) fn exporting(
    owner: EndpointName,
    number: u32,
    entry: &Entry,
    resumed_for: Option<EndpointName>,
) -> Exporting {
    Exporting {
        key: entry.key,
        owner,
        number,
        memory: entry.memory,
        offset: entry.offset,
        len: entry.len,
        access: Access::from_number(entry.access).unwrap_or(Access::Read),
        resumed_for,
    }
}

impl ApertureTables {
    /// Reads a request to export.
    fn read_export(&self, export: &Export) -> Result<Entry, Refused> {
        let what = "export";
        let memory = self.memory(export.memory, what)?;
        let Some(access) = Access::from_number(export.access) else {
            return Err(refused(Refusal::Malformed, "export: unknown access"));
        };
        if !is_inside(export.offset, export.len, memory.len) {
            return Err(outside(what, export.offset, export.len, &memory));
        }
        if self.sharing(export.memory) == Sharing::MapRead && access.writes() {
            let text = "export: the memory's importers map it for reading; export it with Access::Read, \
                        or create a memory with another sharing";
            return Err(refused(Refusal::State, text));
        }
        let entry = Entry {
            kind: Entry::EXPORTED,
            sequence: export.sequence,
            memory: export.memory,
            endpoint: export.endpoint,
            access: export.access,
            offset: export.offset,
            len: export.len,
            ..Entry::default()
        };
        let writes = |one: &Entry| one.access & Access::Write as u32 != 0;
        let mut others = self.objects.all(ObjectKind::Aperture).filter(|(_, one)| {
            one.exports(export.memory) && one.overlaps(&entry) && (writes(one) || access.writes())
        });
        match others.next() {
            None => Ok(entry),
            Some((number, _)) => {
                let text = format!(
                    "export: the range overlaps that of aperture {number}, and one of the two may be \
                     written; revoke that one, or choose another range"
                );
                Err((Refusal::InUse, text))
            }
        }
    }

    /// Checks that an aperture may be for the endpoint at the other end of its connection.
    fn check_peer(&mut self, entry: &Entry) -> Result<(), Refused> {
        if entry.other_session == 0 {
            let text =
                format!("export: endpoint {} is not connected; connect it first", entry.endpoint);
            return Err((Refusal::State, text));
        }
        if self.sharing(entry.memory) != Sharing::MapWrite {
            return Ok(());
        }
        let Some(memory) = self.objects.get_mut(ObjectKind::Memory, entry.memory) else {
            return Ok(());
        };
        // That session may keep its mapping of the memory, even after its apertures are revoked.
        let before = memory.other_session;
        if before != 0 && before != entry.other_session {
            let text = format!(
                "export: only session {before} may map this memory for writing; create another memory for \
                 session {}",
                entry.other_session
            );
            return Err((Refusal::State, text));
        }
        if before == 0 {
            memory.other_session = entry.other_session;
            self.objects.record_word(ObjectKind::Memory, entry.memory, EntryWord::Other);
        }
        Ok(())
    }
}
