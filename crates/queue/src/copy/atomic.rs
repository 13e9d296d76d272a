//! The copy as relaxed atomic loads and stores: slow, but every tool sees each access.
//!
//! Unsafe lives here because the copy works on addresses.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD_BYTES: usize = 8;

/// Copies `len` bytes: whole words where both ranges have the same alignment, else bytes.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    if from.addr() % WORD_BYTES == to.addr() % WORD_BYTES {
        let head = from.align_offset(WORD_BYTES).min(len);
        while at < head {
            // SAFETY: at < head <= len; the rest is the caller's promise.
            unsafe { copy_byte(from.add(at), to.add(at)) };
            at += 1;
        }
        while len - at >= WORD_BYTES {
            // SAFETY: at + 8 <= len, and both addresses are aligned to 8 bytes since `head`.
            let (word, place) = unsafe {
                let from = from.add(at).cast_mut().cast::<u64>();
                (AtomicU64::from_ptr(from), AtomicU64::from_ptr(to.add(at).cast()))
            };
            place.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            at += WORD_BYTES;
        }
    }
    while at < len {
        // SAFETY: at < len; the rest is the caller's promise.
        unsafe { copy_byte(from.add(at), to.add(at)) };
        at += 1;
    }
}

/// Copies `len` bytes in ascending order: each store releases those before it.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn copy_in_order(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at < len; the rest is the caller's promise.
        let (from, to) = unsafe { (from.add(at), to.add(at)) };
        let is_word = to.addr().is_multiple_of(WORD_BYTES) && len - at >= WORD_BYTES;
        let step = if is_word { WORD_BYTES } else { 1 };
        // SAFETY: at + step <= len; the word at `to` is aligned, as just checked; the rest is the
        // caller's promise. The source is only read, by relaxed loads.
        unsafe {
            if is_word {
                let load =
                    |byte| AtomicU8::from_ptr(from.add(byte).cast_mut()).load(Ordering::Relaxed);
                let word = u64::from_ne_bytes(core::array::from_fn(load));
                AtomicU64::from_ptr(to.cast()).store(word, Ordering::Release);
            } else {
                let byte = AtomicU8::from_ptr(from.cast_mut()).load(Ordering::Relaxed);
                AtomicU8::from_ptr(to).store(byte, Ordering::Release);
            }
        }
        at += step;
    }
}

/// # Safety
/// As [`super::copy`], for one byte.
unsafe fn copy_byte(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise. The source is only read, by a relaxed load.
    let (byte, place) = unsafe { (AtomicU8::from_ptr(from.cast_mut()), AtomicU8::from_ptr(to)) };
    place.store(byte.load(Ordering::Relaxed), Ordering::Relaxed);
}
