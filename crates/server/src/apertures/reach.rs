//! How the engine reaches the memories of sessions: by a mapping, or by the worker of the memory's user
//! ([`crate::copying`]).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_memory::SharedFile;
use towpath_protocol::settings::Setting;

use super::copy_areas::area_name;
use super::objects::{Entry, What};
use super::tables::ApertureTables;
use crate::account::Account;
use crate::control::Control;
use crate::copying::CopyArea;
use crate::engine::apertures::commands::ApertureCommand;
use crate::engine::apertures::memory::{EngineMemory, WorkerMemory};
use crate::engines::Reply;
use crate::worker::link::Packet;
use crate::worker::wire::command;
use crate::worker::workers::Owner;

impl Control {
    /// Returns how the engine reaches a new memory, and maps it if the engine does.
    ///
    /// # Errors
    /// Fails with the kernel's error if there are no descriptors or no memory.
    pub(super) fn reach(
        &mut self,
        token: u64,
        entry: &Entry,
        file: &SharedFile,
    ) -> io::Result<EngineMemory> {
        let Some(connection) = self.connections.get(token) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let (worker, account) = (connection.worker, connection.account);
        if self.maps(connection.trusted, entry) {
            let memory = file.map_common(true)?;
            memory.mapping().keep_from_children()?;
            return Ok(EngineMemory::Mapped(memory));
        }
        let theirs = file.as_fd().try_clone_to_owned()?;
        let area = self.copy_area(worker, account)?;
        let (id, len) = (entry.offset, file.len());
        let map = Packet::new(command::MAP_MEMORY, 0, id).with(vec![theirs]);
        self.workers.tell(worker, Owner::of(account), map);
        Ok(EngineMemory::ByWorker(WorkerMemory { id, len, area }))
    }

    /// Returns how the engine reaches a memory of an earlier server.
    ///
    /// # Errors
    /// Fails as [`Control::reach`] does.
    pub(super) fn reach_restored(&mut self, token: u64, number: u32) -> io::Result<EngineMemory> {
        let apertures = self.connections.get(token).and_then(|one| one.apertures.as_deref());
        let of_number = apertures.and_then(|apertures| copy_of(apertures, number));
        let (entry, file) = of_number.ok_or(io::ErrorKind::NotFound)?;
        let memory = self.reach(token, &entry, &file?)?;
        let connection = self.connections.get_mut(token);
        let files = connection.and_then(|one| Some(&mut one.apertures.as_deref_mut()?.files));
        if let Some(file) = files.and_then(|files| files.get_mut(&number)) {
            file.memory = Some(memory.clone());
        }
        Ok(memory)
    }

    /// Returns `true` if the engine maps a memory. `is_trusted`: its owner's user is.
    fn maps(&self, is_trusted: bool, entry: &Entry) -> bool {
        if self.parts.settings.is_on(Setting::Notify) {
            return false;
        }
        self.notifies_directly || is_trusted && entry.writer().is_none()
    }

    /// Returns the copy area of a worker, for one memory more. Creates it for the first one.
    fn copy_area(&mut self, worker: u64, account: Account) -> io::Result<Arc<CopyArea>> {
        if let Some((area, memories)) = self.copy_areas.by_worker.get_mut(&worker) {
            *memories += 1;
            return Ok(area.clone());
        }
        let notified = self.workers.notified(worker).ok_or(io::ErrorKind::NotFound)?;
        let (area, file) = CopyArea::create(notified)?;
        let area = Arc::new(area);
        let name = area_name(account);
        // Only this server, its predecessor and their workers have the file.
        drop(self.parts.store.remove(&name));
        self.parts.store.put(&name, file.as_fd())?;
        let set = Packet::new(command::SET_COPY_AREA, 0, 0).with(vec![file]);
        self.workers.tell(worker, Owner::of(account), set);
        self.copy_areas.wait_for_earlier(&name, &area);
        self.copy_areas.by_worker.insert(worker, (area.clone(), 1));
        Ok(area)
    }

    /// Has the worker unmap a memory that the engine has removed, or the closing thread.
    pub(super) fn unmap(&mut self, memory: EngineMemory, (worker, account): (u64, Account)) {
        if let EngineMemory::ByWorker(memory) = &memory {
            let unmap = Packet::new(command::UNMAP_MEMORY, 0, memory.id);
            self.workers.tell(worker, Owner::of(account), unmap);
            if self.copy_areas.remove_memory(worker) {
                drop(self.parts.store.remove(&area_name(account)));
                let forget = Packet::new(command::SET_COPY_AREA, 0, 0);
                self.workers.tell(worker, Owner::of(account), forget);
            }
        }
        self.workers.drop_later(memory);
    }

    /// Has workers reach the memories that the engine maps and must not map any more.
    pub(crate) fn stop_mapping(&mut self) {
        for token in self.connections.of_all() {
            let Some(apertures) =
                self.connections.get(token).and_then(|one| one.apertures.as_deref())
            else {
                continue;
            };
            let memories: Vec<u32> = apertures.files.keys().copied().collect();
            for number in memories {
                self.stop_mapping_memory(token, number);
            }
        }
    }

    /// Has a worker reach a memory if the engine maps it and must not map it any more.
    pub(super) fn stop_mapping_memory(&mut self, token: u64, number: u32) {
        let Some(connection) = self.connections.get(token) else { return };
        let is_trusted = connection.trusted;
        let Some(apertures) = connection.apertures.as_deref() else { return };
        let copy = copy_of(apertures, number).filter(|_| is_mapped(apertures, number));
        let Some((entry, file)) = copy else { return };
        if self.maps(is_trusted, &entry) {
            return;
        }
        let session = apertures.objects.session;
        let reached = file.and_then(|file| self.reach(token, &entry, &file));
        let memory = match reached {
            Ok(memory) => memory,
            Err(error) => {
                tracing::warn!(session, "a memory's requests fail from now on: {error}");
                return self.lose_memory(token, number);
            }
        };
        self.set_memory(token, number, memory);
    }

    /// Makes all requests to a memory fail: no worker can reach it.
    fn lose_memory(&mut self, token: u64, number: u32) {
        let Some(apertures) = self.connections.get(token).and_then(|one| one.apertures.as_deref())
        else {
            return;
        };
        let session = apertures.objects.session;
        let remove = ApertureCommand::RemoveMemory { session, number };
        self.command_first_lane(remove, Reply::Nothing);
    }

    fn set_memory(&mut self, token: u64, number: u32, memory: EngineMemory) {
        let Some(apertures) =
            self.connections.get_mut(token).and_then(|one| one.apertures.as_deref_mut())
        else {
            return;
        };
        let session = apertures.objects.session;
        if let Some(file) = apertures.files.get_mut(&number) {
            let before = file.memory.replace(memory.clone());
            self.workers.drop_later(before);
        }
        let change = ApertureCommand::ChangeMemory { session, number, memory };
        self.command_first_lane(change, Reply::Nothing);
    }
}

/// Returns the record and a duplicate of the file of a memory.
fn copy_of(apertures: &ApertureTables, number: u32) -> Option<(Entry, io::Result<SharedFile>)> {
    let entry = apertures.objects.get(What::Memory, number)?;
    let file = apertures.files.get(&number)?;
    Some((entry, file.file.as_fd().try_clone_to_owned().and_then(SharedFile::adopt)))
}

/// Returns `true` if the engine maps a memory.
fn is_mapped(apertures: &ApertureTables, number: u32) -> bool {
    let file = apertures.files.get(&number);
    file.is_some_and(|file| matches!(file.memory, Some(EngineMemory::Mapped(_))))
}
