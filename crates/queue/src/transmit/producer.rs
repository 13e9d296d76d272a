//! The application's side of a transmit queue.

use crate::Violation;
use crate::buffers::Slots;
use crate::descriptor::{Descriptor, MAX_CHAIN, MORE};
use crate::layout::QueueShape;
use crate::spsc::{Observed, Published};
use crate::word::{Barrier, OwnWords, PeerWords, full_fence};

/// Beside the head: the commit index that the application waits for, with this bit, or 0.
pub(super) const WANTED: u64 = 1 << 32;
pub(super) const WANTED_WORD: usize = 1;

/// The application's side.
#[derive(Debug)]
pub struct TransmitProducer {
    head: Published,
    descriptors: OwnWords,
    commit: Observed,
    reclaimed: u32,
    wanted: Option<u32>,
    slots: Slots,
    capacity: u32,
}

impl TransmitProducer {
    pub(crate) fn new(
        shape: &QueueShape,
        line: OwnWords,
        descriptors: OwnWords,
        commit: PeerWords,
    ) -> TransmitProducer {
        let head = Published::resume(line);
        let reclaimed = head.now();
        TransmitProducer {
            commit: Observed::new(commit, reclaimed),
            head,
            descriptors,
            reclaimed,
            wanted: None,
            slots: Slots::new(shape.transmit()),
            capacity: shape.transmit(),
        }
    }

    /// Returns how many slots the queue has.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns how many slots are free, as last reclaimed.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.capacity - self.head.now().wrapping_sub(self.reclaimed)
    }

    /// Pushes a packet: all of its buffers or none. Returns whether there was room. The server sees
    /// the packet after [`TransmitProducer::publish`].
    #[inline]
    pub fn push(&mut self, packet: &[Descriptor]) -> bool {
        if packet.is_empty() || packet.len() > MAX_CHAIN || packet.len() as u32 > self.room() {
            return false;
        }
        let last = packet.len() - 1;
        for (position, descriptor) in packet.iter().enumerate() {
            let mut descriptor = *descriptor;
            descriptor.flags = descriptor.flags & !MORE | if position < last { MORE } else { 0 };
            self.put(descriptor);
        }
        true
    }

    /// Returns the next slot, for a packet in one buffer; `None` if no slot is free, as last
    /// reclaimed.
    #[inline]
    pub fn free_slot(&mut self) -> Option<FreeSlot<'_>> {
        if self.room() == 0 { None } else { Some(FreeSlot { queue: self }) }
    }

    /// Writes a descriptor into the next slot.
    #[inline]
    fn put(&mut self, descriptor: Descriptor) {
        let index = self.head.now();
        let slot = (index & (self.capacity - 1)) as usize * 2;
        self.descriptors.prefetch_slots(slot, self.capacity as usize * 2);
        self.descriptors.store_pair(slot, descriptor.to_words());
        self.slots.set(index, descriptor.buffer);
        self.head.advance(1);
    }

    /// Prefetches the line that [`TransmitProducer::publish`] writes.
    #[inline]
    pub fn prefetch_publication(&self) {
        self.head.prefetch();
    }

    /// Publishes the pushed packets. Returns whether there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.head.publish()
    }

    /// Reads which buffers the server completed, and passes them to `free`. Returns their number.
    ///
    /// # Errors
    /// [`Violation::Index`] when the server's index is impossible.
    #[inline]
    pub fn reclaim(&mut self, mut free: impl FnMut(u32)) -> Result<u32, Violation> {
        let commit = self.commit.observe(self.head.now())?;
        let count = commit.wrapping_sub(self.reclaimed);
        for step in 0..count {
            free(self.slots.get(self.reclaimed.wrapping_add(step)));
        }
        self.reclaimed = commit;
        Ok(count)
    }

    /// Returns how many slots the application does not know to be completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.capacity - self.room()
    }

    /// Requests an event when `slots` of those in flight are completed. **After this the caller
    /// must reclaim once more and check
    /// [`has_what_it_wanted`](TransmitProducer::has_what_it_wanted)**. From then on the caller
    /// needs to reclaim only when an event of this queue pair comes.
    pub fn want(&mut self, slots: u32) {
        let index = self.reclaimed.wrapping_add(slots.min(self.in_flight()));
        self.wanted = Some(index);
        self.head.line().store(WANTED_WORD, WANTED | u64::from(index));
        // SYNC: the request is visible before this side reads the commit index. Partner:
        // `MarkerChecks`.
        full_fence(Barrier::RequesterChecks);
    }

    /// `true` if the requested slots are free, as last reclaimed. This ends the request.
    pub fn has_what_it_wanted(&mut self) -> bool {
        let there =
            self.wanted.is_some_and(|wanted| self.reclaimed.wrapping_sub(wanted) as i32 >= 0);
        if there {
            self.wanted = None;
            self.head.line().store(WANTED_WORD, 0);
        }
        there
    }
}

/// A slot of a queue that has room for it.
#[derive(Debug)]
pub struct FreeSlot<'a> {
    queue: &'a mut TransmitProducer,
}

impl FreeSlot<'_> {
    /// Pushes a packet in one buffer, as [`TransmitProducer::push`] does.
    #[inline]
    pub fn push(self, descriptor: Descriptor) {
        self.queue.put(Descriptor { flags: descriptor.flags & !MORE, ..descriptor });
    }
}
