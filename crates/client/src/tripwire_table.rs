//! The tripwires of a session, set and imported.

use std::collections::{HashMap, VecDeque};

use towpath_memory::{Region, own_words};
use towpath_protocol::layout::SessionShape;
use towpath_queue::PeerWords;
use towpath_queue::tripwire::{ArmedWord, Tripwires};

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
    pub(crate) own: Tripwires,
    count: u32,
    /// Tripwires with events, and whether each is in the list.
    ready: VecDeque<u32>,
    is_ready: Vec<bool>,
    pub(crate) imported: HashMap<u32, ArmedWord>,
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

    /// Returns the first tripwire with an event that is armed and has fired. Drops events of others
    /// before it.
    pub(crate) fn first_fired(&mut self) -> Option<u32> {
        while let Some(tripwire) = self.ready.front().copied() {
            if self.own.has_fired(tripwire) {
                return Some(tripwire);
            }
            self.pop_first(tripwire);
        }
        None
    }

    pub(crate) fn pop_first(&mut self, tripwire: u32) {
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
