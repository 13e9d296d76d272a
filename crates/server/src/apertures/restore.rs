//! The apertures of the sessions that this server resumes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

use tracing::warn;

use super::exports::exporting;
use super::left::copies;
use super::objects::{Entry, What};
use super::tables::{ExportedAperture, memory_name, released_name};
use super::tripwires::set_tripwire_command;
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
        let memories: Vec<_> = apertures.files.keys().copied().collect();
        let account = connection.account;
        self.connections.add_bytes(token, bytes as usize);
        for number in memories {
            self.memories.add(account);
            let memory = match self.reach_restored(token, number) {
                Ok(memory) => memory,
                Err(error) => {
                    warn!(
                        session,
                        memory = number,
                        "requests to a memory fail from now on: {error}"
                    );
                    continue;
                }
            };
            self.lock_memory(&memory);
            self.command_first_lane(
                ApertureCommand::AddMemory { session, number, memory },
                Reply::Nothing,
            );
        }
        for (number, entry) in tripwires.into_iter().filter(|(_, one)| one.kind == Entry::TRIPWIRE)
        {
            let command = set_tripwire_command(session, number, &entry, true);
            self.command_first_lane(command, Reply::Nothing);
        }
        for (number, entry) in entries.into_iter().filter(|(_, one)| one.kind == Entry::EXPORTED) {
            let key = ExportedAperture { owner: session, number, imported: None };
            self.exported_apertures.insert(entry.key, key);
            let owner = EndpointName { session, endpoint: entry.endpoint };
            let peer = EndpointName { session: entry.other_session, endpoint: entry.other };
            let exporting = exporting(owner, number, &entry, Some(peer));
            self.command_first_lane(ApertureCommand::Export(Box::new(exporting)), Reply::Nothing);
        }
    }

    /// Sorts the memories that an earlier server left of a session. Those that the session does not
    /// have any more leave the store, and an importer may still map them. Returns the descriptors
    /// of no more use.
    pub(crate) fn sort_memories(
        &mut self,
        session: u32,
        memories: BTreeMap<u64, Vec<OwnedFd>>,
        released: &mut HashMap<u64, OwnedFd>,
    ) -> Vec<OwnedFd> {
        let connection = self.connections.token_of(session);
        let connection = connection.and_then(|token| self.connections.get(token));
        let tables = connection.and_then(|one| one.apertures.as_ref());
        let kept: HashSet<u64> = tables
            .iter()
            .flat_map(|one| one.objects.all(What::Memory).map(|(_, entry)| entry.offset))
            .collect();
        let mut unused = Vec::new();
        for (id, descriptors) in memories {
            let mut descriptors = descriptors.into_iter();
            if !kept.contains(&id) {
                unused.append(&mut self.parts.store.remove(&memory_name(session, id)));
                released.extend(descriptors.next().map(|file| (id, file)));
            }
            unused.extend(descriptors);
        }
        unused
    }

    /// Keeps the memories that their owners have released, and which importers map. Returns the
    /// descriptors of no more use.
    pub(crate) fn restore_released(&mut self, released: HashMap<u64, OwnedFd>) -> Vec<OwnedFd> {
        let mut unused = Vec::new();
        for (id, file) in released {
            // The owner is gone, and the memory is there for this importer.
            let Some(account) = self.importer_of(id) else {
                unused.append(&mut self.parts.store.remove(&released_name(id)));
                unused.push(file);
                continue;
            };
            let name = released_name(id);
            if self.parts.store.holds(&name) || self.parts.store.put(&name, file.as_fd()).is_ok() {
                self.released_memories.insert(id, (file, account));
                self.memories.add(account);
            }
        }
        unused
    }

    /// Enters the apertures and tripwires that resumed sessions imported, once all that are
    /// exported are entered.
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
                let key = self.exported_apertures.get_mut(&entry.key);
                if let Some(key) = key.filter(|one| one.owner == entry.other_session) {
                    key.imported = Some((session, number));
                }
                let command = ApertureCommand::Import { key: entry.key, session, number };
                self.parts.engines.command_each(vec![Command::Aperture(command)], Reply::Nothing);
            }
            self.connections.add_bytes(token, bytes);
            for (number, entry) in tripwires {
                if entry.kind == Entry::IMPORTED_TRIPWIRE {
                    self.tripwire_importers.enter(session, number, &entry);
                    self.update_imported_tripwire(session, number, Some(&entry));
                }
            }
        }
    }
}
