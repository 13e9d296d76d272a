//! The memories that sessions create.

use std::os::fd::{AsFd, OwnedFd};

use towpath_engine::apertures::commands::ApertureCommand;
use towpath_engine::apertures::memory::EngineMemory;
use towpath_memory::SharedFile;
use towpath_protocol::apertures::Sharing;
use towpath_protocol::layout::MAX_MEMORY_BYTES;
use towpath_protocol::message::{CreateMemory, Created, Message, Refusal};

use super::lookup::{NewObject, refused};
use super::objects::{Entry, ObjectKind};
use super::tables::{ApertureTables, Creating, MemoryFile, memory_name, random};
use crate::control::Control;
use crate::control_session::ControlSession;
use crate::engines::Reply;
use crate::mapping_jobs::Job;
use crate::refusal::Refused;
use crate::worker::link::Packet;
use crate::worker::pin;
use crate::worker::wire::command;

impl Control {
    /// Has the worker of the application's user allocate a new memory.
    pub(crate) fn create_memory(
        &mut self,
        token: u64,
        create: &CreateMemory,
    ) -> Result<(), Refused> {
        let what = "create memory";
        let objects = &self.connections.apertures(token, what)?.objects;
        if let Some(number) = objects.repeated(create.sequence, Entry::MEMORY) {
            self.answer_memory(token, number);
            return Ok(());
        }
        let NewObject { number, account, apertures, .. } =
            self.connections.new_object(token, ObjectKind::Memory, what)?;
        if apertures.creating.is_some() {
            // A worker passes no request on before the last one is answered, unless it is subverted.
            return Err(refused(Refusal::State, format!("{what}: another one is being created")));
        }
        if Sharing::from_number(create.sharing).is_none() {
            return Err(refused(Refusal::Malformed, format!("{what}: unknown sharing")));
        }
        let most = MAX_MEMORY_BYTES as u64;
        if create.bytes == 0 || create.bytes > most {
            let text = format!("{what}: {} bytes; 1 to {most} are possible", create.bytes);
            return Err((Refusal::Malformed, text));
        }
        let failed = |error| refused(Refusal::Limit, format!("{what}: {error}"));
        let bytes = (create.bytes as usize).next_multiple_of(towpath_memory::PAGE_BYTES);
        let taken = self.shared.counted.check(account);
        taken.map_err(|limit| {
            refused(Refusal::Limit, format!("{what}: {limit} memories; release one"))
        })?;
        let charged = self.connections.charge_bytes(token, self.access.policy(), bytes);
        charged.map_err(|text| refused(Refusal::Limit, format!("{what}: {text}")))?;
        let file = SharedFile::create("towpath-memory", bytes).and_then(|file| {
            file.seal_seals()?;
            let theirs = file.as_fd().try_clone_to_owned()?;
            Ok((file, theirs, random::<8>()?))
        });
        let (file, theirs, id) = file.map_err(|error| {
            self.connections.take_bytes(token, bytes);
            failed(error)
        })?;
        let entry = Entry {
            kind: Entry::MEMORY,
            sequence: create.sequence,
            access: create.sharing,
            offset: u64::from_ne_bytes(id),
            len: bytes as u64,
            ..Entry::default()
        };
        self.connections.apertures(token, what)?.creating =
            Some(Creating { number, entry, file, memory: None });
        self.shared.counted.add(account);
        self.tell_worker(token, Packet::new(command::ALLOCATE, token, 0).with(vec![theirs]));
        Ok(())
    }

    /// Enters a memory that the worker has allocated, once it is populated if the engine maps it.
    pub(crate) fn memory_allocated(&mut self, token: u64, outcome: Result<Vec<OwnedFd>, i32>) {
        let of = self.connections.with_session(token);
        let of = of.and_then(|of| Some((of.application.account, of.session.take_creating()?)));
        // The application may have gone meanwhile.
        let Some((account, (session, creating))) = of else { return };
        let name = memory_name(session, creating.entry.offset);
        let outcome = outcome.map_err(std::io::Error::from_raw_os_error);
        match outcome.and_then(|pins| self.place_memory(token, &name, &creating, &pins)) {
            Ok(memory) => {
                let mapped = match &memory {
                    EngineMemory::Mapped(memory) => Some(memory.mapping().clone()),
                    EngineMemory::ByWorker(_) | EngineMemory::Refused(_) => None,
                };
                // If the session has ended since, its end disposes of the memory that is being created.
                if let Some(apertures) = self.connections.apertures_mut(token) {
                    apertures.creating = Some(Creating { memory: Some(memory), ..creating });
                }
                match mapped {
                    Some(mapping) => {
                        self.mapping_jobs.push(account, Job::PopulateMemory { token, mapping });
                    }
                    None => self.memory_populated(token),
                }
            }
            Err(error) => {
                // No application has the file.
                self.shared.counted.give_back(account);
                self.store.remove(&name);
                self.connections.take_bytes(token, creating.entry.len as usize);
                let text = format!("create memory: {}", pin::describe(&error));
                self.refuse(token, &(Refusal::Limit, text));
            }
        }
    }

    /// Puts a new memory into the store, with the descriptors that keep its pages in place, and decides how the engine
    /// reaches it.
    fn place_memory(
        &mut self,
        token: u64,
        name: &str,
        creating: &Creating,
        pins: &[OwnedFd],
    ) -> std::io::Result<EngineMemory> {
        self.store.put(name, creating.file.as_fd())?;
        pins.iter().try_for_each(|pin| self.store.put(name, pin.as_fd()))?;
        self.reach(token, &creating.entry, &creating.file)
    }

    /// Enters a memory that is populated.
    pub(crate) fn memory_populated(&mut self, token: u64) {
        let apertures = self.connections.apertures_mut(token);
        // The session may have ended meanwhile.
        let Some((session, number, memory)) = apertures.and_then(ApertureTables::finish_creating)
        else {
            return;
        };
        self.lock_memory(&memory);
        let add = ApertureCommand::AddMemory { session, number, memory };
        self.command_first_lane(add, Reply::MemoryCreated(token, number));
        // Another user may have got a session since the control thread mapped the memory.
        self.stop_mapping_memory(token, number);
    }

    /// Hands over a memory.
    pub(crate) fn answer_memory(&mut self, token: u64, number: u32) {
        let apertures = self.connections.apertures(token, "create memory").ok();
        let Some(memory) = apertures.and_then(|one| one.files.get(&number)) else { return };
        match memory.file.as_fd().try_clone_to_owned() {
            Ok(file) => {
                let created = Message::Created(Created { number, key: 0 });
                self.answer_with(token, &created, vec![file], 0);
            }
            Err(error) => {
                self.refuse(token, &(Refusal::Limit, format!("create memory: {error}")));
            }
        }
    }

    /// Releases a memory that the engine has removed.
    pub(crate) fn release_memory(&mut self, token: u64, number: u32) {
        let of = self.connections.with_session(token);
        let of = of.and_then(|of| Some((of.application, of.session.apertures.as_deref_mut()?)));
        let Some((application, apertures)) = of else { return };
        let (worker, account, session) =
            (application.worker, application.account, apertures.objects.session);
        let entry = apertures.objects.get(ObjectKind::Memory, number);
        let file = apertures.files.remove(&number);
        if let (Some(entry), Some(file)) = (entry, file) {
            self.connections.take_bytes(token, entry.len as usize);
            self.dispose_of_memory(session, &entry, file, worker, account);
        }
        // A next server that finds the record without the memory finds the memory under its name as a released one.
        if let Some(apertures) = self.connections.apertures_mut(token) {
            apertures.objects.remove(ObjectKind::Memory, number);
        }
    }
}

impl ControlSession {
    /// Takes the memory that a worker allocates, if there is one, and returns it with the session's number.
    fn take_creating(&mut self) -> Option<(u32, Creating)> {
        Some((self.number, self.apertures.as_mut()?.creating.take()?))
    }
}

impl ApertureTables {
    /// Enters the memory that is allocated and populated, if there is one. Returns it with the numbers of the session
    /// and of the memory.
    fn finish_creating(&mut self) -> Option<(u32, u32, EngineMemory)> {
        let Creating { number, entry, file, memory } = self.creating.take()?;
        let memory = memory?;
        self.objects.put(ObjectKind::Memory, number, entry);
        self.objects.record(ObjectKind::Memory, number);
        self.files.insert(number, MemoryFile { file, memory: Some(memory.clone()) });
        Some((self.objects.session, number, memory))
    }

    /// Checks that no aperture and no tripwire is in a memory.
    pub(super) fn check_unused(&self, number: u32) -> Result<(), Refused> {
        let mut apertures = self.objects.all(ObjectKind::Aperture);
        let mut tripwires = self.objects.all(ObjectKind::Tripwire);
        let what = if apertures.any(|(_, one)| one.exports(number)) {
            "exported apertures; revoke them"
        } else if tripwires.any(|(_, one)| one.kind == Entry::TRIPWIRE && one.memory == number) {
            "tripwires; release them"
        } else {
            return Ok(());
        };
        Err((Refusal::State, format!("release: memory {number} has {what} first")))
    }
}
