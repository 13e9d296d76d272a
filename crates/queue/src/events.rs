//! Events: a side finds the queue pairs that have news without checking each.
//!
//! A queue pair with news is in the event queue at most once until its event is acknowledged, so
//! the queue cannot overflow (Riddoch and Pope's event queue). Two bits with one writer each say
//! whether an event is pending: the marker's private toggle, and the acknowledger's shared bit.
//! They differ while it is.
//!
//! The same design serves both directions: from the server to a session that waits, and from a
//! session to the server. The server's cost then depends on the queue pairs that send, not on those
//! that exist.
//!
//! Marker: publish queues, fence, read acknowledgements, queue an event where none is pending.
//! Acknowledger: take events, acknowledge, fence, check the queues named.

use alloc::boxed::Box;

use crate::Violation;
use crate::layout::lines;
use crate::spsc::{Observed, Published};
use crate::word::{Barrier, LINE_WORDS, OwnWords, PeerWords, full_fence};

/// The size of an event queue, by the number of its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventShape {
    queue_pairs: u32,
}

impl EventShape {
    /// Returns the shape for `queue_pairs` queue pairs, 1 to 2^20; else `None`.
    #[must_use]
    pub const fn new(queue_pairs: u32) -> Option<EventShape> {
        if queue_pairs == 0 || queue_pairs > 1 << 20 {
            None
        } else {
            Some(EventShape { queue_pairs })
        }
    }

    const fn capacity(self) -> u32 {
        self.queue_pairs.next_power_of_two()
    }

    /// Returns how many words the marker writes: a line with its index, then the queue.
    #[must_use]
    pub const fn marker_words(&self) -> usize {
        lines(LINE_WORDS + self.capacity() as usize)
    }

    /// Returns how many words the acknowledger writes: a line with its index, then one bit per
    /// queue pair.
    #[must_use]
    pub const fn acknowledger_words(&self) -> usize {
        lines(LINE_WORDS + self.queue_pairs.div_ceil(64) as usize)
    }
}

/// Proof that the caller called [`fence`]; one serves all markers of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Fenced(());

/// Orders earlier publications of queues before later loads of acknowledgements. The caller calls
/// it once per batch, after it has published queues and before it marks their queue pairs.
#[inline]
#[must_use]
pub fn fence() -> Fenced {
    // SYNC: the marker publishes the queues before it reads acknowledgements. Partner:
    // `AcknowledgerChecks`.
    full_fence(Barrier::MarkerChecks);
    Fenced(())
}

/// The side that has news.
#[derive(Debug)]
pub struct Marker {
    head: Published,
    queue: OwnWords,
    tail: Observed,
    acknowledged: PeerWords,
    toggles: Box<[u64]>,
    shape: EventShape,
}

impl Marker {
    /// Creates an empty event queue: no event is pending, whatever the peer's words say.
    #[must_use]
    pub fn new(shape: EventShape, mut own: OwnWords, peer: &PeerWords) -> Marker {
        let line = own.split_off_front(LINE_WORDS);
        let acknowledged = peer.part(LINE_WORDS, shape.queue_pairs.div_ceil(64) as usize);
        let toggles = (0..acknowledged.len()).map(|word| acknowledged.fetch(word)).collect();
        let head = Published::resume(line);
        let tail = Observed::new(peer.part(0, LINE_WORDS), head.now());
        Marker { head, queue: own, tail, acknowledged, toggles, shape }
    }

    /// Prefetches what [`Marker::mark`] and [`Marker::publish`] touch for a queue pair. The other
    /// side's core has most of these lines; without the prefetch, the processor would fetch these
    /// lines only after the fence.
    #[inline]
    pub fn prefetch(&self, queue_pair: u32) {
        self.acknowledged.prefetch(queue_pair as usize / 64);
        self.queue.prefetch_to_write((self.head.now() & (self.shape.capacity() - 1)) as usize);
        self.head.prefetch();
    }

    /// Queues an event for a queue pair, unless one is pending. The caller calls this after
    /// publishing and [`fence`]. Returns whether this queued an event.
    ///
    /// # Errors
    /// [`Violation::Event`] when the peer acknowledged events that it did not take.
    #[inline]
    pub fn mark(&mut self, _: Fenced, queue_pair: u32) -> Result<bool, Violation> {
        let (word, bit) = (queue_pair as usize / 64, 1u64 << (queue_pair % 64));
        // SYNC: pairs with the publication in `Acknowledger::take`.
        if (self.toggles[word] ^ self.acknowledged.observe(word)) & bit != 0 {
            return Ok(false);
        }
        let now = self.head.now();
        if now.wrapping_sub(self.tail.seen()) >= self.shape.capacity() {
            let tail = self.tail.observe(now)?;
            if now.wrapping_sub(tail) >= self.shape.capacity() {
                return Err(Violation::Event);
            }
        }
        self.toggles[word] ^= bit;
        self.queue.store((now & (self.shape.capacity() - 1)) as usize, u64::from(queue_pair));
        self.head.advance(1);
        Ok(true)
    }

    /// Forgets all pending events, after the server that had them died. The caller then checks, or
    /// marks, every queue pair that may have news. Meanwhile the other side neither takes nor
    /// acknowledges events, and it calls [`Acknowledger::restart`] before it takes the next one.
    ///
    /// A server that dies between two stores can leave a toggle or an acknowledgement that fits no
    /// event of the queue. The restart makes both agree.
    pub fn restart(&mut self) {
        self.head.publish();
        self.tail.assume(self.head.now());
        for (word, toggles) in self.toggles.iter_mut().enumerate() {
            *toggles = self.acknowledged.observe(word);
        }
    }

    /// Publishes the events. Returns whether there were any. Only then may the caller have to wake
    /// the other side: while an earlier event is pending, the other side has yet to check.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.head.publish()
    }
}

/// The side that takes and acknowledges events.
#[derive(Debug)]
pub struct Acknowledger {
    tail: Published,
    acknowledged: OwnWords,
    head: Observed,
    queue: PeerWords,
    /// The queue pair of the last event.
    last: u32,
    shape: EventShape,
}

impl Acknowledger {
    /// Creates an acknowledger that resumes at its own index.
    #[must_use]
    pub fn new(shape: EventShape, mut own: OwnWords, peer: &PeerWords) -> Acknowledger {
        let tail = Published::resume(own.split_off_front(LINE_WORDS));
        Acknowledger {
            head: Observed::new(peer.part(0, LINE_WORDS), tail.now()),
            tail,
            acknowledged: own,
            queue: peer.part(LINE_WORDS, shape.capacity() as usize),
            last: 0,
            shape,
        }
    }

    /// Returns the queue pair of the event taken last (0 before the first) if events wait; `None`
    /// if none do. The next event often names the same pair, so the caller can prefetch that queue.
    /// Observes the peer's index, and fetches no event.
    ///
    /// # Errors
    /// [`Violation::Index`] when the peer's index is impossible.
    #[inline]
    pub fn expected(&mut self) -> Result<Option<u32>, Violation> {
        let tail = self.tail.now();
        if self.head.seen() != tail {
            return Ok(Some(self.last));
        }
        if self.head.observe(tail.wrapping_add(self.shape.capacity()))? == tail {
            return Ok(None);
        }
        self.tail.prefetch();
        self.acknowledged.prefetch_to_write(self.last as usize / 64);
        Ok(Some(self.last))
    }

    /// Takes at most `budget` events, acknowledges them, and passes the queue pairs to `found`. The
    /// caller **must check these queue pairs after this returns**: later news is a new event.
    /// Returns the number of events.
    ///
    /// # Errors
    /// [`Violation::Index`], or [`Violation::Event`] for a queue pair that does not exist.
    #[inline]
    pub fn take(&mut self, budget: u32, mut found: impl FnMut(u32)) -> Result<u32, Violation> {
        if self.expected()?.is_none() {
            return Ok(0);
        }
        let tail = self.tail.now();
        let count = self.head.seen().wrapping_sub(tail).min(budget);
        for step in 0..count {
            let slot = tail.wrapping_add(step) & (self.shape.capacity() - 1);
            let event = self.queue.fetch(slot as usize);
            if event >= u64::from(self.shape.queue_pairs) {
                return Err(Violation::Event);
            }
            let queue_pair = event as u32;
            self.last = queue_pair;
            // This side releases the slot before it acknowledges the event. A marker that sees the
            // acknowledgement sees the free slot too, and never reports a violation of a correct
            // peer.
            self.tail.advance(1);
            self.tail.publish();
            let word = queue_pair as usize / 64;
            let bits = self.acknowledged.get(word) ^ 1 << (queue_pair % 64);
            // SYNC: pairs with the observation in `Marker::mark`.
            self.acknowledged.publish(word, bits);
            found(queue_pair);
        }
        // SYNC: this side acknowledges before it checks the queues. Partner: `MarkerChecks`.
        full_fence(Barrier::AcknowledgerChecks);
        Ok(count)
    }

    /// Skips all events and acknowledges none, after the server died that took or marked them. See
    /// [`Marker::restart`].
    ///
    /// # Errors
    /// [`Violation::Index`] when the peer's index is impossible.
    pub fn restart(&mut self) -> Result<(), Violation> {
        let tail = self.tail.now();
        let head = self.head.observe(tail.wrapping_add(self.shape.capacity()))?;
        self.tail.advance(head.wrapping_sub(tail));
        self.tail.publish();
        Ok(())
    }

    /// `true` if there are no events left to take: a sleeper checks this last.
    ///
    /// # Errors
    /// [`Violation::Index`].
    #[inline]
    pub fn is_idle(&mut self) -> Result<bool, Violation> {
        let tail = self.tail.now();
        Ok(self.head.observe(tail.wrapping_add(self.shape.capacity()))? == tail)
    }
}
