//! Units, and the lines that they stand in: each in at most one, with constant time for whatever
//! happens to it, and no memory of its own to be had while packets move.

use crate::schedule::policy::Account;
use crate::schedule::shape::{Class, LEVELS};

/// No unit.
pub(crate) const NONE: u32 = u32::MAX;
/// The line of those that the device has no room for.
pub(crate) const BLOCKED: u8 = LEVELS;
/// The line of those whose next packet is a small one.
pub(crate) const SMALL: u8 = LEVELS + 1;
/// As many lines: one a level, and those two.
const LINES: usize = LEVELS as usize + 2;

/// The list of all in a line, and of those that are not known to wait for room.
const ALL: usize = 0;
const FREE: usize = 1;

/// The neighbours of a unit in a list.
#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

impl Default for Links {
    fn default() -> Links {
        Links { previous: NONE, next: NONE }
    }
}

/// Where a list begins and ends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

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
    /// Its neighbours among all of its line, and among those that do not wait for room.
    links: [Links; 2],
    pub(crate) state: State,
    pub(crate) class: Class,
    pub(crate) account: Account,
    /// Its next packet is for the device, which had no room for it. Only changed while it stands in
    /// no line.
    pub(crate) blocked: bool,
    /// It goes back to the head of its line, not to the end.
    pub(crate) first: bool,
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
    /// Of all in each line, and of those of them that do not wait for room: in the same order, since
    /// who comes comes to an end.
    ends: [[Ends; LINES]; 2],
    counts: [usize; LINES],
    /// Of these, units whose next packet is for the device, which had no room for it.
    blocked: [usize; LINES],
}

impl Units {
    pub(crate) fn new() -> Units {
        Units {
            all: Vec::new(),
            free: Vec::new(),
            ends: [[Ends { head: NONE, tail: NONE }; LINES]; 2],
            counts: [0; LINES],
            blocked: [0; LINES],
        }
    }

    pub(crate) fn add(&mut self, place: u32, queue_set: u32) -> u32 {
        let unit = Unit {
            place,
            queue_set,
            links: [Links::default(); 2],
            state: State::Idle,
            class: Class::default(),
            account: Account::default(),
            blocked: false,
            first: false,
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

    #[inline]
    pub(crate) fn head(&self, line: u8) -> Option<u32> {
        let head = self.ends[ALL][line as usize].head;
        (head != NONE).then_some(head)
    }

    pub(crate) fn tail(&self, line: u8) -> Option<u32> {
        let tail = self.ends[ALL][line as usize].tail;
        (tail != NONE).then_some(tail)
    }

    pub(crate) fn before(&self, id: u32) -> Option<u32> {
        let previous = self.get(id).links[ALL].previous;
        (previous != NONE).then_some(previous)
    }

    pub(crate) fn after(&self, id: u32) -> Option<u32> {
        let next = self.get(id).links[ALL].next;
        (next != NONE).then_some(next)
    }

    #[inline]
    pub(crate) fn count(&self, line: u8) -> usize {
        self.counts[line as usize]
    }

    /// How many in a line wait for room, as far as is known.
    #[inline]
    pub(crate) fn blocked(&self, line: u8) -> usize {
        self.blocked[line as usize]
    }

    /// The first of a line that is not known to wait for room.
    #[inline]
    pub(crate) fn head_of_free(&self, line: u8) -> Option<u32> {
        let head = self.ends[FREE][line as usize].head;
        (head != NONE).then_some(head)
    }

    /// The next one behind it that is not known to wait for room.
    pub(crate) fn free_after(&self, id: u32) -> Option<u32> {
        let next = self.get(id).links[FREE].next;
        (next != NONE).then_some(next)
    }

    pub(crate) fn push_back(&mut self, line: u8, id: u32) {
        for list in self.enter(line, id) {
            let tail = std::mem::replace(&mut self.ends[list][line as usize].tail, id);
            if tail == NONE {
                self.ends[list][line as usize].head = id;
            } else {
                self.get_mut(tail).links[list].next = id;
            }
            self.get_mut(id).links[list] = Links { previous: tail, next: NONE };
        }
    }

    pub(crate) fn push_front(&mut self, line: u8, id: u32) {
        for list in self.enter(line, id) {
            let head = std::mem::replace(&mut self.ends[list][line as usize].head, id);
            if head == NONE {
                self.ends[list][line as usize].tail = id;
            } else {
                self.get_mut(head).links[list].previous = id;
            }
            self.get_mut(id).links[list] = Links { previous: NONE, next: head };
        }
    }

    /// A unit comes into a line. Answers which of its lists.
    fn enter(&mut self, line: u8, id: u32) -> std::ops::Range<usize> {
        let unit = self.get_mut(id);
        unit.state = State::Line(line);
        let blocked = unit.blocked;
        self.counts[line as usize] += 1;
        self.blocked[line as usize] += usize::from(blocked);
        if blocked { ALL..ALL + 1 } else { ALL..FREE + 1 }
    }

    /// Takes a unit out of its line, if it stands in one.
    pub(crate) fn leave(&mut self, id: u32) {
        let unit = *self.get(id);
        let State::Line(line) = unit.state else { return };
        let lists = if unit.blocked { ALL..ALL + 1 } else { ALL..FREE + 1 };
        for list in lists {
            let Links { previous, next } = unit.links[list];
            match previous {
                NONE => self.ends[list][line as usize].head = next,
                previous => self.get_mut(previous).links[list].next = next,
            }
            match next {
                NONE => self.ends[list][line as usize].tail = previous,
                next => self.get_mut(next).links[list].previous = previous,
            }
        }
        self.counts[line as usize] -= 1;
        self.blocked[line as usize] -= usize::from(unit.blocked);
        let unit = self.get_mut(id);
        (unit.links, unit.state) = ([Links::default(); 2], State::Served);
    }
}
