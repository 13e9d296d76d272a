//! The apertures of the sessions that this server resumes.

use super::left::copies;
use super::objects::{Entry, What};
use super::requests::{exporting, place_command};
use super::tables::ApertureKey;
use crate::control::Control;
use crate::engine::apertures::commands::ApertureCommand;
use crate::engine::commands::Command;
use crate::engine::oob::connection::EndpointName;
use crate::engines::Reply;

impl Control {
    /// Enters the apertures that a resumed session exports. The engine checks that they are valid.
    pub(crate) fn restore_exports(&mut self, token: u64) {
        let Some(connection) = self.connections.get(token) else { return };
        let Some(apertures) = &connection.apertures else { return };
        let session = apertures.objects.session;
        let bytes: u64 = apertures.objects.all(What::Memory).map(|(_, one)| one.len).sum();
        let entries = copies(&apertures.objects, What::Aperture);
        let tripwires = copies(&apertures.objects, What::Tripwire);
        let memories: Vec<_> =
            apertures.files.iter().map(|(number, one)| (*number, one.mapped.clone())).collect();
        self.connections.add_bytes(token, bytes as usize);
        for (number, memory) in memories {
            self.lock_memory(&memory);
            self.command_first(
                ApertureCommand::AddMemory { session, number, memory },
                Reply::Nothing,
            );
        }
        for (number, entry) in tripwires.into_iter().filter(|(_, one)| one.kind == Entry::TRIPWIRE)
        {
            let command = place_command(session, number, &entry, true);
            self.command_first(command, Reply::Nothing);
        }
        for (number, entry) in entries.into_iter().filter(|(_, one)| one.kind == Entry::EXPORTED) {
            let key = ApertureKey { owner: session, number, imported: None };
            self.aperture_keys.insert(entry.key, key);
            let owner = EndpointName { session, endpoint: entry.endpoint };
            let peer = EndpointName { session: entry.other_session, endpoint: entry.other };
            let exporting = exporting(owner, number, &entry, Some(peer));
            self.command_first(ApertureCommand::Export(Box::new(exporting)), Reply::Nothing);
        }
    }

    /// Enters the apertures and tripwires that resumed sessions imported, once all that are exported are
    /// entered.
    pub(crate) fn restore_imports(&mut self) {
        for token in self.connections.of_all() {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            let Some(apertures) = &mut connection.apertures else { continue };
            let session = apertures.objects.session;
            let entries = copies(&apertures.objects, What::Aperture);
            let tripwires = copies(&apertures.objects, What::Tripwire);
            let mut bytes = 0;
            for (number, entry) in
                entries.into_iter().filter(|(_, one)| one.kind == Entry::IMPORTED)
            {
                bytes += apertures.map(&entry);
                let key = self.aperture_keys.get_mut(&entry.key);
                if let Some(key) = key.filter(|one| one.owner == entry.other_session) {
                    key.imported = Some((session, number));
                }
                let command = ApertureCommand::Import { key: entry.key, session, number };
                self.parts.engines.command_each(vec![Command::Aperture(command)], Reply::Nothing);
            }
            self.connections.add_bytes(token, bytes);
            for (number, entry) in tripwires {
                if entry.kind == Entry::IMPORTED_TRIPWIRE {
                    self.enter_tripwire(session, number, Some(&entry));
                }
            }
        }
    }
}
