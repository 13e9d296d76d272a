//! A section that one thread at a time holds, and for which no thread waits.
//!
//! The section follows the optimistic interrupt protection of Stodolsky, Chen and Bershad, as
//! Tracey and Banerji (3.3, 4.3) put it into a driver: instead of raising the interrupt level the
//! driver sets a flag, and an interrupter that finds the flag set leaves its work for the holder.
//! Here threads take the interrupter's role. A thread that finds the flag free enters; a thread
//! that finds the flag set leaves its work in a bounded queue and continues. The holder does the
//! work that other threads left before its own, so the work of one thread keeps its order.
//!
//! ```text
//!   a thread that arrives                the holder
//!   the flag is set: take a slot,        do all work that was left; release the flag;
//!   write, publish it;                   fence;
//!   fence;                               check whether work was left;
//!   check the flag: free? enter          if so, enter again
//! ```
//!
//! Both fences are needed: with either taken out, work may remain that each thread expects the
//! other to do. A slot may have memory, which only the thread that took the slot writes.
//!
//! The queue has a sequence word for each slot, after Vyukov's bounded queue. A thread that is
//! stopped between taking a slot and publishing it delays only the work that was left behind that
//! slot. The other threads continue until the slots are used up, and the stopped thread drives the
//! section when it runs again.

mod entered;
mod section;

use crate::word::{Barrier, Ordering, full_fence};

pub use entered::{Entered, Left};
pub use section::{Leaving, Optimistic};

/// Times that the holder enters again for other threads before it closes the section to further
/// work. The holder also does the work that is being left meanwhile: at most one slot per other
/// thread.
const ROUNDS: u32 = 4;

impl<S, M> Optimistic<S, M> {
    /// Enters and works, and repeats this while other threads leave work meanwhile. Does nothing
    /// when another thread is inside: that thread does the work.
    ///
    /// `work` does the requests and slots that threads left ([`Entered::requests`],
    /// [`Entered::take`]). It returns `false` if it could not, because a device has no room. Then
    /// the slots wait for the next call; requests do not. The caller calls this after it has left
    /// all of its work. Returns how often this thread entered.
    pub fn drive(&self, mut work: impl FnMut(&mut Entered<'_, S, M>) -> bool) -> u32 {
        // SYNC: the work that this thread left is visible before the thread checks the flag.
        // Partner: `HolderChecks`.
        full_fence(Barrier::LeaverChecks);
        let mut rounds = 0;
        let mut closing = None;
        while let Some(mut entered) = self.try_enter() {
            rounds += 1;
            // This closes the section in each iteration anew: another thread that had closed it may
            // have opened it on leaving.
            if rounds >= ROUNDS {
                closing.get_or_insert_with(|| Closing(self));
                self.door.0.closed.store(1, Ordering::Relaxed);
            }
            let could = work(&mut entered);
            match entered.exit() {
                Left::Requests => {}
                Left::Work if could => {}
                Left::Work | Left::Nothing => break,
            }
        }
        drop(closing);
        rounds
    }
}

/// A section that this thread has closed. Dropping it opens the section, also when the work panics.
struct Closing<'a, S, M>(&'a Optimistic<S, M>);

impl<S, M> Drop for Closing<'_, S, M> {
    fn drop(&mut self) {
        self.0.door.0.closed.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn left_work_is_done_in_order_and_slots_are_reused() {
        let section = Optimistic::new(4, Vec::new()).unwrap();
        for lap in 0..10 {
            let inside = section.try_enter().unwrap();
            assert!(section.try_enter().is_none(), "one at a time");
            let slots: Vec<u32> = (0..4)
                .map(|_| {
                    let leaving = section.leave().unwrap();
                    let slot = leaving.slot();
                    leaving.publish();
                    slot
                })
                .collect();
            assert!(section.leave().is_none(), "all slots are in use");
            assert_eq!(inside.exit(), Left::Work);
            let rounds = section.drive(|entered| {
                while let Some(slot) = entered.take() {
                    entered.state().push(slot);
                }
                assert!(entered.is_nothing_left());
                // In any order.
                for slot in slots.iter().rev() {
                    entered.release(*slot);
                }
                true
            });
            assert_eq!((rounds, section.left()), (1, 4 * (lap + 1)));
            assert_eq!(core::mem::take(section.try_enter().unwrap().state()), slots);
        }
    }

    #[test]
    fn an_abandoned_slot_holds_up_no_later_work() {
        let section = Optimistic::new(2, 0).unwrap();
        let first = section.leave().unwrap();
        section.leave().unwrap().publish();
        let mut inside = section.try_enter().unwrap();
        assert_eq!((inside.take(), inside.is_nothing_left()), (None, false));
        assert_eq!(inside.exit(), Left::Nothing, "nothing can be done yet");
        drop(first);
        let mut inside = section.try_enter().unwrap();
        assert_eq!((inside.take(), inside.take()), (Some(1), None));
        assert!(inside.is_nothing_left());
        inside.release(1);
        assert!(section.leave().is_some(), "the released slot is free");
        assert_eq!(inside.exit(), Left::Work);
    }

    #[test]
    fn only_a_taken_slot_can_be_released() {
        let section = Optimistic::with_memory(vec![0, 0], 0).unwrap();
        let mut first = section.leave().unwrap();
        first.write(|memory| *memory = 7);
        let mut inside = section.try_enter().unwrap();
        // `release` ignores a slot that is being written and a slot that is free.
        inside.release(0);
        inside.release(1);
        inside.release(2);
        let second = section.leave().unwrap();
        assert_eq!(
            (second.slot(), section.leave().is_none()),
            (1, true),
            "each slot has one taker"
        );
        first.publish();
        second.publish();
        assert_eq!(inside.take(), Some(0));
        inside.release(0);
        assert_eq!(section.leave().unwrap().write(|memory| *memory), 7);
        inside.release(0);
        let slot = section.leave().map(|leaving| leaving.slot());
        assert_eq!(slot, None, "slot 0 was given up: it is not free, and is not released again");
    }

    #[test]
    fn the_holder_exchanges_the_memory_of_a_slot_that_it_took() {
        let section = Optimistic::with_memory(vec![0, 0], ()).unwrap();
        let mut first = section.leave().unwrap();
        first.write(|memory| *memory = 7);
        let mut inside = section.try_enter().unwrap();
        assert_eq!(inside.with_slot(0, |_| ()), None, "its writer has it");
        first.publish();
        assert_eq!(inside.with_slot(0, |_| ()), None, "it is not taken");
        assert_eq!(inside.take(), Some(0));
        assert_eq!(inside.with_slot(0, |memory| core::mem::replace(memory, 8)), Some(7));
        inside.release(0);
        assert_eq!((inside.with_slot(0, |_| ()), inside.with_slot(9, |_| ())), (None, None));
        section.leave().unwrap().publish();
        assert_eq!(section.leave().unwrap().write(|memory| *memory), 8, "the exchanged one");
    }

    /// A thread that panics inside leaves the section open, and the work for the next thread.
    #[test]
    fn a_panic_inside_leaves_the_section_open() {
        for calm in [0, ROUNDS] {
            let section = Optimistic::new(8, 0).unwrap();
            section.leave().unwrap().publish();
            let mut entries = 0;
            let panicked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                section.drive(|entered| {
                    entries += 1;
                    assert!(entries <= calm, "the panic that this test wants");
                    let slot = entered.take().unwrap();
                    entered.release(slot);
                    section.leave().or_else(|| entered.leave()).unwrap().publish();
                    true
                })
            }));
            assert!(panicked.is_err());
            section.leave().expect("the section is open").publish();
            let mut done = 0;
            section.drive(|entered| {
                while let Some(slot) = entered.take() {
                    entered.release(slot);
                    done += 1;
                }
                true
            });
            assert_eq!(done, 2, "that of before the panic, and that of after it");
        }
    }

    #[test]
    fn requests_are_left_once() {
        let section = Optimistic::new(1, ()).unwrap();
        let mut inside = section.try_enter().unwrap();
        section.request(1);
        section.request(5);
        assert_eq!(section.drive(|_| true), 0, "a thread is inside");
        assert_eq!((inside.requests(), inside.requests()), (5, 0));
        section.request(2);
        assert_eq!(inside.exit(), Left::Requests);
        let mut got = 0;
        assert_eq!(
            section.drive(|entered| {
                got |= entered.requests();
                true
            }),
            1
        );
        assert_eq!(got, 2);
    }

    #[test]
    fn work_left_to_one_thread_is_bounded() {
        let section = Optimistic::new(64, 0).unwrap();
        let mut refused = 0;
        let rounds = section.drive(|entered| {
            while let Some(slot) = entered.take() {
                entered.release(slot);
            }
            // Stands for another thread that leaves work all the time.
            match section.leave() {
                Some(leaving) => leaving.publish(),
                None => refused += 1,
            }
            true
        });
        assert_eq!((rounds, refused), (ROUNDS, 1));
        assert!(section.leave().is_some(), "open again");
        assert!(Optimistic::new(3, ()).is_none() && Optimistic::new(1 << 17, ()).is_none());
    }
}
