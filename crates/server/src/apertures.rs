//! Memories, apertures and tripwires, as the control thread knows them.
//!
//! The control thread creates memory files, decides who may have their descriptors, and counts their
//! bytes. The engine decides whether an aperture is valid: it knows the connections. What a
//! successor needs is in a record of each session ([`objects`]); the store keeps the memory files.
//!
//! The importer of a mapped memory keeps it as long as it likes: no descriptor and no mapping can be
//! taken back. So the bytes of a memory count against its owner until the owner releases it, and
//! against each importer that maps it until the importer releases its last aperture there.

mod objects;
mod requests;
mod restore;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use towpath_memory::{CommonMemory, SharedFile};
use towpath_protocol::apertures::Sharing;
use towpath_protocol::layout::SessionShape;

use crate::control::Control;
use crate::prepare::{self, Prepared, stored_name};
use crate::worker::link::Packet;
use crate::worker::wire::command;
use crate::worker::workers::Owner;

pub(crate) use objects::{Entry, Objects, What};
pub(crate) use restore::LeftApertures;

/// An aperture that a session exports, found by its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApertureKey {
    /// The session that exports it, and the aperture's number there.
    pub(crate) owner: u32,
    pub(crate) number: u32,
    /// The session that imported it, and the aperture's number there.
    pub(crate) imported: Option<(u32, u32)>,
}

/// The file of a memory.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: SharedFile,
    /// The memory, which the server keeps mapped and locked.
    mapped: CommonMemory,
}

/// A memory whose worker has yet to allocate it.
#[derive(Debug)]
struct Creating {
    number: u32,
    entry: Entry,
    file: SharedFile,
    /// The memory, mapped by the server, once it is allocated.
    mapped: Option<CommonMemory>,
}

/// The memories, apertures and tripwires of a session.
#[derive(Debug)]
pub(crate) struct SessionApertures {
    objects: Objects,
    files: BTreeMap<u32, MemoryFile>,
    creating: Option<Creating>,
    /// The memories that the session maps as an importer: how many apertures it has in each, and the
    /// bytes.
    mapped: HashMap<u64, (usize, usize)>,
    /// By this, other applications read the armed words.
    armed: Option<OwnedFd>,
}

/// Returns the number of a memory that no other memory of the server has.
pub(crate) fn memory_id(session: u32, memory: &Entry) -> u64 {
    u64::from(session) << 32 | u64::from(memory.sequence)
}

/// Returns the name of a memory in the store, after the session's.
fn memory_name(number: u32) -> String {
    format!("{}{number}", prepare::MEMORY)
}

impl SessionApertures {
    /// Counts an imported aperture among those by which the session maps a memory. Returns the bytes
    /// that the session maps in addition.
    fn map(&mut self, imported: &Entry) -> usize {
        let (id, bytes) = (imported.offset, imported.len as usize);
        if bytes == 0 {
            return 0;
        }
        let (uses, _) = self.mapped.entry(id).or_insert((0, bytes));
        *uses += 1;
        if *uses == 1 { bytes } else { 0 }
    }

    /// Counts an imported aperture no more. Returns the bytes that the session maps no more, by what the
    /// server knows.
    fn unmap(&mut self, imported: &Entry) -> usize {
        let Some((uses, bytes)) = self.mapped.get_mut(&imported.offset) else { return 0 };
        *uses -= 1;
        let (uses, bytes) = (*uses, *bytes);
        if uses > 0 {
            return 0;
        }
        self.mapped.remove(&imported.offset);
        bytes
    }

    /// Returns how the importers of a memory's apertures reach it.
    fn sharing(&self, memory: u32) -> Sharing {
        let entry = self.objects.get(What::Memory, memory);
        entry.and_then(|one| Sharing::from_number(one.access)).unwrap_or(Sharing::Requests)
    }
}

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
    fn is_mapped(&self, id: u64) -> bool {
        let all = self.connections.sessions().filter_map(|one| one.apertures.as_ref());
        all.into_iter().any(|one| one.mapped.contains_key(&id))
    }

    /// Locks a memory if there is a swap device, so that the engine need not wait for it.
    fn lock_memory(&mut self, memory: &CommonMemory) {
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

impl SessionApertures {
    fn with(objects: Objects, armed: Option<OwnedFd>) -> SessionApertures {
        SessionApertures {
            objects,
            files: BTreeMap::new(),
            creating: None,
            mapped: HashMap::new(),
            armed,
        }
    }
}
