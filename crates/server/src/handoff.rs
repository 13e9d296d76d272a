//! Hand-off: how packets that were checked reach the device.
//!
//! A device that has room and nothing waiting gets them at once, a batch together. What it has no
//! room for waits in the backlog, in order, and nothing overtakes it. The backlog is bounded, and
//! its last places are kept for packets small enough to have been copied whole: a peer's bulk does
//! not hold up its neighbours' acknowledgements. When there is no room, packets stay in their
//! queues, and the application sees back pressure.

use std::collections::VecDeque;

use towpath_device::{Device, DeviceError, Packet, Spaces};

use crate::stage::Stage;

/// Packets given to a device at once.
pub const BATCH: usize = 32;
/// Packets that may wait.
pub const BACKLOG: usize = 256;
/// Of these, kept for small packets.
pub const RESERVED: usize = 32;

/// Packets on their way to the device, by their slot in the stage.
#[derive(Debug)]
pub struct Handoff {
    waiting: VecDeque<u32>,
    blocked: bool,
    /// Packets that had to wait.
    pub backlogged: u64,
    /// Packets that the device took.
    pub taken: u64,
    /// Their bytes.
    pub taken_bytes: u64,
}

impl Default for Handoff {
    fn default() -> Self {
        Self::new()
    }
}

impl Handoff {
    /// Nothing waits.
    #[must_use]
    pub fn new() -> Handoff {
        Handoff {
            waiting: VecDeque::with_capacity(BACKLOG),
            blocked: false,
            backlogged: 0,
            taken: 0,
            taken_bytes: 0,
        }
    }

    /// Whether `packets` more may be given, all small ones or not.
    #[inline]
    #[must_use]
    pub fn has_room(&self, packets: usize, small: bool) -> bool {
        let limit = if small { BACKLOG } else { BACKLOG - RESERVED };
        self.waiting.len() + packets <= limit
    }

    /// Whether anything waits for the device.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives a packet; when a batch is together, to the device at once.
    ///
    /// # Errors
    /// When the device as a whole fails.
    #[inline]
    pub fn give(
        &mut self,
        slot: u32,
        stage: &Stage,
        spaces: &Spaces,
        device: &mut dyn Device,
    ) -> Result<(), DeviceError> {
        self.waiting.push_back(slot);
        if self.blocked {
            self.backlogged += 1;
        } else if self.waiting.len() >= BATCH {
            self.flush(stage, spaces, device)?;
        }
        Ok(())
    }

    /// Gives the device what it has room for.
    ///
    /// # Errors
    /// When the device as a whole fails.
    pub fn flush(
        &mut self,
        stage: &Stage,
        spaces: &Spaces,
        device: &mut dyn Device,
    ) -> Result<(), DeviceError> {
        self.blocked = false;
        while !self.waiting.is_empty() {
            let mut batch =
                [Packet { parts: &[], meta: towpath_device::Meta::FINISHED, token: 0 }; BATCH];
            let mut count = 0;
            for slot in self.waiting.iter().take(BATCH) {
                let entry = &stage.slots[*slot as usize];
                batch[count] =
                    Packet { parts: &entry.parts, meta: entry.meta, token: u64::from(*slot) };
                count += 1;
            }
            let taken = device.tx_provide(spaces, &batch[..count])?;
            for slot in self.waiting.drain(..taken) {
                let parts = &stage.slots[slot as usize].parts;
                self.taken_bytes += parts.iter().map(|part| u64::from(part.len)).sum::<u64>();
            }
            self.taken += taken as u64;
            if taken < count {
                self.blocked = true;
                self.backlogged += (count - taken) as u64;
                break;
            }
        }
        Ok(())
    }

    /// Takes away the packets that `gone` names: their session ended.
    pub fn forget(&mut self, mut gone: impl FnMut(u32) -> bool) {
        self.waiting.retain(|slot| !gone(*slot));
    }
}
