//! Rings that are put off: an application is woken after so many packets or so much time, whichever
//! is first, so that one wake-up serves more of them.
//!
//! The packets themselves are never held back: their queues are published and their events marked at
//! once, and who looks finds them.

/// Not listed.
const NOWHERE: u32 = u32::MAX;

/// The sessions that are to be rung later, with the time when, each at most once: a heap that knows
/// where each session stands in it, so that its time can be brought forward and taken back.
#[derive(Debug, Default)]
pub(crate) struct HeldRings {
    /// When, in nanoseconds, and the session's place. None is due before the one at half its index.
    heap: Vec<(u64, u32)>,
    /// Where each session stands, by its place.
    at: Vec<u32>,
}

impl HeldRings {
    /// There are so many places. Memory for all of them is had here and at no later time.
    pub(crate) fn reserve(&mut self, places: usize) {
        self.at.resize(places.max(self.at.len()), NOWHERE);
        self.heap.reserve(self.at.len() - self.heap.len());
    }

    /// A session is to be rung at `due`, in nanoseconds, or before if that was said already.
    pub(crate) fn put_off(&mut self, due: u64, place: u32) {
        let index = match self.at[place as usize] {
            NOWHERE => {
                self.heap.push((due, place));
                self.heap.len() - 1
            }
            at if due < self.heap[at as usize].0 => at as usize,
            _ => return,
        };
        self.heap[index].0 = due;
        self.rise(index);
    }

    /// A session is not to be rung any more. Whether it was to be.
    pub(crate) fn forget(&mut self, place: u32) -> bool {
        let at = std::mem::replace(&mut self.at[place as usize], NOWHERE);
        if at == NOWHERE {
            return false;
        }
        self.heap.swap_remove(at as usize);
        if (at as usize) < self.heap.len() {
            // The last one stands there now: it may belong further up or down.
            self.rise(at as usize);
            self.sink(self.at[self.heap[at as usize].1 as usize] as usize);
        }
        true
    }

    /// Whether a session's ring is put off.
    pub(crate) fn is_put_off(&self, place: u32) -> bool {
        self.at[place as usize] != NOWHERE
    }

    /// When the first is to be rung, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.heap.first().map(|(due, _)| *due)
    }

    /// Takes one that is due at `until`.
    pub(crate) fn take(&mut self, until: u64) -> Option<u32> {
        let (due, place) = *self.heap.first()?;
        if due > until {
            return None;
        }
        self.forget(place);
        Some(place)
    }

    /// Brings one forward until none behind it is due later.
    fn rise(&mut self, mut index: usize) {
        let one = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.heap[parent] <= one {
                break;
            }
            self.stand(index, self.heap[parent]);
            index = parent;
        }
        self.stand(index, one);
    }

    /// Brings one back until none behind it is due earlier.
    fn sink(&mut self, mut index: usize) {
        let one = self.heap[index];
        loop {
            let (left, right) = (2 * index + 1, 2 * index + 2);
            let Some(mut child) = self.heap.get(left).map(|_| left) else { break };
            if self.heap.get(right).is_some_and(|other| *other < self.heap[left]) {
                child = right;
            }
            if one <= self.heap[child] {
                break;
            }
            self.stand(index, self.heap[child]);
            index = child;
        }
        self.stand(index, one);
    }

    fn stand(&mut self, index: usize, one: (u64, u32)) {
        self.heap[index] = one;
        self.at[one.1 as usize] = index as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn they_are_taken_in_the_order_of_their_times() {
        let mut held = HeldRings::default();
        held.reserve(4);
        assert_eq!((held.next_due(), held.take(u64::MAX)), (None, None));
        held.put_off(30, 1);
        held.put_off(10, 2);
        held.put_off(20, 3);
        assert_eq!((held.next_due(), held.take(9)), (Some(10), None));
        assert_eq!((held.take(20), held.take(20), held.take(20)), (Some(2), Some(3), None));
        assert_eq!(held.next_due(), Some(30));
    }

    #[derive(Clone, Debug)]
    enum Act {
        PutOff(u64, u32),
        Forget(u32),
        Take(u64),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            4 => (0u64..100, 0u32..20).prop_map(|(due, place)| Act::PutOff(due, place)),
            2 => (0u32..20).prop_map(Act::Forget),
            1 => (0u64..100).prop_map(Act::Take),
        ];
        prop::collection::vec(act, 1..300)
    }

    proptest! {
        /// Against a time for each session, looked through.
        #[test]
        fn as_if_all_were_looked_through(acts in acts()) {
            let mut held = HeldRings::default();
            held.reserve(20);
            let room = held.heap.capacity();
            let mut times = [None::<u64>; 20];
            for act in acts {
                match act {
                    Act::PutOff(due, place) => {
                        held.put_off(due, place);
                        let time = &mut times[place as usize];
                        *time = Some(time.map_or(due, |time| time.min(due)));
                    }
                    Act::Forget(place) => {
                        let was = times[place as usize].take().is_some();
                        prop_assert_eq!(held.forget(place), was);
                    }
                    Act::Take(until) => {
                        let next = times.iter().flatten().min().copied();
                        let due = next.filter(|due| *due <= until);
                        let taken = held.take(until);
                        prop_assert_eq!(taken.is_some(), due.is_some());
                        if let Some(place) = taken {
                            prop_assert_eq!(times[place as usize].take(), due);
                        }
                    }
                }
                prop_assert_eq!(held.next_due(), times.iter().flatten().min().copied());
                for (place, time) in times.iter().enumerate() {
                    prop_assert_eq!(held.is_put_off(place as u32), time.is_some());
                }
            }
            prop_assert_eq!(held.heap.capacity(), room, "no more memory than at first");
        }
    }
}
