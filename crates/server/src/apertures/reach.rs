//! How the engine reaches the memories of sessions: by a mapping, or by the worker of the memory's user
//! ([`crate::copying`]).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_memory::SharedFile;
use towpath_protocol::settings::Setting;
use tracing::warn;

use super::copy_areas::area_name;
use super::objects::{Entry, What};
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

    /// Returns how the engine reaches a memory of a session. If it cannot, requests to the memory are refused, and the
    /// server logs why.
    fn reach_or_refuse(&mut self, token: u64, number: u32) -> Option<EngineMemory> {
        let apertures = self.connections.get(token)?.apertures.as_deref()?;
        let (session, entry) =
            (apertures.objects.session, apertures.objects.get(What::Memory, number)?);
        let file = apertures.files.get(&number)?.file.as_fd().try_clone_to_owned();
        let reached = file.and_then(SharedFile::adopt).and_then(|file| {
            let memory = self.reach(token, &entry, &file);
            // An application can prolong the close.
            self.workers.drop_later(file);
            memory
        });
        Some(reached.unwrap_or_else(|error| {
            warn!(session, memory = number, "requests to a memory fail from now on: {error}");
            EngineMemory::Refused(entry.len as usize)
        }))
    }

    /// Decides how the engine reaches a memory of an earlier server; `None` if the session has no such memory.
    pub(super) fn reach_restored(&mut self, token: u64, number: u32) -> Option<EngineMemory> {
        let memory = self.reach_or_refuse(token, number)?;
        let apertures = self.connections.get_mut(token)?.apertures.as_deref_mut()?;
        apertures.files.get_mut(&number)?.memory = Some(memory.clone());
        Some(memory)
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
        if let Some(area) = self.copy_areas.add_memory(worker) {
            return Ok(area);
        }
        let notified = self.workers.notified(worker).ok_or(io::ErrorKind::NotFound)?;
        let (area, file) = CopyArea::create(notified)?;
        let (area, name) = (Arc::new(area), area_name(account));
        self.forget_area(&name);
        self.parts.store.put(&name, file.as_fd())?;
        let set = Packet::new(command::SET_COPY_AREA, token, 0).with(vec![file]);
        self.workers.tell(worker, Owner::of(account), set);
        self.copy_areas.insert(worker, area.clone(), name);
        Ok(area)
    }

    /// Removes the copy areas of a name from the store. It keeps those whose earlier workers may still copy, for the
    /// next server.
    fn forget_area(&mut self, name: &str) {
        if !self.copy_areas.has_earlier(name) {
            // Only the server, its keeper and their workers have the file.
            drop(self.parts.store.remove(name));
        }
    }

    /// Looks whether workers of an earlier server still copy.
    pub(crate) fn look_at_earlier_workers(&mut self) {
        for name in self.copy_areas.look_again() {
            self.forget_area(&name);
        }
    }

    /// Has the worker unmap a memory that the engine does not use any more, or the closing thread.
    pub(crate) fn unmap(&mut self, memory: EngineMemory) {
        if let EngineMemory::ByWorker(memory) = &memory {
            let (worker, account) = memory.worker;
            let unmap = Packet::new(command::UNMAP_MEMORY, 0, memory.id);
            self.workers.tell(worker, Owner::of(account), unmap);
            if let Some(name) = self.copy_areas.remove_memory(worker) {
                self.forget_area(&name);
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
        if let Some(memory) = self.reach_or_refuse(token, number) {
            self.set_memory(token, number, memory);
        }
    }

    /// Changes how the engine reaches a memory.
    fn set_memory(&mut self, token: u64, number: u32, memory: EngineMemory) {
        let connection = self.connections.get_mut(token);
        let Some(apertures) = connection.and_then(|one| one.apertures.as_deref_mut()) else {
            return;
        };
        let session = apertures.objects.session;
        let Some(file) = apertures.files.get_mut(&number) else { return };
        // The engine uses the former mapping until it has executed the command.
        let former = file.memory.replace(memory.clone());
        let change = ApertureCommand::ChangeMemory { session, number, memory };
        self.command_first_lane(change, former.map_or(Reply::Nothing, Reply::MemoryUnused));
    }
}
