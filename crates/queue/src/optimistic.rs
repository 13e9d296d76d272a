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
//!
//! Unsafe lives here, and in `entered`, for the state inside, which the thread that took the flag
//! touches; and for a slot's memory, which the thread that took the slot writes.

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
/// work. The holder also does the work that is being left meanwhile: at most one slot per other
/// thread.
const ROUNDS: u32 = 4;

/// The maximum number of slots of a section.
const MOST_SLOTS: u32 = 1 << 16;

/// State `S` that one thread at a time may touch, and a bounded queue of the work that other
/// threads left. Each slot of the queue has an `M`, which the thread that took the slot writes.
pub struct Optimistic<S, M = ()> {
    door: Apart<Door>,
    /// The position in the queue of the next slot to be taken, free-running.
    tail: Apart<AtomicU64>,
    /// For each slot the position in the queue that it serves; see [`word`].
    sequence: Box<[AtomicU64]>,
    /// For each slot the memory, which the thread that took the slot writes.
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
    /// The requests that threads left, one bit each.
    requests: AtomicU64,
    /// Not 0: the holder has done enough for other threads.
    closed: AtomicU64,
}

struct Inside<S> {
    /// The position in the queue of the next slot to be done, free-running.
    head: u64,
    /// How often threads have entered.
    entered: u64,
    /// For each slot the position in the queue for which [`Entered::take`] handed it out; else
    /// [`NOT_OUT`].
    places: Box<[u64]>,
    state: S,
}

// SAFETY: only the thread that took the flag touches `inside`, and the next thread that takes the
// flag sees everything before its release (`try_enter`, `Entered::exit`). Only the thread that took
// a slot touches the slot's memory, and the slot's next taker sees everything before its
// publication. That order goes through the thread inside, which takes each slot as often as it
// releases the slot (`take_slot`, `Leaving`'s drop, `Entered::take`, `Entered::release`). The rest
// are atomics. So the state and the memory move between threads, and no two threads have them at
// once.
unsafe impl<S: Send, M: Send> Sync for Optimistic<S, M> {}
// SAFETY: as above; all that is inside may move.
unsafe impl<S: Send, M: Send> Send for Optimistic<S, M> {}

/// No position: [`Entered::take`] did not hand the slot out, or the slot was released since.
const NOT_OUT: u64 = u64::MAX;

impl<S, M> core::fmt::Debug for Optimistic<S, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Optimistic").field("slots", &self.sequence.len()).finish_non_exhaustive()
    }
}

/// Returns a slot's word for a position in the queue: free, published, or given up by the thread
/// that took the slot.
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
        // A thread that only loads the flag does not take its line from the holder.
        if self.door.0.flag.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // SYNC: this thread sees what earlier holders did inside. Partner: the release in
        // `Entered::exit`.
        self.door.0.flag.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Entered::begin(self))
    }

    /// Takes a slot to leave work in. `None` is back pressure: all slots are in use, or the holder
    /// has closed the section to further work.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> Option<Leaving<'_, S, M>> {
        if self.door.0.closed.load(Ordering::Relaxed) != 0 { None } else { self.take_slot() }
    }

    fn take_slot(&self) -> Option<Leaving<'_, S, M>> {
        let mut place = self.tail.0.load(Ordering::Relaxed);
        // Each iteration means that another thread has taken a slot, or that all are in use.
        loop {
            // SYNC: the holder has finished reading the slot's memory. Partner:
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

    /// Leaves requests, one bit each; a second request of the same bit merges with the first. The
    /// caller calls [`Optimistic::drive`] afterwards.
    pub fn request(&self, bits: u64) {
        self.door.0.requests.fetch_or(bits, Ordering::Release);
    }

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
        while let Some(mut entered) = self.try_enter() {
            rounds += 1;
            // This closes the section in each iteration anew: another thread that had closed it may
            // have opened it on leaving.
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

/// A slot that a thread took. The slot's memory belongs to that thread until the thread publishes
/// the slot. To drop the slot unpublished gives it up. In both cases the thread calls
/// [`Optimistic::drive`] afterwards: the holder may have stopped at this slot and left the section,
/// with other slots published behind it.
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
        // SAFETY: this value alone took the slot for its position in the queue, and has not
        // published the slot. The slot's word says FREE for no other position meanwhile, so there
        // is no other `Leaving` of the slot. `&mut self` keeps two of these references from living
        // at once.
        write(unsafe { &mut *memory.get() })
    }

    /// Publishes the slot, whose memory is written. The caller calls [`Optimistic::drive`]
    /// afterwards.
    pub fn publish(mut self) {
        self.what = PUBLISHED;
    }
}

impl<S, M> Drop for Leaving<'_, S, M> {
    fn drop(&mut self) {
        // SYNC: the holder that takes the slot sees the writes to its memory. Partner:
        // `Entered::take`.
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
