//! Receiving: the packets of the wire into the buffers of one end's queue.

use towpath_device::{Meta, POOL_HEADROOM_BYTES, Received, Spaces, VlanTag};

use super::queue::LoopbackQueue;
use super::reception::Reception;

impl LoopbackQueue {
    /// Receives at most `budget` of the waiting packets, each in one buffer, without any work on
    /// them. Returns their number.
    #[inline]
    pub(super) fn receive_whole(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let count = budget.min(self.buffers.len());
        if count == 0 {
            return 0;
        }
        let bytes = self.rx.bytes.slots();
        let bytes = self.rx.bytes.read_chunk(bytes).expect("bytes just counted");
        let packets = self.rx.packets.read_chunk(count).expect("packets just counted");
        let (first, second) = bytes.as_slices();
        let (near, far) = packets.as_slices();
        let mut at = 0;
        let mut returned = 0;
        for boundary in near.iter().chain(far) {
            let end = at + boundary.len as usize;
            let Some((space, buffer)) = self.buffers.pop_front() else { break };
            let offset = buffer + POOL_HEADROOM_BYTES as u32;
            let head = &first[at.min(first.len())..end.min(first.len())];
            let tail = &second[at.saturating_sub(first.len())..end.saturating_sub(first.len())];
            at = end;
            let mut copied = spaces.copy_in(space, offset, head);
            // Only a packet that wraps at the ring's end has a tail.
            if copied.is_ok() && !tail.is_empty() {
                copied = spaces.copy_in(space, offset + head.len() as u32, tail);
            }
            if copied.is_err() {
                // The server removed the buffer's memory since it was provided, so the device drops
                // the buffer.
                self.counters.rx_dropped += 1;
                continue;
            }
            self.counters.received(boundary.len as usize);
            returned += 1;
            out.push(Received::whole(space, buffer, offset, boundary.len, boundary.meta));
        }
        bytes.commit(at);
        packets.commit_all();
        returned
    }

    /// Receives at most `budget` of the waiting packets, processes each, and spreads each over as
    /// many buffers as it takes. Returns how many it handed up.
    pub(super) fn receive_processed(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let mut returned = 0;
        self.filters.follow(&self.shared.filters[self.end]);
        for _ in 0..budget {
            let Ok(boundary) = self.rx.packets.peek().copied() else { break };
            let data_bytes = self.reception.data_bytes.unwrap_or(usize::MAX);
            // A removed tag makes this one buffer too many at most.
            let most = (boundary.len as usize).div_ceil(data_bytes);
            let too_many = most > self.info.limits.rx_packet_buffers;
            self.wanted_buffers = if too_many { 1 } else { most };
            if self.buffers.len() < self.wanted_buffers {
                break;
            }
            let chunk = self.rx.bytes.read_chunk(boundary.len as usize);
            let chunk = chunk.expect("the bytes were published first");
            self.packet.clear();
            let (first, second) = chunk.as_slices();
            self.packet.extend_from_slice(first);
            self.packet.extend_from_slice(second);
            chunk.commit_all();
            let _ = self.rx.packets.pop();
            self.wanted_buffers = 1;
            if too_many {
                self.counters.rx_dropped += 1;
                continue;
            }
            let Reception { filters_addresses: by_address, filters_flows: by_flow, .. } =
                self.reception;
            if !self.filters.let_in(&self.packet, by_address, by_flow) {
                // No filter of the device matches the packet.
                continue;
            }
            let (meta, tag, hash) = self.reception.process(&mut self.packet, boundary.meta);
            returned += usize::from(self.hand_up(spaces, out, data_bytes, meta, tag, hash));
        }
        returned
    }

    /// Copies the packet into pool buffers. Returns `false` if the server removed their memory
    /// since they were provided; the device drops the buffers then.
    fn hand_up(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        data_bytes: usize,
        meta: Meta,
        tag: Option<VlanTag>,
        hash: Option<u32>,
    ) -> bool {
        let before = out.len();
        let count = self.packet.len().div_ceil(data_bytes);
        let mut copied = true;
        for (index, piece) in self.packet.chunks(data_bytes).enumerate() {
            let Some((space, buffer)) = self.buffers.pop_front() else { break };
            let offset = buffer + POOL_HEADROOM_BYTES as u32;
            copied &= spaces.copy_in(space, offset, piece).is_ok();
            let first = index == 0;
            out.push(Received {
                continues: index + 1 < count,
                tag: tag.filter(|_| first),
                hash: hash.filter(|_| first),
                ..Received::whole(
                    space,
                    buffer,
                    offset,
                    piece.len() as u32,
                    if first { meta } else { Meta::FULL },
                )
            });
        }
        if copied {
            self.counters.received(self.packet.len());
        } else {
            out.truncate(before);
            self.counters.rx_dropped += 1;
        }
        copied
    }
}

#[cfg(test)]
mod tests {
    use towpath_memory::Region;
    use towpath_packet::build::Flow;

    use super::*;
    use crate::conformance::{DeviceFarEnd, FarEnd};
    use crate::loopback::{Config, pair};
    use towpath_device::{Armed, Device, DeviceQueue, Space, SpaceId, TagProtocol};
    use towpath_device::{Checksum, MAX_PARTS};

    /// A queue that receives, and the device that sends to it.
    struct World {
        queue: Box<dyn DeviceQueue>,
        far: DeviceFarEnd,
        spaces: Spaces,
        pool: SpaceId,
        stride: u32,
    }

    impl World {
        fn new(reception: Reception) -> World {
            let config = Config { reception, mtu: 9000, ..Config::default() };
            let (mut near, far) = pair(&config).unwrap();
            let mut spaces = Spaces::default();
            let queue = near.open_queue(0, &mut spaces).unwrap();
            let stride = near.info().limits.rx_stride() as u32;
            let region = Region::private(64 * stride as usize).unwrap();
            let pool = spaces.add(Space::writable(region));
            World { queue, far: DeviceFarEnd::new(Box::new(far)), spaces, pool, stride }
        }

        fn fill(&mut self, buffers: std::ops::Range<u32>) {
            let offsets: Vec<u32> = buffers.map(|buffer| buffer * self.stride).collect();
            assert_eq!(self.queue.rx_fill(&self.spaces, self.pool, &offsets), offsets.len());
        }

        fn poll(&mut self, budget: usize) -> (usize, Vec<Received>) {
            let mut received = Vec::new();
            let packets = self.queue.rx_poll(&mut self.spaces, &mut received, budget).unwrap();
            (packets, received)
        }

        fn send(&mut self, frame: &[u8]) {
            assert!(self.far.send(frame, Meta::FULL));
        }
    }

    #[test]
    fn a_long_packet_spans_buffers_and_a_budget_counts_packets() {
        let mut world = World::new(Reception { data_bytes: Some(100), ..Reception::default() });
        world.fill(0..16);
        let lens = |received: &[Received]| -> Vec<(u32, bool)> {
            received.iter().map(|one| (one.len, one.continues)).collect()
        };
        [250, 200, 60].into_iter().for_each(|len| world.send(&vec![1; len]));
        let (packets, received) = world.poll(2);
        let expected = [(100, true), (100, true), (50, false), (100, true), (100, false)];
        assert_eq!((packets, lens(&received)), (2, expected.to_vec()));
        let (packets, received) = world.poll(2);
        assert_eq!((packets, lens(&received)), (1, vec![(60, false)]));
        assert_eq!(world.queue.counters().rx_packets, 3);
    }

    #[test]
    fn a_packet_waits_for_all_of_its_buffers() {
        let mut world = World::new(Reception { data_bytes: Some(100), ..Reception::default() });
        world.fill(0..2);
        world.send(&[1; 250]);
        assert_eq!(world.poll(8).0, 0);
        assert_eq!(world.queue.arm(false).unwrap(), Armed::Sleep, "more polls change nothing");
        world.fill(2..3);
        assert_eq!(world.queue.arm(false).unwrap(), Armed::Work);
        let (packets, received) = world.poll(8);
        assert_eq!((packets, received.len()), (1, 3));
    }

    #[test]
    fn a_packet_in_too_many_buffers_is_dropped_and_counted() {
        let mut world = World::new(Reception { data_bytes: Some(64), ..Reception::default() });
        world.fill(0..64);
        world.send(&vec![1; 64 * MAX_PARTS + 1]);
        world.send(&vec![2; 64 * MAX_PARTS]);
        let (packets, received) = world.poll(8);
        assert_eq!((packets, received.len()), (1, MAX_PARTS));
        let counters = world.queue.counters();
        assert_eq!((counters.rx_dropped, counters.rx_packets), (1, 1));
    }

    #[test]
    fn tag_checksum_and_hash_are_reported_and_the_tag_is_out_of_the_bytes() {
        let reception =
            Reception { removes_tags: true, verifies: true, hashes: true, ..Reception::default() };
        let mut world = World::new(reception);
        world.fill(0..8);
        let mut wrong = Flow::v4().udp(b"hello");
        *wrong.last_mut().unwrap() ^= 1;
        world.send(&Flow::v4().vlan(0xe007).udp(b"hello"));
        world.send(&Flow::v4().udp(b"other"));
        world.send(&wrong);
        world.send(&Flow::v4().ports(5, 6).udp(b"hello"));
        let (packets, received) = world.poll(8);
        assert_eq!(packets, 4);
        let tag = VlanTag { protocol: TagProtocol::Customer, control: 0xe007 };
        assert_eq!((received[0].tag, received[1].tag), (Some(tag), None));
        let mut bytes = vec![0; received[0].len as usize];
        world.spaces.copy_out(world.pool, received[0].offset, &mut bytes).unwrap();
        assert_eq!(bytes, Flow::v4().udp(b"hello"), "the frame without its tag");
        let checksums: Vec<Checksum> = received.iter().map(|one| one.meta.checksum).collect();
        let (right, unknown) = (Checksum::Verified, Checksum::Full);
        assert_eq!(checksums, [right, right, unknown, right]);
        let hashes: Vec<u32> = received.iter().map(|one| one.hash.unwrap()).collect();
        assert!(hashes[0] == hashes[1] && hashes[0] != hashes[3], "{hashes:?}");
    }

    /// A partial checksum starts where it did, as seen from the packet's end.
    #[test]
    fn a_removed_tag_moves_the_partial_checksum() {
        let mut world = World::new(Reception { removes_tags: true, ..Reception::default() });
        world.fill(0..8);
        let (frame, meta) = Flow::v4().vlan(7).udp_partial(b"hello");
        assert!(world.far.send(&frame, meta));
        let (_, received) = world.poll(8);
        assert_eq!(received[0].meta, Flow::v4().udp_partial(b"hello").1);
        assert_eq!(received[0].len as usize, frame.len() - VlanTag::BYTES);
        let mut assembly = towpath_device::Assembly::default();
        let whole = assembly.received(&world.spaces, &received);
        assert_eq!(whole, Some((&frame[..], meta)));
    }
}
