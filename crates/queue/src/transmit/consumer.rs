//! The server's side of a transmit queue.

use super::producer::{WANTED, WANTED_WORD};
use crate::Violation;
use crate::buffers::{BufferLedger, Slots};
use crate::descriptor::{
    Descriptor, EXPEDITED, HEADROOM_BYTES, MAX_CHAIN, META, MORE, OUT_OF_BAND, PoolShape, REQUEST,
    TOGETHER,
};
use crate::layout::QueueShape;
use crate::spsc::{Observed, Published};
use crate::word::{Ordering, OwnWords, PeerWords};

/// Descriptors that the server prefetches before it fetches them.
const AHEAD: u32 = 32;

/// The server's side. The peer is not trusted.
#[derive(Debug)]
pub struct TransmitConsumer {
    head: Observed,
    descriptors: PeerWords,
    commit: Published,
    taken: u32,
    done: OwnWords,
    /// How many completions the ledger notes. Mostly none, and then the server reads no note.
    noted: u32,
    slots: Slots,
    pool: PoolShape,
    capacity: u32,
}

impl TransmitConsumer {
    pub(crate) fn new(
        shape: &QueueShape,
        pool: PoolShape,
        line: OwnWords,
        head: PeerWords,
        descriptors: PeerWords,
        done: OwnWords,
    ) -> TransmitConsumer {
        let commit = Published::resume(line);
        let taken = commit.now();
        let notes = |word| done.get(word).count_ones();
        let noted = (0..shape.ledger_words()).map(notes).sum();
        TransmitConsumer {
            head: Observed::new(head, taken),
            descriptors,
            commit,
            taken,
            done,
            noted,
            slots: Slots::new(shape.transmit()),
            pool,
            capacity: shape.transmit(),
        }
    }

    /// Observes the application's head index. Returns how many descriptors wait.
    ///
    /// # Errors
    /// [`Violation::Index`].
    #[inline]
    pub fn observe(&mut self) -> Result<u32, Violation> {
        let head = self.head.observe(self.commit.now().wrapping_add(self.capacity))?;
        let waiting = head.wrapping_sub(self.taken);
        self.prefetch(self.taken, waiting);
        Ok(waiting)
    }

    /// Prefetches the application's index and the next descriptors, before anything shows that
    /// there are some.
    #[inline]
    pub fn prefetch_news(&self) {
        self.head.prefetch();
        self.prefetch(self.head.seen(), 1);
    }

    /// Returns where the next packet probably starts in the pool, in bytes. The application takes
    /// its buffers in ascending or descending order until it reclaims, so the next one is as far
    /// from the last as that is from the one before.
    #[inline]
    #[must_use]
    pub fn expected_offset(&self) -> usize {
        let [before, last] = [2, 1].map(|back| self.slots.get(self.taken.wrapping_sub(back)));
        let next = last.wrapping_mul(2).wrapping_sub(before);
        let buffer = if next < self.pool.buffers() { next } else { last };
        self.pool.buffer_offset(buffer) + HEADROOM_BYTES as usize
    }

    /// Prefetches at most [`AHEAD`] waiting descriptors, from `index` on.
    #[inline]
    fn prefetch(&self, index: u32, waiting: u32) {
        let slot = (index & (self.capacity - 1)) as usize * 2;
        let count = waiting.min(AHEAD) as usize * 2;
        self.descriptors.prefetch_slots(slot, count, self.capacity as usize * 2);
    }

    /// Returns the index of the descriptor that the server takes next.
    #[must_use]
    pub fn next_index(&self) -> u32 {
        self.taken
    }

    /// Returns how many descriptors wait, as last observed.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.head.seen().wrapping_sub(self.taken)
    }

    /// Returns the next packet's endpoint and flags, and takes nothing. They are a hint: the
    /// application may overwrite them before the server takes the packet.
    ///
    /// # Errors
    /// [`Violation::Index`].
    #[inline]
    pub fn peek(&mut self) -> Result<Option<(u32, u16)>, Violation> {
        if self.waiting() == 0 && self.observe()? == 0 {
            return Ok(None);
        }
        let slot = (self.taken & (self.capacity - 1)) as usize * 2;
        let word = self.descriptors.fetch(slot + 1);
        Ok(Some((word as u32, (word >> 32) as u16)))
    }

    /// Returns the application's index as last observed: the end of the descriptors that the
    /// application had published by then.
    #[inline]
    #[must_use]
    pub fn seen(&self) -> u32 {
        self.head.seen()
    }

    /// Fetches the next packet into private memory, checks it and takes its buffers. Returns the
    /// number of its buffers, and the index by which [`TransmitConsumer::complete`] completes it;
    /// `None` when nothing waits.
    ///
    /// The last observation and [`MAX_CHAIN`] bound the loop.
    ///
    /// # Errors
    /// The check that failed. Buffers of the packet already taken stay taken: the session ends.
    #[inline]
    pub fn take(
        &mut self,
        ledger: &mut BufferLedger,
        packet: &mut [Descriptor; MAX_CHAIN],
    ) -> Result<Option<(usize, u32)>, Violation> {
        let first = self.taken;
        if self.waiting() == 0 {
            return Ok(None);
        }
        packet[0] = self.take_buffer(ledger, first)?;
        if packet[0].has_next() || self.noted > 0 {
            return self.take_more(ledger, packet);
        }
        self.taken = first.wrapping_add(1);
        Ok(Some((1, first)))
    }

    /// Takes packets of one buffer and without flags into `out`: as many as wait, at most as many
    /// as `out` has room for, until they have `bytes` bytes together, and only up to the end of the
    /// queue's memory. Returns the index of the first, and their number; their slots follow each
    /// other. Takes no packet of another kind and none that fails a check:
    /// [`TransmitConsumer::take`] does.
    #[inline]
    pub fn take_plain(
        &mut self,
        ledger: &mut BufferLedger,
        out: &mut [Descriptor],
        bytes: i64,
    ) -> (u32, usize) {
        let first = self.taken;
        if self.noted > 0 {
            return (first, 0);
        }
        let most = self.waiting().min(u32::try_from(out.len()).unwrap_or(u32::MAX));
        let slots = self.slots.run_mut(first, most);
        let slot = (first & (self.capacity - 1)) as usize;
        let words = self.descriptors.run(slot * 2, slots.len() * 2);
        let (mut taken, mut left) = (0, bytes);
        let mut ledger = ledger.taking();
        for ((words, slot), place) in words.as_chunks::<2>().0.iter().zip(slots).zip(out) {
            let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            if words[1] >> 32 != 0 {
                break;
            }
            let Ok(descriptor) = Descriptor::check(words, &self.pool, 0) else { break };
            if ledger.take(descriptor.buffer).is_err() {
                break;
            }
            (*slot, *place) = (descriptor.buffer, descriptor);
            taken += 1;
            left -= i64::from(descriptor.len);
            if left <= 0 {
                break;
            }
        }
        self.taken = first.wrapping_add(taken);
        self.prefetch(self.taken, self.waiting());
        (first, taken as usize)
    }

    /// Continues with a packet of several buffers, or past earlier completions. The caller has
    /// taken the first buffer.
    #[inline(never)]
    fn take_more(
        &mut self,
        ledger: &mut BufferLedger,
        packet: &mut [Descriptor; MAX_CHAIN],
    ) -> Result<Option<(usize, u32)>, Violation> {
        loop {
            let first = self.taken;
            let waiting = self.waiting();
            let done_before = self.is_done(first);
            let mut count = 1;
            while packet[count - 1].has_next() {
                if count == MAX_CHAIN || count as u32 == waiting {
                    return Err(Violation::Chain);
                }
                packet[count] = self.take_buffer(ledger, first.wrapping_add(count as u32))?;
                count += 1;
            }
            self.taken = first.wrapping_add(count as u32);
            if !done_before {
                return Ok(Some((count, first)));
            }
            // A predecessor had sent this packet out of order before it died.
            self.complete(ledger, first, count as u32);
            if self.waiting() == 0 {
                return Ok(None);
            }
            packet[0] = self.take_buffer(ledger, self.taken)?;
        }
    }

    /// Fetches the words of one descriptor.
    #[inline]
    fn fetch(&self, index: u32) -> [u64; 2] {
        let slot = (index & (self.capacity - 1)) as usize * 2;
        // Once per line: prefetches the descriptor [`AHEAD`] slots later, if the application has
        // published it.
        if slot.is_multiple_of(8) && self.head.seen().wrapping_sub(index) > AHEAD {
            self.prefetch(index.wrapping_add(AHEAD), 1);
        }
        self.descriptors.fetch_pair(slot)
    }

    /// Fetches one descriptor, checks it and takes its buffer.
    #[inline]
    fn take_buffer(
        &mut self,
        ledger: &mut BufferLedger,
        index: u32,
    ) -> Result<Descriptor, Violation> {
        let words = self.fetch(index);
        let allowed = MORE | META | TOGETHER | EXPEDITED | OUT_OF_BAND | REQUEST;
        let descriptor = Descriptor::check(words, &self.pool, allowed)?;
        ledger.take(descriptor.buffer)?;
        self.slots.set(index, descriptor.buffer);
        Ok(descriptor)
    }

    /// Puts all packets taken from index `first` on back into the queue, unchanged, because there
    /// is no room for them now. The server will fetch and check them again. None of them is
    /// completed, except those that a predecessor completed, which the server will skip again.
    pub fn put_back(&mut self, ledger: &mut BufferLedger, first: u32) {
        let count = self.taken.wrapping_sub(first);
        self.slots.release(ledger, first, count);
        self.taken = first;
    }

    /// Notes the completion of a packet. Its buffers return to the application with the next
    /// [`TransmitConsumer::publish`] after all earlier packets are completed too.
    #[inline]
    pub fn complete(&mut self, ledger: &mut BufferLedger, first: u32, count: u32) {
        if first == self.commit.now() && self.noted == 0 {
            self.release(ledger, count);
        } else {
            self.complete_out_of_order(ledger, first, count);
        }
    }

    #[cold]
    fn complete_out_of_order(&mut self, ledger: &mut BufferLedger, first: u32, count: u32) {
        if first != self.commit.now() {
            for step in 0..count {
                self.set_done(first.wrapping_add(step), true);
            }
            return;
        }
        // A predecessor that died may have noted a part of this packet.
        for step in 0..count {
            self.set_done(first.wrapping_add(step), false);
        }
        self.release(ledger, count);
        while self.commit.now() != self.taken && self.is_done(self.commit.now()) {
            // The server clears the note before it advances the index. In the other order, a crash
            // between the two would leave a note on a slot whose next packet was never sent.
            self.set_done(self.commit.now(), false);
            self.release(ledger, 1);
        }
    }

    /// Publishes the completions. Returns whether there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.commit.publish()
    }

    /// `true` if there are completions to publish.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.commit.has_news()
    }

    /// `true` if the application waits for room that it has now. The caller asks after publishing
    /// and [`crate::events::fence`].
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let wanted = self.head.line().fetch(WANTED_WORD);
        wanted & WANTED != 0 && (self.commit.now().wrapping_sub(wanted as u32) as i32) >= 0
    }

    /// Returns how many slots are taken and not completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.taken.wrapping_sub(self.commit.now())
    }

    #[inline]
    fn release(&mut self, ledger: &mut BufferLedger, count: u32) {
        let first = self.commit.now();
        self.slots.release(ledger, first, count);
        self.commit.advance(count);
    }

    #[inline]
    fn is_done(&self, index: u32) -> bool {
        let slot = index & (self.capacity - 1);
        self.done.get(slot as usize / 64) >> (slot % 64) & 1 != 0
    }

    fn set_done(&mut self, index: u32, done: bool) {
        let slot = index & (self.capacity - 1);
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        let before = self.done.get(word);
        let after = if done { before | bit } else { before & !bit };
        if after == before {
            return;
        }
        self.noted = self.noted + after.count_ones() - before.count_ones();
        self.done.store(word, after);
    }
}
