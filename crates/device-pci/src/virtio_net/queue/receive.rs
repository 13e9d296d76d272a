//! Received packets.

use towpath_device::virtio::{self, HEADER_BYTES};
use towpath_device::{Meta, Received, SpaceId, Spaces, longest_frame};

use super::super::ring::{Piece, Used};
use super::{HEADROOM_BYTES, VirtioNetQueue};

/// The place of the device's header in a receive buffer.
const HEADER_AT: u32 = (HEADROOM_BYTES - HEADER_BYTES) as u32;

impl VirtioNetQueue {
    /// Gives the device empty buffers. Returns how many the device took.
    pub(super) fn fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        let bytes = self.parts.info.limits.rx_buffer_bytes as u32;
        let mut takes = |buffer: u32| {
            spaces.is_writable(space, buffer, bytes) && self.give(spaces, space, buffer)
        };
        buffers.iter().take_while(|buffer| takes(**buffer)).count()
    }

    /// Gives the device the buffers of dropped packets again, and tells it at once: the engine does not know of
    /// these, and may have no other buffer for which it would kick.
    pub(super) fn release_dropped(&mut self, spaces: &Spaces) {
        let Some(pool) = self.pool.filter(|_| !self.dropped.is_empty()) else { return };
        while let Some(buffer) = self.dropped.pop() {
            if !self.give(spaces, pool, buffer) {
                self.dropped.push(buffer);
                break;
            }
        }
        self.tell_rx();
    }

    /// Gives the device a buffer. Returns `false` if the ring has no room, or the device does not reach the
    /// buffer.
    fn give(&mut self, spaces: &Spaces, space: SpaceId, buffer: u32) -> bool {
        let bytes = self.parts.info.limits.rx_buffer_bytes as u32;
        let Some(address) = spaces.device_address(space, buffer, bytes) else { return false };
        let (address, len) = (address + u64::from(HEADER_AT), bytes - HEADER_AT);
        let Some(head) = self.parts.rx.push(&[Piece { address, len, is_written: true }]) else {
            return false;
        };
        self.buffers[usize::from(head)] = buffer;
        true
    }

    /// Appends packets to `out`. Returns how many, dropped ones included.
    pub(super) fn receive(
        &mut self,
        spaces: &Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let Some(pool) = self.pool else { return 0 };
        let mut count = 0;
        while count < budget {
            let used = match self.parts.rx.take() {
                Ok(Some(used)) => used,
                Ok(None) => break,
                Err(_) => {
                    self.is_wrong = true;
                    break;
                }
            };
            count += 1;
            let buffer = self.buffers[usize::from(used.head)];
            let Some(len) = self.packet_len(spaces, pool, buffer, used) else {
                self.counters.rx_dropped += 1;
                self.dropped.push(buffer);
                continue;
            };
            self.counters.received(len as usize);
            let data = buffer + HEADROOM_BYTES as u32;
            out.push(Received::whole(pool, buffer, data, len, Meta::FULL));
        }
        count
    }

    /// Returns the length of the packet that the device has written; `None` for one that is too short or too long,
    /// or whose header has what the driver did not ask for.
    fn packet_len(&self, spaces: &Spaces, pool: SpaceId, buffer: u32, used: Used) -> Option<u32> {
        let len = used.len.checked_sub(HEADER_BYTES as u32)?;
        let longest = longest_frame(self.parts.info.mtu);
        if len == 0 || len as usize > longest {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        spaces.copy_out(pool, buffer + HEADER_AT, &mut header).ok()?;
        virtio::meta(header, len as usize)?.is_full().then_some(len)
    }
}
