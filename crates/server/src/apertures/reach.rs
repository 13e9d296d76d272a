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
        // A late copy of an earlier server's worker is to come before this server's.
        let may_map = !self.copy_areas.has_earlier(&area_name(account));
        if may_map && self.maps(connection.is_administrators(), entry) {
            let memory = file.map_common(true)?;
            memory.mapping().keep_from_children()?;
            return Ok(EngineMemory::Mapped(memory));
        }
        if entry.writer().is_some() {
            // The worker of one user would wait for what the other user does.
            return Ok(EngineMemory::Refused(file.len()));
        }
        let theirs = file.as_fd().try_clone_to_owned()?;
        let area = self.copy_area(token, (worker, account))?;
        let (id, len) = (entry.offset, file.len());
        let map = Packet::new(command::MAP_MEMORY, token, id).with(vec![theirs]);
        self.workers.tell(worker, Owner::of(account), map);
        let worker = (worker, account);
        Ok(EngineMemory::ByWorker(WorkerMemory { id, len, area, worker }))
    }

    /// Returns how the engine reaches a memory of an earlier server.
    ///
    /// # Errors
    /// Fails as [`Control::reach`] does.
    pub(super) fn reach_restored(&mut self, token: u64, number: u32) -> io::Result<EngineMemory> {
        let apertures = self.connections.get(token).and_then(|one| one.apertures.as_deref());
        let of_number = apertures.and_then(|apertures| copy_of(apertures, number));
        let (entry, file) = of_number.ok_or(io::ErrorKind::NotFound)?;
        let file = file?;
        let memory = self.reach(token, &entry, &file)?;
        self.workers.drop_later(file);
        let connection = self.connections.get_mut(token);
        let files = connection.and_then(|one| Some(&mut one.apertures.as_deref_mut()?.files));
        if let Some(file) = files.and_then(|files| files.get_mut(&number)) {
            file.memory = Some(memory.clone());
        }
        Ok(memory)
    }

    /// Returns `true` if the engine may map a memory. `is_trusted`: the memory's owner is an administrator.
    fn maps(&self, is_trusted: bool, entry: &Entry) -> bool {
        if self.parts.settings.is_on(Setting::Notify) {
            return false;
        }
        self.notifies_directly || is_trusted && entry.writer().is_none()
    }

    /// Returns the copy area of a worker, for one memory more. Creates it for the first one.
    fn copy_area(
        &mut self,
        token: u64,
        (worker, account): (u64, Account),
    ) -> io::Result<Arc<CopyArea>> {
        if let Some((area, memories)) = self.copy_areas.by_worker.get_mut(&worker) {
            *memories += 1;
            return Ok(area.clone());
        }
        let notified = self.workers.notified(worker).ok_or(io::ErrorKind::NotFound)?;
        let (area, file) = CopyArea::create(notified)?;
        let area = Arc::new(area);
        let name = area_name(account);
        // The store goes on to have the areas whose workers may still copy, for the next server.
        if !self.copy_areas.has_earlier(&name) {
            drop(self.parts.store.remove(&name));
        }
        self.parts.store.put(&name, file.as_fd())?;
        let set = Packet::new(command::SET_COPY_AREA, token, 0).with(vec![file]);
        self.workers.tell(worker, Owner::of(account), set);
        self.copy_areas.wait_for_earlier(&name, &area);
        self.copy_areas.by_worker.insert(worker, (area.clone(), 1));
        Ok(area)
    }

    /// Has the worker unmap a memory that the engine does not use any more, or the closing thread.
    pub(super) fn unmap(&mut self, memory: EngineMemory) {
        if let EngineMemory::ByWorker(memory) = &memory {
            let (worker, account) = memory.worker;
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

    /// Has the engine reach a memory in another way, if it must not reach it any more as it does.
    pub(super) fn stop_mapping_memory(&mut self, token: u64, number: u32) {
        let Some(connection) = self.connections.get(token) else { return };
        let is_trusted = connection.is_administrators();
        let Some(apertures) = connection.apertures.as_deref() else { return };
        let Some(entry) = apertures.objects.get(What::Memory, number) else { return };
        let is_allowed = match apertures.files.get(&number).and_then(|file| file.memory.as_ref()) {
            None | Some(EngineMemory::Refused(_)) => true,
            Some(EngineMemory::ByWorker(_)) => entry.writer().is_none(),
            Some(EngineMemory::Mapped(_)) => self.maps(is_trusted, &entry),
        };
        if is_allowed {
            return;
        }
        let session = apertures.objects.session;
        let Some((_, file)) = copy_of(apertures, number) else { return };
        let reached = file.and_then(|file| {
            let memory = self.reach(token, &entry, &file);
            self.workers.drop_later(file);
            memory
        });
        let memory = match reached {
            Ok(memory) => memory,
            Err(error) => {
                tracing::warn!(session, "requests to a memory fail from now on: {error}");
                EngineMemory::Refused(entry.len as usize)
            }
        };
        self.set_memory(token, number, memory);
    }

    /// Sets how the engine reaches a memory. The engine hands back how it did.
    fn set_memory(&mut self, token: u64, number: u32, memory: EngineMemory) {
        let connection = self.connections.get_mut(token);
        let Some(apertures) = connection.and_then(|one| one.apertures.as_deref_mut()) else {
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
