//! Out-of-band messages: a queue of small messages of a fixed size for each endpoint.
//!
//! The server writes the messages and their index, the application its own index (Riddoch and Pope's
//! out-of-band queue). The server discards a message for which a queue has no room: a full queue delays no
//! other work. The server keeps the state of the endpoint's peer in a word beside the queue,
//! which a full queue cannot lose.
//!
//! | memory | line 0 | then |
//! |---|---|---|
//! | server pages | head, state of the peer, counters | messages, a line each |
//! | application pages | tail | |

use alloc::boxed::Box;

use crate::Violation;
use crate::spsc::{Observed, Published};
use crate::word::{LINE_WORDS, OwnWords, PeerWords};

/// Words of a message.
pub const MESSAGE_WORDS: usize = LINE_WORDS;
/// The range of the slots of a queue, which are a power of two.
pub const SLOTS: core::ops::RangeInclusive<u32> = 8..=256;

const STATE_WORD: usize = 1;
/// The first of the words of a queue's line with counters.
pub const COUNTERS_WORD: usize = 2;
/// The number of such words.
pub const COUNTER_WORDS: usize = LINE_WORDS - COUNTERS_WORD;

/// The word of a message whose upper half names the sender, so that a queue can tell the messages of
/// each.
pub const SENDER_WORD: usize = 3;

/// The words of a message.
pub type Message = [u64; MESSAGE_WORDS];

/// The size of a queue of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OobShape {
    slots: u32,
}

impl OobShape {
    /// Returns the shape of a queue with this number of slots; `None` unless it is a power of two in
    /// [`SLOTS`].
    #[must_use]
    pub const fn new(slots: u32) -> Option<OobShape> {
        if slots.is_power_of_two() && slots >= *SLOTS.start() && slots <= *SLOTS.end() {
            Some(OobShape { slots })
        } else {
            None
        }
    }

    /// Returns the number of messages.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Returns how many words the server writes.
    #[must_use]
    pub const fn server_words(self) -> usize {
        LINE_WORDS + self.slots as usize * MESSAGE_WORDS
    }

    /// Returns how many words the application writes.
    #[must_use]
    pub const fn application_words(self) -> usize {
        LINE_WORDS
    }
}

/// The server's side of a queue.
#[derive(Debug)]
pub struct OobProducer {
    head: Published,
    messages: OwnWords,
    tail: Observed,
    /// The sender of each message, in private memory.
    senders: Box<[u32]>,
    shape: OobShape,
}

impl OobProducer {
    /// Creates the server's side, which resumes at its own index. Until it has called
    /// [`OobProducer::unread`], it has no room.
    #[must_use]
    pub fn new(shape: OobShape, mut own: OwnWords, peer: PeerWords) -> OobProducer {
        let head = Published::resume(own.split_off_front(LINE_WORDS));
        // Any number of the messages in the queue may be unread.
        let tail = Observed::new(peer, head.now().wrapping_sub(shape.slots));
        let sender = |slot: u32| sender(own.get(slot as usize * MESSAGE_WORDS + SENDER_WORD));
        let senders = (0..shape.slots).map(sender).collect();
        OobProducer { head, messages: own, tail, senders, shape }
    }

    /// Returns the number of unread messages.
    ///
    /// # Errors
    /// [`Violation::Index`] when the other side's index is impossible.
    #[inline]
    pub fn unread(&mut self) -> Result<u32, Violation> {
        let head = self.head.now();
        Ok(head.wrapping_sub(self.tail.observe(head)?))
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.shape.slots
    }

    /// Returns the index of the next message.
    #[inline]
    #[must_use]
    pub fn next_index(&self) -> u32 {
        self.head.now()
    }

    /// Puts a message into the queue, and publishes it. Returns `false`, and changes nothing, if
    /// there is no room, as far as the last call of [`OobProducer::unread`] has seen.
    #[inline]
    pub fn push(&mut self, message: &Message) -> bool {
        let head = self.head.now();
        if head.wrapping_sub(self.tail.seen()) >= self.shape.slots {
            return false;
        }
        let first = self.slot(head);
        for (index, word) in (first..).zip(message) {
            self.messages.store(index, *word);
        }
        self.senders[first / MESSAGE_WORDS] = sender(message[SENDER_WORD]);
        self.head.advance(1);
        self.head.publish();
        true
    }

    /// Returns how many unread messages are of a sender, as far as the last call of
    /// [`OobProducer::unread`] has seen.
    #[must_use]
    pub fn unread_of(&self, sender: u32) -> u32 {
        let (slots, tail) = (self.senders.len(), self.tail.seen() as usize);
        let count = self.head.now().wrapping_sub(self.tail.seen()) as usize;
        let first = tail & (slots - 1);
        let end = (first + count).min(slots);
        let (before, behind) = (&self.senders[first..end], &self.senders[..count - (end - first)]);
        let theirs = before.iter().chain(behind).filter(|one| **one == sender);
        theirs.count() as u32
    }

    /// Returns the state of the peer, as the server stored it last.
    #[must_use]
    pub fn state(&mut self) -> u64 {
        self.head.line().get(STATE_WORD)
    }

    /// Publishes the state of the peer.
    pub fn set_state(&mut self, state: u64) {
        self.head.line().publish(STATE_WORD, state);
    }

    /// Adds to a counter.
    ///
    /// # Panics
    /// when there is no such counter: a mistake in the layout, which no peer can cause.
    pub fn add(&mut self, counter: usize, by: u64) {
        assert!(counter < COUNTER_WORDS, "there is no counter {counter}");
        self.head.line().add_all(COUNTERS_WORD + counter, [by]);
    }

    /// Sets all counters and the state to 0: another endpoint has the queue now.
    pub fn reset(&mut self) {
        for word in STATE_WORD..LINE_WORDS {
            self.head.line().store(word, 0);
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        (index & (self.shape.slots - 1)) as usize * MESSAGE_WORDS
    }
}

/// Returns the sender that a message names.
fn sender(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The application's side of a queue.
#[derive(Debug)]
pub struct OobConsumer {
    tail: Published,
    head: Observed,
    line: PeerWords,
    messages: PeerWords,
    shape: OobShape,
}

impl OobConsumer {
    /// Creates the application's side of new memory.
    #[must_use]
    pub fn new(shape: OobShape, own: OwnWords, peer: &PeerWords) -> OobConsumer {
        let tail = Published::resume(own);
        let line = peer.part(0, LINE_WORDS);
        OobConsumer {
            head: Observed::new(line.clone(), tail.now()),
            tail,
            messages: peer.part(LINE_WORDS, shape.slots as usize * MESSAGE_WORDS),
            line,
            shape,
        }
    }

    /// Returns the number of messages that wait.
    ///
    /// # Errors
    /// [`Violation::Index`] when the server's index is impossible.
    #[inline]
    pub fn waiting(&mut self) -> Result<u32, Violation> {
        let tail = self.tail.now();
        Ok(self.head.observe(tail.wrapping_add(self.shape.slots))?.wrapping_sub(tail))
    }

    /// Takes the oldest message, and gives its room back; `None` if there is none.
    ///
    /// # Errors
    /// [`Violation::Index`] when the other side's index is impossible.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Message>, Violation> {
        if self.waiting()? == 0 {
            return Ok(None);
        }
        let first = (self.tail.now() & (self.shape.slots - 1)) as usize * MESSAGE_WORDS;
        let mut message = [0; MESSAGE_WORDS];
        for (index, word) in (first..).zip(&mut message) {
            *word = self.messages.fetch(index);
        }
        self.tail.advance(1);
        // SYNC: after the message was read. Partner: `OobProducer::unread`.
        self.tail.publish();
        Ok(Some(message))
    }

    /// Discards all messages: they are for an endpoint that is closed.
    ///
    /// # Errors
    /// [`Violation::Index`] when the other side's index is impossible.
    pub fn discard(&mut self) -> Result<(), Violation> {
        let count = self.waiting()?;
        self.tail.advance(count);
        self.tail.publish();
        Ok(())
    }

    /// Returns the state of the peer.
    #[inline]
    #[must_use]
    pub fn state(&self) -> u64 {
        // SYNC: pairs with `OobProducer::set_state`.
        self.line.observe(STATE_WORD)
    }

    /// Returns a counter.
    ///
    /// # Panics
    /// when there is no such counter: a mistake in the layout, which no peer can cause.
    #[must_use]
    pub fn counter(&self, counter: usize) -> u64 {
        assert!(counter < COUNTER_WORDS, "there is no counter {counter}");
        self.line.fetch(COUNTERS_WORD + counter)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::test_memory::Memory;
    use core::sync::atomic::Ordering;

    struct Both {
        shape: OobShape,
        server: Memory,
        application: Memory,
    }

    impl Both {
        fn new() -> Both {
            let shape = OobShape::new(8).unwrap();
            let (server, application) = (shape.server_words(), shape.application_words());
            Both { shape, server: Memory::new(server), application: Memory::new(application) }
        }

        fn producer(&self) -> OobProducer {
            let mut producer =
                OobProducer::new(self.shape, self.server.own(), self.application.peer());
            assert!(!producer.push(&message(99)), "it knows of no room yet");
            let _ = producer.unread();
            producer
        }

        fn consumer(&self) -> OobConsumer {
            OobConsumer::new(self.shape, self.application.own(), &self.server.peer())
        }
    }

    fn message(number: u64) -> Message {
        core::array::from_fn(|word| number << 8 | word as u64 | (number % 3) << 32)
    }

    #[test]
    fn messages_come_in_order_and_a_full_queue_takes_no_more() {
        let both = Both::new();
        let (mut producer, mut consumer) = (both.producer(), both.consumer());
        assert_eq!(consumer.take(), Ok(None));
        for round in 0..5 {
            for number in 0..8 {
                assert!(producer.push(&message(round * 8 + number)));
            }
            assert!(!producer.push(&message(99)));
            assert_eq!(producer.unread(), Ok(8));
            let theirs = |number| producer.unread_of((round * 8 + number) as u32 % 3);
            assert_eq!((0..3).map(theirs).sum::<u32>(), 8);
            assert_eq!(producer.unread_of(3), 0);
            for number in 0..8 {
                assert_eq!(consumer.take(), Ok(Some(message(round * 8 + number))));
            }
            assert!(!producer.push(&message(99)), "it has not seen the room");
            assert_eq!(producer.unread(), Ok(0));
        }
        assert_eq!(consumer.take(), Ok(None));
    }

    #[test]
    fn a_successor_goes_on_with_what_is_unread() {
        let both = Both::new();
        let mut consumer = both.consumer();
        for start in [0_u64, u64::from(u32::MAX) - 3] {
            both.server.word(0).store(start, Ordering::Relaxed);
            both.application.word(0).store(start, Ordering::Relaxed);
            let mut producer = both.producer();
            (0..5).for_each(|number| assert!(producer.push(&message(number))));
            consumer = both.consumer();
            assert_eq!(consumer.take(), Ok(Some(message(0))));
            let mut next = both.producer();
            assert_eq!((next.unread(), next.next_index()), (Ok(4), (start as u32).wrapping_add(5)));
            (5..9).for_each(|number| assert!(next.push(&message(number))));
            assert!(!next.push(&message(99)));
            (1..9).for_each(|number| assert_eq!(consumer.take(), Ok(Some(message(number)))));
        }
        assert_eq!(consumer.waiting(), Ok(0));
    }

    #[test]
    fn impossible_indices_are_violations() {
        let both = Both::new();
        let mut producer = both.producer();
        assert!(producer.push(&message(1)));
        for wrong in [2, 9, u64::from(u32::MAX) - 7, 1 << 32] {
            both.application.word(0).store(wrong, Ordering::Relaxed);
            assert_eq!(producer.unread(), Err(Violation::Index), "{wrong}");
            assert_eq!(both.producer().unread(), Err(Violation::Index), "{wrong}");
        }
        both.application.word(0).store(1, Ordering::Relaxed);
        assert_eq!(producer.unread(), Ok(0));
        both.application.word(0).store(0, Ordering::Relaxed);
        assert_eq!(producer.unread(), Err(Violation::Index), "backwards");
        let mut consumer = both.consumer();
        both.server.word(0).store(9, Ordering::Relaxed);
        assert_eq!(consumer.take(), Err(Violation::Index));
    }

    #[test]
    fn state_and_counters_stand_beside_the_queue() {
        let both = Both::new();
        let (mut producer, mut consumer) = (both.producer(), both.consumer());
        producer.set_state(7);
        producer.add(0, 1);
        producer.add(COUNTER_WORDS - 1, 2);
        producer.add(0, 3);
        assert!(producer.push(&message(1)));
        assert_eq!((consumer.state(), producer.state()), (7, 7));
        assert_eq!((consumer.counter(0), consumer.counter(1)), (4, 0));
        assert_eq!(consumer.counter(COUNTER_WORDS - 1), 2);
        producer.reset();
        assert_eq!((consumer.state(), consumer.counter(0)), (0, 0));
        assert_eq!(consumer.waiting(), Ok(1));
        consumer.discard().unwrap();
        assert_eq!((consumer.take(), producer.unread()), (Ok(None), Ok(0)));
    }

    #[test]
    fn shapes_are_powers_of_two_within_limits() {
        for slots in [0, 1, 4, 9, 24, 512, u32::MAX] {
            assert_eq!(OobShape::new(slots), None, "{slots}");
        }
        for slots in [8, 64, 256] {
            assert_eq!(OobShape::new(slots).map(OobShape::slots), Some(slots));
        }
    }
}
