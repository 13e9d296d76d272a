//! The apertures of the sessions that this server resumes.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

use towpath_engine::apertures::commands::ApertureCommand;
use towpath_engine::commands::Command;
use towpath_engine::oob::connection::EndpointName;
use towpath_protocol::layout::SessionShape;

use super::exports::exporting;
use super::left::{LeftApertures, copies};
use super::objects::{Entry, ObjectKind};
use super::tables::{LeftMemory, Released, memory_name};
use super::tripwires::set_tripwire_command;
use crate::connection::Connection;
use crate::control::Control;
use crate::engines::Reply;

impl Control {
    /// Enters the apertures that a resumed session exports. The engine checks that they are valid.
    pub(crate) fn restore_exports(&mut self, token: u64) {
        // This also decides whether the engine maps the memories.
        self.decide_who_notifies(token);
        let of = self.connections.with_session(token);
        let of = of.and_then(|of| Some((of.application.account, of.session.apertures.as_deref()?)));
        let Some((account, apertures)) = of else { return };
        let session = apertures.objects.session;
        let bytes: u64 = apertures.objects.all(ObjectKind::Memory).map(|(_, one)| one.len).sum();
        let entries = copies(&apertures.objects, ObjectKind::Aperture);
        let tripwires = copies(&apertures.objects, ObjectKind::Tripwire);
        let memories: Vec<_> = apertures.files.keys().copied().collect();
        self.connections.add_bytes(token, bytes as usize);
        for number in memories {
            self.shared.counted.add(account);
            let Some(memory) = self.reach_restored(token, number) else { continue };
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
            self.shared.exported.enter(entry.key, session, number);
            let owner = EndpointName { session, endpoint: entry.endpoint };
            let peer = EndpointName { session: entry.other_session, endpoint: entry.other };
            let exporting = exporting(owner, number, &entry, Some(peer));
            self.command_first_lane(ApertureCommand::Export(Box::new(exporting)), Reply::Nothing);
        }
    }

    /// Sorts the memories that an earlier server left of a session. Those that the session does not
    /// have any more leave the store, and an importer may still map them. `of`: the session's user and its shape, if
    /// its record can be read. Returns the descriptors of no more use.
    pub(crate) fn sort_memories(
        &mut self,
        session: u32,
        left: &mut LeftApertures,
        of: Option<(u32, SessionShape)>,
        released: &mut HashMap<u64, LeftMemory>,
    ) -> Vec<OwnedFd> {
        let memories = std::mem::take(&mut left.memories);
        let tables = self.connections.apertures_of(session);
        let kept: HashSet<u64> = tables
            .iter()
            .flat_map(|one| one.objects.all(ObjectKind::Memory).map(|(_, entry)| entry.offset))
            .collect();
        let mut unused = Vec::new();
        let is_kept = memories.keys().all(|id| kept.contains(id));
        let writers = of.filter(|_| !is_kept).map(|(_, shape)| left.writers(session, &shape));
        let writers = writers.unwrap_or_default();
        for (id, descriptors) in memories {
            let mut descriptors = descriptors.into_iter();
            if !kept.contains(&id) {
                unused.append(&mut self.store.remove(&memory_name(session, id)));
                if let (Some((owner, _)), Some(file)) = (of, descriptors.next()) {
                    let writer = writers.get(&id).copied();
                    let memory = LeftMemory { file, owner, writer };
                    // A name of a released memory says more than the record, which may be cleared.
                    match released.entry(id) {
                        Slot::Occupied(_) => unused.push(memory.into_file()),
                        Slot::Vacant(slot) => drop(slot.insert(memory)),
                    }
                }
            }
            unused.extend(descriptors);
        }
        unused
    }

    /// Keeps the memories that their owners have released, and which importers map, and frees the others. Returns the
    /// descriptors of no more use.
    pub(crate) fn restore_released(&mut self, released: HashMap<u64, LeftMemory>) -> Vec<OwnedFd> {
        let mut unused = Vec::new();
        for (id, LeftMemory { file, owner, writer }) in released {
            let bytes = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as usize);
            let (owner, writer) = (self.account_of(owner), writer.map(|uid| self.account_of(uid)));
            let memory = Released { id, file, bytes, owner, writer };
            if self.has_memory(id) {
                // The earlier server ended while it released the memory, and the owner asks again.
                unused.append(&mut self.forget_released(memory));
                continue;
            }
            let name = memory.name();
            let is_stored =
                self.store.holds(&name) || self.store.put(&name, memory.file.as_fd()).is_ok();
            // The owner is gone, and the memory is there for this importer.
            match self.importer_of(id).filter(|_| is_stored) {
                Some(importer) => self.shared.counted.keep(memory, importer),
                None => self.wipe_released(memory),
            }
        }
        unused
    }

    /// Returns `true` if a session has a memory.
    fn has_memory(&self, id: u64) -> bool {
        let mut tables = self.connections.sessions().filter_map(Connection::apertures);
        tables.any(|one| one.objects.all(ObjectKind::Memory).any(|(_, entry)| entry.offset == id))
    }

    /// Enters the apertures and tripwires that resumed sessions imported, once all that are
    /// exported are entered.
    pub(crate) fn restore_imports(&mut self) {
        for token in self.connections.of_all() {
            let Some(apertures) = self.connections.apertures_mut(token) else { continue };
            let session = apertures.objects.session;
            let entries = copies(&apertures.objects, ObjectKind::Aperture);
            let tripwires = copies(&apertures.objects, ObjectKind::Tripwire);
            let mut bytes = 0;
            for (number, entry) in
                entries.into_iter().filter(|(_, one)| one.kind == Entry::IMPORTED)
            {
                bytes += apertures.map(&entry);
                let owner = entry.other_session;
                self.shared.exported.import(entry.key, owner, session, number);
                let command = ApertureCommand::Import { key: entry.key, session, number };
                self.engines.command_each(vec![Command::Aperture(command)], Reply::Nothing);
            }
            self.connections.add_bytes(token, bytes);
            for (number, entry) in tripwires {
                if entry.kind == Entry::IMPORTED_TRIPWIRE {
                    self.shared.tripwires.enter(session, number, &entry);
                    self.update_imported_tripwire(session, number, Some(&entry));
                }
            }
        }
    }
}
