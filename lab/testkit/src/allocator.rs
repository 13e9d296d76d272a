//! An allocator that counts.
//!
//! Unsafe lives here because an allocator is an unsafe trait: every call goes to the system's
//! allocator unchanged, so the caller's promises hold for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The system's allocator, counting. A test or benchmark installs it:
///
/// ```
/// use towpath_testkit::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let (boxed, counted) = CountingAllocator::of_this_thread(|| Box::new(7));
/// assert_eq!((*boxed, counted.allocated), (7, 1));
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    allocated: AtomicU64,
    reallocated: AtomicU64,
    freed: AtomicU64,
    allocated_bytes: AtomicU64,
    freed_bytes: AtomicU64,
}

/// Calls of the allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocations {
    /// Allocations.
    pub allocated: u64,
    /// Reallocations, longer or shorter.
    pub reallocated: u64,
    /// Deallocations.
    pub freed: u64,
    /// Bytes allocated, growth included.
    pub allocated_bytes: u64,
    /// Bytes freed, shrinking included.
    pub freed_bytes: u64,
}

impl Allocations {
    /// Returns the number of all calls: zero without any use of the allocator.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.allocated + self.reallocated + self.freed
    }

    /// Returns the bytes in use; negative when more was freed than allocated.
    #[must_use]
    pub fn live_bytes(&self) -> i64 {
        self.allocated_bytes.wrapping_sub(self.freed_bytes) as i64
    }

    /// Returns the difference from an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &Allocations) -> Allocations {
        Allocations {
            allocated: self.allocated.wrapping_sub(earlier.allocated),
            reallocated: self.reallocated.wrapping_sub(earlier.reallocated),
            freed: self.freed.wrapping_sub(earlier.freed),
            allocated_bytes: self.allocated_bytes.wrapping_sub(earlier.allocated_bytes),
            freed_bytes: self.freed_bytes.wrapping_sub(earlier.freed_bytes),
        }
    }
}

const NONE: Allocations =
    Allocations { allocated: 0, reallocated: 0, freed: 0, allocated_bytes: 0, freed_bytes: 0 };

thread_local! {
    // Constant and without a destructor, so that reaching it never allocates.
    static OF_THREAD: Cell<Allocations> = const { Cell::new(NONE) };
}

impl CountingAllocator {
    /// Creates an allocator with zero counts.
    #[must_use]
    pub const fn new() -> CountingAllocator {
        CountingAllocator {
            allocated: AtomicU64::new(0),
            reallocated: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            allocated_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the calls of all threads of the process since its start.
    #[must_use]
    pub fn of_process(&self) -> Allocations {
        Allocations {
            allocated: self.allocated.load(Relaxed),
            reallocated: self.reallocated.load(Relaxed),
            freed: self.freed.load(Relaxed),
            allocated_bytes: self.allocated_bytes.load(Relaxed),
            freed_bytes: self.freed_bytes.load(Relaxed),
        }
    }

    /// Returns the calls of the calling thread while it runs `work`, without those of other
    /// threads. All zero where this is not the program's allocator: see
    /// [`is_installed`](Self::is_installed).
    pub fn of_this_thread<T>(work: impl FnOnce() -> T) -> (T, Allocations) {
        let before = OF_THREAD.get();
        let result = work();
        (result, OF_THREAD.get().since(&before))
    }

    /// Returns `true` if this is the program's allocator. A test that asserts no allocation asks
    /// this first.
    #[must_use]
    pub fn is_installed() -> bool {
        let ((), seen) =
            CountingAllocator::of_this_thread(|| drop(std::hint::black_box(Box::new(0_u8))));
        seen.allocated == 1 && seen.freed == 1
    }

    fn count(&self, change: Allocations) {
        self.allocated.fetch_add(change.allocated, Relaxed);
        self.reallocated.fetch_add(change.reallocated, Relaxed);
        self.freed.fetch_add(change.freed, Relaxed);
        self.allocated_bytes.fetch_add(change.allocated_bytes, Relaxed);
        self.freed_bytes.fetch_add(change.freed_bytes, Relaxed);
        // An ending thread may have no such place any more.
        let _ = OF_THREAD.try_with(|own| {
            let mut sum = own.get();
            sum.allocated = sum.allocated.wrapping_add(change.allocated);
            sum.reallocated = sum.reallocated.wrapping_add(change.reallocated);
            sum.freed = sum.freed.wrapping_add(change.freed);
            sum.allocated_bytes = sum.allocated_bytes.wrapping_add(change.allocated_bytes);
            sum.freed_bytes = sum.freed_bytes.wrapping_add(change.freed_bytes);
            own.set(sum);
        });
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches atomics and a
// thread's own cell, and neither allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(Allocations { allocated: 1, allocated_bytes: layout.size() as u64, ..NONE });
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(Allocations { allocated: 1, allocated_bytes: layout.size() as u64, ..NONE });
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        self.count(Allocations { freed: 1, freed_bytes: layout.size() as u64, ..NONE });
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (old, new) = (layout.size() as u64, new_size as u64);
        self.count(Allocations {
            reallocated: 1,
            allocated_bytes: new.saturating_sub(old),
            freed_bytes: old.saturating_sub(new),
            ..NONE
        });
        // SAFETY: the caller's promise.
        unsafe { System.realloc(address, layout, new_size) }
    }
}
