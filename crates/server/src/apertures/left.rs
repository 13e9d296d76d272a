//! What a predecessor left of a session's apertures.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use towpath_memory::SharedFile;
use towpath_protocol::apertures::is_inside;
use towpath_protocol::layout::SessionShape;
use tracing::warn;

use super::objects::{Entry, ObjectKind, Objects};
use super::tables::{ApertureTables, MemoryFile};

/// What a predecessor left of a session's apertures.
#[derive(Debug, Default)]
pub(crate) struct LeftApertures {
    /// The record.
    pub(crate) record: Option<OwnedFd>,
    /// The armed words.
    pub(crate) armed: Option<OwnedFd>,
    /// The memory files by their ids, each with the descriptors that keep its pages in place.
    pub(crate) memories: BTreeMap<u64, Vec<OwnedFd>>,
}

impl LeftApertures {
    /// Returns the other users that can write to the memories, by the memories' ids, as the record says.
    pub(crate) fn writers(&self, session: u32, shape: &SessionShape) -> HashMap<u64, u32> {
        let record = self.record.as_ref().map(|file| Objects::adopt(session, shape, file.as_fd()));
        let Some(Ok(objects)) = record else { return HashMap::new() };
        let memories = objects.all(ObjectKind::Memory);
        memories.filter_map(|(_, one)| Some((one.offset, one.writer()?))).collect()
    }
}

impl ApertureTables {
    /// Takes over the tables and memories of a session; `None` if it can have none. A memory that
    /// is missing is left out, with all that is in it.
    ///
    /// # Errors
    /// Fails with the reason why the record cannot be used.
    pub(crate) fn adopt(
        session: u32,
        shape: &SessionShape,
        left: &mut LeftApertures,
        armed: Option<OwnedFd>,
    ) -> io::Result<Option<Box<ApertureTables>>> {
        if shape.apertures() == 0 {
            return Ok(None);
        }
        let record = left.record.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let objects = Objects::adopt(session, shape, record.as_fd())?;
        let mut apertures = ApertureTables::with(objects, armed);
        for (number, entry) in copies(&apertures.objects, ObjectKind::Memory) {
            // The store still holds the file, and the descriptors that keep its pages in place.
            let file = left.memories.get(&entry.offset).and_then(|all| all.first());
            match adopt_memory(file.map(OwnedFd::try_clone).transpose(), &entry) {
                Ok(memory) => drop(apertures.files.insert(number, memory)),
                Err(error) => {
                    warn!(session, memory = number, "a memory is not resumed: {error}");
                    apertures.objects.remove(ObjectKind::Memory, number);
                }
            }
        }
        for what in [ObjectKind::Aperture, ObjectKind::Tripwire] {
            for (number, entry) in copies(&apertures.objects, what) {
                if !apertures.is_possible(&entry) {
                    warn!(
                        session,
                        number,
                        ?what,
                        "the aperture record has an entry outside of its memory; the server drops it"
                    );
                    apertures.objects.remove(what, number);
                }
            }
        }
        Ok(Some(Box::new(apertures)))
    }

    /// Returns `true` if an entry agrees with the memories.
    fn is_possible(&self, entry: &Entry) -> bool {
        if matches!(entry.kind, Entry::IMPORTED | Entry::IMPORTED_TRIPWIRE) {
            return true;
        }
        let memory = self.objects.get(ObjectKind::Memory, entry.memory);
        memory.is_some_and(|memory| is_inside(entry.offset, entry.len, memory.len))
    }
}

pub(super) fn copies(objects: &Objects, what: ObjectKind) -> Vec<(u32, Entry)> {
    objects.all(what).map(|(number, entry)| (number, *entry)).collect()
}

fn adopt_memory(file: io::Result<Option<OwnedFd>>, entry: &Entry) -> io::Result<MemoryFile> {
    let file = SharedFile::adopt(file?.ok_or(io::ErrorKind::NotFound)?)?;
    if file.len() as u64 != entry.len {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the file's length differs from the recorded length",
        ));
    }
    Ok(MemoryFile { file, memory: None })
}
