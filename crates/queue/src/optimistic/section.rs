//! The section's memory, and the side of the threads that leave work.
//!
//! Unsafe lives here for moving the section between threads, and for a slot's memory, which only
//! the thread that took the slot writes.

use alloc::boxed::Box;
use alloc::vec::Vec;
#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(loom)]
use loom::cell::UnsafeCell;

use crate::word::{AtomicU64, Ordering};

/// The maximum number of slots of a section.
const MOST_SLOTS: u32 = 1 << 16;

/// State `S` that one thread at a time may touch, and a bounded queue of the work that other
/// threads left. Each slot of the queue has an `M`, which the thread that took the slot writes.
pub struct Optimistic<S, M = ()> {
    pub(super) door: Apart<Door>,
    /// The position in the queue of the next slot to be taken, free-running.
    pub(super) tail: Apart<AtomicU64>,
    /// For each slot the position in the queue that it serves; see [`word`].
    pub(super) sequence: Box<[AtomicU64]>,
    /// For each slot the memory, which the thread that took the slot writes, and then the holder
    /// until it releases the slot.
    pub(super) memory: Box<[UnsafeCell<M>]>,
    pub(super) inside: Apart<UnsafeCell<Inside<S>>>,
}

/// Puts a field on cache lines of its own, away from fields that change at other times: processors
/// fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

pub(super) struct Door {
    /// 0: no thread is inside.
    pub(super) flag: AtomicU64,
    /// The requests that threads left, one bit each.
    pub(super) requests: AtomicU64,
    /// Not 0: the holder has done enough for other threads.
    pub(super) closed: AtomicU64,
}

pub(super) struct Inside<S> {
    /// The position in the queue of the next slot to be done, free-running.
    pub(super) head: u64,
    /// How often threads have entered.
    pub(super) entered: u64,
    /// For each slot the position in the queue for which [`Entered::take`](super::Entered::take)
    /// handed it out; else [`NOT_OUT`].
    pub(super) places: Box<[u64]>,
    pub(super) state: S,
}

// SAFETY: only the thread that took the flag touches `inside`, and the next thread that takes the
// flag sees everything before its release (`try_enter`, `Entered::exit`). Only the thread that took
// a slot touches the slot's memory, then the thread inside until it releases the slot, and the
// slot's next taker sees everything before that release. That order goes through the thread
// inside, which takes each slot as often as it releases the slot (`take_slot`, `Leaving`'s drop, `Entered::take`, `Entered::release`). The rest
// are atomics. So the state and the memory move between threads, and no two threads have them at
// once.
unsafe impl<S: Send, M: Send> Sync for Optimistic<S, M> {}
// SAFETY: as above; all that is inside may move.
unsafe impl<S: Send, M: Send> Send for Optimistic<S, M> {}

/// No position: [`Entered::take`](super::Entered::take) did not hand the slot out, or the slot was
/// released since.
pub(super) const NOT_OUT: u64 = u64::MAX;

impl<S, M> core::fmt::Debug for Optimistic<S, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Optimistic").field("slots", &self.sequence.len()).finish_non_exhaustive()
    }
}

/// Returns a slot's word for a position in the queue: free, published, or given up by the thread
/// that took the slot.
pub(super) const fn word(place: u64, what: u64) -> u64 {
    place << 2 | what
}
pub(super) const FREE: u64 = 0;
pub(super) const PUBLISHED: u64 = 1;
pub(super) const GIVEN_UP: u64 = 2;

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

    pub(super) fn slot(&self, place: u64) -> usize {
        (place & (self.sequence.len() as u64 - 1)) as usize
    }

    /// Takes a slot to leave work in. `None` is back pressure: all slots are in use, or the holder
    /// has closed the section to further work.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> Option<Leaving<'_, S, M>> {
        if self.door.0.closed.load(Ordering::Relaxed) != 0 { None } else { self.take_slot() }
    }

    /// Takes a slot as [`Optimistic::leave`] does, also while the holder has closed the section. The caller
    /// leaves a bounded amount of work, so that the holder finds an end.
    #[inline]
    #[must_use]
    pub fn leave_though_closed(&self) -> Option<Leaving<'_, S, M>> {
        self.take_slot()
    }

    pub(super) fn take_slot(&self) -> Option<Leaving<'_, S, M>> {
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
