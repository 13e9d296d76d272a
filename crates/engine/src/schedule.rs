//! The transmit scheduler, which decides which queue pair the engine serves next.
//!
//! The scheduler serves **units**. A unit is a queue pair: its packets leave in order, so the
//! settings of the endpoint whose packet is at the head apply. Endpoints that share a queue pair
//! share one turn; an endpoint with a share of its own has its own queue pair.
//!
//! The scheduler applies strict priority between levels. Within a level it applies the [`Policy`];
//! each policy has its own file. Before its turn, a unit may have to wait for its rate or its tick
//! ([`shape`]), and it stands in no line meanwhile. A unit that waits for room in the device keeps
//! its position and its credit. The scheduler passes it over while the device has no room, because
//! other units may have packets for this host.
//!
//! `select.rs` chooses the next unit. This module knows neither queues nor packets. The engine asks for the next unit
//! ([`Schedule::next`]), serves it, and reports the result. docs/scheduling.md describes the
//! behaviour that users see.

pub(crate) mod arrivals;
pub(crate) mod bucket;
mod deficit;
mod policy;
mod round_robin;
mod select;
pub(crate) mod shape;
mod turn;
mod units;

use policy::{Account, Policy};
pub(crate) use turn::{Due, Stop, Turn};

use crate::deadlines::Deadlines;
use deficit::Deficit;
use round_robin::RoundRobin;
use shape::{Class, LEVELS};
use units::{EXPEDITED, List, State, Units};

/// Returns the policy that a value of the setting `scheduler` names. With round-robin, a queue pair
/// sends `transmit_budget` packets per turn.
pub(crate) fn policy(value: u64, transmit_budget: usize) -> Box<dyn Policy> {
    match value {
        0 => Box::new(RoundRobin { packets: transmit_budget }),
        _ => Box::new(Deficit),
    }
}

/// The unit that the scheduler serves first once the device has room again.
#[derive(Clone, Copy, Debug)]
struct Hold {
    unit: u32,
    /// `true` if the unit is in the middle of a message; it then precedes every other unit.
    /// Otherwise it precedes the units of its level and below.
    message: bool,
    /// `true` if the unit found too little room in this poll iteration.
    refused: bool,
}

/// The scheduler.
#[derive(Debug)]
pub(crate) struct Schedule {
    units: Units,
    policy: Box<dyn Policy>,
    hold: Option<Hold>,
    /// `true` if a unit found the device without any room in this poll iteration.
    full: bool,
    /// Units that wait for a time, in nanoseconds, and units that wait for a tick.
    times: Deadlines,
    ticks: Deadlines,
    /// `true` if the served unit is the only one of its level; the policy then does not charge it.
    alone: bool,
    /// `true` if the device had room for the served unit.
    open: bool,
}

impl Schedule {
    /// Returns a scheduler without units.
    #[must_use]
    pub(crate) fn new(policy: Box<dyn Policy>) -> Schedule {
        Schedule {
            units: Units::new(),
            policy,
            hold: None,
            full: false,
            times: Deadlines::default(),
            ticks: Deadlines::default(),
            alone: false,
            open: true,
        }
    }

    /// Replaces the policy and clears every unit's debt.
    pub(crate) fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
        for unit in &mut self.units.all {
            unit.account = Account::default();
        }
    }

    /// Adds a unit that has nothing to send. All memory for the unit is allocated here.
    pub(crate) fn add(&mut self, key: u32, queue_pair: u32) -> u32 {
        let id = self.units.add(key, queue_pair);
        self.times.reserve(self.units.all.len());
        self.ticks.reserve(self.units.all.len());
        id
    }

    /// Removes units in any state.
    pub(crate) fn remove(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            self.leave(id);
            self.units.release(id);
        }
    }

    /// Returns `true` if the scheduler knows that the unit has something to send.
    #[inline]
    #[must_use]
    pub(crate) fn is_active(&self, unit: u32) -> bool {
        self.units.get(unit).state != State::Idle
    }

    /// Returns the line in which a unit stands, or stood last.
    #[inline]
    #[must_use]
    pub(crate) fn class(&self, unit: u32) -> Class {
        self.units.get(unit).class
    }

    /// Returns the time since which a unit has had something to send, in nanoseconds.
    #[must_use]
    pub(crate) fn since(&self, unit: u32) -> u64 {
        self.units.get(unit).since
    }

    /// Puts a unit that stood in no line, and now has something to send, into its line.
    /// `expedited`: the next packet is an expedited one.
    #[inline]
    pub(crate) fn enter(&mut self, id: u32, class: Class, expedited: bool, now: u64) {
        let unit = self.units.get_mut(id);
        if unit.state == State::Idle {
            unit.since = now;
        }
        unit.class = class;
        if expedited {
            self.units.push_back(EXPEDITED, id, false);
        } else {
            self.go_last(id, false);
        }
    }

    /// Puts a unit behind the others of its level; its turn comes in the level's next round.
    fn go_last(&mut self, id: u32, blocked: bool) {
        self.units.leave(id);
        let unit = self.units.get_mut(id);
        unit.account.in_turn = false;
        let level = unit.class.level;
        self.units.push_back(level, id, blocked);
    }

    /// Takes a unit out of its line or heap.
    fn leave(&mut self, id: u32) {
        self.units.leave(id);
        self.hold.take_if(|hold| hold.unit == id);
        if self.times.forget(id) || self.ticks.forget(id) {
            self.units.get_mut(id).state = State::Served;
        }
    }

    /// Begins a poll iteration: units that found no room in the last one may try again.
    pub(crate) fn begin(&mut self) {
        self.full = false;
        if let Some(hold) = &mut self.hold {
            hold.refused = false;
        }
    }

    /// Returns `true` if a unit may give the device packets while other units wait for room.
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

    /// Charges the served unit with the bytes that it sent.
    #[inline]
    pub(crate) fn charge(&mut self, unit: u32, bytes: u64) {
        if !self.alone {
            self.policy.charge(&mut self.units.get_mut(unit).account, bytes);
        }
    }

    /// Takes back a served unit that has more to send. `run`: bytes sent so far of the message that
    /// the unit is in the middle of, and that the scheduler keeps together.
    pub(crate) fn more(&mut self, id: u32, stop: Stop, message_bytes: u64) {
        let unit = self.units.get_mut(id);
        let lent = std::mem::take(&mut unit.lent);
        unit.message_bytes = message_bytes;
        match stop {
            Stop::Class(class) => {
                unit.class = class;
                self.go_last(id, false);
            }
            Stop::Over => {
                unit.local |= !self.open;
                if message_bytes == 0 && !self.policy.stays_first(&unit.account, false) {
                    self.go_last(id, false);
                } else if self.units.is_blocked(id) {
                    self.units.leave(id);
                    self.units.push_front(self.units.get(id).class.level, id);
                }
                if message_bytes > 0 {
                    self.hold_for(Hold { unit: id, message: true, refused: false });
                }
            }
            Stop::Blocked { at_once, large } => {
                unit.local = false;
                if at_once && lent > 0 {
                    unit.account = Account { bytes: unit.account.bytes - lent, in_turn: false };
                }
                let first = message_bytes > 0 || self.policy.stays_first(&unit.account, at_once);
                if first || at_once {
                    self.units.block(id);
                } else {
                    self.go_last(id, true);
                }
                self.full |= self.open && !large;
                // The unit has its turn once the device has room again, before units that need less
                // room.
                if message_bytes > 0 || first && large {
                    self.hold_for(Hold { unit: id, message: message_bytes > 0, refused: true });
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

    /// Makes the other units wait for this one, unless the unit itself has to wait for another.
    fn hold_for(&mut self, hold: Hold) {
        let held = self.hold.is_some_and(|hold| hold.message);
        if !held && (hold.message || self.may_use_device(hold.unit)) {
            self.hold = Some(hold);
        }
    }

    /// Takes back a served unit of the expedited line that has more expedited packets. `blocked`:
    /// the device has no room for the next one, and the unit keeps its position.
    pub(crate) fn more_expedited(&mut self, id: u32, blocked: bool) {
        if blocked {
            self.units.block(id);
        } else {
            self.units.leave(id);
            self.units.push_back(EXPEDITED, id, false);
        }
    }

    /// Takes the served unit out of its line; the engine calls [`Schedule::enter`] for another
    /// line.
    pub(crate) fn leave_line(&mut self, id: u32) {
        self.rest(id, State::Served);
    }

    /// Takes back a served unit that has nothing more to send.
    #[inline]
    pub(crate) fn idle(&mut self, id: u32) {
        self.rest(id, State::Idle);
    }

    /// Takes the unit out of its line; it loses unused credit and keeps its debt.
    fn rest(&mut self, id: u32, state: State) {
        self.units.leave(id);
        let unit = self.units.get_mut(id);
        unit.account = Account { bytes: unit.account.bytes.min(0), in_turn: false };
        (unit.state, unit.message_bytes, unit.lent) = (state, 0, 0);
    }

    /// Returns a unit whose wait ends at this time or tick; the engine calls [`Schedule::enter`]
    /// for it again. `None`: no further unit is due.
    pub(crate) fn due(&mut self, now: u64, tick: u64) -> Option<Due> {
        let unit = self.times.take(now).or_else(|| self.ticks.take(tick))?;
        let one = self.units.get_mut(unit);
        one.state = State::Served;
        Some(Due { unit, key: one.key, queue_pair: one.queue_pair })
    }

    /// Takes a unit out of its line or its wait because one of its settings changed; the engine
    /// calls [`Schedule::enter`] for it again. Returns `false` if the unit has nothing to send.
    pub(crate) fn withdraw(&mut self, id: u32) -> bool {
        let state = self.units.get(id).state;
        self.leave(id);
        !matches!(state, State::Free | State::Idle)
    }

    /// Returns `true` if a unit waits for a time or a tick.
    #[must_use]
    pub(crate) fn has_waiting_units(&self) -> bool {
        self.times.next().or(self.ticks.next()).is_some()
    }

    /// Makes a unit that waits for a time or a tick due at once.
    pub(crate) fn make_due(&mut self, id: u32) {
        for pool in [&mut self.times, &mut self.ticks] {
            if pool.has(id) {
                pool.put(0, id);
            }
        }
    }

    /// Returns when the next unit that waits for a time is due, in nanoseconds.
    #[must_use]
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.times.next()
    }

    /// Returns when the next unit that waits for a tick is due.
    #[must_use]
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.ticks.next()
    }

    /// Counts the units that the engine could serve now; `room`: the device has room.
    #[must_use]
    pub(crate) fn ready(&self, room: bool) -> usize {
        self.count(if room { List::All } else { List::Unblocked })
    }

    /// Counts the units whose next packet is an expedited one and that the engine could serve now;
    /// `room`: the device has room for expedited packets.
    #[must_use]
    pub(crate) fn expedited(&self, room: bool) -> usize {
        self.units.count(EXPEDITED, if room { List::All } else { List::Unblocked })
    }

    /// Counts the units known to wait for room in the device.
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
