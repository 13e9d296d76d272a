//! The tripwires of a session, set and imported.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_memory::{Region, SharedFile, own_words, peer_words};
use towpath_protocol::layout::SessionShape;
use towpath_queue::PeerWords;
use towpath_queue::tripwire::{ArmedWord, Tripwires};

use crate::error::{OpenError, not_mapped, wrong_answer};

/// A tripwire that this session set in its memory ([`crate::Memories::set_tripwire`]).
///
/// It is a number, which an application copies and keeps beside its memory, and holds no reference to
/// the session. So dropping it releases nothing: the tripwire stays set until
/// [`crate::Memories::release_tripwire`], or until the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tripwire {
    pub(crate) number: u32,
}

impl Tripwire {
    /// Returns the number, by which importers of the memory import the tripwire.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, tripwire: Tripwire, peer: OobAddress) -> Result<(), Box<dyn std::error::Error>> {
    /// let number = tripwire.number().to_le_bytes();
    /// session.oob().send(endpoint, peer, &number)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// A tripwire in an aperture that this session imported ([`crate::Memories::import_tripwire`]).
/// A number, as [`Tripwire`] is: it stays imported until
/// [`crate::Memories::release_imported_tripwire`], or until the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImportedTripwire {
    pub(crate) number: u32,
}

/// The tripwires of a session.
pub(crate) struct TripwireTable {
    pub(crate) own: Tripwires,
    /// Tripwires with events, and whether each is in the list.
    ready: VecDeque<u32>,
    is_ready: Vec<bool>,
    /// The imported tripwires by their numbers.
    imported: Vec<Option<Imported>>,
    /// The armed words of other sessions, by the sessions' numbers, with the number of tripwires
    /// that this session imported of each.
    armed: HashMap<u32, (PeerWords, usize)>,
}

/// A tripwire that this session imported.
struct Imported {
    /// The session that set it.
    owner: u32,
    armed: ArmedWord,
}

impl TripwireTable {
    pub(crate) fn new(shape: &SessionShape, armed: Region, fired: PeerWords) -> TripwireTable {
        let count = shape.tripwires().tripwires() as usize;
        TripwireTable {
            own: Tripwires::new(shape.tripwires(), own_words(armed), fired),
            ready: VecDeque::new(),
            is_ready: vec![false; count],
            imported: std::iter::repeat_with(|| None).take(count).collect(),
            armed: HashMap::new(),
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.is_ready.len() as u32
    }

    pub(crate) fn record_event(&mut self, tripwire: u32) {
        record(&mut self.ready, &mut self.is_ready, tripwire);
    }

    /// Enters all tripwires that fired.
    pub(crate) fn check_all(&mut self) {
        let (ready, is_ready) = (&mut self.ready, &mut self.is_ready);
        self.own.for_each_fired(|tripwire| record(ready, is_ready, tripwire));
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
        (0..).zip(&mut self.imported).filter_map(|(number, one)| {
            one.as_mut()?.armed.restart();
            Some(number)
        })
    }

    /// Returns the armed word of an imported tripwire.
    #[inline]
    pub(crate) fn imported(&mut self, number: u32) -> Option<&mut ArmedWord> {
        Some(&mut self.imported.get_mut(number as usize)?.as_mut()?.armed)
    }

    /// Enters a tripwire, the one with the number `theirs` of the session `owner`. `file`: the armed
    /// words of that session.
    pub(crate) fn import(
        &mut self,
        number: u32,
        owner: u32,
        theirs: u32,
        file: Option<OwnedFd>,
    ) -> Result<(), OpenError> {
        let place = self.imported.get_mut(number as usize).filter(|one| one.is_none());
        let place = place.ok_or_else(wrong_answer)?;
        let words = match self.armed.get(&owner) {
            Some((words, _)) => words.clone(),
            None => {
                let file = SharedFile::adopt(file.ok_or_else(wrong_answer)?);
                let mapping = file.and_then(|file| file.map_readable()).map_err(not_mapped)?;
                peer_words(&Arc::new(mapping))
            }
        };
        let armed = ArmedWord::new(words.clone(), theirs).ok_or_else(wrong_answer)?;
        self.armed.entry(owner).or_insert((words, 0)).1 += 1;
        *place = Some(Imported { owner, armed });
        Ok(())
    }

    /// Forgets a tripwire that is released.
    pub(crate) fn forget(&mut self, number: u32) {
        self.own.disarm(number);
        let imported = self.imported.get_mut(number as usize).and_then(Option::take);
        if let Some(Imported { owner, .. }) = imported
            && let Some((_, tripwires)) = self.armed.get_mut(&owner)
        {
            *tripwires -= 1;
            if *tripwires == 0 {
                self.armed.remove(&owner);
            }
        }
    }
}

/// Enters a tripwire with an event, unless it is entered.
fn record(ready: &mut VecDeque<u32>, is_ready: &mut [bool], tripwire: u32) {
    let Some(is_ready) = is_ready.get_mut(tripwire as usize) else { return };
    if !std::mem::replace(is_ready, true) {
        ready.push_back(tripwire);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_words_of_another_session_stay_as_long_as_its_tripwires() {
        let shape = SessionShape::new(1, 2, 8, 8, 64, 64).unwrap();
        let shape = shape.with_oob(8).and_then(|shape| shape.with_apertures(3, 4)).unwrap();
        let file = || SharedFile::create("test", shape.tripwires().owner_words() * 8).unwrap();
        let fired = peer_words(&Arc::new(file().map_readable().unwrap()));
        let mut table = TripwireTable::new(&shape, file().map_writable().unwrap(), fired);
        let theirs = file();
        let handed = || Some(theirs.as_fd().try_clone_to_owned().unwrap());
        table.import(0, 7, 1, handed()).unwrap();
        table.import(1, 7, 2, None).unwrap();
        assert!(table.import(1, 7, 3, None).is_err(), "1 is taken");
        assert!(table.import(2, 7, 1 << 20, None).is_err(), "they have no such tripwire");
        assert!(table.import(2, 8, 1, None).is_err(), "no words of session 8");
        assert!(table.import(4, 7, 1, None).is_err(), "no such number");
        assert!(table.imported(1).is_some() && table.imported(2).is_none());
        assert_eq!(table.restart_imported().collect::<Vec<_>>(), [0, 1]);
        table.forget(0);
        assert_eq!(table.armed[&7].1, 1);
        table.forget(1);
        table.forget(1);
        assert!(table.armed.is_empty() && table.imported(1).is_none());
    }
}
