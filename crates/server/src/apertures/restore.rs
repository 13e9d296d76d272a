//! The apertures of the sessions that this server resumes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use towpath_memory::SharedFile;
use towpath_protocol::apertures::is_inside;
use towpath_protocol::layout::SessionShape;
use tracing::warn;

use super::requests::{exporting, place_command};
use super::{ApertureKey, Entry, MemoryFile, Objects, SessionApertures, What};
use crate::control::Control;
use crate::engine::commands::Command;
use crate::engine::oob::connection::EndpointName;
use crate::engines::Reply;

/// What an earlier server left of a session's apertures.
#[derive(Debug, Default)]
pub(crate) struct LeftApertures {
    /// The record.
    pub(crate) record: Option<OwnedFd>,
    /// The armed words.
    pub(crate) armed: Option<OwnedFd>,
    /// The memory files by their numbers, each with the descriptors that keep its pages in place.
    pub(crate) memories: BTreeMap<u32, Vec<OwnedFd>>,
}

impl SessionApertures {
    /// Takes over the tables and memories of a session; `None` if it can have none. A memory that is
    /// missing is left out, with all that is in it.
    ///
    /// # Errors
    /// Fails with the reason why the record cannot be used.
    pub(crate) fn adopt(
        session: u32,
        shape: &SessionShape,
        left: &mut LeftApertures,
        armed: Option<OwnedFd>,
    ) -> io::Result<Option<Box<SessionApertures>>> {
        if shape.apertures() == 0 {
            return Ok(None);
        }
        let record = left.record.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let objects = Objects::adopt(session, shape, record.as_fd())?;
        let mut apertures = SessionApertures::with(objects, armed);
        for (number, entry) in copies(&apertures.objects, What::Memory) {
            // The store goes on to hold the descriptors behind the first one, and the first one too.
            let left = left.memories.remove(&number).unwrap_or_default();
            match adopt_memory(left.into_iter().next(), &entry) {
                Ok(memory) => drop(apertures.files.insert(number, memory)),
                Err(error) => {
                    warn!(session, memory = number, "a memory is not resumed: {error}");
                    apertures.objects.remove(What::Memory, number);
                }
            }
        }
        for what in [What::Aperture, What::Tripwire] {
            for (number, entry) in copies(&apertures.objects, what) {
                if !apertures.is_possible(&entry) {
                    warn!(session, number, ?what, "an entry of its record is not possible");
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
        let memory = self.objects.get(What::Memory, entry.memory);
        memory.is_some_and(|memory| is_inside(entry.offset, entry.len, memory.len))
    }
}

fn copies(objects: &Objects, what: What) -> Vec<(u32, Entry)> {
    objects.all(what).map(|(number, entry)| (number, *entry)).collect()
}

fn adopt_memory(file: Option<OwnedFd>, entry: &Entry) -> io::Result<MemoryFile> {
    let file = SharedFile::adopt(file.ok_or(io::ErrorKind::NotFound)?)?;
    if file.len() as u64 != entry.len {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "another length than recorded"));
    }
    let mapped = file.map_common(true)?;
    mapped.mapping().keep_from_children()?;
    Ok(MemoryFile { file, mapped })
}

impl Control {
    /// Enters the apertures that a resumed session exports. The engine checks that they are valid.
    pub(crate) fn restore_exports(&mut self, token: u64) {
        let Some(connection) = self.connections.get(token) else { return };
        let Some(apertures) = &connection.apertures else { return };
        let session = apertures.objects.session;
        let bytes: u64 = apertures.objects.all(What::Memory).map(|(_, one)| one.len).sum();
        let entries = copies(&apertures.objects, What::Aperture);
        let tripwires = copies(&apertures.objects, What::Tripwire);
        let memories: Vec<_> =
            apertures.files.iter().map(|(number, one)| (*number, one.mapped.clone())).collect();
        self.connections.add_bytes(token, bytes as usize);
        for (number, memory) in memories {
            self.lock_memory(&memory);
            self.command_first(Command::AddMemory { session, number, memory }, Reply::Nothing);
        }
        for (number, entry) in tripwires.into_iter().filter(|(_, one)| one.kind == Entry::TRIPWIRE)
        {
            let command = place_command(session, number, &entry, true);
            self.command_first(command, Reply::Nothing);
        }
        for (number, entry) in entries.into_iter().filter(|(_, one)| one.kind == Entry::EXPORTED) {
            let key = ApertureKey { owner: session, number, imported: None };
            self.aperture_keys.insert(entry.key, key);
            let owner = EndpointName { session, endpoint: entry.endpoint };
            let peer = EndpointName { session: entry.other_session, endpoint: entry.other };
            let exporting = exporting(owner, number, &entry, Some(peer));
            self.command_first(Command::Export(Box::new(exporting)), Reply::Nothing);
        }
    }

    /// Enters the apertures and tripwires that resumed sessions imported, once all that are exported are
    /// entered.
    pub(crate) fn restore_imports(&mut self) {
        for token in self.connections.of_all() {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            let Some(apertures) = &mut connection.apertures else { continue };
            let session = apertures.objects.session;
            let entries = copies(&apertures.objects, What::Aperture);
            let tripwires = copies(&apertures.objects, What::Tripwire);
            let mut bytes = 0;
            for (number, entry) in
                entries.into_iter().filter(|(_, one)| one.kind == Entry::IMPORTED)
            {
                bytes += apertures.map(&entry);
                let key = self.aperture_keys.get_mut(&entry.key);
                if let Some(key) = key.filter(|one| one.owner == entry.other_session) {
                    key.imported = Some((session, number));
                }
                let command = Command::Import { key: entry.key, session, number };
                self.parts.engines.command_each(vec![command], Reply::Nothing);
            }
            self.connections.add_bytes(token, bytes);
            for (number, entry) in tripwires {
                if entry.kind == Entry::IMPORTED_TRIPWIRE {
                    self.enter_tripwire(session, number, Some(&entry));
                }
            }
        }
    }
}
