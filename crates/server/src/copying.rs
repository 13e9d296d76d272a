//! Copies between the server and memory that an application can take away from under a mapping.
//!
//! A process that maps a file writable can free its pages again and again (`MADV_REMOVE`), and can have tens of
//! thousands of mappings of it, which the kernel walks each time. A thread that touches such a page waits for that. So
//! neither the engine nor the control thread maps such memory. The worker of the memory's user maps it, and copies
//! between the memory and a [`CopyArea`], a file that only the server, its keeper and this worker have. So an
//! application makes only its own user's worker wait.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::Errno;
use towpath_memory::{CommonMemory, SharedFile};
use towpath_queue::handoff::{self, SLOT_BYTES};

/// Copies of one user that are under way at once.
pub(crate) const SLOTS: usize = 8;
/// The most bytes of one copy.
pub(crate) const COPY_BYTES: usize = 64 << 10;
/// Where the words of the worker and the bytes of the first slot begin. The server's words are at the beginning.
pub(crate) const ANSWERS: usize = SLOTS * SLOT_BYTES;
pub(crate) const DATA: usize = 4096;
/// The length of the file.
pub(crate) const AREA_BYTES: usize = DATA + SLOTS * COPY_BYTES;
const _: () = assert!(ANSWERS + SLOTS * SLOT_BYTES <= DATA);

/// What a worker is asked to do: the last argument. The others are the memory's id, and the range's offset and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Direction {
    /// It copies from the memory into the slot.
    Read = 0,
    /// It copies from the slot into the memory, in ascending order.
    Write = 1,
}

/// The worker's outcome: the bytes are copied. Any other outcome: the range is not in the memory, or the worker could
/// not map it.
pub(crate) const COPIED: u64 = 1;

/// Returns where the bytes of a slot begin.
pub(crate) const fn data_of(slot: usize) -> usize {
    DATA + slot * COPY_BYTES
}

/// The memory by which a worker copies for the engine.
#[derive(Debug)]
pub(crate) struct CopyArea {
    memory: CommonMemory,
    answers: CommonMemory,
    /// Wakes the worker.
    worker: Arc<OwnedFd>,
    /// The number of each slot's last question.
    asked: [AtomicU64; SLOTS],
    is_claimed: [AtomicBool; SLOTS],
    /// `true` once the worker has ended or hangs.
    is_lost: AtomicBool,
    /// `true` while a worker of an earlier server may still copy.
    waits: AtomicBool,
}

impl CopyArea {
    /// Creates the file for the worker that `worker` wakes, and maps it.
    ///
    /// # Errors
    /// Fails with the error of `memfd_create` or `mmap`.
    pub(crate) fn create(worker: Arc<OwnedFd>) -> io::Result<(CopyArea, OwnedFd)> {
        let file = SharedFile::create("towpath-copies", AREA_BYTES)?;
        let memory = file.map_common(true)?;
        memory.mapping().keep_from_children()?;
        let answers =
            memory.part(ANSWERS, SLOTS * SLOT_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let area = CopyArea {
            memory,
            answers,
            worker,
            asked: Default::default(),
            is_claimed: Default::default(),
            is_lost: AtomicBool::new(false),
            waits: AtomicBool::new(false),
        };
        Ok((area, file.into()))
    }

    /// Records that the worker has ended or hangs.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Makes new copies wait, or lets them begin.
    pub(crate) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Returns `true` if the worker makes no copy any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Returns a slot for a copy; `None` if all are in use.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Ticket> {
        if self.waits.load(Ordering::Relaxed) {
            return None;
        }
        let slot = self.free_slot()?;
        self.is_claimed[slot].store(true, Ordering::Relaxed);
        Some(Ticket { area: self.clone(), slot })
    }

    /// Returns `true` if a copy may begin now.
    pub(crate) fn has_free_slot(&self) -> bool {
        !self.waits.load(Ordering::Relaxed) && self.free_slot().is_some()
    }

    fn free_slot(&self) -> Option<usize> {
        let is_free = |slot: &usize| {
            !self.is_claimed[*slot].load(Ordering::Relaxed) && self.outcome(*slot).is_some()
        };
        (0..SLOTS).find(is_free)
    }

    /// Returns the outcome of a slot's last question; `None` before its answer.
    fn outcome(&self, slot: usize) -> Option<u64> {
        handoff::outcome(&self.answers, slot, self.asked[slot].load(Ordering::Relaxed))
    }
}

/// Returns `true` if no process of an earlier server maps its copy area any more, and so none copies. From then on no
/// process can map the file for writing.
pub(crate) fn is_released(area: &OwnedFd) -> bool {
    fcntl_add_seals(area.as_fd(), SealFlags::WRITE).is_ok()
}

/// A slot of a copy area. Its drop gives the slot back, once the worker has answered.
#[derive(Debug)]
pub(crate) struct Ticket {
    area: Arc<CopyArea>,
    slot: usize,
}

impl Ticket {
    /// Asks the worker for a copy of at most [`COPY_BYTES`].
    pub(crate) fn ask(&self, direction: Direction, (id, offset, len): (u64, u64, u64)) {
        let number = self.area.asked[self.slot].load(Ordering::Relaxed) + 1;
        self.area.asked[self.slot].store(number, Ordering::Relaxed);
        let arguments = [id, offset, len, direction as u64];
        handoff::ask(&mut self.area.memory.clone(), self.slot, number, arguments);
        let worker = &*self.area.worker;
        while rustix::io::write(worker, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Returns whether the worker has copied; `None` before its answer.
    pub(crate) fn outcome(&self) -> Option<bool> {
        let outcome = self.area.outcome(self.slot).map(|outcome| outcome == COPIED);
        outcome.or_else(|| self.area.is_lost().then_some(false))
    }

    /// Returns the slot's bytes.
    pub(crate) fn bytes(&self) -> (&CommonMemory, usize) {
        (&self.area.memory, data_of(self.slot))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.area.is_claimed[self.slot].store(false, Ordering::Relaxed);
    }
}
