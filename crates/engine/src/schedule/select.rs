//! The choice of the unit that the engine serves next.

use super::policy::Account;
use super::shape::LEVELS;
use super::turn::{Due, Turn};
use super::units::{EXPEDITED, List, State, Unit};
use super::{Hold, Schedule};

impl Schedule {
    /// Returns the next turn among the units that the engine may serve now; `room`: the device has
    /// room. The unit is then being served, and keeps its position until the engine calls
    /// [`Schedule::more`] or [`Schedule::idle`].
    pub(crate) fn next(&mut self, room: bool) -> Option<Turn> {
        let room = room && !self.full;
        if let Some(Hold { unit, message: true, refused }) = self.hold
            && (room && !refused || !self.units.is_blocked(unit))
            && matches!(self.units.get(unit).state, State::Line(line) if line < LEVELS)
        {
            // Beyond its share, the unit may only finish the message.
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

    /// Returns the next turn among the units of one level.
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
        // A unit that waits for room with a large packet does not bind the levels above: debts
        // count there.
        let open = room && held.is_none_or(|(hold, below)| !hold.message && level > below);
        // The scheduler fetches no memory for facts that it already knows.
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
                // The engine checks at the head of the line whether the unit also waits for the
                // device.
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
                // Every unit is in debt. The scheduler skips the rounds in which no unit sends in
                // one step.
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
        // A message that no other unit waited for has ended.
        let message_bytes = if message { unit.message_bytes } else { 0 };
        unit.message_bytes = 0;
        Turn {
            unit: id,
            key: unit.key,
            queue_pair: unit.queue_pair,
            // No other unit's turn could come earlier than that of a lone unit.
            packets: if self.alone { usize::MAX } else { self.policy.packets() },
            bytes: if self.alone { i64::MAX } else { bytes },
            message_bytes,
        }
    }

    /// Returns the next turn among the units whose next packet is an expedited one; `room`: the
    /// device has room for expedited packets. The unit keeps its position until the engine calls
    /// [`Schedule::more_expedited`] or another verb for it.
    pub(crate) fn next_expedited(&mut self, room: bool) -> Option<Turn> {
        let id = self.units.head(EXPEDITED, if room { List::All } else { List::Unblocked })?;
        self.alone = true;
        let unit = self.units.get(id);
        let (key, queue_pair) = (unit.key, unit.queue_pair);
        Some(Turn {
            unit: id,
            key,
            queue_pair,
            packets: usize::MAX,
            bytes: i64::MAX,
            message_bytes: 0,
        })
    }

    /// Takes a unit out of the line of expedited packets, whose packets then lose precedence.
    pub(crate) fn withdraw_expedited(&mut self) -> Option<Due> {
        let Turn { unit, key, queue_pair, .. } = self.next_expedited(true)?;
        self.leave(unit);
        Some(Due { unit, key, queue_pair })
    }
}
