//! Units that wait for a time or for a tick, the nearest first: each in at most one of the two, with
//! room for all of them from the moment that they come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Units by when they are due.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// In nanoseconds.
    times: BinaryHeap<Reverse<(u64, u32)>>,
    ticks: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Waiting {
    /// There are so many units: any of them may wait for either.
    pub(crate) fn reserve(&mut self, units: usize) {
        self.times.reserve(units.saturating_sub(self.times.len()));
        self.ticks.reserve(units.saturating_sub(self.ticks.len()));
    }

    /// A unit waits until this time, in nanoseconds.
    pub(crate) fn until(&mut self, due: u64, unit: u32) {
        self.times.push(Reverse((due, unit)));
    }

    /// A unit waits until this tick.
    pub(crate) fn until_tick(&mut self, tick: u64, unit: u32) {
        self.ticks.push(Reverse((tick, unit)));
    }

    /// Takes one that is due at this time and tick.
    pub(crate) fn take(&mut self, now: u64, tick: u64) -> Option<u32> {
        let heap = if self.next_due().is_some_and(|due| due <= now) {
            &mut self.times
        } else if self.next_tick().is_some_and(|due| due <= tick) {
            &mut self.ticks
        } else {
            return None;
        };
        heap.pop().map(|Reverse((_, unit))| unit)
    }

    /// Those of whom this is not so wait no more.
    pub(crate) fn retain(&mut self, mut wait: impl FnMut(u32) -> bool) {
        self.times.retain(|Reverse((_, unit))| wait(*unit));
        self.ticks.retain(|Reverse((_, unit))| wait(*unit));
    }

    /// Those of whom this is so are due at once. Their places are those that they have.
    pub(crate) fn hurry(&mut self, mut due_now: impl FnMut(u32) -> bool) {
        for heap in [&mut self.times, &mut self.ticks] {
            let mut all = std::mem::take(heap).into_vec();
            for Reverse((due, unit)) in &mut all {
                if due_now(*unit) {
                    *due = 0;
                }
            }
            *heap = all.into();
        }
    }

    /// When the first is due that waits for a time, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.times.peek().map(|Reverse((due, _))| *due)
    }

    /// When the first is due that waits for a tick.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.ticks.peek().map(|Reverse((tick, _))| *tick)
    }
}
