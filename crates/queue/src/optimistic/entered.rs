//! The holder's side of the section: doing the work that other threads left, and leaving the
//! section.
//!
//! Unsafe lives here for the one reference to the state, which lives as long as its thread holds
//! the flag, and for the memory of slots that this thread took.

use super::section::{FREE, GIVEN_UP, Inside, Leaving, NOT_OUT, Optimistic, PUBLISHED, word};
use crate::word::{Barrier, Ordering, full_fence};

/// The work that other threads left for the next holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// At least one slot.
    Work,
    /// Requests, and perhaps slots.
    Requests,
}

#[cfg(not(loom))]
type Access<S> = *mut Inside<S>;
#[cfg(loom)]
type Access<S> = loom::cell::MutPtr<Inside<S>>;

/// Proof that this thread holds the section, until [`Entered::exit`]. A thread that only drops the
/// proof leaves the work of other threads undone until a thread enters again.
pub struct Entered<'a, S, M = ()> {
    section: &'a Optimistic<S, M>,
    /// Taken at the end, before the flag is released.
    inside: Option<Access<S>>,
}

impl<S, M> core::fmt::Debug for Entered<'_, S, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Entered")
    }
}

impl<S, M> Optimistic<S, M> {
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
}

impl<'a, S, M> Entered<'a, S, M> {
    /// Begins for a thread that has just taken the flag.
    #[inline]
    fn begin(section: &'a Optimistic<S, M>) -> Entered<'a, S, M> {
        #[cfg(not(loom))]
        let inside = section.inside.0.get();
        #[cfg(loom)]
        let inside = section.inside.0.get_mut();
        let mut entered = Entered { section, inside: Some(inside) };
        entered.inside().entered += 1;
        entered
    }

    #[cfg(not(loom))]
    fn inside(&mut self) -> &mut Inside<S> {
        let inside = self.inside.unwrap_or_else(|| self.section.inside.0.get());
        // SAFETY: this thread took the flag and has not released it, so no other thread has a
        // reference to the inside. The reference made here ends with the borrow of `self`.
        unsafe { &mut *inside }
    }

    #[cfg(loom)]
    fn inside(&mut self) -> &mut Inside<S> {
        // SAFETY: as above; the model checks it.
        unsafe { self.inside.as_ref().expect("until the end").deref() }
    }

    /// Returns the state.
    #[inline]
    pub fn state(&mut self) -> &mut S {
        &mut self.inside().state
    }

    /// Returns how often threads have entered, this time included.
    #[must_use]
    pub fn entered(&mut self) -> u64 {
        self.inside().entered
    }

    /// Takes the next slot that a thread left and published, in the order in which slots were
    /// taken. The slot is in use until [`Entered::release`].
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        loop {
            let section = self.section;
            let inside = self.inside();
            let place = inside.head;
            let slot = section.slot(place);
            // SYNC: the holder sees the writes to the slot's memory. Partner: `Leaving`'s drop.
            let now = section.sequence[slot].load(Ordering::Acquire);
            if now == word(place, PUBLISHED) {
                inside.places[slot] = place;
                inside.head = place.wrapping_add(1);
                return Some(slot as u32);
            }
            if now != word(place, GIVEN_UP) {
                return None;
            }
            inside.places[slot] = place;
            inside.head = place.wrapping_add(1);
            self.release(slot as u32);
        }
    }

    /// Releases a slot that [`Entered::take`] returned, in any order. Ignores any other slot, since
    /// its memory may belong to another thread.
    #[inline]
    pub fn release(&mut self, slot: u32) {
        let section = self.section;
        let slots = section.sequence.len() as u64;
        let slot = slot as usize;
        let Some(out) = self.inside().places.get_mut(slot) else { return };
        let place = core::mem::replace(out, NOT_OUT);
        if place == NOT_OUT {
            return;
        }
        // SYNC: the holder has finished reading the slot's memory. Partner: `Optimistic::leave`.
        section.sequence[slot].store(word(place.wrapping_add(slots), FREE), Ordering::Release);
    }

    /// Lets `exchange` use the memory of a slot that [`Entered::take`] returned, and that is not
    /// released. Returns `None` for any other slot.
    #[inline]
    pub fn with_slot<R>(&mut self, slot: u32, exchange: impl FnOnce(&mut M) -> R) -> Option<R> {
        let section = self.section;
        if *self.inside().places.get(slot as usize)? == NOT_OUT {
            return None;
        }
        let memory = &section.memory[slot as usize];
        #[cfg(loom)]
        // SAFETY: as below; the model checks it.
        return Some(memory.with_mut(|memory| exchange(unsafe { &mut *memory })));
        #[cfg(not(loom))]
        // SAFETY: the thread that wrote the slot has published it, which `take` saw by an acquiring
        // load, and its `Leaving` is gone. The slot's word says FREE again only after `release`, so
        // no other `Leaving` of the slot exists. This thread holds the section, and `&mut self`
        // keeps two of these references from living at once.
        Some(exchange(unsafe { &mut *memory.get() }))
    }

    /// `true` if no slot is published, and no slot is being written. Only then may the holder do
    /// its own work first and keep its order.
    #[inline]
    #[must_use]
    pub fn is_nothing_left(&mut self) -> bool {
        self.inside().head == self.section.tail.0.load(Ordering::Relaxed)
    }

    /// Takes a slot for this thread's own work, when another slot is still being written. This
    /// works also while the section is closed to other threads.
    #[must_use]
    pub fn leave(&self) -> Option<Leaving<'a, S, M>> {
        self.section.take_slot()
    }

    /// Takes the requests that threads left.
    #[inline]
    pub fn requests(&mut self) -> u64 {
        if self.section.door.0.requests.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.section.door.0.requests.swap(0, Ordering::Acquire)
    }

    /// Leaves the section. Returns the work that other threads left meanwhile. A thread must enter
    /// again for that work, since the threads that left it found the flag set.
    #[must_use]
    pub fn exit(mut self) -> Left {
        let (section, place) = (self.section, self.inside().head);
        drop(self);
        // SYNC: the flag is free before this thread checks for work that was left. Partner:
        // `LeaverChecks`.
        full_fence(Barrier::HolderChecks);
        let now = section.sequence[section.slot(place)].load(Ordering::Relaxed);
        if section.door.0.requests.load(Ordering::Relaxed) != 0 {
            Left::Requests
        } else if now == word(place, PUBLISHED) || now == word(place, GIVEN_UP) {
            Left::Work
        } else {
            Left::Nothing
        }
    }
}

impl<S, M> Drop for Entered<'_, S, M> {
    fn drop(&mut self) {
        self.inside = None;
        // SYNC: the next holder sees everything done inside. Partner: `try_enter`.
        self.section.door.0.flag.store(0, Ordering::Release);
    }
}
