//! Whose turn it is: the transmit scheduler.
//!
//! What is scheduled is a **unit**, a queue set: its packets leave in their order, so the one at its
//! head decides by its endpoint's settings. Endpoints that share a queue set share one turn; an
//! endpoint that is to have a share of its own has a queue set of its own.
//!
//! In this order: strict priority between levels; within a level the [`Policy`], one file each;
//! before its turn comes, a unit may have to wait for its rate or its tick ([`shape`]), which it does
//! outside of any line. Who waits for room in the device keeps its place and what it may send, and is
//! passed over while there is none: others may have packets for this host.
//!
//! This module knows neither queues nor packets. The engine asks whose turn it is
//! ([`Schedule::next`]), serves it, and says what came of it; docs/scheduling.md says what users see.

pub(crate) mod arrivals;
pub(crate) mod bucket;
pub(crate) mod deficit;
mod policy;
pub(crate) mod round_robin;
pub(crate) mod shape;
mod turn;
mod units;

pub(crate) use policy::{Account, Policy};
pub(crate) use turn::{Due, Stop, Turn};

use crate::due::DueHeap;
use shape::{Class, LEVELS};
use units::{List, SMALL, State, Unit, Units};

/// Who is first when the device has room again.
#[derive(Clone, Copy, Debug)]
struct Hold {
    unit: u32,
    /// It is in the middle of a message: before everybody. Else: before those of its level and below.
    message: bool,
    /// In this turn of the engine it found too little room.
    refused: bool,
}

/// The scheduler.
#[derive(Debug)]
pub(crate) struct Schedule {
    units: Units,
    policy: Box<dyn Policy>,
    hold: Option<Hold>,
    /// In this turn of the engine somebody found the device without any room.
    full: bool,
    /// Units that wait for a time, in nanoseconds, and for a tick.
    times: DueHeap,
    ticks: DueHeap,
    /// The unit being served is the only one of its level: nobody is to be paid.
    alone: bool,
    /// There was room in the device for the unit being served.
    open: bool,
}

impl Schedule {
    /// Nobody is there.
    #[must_use]
    pub(crate) fn new(policy: Box<dyn Policy>) -> Schedule {
        Schedule {
            units: Units::new(),
            policy,
            hold: None,
            full: false,
            times: DueHeap::default(),
            ticks: DueHeap::default(),
            alone: false,
            open: true,
        }
    }

    /// Shares in another way from now on; nobody owes anything.
    pub(crate) fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
        for unit in &mut self.units.all {
            unit.account = Account::default();
        }
    }

    /// A new unit, which has nothing to send. Memory for it is had here and at no later time.
    pub(crate) fn add(&mut self, place: u32, queue_set: u32) -> u32 {
        let id = self.units.add(place, queue_set);
        self.times.reserve(self.units.all.len());
        self.ticks.reserve(self.units.all.len());
        id
    }

    /// Units that are no more, whatever they were doing.
    pub(crate) fn remove(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            self.leave(id);
            self.units.release(id);
        }
    }

    /// Whether a unit is known to have something to send.
    #[inline]
    #[must_use]
    pub(crate) fn is_active(&self, unit: u32) -> bool {
        self.units.get(unit).state != State::Idle
    }

    /// In which line a unit stands, or stood last.
    #[inline]
    #[must_use]
    pub(crate) fn class(&self, unit: u32) -> Class {
        self.units.get(unit).class
    }

    /// Since when a unit has had something to send, in nanoseconds.
    #[must_use]
    pub(crate) fn since(&self, unit: u32) -> u64 {
        self.units.get(unit).since
    }

    /// A unit that stood in no line has something to send. `small`: next is a small packet.
    #[inline]
    pub(crate) fn enter(&mut self, id: u32, class: Class, small: bool, now: u64) {
        let unit = self.units.get_mut(id);
        if unit.state == State::Idle {
            unit.since = now;
        }
        unit.class = class;
        if small {
            self.units.push_back(SMALL, id, false);
        } else {
            self.go_last(id, false);
        }
    }

    /// Behind the others of its level, in whose next round it has its turn.
    fn go_last(&mut self, id: u32, blocked: bool) {
        self.units.leave(id);
        let unit = self.units.get_mut(id);
        unit.account.in_turn = false;
        let level = unit.class.level;
        self.units.push_back(level, id, blocked);
    }

    /// Takes a unit out of whatever it is in.
    fn leave(&mut self, id: u32) {
        self.units.leave(id);
        self.hold.take_if(|hold| hold.unit == id);
        if self.times.forget(id) || self.ticks.forget(id) {
            self.units.get_mut(id).state = State::Served;
        }
    }

    /// The engine begins a turn: who found no room in the last one may try again.
    pub(crate) fn begin(&mut self) {
        self.full = false;
        if let Some(hold) = &mut self.hold {
            hold.refused = false;
        }
    }

    /// Whose turn it is, among those that may be served now; `room`: the device has some. The unit
    /// is being served then, and keeps its place, until [`Schedule::more`] or [`Schedule::idle`] is
    /// told.
    pub(crate) fn next(&mut self, room: bool) -> Option<Turn> {
        let room = room && !self.full;
        if let Some(Hold { unit, message: true, refused }) = self.hold
            && (room && !refused || !self.units.is_blocked(unit))
            && matches!(self.units.get(unit).state, State::Line(line) if line < LEVELS)
        {
            // Beyond its share it goes on to the message's end alone.
            let bytes = self.units.get(unit).account.bytes;
            return Some(self.serve(unit, bytes, true));
        }
        for level in (0..LEVELS).rev() {
            if let Some(turn) = self.next_of(level, room) {
                return Some(turn);
            }
        }
        None
    }

    /// The same among those of one level.
    fn next_of(&mut self, level: u8, room: bool) -> Option<Turn> {
        let held = self.hold.map(|hold| (hold, self.units.get(hold.unit).class.level));
        if let Some((Hold { unit, message: false, refused: false }, at)) = held
            && room
            && at == level
        {
            let Unit { account, class, .. } = self.units.get_mut(unit);
            if self.policy.begin(account, class.weight) <= 0 {
                let rounds = self.policy.rounds(account, class.weight);
                self.policy.skip(account, class.weight, rounds);
            }
            let bytes = account.bytes;
            return Some(self.serve(unit, bytes, true));
        }
        // Who waits for room with a large packet does not bind those above: their debts count.
        let open = room && held.is_none_or(|(hold, below)| !hold.message && level > below);
        // Nothing is fetched to find out what is known.
        let list = if open { List::All } else { List::Unblocked };
        let (mut passed, mut least) = (0, i64::MAX);
        while let Some(id) = self.units.head(level, list) {
            if self.units.count(level, List::All) == 1 {
                return Some(self.serve(id, 0, open));
            }
            let unit = self.units.get_mut(id);
            let (account, weight) = (&mut unit.account, unit.class.weight);
            let before = account.bytes;
            let bytes = self.policy.begin(account, weight);
            if !open && !unit.local && bytes <= 0 {
                // Whether it waits for the device too is asked where it stands.
                let rounds = self.policy.rounds(account, weight);
                self.policy.skip(account, weight, rounds);
            }
            unit.lent += if open { 0 } else { account.bytes - before };
            let bytes = account.bytes.max(bytes);
            if bytes > 0 {
                return Some(self.serve(id, bytes, open));
            }
            least = least.min(self.policy.rounds(account, weight));
            let blocked = self.units.is_blocked(id);
            self.go_last(id, blocked);
            passed += 1;
            if passed >= self.units.count(level, list) {
                // All owe. Rounds in which nobody sends are not gone through one by one.
                self.skip(level, list, least - 1);
                (passed, least) = (0, i64::MAX);
            }
        }
        None
    }

    fn skip(&mut self, level: u8, list: List, rounds: i64) {
        let mut next = self.units.head(level, list);
        while let Some(id) = next {
            next = self.units.after(id, list);
            let unit = self.units.get_mut(id);
            let before = unit.account.bytes;
            self.policy.skip(&mut unit.account, unit.class.weight, rounds.max(0));
            unit.lent += if list == List::All { 0 } else { unit.account.bytes - before };
        }
    }

    fn serve(&mut self, id: u32, bytes: i64, open: bool) -> Turn {
        self.open = open;
        let level = self.units.get(id).class.level;
        self.alone = self.units.count(level, List::All) == 1;
        let message = self.hold.take_if(|hold| hold.unit == id).is_some_and(|hold| hold.message);
        let unit = self.units.get_mut(id);
        if self.alone {
            unit.account = Account::default();
        }
        // A message that nobody waited for has ended.
        let run = if message { unit.run } else { 0 };
        unit.run = 0;
        Turn {
            unit: id,
            place: unit.place,
            queue_set: unit.queue_set,
            // For one alone there is nobody whose turn could come earlier.
            packets: if self.alone { usize::MAX } else { self.policy.packets() },
            bytes: if self.alone { i64::MAX } else { bytes },
            run,
        }
    }

    /// The unit whose next packet is a small one, and whose turn it is among those; `room`: the device
    /// has some for small ones. The unit keeps its place until [`Schedule::more_small`] or another is
    /// told.
    pub(crate) fn next_small(&mut self, room: bool) -> Option<Turn> {
        let id = self.units.head(SMALL, if room { List::All } else { List::Unblocked })?;
        self.alone = true;
        let unit = self.units.get(id);
        let (place, queue_set) = (unit.place, unit.queue_set);
        Some(Turn { unit: id, place, queue_set, packets: usize::MAX, bytes: i64::MAX, run: 0 })
    }

    /// Whether a unit may give the device packets while others wait for room.
    #[inline]
    #[must_use]
    pub(crate) fn may_use_device(&self, unit: u32) -> bool {
        match self.hold {
            None => true,
            Some(hold) => {
                let level = |id| self.units.get(id).class.level;
                hold.unit == unit || !hold.message && level(unit) > level(hold.unit)
            }
        }
    }

    /// The unit that is served sent so many bytes.
    #[inline]
    pub(crate) fn charge(&mut self, unit: u32, bytes: u64) {
        if !self.alone {
            self.policy.charge(&mut self.units.get_mut(unit).account, bytes);
        }
    }

    /// The unit that was served has more to send; `run`: bytes of the message that it is in the
    /// middle of, and that is to be kept together.
    pub(crate) fn more(&mut self, id: u32, stop: Stop, run: u64) {
        let unit = self.units.get_mut(id);
        let lent = std::mem::take(&mut unit.lent);
        unit.run = run;
        match stop {
            Stop::Class(class) => {
                unit.class = class;
                self.go_last(id, false);
            }
            Stop::Over => {
                unit.local |= !self.open;
                if run == 0 && !self.policy.goes_on(&unit.account, false) {
                    self.go_last(id, false);
                } else if self.units.is_blocked(id) {
                    self.units.leave(id);
                    self.units.push_front(self.units.get(id).class.level, id);
                }
                if run > 0 {
                    self.hold_for(Hold { unit: id, message: true, refused: false });
                }
            }
            Stop::Blocked { at_once, large } => {
                unit.local = false;
                if at_once && lent > 0 {
                    unit.account = Account { bytes: unit.account.bytes - lent, in_turn: false };
                }
                let first = run > 0 || self.policy.goes_on(&unit.account, at_once);
                if first || at_once {
                    self.units.block(id);
                } else {
                    self.go_last(id, true);
                }
                self.full |= self.open && !large;
                // It has its turn when there is room again, before those that need less of it.
                if run > 0 || first && large {
                    self.hold_for(Hold { unit: id, message: run > 0, refused: true });
                }
            }
            Stop::Until(due) => {
                self.rest(id, State::Waits);
                self.times.put(due, id);
            }
            Stop::Tick(tick) => {
                self.rest(id, State::Waits);
                self.ticks.put(tick, id);
            }
        }
    }

    /// From now on others wait for this one, unless it has to wait for another itself.
    fn hold_for(&mut self, hold: Hold) {
        let held = self.hold.is_some_and(|hold| hold.message);
        if !held && (hold.message || self.may_use_device(hold.unit)) {
            self.hold = Some(hold);
        }
    }

    /// The unit that was served from the line of small packets still has some; `blocked`: the device
    /// has no room for the next one, and the unit keeps its place.
    pub(crate) fn more_small(&mut self, id: u32, blocked: bool) {
        if blocked {
            self.units.block(id);
        } else {
            self.units.leave(id);
            self.units.push_back(SMALL, id, false);
        }
    }

    /// The unit that was served is to [`Schedule::enter`] another line.
    pub(crate) fn leave_line(&mut self, id: u32) {
        self.rest(id, State::Served);
    }

    /// The unit that was served has nothing more to send.
    #[inline]
    pub(crate) fn idle(&mut self, id: u32) {
        self.rest(id, State::Idle);
    }

    /// What it did not use is lost, and what it owes stays.
    fn rest(&mut self, id: u32, state: State) {
        self.units.leave(id);
        let unit = self.units.get_mut(id);
        unit.account = Account { bytes: unit.account.bytes.min(0), in_turn: false };
        (unit.state, unit.run, unit.lent) = (state, 0, 0);
    }

    /// A unit that waited, and waits no more at this time and tick: it is to [`Schedule::enter`]
    /// again. `None`: no further one.
    pub(crate) fn due(&mut self, now: u64, tick: u64) -> Option<Due> {
        let unit = self.times.take(now).or_else(|| self.ticks.take(tick))?;
        let one = self.units.get_mut(unit);
        one.state = State::Served;
        Some(Due { unit, place: one.place, queue_set: one.queue_set })
    }

    /// Takes a unit out of its line, or from what it waits for: something of it changed, and it is to
    /// [`Schedule::enter`] again. `false`: it has nothing to send.
    pub(crate) fn withdraw(&mut self, id: u32) -> bool {
        let state = self.units.get(id).state;
        self.leave(id);
        !matches!(state, State::Free | State::Idle)
    }

    /// Whether a unit waits for a time or a tick.
    #[must_use]
    pub(crate) fn someone_waits(&self) -> bool {
        self.times.next().or(self.ticks.next()).is_some()
    }

    /// A unit that waits for a time or a tick is due at once.
    pub(crate) fn hurry(&mut self, id: u32) {
        for heap in [&mut self.times, &mut self.ticks] {
            if heap.has(id) {
                heap.put(0, id);
            }
        }
    }

    /// Takes a unit out of the line of small packets: they go past nobody any more.
    pub(crate) fn withdraw_small(&mut self) -> Option<Due> {
        let Turn { unit, place, queue_set, .. } = self.next_small(true)?;
        self.leave(unit);
        Some(Due { unit, place, queue_set })
    }

    /// When the next unit is due that waits for a time, in nanoseconds.
    #[must_use]
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.times.next()
    }

    /// When the next unit is due that waits for a tick.
    #[must_use]
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.ticks.next()
    }

    /// Units that could be served now; `room`: the device has some.
    #[must_use]
    pub(crate) fn ready(&self, room: bool) -> usize {
        self.count(if room { List::All } else { List::Unblocked })
    }

    /// Units whose next packet is a small one, and that could be served now; `room`: the device has
    /// some for small ones.
    #[must_use]
    pub(crate) fn small(&self, room: bool) -> usize {
        self.units.count(SMALL, if room { List::All } else { List::Unblocked })
    }

    /// Units that wait for room in the device, as far as is known.
    #[must_use]
    pub(crate) fn blocked(&self) -> usize {
        self.count(List::All) - self.count(List::Unblocked)
    }

    fn count(&self, list: List) -> usize {
        (0..LEVELS).map(|level| self.units.count(level, list)).sum()
    }
}

#[cfg(test)]
mod tests;
