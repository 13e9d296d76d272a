//! The ranges of received data ahead of a gap, and the selective acknowledgements that report them
//! (RFC 2018; duplicates: RFC 2883).

use super::options::{Block, Blocks};
use super::sequence::Seq;

/// The maximum number of ranges. A segment that would need one more is dropped, and counted.
const MAX_RANGES: usize = 1024;
/// The number of recently changed ranges that are remembered, as many as a header reports.
const RECENT: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct OutOfOrder {
    /// Ordered, disjoint, with gaps between them.
    ranges: Vec<Block>,
    /// A position in each of the ranges that changed last, the latest first.
    recent: [Option<Seq>; RECENT],
    /// Data that arrived again, and is not reported yet.
    duplicate: Option<Block>,
}

impl OutOfOrder {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Records that data arrived which had arrived before.
    pub(super) fn note_duplicate(&mut self, block: Block) {
        self.duplicate = Some(block);
    }

    /// Adds a range ahead of a gap. Returns `false` if there are too many ranges.
    pub(super) fn insert(&mut self, block: Block) -> bool {
        let (mut start, mut end) = block;
        // The ranges that touch the new one are those from `first` to before `last`.
        let first = self.ranges.partition_point(|range| range.1.before(start));
        let last = self.ranges.partition_point(|range| !range.0.after(end));
        if first == last {
            if self.ranges.len() == MAX_RANGES {
                return false;
            }
            self.ranges.insert(first, block);
        } else {
            let (head, tail) = (self.ranges[first], self.ranges[last - 1]);
            if !start.before(head.0) && !end.after(head.1) {
                self.note_duplicate(block);
            }
            start = start.min(head.0);
            end = end.max(tail.1);
            self.ranges[first] = (start, end);
            self.ranges.drain(first + 1..last);
        }
        self.note_recent(block.0);
        true
    }

    fn note_recent(&mut self, at: Seq) {
        let mut moved = Some(at);
        for place in &mut self.recent {
            std::mem::swap(place, &mut moved);
            if moved == Some(at) {
                break;
            }
        }
    }

    /// Returns the end of the data without a gap, if data up to `next` has arrived, and forgets the
    /// ranges before it.
    pub(super) fn advance(&mut self, next: Seq) -> Seq {
        let mut end = next;
        let mut passed = 0;
        for range in &self.ranges {
            if range.0.after(end) {
                break;
            }
            end = end.max(range.1);
            passed += 1;
        }
        self.ranges.drain(..passed);
        if self.ranges.is_empty() {
            self.recent = [None; RECENT];
            if self.ranges.capacity() > RECENT {
                self.ranges.shrink_to(RECENT);
            }
        }
        end
    }

    /// Returns the blocks to report: duplicate data first, then the ranges that changed last, the
    /// latest first (RFC 2018, 4). A duplicate is reported once.
    pub(super) fn blocks(&self) -> Blocks {
        let mut blocks = Blocks::default();
        if let Some(duplicate) = self.duplicate {
            blocks.push(duplicate);
        }
        let mut reported = Blocks::default();
        for &at in self.recent.iter().flatten() {
            let index = self.ranges.partition_point(|range| !range.1.after(at));
            if let Some(&range) = self.ranges.get(index)
                && !at.before(range.0)
                && !reported.as_slice().contains(&range)
            {
                reported.push(range);
                blocks.push(range);
            }
        }
        blocks
    }

    /// Forgets the reported duplicate.
    pub(super) fn reported(&mut self) {
        self.duplicate = None;
    }

    pub(super) fn clear(&mut self) {
        *self = OutOfOrder::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn block(start: u32, end: u32) -> Block {
        (Seq(start), Seq(end))
    }

    #[test]
    fn the_newest_range_is_reported_first() {
        let mut out_of_order = OutOfOrder::default();
        for (start, end) in [(30, 40), (10, 20), (50, 60), (70, 80), (90, 95)] {
            assert!(out_of_order.insert(block(start, end)));
        }
        let expected = [block(90, 95), block(70, 80), block(50, 60), block(10, 20)];
        assert_eq!(out_of_order.blocks().as_slice(), &expected);
        assert!(out_of_order.insert(block(20, 30)));
        let expected = [block(10, 40), block(90, 95), block(70, 80), block(50, 60)];
        assert_eq!(out_of_order.blocks().as_slice(), &expected);
        assert_eq!(out_of_order.advance(Seq(5)), Seq(5));
        assert_eq!(out_of_order.advance(Seq(10)), Seq(40));
        assert_eq!(out_of_order.advance(Seq(90)), Seq(95));
        assert!(out_of_order.is_empty());
    }

    #[test]
    fn duplicates_are_reported_once_and_first() {
        let mut out_of_order = OutOfOrder::default();
        out_of_order.insert(block(10, 20));
        out_of_order.insert(block(12, 14));
        assert_eq!(out_of_order.blocks().as_slice(), &[block(12, 14), block(10, 20)]);
        out_of_order.reported();
        assert_eq!(out_of_order.blocks().as_slice(), &[block(10, 20)]);
    }

    #[test]
    fn ranges_agree_with_a_map_of_bytes() {
        let mut random = Random::new(3);
        for round in 0..200 {
            let base = Seq(0xffff_ff00_u32.wrapping_add(round));
            let mut out_of_order = OutOfOrder::default();
            let mut map = [false; 512];
            for _ in 0..40 {
                let start = 1 + random.next() as u32 % 500;
                let len = 1 + random.next() as u32 % 11;
                assert!(out_of_order.insert((base + start, base + start + len)));
                map[start as usize..(start + len) as usize].fill(true);
            }
            let mut ranges = Vec::new();
            for at in 1..512u32 {
                match (map[at as usize - 1], map[at as usize]) {
                    (false, true) => ranges.push((base + at, base + at)),
                    (true, false) => ranges.last_mut().unwrap().1 = base + at,
                    _ => {}
                }
            }
            if map[511] {
                ranges.last_mut().unwrap().1 = base + 512;
            }
            assert_eq!(out_of_order.ranges, ranges);
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut out_of_order = OutOfOrder::default();
        let inserted = (0..2 * MAX_RANGES as u32)
            .filter(|n| out_of_order.insert(block(n * 10 + 1, n * 10 + 2)));
        assert_eq!(inserted.count(), MAX_RANGES);
        assert!(
            out_of_order.insert(block(1, 20 * MAX_RANGES as u32)),
            "a range that closes gaps is always taken"
        );
    }
}
