//! A split virtqueue (virtio 1.2, 2.7), in memory that the driver and the device share.
//!
//! | area | has | written by |
//! |---|---|---|
//! | descriptors | addresses and lengths of buffers; `next` makes chains of them | the driver |
//! | available | flags, an index, and the heads of chains for the device | the driver |
//! | used | flags, an index, and the heads of chains that the device has completed, in any order | the device |
//!
//! The indices have 16 bits, and count on without end. The memory has words of 64 bits, and each area is written
//! or fetched by these. The device reaches all of the memory: the driver keeps what it wrote in private
//! memory, and never reads it back.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use towpath_memory::{Mapping, PAGE_BYTES, Region, own_words, peer_words};
use towpath_queue::{OwnWords, PeerWords};

use super::names::*;

/// The modern interface is in little-endian order (1.4).
const _: () = assert!(cfg!(target_endian = "little"));

/// The most entries that the driver uses.
pub(super) const MOST_ENTRIES: u16 = 256;
/// The areas of a ring, each in pages of its own, and the bytes of all.
const AVAILABLE_AT: usize = MOST_ENTRIES as usize * 16;
const USED_AT: usize = AVAILABLE_AT + PAGE_BYTES;
pub(super) const RING_BYTES: usize = USED_AT + PAGE_BYTES;
const _: () = assert!(6 + 8 * MOST_ENTRIES as usize <= PAGE_BYTES);
const _: () = assert!(AVAILABLE_AT.is_multiple_of(PAGE_BYTES));

const AVAILABLE_WORD: usize = AVAILABLE_AT / 8;
/// Places of the available area, in units of 16 bits: the flags, the index, and the first head.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const HEADS: usize = 2;

/// Bytes for the device: one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    /// `true` if the device writes the bytes, `false` if it reads them.
    pub(super) is_written: bool,
}

/// A chain that the device has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) head: u16,
    /// The bytes that the device says that it wrote.
    pub(super) len: u32,
}

/// The device named a chain that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongChain;

/// A ring, as the driver sees it.
#[derive(Debug)]
pub(super) struct Ring {
    words: OwnWords,
    used: PeerWords,
    entries: u16,
    /// The words of the available area.
    available: Vec<u64>,
    free: Vec<u16>,
    /// The descriptor that follows each one in its chain.
    next: Vec<u16>,
    /// The descriptors of the chain that each one is the head of; 0 if the device has no such chain.
    lengths: Vec<u16>,
    /// The chains that the device has.
    held: u16,
    /// The index of the next chain for the device; that which the device knows; that of the next one which it
    /// completes.
    index: u16,
    told: u16,
    taken: u16,
}

/// Returns the device addresses of the three areas of a ring that begins at an address.
pub(super) fn areas_at(address: u64) -> [u64; 3] {
    [address, address + AVAILABLE_AT as u64, address + USED_AT as u64]
}

impl Ring {
    /// Uses a region, which is a part of the mapping `whole`, as a ring. It has no entries yet.
    pub(super) fn new(memory: Region, whole: &Arc<Mapping>) -> Ring {
        let used = peer_words(whole).part((memory.offset() + USED_AT) / 8, PAGE_BYTES / 8);
        let most = MOST_ENTRIES as usize;
        Ring {
            words: own_words(memory),
            used,
            entries: 0,
            available: vec![0; PAGE_BYTES / 8],
            free: Vec::with_capacity(most),
            next: vec![0; most],
            lengths: vec![0; most],
            held: 0,
            index: 0,
            told: 0,
            taken: 0,
        }
    }

    /// Empties the ring, once the device has stopped, for so many entries: a power of two, at most
    /// [`MOST_ENTRIES`].
    pub(super) fn clear(&mut self, entries: u16) {
        self.entries = entries;
        self.free.clear();
        self.free.extend((0..entries).rev());
        self.lengths.fill(0);
        self.available.fill(0);
        (self.held, self.index, self.told, self.taken) = (0, 0, 0, 0);
        for word in 0..self.words.len() {
            self.words.store(word, 0);
        }
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the number of descriptors that the driver may fill.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Returns the heads of the chains that the device has, in ascending order.
    pub(super) fn heads(&self) -> impl Iterator<Item = u16> {
        (0..self.entries).filter(|head| self.lengths[usize::from(*head)] > 0)
    }

    /// Makes a chain. Returns its head; `None` if there is no room, or no piece. The device learns of it by
    /// [`Ring::publish`].
    pub(super) fn push(&mut self, pieces: &[Piece]) -> Option<u16> {
        if pieces.len() > self.free.len() {
            return None;
        }
        let mut following = None;
        for piece in pieces.iter().rev() {
            let at = self.free.pop()?;
            let written = if piece.is_written { DESCRIPTOR_WRITE } else { 0 };
            let flags = written | if following.is_some() { DESCRIPTOR_NEXT } else { 0 };
            let next = following.unwrap_or_default();
            let second = u64::from(piece.len) | u64::from(flags) << 32 | u64::from(next) << 48;
            self.words.store_pair(usize::from(at) * 2, [piece.address, second]);
            self.next[usize::from(at)] = next;
            following = Some(at);
        }
        let head = following?;
        self.lengths[usize::from(head)] = pieces.len() as u16;
        let place = HEADS + usize::from(self.index & (self.entries - 1));
        let (word, value) = self.changed(place, head);
        self.words.store(AVAILABLE_WORD + word, value);
        self.index = self.index.wrapping_add(1);
        self.held += 1;
        Some(head)
    }

    /// Changes 16 bits of the available area. Returns the word, which the caller stores, and its number.
    fn changed(&mut self, place: usize, value: u16) -> (usize, u64) {
        let (word, shift) = (place / 4, place % 4 * 16);
        let changed = &mut self.available[word];
        *changed = *changed & !(0xffff << shift) | u64::from(value) << shift;
        (word, *changed)
    }

    /// Lets the device see all new chains. Returns `true` if it wants to be told.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if std::mem::replace(&mut self.told, self.index) == self.index {
            return false;
        }
        let (word, value) = self.changed(INDEX, self.index);
        // SYNC: orders the stores of descriptors and heads before that of the index.
        self.words.publish(AVAILABLE_WORD + word, value);
        // SYNC: the device asks for notifications, and then looks at the index again. Pairs with its barrier.
        fence(Ordering::SeqCst);
        self.used.fetch(0) as u16 & NO_NOTIFICATION == 0
    }

    /// Asks the device for interrupts, or for none. It may interrupt all the same.
    pub(super) fn set_interrupts(&mut self, is_on: bool) {
        let (word, value) = self.changed(FLAGS, if is_on { 0 } else { NO_INTERRUPT });
        self.words.store(AVAILABLE_WORD + word, value);
    }

    /// Returns `true` if the device has completed a chain.
    #[inline]
    pub(super) fn has_used(&self) -> bool {
        self.used_index() != self.taken
    }

    fn used_index(&self) -> u16 {
        (self.used.observe(0) >> 16) as u16
    }

    /// Takes the oldest chain that the device has completed.
    pub(super) fn take(&mut self) -> Result<Option<Used>, WrongChain> {
        let waiting = self.used_index().wrapping_sub(self.taken);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.held {
            return Err(WrongChain);
        }
        // The entries begin in the middle of the first word: each has its head in one word, and its length in
        // the next.
        let at = usize::from(self.taken & (self.entries - 1));
        let (head, len) = (self.used.fetch(at) >> 32, self.used.fetch(at + 1) as u32);
        let is_held = |head: &u16| *head < self.entries && self.lengths[usize::from(*head)] > 0;
        let head = u16::try_from(head).ok().filter(is_held).ok_or(WrongChain)?;
        let mut at = head;
        for _ in 0..std::mem::take(&mut self.lengths[usize::from(head)]) {
            self.free.push(at);
            at = self.next[usize::from(at)];
        }
        self.taken = self.taken.wrapping_add(1);
        self.held -= 1;
        Ok(Some(Used { head, len }))
    }

    /// Returns the pieces of the chain that the device finds at an index, as the device does.
    #[cfg(test)]
    pub(super) fn seen_by_device(&self, index: u16) -> (u16, Vec<Piece>) {
        let place = HEADS + usize::from(index % self.entries);
        let head = (self.words.get(AVAILABLE_WORD + place / 4) >> (place % 4 * 16)) as u16;
        let (mut pieces, mut at) = (Vec::new(), usize::from(head));
        loop {
            let [address, second] = [self.words.get(at * 2), self.words.get(at * 2 + 1)];
            let flags = (second >> 32) as u16;
            let is_written = flags & DESCRIPTOR_WRITE != 0;
            pieces.push(Piece { address, len: second as u32, is_written });
            if flags & DESCRIPTOR_NEXT == 0 {
                return (head, pieces);
            }
            at = (second >> 48) as usize;
        }
    }

    /// Returns the index of the available area, and whether the device may interrupt.
    #[cfg(test)]
    pub(super) fn available_for_device(&self) -> (u16, bool) {
        let word = self.words.get(AVAILABLE_WORD);
        ((word >> 16) as u16, word as u16 & NO_INTERRUPT == 0)
    }

    /// Completes a chain, as the device does, at index `at`.
    #[cfg(test)]
    pub(super) fn use_chain(&mut self, at: u16, head: u32, len: u32) {
        let (first, entry) = (USED_AT / 8, usize::from(at % self.entries));
        let low = self.words.get(first + entry) & 0xffff_ffff;
        self.words.store(first + entry, low | u64::from(head) << 32);
        let high = self.words.get(first + entry + 1) >> 32 << 32;
        self.words.store(first + entry + 1, high | u64::from(len));
        let rest = self.words.get(first) & !0xffff_0000;
        self.words.publish(first, rest | u64::from(at.wrapping_add(1)) << 16);
    }

    /// Sets the flags of the used area, as the device does.
    #[cfg(test)]
    pub(super) fn set_used_flags(&mut self, flags: u16) {
        let word = self.words.get(USED_AT / 8) & !0xffff;
        self.words.store(USED_AT / 8, word | u64::from(flags));
    }
}

/// Makes a ring in memory of its own.
#[cfg(test)]
pub(super) fn ring(entries: u16) -> Ring {
    let region = Region::private(RING_BYTES).unwrap();
    let whole = region.mapping().clone();
    let mut ring = Ring::new(region, &whole);
    ring.clear(entries);
    ring
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: u64, len: u32, is_written: bool) -> Piece {
        Piece { address, len, is_written }
    }

    #[test]
    fn chains_reach_the_device_when_they_are_published() {
        let mut ring = super::ring(8);
        let pieces = [piece(0x1000, 12, false), piece(0x2000, 60, false), piece(0x3000, 1, true)];
        let head = ring.push(&pieces).unwrap();
        assert_eq!((ring.room(), ring.available_for_device().0), (5, 0));
        assert!(ring.publish() && !ring.publish());
        assert_eq!(ring.available_for_device(), (1, true));
        assert_eq!(ring.seen_by_device(0), (head, pieces.to_vec()));
        assert!(!ring.has_used() && ring.take() == Ok(None));
        ring.use_chain(0, head.into(), 61);
        assert_eq!(ring.take(), Ok(Some(Used { head, len: 61 })));
        assert_eq!((ring.room(), ring.take()), (8, Ok(None)));
    }

    #[test]
    fn indices_go_round_and_chains_come_back_in_any_order() {
        let mut ring = super::ring(4);
        for round in 0..40_000u16 {
            let at = round.wrapping_mul(2);
            let first = ring.push(&[piece(1, u32::from(round), true)]).unwrap();
            let second = ring.push(&[piece(2, 2, true), piece(3, 3, true)]).unwrap();
            assert_eq!(ring.push(&[piece(0, 1, true); 2]), None, "no room");
            assert!(ring.publish());
            assert_eq!(ring.available_for_device().0, at.wrapping_add(2));
            assert_eq!(ring.seen_by_device(at).0, first);
            assert_eq!(ring.heads().count(), 2);
            ring.use_chain(at, second.into(), 5);
            ring.use_chain(at.wrapping_add(1), first.into(), 6);
            assert_eq!(ring.take(), Ok(Some(Used { head: second, len: 5 })));
            assert_eq!(ring.take(), Ok(Some(Used { head: first, len: 6 })));
            assert_eq!(ring.take(), Ok(None));
        }
    }

    #[test]
    fn the_device_is_not_trusted() {
        for wrong in [1, 3, 4, 0xffff, 0x1_0000, u32::MAX] {
            let mut ring = super::ring(4);
            assert_eq!(ring.push(&[piece(1, 1, true)]), Some(0));
            ring.use_chain(0, wrong, 1);
            assert_eq!(ring.take(), Err(WrongChain), "{wrong}");
        }
        // The index is ahead of all chains, and a chain comes twice.
        let mut ring = super::ring(4);
        assert_eq!(ring.push(&[piece(1, 1, true)]), Some(0));
        ring.use_chain(1, 0, 1);
        assert_eq!(ring.take(), Err(WrongChain));
        ring.clear(4);
        assert_eq!(
            (ring.push(&[piece(1, 1, true)]), ring.push(&[piece(1, 1, true)])),
            (Some(0), Some(1))
        );
        ring.use_chain(0, 0, 1);
        ring.use_chain(1, 0, 1);
        assert!(ring.take().is_ok_and(|used| used.is_some()));
        assert_eq!(ring.take(), Err(WrongChain));
    }

    #[test]
    fn the_flags_are_beside_the_index() {
        let mut ring = super::ring(8);
        ring.set_interrupts(false);
        ring.push(&[piece(1, 1, true)]).unwrap();
        ring.set_used_flags(NO_NOTIFICATION);
        assert!(!ring.publish(), "the device polls");
        assert_eq!(ring.available_for_device(), (1, false));
        ring.set_interrupts(true);
        assert_eq!(ring.available_for_device(), (1, true));
    }
}
