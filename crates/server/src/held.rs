//! Rings that are put off: an application is woken after so many packets or so much time, whichever
//! is first, so that one wake-up serves more of them.
//!
//! The packets themselves are never held back: their queues are published and their events marked at
//! once, and who looks finds them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The sessions that are to be rung later, with the time when, each at most once.
#[derive(Debug, Default)]
pub(crate) struct HeldRings {
    due: BinaryHeap<Reverse<(u64, u32)>>,
}

/// What a session's ring waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hold {
    /// When it is rung at the latest, in nanoseconds; 0: nothing waits.
    pub(crate) due: u64,
    /// Packets that it was not rung for.
    pub(crate) packets: u32,
    /// Half of a queue set's frames are used.
    pub(crate) full: bool,
    /// It has an entry among the held rings.
    pub(crate) listed: bool,
    /// It is to be rung in this turn, whatever was put off.
    pub(crate) urgent: bool,
}

impl HeldRings {
    /// A session is to be rung then. Only for one that is not listed.
    pub(crate) fn put_off(&mut self, due: u64, place: u32) {
        self.due.push(Reverse((due, place)));
    }

    /// When the first is to be rung, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Takes one that is due at `until`.
    pub(crate) fn take(&mut self, until: u64) -> Option<u32> {
        if self.next_due()? > until {
            return None;
        }
        self.due.pop().map(|Reverse((_, place))| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_taken_in_the_order_of_their_times() {
        let mut held = HeldRings::default();
        assert_eq!((held.next_due(), held.take(u64::MAX)), (None, None));
        held.put_off(30, 1);
        held.put_off(10, 2);
        held.put_off(20, 3);
        assert_eq!((held.next_due(), held.take(9)), (Some(10), None));
        assert_eq!((held.take(20), held.take(20), held.take(20)), (Some(2), Some(3), None));
        assert_eq!(held.next_due(), Some(30));
    }
}
