//! The two indices of a single-producer single-consumer queue.
//!
//! Indices are free-running and 32 bits wide. The capacity is at most half of their range, which
//! tells "ahead" from "behind" without a full or empty flag. Each side keeps its own index in
//! private memory and publishes it once per batch. Each side also keeps its last observation of the
//! other side's index, and loads that index again only when the observation is used up.

use crate::Violation;
use crate::word::{OwnWords, PeerWords};

/// The largest capacity of a queue. A power of two, and below half the range of a 32-bit index, so
/// that a difference of two indices tells ahead from behind.
pub const MAX_CAPACITY: u32 = 1 << 20;

/// A side's own index: the private value, and the value that this side published last.
#[derive(Debug)]
pub struct Published {
    words: OwnWords,
    now: u32,
    published: u32,
}

impl Published {
    /// Resumes from the word's value: 0 in new memory, else the index that a predecessor reached.
    #[must_use]
    pub fn resume(words: OwnWords) -> Published {
        let now = words.get(0) as u32;
        Published { words, now, published: now }
    }

    /// Returns the index, published or not.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Advances the index, privately.
    #[inline]
    pub fn advance(&mut self, by: u32) {
        self.now = self.now.wrapping_add(by);
    }

    /// Publishes the index. Returns whether it had changed.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let news = self.has_news();
        if news {
            // SYNC: a side that observes this index sees everything stored before
            // (`Observed::observe`).
            self.words.publish(0, u64::from(self.now));
            self.published = self.now;
        }
        news
    }

    /// Returns how far the index is ahead of the published one.
    #[inline]
    #[must_use]
    pub(crate) fn unpublished(&self) -> u32 {
        self.now.wrapping_sub(self.published)
    }

    /// `true` if the index is ahead of the published one.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.published != self.now
    }

    /// Prefetches the index's line, which this side is about to publish.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.words.prefetch_to_write(0);
    }

    /// Returns the words of the index's line: a side stores its notes in the others.
    pub(crate) fn line(&mut self) -> &mut OwnWords {
        &mut self.words
    }
}

/// The other side's index, as last observed and checked.
#[derive(Debug)]
pub struct Observed {
    words: PeerWords,
    seen: u32,
}

impl Observed {
    /// Creates an observation that starts from an index known to be right.
    #[must_use]
    pub fn new(words: PeerWords, seen: u32) -> Observed {
        Observed { words, seen }
    }

    /// Returns the index observed last.
    #[inline]
    #[must_use]
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Loads the index again. It must lie between the last observation and `limit`.
    ///
    /// # Errors
    /// [`Violation::Index`] when it does not; then the last observation stays valid.
    #[inline]
    pub fn observe(&mut self, limit: u32) -> Result<u32, Violation> {
        // SYNC: pairs with `Published::publish`.
        let word = self.words.observe(0);
        let index = word as u32;
        if word >> 32 != 0 || index.wrapping_sub(self.seen) > limit.wrapping_sub(self.seen) {
            return Err(Violation::Index);
        }
        self.seen = index;
        Ok(index)
    }

    /// Prefetches the index's line, which this side is about to observe.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.words.prefetch(0);
    }

    /// Takes `index` for the last observation: a check of the entries beyond it failed, or the other
    /// side is about to reach it.
    pub(crate) fn assume(&mut self, index: u32) {
        self.seen = index;
    }

    /// Returns the words of the index's line.
    pub(crate) fn line(&self) -> &PeerWords {
        &self.words
    }
}
