//! What the control thread knows of a session's memories and apertures.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

use towpath_engine::account::Account;
use towpath_engine::apertures::memory::EngineMemory;
use towpath_engine::shares::ShareLimits;
use towpath_memory::SharedFile;
use towpath_protocol::apertures::Sharing;

use super::objects::{Entry, ObjectKind, Objects};
use crate::prepare::{self, stored_name};

/// The memories of all sessions. Each takes a few descriptors of the server and of its keeper.
pub(crate) const MEMORIES: ShareLimits = ShareLimits::of(4096, 256);

/// The file of a memory.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    pub(super) file: SharedFile,
    /// How the engine reaches the memory; `None` before that is decided.
    pub(super) memory: Option<EngineMemory>,
}

/// A memory that its owner has released.
#[derive(Debug)]
pub(crate) struct Released {
    pub(super) id: u64,
    pub(super) file: OwnedFd,
    pub(super) bytes: usize,
    pub(super) owner: Account,
    /// The other user whose applications can write to the file.
    pub(super) writer: Option<Account>,
}

impl Released {
    /// Returns the name of the memory in the store.
    pub(super) fn name(&self) -> String {
        released_name(self.id, self.owner.uid, self.writer.map(|one| one.uid))
    }
}

/// A memory that its owner has released, as an earlier server left it.
#[derive(Debug)]
pub(crate) struct LeftMemory {
    pub(super) file: OwnedFd,
    /// The owner's user number, and that of the other user whose applications can write to the file.
    pub(super) owner: u32,
    pub(super) writer: Option<u32>,
}

/// A memory whose worker has yet to allocate it.
#[derive(Debug)]
pub(super) struct Creating {
    pub(super) number: u32,
    pub(super) entry: Entry,
    pub(super) file: SharedFile,
    /// How the engine reaches the memory, once it is allocated.
    pub(super) memory: Option<EngineMemory>,
}

/// The memories, apertures and tripwires of a session.
#[derive(Debug)]
pub(crate) struct ApertureTables {
    pub(super) objects: Objects,
    pub(super) files: BTreeMap<u32, MemoryFile>,
    pub(super) creating: Option<Creating>,
    /// The memories that the session maps as an importer: how many apertures it has in each, and
    /// the bytes.
    pub(super) mapped: HashMap<u64, (usize, usize)>,
    /// By this, other applications read the armed words.
    pub(super) armed: Option<OwnedFd>,
}

/// Returns the name of a memory in the store, by its id.
pub(super) fn memory_name(session: u32, id: u64) -> String {
    stored_name(session, &format!("{}{id:x}", prepare::MEMORY))
}

/// The beginning of the names of memories in the store that their owners have released: importers still map them, or
/// workers have yet to free them. The memory's id follows, the owner's user, and the other user that can write to it.
pub(crate) const RELEASED: &str = "released-memory-";

/// Returns the name of such a memory.
pub(super) fn released_name(id: u64, owner: u32, writer: Option<u32>) -> String {
    let writer = writer.map_or(String::new(), |uid| format!("-{uid}"));
    format!("{RELEASED}{id:x}-{owner}{writer}")
}

impl LeftMemory {
    /// Reads the name of such a memory. Returns the memory's id, and the memory.
    ///
    /// # Errors
    /// Returns the file if this is no such name.
    pub(crate) fn read(name: &str, file: OwnedFd) -> Result<(u64, LeftMemory), OwnedFd> {
        let mut parts = name.strip_prefix(RELEASED).unwrap_or_default().split('-');
        let id = parts.next().and_then(|id| u64::from_str_radix(id, 16).ok());
        let owner = parts.next().and_then(|uid| uid.parse().ok());
        let (Some(id), Some(owner)) = (id, owner) else { return Err(file) };
        let writer = parts.next().and_then(|uid| uid.parse().ok());
        Ok((id, LeftMemory { file, owner, writer }))
    }

    pub(crate) fn into_file(self) -> OwnedFd {
        self.file
    }
}

/// Returns random bytes from the kernel.
pub(super) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

impl ApertureTables {
    /// Counts an imported aperture among those by which the session maps a memory. Returns the
    /// bytes that the session maps in addition.
    pub(super) fn map(&mut self, imported: &Entry) -> usize {
        let (id, bytes) = (imported.offset, imported.len as usize);
        if bytes == 0 {
            return 0;
        }
        let (uses, _) = self.mapped.entry(id).or_insert((0, bytes));
        *uses += 1;
        if *uses == 1 { bytes } else { 0 }
    }

    /// Counts an imported aperture no more. Returns the bytes that the session maps no more, by
    /// what the server knows.
    pub(super) fn unmap(&mut self, imported: &Entry) -> usize {
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
    pub(super) fn sharing(&self, memory: u32) -> Sharing {
        let entry = self.objects.get(ObjectKind::Memory, memory);
        entry.and_then(|one| Sharing::from_number(one.access)).unwrap_or(Sharing::Requests)
    }
}

impl ApertureTables {
    /// Returns the number of the session's memories.
    pub(crate) fn memories(&self) -> usize {
        self.files.len() + usize::from(self.creating.is_some())
    }

    /// Returns an aperture for changes.
    pub(crate) fn aperture_mut(&mut self, number: u32) -> Option<&mut Entry> {
        self.objects.get_mut(ObjectKind::Aperture, number)
    }

    pub(super) fn with(objects: Objects, armed: Option<OwnedFd>) -> ApertureTables {
        ApertureTables {
            objects,
            files: BTreeMap::new(),
            creating: None,
            mapped: HashMap::new(),
            armed,
        }
    }
}
