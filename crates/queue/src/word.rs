//! Words of shared memory, each with one writer. Bytes within words are in little-endian order, the
//! only one that this project supports.
//!
//! Unsafe lives here because shared memory is an address from outside. The caller that creates a
//! view promises that the memory stays mapped while the `keep` value of the call lives. The caller
//! also promises that this process makes no plain access to the memory that would race with one of
//! the view's. The view then uses atomics only, and forms no reference to plain data. (A second
//! writer of a word would break the protocol, not the memory.)
//!
//! While this process fetches a word, another process may write that word by accesses of any size,
//! and this process may write it by [`crate::copy`]. Rust's memory model does not define racing
//! atomics of different sizes. The processor does: each byte of the word is the old one or a new
//! one.

use alloc::sync::Arc;
use core::ptr::NonNull;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

const _: () = assert!(cfg!(target_endian = "little"), "bytes in words are little-endian here");

/// Words in a cache line pair. The layout keeps words that different sides write this far apart,
/// since processors fetch lines in pairs.
pub const LINE_WORDS: usize = 16;

/// Words in a single cache line.
pub(crate) const CACHE_LINE_WORDS: usize = 8;

/// How many lines ahead of a store [`OwnWords::prefetch_slots`] prefetches.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
const LINES_AHEAD: usize = 4;

/// The points at which the order of accesses matters, in pairs. But for the last two, a store must
/// become visible before a load: of each pair, at least one side sees the other's store. With either
/// barrier taken out, both sides may miss it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The sleeper set its flag and checks the queue. Partner: [`Barrier::NotifierChecks`].
    SleeperChecks,
    /// The producer published and checks the flag. Partner: [`Barrier::SleeperChecks`].
    NotifierChecks,
    /// The acknowledger acknowledged events, and checks their queues. Partner:
    /// [`Barrier::MarkerChecks`].
    AcknowledgerChecks,
    /// The marker published queues, and checks the acknowledgements. Partners:
    /// [`Barrier::AcknowledgerChecks`]; and [`Barrier::RequesterChecks`] for the request for room,
    /// which the marker's side reads with them.
    MarkerChecks,
    /// A thread left work, and checks the flag. Partner: [`Barrier::HolderChecks`].
    LeaverChecks,
    /// The holder released the flag, and checks for work that other threads left. Partner:
    /// [`Barrier::LeaverChecks`].
    HolderChecks,
    /// The sender wrote a request for room, and checks whether there is room. Partner:
    /// [`Barrier::MarkerChecks`].
    RequesterChecks,
    /// The owner of a tripwire armed it, and looks at its memory. Partner:
    /// [`Barrier::AccessorChecks`].
    ArmerChecks,
    /// A side accessed memory, and checks whether a tripwire there is armed. Partner:
    /// [`Barrier::ArmerChecks`].
    AccessorChecks,
    /// The owner published a word ahead of its later stores ([`OwnWords::publish_ahead`]). Partner:
    /// an acquire fence between a load of one of those and that of the word
    /// ([`Barrier::EarlierLoads`]). Not a full barrier.
    LaterStores,
    /// The reader fetched words, and checks whether the word that tells their state has changed
    /// ([`PeerWords::observe_around`]). Partner: [`Barrier::LaterStores`]. Not a full barrier.
    EarlierLoads,
}

/// Executes a full barrier: a fence, because SeqCst accesses order only among each other, and the
/// model checker misjudges them.
#[inline]
pub fn full_fence(barrier: Barrier) {
    #[cfg(all(test, loom))]
    if crate::loom_tests::is_taken_out(barrier) {
        return;
    }
    let _ = barrier;
    fence(Ordering::SeqCst);
}

/// A value that keeps the memory mapped while views of it exist.
pub type Keep = Arc<dyn Send + Sync>;

/// Words that the other side writes, with any value at any time.
#[derive(Clone)]
pub struct PeerWords {
    first: NonNull<AtomicU64>,
    len: usize,
    keep: Keep,
}

/// Words that this side alone writes, and the other side reads.
pub struct OwnWords {
    first: NonNull<AtomicU64>,
    len: usize,
    keep: Keep,
}

impl core::fmt::Debug for PeerWords {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PeerWords({:p}, {})", self.first, self.len)
    }
}

impl core::fmt::Debug for OwnWords {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "OwnWords({:p}, {})", self.first, self.len)
    }
}

// SAFETY: the views hold an address of atomics, and any thread may load and store atomics.
// `OwnWords` has one owner, so a word has one writing thread at a time.
unsafe impl Send for PeerWords {}
// SAFETY: as above.
unsafe impl Sync for PeerWords {}
// SAFETY: as above.
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

impl PeerWords {
    /// Creates a view of `len` words.
    ///
    /// # Safety
    /// The memory is readable and stays mapped for as long as `keep` lives, and `first` is aligned
    /// to 8 bytes. While the view fetches, no plain access of this process writes the memory.
    #[must_use]
    pub unsafe fn new(first: NonNull<AtomicU64>, len: usize, keep: Keep) -> PeerWords {
        PeerWords { first, len, keep }
    }

    /// Returns a part of the words.
    ///
    /// # Panics
    /// When the part is not inside: a mistake in the layout, which no peer can cause.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> PeerWords {
        assert!(start <= self.len && len <= self.len - start, "a part outside of its words");
        // SAFETY: start <= len, so the address stays inside of the memory promised to `new`.
        let first = unsafe { self.first.add(start) };
        PeerWords { first, len, keep: self.keep.clone() }
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

    /// Fetches a word, once. This is **the fetch function**, by which a peer's words come into
    /// private memory. The compiler may not drop an atomic load's result and load again, as it does
    /// with plain reads. So the checked value is the used value.
    #[inline]
    #[must_use]
    pub fn fetch(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Fetches two words that follow each other, each once: a descriptor.
    #[inline]
    #[must_use]
    pub fn fetch_pair(&self, index: usize) -> [u64; 2] {
        let [first, second] = self.words(index);
        [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]
    }

    /// Prefetches the lines of `count` words of a queue of `words`, from word `index` on: the peer
    /// has written them, and its core's cache holds them. This reads nothing.
    #[inline]
    pub(crate) fn prefetch_slots(&self, index: usize, count: usize, words: usize) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let mut ahead = 0;
            while ahead < count.min(words) {
                let at = (index + ahead) & (words - 1);
                if at < self.len {
                    // SAFETY: a hint touches nothing; the address is inside, as just checked.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(self.first.add(at).as_ptr().cast()) };
                }
                ahead += CACHE_LINE_WORDS;
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        let _ = (index, count, words);
    }

    /// Prefetches the line of one word. This reads nothing.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        self.prefetch_slots(index, 1, usize::MAX);
    }

    /// Fetches an index: this side sees everything that the peer wrote before it published the
    /// index. Pairs with [`OwnWords::publish`].
    #[inline]
    #[must_use]
    pub fn observe(&self, index: usize) -> u64 {
        #[cfg(all(test, not(loom)))]
        crate::stop_tests::count_load();
        self.word(index).load(Ordering::Acquire)
    }

    /// Observes a word, has `read` fetch words whose state that one tells, and returns what `read`
    /// returns; `None` if the word changed meanwhile. The owner stores the words of a new state
    /// between [`OwnWords::publish_ahead`] and [`OwnWords::publish`] of that word, so what was read is
    /// of one state. The word must not get the value of an earlier state again while `read` runs.
    #[must_use]
    pub fn observe_around<T>(&self, index: usize, read: impl FnOnce(u64) -> T) -> Option<T> {
        let state = self.observe(index);
        let value = read(state);
        #[cfg(all(test, loom))]
        if crate::loom_tests::is_taken_out(Barrier::EarlierLoads) {
            return (self.fetch(index) == state).then_some(value);
        }
        // SYNC: after the loads of `read`. Partner: `Barrier::LaterStores`.
        fence(Ordering::Acquire);
        (self.fetch(index) == state).then_some(value)
    }

    /// Fetches bytes from byte `offset` on, such as a packet's metadata. Returns whether all of the
    /// bytes lie inside.
    #[inline]
    #[must_use]
    pub fn fetch_bytes(&self, offset: usize, to: &mut [u8]) -> bool {
        if offset > self.len * 8 || to.len() > self.len * 8 - offset {
            return false;
        }
        let (mut index, shift) = (offset / 8, (offset % 8) as u32 * 8);
        if shift == 0 {
            return self.fetch_words(index, to);
        }
        // This fetches each word whole and once, also where it lies across two pieces of `to`.
        let mut carried = self.fetch(index) >> shift;
        index += 1;
        for piece in to.chunks_mut(8) {
            let mut word = carried;
            if piece.len() > 8 - shift as usize / 8 {
                let next = self.fetch(index);
                index += 1;
                word |= next << (64 - shift);
                carried = next >> shift;
            }
            piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
        }
        true
    }

    /// Fetches bytes from a word boundary on, where buffers' data usually starts.
    #[inline]
    fn fetch_words(&self, first: usize, to: &mut [u8]) -> bool {
        let (whole, rest) = to.as_chunks_mut::<8>();
        // This checks once, so that the loop need not.
        let Some(end) = first.checked_add(whole.len()).filter(|end| *end <= self.len) else {
            return false;
        };
        for (index, piece) in whole.iter_mut().enumerate() {
            // SAFETY: as in `word`; first + index < end <= len.
            let word = unsafe { self.first.add(first + index).as_ref() };
            *piece = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if !rest.is_empty() {
            let word = self.fetch(end).to_le_bytes();
            rest.copy_from_slice(&word[..rest.len()]);
        }
        true
    }

    /// Returns words that follow each other, to be loaded each once: the run is checked here, and
    /// not at each word.
    ///
    /// # Panics
    /// When the words are not inside: a mistake in the layout, which no peer can cause.
    #[inline]
    pub(crate) fn run(&self, index: usize, count: usize) -> &[AtomicU64] {
        assert!(count <= self.len && index <= self.len - count, "words outside of their view");
        // SAFETY: inside, as just checked; else as in `word`.
        unsafe { core::slice::from_raw_parts(self.first.add(index).as_ptr(), count) }
    }

    #[inline]
    fn words<const N: usize>(&self, index: usize) -> &[AtomicU64; N] {
        assert!(N <= self.len && index <= self.len - N, "words outside of their view");
        // SAFETY: inside, as just checked; else as in `word`.
        unsafe { self.first.add(index).cast().as_ref() }
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "a word outside of its view");
        // SAFETY: inside, as just checked; mapped, as promised to `new`; an atomic, so that a
        // reference to it claims nothing about its writers.
        unsafe { self.first.add(index).as_ref() }
    }
}

impl OwnWords {
    /// Creates a view of `len` words.
    ///
    /// # Safety
    /// As [`PeerWords::new`], and writable. While the view stores, no plain access of this process
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
    /// [`PeerWords::observe`].
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
