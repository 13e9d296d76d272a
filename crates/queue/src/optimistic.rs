//! A section that one thread at a time holds, and for which no thread waits.
//!
//! It follows the optimistic interrupt protection of Stodolsky, Chen and Bershad, as Tracey and
//! Banerji (3.3, 4.3) put it into a driver: instead of raising the interrupt level the driver sets
//! a flag, and an interrupter that finds it set leaves its work for the holder. Here threads take
//! the interrupter's place. A thread that finds the flag free enters; a thread that finds it set
//! leaves its work in a bounded queue and goes on. The holder does the work that other threads left
//! before its own, so the work of one thread keeps its order.
//!
//! ```text
//!   a thread that comes                  the holder
//!   the flag is set: take a slot,        do all that was left; release the flag;
//!   write, publish it;                   fence;
//!   fence;                               look whether something was left;
//!   look at the flag: free? enter        if so, enter again
//! ```
//!
//! Both fences are needed: with either taken out, work may be left that each thread expects the
//! other to do. A slot may have memory, which only the thread that took the slot writes.
//!
//! The queue of slots has a sequence word for each, after Vyukov's bounded queue. A thread that is
//! stopped between taking a slot and publishing it delays only the work that was left behind it.
//! The other threads go on until the slots are used up, and the stopped thread looks after that
//! work when it goes on.
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

/// Times that the holder enters again for other threads before it closes the section to further
/// work. It also does the work that is being left meanwhile: at most one slot for each other
/// thread.
const ROUNDS: u32 = 4;

/// The most slots of a section.
const MOST_SLOTS: u32 = 1 << 16;

/// State `S` that one thread at a time may touch, and a bounded queue of the work that other
/// threads left. Each slot of the queue has an `M`, which the thread that took the slot writes.
pub struct Optimistic<S, M = ()> {
    door: Apart<Door>,
    /// The next slot to be taken, free-running.
    tail: Apart<AtomicU64>,
    /// For each slot the place in the queue that it serves; see [`word`].
    sequence: Box<[AtomicU64]>,
    /// For each slot the memory that the thread which took it writes.
    memory: Box<[UnsafeCell<M>]>,
    inside: Apart<UnsafeCell<Inside<S>>>,
}

/// Puts a field on cache lines of its own, away from fields that change at other times: processors
/// fetch lines in pairs.
#[repr(align(128))]
struct Apart<T>(T);

struct Door {
    /// 0: no thread is inside.
    flag: AtomicU64,
    /// Requests that threads left, one bit each.
    requests: AtomicU64,
    /// Not 0: the holder has done enough for other threads.
    closed: AtomicU64,
}

struct Inside<S> {
    /// The next slot to be done, free-running.
    head: u64,
    /// Times that a thread entered.
    entered: u64,
    /// For each slot the place in the queue for which it was handed out; [`NOT_OUT`] when it is
    /// not.
    places: Box<[u64]>,
    state: S,
}

// SAFETY: only the thread that took the flag touches `inside`, and the next thread that takes it
// sees everything before its release (`try_enter`, `Entered::exit`). Only the thread that took a
// slot touches the slot's memory, and its next taker sees everything before its publication: by way
// of the thread that is inside, which takes each slot as often as it releases it (`take_slot`,
// `Leaving`'s end, `Entered::take`, `Entered::release`). The rest are atomics. So the state and the
// memory move between threads, and no two threads have them at once.
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

/// Returns a slot's word: free for a place in the queue, published for it, or given up by the
/// thread that took it.
const fn word(place: u64, what: u64) -> u64 {
    place << 2 | what
}
const FREE: u64 = 0;
const PUBLISHED: u64 = 1;
const GIVEN_UP: u64 = 2;

impl<S> Optimistic<S> {
    /// Creates a section that no thread holds, with no work left. `None` unless the number of slots
    /// is a power of two up to 65 536.
    #[must_use]
    pub fn new(slots: u32, state: S) -> Option<Optimistic<S>> {
        if slots > MOST_SLOTS {
            return None;
        }
        Optimistic::with_memory((0..slots).map(|_| ()).collect(), state)
    }
}

impl<S, M> Optimistic<S, M> {
    /// Creates a section as [`Optimistic::new`] does, with one slot for each memory in `memory`.
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

    /// Enters, if no thread is inside.
    #[inline]
    #[must_use]
    pub fn try_enter(&self) -> Option<Entered<'_, S, M>> {
        // A thread that only looks does not take the flag's line from the holder.
        if self.door.0.flag.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // SYNC: this thread sees what earlier holders did inside. Partner: the release in
        // `Entered::exit`.
        self.door.0.flag.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Entered::begin(self))
    }

    /// Takes a slot to leave work in. `None` when all slots are in use, or when the holder has done
    /// enough for other threads: that is back pressure.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> Option<Leaving<'_, S, M>> {
        if self.door.0.closed.load(Ordering::Relaxed) != 0 { None } else { self.take_slot() }
    }

    fn take_slot(&self) -> Option<Leaving<'_, S, M>> {
        let mut place = self.tail.0.load(Ordering::Relaxed);
        // Each iteration means that another thread has taken a slot, or that all are in use.
        loop {
            // SYNC: the slot's previous user has finished reading its memory. Partner:
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

    /// Leaves requests, one bit each; a request that is left already is left once. The caller calls
    /// [`Optimistic::drive`] afterwards.
    pub fn request(&self, bits: u64) {
        self.door.0.requests.fetch_or(bits, Ordering::Release);
    }

    /// Enters and works, again while other threads leave work meanwhile. It does nothing when
    /// another thread is inside: that thread does the work.
    ///
    /// `work` does what was left ([`Entered::requests`], [`Entered::take`]), and returns whether it
    /// could. If it could not, because a device has no room, the work that is left waits for the
    /// next call; requests do not. The caller calls this after it has left everything. Returns how
    /// often this thread entered.
    pub fn drive(&self, mut work: impl FnMut(&mut Entered<'_, S, M>) -> bool) -> u32 {
        // SYNC: what this thread left is there before it looks at the flag. Partner: `HolderChecks`.
        full_fence(Barrier::LeaverChecks);
        let mut rounds = 0;
        while let Some(mut entered) = self.try_enter() {
            rounds += 1;
            // Closed in each iteration anew: another thread that had stayed as long may have opened
            // the section in leaving.
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

    /// Returns how many slots threads have taken so far.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.tail.0.load(Ordering::Relaxed)
    }
}

/// A slot that a thread took: its memory belongs to that thread until it publishes the slot. A slot
/// that is dropped unpublished is given up. In both cases the thread calls [`Optimistic::drive`]
/// afterwards: the holder may have left the section at this slot, with others published behind it.
#[derive(Debug)]
pub struct Leaving<'a, S, M = ()> {
    section: &'a Optimistic<S, M>,
    place: u64,
    what: u64,
}

impl<S, M> Leaving<'_, S, M> {
    /// Returns the slot's number.
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
        // SAFETY: this value took the slot for its place in the queue, alone, and has not published
        // it: the slot's word says FREE for no other place meanwhile, so there is no other
        // `Leaving` of the slot. `&mut self` keeps two of these references from living at once.
        write(unsafe { &mut *memory.get() })
    }

    /// Publishes the slot: its memory is written. The caller calls [`Optimistic::drive`]
    /// afterwards.
    pub fn publish(mut self) {
        self.what = PUBLISHED;
    }
}

impl<S, M> Drop for Leaving<'_, S, M> {
    fn drop(&mut self) {
        // SYNC: the thread that takes the slot sees what was written. Partner: `Entered::take`.
        let slot = &self.section.sequence[self.section.slot(self.place)];
        slot.store(word(self.place, self.what), Ordering::Release);
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
        assert!(section.leave().is_some(), "and is given up at once");
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
    fn work_left_to_one_thread_is_bounded() {
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
