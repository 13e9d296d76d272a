//! Copies between a server and memory that an application can take away from under a mapping.
//!
//! A process that maps a file writable can free its pages again and again (`MADV_REMOVE`), and can have tens of
//! thousands of mappings of it, which the kernel walks each time. A thread that touches such a page waits for that. So
//! neither the engine nor the control thread maps such memory. The worker of the memory's user maps it, and copies
//! between the memory and a [`CopyArea`], a file that only the server, its keeper and this worker have
//! ([`Copies`](crate::copies::Copies)). So an application makes only its own user's worker wait. Between two memories of
//! one worker, the worker copies directly.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::Errno;
use towpath_queue::handoff::{self, SLOT_BYTES};

use crate::{CommonMemory, SharedFile};

/// The most copies of one user that are under way at once.
pub const SLOTS: usize = 8;
/// The most bytes of one copy from or to a slot.
pub const COPY_BYTES: usize = 64 << 10;
/// The most bytes of one copy between two memories of a worker.
pub const TRANSFER_BYTES: usize = 1 << 20;
/// Where the words of the worker and the bytes of the first slot begin. The server's words are at the beginning.
pub(crate) const ANSWERS: usize = SLOTS * SLOT_BYTES;
pub(crate) const DATA: usize = 4096;
/// The length of the file.
pub(crate) const AREA_BYTES: usize = DATA + SLOTS * COPY_BYTES;
const _: () = assert!(ANSWERS + SLOTS * SLOT_BYTES <= DATA);

/// What a worker is asked to do: the fourth argument. The first ones are the memory's id, and the range's offset and
/// length. The last ones are the id of the memory that a transfer copies from, and the range's offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Direction {
    /// It copies from the memory into the slot.
    Read = 0,
    /// It copies from the slot into the memory, in ascending order.
    Write = 1,
    /// It copies from another memory of its user into the memory, in ascending order.
    Transfer = 2,
}

impl Direction {
    /// Returns the most bytes of one copy.
    pub const fn most_bytes(self) -> usize {
        match self {
            Direction::Read | Direction::Write => COPY_BYTES,
            Direction::Transfer => TRANSFER_BYTES,
        }
    }
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
pub struct CopyArea {
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
    pub fn create(worker: Arc<OwnedFd>) -> io::Result<(CopyArea, OwnedFd)> {
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
    pub fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Makes new copies wait, or lets them begin.
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Returns `true` if the worker makes no copy any more.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Returns a slot for a copy; `None` if all are in use.
    pub fn claim(self: &Arc<Self>) -> Option<CopySlot> {
        if self.waits.load(Ordering::Relaxed) {
            return None;
        }
        let slot = self.free_slot()?;
        self.is_claimed[slot].store(true, Ordering::Relaxed);
        Some(CopySlot { area: self.clone(), slot })
    }

    /// Returns `true` if a copy may begin now.
    pub fn has_free_slot(&self) -> bool {
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
pub fn is_released(area: &OwnedFd) -> bool {
    fcntl_add_seals(area.as_fd(), SealFlags::WRITE).is_ok()
}

/// A slot of a copy area. Its drop gives the slot back, once the worker has answered.
#[derive(Debug)]
pub struct CopySlot {
    area: Arc<CopyArea>,
    slot: usize,
}

impl CopySlot {
    /// Asks the worker for a copy of at most [`Direction::most_bytes`]. `from`: the memory and the offset from which a
    /// transfer copies.
    pub fn ask(&self, direction: Direction, (id, offset, len): (u64, u64, u64), from: (u64, u64)) {
        let number = self.area.asked[self.slot].load(Ordering::Relaxed) + 1;
        self.area.asked[self.slot].store(number, Ordering::Relaxed);
        let arguments = [id, offset, len, direction as u64, from.0, from.1];
        handoff::ask(&mut self.area.memory.clone(), self.slot, number, arguments);
        let worker = &*self.area.worker;
        while rustix::io::write(worker, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Returns whether the worker has copied; `None` before its answer.
    pub fn outcome(&self) -> Option<bool> {
        let outcome = self.area.outcome(self.slot).map(|outcome| outcome == COPIED);
        outcome.or_else(|| self.area.is_lost().then_some(false))
    }

    /// Returns the slot's bytes.
    pub fn bytes(&self) -> (&CommonMemory, usize) {
        (&self.area.memory, data_of(self.slot))
    }
}

impl Drop for CopySlot {
    fn drop(&mut self) {
        self.area.is_claimed[self.slot].store(false, Ordering::Relaxed);
    }
}
