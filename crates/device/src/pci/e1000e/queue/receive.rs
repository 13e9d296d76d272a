//! Received packets.

use super::super::descriptor::{self, Written};
use super::super::packets::Oldest;
use super::{E1000eQueue, RX_BUFFER_BYTES};
use crate::{ETHERNET_HEADER_BYTES, Meta, Received, SpaceId, Spaces, VLAN_TAG_BYTES};

impl E1000eQueue {
    /// Gives the device empty buffers. Returns how many the device took.
    pub(super) fn fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.give_dropped(spaces, space);
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

    /// Gives the device the buffers of dropped packets again, and tells it at once: the engine does not know
    /// of these, and may have no other buffer for which it would kick.
    fn give_dropped(&mut self, spaces: &Spaces, space: SpaceId) {
        if self.dropped.is_empty() {
            return;
        }
        while self.rx.room() > 0
            && let Some(buffer) = self.dropped.pop()
        {
            self.give(spaces, space, buffer);
        }
        self.tell_rx();
    }

    /// Gives the device a buffer. The ring has room. Returns `true` if the device reaches the buffer.
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
            let (parts, is_whole) = match self.oldest_packet() {
                Oldest::None => break,
                Oldest::Whole(parts) => (parts, true),
                Oldest::TooLong(parts) => (parts, false),
            };
            count += 1;
            let from = out.len();
            let last = self.take_parts(pool, parts, out);
            let len: usize = out[from..].iter().map(|part| part.len as usize).sum();
            let longest = self.info.mtu + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;
            let is_rest = std::mem::replace(&mut self.discards, !is_whole);
            let last = last.filter(|last| is_whole && !is_rest && !last.is_bad && len <= longest);
            let Some(last) = last else {
                // The first part of a packet that is too long was counted.
                self.counters.rx_dropped += u64::from(!is_rest);
                self.dropped.extend(out.drain(from..).map(|part| part.buffer));
                continue;
            };
            let first = &mut out[from];
            first.meta.checksum = last.checksum;
            first.hash = last.hash;
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += len as u64;
        }
        self.give_dropped(spaces, pool);
        count
    }

    /// Returns the number of buffers of the oldest packet, once the device has written all of them.
    pub(super) fn oldest_packet(&self) -> Oldest {
        let most = self.info.limits.rx_packet_buffers as u32 + 1;
        for ahead in 0..most.min(self.rx.held()) {
            let [first, second] = self.rx.fetch(self.rx.after(self.rx.oldest(), ahead));
            match descriptor::written(first, second) {
                None => return Oldest::None,
                Some(written) if written.is_last => return Oldest::Whole(ahead + 1),
                Some(_) => {}
            }
        }
        if self.rx.held() < most { Oldest::None } else { Oldest::TooLong(most) }
    }

    /// Takes the oldest buffers off the ring, and appends them to `out`. Returns the last descriptor.
    fn take_parts(
        &mut self,
        pool: SpaceId,
        parts: u32,
        out: &mut Vec<Received>,
    ) -> Option<Written> {
        let mut last = None;
        for _ in 0..parts {
            let index = self.rx.oldest();
            let [first, second] = self.rx.fetch(index);
            last = descriptor::written(first, second);
            let Some(written) = last else { break };
            let buffer = self.rx_buffers[index as usize];
            // The device may claim more bytes than the buffer has.
            let len = written.len.min(RX_BUFFER_BYTES as u32);
            let mut part = Received::whole(pool, buffer, buffer, len, Meta::FULL);
            part.continues = !written.is_last;
            out.push(part);
            self.rx.take(1);
        }
        last
    }
}
