//! Rings of messages: two applications send to each other through memory of the receiver, and no
//! server moves a byte.
//!
//! Each side has memory that the other one alone writes: messages for it, how much the other side
//! consumed of its own messages, and how much room the other side waits for. So every word has one
//! writer, and no side reads what it wrote itself.
//!
//! ```text
//! byte    0   consumed: the position up to which the writer consumed the reader's messages
//!        64   sent: a position up to which the writer published, a hint for prefetching, which it
//!             stores with each batch of several messages
//!       128   wanted: the consumed position for which the writer waits, or 0
//!       256   the messages, in a ring of a power of two bytes
//!
//! message   8 bytes header, then its bytes, up to a multiple of 8
//! header    bits 0..32 length in bytes   32..64 kind: 0 not there yet, 1 message, 2 end
//! ```
//! Positions count bytes and never wrap. A message of up to 56 bytes lies in one or two cache lines
//! with its header. The sender publishes messages in batches: it stores the header of a batch's
//! first message last. So a reader that is faster than the sender takes a line from it once per
//! batch, and not with each message. Before that, the sender writes a zero behind the batch, where
//! the next header will be. So the reader never takes old bytes for a header.
//!
//! The peer may write anything at any time. An impossible header or consumed position is a
//! [`Violation`], after which the rings are of no more use. Wrong bytes are wrong messages, and a
//! wrong wanted position wakes the peer too often, or never.

mod shape;

use crate::Violation;
use crate::tripwire::{Fenced, fence};

pub use shape::RingShape;
pub(crate) use shape::{CONSUMED, DATA, WANTED};
use shape::{FRAMING_BYTES, HEADER_BYTES, SENT};

/// Memory that the peer writes.
pub trait NearMemory {
    /// Returns the aligned word at a byte offset, with an acquire load. An offset outside of the
    /// memory is a mistake of the caller, which no peer can cause; it yields 0.
    fn load(&self, offset: usize) -> u64;

    /// Copies bytes out, in any order. Returns `true` if all of them lie inside.
    fn read(&self, offset: usize, to: &mut [u8]) -> bool;

    /// Prefetches lines that this side reads soon.
    fn prefetch(&self, offset: usize, len: usize);
}

/// The peer's memory, which this side writes.
pub trait FarMemory {
    /// Stores an aligned word, with a release store.
    fn store(&mut self, offset: usize, value: u64);

    /// Copies bytes in, in any order. Returns `true` if all of them lie inside.
    fn write(&mut self, offset: usize, from: &[u8]) -> bool;

    /// Prefetches lines that this side writes soon.
    fn prefetch(&self, offset: usize, len: usize);
}

const LINE_BYTES: u64 = 64;
const LEN: u64 = 0xffff_ffff;
pub(crate) const MESSAGE: u64 = 1;
pub(crate) const END: u64 = 2;

/// A sender prefetches this many bytes ahead; a receiver up to twice as many, at most to the
/// position that was published.
const AHEAD_BYTES: u64 = 1024;

/// Returns how many bytes of a ring a message of `len` bytes takes with its header.
#[inline]
fn framed_bytes(len: u64) -> u64 {
    HEADER_BYTES + len.next_multiple_of(HEADER_BYTES)
}

/// What a side finds next in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A message of so many bytes.
    Message(usize),
    /// The peer sends no more.
    End,
    /// Nothing yet.
    Nothing,
}

/// One side of a pair of rings. Aligned, so that two sides in one process have no line in common.
#[derive(Debug)]
#[repr(align(128))]
pub struct RingEnd<N, F> {
    near: N,
    far: F,
    near_shape: RingShape,
    far_shape: RingShape,
    /// The position behind the last message that this side appended.
    sent: u64,
    /// The position up to which the peer sees them.
    published: u64,
    /// The header of the first message that the peer does not see yet.
    first_header: u64,
    /// The position up to which the peer consumed this side's messages, as last read.
    peer_consumed: u64,
    /// The position up to which this side prefetched lines that it will write.
    prefetched_far: u64,
    /// The position up to which this side prefetched lines that it will read.
    prefetched_near: u64,
    /// The position at which this side reads how much more the peer published.
    prefetch_next_at: u64,
    /// The consumed position that this side needs for the message that had no room; 0: none.
    wanted: u64,
    /// The wanted position that the peer's memory holds.
    stored_wanted: u64,
    /// The position behind the last message that this side consumed.
    consumed: u64,
    /// The consumed position that the peer's memory holds.
    stored_consumed: u64,
    /// The wanted position of the peer for which this side woke it last.
    woken_for: u64,
    /// `true` if this side published messages since the last flush.
    check_for_messages: bool,
    /// `true` if this side stored its consumed position since the last flush.
    check_for_room: bool,
    /// `true` if this side stores nothing any more.
    is_mute: bool,
}

impl<N: NearMemory, F: FarMemory> RingEnd<N, F> {
    /// Creates a side. The words of [`RingShape::zeros`] are zero in both memories when their
    /// writers begin.
    #[must_use]
    pub fn new((near, near_shape): (N, RingShape), (far, far_shape): (F, RingShape)) -> Self {
        RingEnd {
            near,
            far,
            near_shape,
            far_shape,
            sent: 0,
            published: 0,
            first_header: 0,
            peer_consumed: 0,
            prefetched_far: 0,
            prefetched_near: 0,
            prefetch_next_at: AHEAD_BYTES,
            wanted: 0,
            stored_wanted: 0,
            consumed: 0,
            stored_consumed: 0,
            woken_for: 0,
            check_for_messages: false,
            check_for_room: false,
            is_mute: false,
        }
    }

    /// Returns the length in bytes of the longest message that this side can send.
    #[inline]
    #[must_use]
    pub fn max_message(&self) -> usize {
        self.far_shape.max_message()
    }

    /// Returns `true` if a message of `len` bytes has room. Otherwise publishes the batch, and waits
    /// for the room from now on ([`RingEnd::has_wanted_room`]), unless the message is too long for the
    /// ring.
    ///
    /// # Errors
    /// The peer's consumed position is behind an earlier one, or beyond what this side sent.
    #[inline]
    pub fn find_room(&mut self, len: usize) -> Result<bool, Violation> {
        if len > self.max_message() {
            return Ok(false);
        }
        // The message and the zero behind it must fit.
        let bytes = framed_bytes(len as u64) + HEADER_BYTES;
        if bytes <= self.far_shape.bytes - (self.sent - self.peer_consumed) {
            self.wanted = 0;
            return Ok(true);
        }
        self.update_room(bytes)
    }

    /// Reads how much the peer consumed, and decides as [`RingEnd::find_room`] does.
    #[inline(never)]
    fn update_room(&mut self, bytes: u64) -> Result<bool, Violation> {
        let needed = (self.sent + bytes).saturating_sub(self.far_shape.bytes);
        let has_room = self.read_consumed()? >= needed;
        self.wanted = if has_room { 0 } else { needed };
        if !has_room {
            self.publish();
        }
        Ok(has_room)
    }

    /// Returns the length in bytes of the longest message that has room now; `None` if not even an
    /// empty one has.
    ///
    /// # Errors
    /// As [`RingEnd::find_room`].
    pub fn room(&mut self) -> Result<Option<usize>, Violation> {
        let free = self.far_shape.bytes - (self.sent - self.read_consumed()?);
        Ok(free.checked_sub(FRAMING_BYTES).map(|room| room as usize))
    }

    fn read_consumed(&mut self) -> Result<u64, Violation> {
        // SYNC: pairs with the store in `store_consumed`: the peer has read what is overwritten now.
        let consumed = self.near.load(CONSUMED);
        if consumed < self.peer_consumed || consumed > self.sent {
            return Err(Violation::Index);
        }
        self.peer_consumed = consumed;
        Ok(consumed)
    }

    /// Writes bytes of the next message, from its byte `at` on, for which [`RingEnd::find_room`]
    /// returned `true`.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let offset = self.far_shape.offset(self.sent + HEADER_BYTES + at as u64);
        let inside = match bytes.split_at_checked(self.far_shape.bytes_to_end(offset)) {
            None => self.far.write(offset, bytes),
            Some((first, rest)) => self.far.write(offset, first) && self.far.write(DATA, rest),
        };
        debug_assert!(inside);
    }

    /// Appends the next message to the batch. [`RingEnd::find_room`] returned `true` for it, and
    /// [`RingEnd::write`] wrote its bytes. The peer sees it after [`RingEnd::publish`], or earlier.
    #[inline]
    pub fn append(&mut self, len: usize) {
        self.append_kind(len as u64, MESSAGE);
    }

    /// Appends the end of the messages to the batch. [`RingEnd::find_room`] returned `true` for an
    /// empty message.
    pub fn append_end(&mut self) {
        self.append_kind(0, END);
    }

    /// Shows the peer all messages that this side appended.
    #[inline]
    pub fn publish(&mut self) {
        if self.published == self.sent || self.is_mute {
            return;
        }
        self.far.store(self.far_shape.offset(self.sent), 0);
        if self.sent - self.published > framed_bytes(self.first_header & LEN) {
            self.far.store(SENT, self.sent);
        }
        // SYNC: pairs with the load in `peek`: behind all messages of the batch, and the zero behind
        // them.
        self.far.store(self.far_shape.offset(self.published), self.first_header);
        self.published = self.sent;
        self.check_for_messages = true;
    }

    #[inline]
    fn append_kind(&mut self, len: u64, kind: u64) {
        let next = self.sent + framed_bytes(len);
        let header = len | kind << 32;
        if self.published == self.sent {
            self.first_header = header;
        } else {
            // `publish` orders this store.
            self.far.store(self.far_shape.offset(self.sent), header);
        }
        self.sent = next;
        if next - self.published >= self.far_shape.batch_bytes() {
            self.publish();
        }
        // The peer's core has the lines: a store that waits for a line delays all later ones.
        self.prefetched_far = self.prefetched_far.max(next & !(LINE_BYTES - 1));
        while self.prefetched_far < next + AHEAD_BYTES {
            self.far.prefetch(self.far_shape.offset(self.prefetched_far), LINE_BYTES as usize);
            self.prefetched_far += LINE_BYTES;
        }
    }

    /// Prefetches what the peer has published.
    #[inline]
    fn prefetch_sent(&mut self) {
        if self.consumed < self.prefetch_next_at {
            return;
        }
        self.prefetch_next_at = self.consumed + AHEAD_BYTES;
        let sent = self.near.load(SENT);
        let start = self.prefetched_near.max(self.consumed);
        // The peer can write any position, so this side prefetches a limited number of bytes.
        let end = sent.min(self.consumed + 2 * AHEAD_BYTES);
        self.prefetched_near = start & !(LINE_BYTES - 1);
        while self.prefetched_near < end {
            self.near.prefetch(self.near_shape.offset(self.prefetched_near), LINE_BYTES as usize);
            self.prefetched_near += LINE_BYTES;
        }
    }

    /// Returns what is next. If there is nothing, stores for the peer how much this side consumed.
    ///
    /// # Errors
    /// The peer wrote an impossible header.
    #[inline]
    pub fn peek(&mut self) -> Result<Next, Violation> {
        // SYNC: pairs with the store of a batch's first header in `publish`.
        let header = self.near.load(self.near_shape.offset(self.consumed));
        let (len, kind) = (header & LEN, header >> 32);
        match kind {
            MESSAGE if len as usize <= self.near_shape.max_message() => {
                self.prefetch_sent();
                Ok(Next::Message(len as usize))
            }
            END if len == 0 => Ok(Next::End),
            0 if len == 0 => {
                self.store_consumed();
                Ok(Next::Nothing)
            }
            0..=END => Err(Violation::Range),
            _ => Err(Violation::Flags),
        }
    }

    /// Copies bytes of the next message, from its byte `at` on. The peer may have changed them, and
    /// may change them meanwhile.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let offset = self.near_shape.offset(self.consumed + HEADER_BYTES + at as u64);
        let first = self.near_shape.bytes_to_end(offset);
        let inside = if first >= to.len() {
            self.near.read(offset, to)
        } else {
            let (first, rest) = to.split_at_mut(first);
            self.near.read(offset, first) && self.near.read(DATA, rest)
        };
        debug_assert!(inside);
    }

    /// Consumes the next message, of `len` bytes as [`RingEnd::peek`] returned it. The peer learns
    /// of it once an eighth of the ring is consumed, and when there is nothing more.
    #[inline]
    pub fn consume(&mut self, len: usize) {
        self.consumed += framed_bytes(len as u64);
        if self.consumed - self.stored_consumed >= self.near_shape.bytes / 8 {
            self.store_consumed();
        }
    }

    #[inline]
    fn store_consumed(&mut self) {
        if self.stored_consumed != self.consumed && !self.is_mute {
            // SYNC: pairs with the load in `read_consumed`.
            self.far.store(CONSUMED, self.consumed);
            self.stored_consumed = self.consumed;
            self.check_for_room = true;
        }
    }

    /// Publishes the batch. Returns a proof of a barrier if the peer may wait for what this side did
    /// since the last call: messages, or the room that the peer wants. The caller then reads the
    /// peer's armed word.
    #[inline]
    pub fn flush(&mut self) -> Option<Fenced> {
        self.publish();
        self.store_consumed();
        if !self.check_for_messages && !self.check_for_room {
            return None;
        }
        let fenced = fence();
        let mut must = core::mem::take(&mut self.check_for_messages);
        if core::mem::take(&mut self.check_for_room) {
            let wanted = self.near.load(WANTED);
            if wanted != 0 && wanted != self.woken_for && wanted <= self.stored_consumed {
                self.woken_for = wanted;
                must = true;
            }
        }
        must.then_some(fenced)
    }

    /// Stores for the peer what this side consumed, and the room that it wants. The caller then arms
    /// its tripwire.
    pub fn prepare_sleep(&mut self) {
        self.store_consumed();
        if self.stored_wanted != self.wanted && !self.is_mute {
            self.far.store(WANTED, self.wanted);
            self.stored_wanted = self.wanted;
        }
    }

    /// Returns `true` if something is next, or an impossible header.
    #[inline]
    #[must_use]
    pub fn has_message(&self) -> bool {
        self.near.load(self.near_shape.offset(self.consumed)) != 0
    }

    /// Returns `true` once if there is room for the message that had none.
    ///
    /// # Errors
    /// As [`RingEnd::find_room`].
    #[inline]
    pub fn has_wanted_room(&mut self) -> Result<bool, Violation> {
        let has_room = self.wanted != 0 && self.read_consumed()? >= self.wanted;
        if has_room {
            self.wanted = 0;
        }
        Ok(has_room)
    }

    /// Ends all stores into the peer's memory: it may be in another use.
    pub fn mute(&mut self) {
        self.is_mute = true;
    }
}
