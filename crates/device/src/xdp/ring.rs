//! The rings of an AF_XDP socket, in memory that the kernel shares with this process
//! (`linux/if_xdp.h`; Documentation/networking/af_xdp.rst, "Rings").
//!
//! Each ring has one producer and one consumer, with an index each that counts without end. The
//! producer stores entries and then its index (release); the consumer loads that index (acquire)
//! and then the entries. The consumer's index returns the slots in the same way.
//!
//! The kernel is trusted. A wrong index of the kernel's still cannot lead outside of a ring: each
//! access masks its index.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// A ring, mapped for as long as this value lives.
struct Ring<T> {
    map: NonNull<u8>,
    map_bytes: usize,
    /// The offsets of the indices, the flags and the entries in the mapping.
    offsets: XdpRingOffset,
    /// The number of entries, a power of two.
    size: u32,
    entries: PhantomData<T>,
}

// SAFETY: a ring has one owner in this process, which accesses the mapping through `&self` or
// `&mut self`. The mapping does not depend on the thread.
unsafe impl<T: Entry> Send for Ring<T> {}

/// The entries of a ring: plain numbers of the kernel's interface, for which every bit pattern is
/// valid.
pub(super) trait Entry: Copy {}

/// An address in a fill or completion ring.
impl Entry for u64 {}

/// A descriptor in a receive or transmit ring. The driver reads its options as bits.
impl Entry for Descriptor {}

/// `struct xdp_desc`, with plain numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The offset of the data from the start of the registered memory, in bytes.
    pub(super) address: u64,
    /// The number of bytes.
    pub(super) len: u32,
    /// [`CONTINUES`] and [`HAS_METADATA`], or 0.
    pub(super) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == size_of::<XdpDesc>());

/// The packet continues in the next descriptor (`XDP_PKT_CONTD`, Linux 6.6).
pub(super) const CONTINUES: u32 = 1;

/// The kernel reads metadata in front of the packet (`XDP_TX_METADATA`, Linux 6.8).
pub(super) const HAS_METADATA: u32 = 2;

impl<T: Entry> Ring<T> {
    /// Maps a ring of `size` entries that the socket has.
    fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Ring<T>> {
        let entries_bytes = size as usize * size_of::<T>();
        let map_bytes = offsets.desc as usize + entries_bytes;
        let inside = |offset: u64| offset as usize + 4 <= map_bytes && offset.is_multiple_of(4);
        let flags_inside = offsets.flags.is_none_or(inside);
        let aligned = (offsets.desc as usize).is_multiple_of(align_of::<T>());
        if !size.is_power_of_two()
            || !aligned
            || !flags_inside
            || ![offsets.producer, offsets.consumer].into_iter().all(inside)
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the kernel chooses a free range of addresses, so the call replaces no mapping.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                page_offset,
            )?
        };
        let map = NonNull::new(map.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Ring { map, map_bytes, offsets, size, entries: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `Ring::map` checked that the aligned word is inside the mapping, which lives as
        // long as `self`. The kernel accesses the word atomically, too.
        unsafe { self.map.add(offset as usize).cast().as_ref() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    /// Returns the address of the entry for an index.
    fn entry(&self, index: u32) -> NonNull<T> {
        let slot = (index & (self.size - 1)) as usize;
        // SAFETY: the mapping has `size` entries behind this aligned offset, and `slot` is below
        // `size`.
        unsafe { self.map.add(self.offsets.desc as usize).cast::<T>().add(slot) }
    }

    /// Returns `true` if the kernel waits for a system call before it works on the ring
    /// (`XDP_RING_NEED_WAKEUP`), or does not say (before Linux 5.4).
    fn needs_wakeup(&self) -> bool {
        // Pairs with the barrier of a driver that sets the flag, and then looks for entries once
        // more: it sees the index that this side stored before, or this side sees the flag.
        fence(Ordering::SeqCst);
        self.offsets.flags.is_none_or(|flags| {
            let flags = self.word(flags).load(Ordering::Relaxed);
            flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
        })
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

/// The producer's side of a fill or transmit ring.
pub(super) struct Producer<T: Entry> {
    ring: Ring<T>,
    /// The index of the next entry; the kernel sees it after [`Producer::publish`].
    next: u32,
    /// The consumer's index, as last loaded.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// Maps the ring at `page_offset`.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Producer<T>> {
        let ring = Ring::map(socket, page_offset, offsets, size)?;
        let next = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Acquire);
        Ok(Producer { ring, next, consumed })
    }

    /// Returns the number of free slots, which is at least `wanted` if there are that many.
    #[inline]
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.ring.size - self.pending() < wanted {
            self.refresh();
        }
        self.ring.size - self.pending()
    }

    /// Returns the number of entries that the kernel had not consumed at the last look.
    #[inline]
    fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.consumed).min(self.ring.size)
    }

    fn refresh(&mut self) {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
    }

    /// Returns the entries that the kernel has not consumed.
    pub(super) fn waiting(&mut self) -> impl Iterator<Item = T> {
        self.refresh();
        let first = self.consumed;
        // SAFETY: the slots are inside the ring, and this side alone stores entries.
        (0..self.pending()).map(move |at| unsafe { self.ring.entry(first.wrapping_add(at)).read() })
    }

    /// Replaces the entries that the kernel has not consumed. The caller knows that no process makes
    /// it consume any meanwhile. The index stays: the kernel has its own copy of it.
    pub(super) fn replace_waiting(&mut self, entry: T) {
        self.refresh();
        for at in 0..self.pending() {
            // SAFETY: the slot is inside the ring, and this side alone stores entries.
            unsafe { self.ring.entry(self.consumed.wrapping_add(at)).write(entry) };
        }
        self.publish();
    }

    /// Returns how many entries the kernel has consumed, ever.
    pub(super) fn consumed(&mut self) -> u32 {
        self.refresh();
        self.consumed
    }

    /// Returns the number of entries that the kernel has not consumed.
    pub(super) fn left(&mut self) -> u32 {
        self.refresh();
        self.pending()
    }

    /// Stores an entry in the next slot, which the caller knows to be free.
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: the slot is inside the ring, and the kernel reads it only after the index that
        // `publish` stores.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Makes all stored entries visible to the kernel.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Returns `true` if the kernel needs a system call to work on the entries.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The consumer's side of a receive or completion ring.
pub(super) struct Consumer<T: Entry> {
    ring: Ring<T>,
    /// The index of the next entry to take; the kernel sees it after [`Consumer::release`].
    next: u32,
    /// That index as the kernel sees it.
    released: u32,
    /// The producer's index, as last loaded.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    /// Maps the ring at `page_offset`.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Consumer<T>> {
        let ring = Ring::map(socket, page_offset, offsets, size)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        let produced = ring.producer().load(Ordering::Acquire);
        Ok(Consumer { ring, next, released: next, produced })
    }

    /// Returns the number of entries to take, which is at least `wanted` if there are that many.
    #[inline]
    pub(super) fn available(&mut self, wanted: u32) -> u32 {
        if self.produced.wrapping_sub(self.next) < wanted {
            self.produced = self.ring.producer().load(Ordering::Acquire);
        }
        self.produced.wrapping_sub(self.next).min(self.ring.size)
    }

    /// Returns the entry `ahead` of the next one; the caller knows that it is available.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> T {
        // SAFETY: the entry is inside the ring. The kernel stored it before the index that
        // `available` loaded, and writes the slot again only after `release`.
        unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() }
    }

    /// Takes `count` entries; the caller knows that they are available.
    #[inline]
    pub(super) fn take(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
    }

    /// Takes all entries that the kernel has produced. Returns how many these are, ever.
    pub(super) fn take_all(&mut self) -> u32 {
        self.produced = self.ring.producer().load(Ordering::Acquire);
        self.next = self.produced;
        self.release();
        self.produced
    }

    /// Returns the slots of all taken entries to the kernel. Leaves the line that both sides share
    /// alone if there are none.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.released != self.next {
            self.ring.consumer().store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }
}
