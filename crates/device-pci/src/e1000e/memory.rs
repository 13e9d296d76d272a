//! The memory that the driver and the device share: both rings, and what lies behind them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_device::SHORTEST_FRAME_BYTES;
use towpath_memory::{Mapping, Region};
use towpath_packet::segment::MAX_HEADER_BYTES;

use super::descriptor::DESCRIPTOR_BYTES;
use super::ring::Ring;

/// Descriptors of each ring: a multiple of 8 (`RDLEN` counts in 128 bytes).
pub(super) const RING_ENTRIES: u32 = 512;
/// Bytes of a ring.
pub(super) const RING_BYTES: usize = RING_ENTRIES as usize * DESCRIPTOR_BYTES;
/// Headers of large packets lie behind both rings, with a place for each transmit descriptor.
pub(super) const HEADERS_AT: usize = 2 * RING_BYTES;
/// Zeros for short frames lie behind the headers.
pub(super) const ZEROS_AT: usize = HEADERS_AT + RING_ENTRIES as usize * MAX_HEADER_BYTES;
const BYTES: usize = ZEROS_AT + SHORTEST_FRAME_BYTES;

/// The rings, with the headers behind them.
#[derive(Debug)]
pub(super) struct SharedRings {
    pub(super) rx: Ring,
    pub(super) tx: Ring,
    /// The headers of large packets, which begin at [`HEADERS_AT`].
    pub(super) headers: Region,
    /// All of the memory.
    pub(super) mapping: Arc<Mapping>,
}

impl SharedRings {
    /// Makes two empty rings in a memory file, which a keeper can hold.
    pub(super) fn new() -> io::Result<(SharedRings, OwnedFd)> {
        let (memory, file) = Region::in_kept_file("towpath-rings", BYTES)?;
        Ok((SharedRings::over(memory), file))
    }

    /// Maps the rings of an earlier server; `None` for a file of another size.
    pub(super) fn of_earlier(file: OwnedFd) -> io::Result<Option<(SharedRings, OwnedFd)>> {
        if !Region::is_file_of(&file, BYTES) {
            return Ok(None);
        }
        let (memory, file) = Region::of_earlier_file(file, BYTES)?;
        Ok(Some((SharedRings::over(memory), file)))
    }

    fn over(mut memory: Region) -> SharedRings {
        let mapping = memory.mapping().clone();
        let rx = Ring::new(memory.split_off_front(RING_BYTES), &mapping);
        let tx = Ring::new(memory.split_off_front(RING_BYTES), &mapping);
        SharedRings { rx, tx, headers: memory, mapping }
    }
}
