//! Copies of payload into and out of shared memory.
//!
//! A peer may write or read the copied memory at any moment. A plain copy (`memcpy`) of such memory
//! is a data race, which is undefined behaviour, and the compiler may read the source twice.
//! Relaxed atomic loads and stores of the bytes avoid both, but the compiler does not make vector
//! moves of them. So on x86-64 the copy is assembly: the compiler knows that memory is read and
//! written, and assumes nothing about the values found there. The processor moves each byte with
//! loads and stores, as it does for relaxed atomics. A peer that writes meanwhile makes the bytes
//! arbitrary, and nothing more. On other targets, and where a tool has to see each access (loom,
//! Miri, sanitizers), the copy is atomic loads and stores.
//!
//! The copy has no particular order, and moves a byte twice where two moves overlap;
//! [`copy_in_order`] does neither.
//! Once a copy has brought bytes into private memory, a decision may depend on them: the copy never
//! reads the source again. [`PeerWords`](crate::PeerWords) fetches single words.
//!
//! Unsafe lives here because the copy works on addresses.

#[cfg(any(
    test,
    loom,
    miri,
    towpath_sanitize,
    not(all(target_arch = "x86_64", target_feature = "sse2"))
))]
mod atomic;
#[cfg(all(
    target_arch = "x86_64",
    target_feature = "sse2",
    not(any(loom, miri, towpath_sanitize))
))]
mod vector;

// The next two conditions are each other's opposites.
#[cfg(not(all(
    target_arch = "x86_64",
    target_feature = "sse2",
    not(any(loom, miri, towpath_sanitize))
)))]
use atomic::{copy as copy_bytes, copy_in_order as copy_bytes_in_order};
#[cfg(all(
    target_arch = "x86_64",
    target_feature = "sse2",
    not(any(loom, miri, towpath_sanitize))
))]
use vector::{copy as copy_bytes, copy_in_order as copy_bytes_in_order};

/// Copies `len` bytes. Meanwhile other threads may read and write both ranges by this routine or by
/// atomics, and other processes by any means. Where the ranges overlap, the bytes written are
/// arbitrary.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes during the call. In this process no
/// plain access writes `from`, and no plain access reads or writes `to`, at the same time as the
/// call.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_bytes(from, to, len) }
}

/// Copies `len` bytes in ascending order, each once, into memory that a peer reads meanwhile. The
/// peer sees all or none of the new bytes of each aligned word of 8 bytes that the copy covers
/// completely; if it sees a word or byte by an acquire load, it also sees all those before.
/// This takes longer than [`copy`].
///
/// # Safety
/// As [`copy`].
#[inline]
pub unsafe fn copy_in_order(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_bytes_in_order(from, to, len) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// Tests every length in `lengths`, from and to several alignments: the copy moves the bytes,
    /// and leaves those around them unchanged.
    fn copies_what_it_should_and_nothing_else(copy: Copy, lengths: core::ops::Range<usize>) {
        let from: Vec<u8> =
            (0..2048).map(|place: u32| (place * 7 + place / 256) as u8 | 1).collect();
        for len in lengths {
            for (start, end) in [(0, 0), (1, 0), (0, 1), (3, 5), (8, 16), (33, 62), (63, 31)] {
                let mut to = vec![0; 2048];
                // SAFETY: start + len and end + len are at most 2048, and the vectors are apart.
                unsafe { copy(from.as_ptr().add(start), to.as_mut_ptr().add(end), len) };
                assert_eq!(to[end..end + len], from[start..start + len], "{len} bytes");
                assert!(to[..end].iter().all(|byte| *byte == 0), "before {len} bytes");
                assert!(to[end + len..].iter().all(|byte| *byte == 0), "behind {len} bytes");
            }
        }
    }

    #[test]
    fn any_length_is_copied() {
        copies_what_it_should_and_nothing_else(super::copy, 0..1100);
    }

    #[test]
    fn any_length_is_copied_by_atomics() {
        copies_what_it_should_and_nothing_else(super::atomic::copy, 0..600);
    }

    #[test]
    fn any_length_is_copied_in_order() {
        copies_what_it_should_and_nothing_else(super::copy_in_order, 0..600);
        copies_what_it_should_and_nothing_else(super::atomic::copy_in_order, 0..600);
    }

    /// A reader that polls sees whole words, in ascending order.
    #[test]
    fn a_reader_sees_whole_words_in_ascending_order() {
        use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        const WORDS: usize = 67;
        let to: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let over = AtomicBool::new(false);
        let rounds = if cfg!(miri) { 3 } else { 20_000_u64 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    let from = [round * 0x0101_0101_0101; WORDS + 1];
                    // Another alignment in each round.
                    let start = (round % 8) as usize;
                    // SAFETY: `from` has a word more than `to`, and only atomics access `to`.
                    unsafe {
                        let from = from.as_ptr().cast::<u8>();
                        if start == 0 {
                            super::copy_in_order(from, to[0].as_ptr().cast(), WORDS * 8);
                        } else {
                            let mut bytes = [0; (WORDS + 1) * 8];
                            core::ptr::copy(from, bytes.as_mut_ptr().add(start), WORDS * 8);
                            let from = bytes.as_ptr().add(start);
                            super::copy_in_order(from, to[0].as_ptr().cast(), WORDS * 8);
                        }
                    }
                }
                over.store(true, Ordering::Release);
            });
            while !over.load(Ordering::Acquire) {
                // Backwards: a word that is read later may be newer, and never older.
                let mut newest = 0;
                for word in to.iter().rev() {
                    let word = word.load(Ordering::Acquire);
                    assert_eq!(word % 0x0101_0101_0101, 0, "a torn word");
                    assert!(word >= newest, "a word before its predecessors");
                    newest = word;
                }
            }
        });
    }

    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(miri, towpath_sanitize))))]
    #[test]
    fn any_length_is_copied_by_each_loop_that_the_processor_has() {
        use super::vector::{ROUND_BYTES, long_routines};
        let routines = long_routines();
        assert!(!routines.is_empty(), "every x86-64 has SSE2");
        for routine in routines {
            copies_what_it_should_and_nothing_else(routine, ROUND_BYTES + 1..1100);
        }
    }
}
