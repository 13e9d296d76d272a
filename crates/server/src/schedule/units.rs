//! Units, and the lines that they stand in: each in at most one, with constant time for whatever
//! happens to it, and no memory of its own to be had while packets move.
//!
//! Each line is two lists in one order: all that stand in it, and those of them that are not known to
//! wait for room in the device. So who waits keeps its place, and costs nothing while there is none.

use crate::schedule::policy::Account;
use crate::schedule::shape::{Class, LEVELS};

/// No unit.
pub(crate) const NONE: u32 = u32::MAX;
/// The line of those whose next packet is a small one.
pub(crate) const SMALL: u8 = LEVELS;
/// As many lines: one a level, and that one.
const LINES: usize = LEVELS as usize + 1;

/// A list of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// All that stand in it.
    All,
    /// Those that are not known to wait for room.
    Unblocked,
}

/// The neighbours of a unit in a list; or, of a line's, its last and its first.
#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

const ALONE: Links = Links { previous: NONE, next: NONE };

/// Where a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody's.
    Free,
    /// It has nothing to send.
    Idle,
    /// It stands in a line.
    Line(u8),
    /// It is being served.
    Served,
    /// It waits for a time or a tick.
    Waits,
}

/// A queue set as the scheduler has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(crate) place: u32,
    pub(crate) queue_set: u32,
    /// Its neighbours in each [`List`] of its line.
    links: [Links; 2],
    pub(crate) state: State,
    pub(crate) class: Class,
    pub(crate) account: Account,
    /// Its next packet is for the device, which had no room for it: of its line's lists it is in
    /// [`List::All`] alone.
    blocked: bool,
    /// What it was given in rounds that passed because others wait for the device: taken back if it
    /// turns out to wait too.
    pub(crate) lent: i64,
    /// It sent while there was no room in the device: what it sends is for this host.
    pub(crate) local: bool,
    /// Since when it has had something to send, in nanoseconds.
    pub(crate) since: u64,
    /// Bytes of the message that it is in the middle of; 0: of none.
    pub(crate) run: u64,
}

/// All units and lines.
#[derive(Debug)]
pub(crate) struct Units {
    pub(crate) all: Vec<Unit>,
    free: Vec<u32>,
    /// The ends of each line's lists.
    ends: [[Links; 2]; LINES],
    counts: [[usize; 2]; LINES],
    /// How often a unit came into a list or out of it.
    #[cfg(test)]
    pub(crate) moves: usize,
}

impl Units {
    pub(crate) fn new() -> Units {
        Units {
            all: Vec::new(),
            free: Vec::new(),
            ends: [[ALONE; 2]; LINES],
            counts: [[0; 2]; LINES],
            #[cfg(test)]
            moves: 0,
        }
    }

    pub(crate) fn add(&mut self, place: u32, queue_set: u32) -> u32 {
        let unit = Unit {
            place,
            queue_set,
            links: [ALONE; 2],
            state: State::Idle,
            class: Class::default(),
            account: Account::default(),
            blocked: false,
            lent: 0,
            local: false,
            since: 0,
            run: 0,
        };
        match self.free.pop() {
            Some(id) => {
                self.all[id as usize] = unit;
                id
            }
            None => {
                self.all.push(unit);
                self.all.len() as u32 - 1
            }
        }
    }

    /// Takes a unit away that stands in no line.
    pub(crate) fn release(&mut self, id: u32) {
        self.all[id as usize].state = State::Free;
        self.free.push(id);
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Unit {
        &self.all[id as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Unit {
        &mut self.all[id as usize]
    }

    /// The first one of a list.
    #[inline]
    pub(crate) fn head(&self, line: u8, list: List) -> Option<u32> {
        let head = self.ends[line as usize][list as usize].next;
        (head != NONE).then_some(head)
    }

    /// The next one of a list.
    #[inline]
    pub(crate) fn after(&self, id: u32, list: List) -> Option<u32> {
        let next = self.get(id).links[list as usize].next;
        (next != NONE).then_some(next)
    }

    /// How many are in a list.
    #[inline]
    pub(crate) fn count(&self, line: u8, list: List) -> usize {
        self.counts[line as usize][list as usize]
    }

    /// Whether a unit that stands in a line is known to wait for room.
    #[inline]
    pub(crate) fn is_blocked(&self, id: u32) -> bool {
        self.get(id).blocked
    }

    /// Puts a unit that stands in no line behind all others of one.
    #[inline]
    pub(crate) fn push_back(&mut self, line: u8, id: u32, blocked: bool) {
        self.enter(line, id, blocked);
        self.link(line, List::All, id, self.ends[line as usize][List::All as usize].previous, NONE);
        if !blocked {
            let last = self.ends[line as usize][List::Unblocked as usize].previous;
            self.link(line, List::Unblocked, id, last, NONE);
        }
    }

    /// Puts a unit that stands in no line, and is not known to wait for room, before all others of one.
    pub(crate) fn push_front(&mut self, line: u8, id: u32) {
        self.enter(line, id, false);
        for list in [List::All, List::Unblocked] {
            self.link(line, list, id, NONE, self.ends[line as usize][list as usize].next);
        }
    }

    /// A unit is found to wait for room. It keeps its place in its line.
    pub(crate) fn block(&mut self, id: u32) {
        let unit = self.get_mut(id);
        if let State::Line(line) = unit.state
            && !unit.blocked
        {
            unit.blocked = true;
            self.unlink(line, List::Unblocked, id);
        }
    }

    /// Takes a unit out of its line, if it stands in one.
    #[inline]
    pub(crate) fn leave(&mut self, id: u32) {
        let State::Line(line) = self.get(id).state else { return };
        self.unlink(line, List::All, id);
        if !self.get(id).blocked {
            self.unlink(line, List::Unblocked, id);
        }
        let unit = self.get_mut(id);
        (unit.state, unit.blocked) = (State::Served, false);
    }

    fn enter(&mut self, line: u8, id: u32, blocked: bool) {
        let unit = self.get_mut(id);
        debug_assert!(!matches!(unit.state, State::Line(_)), "it stands in another line");
        (unit.state, unit.blocked) = (State::Line(line), blocked);
    }

    /// Puts a unit between two that are neighbours.
    #[inline]
    fn link(&mut self, line: u8, list: List, id: u32, previous: u32, next: u32) {
        self.links(line, list, id).clone_from(&Links { previous, next });
        self.links(line, list, previous).next = id;
        self.links(line, list, next).previous = id;
        self.counts[line as usize][list as usize] += 1;
        self.moved();
    }

    #[inline]
    fn unlink(&mut self, line: u8, list: List, id: u32) {
        let Links { previous, next } = std::mem::replace(self.links(line, list, id), ALONE);
        self.links(line, list, previous).next = next;
        self.links(line, list, next).previous = previous;
        self.counts[line as usize][list as usize] -= 1;
        self.moved();
    }

    /// The links of a unit, or, of none, those of the line.
    #[inline]
    fn links(&mut self, line: u8, list: List, id: u32) -> &mut Links {
        match id {
            NONE => &mut self.ends[line as usize][list as usize],
            id => &mut self.all[id as usize].links[list as usize],
        }
    }

    #[inline]
    fn moved(&mut self) {
        #[cfg(test)]
        {
            self.moves += 1;
        }
    }
}
