//! What the control thread knows of a session's memories and apertures.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

use towpath_memory::SharedFile;
use towpath_protocol::apertures::Sharing;

use super::objects::{Entry, Objects, What};
use crate::engine::apertures::memory::EngineMemory;
use crate::prepare::{self, stored_name};
use crate::shares::ShareLimits;

/// The memories of all sessions. Each takes a few descriptors of the server and of its keeper.
pub(crate) const MEMORIES: ShareLimits = ShareLimits::of(4096, 256);

/// An aperture that a session exports, found by its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExportedAperture {
    /// The session that exports it, and the aperture's number there.
    pub(crate) owner: u32,
    pub(crate) number: u32,
    /// The session that imported it, and the aperture's number there.
    pub(crate) imported: Option<(u32, u32)>,
}

/// The file of a memory.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    pub(super) file: SharedFile,
    /// How the engine reaches the memory; `None` before that is decided.
    pub(super) memory: Option<EngineMemory>,
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

/// The beginning of the names of memories in the store whose owner has released them, and which an
/// importer still maps. The memory's id follows.
pub(crate) const RELEASED: &str = "released-memory-";

/// Returns the name of such a memory.
pub(super) fn released_name(id: u64) -> String {
    format!("{RELEASED}{id:x}")
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
        let entry = self.objects.get(What::Memory, memory);
        entry.and_then(|one| Sharing::from_number(one.access)).unwrap_or(Sharing::Requests)
    }
}

impl ApertureTables {
    /// Returns the number of the session's memories.
    pub(crate) fn memories(&self) -> usize {
        self.files.len() + usize::from(self.creating.is_some())
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
