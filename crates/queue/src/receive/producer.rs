//! The server's side of a receive queue.

use crate::Violation;
use crate::buffers::{BufferLedger, Slots};
use crate::descriptor::Descriptor;
use crate::layout::QueueShape;
use crate::spsc::{Observed, Published};
use crate::word::{AtomicU64, Ordering, OwnWords, PeerWords, prefetch_ahead, store_pair};

/// Provided buffers whose numbers the server prefetches. The application decides how many it
/// provides, and to prefetch more than a cache holds would only displace other data.
const AHEAD_PROVIDED: u32 = 512;

/// The server's side. The peer is not trusted.
///
/// The slots from the commit index on hold the buffers to fill. The last `lent` of the slots up to
/// the head hold none: their buffers are with the device.
#[derive(Debug)]
pub struct ReceiveProducer {
    head: Observed,
    provided: PeerWords,
    descriptors: OwnWords,
    commit: Published,
    slots: Slots,
    capacity: u32,
    /// The maximum number of buffers that the server saw provided at once.
    most: u32,
    /// The number of buffers that the server lent to a device.
    lent: u32,
}

impl ReceiveProducer {
    /// Creates the side, new or left by a predecessor.
    pub(super) fn new(
        shape: &QueueShape,
        line: OwnWords,
        descriptors: OwnWords,
        head: PeerWords,
        provided: PeerWords,
    ) -> ReceiveProducer {
        let commit = Published::resume(line);
        ReceiveProducer {
            head: Observed::new(head, commit.now()),
            provided,
            descriptors,
            commit,
            slots: Slots::new(shape.receive()),
            capacity: shape.receive(),
            most: 0,
            lent: 0,
        }
    }

    /// Observes which buffers the application provided, fetches and checks their numbers, and takes
    /// them. Returns how many the server can fill. The capacity bounds the loop.
    ///
    /// # Errors
    /// [`Violation::Index`], [`Violation::Buffer`], [`Violation::Ownership`].
    #[inline]
    pub fn observe(&mut self, ledger: &mut BufferLedger) -> Result<u32, Violation> {
        let before = self.head.seen();
        // Until `publish` releases filled buffers, their slots still name them, so the application
        // must not reuse the slots.
        let published = self.commit.now().wrapping_sub(self.commit.unpublished());
        let head = self.head.observe(published.wrapping_add(self.capacity))?;
        let new = head.wrapping_sub(before);
        let first = (before & (self.capacity - 1)) as usize;
        let near = new.min(AHEAD_PROVIDED) as usize;
        self.provided.prefetch_slots(first, near, self.capacity as usize);
        let mut done = 0;
        // Two runs, where the slots go on at the start of the queue's memory.
        while done < new {
            let index = before.wrapping_add(done);
            let slots = self.slots.run_mut(index, new - done);
            let slot = (index & (self.capacity - 1)) as usize;
            let words = self.provided.run(slot, slots.len());
            let (taken, failed) = match take_provided(words, slots, ledger) {
                Ok(taken) => (taken, None),
                Err((taken, violation)) => (taken, Some(violation)),
            };
            done += taken;
            if let Some(violation) = failed {
                // The server can fill only buffers that it checked and took, also if the caller
                // does not end the session at once.
                self.head.assume(before.wrapping_add(done));
                self.close_gap(before, done);
                return Err(violation);
            }
        }
        self.close_gap(before, new);
        self.most = self.most.max(self.unfilled());
        Ok(self.available())
    }

    /// Moves `new` buffers, which came at index `before`, in front of the slots of lent buffers.
    #[inline]
    fn close_gap(&mut self, before: u32, new: u32) {
        if self.lent == 0 {
            return;
        }
        for index in (0..new).map(|done| before.wrapping_add(done)) {
            let buffer = self.slots.get(index);
            self.slots.set(index.wrapping_sub(self.lent), buffer);
        }
    }

    /// Returns how many provided buffers are not filled, as last observed: those that the server
    /// can fill, and lent ones.
    #[inline]
    fn unfilled(&self) -> u32 {
        self.head.seen().wrapping_sub(self.commit.now())
    }

    /// Returns how many buffers the server can fill, as last observed.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u32 {
        self.unfilled() - self.lent
    }

    /// Returns how many buffers the server has lent to a device.
    #[inline]
    #[must_use]
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// Lends a buffer to a device that writes packets into it. The application must allow any order
    /// ([`ReceiveConsumer::allow_any_order`](super::ReceiveConsumer::allow_any_order)).
    /// Returns `None` if none is available.
    pub fn lend(&mut self) -> Option<u32> {
        let ahead = self.available().checked_sub(1)?;
        let buffer = self.buffer(ahead);
        self.lent += 1;
        Some(buffer)
    }

    /// Takes back a lent buffer that the device did not fill, or whose packet goes nowhere.
    ///
    /// # Panics
    /// When no buffer is lent: a mistake of the caller, which no peer can cause.
    pub fn take_back(&mut self, buffer: u32) {
        assert!(self.lent > 0, "no buffer is lent");
        self.slots.set(self.head.seen().wrapping_sub(self.lent), buffer);
        self.lent -= 1;
    }

    /// Pushes a lent buffer, which the device filled, as [`ReceiveProducer::push`] does.
    pub fn push_lent(&mut self, descriptor: Descriptor) {
        // The buffer that stood in the next slot takes the place of this one.
        let next = self.commit.now();
        let stood_there = self.slots.get(next);
        self.take_back(stood_there);
        self.slots.set(next, descriptor.buffer);
        self.push(descriptor);
    }

    /// `true` if more than half of the buffers that the application provides are filled, as last
    /// observed. [`ReceiveProducer::observe`] tells whether the application has provided buffers
    /// again since. If not, the application should check now, whatever its wait strategy.
    #[inline]
    #[must_use]
    pub fn is_half_used(&self) -> bool {
        self.unfilled() < self.most.div_ceil(2)
    }

    /// Returns the buffer to fill after `ahead` others. `ahead` is below
    /// [`ReceiveProducer::available`].
    #[inline]
    #[must_use]
    pub fn buffer(&self, ahead: u32) -> u32 {
        debug_assert!(ahead < self.available());
        self.slots.get(self.commit.now().wrapping_add(ahead))
    }

    /// Pushes the next filled buffer: `descriptor` names the buffer and its data. The caller pushes
    /// all of a packet's buffers or none, and so checks [`ReceiveProducer::available`] first.
    #[inline]
    pub fn push(&mut self, descriptor: Descriptor) {
        let index = self.commit.now();
        debug_assert!(self.available() > 0 && descriptor.buffer == self.slots.get(index));
        let slot = (index & (self.capacity - 1)) as usize * 2;
        self.descriptors.prefetch_slots(slot, self.capacity as usize * 2);
        self.descriptors.store_pair(slot, descriptor.to_words());
        self.commit.advance(1);
    }

    /// Prefetches the line that [`ReceiveProducer::publish`] writes.
    #[inline]
    pub fn prefetch_publication(&self) {
        self.commit.prefetch();
    }

    /// Returns the buffers to fill next, up to the end of the queue's memory.
    #[inline]
    pub fn fill(&mut self) -> Filling<'_> {
        let first = self.commit.now();
        let slots = self.slots.run(first, self.available());
        let slot = (first & (self.capacity - 1)) as usize * 2;
        Filling {
            words: self.descriptors.run_mut(slot, slots.len() * 2).as_chunks().0,
            slots,
            commit: &mut self.commit,
            filled: 0,
        }
    }

    /// Publishes the filled buffers, which belong to the application from now on. Returns how many
    /// there were.
    #[inline]
    pub fn publish(&mut self, ledger: &mut BufferLedger) -> u32 {
        let filled = self.commit.unpublished();
        let first = self.commit.now().wrapping_sub(filled);
        self.slots.release(ledger, first, filled);
        self.commit.publish();
        filled
    }
}

/// The next buffers of a queue to fill. The queue has those that were pushed once this value is
/// dropped.
#[derive(Debug)]
pub struct Filling<'a> {
    slots: &'a [u32],
    words: &'a [[AtomicU64; 2]],
    commit: &'a mut Published,
    filled: usize,
}

impl Filling<'_> {
    /// Returns the buffer to fill after `ahead` others; `None` if there are no more.
    #[inline]
    #[must_use]
    pub fn buffer(&self, ahead: u32) -> Option<u32> {
        self.slots.get(self.filled + ahead as usize).copied()
    }

    /// Pushes the next filled buffer, which `descriptor` names, as [`ReceiveProducer::push`] does.
    /// Ignores it if there are no more buffers to fill.
    #[inline]
    pub fn push(&mut self, descriptor: Descriptor) {
        debug_assert_eq!(Some(descriptor.buffer), self.buffer(0));
        let Some(words) = self.words.get(self.filled) else { return };
        prefetch_ahead(&words[0]);
        store_pair(words, descriptor.to_words());
        self.filled += 1;
    }
}

impl Drop for Filling<'_> {
    #[inline]
    fn drop(&mut self) {
        self.commit.advance(self.filled as u32);
    }
}

/// Fetches the numbers of provided buffers once each, checks them, takes them, and puts them into
/// their slots. Returns how many there are.
///
/// # Errors
/// The number of those taken before the check that failed, and that check.
#[inline]
fn take_provided(
    words: &[AtomicU64],
    slots: &mut [u32],
    ledger: &mut BufferLedger,
) -> Result<u32, (u32, Violation)> {
    let mut ledger = ledger.taking();
    for (taken, (word, slot)) in (0..).zip(words.iter().zip(slots)) {
        let word = word.load(Ordering::Relaxed);
        let buffer = u32::try_from(word).map_err(|_| (taken, Violation::Buffer))?;
        ledger.take(buffer).map_err(|violation| (taken, violation))?;
        *slot = buffer;
    }
    Ok(words.len() as u32)
}
