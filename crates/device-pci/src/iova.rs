//! Device addresses, and which of them are in use.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use towpath_memory::PAGE_BYTES;

/// The device addresses of the driver's own memories, which the next server goes on with. Smaller addresses,
/// such as 0 from a defect, stay invalid.
pub(super) const OWN: RangeInclusive<u64> = 1 << 32..=(1 << 36) - 1;
/// The device addresses of sessions' memories.
pub(super) const OF_SESSIONS: RangeInclusive<u64> = 1 << 36..=u64::MAX;

/// The ranges of addresses that the IOMMU translates, and the parts of them that are in use.
#[derive(Debug)]
pub(super) struct Addresses {
    ranges: Vec<RangeInclusive<u64>>,
    /// The bytes from each address on that are in use.
    used: BTreeMap<u64, u64>,
}

impl Addresses {
    /// Creates an empty set over those parts of the ranges that the kernel reports which are `within` others.
    pub(super) fn new(ranges: &[RangeInclusive<u64>], within: &RangeInclusive<u64>) -> Addresses {
        let part = |range: &RangeInclusive<u64>| {
            let first = (*range.start()).max(*within.start());
            let first = first.checked_next_multiple_of(PAGE_BYTES as u64)?;
            let last = (*range.end()).min(*within.end());
            (first <= last).then_some(first..=last)
        };
        Addresses { ranges: ranges.iter().filter_map(part).collect(), used: BTreeMap::new() }
    }

    /// Returns the ranges, whether they are in use or not.
    pub(super) fn ranges(&self) -> &[RangeInclusive<u64>] {
        &self.ranges
    }

    /// Takes a range of bytes, a multiple of a page. An unused page stays behind each range, so a device that
    /// goes beyond one memory reaches no other. Returns `None` if no range is free.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let gap = PAGE_BYTES as u64;
        for range in &self.ranges {
            let mut at = *range.start();
            for (start, used) in self.used.range(range.clone()) {
                if start - at >= bytes + gap {
                    break;
                }
                at = start + used + gap;
            }
            let last = at.checked_add(bytes).and_then(|end| end.checked_sub(1));
            if last.is_some_and(|last| last <= *range.end()) {
                self.used.insert(at, bytes);
                return Some(at);
            }
        }
        None
    }

    /// Returns the number of bytes of a range in use.
    pub(super) fn bytes(&self, address: u64) -> Option<u64> {
        self.used.get(&address).copied()
    }

    /// Frees a range. Returns its bytes.
    pub(super) fn free(&mut self, address: u64) -> Option<u64> {
        self.used.remove(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    #[test]
    fn ranges_do_not_touch_and_come_back() {
        // As a machine with an interrupt window below 4 GiB reports them.
        let ranges = [0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1];
        let mut addresses = Addresses::new(&ranges, &OWN);
        let first = addresses.allocate(2 * PAGE).unwrap();
        assert_eq!(first, *OWN.start());
        let second = addresses.allocate(PAGE).unwrap();
        assert_eq!(second, first + 3 * PAGE);
        let third = addresses.allocate(5 * PAGE).unwrap();
        assert_eq!(addresses.free(second), Some(PAGE));
        assert_eq!(addresses.free(second), None);
        // It fits where the second was, and a larger one does not.
        assert!(addresses.allocate(2 * PAGE).unwrap() > third);
        assert_eq!(addresses.allocate(PAGE), Some(second));
        assert_eq!(addresses.allocate(1 << 39), None);
    }

    #[test]
    fn a_small_space_fills_up() {
        let first = *OF_SESSIONS.start();
        let mut addresses = Addresses::new(&[0..=first + 4 * PAGE - 1], &OF_SESSIONS);
        assert_eq!(addresses.ranges(), [first..=first + 4 * PAGE - 1]);
        assert!(addresses.allocate(PAGE).is_some());
        assert!(addresses.allocate(PAGE).is_some());
        assert_eq!(addresses.allocate(PAGE), None);
        assert_eq!(Addresses::new(&[0..=0xffff], &OWN).allocate(PAGE), None);
    }
}
