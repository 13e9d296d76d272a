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
    next: u32,
    previous: u32,
    pub(crate) state: State,
    pub(crate) class: Class,
    pub(crate) account: Account,
    /// Its next packet is for the device, which had no room for it.
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
    heads: [u32; LINES],
    tails: [u32; LINES],
    counts: [usize; LINES],
}

impl Units {
    pub(crate) fn new() -> Units {
        Units {
            all: Vec::new(),
            free: Vec::new(),
            heads: [NONE; LINES],
            tails: [NONE; LINES],
            counts: [0; LINES],
        }
    }

    pub(crate) fn add(&mut self, place: u32, queue_set: u32) -> u32 {
        let unit = Unit {
            place,
            queue_set,
            next: NONE,
            previous: NONE,
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
        let head = self.heads[line as usize];
        (head != NONE).then_some(head)
    }

    pub(crate) fn tail(&self, line: u8) -> Option<u32> {
        let tail = self.tails[line as usize];
        (tail != NONE).then_some(tail)
    }

    pub(crate) fn before(&self, id: u32) -> Option<u32> {
        let previous = self.get(id).previous;
        (previous != NONE).then_some(previous)
    }

    pub(crate) fn after(&self, id: u32) -> Option<u32> {
        let next = self.get(id).next;
        (next != NONE).then_some(next)
    }

    #[inline]
    pub(crate) fn count(&self, line: u8) -> usize {
        self.counts[line as usize]
    }

    pub(crate) fn push_back(&mut self, line: u8, id: u32) {
        let tail = std::mem::replace(&mut self.tails[line as usize], id);
        if tail == NONE {
            self.heads[line as usize] = id;
        } else {
            self.get_mut(tail).next = id;
        }
        let unit = self.get_mut(id);
        (unit.previous, unit.next, unit.state) = (tail, NONE, State::Line(line));
        self.counts[line as usize] += 1;
    }

    pub(crate) fn push_front(&mut self, line: u8, id: u32) {
        let head = std::mem::replace(&mut self.heads[line as usize], id);
        if head == NONE {
            self.tails[line as usize] = id;
        } else {
            self.get_mut(head).previous = id;
        }
        let unit = self.get_mut(id);
        (unit.previous, unit.next, unit.state) = (NONE, head, State::Line(line));
        self.counts[line as usize] += 1;
    }

    /// Takes a unit out of its line, if it stands in one.
    pub(crate) fn leave(&mut self, id: u32) {
        let unit = *self.get(id);
        let State::Line(line) = unit.state else { return };
        match unit.previous {
            NONE => self.heads[line as usize] = unit.next,
            previous => self.get_mut(previous).next = unit.next,
        }
        match unit.next {
            NONE => self.tails[line as usize] = unit.previous,
            next => self.get_mut(next).previous = unit.previous,
        }
        self.counts[line as usize] -= 1;
        let unit = self.get_mut(id);
        (unit.previous, unit.next, unit.state) = (NONE, NONE, State::Served);
    }
}
