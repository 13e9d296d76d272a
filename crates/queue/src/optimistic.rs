//! A section that one thread at a time is in, and that nobody waits for.
//!
//! Stodolsky, Chen and Bershad's optimistic interrupt protection, as Tracey and Banerji (3.3, 4.3)
//! put it into a driver: instead of raising the interrupt level a flag is set, and the interrupter
//! that finds it set leaves its work for whoever is inside. Here threads take the interrupter's
//! place. Who finds the flag free goes in; who does not, leaves its work in a bounded queue and goes
//! on. Who is inside does what was left before its own, so what one thread brings keeps its order.
//!
//! ```text
//!   who comes                            who is inside
//!   the flag is set: take a slot,        do all that was left; release the flag;
//!   write, publish it;                   fence;
//!   fence;                               look whether something was left;
//!   look at the flag: free? go in        if so, go in again
//! ```
//!
//! Both fences are needed: with either taken out, something may be left that both believe the
//! other to do. A slot may have memory, which only the thread that took the slot writes.
//!
//! The queue of slots has a sequence word for each, after Vyukov's bounded queue: a thread that is
//! stopped between taking a slot and publishing it holds up what was left behind it, and that
//! alone: others go on until the slots are used up, and it looks after it by itself when it goes on.
//!
//! Unsafe lives here, and in `entered`, for the state inside, which the thread that took the flag
//! touches; and for the slots' memory, which the thread that took the slot writes.

mod entered;

use alloc::boxed::Box;
use alloc::vec::Vec;
#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(loom)]
use loom::cell::UnsafeCell;

use crate::word::{AtomicU64, Barrier, Ordering, full_fence};

pub use entered::{Entered, Left};

/// Times that whoever is inside goes in again for others, before nobody may leave it more. What
/// was being left meanwhile is done, too: at most a slot for each other thread.
const ROUNDS: u32 = 4;

/// The most slots of a section.
const MOST_SLOTS: u32 = 1 << 16;

/// What one thread at a time may touch: `S`, and a bounded queue of what others left. Each slot of the
/// queue has an `M`, which its taker writes.
pub struct Optimistic<S, M = ()> {
    door: Apart<Door>,
    /// The next slot to be taken, free-running.
    tail: Apart<AtomicU64>,
    /// For each slot whose turn it is; see [`word`].
    sequence: Box<[AtomicU64]>,
    /// For each slot what its taker writes.
    memory: Box<[UnsafeCell<M>]>,
    inside: Apart<UnsafeCell<Inside<S>>>,
}

/// What changes at different times, on cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
struct Apart<T>(T);

struct Door {
    /// 0: nobody is inside.
    flag: AtomicU64,
    /// Requests that were left, a bit each.
    requests: AtomicU64,
    /// Not 0: whoever is inside has done enough for others.
    closed: AtomicU64,
}

struct Inside<S> {
    /// The next slot to be done, free-running.
    head: u64,
    /// Times that somebody went in.
    entered: u64,
    /// For each slot the place in the queue for which it was handed out; [`NOT_OUT`] when it is not.
    places: Box<[u64]>,
    state: S,
}

// SAFETY: only the thread that took the flag touches `inside`, and the next thread that takes it sees
// everything before its release (`try_enter`, `Entered::exit`). Only the thread that took a slot touches
// the slot's memory, and its next taker sees everything before its publication: by way of the thread
// that is inside, which takes each slot as often as it releases it (`take_slot`, `Leaving`'s end,
// `Entered::take`, `Entered::release`). The rest are atomics. So the state and the memory move between
// threads, and no two threads have them at once.
unsafe impl<S: Send, M: Send> Sync for Optimistic<S, M> {}
// SAFETY: as above; all that is inside may move.
unsafe impl<S: Send, M: Send> Send for Optimistic<S, M> {}

/// No place: the slot was not handed out by [`Entered::take`], or was released since.
const NOT_OUT: u64 = u64::MAX;

impl<S, M> core::fmt::Debug for Optimistic<S, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Optimistic").field("slots", &self.sequence.len()).finish_non_exhaustive()
    }
}

/// A slot's word: free for a place in the queue, published for it, or given up by who took it.
const fn word(place: u64, what: u64) -> u64 {
    place << 2 | what
}
const FREE: u64 = 0;
const PUBLISHED: u64 = 1;
const GIVEN_UP: u64 = 2;

impl<S> Optimistic<S> {
    /// Nobody is inside, and nothing is left. `None` unless the number of slots is a power of two
    /// up to 65 536.
    #[must_use]
    pub fn new(slots: u32, state: S) -> Option<Optimistic<S>> {
        if slots > MOST_SLOTS {
            return None;
        }
        Optimistic::with_memory((0..slots).map(|_| ()).collect(), state)
    }
}

impl<S, M> Optimistic<S, M> {
    /// As [`Optimistic::new`], with as many slots as there are memories: each slot has one.
    #[must_use]
    pub fn with_memory(memory: Vec<M>, state: S) -> Option<Optimistic<S, M>> {
        let slots = u32::try_from(memory.len()).ok()?;
        if !slots.is_power_of_two() || slots > MOST_SLOTS {
            return None;
        }
        let slots = u64::from(slots);
        Some(Optimistic {
            door: Apart(Door {
                flag: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                closed: AtomicU64::new(0),
            }),
            tail: Apart(AtomicU64::new(0)),
            sequence: (0..slots).map(|place| AtomicU64::new(word(place, FREE))).collect(),
            memory: memory.into_iter().map(UnsafeCell::new).collect(),
            inside: Apart(UnsafeCell::new(Inside {
                head: 0,
                entered: 0,
                places: (0..slots).map(|_| NOT_OUT).collect(),
                state,
            })),
        })
    }

    fn slot(&self, place: u64) -> usize {
        (place & (self.sequence.len() as u64 - 1)) as usize
    }

    /// Goes in, if nobody is inside.
    #[inline]
    #[must_use]
    pub fn try_enter(&self) -> Option<Entered<'_, S, M>> {
        // Who only looks does not take the flag's line from who is inside.
        if self.door.0.flag.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // SYNC: what was done inside before is seen. Partner: the release in `Entered::exit`.
        self.door.0.flag.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Entered::begin(self))
    }

    /// Takes a slot to leave work in. `None` when all are in use, or when whoever is inside has done
    /// enough for others: that is back pressure.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> Option<Leaving<'_, S, M>> {
        if self.door.0.closed.load(Ordering::Relaxed) != 0 { None } else { self.take_slot() }
    }

    fn take_slot(&self) -> Option<Leaving<'_, S, M>> {
        let mut place = self.tail.0.load(Ordering::Relaxed);
        // Each time round somebody else has taken a slot, or all are in use.
        loop {
            // SYNC: what was read from the slot's memory before is read. Partner:
            // `Entered::release`.
            let now = self.sequence[self.slot(place)].load(Ordering::Acquire);
            if now != word(place, FREE) {
                let tail = self.tail.0.load(Ordering::Relaxed);
                if tail == place {
                    return None;
                }
                place = tail;
                continue;
            }
            let taken = self.tail.0.compare_exchange(
                place,
                place.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match taken {
                Ok(_) => return Some(Leaving { section: self, place, what: GIVEN_UP }),
                Err(tail) => place = tail,
            }
        }
    }

    /// Leaves requests, a bit each; those that are left already are left once. To be followed by
    /// [`Optimistic::drive`].
    pub fn request(&self, bits: u64) {
        self.door.0.requests.fetch_or(bits, Ordering::Release);
    }

    /// Goes in and works, again and again while others leave something meanwhile; nothing, when
    /// somebody is inside, who will do it. `work` does what was left ([`Entered::requests`],
    /// [`Entered::take`]), and answers whether it could: if not, because a device has no room, work
    /// that is left waits for the next call; requests do not. To be called after everything that
    /// was left. Answers how often it went in.
    pub fn drive(&self, mut work: impl FnMut(&mut Entered<'_, S, M>) -> bool) -> u32 {
        // SYNC: what was left is there before the flag is looked at. Partner: `HolderLooks`.
        full_fence(Barrier::LeaverLooks);
        let mut rounds = 0;
        while let Some(mut entered) = self.try_enter() {
            rounds += 1;
            // Each time anew: another who had stayed as long may have opened it in leaving.
            if rounds >= ROUNDS {
                self.door.0.closed.store(1, Ordering::Relaxed);
            }
            let could = work(&mut entered);
            match entered.exit() {
                Left::Requests => {}
                Left::Work if could => {}
                Left::Work | Left::Nothing => break,
            }
        }
        if rounds >= ROUNDS {
            self.door.0.closed.store(0, Ordering::Relaxed);
        }
        rounds
    }

    /// How many slots were taken so far.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.tail.0.load(Ordering::Relaxed)
    }
}

/// A slot that was taken: its memory is the taker's until it is published. Dropped without, it is
/// given up. Either is to be followed by [`Optimistic::drive`]: who was inside may have gone out at
/// this slot, with others published behind it.
#[derive(Debug)]
pub struct Leaving<'a, S, M = ()> {
    section: &'a Optimistic<S, M>,
    place: u64,
    what: u64,
}

impl<S, M> Leaving<'_, S, M> {
    /// Which slot.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.section.slot(self.place) as u32
    }

    /// Lets `write` write the slot's memory.
    pub fn write<R>(&mut self, write: impl FnOnce(&mut M) -> R) -> R {
        let memory = &self.section.memory[self.section.slot(self.place)];
        #[cfg(loom)]
        // SAFETY: as below; the model checks it.
        return memory.with_mut(|memory| write(unsafe { &mut *memory }));
        #[cfg(not(loom))]
        // SAFETY: this value took the slot for its place in the queue, alone, and has not published it:
        // the slot's word says FREE for no other place meanwhile, so there is no other `Leaving` of the
        // slot. `&mut self` keeps two of these references from living at once.
        write(unsafe { &mut *memory.get() })
    }

    /// Its memory is written. To be followed by [`Optimistic::drive`].
    pub fn publish(mut self) {
        self.what = PUBLISHED;
    }
}

impl<S, M> Drop for Leaving<'_, S, M> {
    fn drop(&mut self) {
        // SYNC: what was written is there for whoever gets the slot. Partner: `Entered::take`.
        let slot = &self.section.sequence[self.section.slot(self.place)];
        slot.store(word(self.place, self.what), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn what_is_left_is_done_in_order_and_slots_come_back() {
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
    fn a_slot_that_is_given_up_holds_up_nobody() {
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
        assert!(section.leave().is_some(), "and is given up at once");
        assert_eq!(inside.exit(), Left::Work);
    }

    #[test]
    fn a_slot_that_is_not_out_is_not_released() {
        let section = Optimistic::with_memory(vec![0, 0], 0).unwrap();
        let mut first = section.leave().unwrap();
        first.write(|memory| *memory = 7);
        let mut inside = section.try_enter().unwrap();
        // Neither one that is being written, nor one that is free.
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
        assert_eq!(slot, None, "the first was given up, and is not free yet; it was released once");
    }

    #[test]
    fn requests_are_left_once() {
        let section = Optimistic::new(1, ()).unwrap();
        let mut inside = section.try_enter().unwrap();
        section.request(1);
        section.request(5);
        assert_eq!(section.drive(|_| true), 0, "somebody is inside");
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
    fn who_has_done_enough_for_others_is_left_no_more() {
        let section = Optimistic::new(64, 0).unwrap();
        let mut refused = 0;
        let rounds = section.drive(|entered| {
            while let Some(slot) = entered.take() {
                entered.release(slot);
            }
            // Another thread would do so all the time.
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
