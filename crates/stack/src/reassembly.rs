//! Reassembly of packets from fragments (RFC 791, RFC 8200 4.5, RFC 5722).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::ip::{self, FragmentOf, Header, Packet};
use crate::{Counters, Instant};

/// Room in front of the payload for a header without options.
const HEADROOM: usize = 40;
/// The maximum number of ranges; more is an attack.
const MAX_RANGES: usize = 64;
/// The accounted cost of an incomplete packet, beside its bytes.
const OVERHEAD: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    id: u32,
    /// IPv4 counts identifications for each protocol; IPv6 does not.
    protocol: u8,
}

struct Partial {
    /// Headroom, then the received part of the payload.
    bytes: Vec<u8>,
    /// Received ranges, as start and end in the payload, in ascending order, with holes between
    /// them.
    ranges: Vec<(usize, usize)>,
    total: Option<usize>,
    protocol: u8,
    hop_limit: u8,
    traffic_class: u8,
    deadline: Instant,
    /// `true` if fragments overlapped: the stack drops the rest of the packet too.
    poisoned: bool,
}

/// Incomplete packets.
pub(crate) struct Reassembly {
    partials: HashMap<Key, Partial>,
    /// The keys, in the order of their deadlines.
    order: VecDeque<(Instant, Key)>,
    bytes: usize,
    limit: usize,
    limit_bytes: usize,
    time: Duration,
}

impl Reassembly {
    pub(crate) fn new(limit: usize, limit_bytes: usize, time: Duration) -> Self {
        Reassembly {
            partials: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            limit,
            limit_bytes,
            time,
        }
    }

    /// Adds a fragment. Returns the whole packet, with a header without options, if this was the
    /// last missing fragment.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        part: FragmentOf,
        counters: &mut Counters,
    ) -> Option<Vec<u8>> {
        counters.fragments_received += 1;
        let (start, end) = (part.offset, part.offset + packet.payload.len());
        let room = 65_535 - if packet.src.is_ipv4() { 20 } else { 0 };
        if start == end || end > room || (part.more && !packet.payload.len().is_multiple_of(8)) {
            counters.reassembly_malformed += 1;
            return None;
        }
        let protocol = if packet.src.is_ipv4() { packet.protocol } else { 0 };
        let key = Key { src: packet.src, dst: packet.dst, id: part.id, protocol };
        if !self.partials.contains_key(&key) {
            if self.limit == 0 {
                counters.reassembly_limit += 1;
                return None;
            }
            while self.partials.len() >= self.limit {
                self.evict(counters);
            }
            let deadline = now + self.time;
            self.partials.insert(key, Partial::new(packet, deadline));
            self.order.push_back((deadline, key));
            self.bytes += OVERHEAD;
        }
        let partial = self.partials.get_mut(&key)?;
        if partial.poisoned {
            counters.reassembly_overlap += 1;
            return None;
        }
        let held = partial.bytes.capacity();
        let fit = partial.place(start, end, part.more, packet.payload);
        partial.mark(packet);
        if start == 0 {
            partial.protocol = packet.protocol;
        }
        self.bytes = self.bytes - held + partial.bytes.capacity();
        match fit {
            Fit::Whole => {
                let partial = self.remove(&key)?;
                counters.reassembled += 1;
                Some(partial.finish(&key))
            }
            Fit::Part => {
                while self.bytes > self.limit_bytes && !self.partials.is_empty() {
                    self.evict(counters);
                }
                None
            }
            Fit::Overlap => {
                counters.reassembly_overlap += 1;
                self.bytes -= partial.bytes.capacity();
                partial.bytes = Vec::new();
                partial.ranges = Vec::new();
                partial.poisoned = true;
                None
            }
            Fit::TooManyHoles => {
                counters.reassembly_limit += 1;
                self.remove(&key);
                None
            }
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Partial> {
        let partial = self.partials.remove(key)?;
        self.bytes -= partial.bytes.capacity() + OVERHEAD;
        // A removed packet leaves an obsolete entry in the order; the number of such entries is
        // limited.
        if self.order.len() > self.limit * 2 + 16 {
            let partials = &self.partials;
            self.order.retain(|(at, key)| partials.get(key).is_some_and(|p| p.deadline == *at));
        }
        Some(partial)
    }

    /// Drops the oldest packet.
    fn evict(&mut self, counters: &mut Counters) {
        while let Some((at, key)) = self.order.pop_front() {
            if self.partials.get(&key).is_some_and(|partial| partial.deadline == at) {
                counters.reassembly_limit += 1;
                self.remove(&key);
                return;
            }
        }
    }

    /// Drops packets that are still incomplete after their time.
    pub(crate) fn expire(&mut self, now: Instant, counters: &mut Counters) {
        while let Some(&(at, key)) = self.order.front() {
            let live = self.partials.get(&key).is_some_and(|partial| partial.deadline == at);
            if live && at > now {
                return;
            }
            self.order.pop_front();
            if live {
                counters.reassembly_timeout += 1;
                self.remove(&key);
            }
        }
    }

    /// Returns the time at which the next packet expires.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        self.order.front().map(|(at, _)| *at)
    }

    /// Returns the number of bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

enum Fit {
    Part,
    Whole,
    Overlap,
    TooManyHoles,
}

impl Partial {
    fn new(packet: &Packet<'_>, deadline: Instant) -> Self {
        Partial {
            bytes: Vec::new(),
            ranges: Vec::new(),
            total: None,
            protocol: packet.protocol,
            hop_limit: packet.hop_limit,
            traffic_class: packet.traffic_class,
            deadline,
            poisoned: false,
        }
    }

    /// The whole packet has met congestion if a fragment has (RFC 3168, 5.3).
    fn mark(&mut self, packet: &Packet<'_>) {
        if packet.is_congested() {
            self.traffic_class |= ip::ECN_BITS;
        }
    }

    fn place(&mut self, start: usize, end: usize, more: bool, payload: &[u8]) -> Fit {
        let last = self.ranges.last().map_or(0, |&(_, end)| end);
        if match self.total {
            // A packet has one end, and no byte after it.
            Some(total) => end > total || (!more && end != total),
            None => !more && last > end,
        } {
            return Fit::Overlap;
        }
        let at = self.ranges.partition_point(|&(_, other)| other <= start);
        if let Some(&(other, other_end)) = self.ranges.get(at)
            && other < end
        {
            // An exact copy of received bytes may come from an honest network; other bytes are an
            // attack.
            let held = self.bytes.get(HEADROOM + start..HEADROOM + end);
            let copy = other <= start && end <= other_end && held == Some(payload);
            return if copy { Fit::Part } else { Fit::Overlap };
        }
        if !more {
            self.total = Some(end);
        }
        if self.bytes.len() < HEADROOM + end {
            self.bytes.resize(HEADROOM + end, 0);
        }
        self.bytes[HEADROOM + start..HEADROOM + end].copy_from_slice(payload);
        let joins_before = at > 0 && self.ranges[at - 1].1 == start;
        let joins_after = self.ranges.get(at).is_some_and(|&(other, _)| other == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = end,
            (false, true) => self.ranges[at].0 = start,
            (false, false) if self.ranges.len() >= MAX_RANGES => return Fit::TooManyHoles,
            (false, false) => self.ranges.insert(at, (start, end)),
        }
        match self.total {
            Some(total) if self.ranges == [(0, total)] => Fit::Whole,
            _ => Fit::Part,
        }
    }

    /// Writes the header, and returns the packet.
    fn finish(mut self, key: &Key) -> Vec<u8> {
        let payload_bytes = self.bytes.len() - HEADROOM;
        let header = Header {
            src: key.src,
            dst: key.dst,
            protocol: self.protocol,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            payload_bytes,
            fragment: None,
        };
        let start = HEADROOM - ip::header_len(key.src);
        header.write(&mut self.bytes[start..]);
        self.bytes.drain(..start);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        reassembly: Reassembly,
        counters: Counters,
    }

    impl Bench {
        fn new(limit: usize, bytes: usize) -> Self {
            let reassembly = Reassembly::new(limit, bytes, Duration::from_secs(30));
            Bench { reassembly, counters: Counters::default() }
        }

        fn add(&mut self, id: u32, offset: usize, more: bool, payload: &[u8]) -> Option<Vec<u8>> {
            self.add_of_class(0, (id, offset, more), payload)
        }

        fn add_of_class(
            &mut self,
            traffic_class: u8,
            (id, offset, more): (u32, usize, bool),
            payload: &[u8],
        ) -> Option<Vec<u8>> {
            let packet = Packet {
                src: "10.0.0.1".parse().unwrap(),
                dst: "10.0.0.2".parse().unwrap(),
                protocol: 17,
                hop_limit: 64,
                protocol_at: 9,
                payload,
                bytes: payload,
                traffic_class,
                fragment: None,
            };
            let part = FragmentOf { id, offset, more };
            self.reassembly.add(Instant::ZERO, &packet, part, &mut self.counters)
        }
    }

    #[test]
    fn any_order_makes_the_packet() {
        let whole: Vec<u8> = (0..40).collect();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut bench = Bench::new(4, 1 << 20);
            let mut made = None;
            for (count, part) in order.into_iter().enumerate() {
                let (start, end) = (part * 16, (part * 16 + 16).min(40));
                made = bench.add(1, start, part < 2, &whole[start..end]);
                assert_eq!(made.is_some(), count == 2);
            }
            assert_eq!(ip::parse_v4(&made.unwrap(), false).unwrap().payload, whole);
            assert_eq!(bench.reassembly.bytes(), 0);
        }
    }

    #[test]
    fn a_mark_of_congestion_on_any_fragment_is_kept() {
        for (classes, whole) in [([0xb8, 0xb8], 0xb8), ([0xb9, 0xbb], 0xbb), ([0xbb, 0xb9], 0xbb)] {
            let mut bench = Bench::new(4, 1 << 20);
            assert!(bench.add_of_class(classes[0], (1, 0, true), &[1; 16]).is_none());
            let made = bench.add_of_class(classes[1], (1, 16, false), &[1; 16]).unwrap();
            assert_eq!(ip::parse_v4(&made, false).unwrap().traffic_class, whole);
        }
    }

    #[test]
    fn an_overlap_poisons_and_a_copy_does_not() {
        let mut bench = Bench::new(4, 1 << 20);
        assert!(bench.add(1, 0, true, &[1; 16]).is_none());
        assert!(bench.add(1, 0, true, &[1; 16]).is_none());
        assert_eq!(bench.counters.reassembly_overlap, 0);
        assert!(bench.add(1, 8, true, &[2; 16]).is_none());
        assert!(bench.add(1, 16, false, &[2; 16]).is_none());
        assert_eq!(bench.counters.reassembly_overlap, 2);
        assert_eq!(bench.counters.reassembled, 0);
        // A teardrop: a second end inside the first.
        assert!(bench.add(2, 16, false, &[1; 16]).is_none());
        assert!(bench.add(2, 8, false, &[1; 8]).is_none());
        assert_eq!(bench.counters.reassembly_overlap, 3);
    }

    #[test]
    fn memory_and_number_are_bounded() {
        let mut bench = Bench::new(8, 300_000);
        for id in 0..1000 {
            assert!(bench.add(id, 65_504, true, &[0; 8]).is_none());
            assert!(bench.reassembly.bytes() <= 300_000 && bench.reassembly.partials.len() <= 8);
        }
        assert!(bench.counters.reassembly_limit >= 990);
        assert!(bench.add(1, 65_528, true, &[0; 16]).is_none());
        assert_eq!(bench.counters.reassembly_malformed, 1);
        // More holes than the limit.
        let mut bench = Bench::new(8, 1 << 20);
        for hole in 0..200 {
            assert!(bench.add(1, hole * 16, true, &[0; 8]).is_none());
        }
        assert!(bench.counters.reassembly_limit > 0);
        bench.reassembly.expire(Instant::from_millis(30_000), &mut bench.counters);
        assert_eq!((bench.reassembly.bytes(), bench.reassembly.poll_at()), (0, None));
    }
}
