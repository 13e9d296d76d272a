//! Whose turn it is: the transmit scheduler.
//!
//! What is scheduled is a **unit**, a queue set: its packets leave in their order, so the one at its
//! head decides by its endpoint's settings. Endpoints that share a queue set share one turn; an
//! endpoint that is to have a share of its own has a queue set of its own.
//!
//! In this order: strict priority between levels; within a level the [`Policy`], one file each;
//! before its turn comes, a unit may have to wait for its rate or its tick ([`shape`]), and
//! for room in the device. Whoever waits stands in no line that anybody behind it stands in.
//!
//! This module knows neither queues nor packets. The engine asks whose turn it is
//! ([`Schedule::next`]), serves it, and says what came of it; docs/scheduling.md says what users see.

pub mod arrivals;
pub mod bucket;
pub mod deficit;
mod policy;
pub mod round_robin;
pub mod shape;
mod turn;
mod units;
mod waiting;

pub use policy::{Account, Policy};
pub use turn::{Due, Stop, Turn};

use shape::{Class, LEVELS};
use units::{BLOCKED, SMALL, State, Units};
use waiting::Waiting;

/// Who is first when the device has room again.
#[derive(Clone, Copy, Debug)]
struct Hold {
    unit: u32,
    /// It is in the middle of a message: before everybody. Else: before those of its level and below.
    message: bool,
}

/// The scheduler.
#[derive(Debug)]
pub struct Schedule {
    units: Units,
    policy: Box<dyn Policy>,
    /// Units of each level with something to send that only wait for their turn or for room.
    members: [usize; LEVELS as usize],
    hold: Option<Hold>,
    waiting: Waiting,
    /// The unit being served is the only one of its level: nobody is to be paid.
    alone: bool,
    /// There was room in the device for the unit being served.
    open: bool,
}

impl Schedule {
    /// Nobody is there.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>) -> Schedule {
        Schedule {
            units: Units::new(),
            policy,
            members: [0; LEVELS as usize],
            hold: None,
            waiting: Waiting::default(),
            alone: false,
            open: true,
        }
    }

    /// How units of one level share.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Shares in another way from now on; nobody owes anything.
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
        for unit in &mut self.units.all {
            unit.account = Account::default();
        }
    }

    /// A new unit, which has nothing to send. Memory for it is had here and at no later time.
    pub fn add(&mut self, place: u32, queue_set: u32) -> u32 {
        let id = self.units.add(place, queue_set);
        self.waiting.reserve(self.units.all.len());
        id
    }

    /// Units that are no more, whatever they were doing.
    pub fn remove(&mut self, ids: impl IntoIterator<Item = u32>) {
        let mut waited = false;
        for id in ids {
            waited |= self.units.get(id).state == State::Waits;
            self.leave(id);
            self.units.release(id);
        }
        if waited {
            let units = &self.units;
            self.waiting.retain(|id| units.get(id).state == State::Waits);
        }
    }

    /// Whether a unit is known to have something to send.
    #[inline]
    #[must_use]
    pub fn is_active(&self, unit: u32) -> bool {
        self.units.get(unit).state != State::Idle
    }

    /// In which line a unit stands, or stood last.
    #[inline]
    #[must_use]
    pub fn class(&self, unit: u32) -> Class {
        self.units.get(unit).class
    }

    /// Since when a unit has had something to send, in nanoseconds.
    #[must_use]
    pub fn since(&self, unit: u32) -> u64 {
        self.units.get(unit).since
    }

    /// A unit that stood in no line has something to send. `small`: next is a small packet.
    #[inline]
    pub fn enter(&mut self, id: u32, class: Class, small: bool, now: u64) {
        let unit = self.units.get_mut(id);
        if unit.state == State::Idle {
            unit.since = now;
        }
        unit.class = class;
        self.stand(id, small, false);
    }

    fn stand(&mut self, id: u32, small: bool, first: bool) {
        let unit = self.units.get_mut(id);
        let level = unit.class.level;
        if small {
            self.units.push_back(SMALL, id);
        } else {
            if first {
                self.units.push_front(level, id);
            } else {
                unit.account.in_turn = false;
                self.units.push_back(level, id);
            }
            self.members[level as usize] += 1;
        }
    }

    /// Takes a unit out of whatever it is in; it is being served then.
    fn leave(&mut self, id: u32) {
        let unit = self.units.get(id);
        if let State::Line(line) = unit.state
            && line != SMALL
        {
            self.members[unit.class.level as usize] -= 1;
        }
        self.units.leave(id);
        if self.hold.is_some_and(|hold| hold.unit == id) {
            self.hold = None;
        }
    }

    /// The device has room again: those that waited for it stand where they stood.
    pub fn unblock(&mut self) {
        let mut last = self.units.tail(BLOCKED);
        while let Some(id) = last {
            last = self.units.before(id);
            if self.units.get(id).first {
                self.units.leave(id);
                self.units.push_front(self.units.get(id).class.level, id);
            }
        }
        let mut next = self.units.head(BLOCKED);
        while let Some(id) = next {
            next = self.units.after(id);
            self.units.leave(id);
            self.units.push_back(self.units.get(id).class.level, id);
        }
    }

    /// Whose turn it is, among those that may be served now; `room`: the device has some. The unit
    /// is being served then, until [`Schedule::more`] or [`Schedule::idle`] is told.
    pub fn next(&mut self, room: bool) -> Option<Turn> {
        if let Some(Hold { unit, message: true }) = self.hold
            && matches!(self.units.get(unit).state, State::Line(line) if line < LEVELS)
        {
            // Beyond its share it goes on to the message's end alone.
            let bytes = self.units.get(unit).account.bytes;
            return Some(self.serve(unit, bytes, true));
        }
        let held = self.hold.map(|hold| (hold.message, self.units.get(hold.unit).class.level));
        for level in (0..LEVELS).rev() {
            // Who waits for room with a large packet does not bind those above: their debts count.
            let open = room && held.is_none_or(|(message, below)| !message && level > below);
            let (mut passed, mut least) = (0, i64::MAX);
            while let Some(id) = self.units.head(level) {
                let unit = self.units.get(id);
                if unit.blocked && !(room && self.may_use_device(id)) {
                    // Nothing is fetched to find out what is known.
                    let first = unit.account.in_turn || unit.first;
                    self.units.leave(id);
                    self.units.get_mut(id).first = first;
                    self.units.push_back(BLOCKED, id);
                    continue;
                }
                if self.members[level as usize] == 1 {
                    return Some(self.serve(id, 0, open));
                }
                let weight = unit.class.weight;
                let unit = self.units.get_mut(id);
                let account = &mut unit.account;
                let before = account.bytes;
                let bytes = self.policy.begin(account, weight);
                if !open && !unit.local && bytes <= 0 {
                    // Whether it waits for the device too is asked where it stands.
                    let rounds = self.policy.rounds(account, weight);
                    self.policy.skip(account, weight, rounds);
                }
                unit.lent += if open { 0 } else { account.bytes - before };
                let bytes = unit.account.bytes.max(bytes);
                if bytes > 0 {
                    return Some(self.serve(id, bytes, open));
                }
                let account = &mut unit.account;
                account.in_turn = false;
                least = least.min(self.policy.rounds(account, weight));
                self.units.leave(id);
                self.units.push_back(level, id);
                passed += 1;
                // Those that were set aside meanwhile are not there any more.
                if passed >= self.units.count(level) {
                    // All owe. Rounds in which nobody sends are not gone through one by one.
                    self.skip(level, least - 1, open);
                    (passed, least) = (0, i64::MAX);
                }
            }
        }
        None
    }

    fn skip(&mut self, level: u8, rounds: i64, open: bool) {
        let mut next = self.units.head(level);
        while let Some(id) = next {
            next = self.units.after(id);
            let unit = self.units.get_mut(id);
            let before = unit.account.bytes;
            self.policy.skip(&mut unit.account, unit.class.weight, rounds.max(0));
            unit.lent += if open { 0 } else { unit.account.bytes - before };
        }
    }

    fn serve(&mut self, id: u32, bytes: i64, open: bool) -> Turn {
        self.open = open;
        self.alone = self.members[self.units.get(id).class.level as usize] == 1;
        let message = self.hold.is_some_and(|hold| hold.unit == id && hold.message);
        self.leave(id);
        let unit = self.units.get_mut(id);
        if self.alone {
            unit.account = Account::default();
        }
        // A message that nobody waited for has ended.
        let run = if message { unit.run } else { 0 };
        unit.run = 0;
        (unit.blocked, unit.first) = (false, false);
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

    /// The unit whose next packet is a small one, and whose turn it is among those.
    pub fn next_small(&mut self) -> Option<Turn> {
        let id = self.units.head(SMALL)?;
        self.leave(id);
        self.alone = true;
        let unit = self.units.get(id);
        let (place, queue_set) = (unit.place, unit.queue_set);
        Some(Turn { unit: id, place, queue_set, packets: usize::MAX, bytes: i64::MAX, run: 0 })
    }

    /// Whether a unit may give the device packets while others wait for room.
    #[inline]
    #[must_use]
    pub fn may_use_device(&self, unit: u32) -> bool {
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
    pub fn charge(&mut self, unit: u32, bytes: u64) {
        if !self.alone {
            self.policy.charge(&mut self.units.get_mut(unit).account, bytes);
        }
    }

    /// The unit that was served has more to send; `run`: bytes of the message that it is in the
    /// middle of, and that is to be kept together.
    pub fn more(&mut self, id: u32, stop: Stop, run: u64) {
        let unit = self.units.get_mut(id);
        let lent = std::mem::take(&mut unit.lent);
        match stop {
            Stop::Over | Stop::Class(_) => {
                unit.local |= !self.open && stop == Stop::Over;
                let message = run > 0 && stop == Stop::Over;
                let first = message || self.policy.goes_on(&unit.account, false);
                if let Stop::Class(class) = stop {
                    unit.class = class;
                }
                unit.run = run;
                self.stand(id, false, first && !matches!(stop, Stop::Class(_)));
                if message {
                    self.hold_for(id, true);
                }
            }
            Stop::Blocked { at_once, large } => {
                (unit.blocked, unit.run, unit.local) = (true, run, false);
                if at_once && lent > 0 {
                    unit.account = Account { bytes: unit.account.bytes - lent, in_turn: false };
                }
                unit.first = run > 0 || self.policy.goes_on(&unit.account, at_once);
                let (level, first) = (unit.class.level, unit.first);
                self.members[level as usize] += 1;
                // Who has had something and goes last goes behind those that are still in their line.
                let line = if first || at_once { BLOCKED } else { level };
                self.units.push_back(line, id);
                // It has its turn when there is room again, before those that need less of it.
                if run > 0 || first && large {
                    self.hold_for(id, run > 0);
                }
            }
            Stop::Until(due) => {
                Self::rest(unit, State::Waits);
                self.waiting.until(due, id);
            }
            Stop::Tick(tick) => {
                Self::rest(unit, State::Waits);
                self.waiting.until_tick(tick, id);
            }
        }
    }

    /// From now on others wait for this one, unless it has to wait for another itself.
    fn hold_for(&mut self, unit: u32, message: bool) {
        let held = self.hold.is_some_and(|hold| hold.message);
        if !held && (message || self.may_use_device(unit)) {
            self.hold = Some(Hold { unit, message });
        }
    }

    /// The unit that was served from the line of small packets still has some.
    pub fn more_small(&mut self, id: u32, first: bool) {
        if first {
            self.units.push_front(SMALL, id);
        } else {
            self.units.push_back(SMALL, id);
        }
    }

    /// The unit that was served has nothing more to send.
    #[inline]
    pub fn idle(&mut self, id: u32) {
        Self::rest(self.units.get_mut(id), State::Idle);
    }

    /// What it did not use is lost, and what it owes stays.
    fn rest(unit: &mut units::Unit, state: State) {
        unit.account = Account { bytes: unit.account.bytes.min(0), in_turn: false };
        (unit.state, unit.run, unit.blocked, unit.lent) = (state, 0, false, 0);
    }

    /// A unit that waited, and waits no more at this time and tick: it is to [`Schedule::enter`]
    /// again. `None`: no further one.
    pub fn due(&mut self, now: u64, tick: u64) -> Option<Due> {
        let unit = self.waiting.take(now, tick)?;
        let one = self.units.get_mut(unit);
        one.state = State::Served;
        Some(Due { unit, place: one.place, queue_set: one.queue_set })
    }

    /// Takes a unit out of its line, or from what it waits for: something of it changed, and it is to
    /// [`Schedule::enter`] again. `false`: it has nothing to send.
    pub fn withdraw(&mut self, id: u32) -> bool {
        let state = self.units.get(id).state;
        self.leave(id);
        if state == State::Waits {
            self.waiting.retain(|other| other != id);
            self.units.get_mut(id).state = State::Served;
        }
        !matches!(state, State::Free | State::Idle)
    }

    /// A session's units that wait for a time or a tick are due at once: it may be an endpoint's of
    /// another unit, whose settings changed.
    pub fn hurry(&mut self, place: u32) {
        let units = &self.units;
        self.waiting.hurry(|id| units.get(id).place == place);
    }

    /// Takes a unit out of the line of small packets: they go past nobody any more.
    pub fn withdraw_small(&mut self) -> Option<Due> {
        let Turn { unit, place, queue_set, .. } = self.next_small()?;
        Some(Due { unit, place, queue_set })
    }

    /// When the next unit is due that waits for a time, in nanoseconds.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.next_due()
    }

    /// When the next unit is due that waits for a tick.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        self.waiting.next_tick()
    }

    /// Units that could be served now.
    #[must_use]
    pub fn ready(&self) -> usize {
        (0..LEVELS).map(|level| self.units.count(level)).sum()
    }

    /// Units whose next packet is a small one.
    #[must_use]
    pub fn small(&self) -> usize {
        self.units.count(SMALL)
    }

    /// Units that wait for room in the device.
    #[must_use]
    pub fn blocked(&self) -> usize {
        self.units.count(BLOCKED)
    }
}

#[cfg(test)]
mod tests;
