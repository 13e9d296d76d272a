//! Words that this side alone writes. Unsafe for the reason that the module above states.

use core::ptr::NonNull;

#[cfg(all(test, loom))]
use super::barrier::Barrier;
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
use super::barrier::CACHE_LINE_WORDS;
use super::barrier::{AtomicU64, Keep, Ordering, fence};

/// How many lines ahead of a store [`OwnWords::prefetch_slots`] prefetches.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
const LINES_AHEAD: usize = 4;

/// Words that this side alone writes, and the other side reads.
pub struct OwnWords {
    first: NonNull<AtomicU64>,
    len: usize,
    keep: Keep,
}

impl core::fmt::Debug for OwnWords {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "OwnWords({:p}, {})", self.first, self.len)
    }
}

// SAFETY: the view holds an address of atomics, and any thread may load and store atomics. It has one
// owner, so a word has one writing thread at a time.
unsafe impl Send for OwnWords {}

/// Stores two words of a run of this side's words: a descriptor.
#[inline]
pub(crate) fn store_pair([first, second]: &[AtomicU64; 2], values: [u64; 2]) {
    #[cfg(all(test, not(loom)))]
    crate::stop_tests::before_store();
    #[cfg(towpath_simulation)]
    if !crate::simulation::store() {
        return;
    }
    first.store(values[0], Ordering::Relaxed);
    #[cfg(all(test, not(loom)))]
    crate::stop_tests::before_store();
    #[cfg(towpath_simulation)]
    if !crate::simulation::store() {
        return;
    }
    second.store(values[1], Ordering::Relaxed);
}

/// Prefetches a line some lines behind a word of a run of this side's words, as
/// [`OwnWords::prefetch_slots`] does, also where that is behind the run's end.
#[inline]
pub(crate) fn prefetch_ahead(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        let word = core::ptr::from_ref(word);
        if word.addr().is_multiple_of(CACHE_LINE_WORDS * 8) {
            let line = word.wrapping_add(LINES_AHEAD * CACHE_LINE_WORDS);
            // SAFETY: a hint touches nothing, whatever the address. Processors without the
            // instruction ignore it.
            unsafe {
                core::arch::asm!(
                    "prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)
                );
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = word;
}

impl OwnWords {
    /// Creates a view of `len` words.
    ///
    /// # Safety
    /// As [`PeerWords::new`](super::PeerWords::new), and writable. While the view stores, no plain access of this process
    /// reads or writes the memory.
    #[must_use]
    pub unsafe fn new(first: NonNull<AtomicU64>, len: usize, keep: Keep) -> OwnWords {
        OwnWords { first, len, keep }
    }

    /// Splits `len` words off the front.
    ///
    /// # Panics
    /// When there are fewer: a mistake in the layout, which no peer can cause.
    #[must_use]
    pub fn split_off_front(&mut self, len: usize) -> OwnWords {
        assert!(len <= self.len, "a part outside of its words");
        let front = OwnWords { first: self.first, len, keep: self.keep.clone() };
        // SAFETY: len <= self.len, so the address stays inside of the memory promised to `new`.
        self.first = unsafe { self.first.add(len) };
        self.len -= len;
        front
    }

    /// Returns the number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if there are no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value that this side stored last.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Stores a word that a later [`OwnWords::publish`] publishes.
    #[inline]
    pub fn store(&mut self, index: usize, value: u64) {
        #[cfg(all(test, not(loom)))]
        crate::stop_tests::before_store();
        #[cfg(towpath_simulation)]
        if !crate::simulation::store() {
            return;
        }
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Stores two words that follow each other: a descriptor.
    #[inline]
    pub fn store_pair(&mut self, index: usize, values: [u64; 2]) {
        store_pair(self.words(index), values);
    }

    /// Adds to words that follow each other, which only this side reads back: counters.
    ///
    /// # Panics
    /// When the words are not inside: a mistake in the layout, which no peer can cause.
    #[inline]
    pub fn add_all<const N: usize>(&mut self, index: usize, by: [u64; N]) {
        for (word, by) in self.words::<N>(index).iter().zip(by) {
            #[cfg(all(test, not(loom)))]
            crate::stop_tests::before_store();
            #[cfg(towpath_simulation)]
            if !crate::simulation::store() {
                return;
            }
            let value = word.load(Ordering::Relaxed).wrapping_add(by);
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Returns words that follow each other, to be stored each once: the run is checked here, and
    /// not at each word.
    ///
    /// # Panics
    /// When the words are not inside: a mistake in the layout, which no peer can cause.
    #[inline]
    pub(crate) fn run_mut(&mut self, index: usize, count: usize) -> &[AtomicU64] {
        assert!(count <= self.len && index <= self.len - count, "words outside of their view");
        // SAFETY: inside, as just checked; else as in `PeerWords::word`.
        unsafe { core::slice::from_raw_parts(self.first.add(index).as_ptr(), count) }
    }

    /// Stores an index: a peer that observes it sees everything stored before. Pairs with
    /// [`PeerWords::observe`](super::PeerWords::observe).
    #[inline]
    pub fn publish(&mut self, index: usize, value: u64) {
        #[cfg(all(test, not(loom)))]
        crate::stop_tests::before_store();
        #[cfg(towpath_simulation)]
        if !crate::simulation::store() {
            return;
        }
        self.word(index).store(value, Ordering::Release);
    }

    /// Publishes a word ahead of all later stores of this side: a reader that sees one of those,
    /// and executes an acquire fence, sees this one, too.
    #[inline]
    pub fn publish_ahead(&mut self, index: usize, value: u64) {
        self.publish(index, value);
        #[cfg(all(test, loom))]
        if crate::loom_tests::is_taken_out(Barrier::LaterStores) {
            return;
        }
        // SYNC: before the stores that follow. Partner: `Barrier::EarlierLoads`, or the end of this
        // process.
        fence(Ordering::Release);
    }

    /// Prefetches a line of a queue of `words` to which this side will store some lines later. The
    /// caller calls this before each store of a word `index`, in order. The call does nothing
    /// unless that word is the first of its line. The other side's core has the line, and a store
    /// that waits for a line delays all later stores.
    #[inline]
    pub(crate) fn prefetch_slots(&self, index: usize, words: usize) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        if index.is_multiple_of(CACHE_LINE_WORDS) {
            let ahead = (index + LINES_AHEAD * CACHE_LINE_WORDS) & (words - 1);
            if ahead < self.len {
                // SAFETY: a hint touches nothing; the address is inside, as just checked.
                // Processors without the instruction ignore it.
                unsafe {
                    let line = self.first.add(ahead).as_ptr();
                    core::arch::asm!(
                        "prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)
                    );
                }
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        let _ = (index, words);
    }

    /// Prefetches the line of one word that this side is about to write, and that the other side's
    /// core may have.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, index: usize) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        if index < self.len {
            // SAFETY: a hint touches nothing; the address is inside, as just checked. Processors
            // without the instruction ignore it.
            unsafe {
                let line = self.first.add(index).as_ptr();
                core::arch::asm!(
                    "prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)
                );
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        let _ = index;
    }

    #[inline]
    fn words<const N: usize>(&self, index: usize) -> &[AtomicU64; N] {
        assert!(N <= self.len && index <= self.len - N, "words outside of their view");
        // SAFETY: inside, as just checked; else as in `PeerWords::word`.
        unsafe { self.first.add(index).cast().as_ref() }
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "a word outside of its view");
        // SAFETY: as in `PeerWords::word`.
        unsafe { self.first.add(index).as_ref() }
    }
}
