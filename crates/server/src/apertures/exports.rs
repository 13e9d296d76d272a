//! The apertures that sessions export.

use towpath_protocol::apertures::{Access, Sharing, is_inside};
use towpath_protocol::message::{Created, Export, Message, Refusal};

use super::lookup::{outside, refused};
use super::objects::{Entry, EntryWord, What};
use super::tables::{ApertureTables, ExportedAperture, random};
use crate::connection::Refused;
use crate::control::Control;
use crate::engine::apertures::commands::{ApertureCommand, Exporting};
use crate::engine::oob::connection::EndpointName;
use crate::engines::Reply;

impl Control {
    /// Has the engine enter an aperture.
    pub(crate) fn export(&mut self, token: u64, export: &Export) -> Result<(), Refused> {
        let what = "export";
        let objects = &self.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(export.sequence, Entry::EXPORTED) {
            self.answer_export(token, number);
            return Ok(());
        }
        let (number, apertures) = self.number_for(token, What::Aperture, what)?;
        let entry = apertures.read_export(export)?;
        let session = apertures.objects.session;
        let connection = self.connections.get(token);
        let endpoint =
            connection.and_then(|one| one.endpoints.get(export.endpoint as usize)?.as_ref());
        if !endpoint.is_some_and(|one| one.out_of_band && !one.revoked) {
            let text = format!(
                "{what}: there is no endpoint {} that takes out-of-band messages; open one with \
                 Rule::out_of_band, and connect it",
                export.endpoint
            );
            return Err((Refusal::NotFound, text));
        }
        let key = self.new_key().map_err(|error| {
            refused(Refusal::Limit, format!("{what}: no random number for its key: {error}"))
        })?;
        let entry = Entry { key, ..entry };
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        let Some(apertures) = &mut connection.apertures else { return Ok(()) };
        apertures.objects.put(What::Aperture, number, entry);
        self.exported_apertures
            .insert(key, ExportedAperture { owner: session, number, imported: None });
        let owner = EndpointName { session, endpoint: export.endpoint };
        let exporting = exporting(owner, number, &entry, None);
        self.command_first_lane(
            ApertureCommand::Export(Box::new(exporting)),
            Reply::Exported(token, number),
        );
        Ok(())
    }

    /// Returns a key that no aperture has.
    fn new_key(&self) -> std::io::Result<u32> {
        loop {
            let key = u32::from_ne_bytes(random()?);
            if key != 0 && !self.exported_apertures.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    /// Records that the engine entered an aperture for an endpoint, or did not.
    pub(super) fn aperture_entered(
        &mut self,
        session: u32,
        number: u32,
        peer: Option<EndpointName>,
    ) {
        let Some(token) = self.connections.token_of(session) else { return };
        let connection = self.connections.get_mut(token);
        let Some(apertures) = connection.and_then(|one| one.apertures.as_mut()) else { return };
        let Some(entry) = apertures.objects.get_mut(What::Aperture, number) else { return };
        let peer = peer.unwrap_or(EndpointName { session: 0, endpoint: 0 });
        (entry.other_session, entry.other) = (peer.session, peer.endpoint);
    }

    /// Answers a request to export, once the engine has entered the aperture.
    pub(crate) fn answer_export(&mut self, token: u64, number: u32) {
        let Ok(apertures) = self.apertures(token, "export") else { return };
        let Some(entry) = apertures.objects.get(What::Aperture, number) else { return };
        match apertures.check_peer(&entry) {
            Ok(()) => {
                apertures.objects.record(What::Aperture, number);
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
        let apertures = self.apertures(token, "release").ok()?;
        let session = apertures.objects.session;
        let entry = apertures.objects.remove(What::Aperture, number)?;
        self.exported_apertures.remove(&entry.key);
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
        let mut others = self.objects.all(What::Aperture).filter(|(_, one)| {
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
        let Some(memory) = self.objects.get_mut(What::Memory, entry.memory) else { return Ok(()) };
        // That session may go on to map the memory, even after its apertures are revoked.
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
            self.objects.record_word(What::Memory, entry.memory, EntryWord::Other);
        }
        Ok(())
    }
}
