//! The beginning and the end of a session's apertures.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use towpath_engine::account::Account;
use towpath_engine::apertures::memory::EngineMemory;
use towpath_protocol::layout::SessionShape;

use super::objects::{Entry, ObjectKind, Objects};
use super::tables::{ApertureTables, Creating, MemoryFile, Released, memory_name};
use crate::connections::Connections;
use crate::control::Control;
use crate::prepare::{self, Prepared};
use crate::worker::link::Packet;
use crate::worker::owner::Owner;
use crate::worker::wire::command;

impl Control {
    /// Makes the tables of a session that may have apertures, and their record for a successor.
    pub(crate) fn make_apertures(
        &mut self,
        number: u32,
        shape: &SessionShape,
        is_resumable: bool,
        prepared: &Prepared,
    ) -> io::Result<Option<Box<ApertureTables>>> {
        if shape.apertures() == 0 {
            return Ok(None);
        }
        let mut objects = Objects::new(number, shape);
        if is_resumable {
            let file = objects.create_record()?;
            let store = self.store.as_mut();
            prepare::store(store, number, prepare::APERTURES, file.as_fd())?;
        }
        let armed = prepared.readable_armed()?;
        Ok(Some(Box::new(ApertureTables::with(objects, armed))))
    }

    /// Returns the account of a session that maps a memory as its importer.
    pub(super) fn importer_of(&self, id: u64) -> Option<Account> {
        importers_of(&self.connections, id).next()
    }

    /// Locks a memory if there is a swap device, so that the engine need not wait for it.
    pub(super) fn lock_memory(&mut self, memory: &EngineMemory) {
        if let EngineMemory::Mapped(memory) = memory {
            self.mapping_jobs.lock([memory.mapping()].into_iter());
        }
    }

    /// Disposes of the memories of a session that has ended, and forgets its apertures. The session's
    /// connection does not have them any more.
    pub(crate) fn dispose_of_memories(
        &mut self,
        mut apertures: ApertureTables,
        worker: u64,
        account: Account,
    ) {
        let number = apertures.objects.session;
        self.shared.tripwires.remove_all(&apertures.objects);
        if let Some(creating) = apertures.creating.take() {
            self.dispose_of_unfinished(number, creating, worker, account);
        }
        let memories: Vec<_> = apertures.files.keys().copied().collect();
        for memory in memories {
            let entry = apertures.objects.get(ObjectKind::Memory, memory);
            if let (Some(entry), Some(file)) = (entry, apertures.files.remove(&memory)) {
                self.dispose_of_memory(number, &entry, file, worker, account);
            }
        }
        // Importers have duplicates of this descriptor, by which they can prolong its close.
        let armed: Vec<_> = apertures.armed.take().into_iter().collect();
        let dispose = Packet::new(command::DISPOSE, 0, 0).with(armed);
        self.workers.tell(worker, Owner::of(account), dispose);
        self.shared.exported.forget_session(&apertures.objects);
        for id in apertures.mapped.keys() {
            self.free_if_unmapped(*id);
        }
    }

    /// Disposes of a memory that no application has yet.
    fn dispose_of_unfinished(
        &mut self,
        session: u32,
        Creating { entry, file, memory, .. }: Creating,
        worker: u64,
        account: Account,
    ) {
        if memory.is_some() {
            let file = MemoryFile { file, memory };
            return self.dispose_of_memory(session, &entry, file, worker, account);
        }
        // It is not in the store before it is mapped.
        self.shared.counted.give_back(account);
        let dispose = Packet::new(command::DISPOSE, 0, command::WIPE).with(vec![file.into()]);
        self.workers.tell(worker, Owner::of(account), dispose);
    }

    /// Closes the memories of a session at the server's end. Returns the descriptors, some of which
    /// applications can reach.
    pub(crate) fn close_memories(&mut self, apertures: ApertureTables) -> Vec<OwnedFd> {
        let mut files: Vec<OwnedFd> = apertures.armed.into_iter().collect();
        // A successor finds no entry of a memory that was being created, and drops it.
        files.extend(apertures.creating.map(|one| OwnedFd::from(one.file)));
        for (number, MemoryFile { file, .. }) in apertures.files {
            let entry = apertures.objects.get(ObjectKind::Memory, number);
            if let Some(entry) = entry.filter(|_| !self.server_run.leaves()) {
                let name = memory_name(apertures.objects.session, entry.offset);
                files.append(&mut self.store.remove(&name));
            }
            files.push(file.into());
        }
        files
    }

    /// Disposes of a memory whose owner has released it, or has ended. As long as an importer maps
    /// it, the server keeps a descriptor, so that it can free the memory afterwards. It then counts as the importer's.
    ///
    /// A process that can write to the file can prolong a wipe without limit: it holds the inode's lock while it writes
    /// from a page that never arrives. So the worker of a user that cannot write to the file never wipes this file.
    pub(super) fn dispose_of_memory(
        &mut self,
        session: u32,
        entry: &Entry,
        MemoryFile { file, memory: reached }: MemoryFile,
        worker: u64,
        account: Account,
    ) {
        if let Some(reached) = reached {
            self.unmap(reached);
        }
        self.shared.counted.give_back(account);
        let writer = entry.writer().map(|uid| self.account_of(uid));
        let (id, bytes) = (entry.offset, entry.len as usize);
        let memory = Released { id, file: file.into(), bytes, owner: account, writer };
        let importer = self.importer_of(id);
        let is_kept = importer.is_some() || writer.is_some();
        // The next server finds the memory under one of the names.
        let is_stored = is_kept && self.store.put(&memory.name(), memory.file.as_fd()).is_ok();
        let stored = self.store.remove(&memory_name(session, id));
        if !stored.is_empty() {
            let close = Packet::new(command::DISPOSE, 0, 0).with(stored);
            self.workers.tell(worker, Owner::of(account), close);
        }
        match importer.filter(|_| is_stored) {
            Some(importer) => self.shared.counted.keep(memory, importer),
            None => self.wipe_released(memory),
        }
    }

    /// Frees a memory whose owner has released it, once no importer maps it any more, as far as the
    /// server knows. Until then, the memory counts as that of an importer who maps it.
    pub(super) fn free_if_unmapped(&mut self, id: u64) {
        let importers = importers_of(&self.connections, id);
        if let Some(memory) = self.shared.counted.recount(id, importers) {
            self.wipe_released(memory);
        }
    }
}

/// Returns the accounts of the sessions that map a memory as importers.
fn importers_of(connections: &Connections, id: u64) -> impl Iterator<Item = Account> {
    let maps = move |tables: &ApertureTables| tables.mapped.contains_key(&id);
    let importers = connections.sessions().filter(move |one| one.apertures().is_some_and(maps));
    importers.map(|one| one.application.account)
}
