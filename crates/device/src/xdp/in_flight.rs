//! The packets that the kernel has to send, found by the addresses of their descriptors.
//!
//! The kernel completes descriptors by address, in any order (`XDP_UMEM_COMPLETION_RING`). A packet
//! is complete when all of its descriptors are.

/// Stands for no entry.
const NONE: u32 = u32::MAX;

/// A packet.
#[derive(Clone, Copy)]
struct Packet {
    token: u64,
    len: u32,
    /// Descriptors that the kernel has not completed; 0 for a free entry.
    left: u32,
    /// The number of packets before this one, since the start.
    sequence: u64,
}

/// A descriptor of a packet.
#[derive(Clone, Copy)]
struct Part {
    address: u64,
    packet: u32,
    /// The next descriptor with an address in the same chunk.
    next: u32,
}

/// A packet that the kernel completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) token: u64,
    /// The packet's length in bytes.
    pub(super) len: u32,
}

/// The packets in flight.
pub(super) struct PacketsInFlight {
    packets: Vec<Packet>,
    free_packets: Vec<u32>,
    parts: Vec<Part>,
    free_parts: Vec<u32>,
    /// The first descriptor in each chunk.
    chunks: Vec<u32>,
    chunk_shift: u32,
    taken: u64,
}

impl PacketsInFlight {
    /// Creates room for so many packets, and as many descriptors, in `chunks` chunks of
    /// 2^`chunk_shift` bytes.
    pub(super) fn new(packets: u32, chunks: u32, chunk_shift: u32) -> PacketsInFlight {
        let packet = Packet { token: 0, len: 0, left: 0, sequence: 0 };
        let part = Part { address: 0, packet: NONE, next: NONE };
        PacketsInFlight {
            packets: vec![packet; packets as usize],
            free_packets: (0..packets).rev().collect(),
            parts: vec![part; packets as usize],
            free_parts: (0..packets).rev().collect(),
            chunks: vec![NONE; chunks as usize],
            chunk_shift,
            taken: 0,
        }
    }

    /// Returns the number of packets.
    pub(super) fn len(&self) -> usize {
        self.packets.len() - self.free_packets.len()
    }

    /// Returns `true` if there is room for a packet with so many descriptors.
    pub(super) fn has_room(&self, parts: usize) -> bool {
        !self.free_packets.is_empty() && self.free_parts.len() >= parts
    }

    /// Adds a packet with descriptors at these addresses. The caller knows that there is room, and
    /// that the addresses are in the registered memory.
    pub(super) fn add(&mut self, token: u64, len: u32, addresses: impl Iterator<Item = u64>) {
        let Some(packet) = self.free_packets.pop() else { return };
        let mut left = 0;
        for address in addresses {
            let Some(part) = self.free_parts.pop() else { break };
            let chunk = &mut self.chunks[(address >> self.chunk_shift) as usize];
            self.parts[part as usize] = Part { address, packet, next: *chunk };
            *chunk = part;
            left += 1;
        }
        self.packets[packet as usize] = Packet { token, len, left, sequence: self.taken };
        self.taken += 1;
    }

    /// Records the completion of a descriptor. Returns the packet if that was its last one.
    pub(super) fn complete(&mut self, address: u64) -> Option<Sent> {
        let chunk = (address >> self.chunk_shift) as usize;
        let (mut before, mut at) = (NONE, *self.chunks.get(chunk)?);
        while self.parts.get(at as usize)?.address != address {
            (before, at) = (at, self.parts[at as usize].next);
        }
        let Part { packet, next, .. } = self.parts[at as usize];
        match self.parts.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.chunks[chunk] = next,
        }
        self.free_parts.push(at);
        let entry = &mut self.packets[packet as usize];
        entry.left -= 1;
        if entry.left > 0 {
            return None;
        }
        self.free_packets.push(packet);
        Some(Sent { token: entry.token, len: entry.len })
    }

    /// Removes all packets. Returns their tokens in the order in which the packets were added.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        let mut all: Vec<&Packet> = self.packets.iter().filter(|packet| packet.left > 0).collect();
        all.sort_by_key(|packet| packet.sequence);
        let tokens = all.iter().map(|packet| packet.token).collect();
        for packet in &mut self.packets {
            packet.left = 0;
        }
        let count = self.packets.len() as u32;
        self.free_packets = (0..count).rev().collect();
        self.free_parts = (0..count).rev().collect();
        self.chunks.fill(NONE);
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_sent_when_all_of_its_descriptors_are() {
        let mut in_flight = PacketsInFlight::new(8, 4, 11);
        in_flight.add(7, 3000, [256, 2048].into_iter());
        in_flight.add(8, 60, [256].into_iter());
        in_flight.add(9, 60, [257].into_iter());
        assert_eq!(in_flight.len(), 3);
        assert_eq!(in_flight.complete(300), None, "no such descriptor");
        assert_eq!(in_flight.complete(1 << 40), None, "outside of the memory");
        assert_eq!(in_flight.complete(257), Some(Sent { token: 9, len: 60 }));
        assert_eq!(in_flight.complete(2048), None);
        // Two packets with one address: the first completion is of one of them.
        let both = [in_flight.complete(256), in_flight.complete(256)];
        assert!(both.contains(&Some(Sent { token: 7, len: 3000 })));
        assert!(both.contains(&Some(Sent { token: 8, len: 60 })));
        assert_eq!((in_flight.len(), in_flight.complete(256)), (0, None));
    }

    #[test]
    fn room_is_for_packets_and_descriptors() {
        let mut in_flight = PacketsInFlight::new(4, 4, 11);
        in_flight.add(1, 60, [0, 1, 2].into_iter());
        assert!(in_flight.has_room(1) && !in_flight.has_room(2));
        in_flight.add(2, 60, [3].into_iter());
        assert!(!in_flight.has_room(1));
        in_flight.complete(3);
        assert!(in_flight.has_room(1));
    }

    #[test]
    fn a_reset_returns_the_packets_in_order() {
        let mut in_flight = PacketsInFlight::new(8, 4, 11);
        for token in 0..6 {
            in_flight.add(token, 60, [token * 64].into_iter());
        }
        in_flight.complete(64);
        in_flight.add(6, 60, [4096].into_iter());
        assert_eq!(in_flight.take_all(), [0, 2, 3, 4, 5, 6]);
        assert!(in_flight.len() == 0 && in_flight.has_room(8));
        assert_eq!(in_flight.complete(0), None);
    }
}
