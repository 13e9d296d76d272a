//! Units and their lines. A unit stands in at most one line, each operation takes constant time,
//! and no operation allocates memory while packets move.
//!
//! Each line consists of two lists in the same order: all its units, and the units that are not
//! known to wait for room in the device. A unit that waits therefore keeps its position, and costs
//! nothing while the device has no room.

use crate::schedule::policy::Account;
use crate::schedule::shape::{Class, LEVELS};

/// Marks the absence of a unit.
pub(crate) const NONE: u32 = u32::MAX;
/// The line of units whose next packet is expedited.
pub(crate) const EXPEDITED: u8 = LEVELS;
/// The number of lines: one per level, and the expedited one.
const LINES: usize = LEVELS as usize + 1;

/// A list of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// All units of the line.
    All,
    /// The units that are not known to wait for room.
    Unblocked,
}

/// The neighbours of a unit in a list; or the last and the first unit of a line.
#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

const ALONE: Links = Links { previous: NONE, next: NONE };

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The entry is free.
    Free,
    /// The unit has nothing to send.
    Idle,
    /// The unit stands in a line.
    Line(u8),
    /// The engine serves the unit.
    Served,
    /// The unit waits for a time or a tick.
    Waits,
}

/// The scheduler's view of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(crate) key: u32,
    pub(crate) queue_pair: u32,
    /// The unit's neighbours in each [`List`] of its line.
    links: [Links; 2],
    pub(crate) state: State,
    pub(crate) class: Class,
    pub(crate) account: Account,
    /// `true` if the unit's next packet is for the device, which had no room for it. Of its line's
    /// lists, the unit is then only in [`List::All`].
    blocked: bool,
    /// Credit for rounds that passed because others wait for the device. The scheduler takes it
    /// back if this unit turns out to wait, too.
    pub(crate) lent: i64,
    /// `true` if the unit sent while the device had no room, so its packets are for this host.
    pub(crate) local: bool,
    /// The time since which the unit has had something to send, in nanoseconds.
    pub(crate) since: u64,
    /// Bytes of the message that the unit is in the middle of; 0 for none.
    pub(crate) message_bytes: u64,
}

/// All units and lines.
#[derive(Debug)]
pub(crate) struct Units {
    pub(crate) all: Vec<Unit>,
    free: Vec<u32>,
    /// The ends of each line's lists.
    ends: [[Links; 2]; LINES],
    counts: [[usize; 2]; LINES],
    /// Number of insertions into and removals from lists.
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

    pub(crate) fn add(&mut self, key: u32, queue_pair: u32) -> u32 {
        let unit = Unit {
            key,
            queue_pair,
            links: [ALONE; 2],
            state: State::Idle,
            class: Class::default(),
            account: Account::default(),
            blocked: false,
            lent: 0,
            local: false,
            since: 0,
            message_bytes: 0,
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

    /// Frees a unit that stands in no line.
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

    /// Returns the first unit of a list.
    #[inline]
    pub(crate) fn head(&self, line: u8, list: List) -> Option<u32> {
        let head = self.ends[line as usize][list as usize].next;
        (head != NONE).then_some(head)
    }

    /// Returns the next unit of a list.
    #[inline]
    pub(crate) fn after(&self, id: u32, list: List) -> Option<u32> {
        let next = self.get(id).links[list as usize].next;
        (next != NONE).then_some(next)
    }

    /// Returns the number of units in a list.
    #[inline]
    pub(crate) fn count(&self, line: u8, list: List) -> usize {
        self.counts[line as usize][list as usize]
    }

    /// Returns `true` if a unit that stands in a line is known to wait for room.
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

    /// Puts a unit that stands in no line, and is not known to wait for room, before all others of
    /// one.
    pub(crate) fn push_front(&mut self, line: u8, id: u32) {
        self.enter(line, id, false);
        for list in [List::All, List::Unblocked] {
            self.link(line, list, id, NONE, self.ends[line as usize][list as usize].next);
        }
    }

    /// Records that a unit waits for room. The unit keeps its position in its line.
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
        debug_assert!(!matches!(unit.state, State::Line(_)), "the unit stands in another line");
        (unit.state, unit.blocked) = (State::Line(line), blocked);
    }

    /// Inserts a unit between two neighbours.
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

    /// Returns the links of a unit; for [`NONE`], those of the line.
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
