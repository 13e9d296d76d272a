//! Tripwires: an application learns that another one accessed its memory.

use std::collections::{HashMap, VecDeque};

use towpath_memory::Region;
use towpath_memory::own_words;
use towpath_protocol::layout::SessionShape;
use towpath_queue::tripwire::{ArmedWord, Tripwires, fence};
use towpath_queue::{PeerWords, events};

use crate::error::Lost;
use crate::session::Session;

/// A tripwire that this session set in its memory ([`crate::Session::set_tripwire`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tripwire {
    pub(crate) number: u32,
}

impl Tripwire {
    /// Returns the number, by which importers of the memory import the tripwire.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// A tripwire in an aperture that this session imported ([`crate::Session::import_tripwire`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImportedTripwire {
    pub(crate) number: u32,
}

/// The tripwires of a session.
pub(crate) struct TripwireTable {
    own: Tripwires,
    count: u32,
    /// Tripwires with events, and whether each is in the list.
    ready: VecDeque<u32>,
    is_ready: Vec<bool>,
    imported: HashMap<u32, ArmedWord>,
}

impl TripwireTable {
    pub(crate) fn new(shape: &SessionShape, armed: Region, fired: PeerWords) -> TripwireTable {
        let count = shape.tripwires().tripwires();
        TripwireTable {
            own: Tripwires::new(shape.tripwires(), own_words(armed), fired),
            count,
            ready: VecDeque::new(),
            is_ready: vec![false; count as usize],
            imported: HashMap::new(),
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn record_event(&mut self, tripwire: u32) {
        let Some(is_ready) = self.is_ready.get_mut(tripwire as usize) else { return };
        if !std::mem::replace(is_ready, true) {
            self.ready.push_back(tripwire);
        }
    }

    /// Enters all tripwires that fired.
    pub(crate) fn check_all(&mut self) {
        for word in 0..self.own.words() {
            let mut fired = self.own.fired_in(word);
            while fired != 0 {
                self.record_event(word as u32 * 64 + fired.trailing_zeros());
                fired &= fired - 1;
            }
        }
    }

    pub(crate) fn has_no_news(&self) -> bool {
        self.ready.is_empty()
    }

    /// Returns the first tripwire with an event that is armed and has fired.
    pub(crate) fn first_fired(&mut self) -> Option<u32> {
        while let Some(tripwire) = self.ready.front().copied() {
            if self.own.has_fired(tripwire) {
                return Some(tripwire);
            }
            self.take(tripwire);
        }
        None
    }

    fn take(&mut self, tripwire: u32) {
        self.ready.pop_front();
        self.is_ready[tripwire as usize] = false;
    }

    /// Forgets which arming the server was told of. Returns the imported tripwires.
    pub(crate) fn restart_imported(&mut self) -> impl Iterator<Item = u32> + use<'_> {
        self.imported.iter_mut().map(|(number, armed)| {
            armed.restart();
            *number
        })
    }

    pub(crate) fn import(&mut self, number: u32, armed: ArmedWord) {
        self.imported.insert(number, armed);
    }

    /// Forgets a tripwire that is released.
    pub(crate) fn forget(&mut self, number: u32) {
        self.own.disarm(number);
        self.imported.remove(&number);
    }
}

impl Session {
    fn tripwires(&mut self) -> Option<&mut TripwireTable> {
        self.apertures.as_mut().and_then(|one| one.tripwires.as_mut())
    }

    /// Arms a tripwire: the next access of its kind fires it. The application then looks at the memory,
    /// and waits only if there is nothing new: an access before this call fires nothing. Costs a store
    /// and a barrier, and no system call. A tripwire of another session is ignored.
    #[inline]
    pub fn arm_tripwire(&mut self, tripwire: Tripwire) {
        if self.is_parents()
            && let Some(table) = self.tripwires()
        {
            table.own.arm(tripwire.number);
        }
    }

    /// Ends the wait for a tripwire: from now on, accesses cost the accessing side nothing.
    #[inline]
    pub fn disarm_tripwire(&mut self, tripwire: Tripwire) {
        if self.is_parents()
            && let Some(table) = self.tripwires()
        {
            table.own.disarm(tripwire.number);
        }
    }

    /// Returns `true` if a tripwire is armed and has fired: one load of a word that the server writes.
    #[inline]
    #[must_use]
    pub fn has_fired(&self, tripwire: Tripwire) -> bool {
        let table = self.apertures.as_ref().and_then(|one| one.tripwires.as_ref());
        table.is_some_and(|table| self.is_parents() && table.own.has_fired(tripwire.number))
    }

    /// Passes each tripwire that is armed and has fired to `found`, without events: one load for 64
    /// tripwires, and no system call. For a program that polls.
    pub fn for_each_fired(&self, mut found: impl FnMut(Tripwire)) {
        let table = self.apertures.as_ref().and_then(|one| one.tripwires.as_ref());
        let Some(table) = table.filter(|_| self.is_parents()) else { return };
        for word in 0..table.own.words() {
            let mut fired = table.own.fired_in(word);
            while fired != 0 {
                found(Tripwire { number: word as u32 * 64 + fired.trailing_zeros() });
                fired &= fired - 1;
            }
        }
    }

    /// Returns a tripwire that fired, and disarms it: the application looks at the memory, and arms it
    /// again if it waits for more. Only [`Session::wait`] and [`Session::poll`] take events.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn ready_tripwire(&mut self) -> Result<Option<Tripwire>, Lost> {
        self.check()?;
        let Some(table) = self.tripwires() else { return Ok(None) };
        let Some(number) = table.first_fired() else { return Ok(None) };
        table.take(number);
        table.own.disarm(number);
        Ok(Some(Tripwire { number }))
    }

    /// Has the server fire an imported tripwire, if its owner armed it. The application calls this after
    /// it has accessed the mapped memory; requests do so by themselves. Returns `true` if the owner is
    /// told. As long as the tripwire is not armed, the call costs a barrier and a load.
    ///
    /// # Errors
    /// [`Lost`].
    #[inline]
    pub fn trip(&mut self, tripwire: ImportedTripwire) -> Result<bool, Lost> {
        self.check()?;
        let fenced = fence();
        let Some(table) = self.tripwires() else { return Ok(false) };
        let armed = table.imported.get_mut(&tripwire.number);
        if !armed.is_some_and(|armed| armed.must_tell(fenced)) {
            return Ok(false);
        }
        self.tell_of_access(tripwire.number)?;
        Ok(true)
    }

    #[cold]
    fn tell_of_access(&mut self, tripwire: u32) -> Result<(), Lost> {
        if self.hung_up {
            // The next server is told of all imported tripwires when it resumes the session.
            return Ok(());
        }
        let lane = &mut self.lanes[0];
        let marked = lane.marker.mark(events::fence(), self.per_lane as u32 + tripwire);
        let new = lane.marker.publish();
        lane.unnotified = true;
        match marked {
            Ok(_) => self.notify_for(new),
            Err(violation) => return Err(self.wrong(violation)),
        }
        Ok(())
    }
}
