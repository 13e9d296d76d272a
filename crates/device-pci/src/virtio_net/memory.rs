//! The memory that the driver and the device share: the rings, and what lies behind them.

use std::io;
use std::sync::Arc;

use towpath_memory::{Mapping, PAGE_BYTES, Region};

use super::ring::{RING_BYTES, Ring};

/// The places of the rings, by the numbers of the virtqueues.
pub(super) const RINGS_AT: [usize; 3] = [0, RING_BYTES, 2 * RING_BYTES];
/// A command of the control virtqueue, and the device's answer, lie behind the rings.
pub(super) const COMMAND_AT: usize = 3 * RING_BYTES;
/// Zeros for headers and short frames lie behind the command. The driver writes nothing there.
pub(super) const ZEROS_AT: usize = COMMAND_AT + PAGE_BYTES;
const BYTES: usize = ZEROS_AT + PAGE_BYTES;

/// The rings, with the command behind them.
#[derive(Debug)]
pub(super) struct SharedRings {
    pub(super) rx: Ring,
    pub(super) tx: Ring,
    pub(super) control: Ring,
    pub(super) command: Region,
    /// All of the memory.
    pub(super) mapping: Arc<Mapping>,
}

impl SharedRings {
    /// Makes empty rings, which processes forked from this one do not have.
    pub(super) fn new() -> io::Result<SharedRings> {
        let (mut memory, _) = Region::in_own_file("towpath-rings", BYTES)?;
        let mapping = memory.mapping().clone();
        let mut ring = || Ring::new(memory.split_off_front(RING_BYTES), &mapping);
        let (rx, tx, control) = (ring(), ring(), ring());
        let command = memory.split_off_front(PAGE_BYTES);
        Ok(SharedRings { rx, tx, control, command, mapping })
    }
}
