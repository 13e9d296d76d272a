//! Words that the other side writes. Unsafe for the reason that the module above states.

use core::ptr::NonNull;

#[cfg(all(test, loom))]
use super::barrier::Barrier;
use super::barrier::{AtomicU64, CACHE_LINE_WORDS, Keep, Ordering, fence};

/// Words that the other side writes, with any value at any time.
#[derive(Clone)]
pub struct PeerWords {
    first: NonNull<AtomicU64>,
    len: usize,
    keep: Keep,
}

impl core::fmt::Debug for PeerWords {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PeerWords({:p}, {})", self.first, self.len)
    }
}

// SAFETY: the view holds an address of atomics, and any thread may load and store atomics.
unsafe impl Send for PeerWords {}
// SAFETY: as above.
unsafe impl Sync for PeerWords {}

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
    pub(crate) fn fetch_pair(&self, index: usize) -> [u64; 2] {
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
    /// index. Pairs with [`OwnWords::publish`](super::OwnWords::publish).
    #[inline]
    #[must_use]
    pub fn observe(&self, index: usize) -> u64 {
        #[cfg(all(test, not(loom)))]
        crate::stop_tests::count_load();
        self.word(index).load(Ordering::Acquire)
    }

    /// Observes a word, has `read` fetch words whose state that one tells, and returns what `read`
    /// returns; `None` if the word changed meanwhile. The owner stores the words of a new state
    /// between [`OwnWords::publish_ahead`](super::OwnWords::publish_ahead) and
    /// [`OwnWords::publish`](super::OwnWords::publish) of that word, so what was read is
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
