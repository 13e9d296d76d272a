//! The copies that a worker makes for the engine, between its user's memories and the copy area, and between two of
//! these memories ([`crate::copying`]).
//!
//! This module uses unsafe code because it maps the memories, and copies from and to their addresses. It allocates
//! nothing, as a worker must not.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use towpath_queue::copy::{copy, copy_in_order};
use towpath_queue::handoff::{answer, question};
use towpath_queue::ring::{FarMemory, NearMemory};

use crate::copying::{
    ANSWERS, AREA_BYTES, COPIED, COPY_BYTES, Direction, SLOTS, TRANSFER_BYTES, data_of,
};

/// The outcome of a copy that is not possible.
const NOT_COPIED: u64 = 2;

/// A file that this process maps for writing.
#[derive(Debug)]
struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns the mapping, which any thread may use.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &OwnedFd) -> Result<Mapped, Errno> {
        let len = rustix::fs::fstat(file)?.st_size as usize;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address range, so no memory of ours is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapped { start, len })
    }

    /// Returns the address of a range; `None` if it is not inside.
    fn range(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: inside of the mapping, as just checked.
        (end <= self.len as u64).then(|| unsafe { self.start.as_ptr().add(offset as usize) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no address in it is kept.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The copy area, from an offset on.
struct Words<'a>(&'a Mapped, usize);

impl Words<'_> {
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(self.1 + offset + 8 <= AREA_BYTES && (self.1 + offset).is_multiple_of(8));
        // SAFETY: all words are in the first page of the area, whose length is checked, and are aligned.
        unsafe { AtomicU64::from_ptr(self.0.start.as_ptr().add(self.1 + offset).cast()) }
    }
}

impl NearMemory for Words<'_> {
    fn load(&self, offset: usize) -> u64 {
        // SYNC: pairs with the release stores of `handoff::ask`.
        self.word(offset).load(Ordering::Acquire)
    }

    fn read(&self, _: usize, _: &mut [u8]) -> bool {
        false
    }

    fn prefetch(&self, _: usize, _: usize) {}
}

impl FarMemory for Words<'_> {
    fn store(&mut self, offset: usize, value: u64) {
        // SYNC: pairs with the acquire loads of `handoff::outcome`.
        self.word(offset).store(value, Ordering::Release);
    }

    fn write(&mut self, _: usize, _: &[u8]) -> bool {
        false
    }

    fn prefetch(&self, _: usize, _: usize) {}
}

/// The memories of a worker's user that the engine reaches only by this worker.
#[derive(Debug)]
pub struct Copies {
    area: Option<Mapped>,
    /// The number of each slot's last answer.
    answered: [u64; SLOTS],
    /// By their ids; `None` for a memory that could not be mapped.
    memories: Vec<(u64, Option<Mapped>)>,
}

impl Copies {
    /// Creates room for `memories` memories.
    pub fn with_room(memories: usize) -> Copies {
        Copies { area: None, answered: [0; SLOTS], memories: Vec::with_capacity(memories) }
    }

    /// Maps the copy area, in which the engine has asked for no copy yet, or unmaps it.
    pub fn set_area(&mut self, file: Option<&OwnedFd>) {
        self.answered = [0; SLOTS];
        let area = file.and_then(|file| Mapped::new(file).ok());
        self.area = area.filter(|area| area.len >= AREA_BYTES);
    }

    /// Maps a memory. The engine's copies fail if that is not possible, or if there is no room.
    pub fn add(&mut self, id: u64, file: &OwnedFd) {
        if self.memories.len() < self.memories.capacity() {
            self.memories.push((id, Mapped::new(file).ok()));
        }
    }

    /// Unmaps a memory.
    pub fn remove(&mut self, id: u64) {
        self.memories.retain(|(other, _)| *other != id);
    }

    /// Makes the copies that the engine has asked for. A copy of a memory that is not here waits for it, since the
    /// engine may ask before the worker reads the command that adds it.
    pub fn serve(&mut self) {
        let Some(area) = &self.area else { return };
        let may_come = self.memories.len() < self.memories.capacity();
        for slot in 0..SLOTS {
            let (number, arguments) = question(&Words(area, 0), slot);
            if number == self.answered[slot] {
                continue;
            }
            let [id, offset, len, direction, from, start] = arguments;
            let is_transfer = direction == Direction::Transfer as u64;
            let known = |id| self.memories.iter().find(|(other, _)| *other == id);
            let (memory, source) = (known(id), known(if is_transfer { from } else { id }));
            if (memory.is_none() || source.is_none()) && may_come {
                continue;
            }
            let memory = memory.and_then(|(_, memory)| memory.as_ref());
            let source = source.and_then(|(_, memory)| memory.as_ref());
            let is_copied = match (memory, source) {
                (Some(to), Some(from)) if is_transfer => transfer(to, offset, from, start, len),
                (Some(memory), Some(_)) => {
                    let is_write = direction == Direction::Write as u64;
                    copy_slot(area, slot, memory, offset, len, is_write)
                }
                _ => false,
            };
            self.answered[slot] = number;
            let outcome = if is_copied { COPIED } else { NOT_COPIED };
            answer(&mut Words(area, ANSWERS), slot, number, outcome);
        }
    }
}

/// Copies from memory `from` to memory `to`. Returns `false` if a range is outside of its memory.
fn transfer(to: &Mapped, at: u64, from: &Mapped, start: u64, len: u64) -> bool {
    let ranges = to.range(at, len).zip(from.range(start, len));
    let Some((to, from)) = ranges.filter(|_| len <= TRANSFER_BYTES as u64) else { return false };
    // SAFETY: both ranges are mapped for `len` bytes, as just checked. Where they overlap, the bytes are arbitrary.
    // Applications access the memories at the same time by copies and atomics only, and no reference to them exists.
    unsafe { copy_in_order(from, to, len as usize) };
    true
}

/// Copies between a slot and a range of a memory. Returns `false` if the range is outside of the memory.
fn copy_slot(
    area: &Mapped,
    slot: usize,
    memory: &Mapped,
    offset: u64,
    len: u64,
    is_write: bool,
) -> bool {
    let Some(there) = memory.range(offset, len).filter(|_| len <= COPY_BYTES as u64) else {
        return false;
    };
    let Some(here) = area.range(data_of(slot) as u64, len) else { return false };
    // SAFETY: both ranges are mapped for `len` bytes, as just checked, and do not overlap: they are of different files.
    // Applications access the memory at the same time by copies and atomics only, and no reference to it exists.
    unsafe {
        if is_write {
            copy_in_order(here, there, len as usize);
        } else {
            copy(there, here, len as usize);
        }
    }
    true
}
