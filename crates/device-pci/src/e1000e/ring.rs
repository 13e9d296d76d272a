//! A ring of descriptors, in memory that the driver and the device share.
//!
//! The driver fills descriptors and then writes the ring's tail register; the device fetches them, and
//! writes each again when it is done with it. Although an IOMMU confines the device, the driver does not
//! trust its words: it fetches each once, and checks each length.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use towpath_memory::{Mapping, Region, own_words, peer_words};
use towpath_queue::{OwnWords, PeerWords};

use super::descriptor::{DESCRIPTOR_BYTES, Words};

/// The words of a descriptor.
const WORDS: usize = DESCRIPTOR_BYTES / 8;

/// A ring, as the driver sees it. The indices wrap around.
#[derive(Debug)]
pub(super) struct Ring {
    driver: OwnWords,
    device: PeerWords,
    entries: u32,
    /// The next descriptor that the driver fills.
    next: u32,
    /// The oldest descriptor that the device has not returned.
    oldest: u32,
    /// The tail that the device was told last.
    told: u32,
}

impl Ring {
    /// Uses a region, which is a part of the mapping `whole`, as a ring.
    pub(super) fn new(memory: Region, whole: &Arc<Mapping>) -> Ring {
        let first = memory.offset() / 8;
        let words = memory.len() / 8;
        let device = peer_words(whole).part(first, words);
        let entries = (words / WORDS) as u32;
        Ring { driver: own_words(memory), device, entries, next: 0, oldest: 0, told: 0 }
    }

    /// Returns the number of descriptors that the driver may fill. One stays empty, because equal indices
    /// mean an empty ring.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.entries - 1 - self.held()
    }

    /// Returns the number of descriptors that the device has.
    #[inline]
    pub(super) fn held(&self) -> u32 {
        let held = self.next + self.entries - self.oldest;
        if held >= self.entries { held - self.entries } else { held }
    }

    /// Returns the index of the next descriptor that the driver fills: the value of the tail register.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.next
    }

    /// Returns the index of the oldest descriptor that the device has.
    #[inline]
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Returns the indices of the descriptors that the device has, the oldest first.
    pub(super) fn held_indices(&self) -> impl Iterator<Item = u32> + use<> {
        let (entries, oldest) = (self.entries, self.oldest);
        (0..self.held()).map(move |ahead| (oldest + ahead) % entries)
    }

    /// Returns the index `count` descriptors after `index`; `count` is less than the ring's size.
    #[inline]
    pub(super) fn after(&self, index: u32, count: u32) -> u32 {
        let sum = index + count;
        if sum >= self.entries { sum - self.entries } else { sum }
    }

    /// Fills the next descriptor. The caller knows that there is room.
    #[inline]
    pub(super) fn push(&mut self, words: Words) {
        self.driver.store_pair(self.next as usize * WORDS, words);
        self.next = self.after(self.next, 1);
    }

    /// Takes back the descriptors from this index on, of which the device does not know.
    #[inline]
    pub(super) fn rewind(&mut self, to: u32) {
        self.next = to;
    }

    /// Returns the number of descriptors that the driver has filled since it last told the device.
    #[inline]
    pub(super) fn untold(&self) -> u32 {
        let untold = self.next + self.entries - self.told;
        if untold >= self.entries { untold - self.entries } else { untold }
    }

    /// Returns the tail if the device does not know it, for its register. Orders all stores of descriptors before
    /// the write of the register. Pairs with the device's fetch of descriptors after that write.
    #[inline]
    pub(super) fn untold_tail(&mut self) -> Option<u32> {
        if std::mem::replace(&mut self.told, self.next) == self.next {
            return None;
        }
        fence(Ordering::Release);
        Some(self.next)
    }

    /// Fetches a descriptor: first the word that the device writes last, then the other.
    #[inline]
    pub(super) fn fetch(&self, index: u32) -> Words {
        let second = self.device.observe(index as usize * WORDS + 1);
        [self.device.fetch(index as usize * WORDS), second]
    }

    /// Fetches the word of a descriptor that the device writes last.
    #[inline]
    pub(super) fn fetch_last(&self, index: u32) -> u64 {
        self.device.observe(index as usize * WORDS + 1)
    }

    /// Takes back the oldest `count` descriptors, which the device has completed.
    #[inline]
    pub(super) fn take(&mut self, count: u32) {
        self.oldest = self.after(self.oldest, count);
    }

    /// Goes on with the ring of an earlier server, of which the device knows the tail `next`.
    pub(super) fn go_on(&mut self, oldest: u32, next: u32) {
        (self.next, self.oldest, self.told) = (next, oldest, next);
    }

    /// Writes a descriptor as the device does.
    #[cfg(test)]
    pub(super) fn write_back(&mut self, index: u32, words: Words) {
        self.driver.store_pair(index as usize * WORDS, words);
    }

    /// Empties the ring, once the device has stopped.
    pub(super) fn clear(&mut self) {
        (self.next, self.oldest, self.told) = (0, 0, 0);
        for word in 0..self.driver.len() {
            self.driver.store(word, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_go_round_and_one_stays_free() {
        let region = Region::private(4 * DESCRIPTOR_BYTES).unwrap();
        let whole = region.mapping().clone();
        let mut region = region;
        let mut ring = Ring::new(region.split_off_front(4 * DESCRIPTOR_BYTES), &whole);
        for round in 0..6 {
            assert_eq!((ring.room(), ring.held()), (3, 0));
            let from = ring.tail();
            assert_eq!(ring.untold_tail(), None);
            for number in 0..3 {
                ring.push([round, number]);
            }
            assert_eq!(ring.untold_tail(), Some(ring.tail()));
            assert_eq!(ring.untold_tail(), None);
            assert_eq!((ring.room(), ring.held()), (0, 3));
            assert_eq!(ring.fetch(ring.after(from, 2)), [round, 2]);
            assert_eq!(ring.fetch_last(ring.oldest()), 0);
            ring.take(2);
            assert_eq!((ring.room(), ring.held()), (2, 1));
            ring.take(1);
        }
        ring.push([7, 7]);
        ring.clear();
        assert_eq!((ring.held(), ring.tail(), ring.fetch(2)), (0, 0, [0, 0]));
    }
}
