//! The application's side of a receive queue.

use alloc::boxed::Box;

use crate::Violation;
use crate::buffers::{FreeBuffers, Slots};
use crate::descriptor::{Descriptor, MAX_CHAIN, META, MORE, OUTGOING, PoolShape};
use crate::layout::QueueShape;
use crate::spsc::{Observed, Published};
use crate::word::{CACHE_LINE_WORDS, Ordering, OwnWords, PeerWords};

/// Descriptors that this side prefetches before it fetches them.
const AHEAD: u32 = 64;

/// The application's side. It checks the server's words too: a faulty server must not make the
/// application read outside of its pool.
#[derive(Debug)]
pub struct ReceiveConsumer {
    provided: OwnWords,
    head: Published,
    commit: Observed,
    descriptors: PeerWords,
    taken: u32,
    slots: Slots,
    /// The provided buffers that the server may fill in any order; `None` if it fills them in the
    /// order in which they were provided.
    any_order: Option<Outstanding>,
    pool: PoolShape,
    capacity: u32,
}

impl ReceiveConsumer {
    /// Creates the side, new or left by a predecessor.
    pub(super) fn new(
        shape: &QueueShape,
        pool: PoolShape,
        line: OwnWords,
        provided: OwnWords,
        commit: PeerWords,
        descriptors: PeerWords,
    ) -> ReceiveConsumer {
        let head = Published::resume(line);
        let taken = head.now();
        ReceiveConsumer {
            provided,
            commit: Observed::new(commit, taken),
            head,
            descriptors,
            taken,
            slots: Slots::new(shape.receive()),
            any_order: None,
            pool,
            capacity: shape.receive(),
        }
    }

    /// Lets the server fill provided buffers in any order from now on, before it has filled one. A
    /// device that writes into the buffers of a queue of the session's own needs this.
    pub fn allow_any_order(&mut self) {
        let mut outstanding = Outstanding::new(self.pool.buffers());
        for ahead in 0..self.in_flight() {
            outstanding.add(self.slots.get(self.taken.wrapping_add(ahead)));
        }
        self.any_order = Some(outstanding);
    }

    /// Returns how many buffers the application can provide now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.capacity - self.head.now().wrapping_sub(self.taken)
    }

    /// Returns how many provided buffers the application has not taken back: empty ones, and filled
    /// ones that wait.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.head.now().wrapping_sub(self.taken)
    }

    /// Provides an empty buffer. Returns whether there was room. The server sees the buffer after
    /// [`ReceiveConsumer::publish`].
    #[inline]
    pub fn provide(&mut self, buffer: u32) -> bool {
        if self.room() == 0 {
            return false;
        }
        let index = self.head.now();
        self.provided
            .prefetch_slots((index & (self.capacity - 1)) as usize, self.capacity as usize);
        self.provided.store((index & (self.capacity - 1)) as usize, u64::from(buffer));
        self.slots.set(index, buffer);
        if let Some(outstanding) = &mut self.any_order {
            outstanding.add(buffer);
        }
        self.head.advance(1);
        true
    }

    /// Provides empty buffers from a list, at most `most` and as many as there is room for, as
    /// [`ReceiveConsumer::provide`] does. Returns their number.
    #[inline]
    pub fn provide_from(&mut self, free: &mut FreeBuffers, most: u32) -> u32 {
        let most = most.min(self.room()).min(u32::try_from(free.len()).unwrap_or(u32::MAX));
        let mut done = 0;
        // Two runs, where the slots go on at the start of the queue's memory.
        while done < most {
            let index = self.head.now();
            let first = (index & (self.capacity - 1)) as usize;
            let slots = self.slots.run_mut(index, most - done);
            for slot in (first..first + slots.len()).step_by(CACHE_LINE_WORDS) {
                let line = slot & !(CACHE_LINE_WORDS - 1);
                self.provided.prefetch_slots(line, self.capacity as usize);
            }
            let words = self.provided.run_mut(first, slots.len());
            let buffers = free.take_all(slots.len());
            for ((word, slot), buffer) in words.iter().zip(slots.iter_mut()).zip(buffers) {
                #[cfg(all(test, not(loom)))]
                crate::stop_tests::before_store();
                word.store(u64::from(buffer), Ordering::Relaxed);
                *slot = buffer;
                if let Some(outstanding) = &mut self.any_order {
                    outstanding.add(buffer);
                }
            }
            self.head.advance(slots.len() as u32);
            done += slots.len() as u32;
        }
        most
    }

    /// Publishes the provided buffers. Returns whether there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.head.publish()
    }

    /// Prefetches the server's index and the next descriptors, before anything shows that there are
    /// some.
    #[inline]
    pub fn prefetch_news(&self) {
        self.commit.prefetch();
        let slot = (self.commit.seen() & (self.capacity - 1)) as usize * 2;
        self.descriptors.prefetch_slots(slot, 1, self.capacity as usize * 2);
    }

    /// Observes the server's commit index. Returns how many descriptors wait.
    ///
    /// # Errors
    /// [`Violation::Index`] when the server's index is impossible.
    #[inline]
    pub fn observe(&mut self) -> Result<u32, Violation> {
        // The server cannot have filled buffers that it does not see yet.
        let published = self.head.now().wrapping_sub(self.head.unpublished());
        let commit = self.commit.observe(published)?;
        self.prefetch();
        Ok(commit.wrapping_sub(self.taken))
    }

    /// Returns how many descriptors wait, as last observed.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.commit.seen().wrapping_sub(self.taken)
    }

    /// Returns the buffer of the descriptor after `ahead` others that wait; `None` when no more
    /// than `ahead` wait. The server fills buffers in order, so this reads no shared memory.
    #[inline]
    #[must_use]
    pub fn waiting_buffer(&self, ahead: u32) -> Option<u32> {
        (ahead < self.waiting()).then(|| self.slots.get(self.taken.wrapping_add(ahead)))
    }

    /// Takes packets of one buffer into `out`, whose buffers belong to the application from now on:
    /// as many as wait, at most as many as `out` has room for, and only up to the end of the
    /// queue's memory. Returns their number. Takes no packet of several buffers:
    /// [`ReceiveConsumer::take`] does.
    ///
    /// # Errors
    /// The check that failed, once the packets before it are taken.
    #[inline]
    pub fn take_singles(&mut self, out: &mut [Descriptor]) -> Result<usize, Violation> {
        let first = self.taken;
        let most = self.waiting().min(u32::try_from(out.len()).unwrap_or(u32::MAX));
        let slots = self.slots.run(first, most);
        let slot = (first & (self.capacity - 1)) as usize;
        let words = self.descriptors.run(slot * 2, slots.len() * 2);
        let (mut taken, mut failed) = (0, None);
        for ((words, slot), place) in words.as_chunks::<2>().0.iter().zip(slots).zip(out) {
            let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            match Descriptor::check(words, &self.pool, MORE | META | OUTGOING) {
                Ok(descriptor) if descriptor.has_next() => break,
                Ok(descriptor) if is_theirs(&mut self.any_order, descriptor.buffer, *slot) => {
                    *place = descriptor;
                }
                Ok(_) => failed = Some(Violation::Ownership),
                Err(violation) => failed = Some(violation),
            }
            if failed.is_some() {
                break;
            }
            taken += 1;
        }
        self.taken = first.wrapping_add(taken);
        self.prefetch();
        match failed {
            Some(violation) if taken == 0 => Err(violation),
            _ => Ok(taken as usize),
        }
    }

    /// Prefetches at most [`AHEAD`] waiting descriptors.
    #[inline]
    fn prefetch(&self) {
        let slot = (self.taken & (self.capacity - 1)) as usize * 2;
        let count = self.waiting().min(AHEAD) as usize * 2;
        self.descriptors.prefetch_slots(slot, count, self.capacity as usize * 2);
    }

    /// Takes the next packet, whose buffers belong to the application from now on. Returns the
    /// number of its buffers; 0 when nothing waits.
    ///
    /// # Errors
    /// The check that failed.
    #[inline]
    pub fn take(&mut self, packet: &mut [Descriptor; MAX_CHAIN]) -> Result<usize, Violation> {
        let waiting = self.waiting();
        if waiting == 0 {
            return Ok(0);
        }
        let mut count = 0;
        loop {
            if count == MAX_CHAIN || count as u32 == waiting {
                return Err(Violation::Chain);
            }
            let index = self.taken.wrapping_add(count as u32);
            let slot = (index & (self.capacity - 1)) as usize * 2;
            let words = self.descriptors.fetch_pair(slot);
            let allowed = MORE | META | OUTGOING;
            let descriptor = match packet[..count].last() {
                None => Descriptor::check(words, &self.pool, allowed)?,
                Some(before) => Descriptor::check_next(words, &self.pool, allowed, before)?,
            };
            let slot = self.slots.get(index);
            if !is_theirs(&mut self.any_order, descriptor.buffer, slot) {
                return Err(Violation::Ownership);
            }
            packet[count] = descriptor;
            count += 1;
            if !descriptor.has_next() {
                break;
            }
        }
        self.taken = self.taken.wrapping_add(count as u32);
        Ok(count)
    }
}

/// Returns `true` if the server may name a buffer in a slot for which the application provided
/// `slot`. The buffer is the application's from then on.
#[inline(always)]
fn is_theirs(any_order: &mut Option<Outstanding>, buffer: u32, slot: u32) -> bool {
    match any_order {
        None => buffer == slot,
        Some(outstanding) => outstanding.remove(buffer),
    }
}

/// The buffers that the application provided and has not taken back.
#[derive(Debug)]
struct Outstanding {
    bits: Box<[u64]>,
}

impl Outstanding {
    fn new(buffers: u32) -> Outstanding {
        Outstanding { bits: alloc::vec![0; buffers.div_ceil(64) as usize].into_boxed_slice() }
    }

    fn add(&mut self, buffer: u32) {
        if let Some(word) = self.bits.get_mut(buffer as usize / 64) {
            *word |= 1 << (buffer % 64);
        }
    }

    /// Removes a buffer. Returns `true` if it was there.
    fn remove(&mut self, buffer: u32) -> bool {
        let Some(word) = self.bits.get_mut(buffer as usize / 64) else { return false };
        let bit = 1 << (buffer % 64);
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }
}
