//! The beginning and the end of a session's apertures.

use std::io;
use std::os::fd::AsFd;

use towpath_memory::CommonMemory;
use towpath_protocol::layout::SessionShape;

use super::objects::{Entry, Objects, What};
use super::tables::{MemoryFile, SessionApertures, memory_id, memory_name};
use crate::control::Control;
use crate::prepare::{self, Prepared, stored_name};
use crate::worker::link::Packet;
use crate::worker::wire::command;
use crate::worker::workers::Owner;

impl Control {
    /// Makes the tables of a session that may have apertures, and their record for a successor.
    pub(crate) fn make_apertures(
        &mut self,
        number: u32,
        shape: &SessionShape,
        is_resumable: bool,
        prepared: &Prepared,
    ) -> io::Result<Option<Box<SessionApertures>>> {
        if shape.apertures() == 0 {
            return Ok(None);
        }
        let mut objects = Objects::new(number, shape);
        if is_resumable {
            let file = objects.create_record()?;
            let store = self.parts.store.as_mut();
            prepare::store(store, number, prepare::APERTURES, file.as_fd())?;
        }
        let armed = prepared.readable_armed()?;
        Ok(Some(Box::new(SessionApertures::with(objects, armed))))
    }

    /// Returns `true` if an importer maps a memory.
    pub(super) fn is_mapped(&self, id: u64) -> bool {
        let all = self.connections.sessions().filter_map(|one| one.apertures.as_ref());
        all.into_iter().any(|one| one.mapped.contains_key(&id))
    }

    /// Locks a memory if there is a swap device, so that the engine need not wait for it.
    pub(super) fn lock_memory(&mut self, memory: &CommonMemory) {
        if !self.slow.populates_all {
            return;
        }
        if let Err(error) = memory.mapping().lock() {
            self.cannot_lock(&error);
        }
    }

    /// Disposes of the memories of a session that has ended, and forgets its apertures.
    pub(crate) fn dispose_of_memories(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let (worker, uid) = (connection.worker, connection.account.uid);
        let Some(mut apertures) = connection.apertures.take() else { return };
        let number = apertures.objects.session;
        let memories: Vec<_> = apertures.files.keys().copied().collect();
        for memory in memories {
            let entry = apertures.objects.get(What::Memory, memory);
            let is_mapped = entry.is_some_and(|one| self.is_mapped(memory_id(number, &one)));
            let flags = if is_mapped { 0 } else { command::WIPE };
            let mut files = self.parts.store.remove(&stored_name(number, &memory_name(memory)));
            if let Some(MemoryFile { file, mapped }) = apertures.files.remove(&memory) {
                files.push(file.into());
                self.workers.drop_later(mapped);
            }
            let dispose = Packet::new(command::DISPOSE, 0, flags).with(files);
            self.workers.tell(worker, Owner::User(uid), dispose);
        }
        for (_, entry) in apertures.objects.all(What::Aperture) {
            if entry.kind == Entry::EXPORTED {
                self.aperture_keys.remove(&entry.key);
            } else if let Some(key) = self.aperture_keys.get_mut(&entry.key) {
                key.imported = key.imported.filter(|(session, _)| *session != number);
            }
        }
    }
}
