//! The received byte ranges of a PDU.

/// The maximum number of ranges with holes between them. A sender's fragments in any order make at
/// most about half as many ranges as there are fragments; more is an attack.
pub(crate) const MAX_RANGES: usize = 64;

/// The relation of a fragment to the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// All of the fragment is new.
    New,
    /// All of the fragment has arrived before.
    Known,
    /// Some of the fragment has arrived before.
    Overlaps,
    /// The fragment is new, and makes too many holes.
    TooMany,
}

/// Starts and ends of ranges, in ascending order, with a hole between neighbours. The next PDU
/// reuses the memory.
#[derive(Debug)]
pub(crate) struct Ranges {
    all: Vec<(u32, u32)>,
}

impl Default for Ranges {
    fn default() -> Ranges {
        Ranges { all: Vec::with_capacity(MAX_RANGES) }
    }
}

impl Ranges {
    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }

    /// Records the bytes from `start` to `end` (at least one) if all of them are new.
    pub(crate) fn place(&mut self, start: u32, end: u32) -> Placed {
        // The ranges before `at` end at or before `start`.
        let at = self.all.partition_point(|range| range.1 <= start);
        if let Some(next) = self.all.get(at)
            && next.0 < end
        {
            let within = next.0 <= start && end <= next.1;
            return if within { Placed::Known } else { Placed::Overlaps };
        }
        let joins_before = at > 0 && self.all[at - 1].1 == start;
        let joins_after = self.all.get(at).is_some_and(|next| next.0 == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.all[at - 1].1 = self.all[at].1;
                self.all.remove(at);
            }
            (true, false) => self.all[at - 1].1 = end,
            (false, true) => self.all[at].0 = start,
            (false, false) if self.all.len() == MAX_RANGES => return Placed::TooMany,
            (false, false) => self.all.insert(at, (start, end)),
        }
        Placed::New
    }

    /// Returns `true` if all bytes up to `total` have arrived.
    pub(crate) fn is_whole(&self, total: u32) -> bool {
        self.all.len() == 1 && self.all[0] == (0, total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a table of bytes.
        #[test]
        fn ranges_match_a_table_of_bytes(steps in prop::collection::vec((0_u32..300, 1_u32..20), 1..200)) {
            let mut ranges = Ranges::default();
            let mut table = [false; 320];
            for (start, len) in steps {
                let bytes = start as usize..(start + len) as usize;
                let known = table[bytes.clone()].iter().filter(|one| **one).count();
                let placed = ranges.place(start, start + len);
                if known == 0 {
                    prop_assert!(matches!(placed, Placed::New | Placed::TooMany));
                } else if known == len as usize {
                    prop_assert_eq!(placed, Placed::Known);
                } else {
                    prop_assert_eq!(placed, Placed::Overlaps);
                }
                if placed == Placed::New {
                    table[bytes].fill(true);
                }
                prop_assert!(ranges.all.len() <= MAX_RANGES);
                let count = table.iter().filter(|one| **one).count() as u32;
                prop_assert_eq!(ranges.is_whole(count), table[..count as usize].iter().all(|b| *b));
            }
        }
    }

    #[test]
    fn ranges_bound_the_number_of_holes() {
        let mut ranges = Ranges::default();
        for hole in 0..MAX_RANGES as u32 {
            assert_eq!(ranges.place(hole * 2, hole * 2 + 1), Placed::New);
        }
        assert_eq!(ranges.place(1000, 1001), Placed::TooMany);
        assert_eq!(ranges.place(1, 2), Placed::New);
        assert_eq!(ranges.place(1000, 1001), Placed::New);
        assert_eq!(ranges.all.capacity(), MAX_RANGES, "no memory beyond the initial allocation");
    }
}
