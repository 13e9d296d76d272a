//! How the engine reaches the memories of sessions: by a mapping, or by the worker of the memory's user
//! ([`towpath_memory::copying`]).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use towpath_engine::account::Account;
use towpath_engine::apertures::commands::ApertureCommand;
use towpath_engine::apertures::memory::{EngineMemory, WorkerMemory};
use towpath_memory::SharedFile;
use towpath_memory::copying::CopyArea;
use towpath_protocol::settings::Setting;
use tracing::warn;

use super::copy_areas::area_name;
use super::objects::{Entry, ObjectKind};
use crate::connection::Connection;
use crate::control::Control;
use crate::engines::Reply;
use crate::worker::link::Packet;
use crate::worker::owner::Owner;
use crate::worker::wire::command;

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
        let connection = self.connections.get(token).ok_or(io::ErrorKind::NotFound)?;
        let application = &connection.application;
        let (worker, account) = (application.worker, application.account);
        // A late copy of an earlier server's worker is to come before this server's.
        let may_map = !self.shared.copy_areas.has_earlier(&area_name(account));
        if may_map && self.maps(application.is_administrators(), entry) {
            let memory = file.map_common(true)?;
            memory.mapping().keep_from_children()?;
            return Ok(EngineMemory::Mapped(memory));
        }
        if entry.writer().is_some() {
            // The other user could make this worker wait.
            return Ok(EngineMemory::Refused(file.len()));
        }
        let theirs = file.as_fd().try_clone_to_owned()?;
        let area = self.copy_area(token, worker, account)?;
        let (id, len) = (entry.offset, file.len());
        let map = Packet::new(command::MAP_MEMORY, token, id).with(vec![theirs]);
        self.workers.tell(worker, Owner::of(account), map);
        let worker = (worker, account);
        Ok(EngineMemory::ByWorker(WorkerMemory { id, len, area, worker }))
    }

    /// Returns how the engine reaches a memory of a session. If it cannot, requests to the memory are refused, and the
    /// server logs why.
    fn reach_or_refuse(&mut self, token: u64, number: u32) -> Option<EngineMemory> {
        let apertures = self.connections.get(token)?.apertures()?;
        let (session, entry) =
            (apertures.objects.session, apertures.objects.get(ObjectKind::Memory, number)?);
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
        let apertures = self.connections.apertures_mut(token)?;
        apertures.files.get_mut(&number)?.memory = Some(memory.clone());
        Some(memory)
    }

    /// Returns `true` if the engine may map a memory. `is_trusted`: the memory's owner is an administrator.
    fn maps(&self, is_trusted: bool, entry: &Entry) -> bool {
        if self.device.settings().values().is_on(Setting::Notify) {
            return false;
        }
        self.engines.notify_directly() || is_trusted && entry.writer().is_none()
    }

    /// Returns the copy area of a worker, for one memory more. Creates it for the first one.
    fn copy_area(
        &mut self,
        token: u64,
        worker: u64,
        account: Account,
    ) -> io::Result<Arc<CopyArea>> {
        if let Some(area) = self.shared.copy_areas.add_memory(worker) {
            return Ok(area);
        }
        let notified = self.workers.notified(worker).ok_or(io::ErrorKind::NotFound)?;
        let (area, file) = CopyArea::create(notified)?;
        let (area, name) = (Arc::new(area), area_name(account));
        self.forget_area(&name);
        self.store.put(&name, file.as_fd())?;
        let set = Packet::new(command::SET_COPY_AREA, token, 0).with(vec![file]);
        self.workers.tell(worker, Owner::of(account), set);
        self.shared.copy_areas.insert(worker, area.clone(), name);
        Ok(area)
    }

    /// Removes the copy areas of a name from the store. It keeps the areas whose earlier workers may still copy, for
    /// the next server.
    fn forget_area(&mut self, name: &str) {
        if !self.shared.copy_areas.has_earlier(name) {
            // Only the server, its keeper and their workers have the file.
            drop(self.store.remove(name));
        }
    }

    /// Checks whether workers of an earlier server still copy.
    pub(crate) fn check_earlier_workers(&mut self) {
        for name in self.shared.copy_areas.look_again() {
            self.forget_area(&name);
        }
    }

    /// Has the worker unmap a memory that the engine does not use any more, or the closing thread.
    pub(crate) fn unmap(&mut self, memory: EngineMemory) {
        if let EngineMemory::ByWorker(memory) = &memory {
            let (worker, account) = memory.worker;
            let unmap = Packet::new(command::UNMAP_MEMORY, 0, memory.id);
            self.workers.tell(worker, Owner::of(account), unmap);
            if let Some(name) = self.shared.copy_areas.remove_memory(worker) {
                self.forget_area(&name);
                let forget = Packet::new(command::SET_COPY_AREA, 0, 0);
                self.workers.tell(worker, Owner::of(account), forget);
            }
        }
        self.workers.drop_later(memory);
    }

    /// Decides whether the engine itself notifies applications, after a connection gained or lost
    /// its session.
    pub(crate) fn decide_who_notifies(&mut self, token: u64) {
        let application = self.connections.get(token).map(|one| &one.application);
        let untrusted = application.filter(|one| !one.is_administrators());
        let untrusted = untrusted.map(|one| one.account.uid);
        if self.engines.decide_notification(untrusted, self.connections.serve_several()) {
            self.stop_mapping();
        }
    }

    /// Has workers reach the memories that the engine maps and must not map any more.
    pub(crate) fn stop_mapping(&mut self) {
        for token in self.connections.of_all() {
            let Some(apertures) = self.connections.get(token).and_then(Connection::apertures)
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
        let connection = self.connections.get(token);
        let is_trusted = connection.is_some_and(|one| one.application.is_administrators());
        let apertures = connection.and_then(Connection::apertures);
        let found =
            apertures.and_then(|one| Some((one, one.objects.get(ObjectKind::Memory, number)?)));
        let Some((apertures, entry)) = found else { return };
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
        let apertures = self.connections.apertures_mut(token);
        let found =
            apertures.and_then(|one| Some((one.objects.session, one.files.get_mut(&number)?)));
        let Some((session, file)) = found else { return };
        // The engine uses the former mapping until it has executed the command.
        let former = file.memory.replace(memory.clone());
        let change = ApertureCommand::ChangeMemory { session, number, memory };
        self.command_first_lane(change, former.map_or(Reply::Nothing, Reply::MemoryUnused));
    }
}
