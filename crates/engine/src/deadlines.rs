//! Deadlines: of sessions with a deferred notification, and of queue pairs that wait for a time or
//! a tick.

/// Marks an id that is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// A heap of ids with deadlines, each id at most once. The heap knows the position of each id, so
/// that moving or removing one needs no search.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// Deadlines and ids. No entry is due before its parent, the one at `(index - 1) / 2`.
    heap: Vec<(u64, u32)>,
    /// The position of each id.
    at: Vec<u32>,
}

impl Deadlines {
    /// Reserves memory for `things` ids. The heap allocates here and at no later time.
    pub(crate) fn reserve(&mut self, things: usize) {
        self.at.resize(things.max(self.at.len()), NOWHERE);
        self.heap.reserve(self.at.len() - self.heap.len());
    }

    /// Sets the deadline of an id, unless an earlier one is set.
    pub(crate) fn put(&mut self, due: u64, id: u32) {
        let index = match self.at[id as usize] {
            NOWHERE => {
                self.heap.push((due, id));
                self.heap.len() - 1
            }
            at if due < self.heap[at as usize].0 => at as usize,
            _ => return,
        };
        self.heap[index].0 = due;
        self.rise(index);
    }

    /// Removes an id. Returns `true` if it was present.
    pub(crate) fn forget(&mut self, id: u32) -> bool {
        let at = std::mem::replace(&mut self.at[id as usize], NOWHERE);
        if at == NOWHERE {
            return false;
        }
        self.heap.swap_remove(at as usize);
        if (at as usize) < self.heap.len() {
            // The last entry now stands there and may belong further up or down.
            self.rise(at as usize);
            self.sink(self.at[self.heap[at as usize].1 as usize] as usize);
        }
        true
    }

    /// Returns `true` if an id has a deadline.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.at[id as usize] != NOWHERE
    }

    /// Returns the first deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.first().map(|(due, _)| *due)
    }

    /// Removes and returns an id that is due at `until`.
    pub(crate) fn take(&mut self, until: u64) -> Option<u32> {
        let (due, id) = *self.heap.first()?;
        if due > until {
            return None;
        }
        self.forget(id);
        Some(id)
    }

    /// Moves an entry forward until its parent is not due later.
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

    /// Moves an entry back until neither child is due earlier.
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
    fn entries_are_taken_in_order_of_time() {
        let mut due = Deadlines::default();
        due.reserve(4);
        assert_eq!((due.next(), due.take(u64::MAX)), (None, None));
        due.put(30, 1);
        due.put(10, 2);
        due.put(20, 3);
        assert_eq!((due.next(), due.take(9)), (Some(10), None));
        assert_eq!((due.take(20), due.take(20), due.take(20)), (Some(2), Some(3), None));
        assert_eq!(due.next(), Some(30));
    }

    #[derive(Clone, Debug)]
    enum Act {
        Put(u64, u32),
        Forget(u32),
        Take(u64),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            4 => (0u64..100, 0u32..20).prop_map(|(time, id)| Act::Put(time, id)),
            2 => (0u32..20).prop_map(Act::Forget),
            1 => (0u64..100).prop_map(Act::Take),
        ];
        prop::collection::vec(act, 1..300)
    }

    proptest! {
        /// Compares the heap with a linear search over a time for each id.
        #[test]
        fn due_times_match_a_linear_search(acts in acts()) {
            let mut due = Deadlines::default();
            due.reserve(20);
            let room = due.heap.capacity();
            let mut times = [None::<u64>; 20];
            for act in acts {
                match act {
                    Act::Put(time, id) => {
                        due.put(time, id);
                        let known = &mut times[id as usize];
                        *known = Some(known.map_or(time, |known| known.min(time)));
                    }
                    Act::Forget(id) => {
                        let was = times[id as usize].take().is_some();
                        prop_assert_eq!(due.forget(id), was);
                    }
                    Act::Take(until) => {
                        let next = times.iter().flatten().min().copied();
                        let first = next.filter(|time| *time <= until);
                        let taken = due.take(until);
                        prop_assert_eq!(taken.is_some(), first.is_some());
                        if let Some(id) = taken {
                            prop_assert_eq!(times[id as usize].take(), first);
                        }
                    }
                }
                prop_assert_eq!(due.next(), times.iter().flatten().min().copied());
                for (id, time) in times.iter().enumerate() {
                    prop_assert_eq!(due.has(id as u32), time.is_some());
                }
            }
            prop_assert_eq!(due.heap.capacity(), room, "no more memory than reserved");
        }
    }
}
