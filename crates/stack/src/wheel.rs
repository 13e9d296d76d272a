//! Timers, one per connection, in a hierarchical wheel: the cost of setting and firing one does not
//! depend on their number (Varghese and Lauck, "Hashed and hierarchical timing wheels").

use crate::Instant;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 6;
const NONE: u32 = u32::MAX;
/// The last tick that is a time: later timers never fire.
const LAST: u64 = u64::MAX >> 10;
/// The maximum length of a list that is searched for its earliest timer.
const SEARCH: usize = 16;

#[derive(Clone, Copy)]
struct Timer {
    /// In ticks.
    when: u64,
    next: u32,
    previous: u32,
    /// Level and slot; `NONE` when not set.
    slot: u32,
}

/// The wheel. A small number identifies a timer.
pub(crate) struct Wheel {
    timers: Vec<Timer>,
    heads: [[u32; SLOTS]; LEVELS],
    occupied: [u64; LEVELS],
    /// The tick up to which all timers have fired.
    current: u64,
}

/// Converts to ticks of 1.024 ms.
fn ticks(instant: Instant) -> u64 {
    instant.as_micros() >> 10
}

impl Wheel {
    pub(crate) fn new(now: Instant) -> Self {
        Wheel {
            timers: Vec::new(),
            heads: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            current: ticks(now),
        }
    }

    /// Sets a timer, or clears it.
    pub(crate) fn set(&mut self, id: u32, at: Option<Instant>) {
        let index = id as usize;
        if self.timers.len() <= index {
            let unset = Timer { when: 0, next: NONE, previous: NONE, slot: NONE };
            self.timers.resize(index + 1, unset);
        }
        // Rounds up: an early timer would fire for nothing.
        let when = at.map(|at| (ticks(at) + 1).min(LAST).max(self.current));
        if self.timers[index].slot != NONE {
            if Some(self.timers[index].when) == when {
                return;
            }
            self.unlink(id);
        }
        if let Some(when) = when {
            self.timers[index].when = when;
            self.link(id);
        }
    }

    fn link(&mut self, id: u32) {
        let when = self.timers[id as usize].when;
        // The highest group of bits in which it differs from the present tick gives the level. All
        // timers of lower levels fire before those of this level.
        let differs = (when ^ self.current) | (SLOTS as u64 - 1);
        let level = ((63 - differs.leading_zeros()) / BITS).min(LEVELS as u32 - 1) as usize;
        let last = (1u64 << (BITS * LEVELS as u32)) - 1;
        let capped = if when ^ self.current > last { self.current | last } else { when };
        let slot = (capped >> (BITS * level as u32)) as usize & (SLOTS - 1);
        let head = self.heads[level][slot];
        if head != NONE {
            self.timers[head as usize].previous = id;
        }
        let timer = &mut self.timers[id as usize];
        timer.next = head;
        timer.previous = NONE;
        timer.slot = (level * SLOTS + slot) as u32;
        self.heads[level][slot] = id;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, id: u32) {
        let Timer { next, previous, slot, .. } = self.timers[id as usize];
        let (level, slot) = (slot as usize / SLOTS, slot as usize % SLOTS);
        if next != NONE {
            self.timers[next as usize].previous = previous;
        }
        if previous == NONE {
            self.heads[level][slot] = next;
            if next == NONE {
                self.occupied[level] &= !(1 << slot);
            }
        } else {
            self.timers[previous as usize].next = next;
        }
        self.timers[id as usize].slot = NONE;
    }

    /// Returns the earliest occupied slot: its level, its number, its first tick. Of slots with the
    /// same first tick, that of the highest level comes first, even after part of its timers moved
    /// down.
    fn earliest(&self) -> Option<(usize, usize, u64)> {
        let occupied = (0..LEVELS).rev().filter(|&level| self.occupied[level] != 0);
        let slots = occupied.map(|level| {
            let slot = self.occupied[level].trailing_zeros() as usize;
            let shift = BITS * level as u32;
            let base = self.current >> (shift + BITS) << (shift + BITS);
            (level, slot, base | (slot as u64) << shift)
        });
        slots.min_by_key(|&(_, _, first)| first)
    }

    /// Clears and returns the next due timer. Moves at most `work` timers; [`Wheel::poll_at`] tells
    /// whether more are due.
    pub(crate) fn fire(&mut self, now: Instant, work: &mut usize) -> Option<u32> {
        let now = ticks(now);
        while *work > 0 {
            let Some((level, slot, first)) = self.earliest().filter(|&(_, _, at)| at <= now) else {
                self.current = self.current.max(now);
                return None;
            };
            self.current = self.current.max(first);
            let id = self.heads[level][slot];
            *work -= 1;
            self.unlink(id);
            if self.timers[id as usize].when <= self.current {
                return Some(id);
            }
            self.link(id);
        }
        None
    }

    /// Returns the time of the next poll, which may be a little early for a distant timer.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        let (level, slot, first) = self.earliest()?;
        let mut tick = first;
        let mut id = self.heads[level][slot];
        let mut least = u64::MAX;
        for count in 0..=SEARCH {
            if id == NONE {
                tick = least;
                break;
            }
            if count < SEARCH {
                least = least.min(self.timers[id as usize].when);
                id = self.timers[id as usize].next;
            }
        }
        Some(Instant::from_micros(tick.min(LAST) << 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a sorted map, with timers from a millisecond to days.
    #[test]
    fn timers_fire_as_in_a_sorted_map() {
        let mut wheel = Wheel::new(Instant::ZERO);
        let mut oracle = std::collections::BTreeMap::new();
        let mut now = 0u64;
        let mut random = crate::random::Random::new(7);
        for _ in 0..20_000 {
            let id = (random.next() % 500) as u32;
            oracle.retain(|_, other| *other != id);
            if random.next().is_multiple_of(8) {
                wheel.set(id, None);
            } else {
                let span = 1u64 << (10 + random.next() % 29);
                let at = now + random.next() % span;
                wheel.set(id, Some(Instant::from_micros(at)));
                oracle.insert(((at >> 10) + 1, id), id);
            }
            now += random.next() % (1 << (random.next() % 24));
            let mut fired = Vec::new();
            let mut work = usize::MAX;
            while let Some(id) = wheel.fire(Instant::from_micros(now), &mut work) {
                fired.push(id);
            }
            let rest = oracle.split_off(&((now >> 10) + 1, 0));
            let mut expected: Vec<u32> = oracle.into_values().collect();
            oracle = rest;
            fired.sort_unstable();
            expected.sort_unstable();
            assert_eq!(fired, expected);
            let next = oracle.first_key_value().map(|((tick, _), _)| *tick << 10);
            let poll_at = wheel.poll_at().map(Instant::as_micros);
            assert_eq!(poll_at.is_some(), next.is_some());
            assert!(poll_at <= next, "{poll_at:?} {next:?}");
        }
    }

    #[test]
    fn a_timer_beyond_all_times_is_not_due() {
        let mut wheel = Wheel::new(Instant::ZERO);
        wheel.set(0, Some(Instant::from_micros(u64::MAX)));
        let now = Instant::from_millis(1 << 40);
        let mut work = 100;
        assert_eq!(wheel.fire(now, &mut work), None);
        assert!(wheel.poll_at().unwrap() > now);
    }

    #[test]
    fn a_budget_leaves_the_rest_for_later() {
        let mut wheel = Wheel::new(Instant::ZERO);
        for id in 0..100 {
            wheel.set(id, Some(Instant::from_millis(50)));
        }
        let now = Instant::from_millis(60);
        let mut fired = 0;
        for _ in 0..100 {
            let mut work = 10;
            while wheel.fire(now, &mut work).is_some() {
                fired += 1;
            }
        }
        assert_eq!((fired, wheel.poll_at()), (100, None));
    }
}
