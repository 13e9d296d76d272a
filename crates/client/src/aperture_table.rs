//! The apertures and tripwires of a session, and what it maps of other sessions.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use towpath_memory::{CommonMemory, ForkGuard, Region, SharedFile};
use towpath_protocol::layout::SessionShape;
use towpath_queue::PeerWords;

use crate::error::{OpenError, not_mapped, wrong_answer};
use crate::request_table::RequestTable;
use crate::tripwire_table::TripwireTable;

/// Maps a memory file with apertures. Children made by `fork` do not inherit the mapping.
pub(crate) fn map_common(file: OwnedFd, is_writable: bool) -> io::Result<CommonMemory> {
    let memory = SharedFile::adopt(file)?.map_common(is_writable)?;
    memory.mapping().keep_from_children()?;
    memory.mapping().populate();
    Ok(memory)
}

/// The apertures and tripwires of a session.
pub(crate) struct Apertures {
    pub(crate) states: PeerWords,
    /// The memories of other sessions that are mapped, by their numbers and whether for writing,
    /// with the number of apertures in each.
    mapped: HashMap<(u64, bool), (CommonMemory, usize)>,
    pub(crate) tripwires: Option<TripwireTable>,
    pub(crate) requests: RequestTable,
    pub(crate) guard: ForkGuard,
}

impl Apertures {
    /// Creates the client's side; `None` if the session can have no apertures.
    pub(crate) fn new(
        shape: &SessionShape,
        states: PeerWords,
        requests: PeerWords,
        armed: Option<Region>,
        fired: PeerWords,
        guard: &ForkGuard,
    ) -> Option<Box<Apertures>> {
        (shape.apertures() > 0).then(|| {
            let tripwires = armed.map(|armed| TripwireTable::new(shape, armed, fired));
            let mapped = HashMap::new();
            let requests = RequestTable::new(requests, shape.endpoints);
            Box::new(Apertures { states, mapped, tripwires, requests, guard: guard.clone() })
        })
    }

    /// Returns the number of tripwires.
    pub(crate) fn tripwires(&self) -> u32 {
        self.tripwires.as_ref().map_or(0, TripwireTable::count)
    }

    pub(crate) fn record_event(&mut self, tripwire: u32) {
        if let Some(table) = &mut self.tripwires {
            table.record_event(tripwire);
        }
    }

    pub(crate) fn check_all(&mut self) {
        if let Some(table) = &mut self.tripwires {
            table.check_all();
        }
    }

    pub(crate) fn has_no_news(&self) -> bool {
        self.tripwires.as_ref().is_none_or(TripwireTable::has_no_news)
    }

    pub(crate) fn has_fired_any(&mut self) -> bool {
        self.tripwires.as_mut().is_some_and(|table| table.first_fired().is_some())
    }

    pub(crate) fn restart_imported(&mut self) -> impl Iterator<Item = u32> + use<'_> {
        self.tripwires.iter_mut().flat_map(TripwireTable::restart_imported)
    }

    /// Maps the memory of an imported aperture, unless it is mapped.
    pub(crate) fn map(
        &mut self,
        id: (u64, bool),
        file: Option<OwnedFd>,
    ) -> Result<CommonMemory, OpenError> {
        if let Some((memory, uses)) = self.mapped.get_mut(&id) {
            *uses += 1;
            return Ok(memory.clone());
        }
        let file = file.ok_or_else(wrong_answer)?;
        let memory = map_common(file, id.1).map_err(not_mapped)?;
        self.mapped.insert(id, (memory.clone(), 1));
        Ok(memory)
    }

    pub(crate) fn unmap(&mut self, id: (u64, bool)) {
        if let Some((_, uses)) = self.mapped.get_mut(&id) {
            *uses -= 1;
            if *uses == 0 {
                self.mapped.remove(&id);
            }
        }
    }
}
