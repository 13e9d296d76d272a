//! Received packets.

use super::super::descriptor::{self, Written};
use super::{E1000eQueue, RX_BUFFER_BYTES};
use crate::{ETHERNET_HEADER_BYTES, Meta, Received, SpaceId, Spaces, VLAN_TAG_BYTES};

impl E1000eQueue {
    /// Gives the device empty buffers. Returns how many it took.
    pub(super) fn fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        // Those of dropped packets first: the ring has room for them.
        while self.rx.room() > 0
            && let Some(buffer) = self.dropped.pop()
        {
            self.give(spaces, space, buffer);
        }
        let mut taken = 0;
        for buffer in buffers {
            let is_good = self.rx.room() > 0
                && spaces.is_writable(space, *buffer, RX_BUFFER_BYTES as u32)
                && self.give(spaces, space, *buffer);
            if !is_good {
                break;
            }
            taken += 1;
        }
        taken
    }

    /// Gives the device a buffer, for which there is room. Returns `false` if the device does not reach it.
    fn give(&mut self, spaces: &Spaces, space: SpaceId, buffer: u32) -> bool {
        let address = spaces.device_address(space, buffer, RX_BUFFER_BYTES as u32);
        let Some(address) = address else { return false };
        self.rx_buffers[self.rx.tail() as usize] = buffer;
        self.rx.push(descriptor::empty(address));
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
            let from = out.len();
            let Some(last) = self.fetch_packet(pool, out) else {
                out.truncate(from);
                break;
            };
            count += 1;
            let parts = out.len() - from;
            self.rx.take(parts as u32);
            let len: usize = out[from..].iter().map(|part| part.len as usize).sum();
            let longest = self.info.mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
            if last.is_bad || len > longest || parts > self.info.limits.rx_packet_buffers {
                self.counters.rx_dropped += 1;
                self.dropped.extend(out.drain(from..).map(|part| part.buffer));
                continue;
            }
            let first = &mut out[from];
            first.meta.checksum = last.checksum;
            first.hash = last.hash;
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += len as u64;
        }
        if !self.dropped.is_empty() {
            self.fill(spaces, pool, &[]);
        }
        count
    }

    /// Appends the buffers of the oldest packet to `out`. Returns its last descriptor; `None` if the device
    /// has not written all of them.
    fn fetch_packet(&self, pool: SpaceId, out: &mut Vec<Received>) -> Option<Written> {
        for ahead in 0..self.rx.held() {
            let index = self.rx.after(self.rx.oldest(), ahead);
            let [first, second] = self.rx.fetch(index);
            let written = descriptor::written(first, second)?;
            let buffer = self.rx_buffers[index as usize];
            // The device is believed in nothing that would lead outside of the buffer.
            let len = written.len.min(RX_BUFFER_BYTES as u32);
            let mut part = Received::whole(pool, buffer, buffer, len, Meta::FULL);
            part.continues = !written.is_last;
            out.push(part);
            if written.is_last {
                return Some(written);
            }
        }
        None
    }
}
