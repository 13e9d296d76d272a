//! The places of a memory's tripwires: which of them an access touches.
//!
//! The control thread lets at most a few tripwires overlap one that it adds, so few contain one
//! place. Tripwires are sorted by their length's power of two, and then by where they begin. An
//! access looks, for each such length in use, from that length before its own range on. Behind
//! that, at most a few tripwires per length do not overlap the range, whatever an application sets.

use std::collections::BTreeMap;

use towpath_protocol::apertures::Access;

#[derive(Clone, Copy, Debug)]
struct Place {
    end: u64,
    access: Access,
}

/// The tripwires of a memory.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By the exponent of the power of two that the length does not exceed, the beginning, and the
    /// tripwire's number.
    all: BTreeMap<(u32, u64, u32), Place>,
    /// The number of tripwires of each length.
    lengths: BTreeMap<u32, usize>,
}

/// Returns the exponent of the smallest power of two that is at least `len`.
fn exponent(len: u64) -> u32 {
    len.max(1).next_power_of_two().trailing_zeros()
}

impl Places {
    /// Adds a tripwire.
    pub(crate) fn insert(&mut self, number: u32, (offset, len): (u64, u64), access: Access) {
        let place = Place { end: offset.saturating_add(len), access };
        if self.all.insert((exponent(len), offset, number), place).is_none() {
            *self.lengths.entry(exponent(len)).or_default() += 1;
        }
    }

    /// Removes a tripwire.
    pub(crate) fn remove(&mut self, number: u32, (offset, len): (u64, u64)) {
        if self.all.remove(&(exponent(len), offset, number)).is_some()
            && let Some(count) = self.lengths.get_mut(&exponent(len))
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&exponent(len));
            }
        }
    }

    /// `true` if there are no tripwires.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Passes the tripwires that an access touches to `found`.
    pub(crate) fn touched(
        &self,
        (offset, len): (u64, u64),
        access: Access,
        mut found: impl FnMut(u32),
    ) {
        let end = offset.saturating_add(len);
        for power in self.lengths.keys() {
            let from = (*power, offset.saturating_sub(1 << power), 0);
            for ((_, _, number), place) in self.all.range(from..(*power, end, 0)) {
                if place.end > offset && place.access.meets(access) {
                    found(*number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The same tripwires as by a comparison with each.
        #[test]
        fn an_access_finds_what_it_touches(
            set in proptest::collection::vec((0..300_u64, 1..200_u64, 1..4_u32), 0..40),
            removed in proptest::collection::vec(any::<bool>(), 40),
            accesses in proptest::collection::vec((0..400_u64, 1..200_u64, 1..3_u32), 1..20),
        ) {
            let mut places = Places::default();
            let access = |number| Access::from_number(number).unwrap();
            for (number, (offset, len, kinds)) in (0..).zip(&set) {
                places.insert(number, (*offset, *len), access(*kinds));
            }
            let mut left = Vec::new();
            for ((number, one), removed) in (0..).zip(&set).zip(&removed) {
                if *removed {
                    places.remove(number, (one.0, one.1));
                } else {
                    left.push((number, *one));
                }
            }
            prop_assert_eq!(places.is_empty(), left.is_empty());
            for (offset, len, kind) in accesses {
                let mut found = Vec::new();
                places.touched((offset, len), access(kind), |number| found.push(number));
                found.sort_unstable();
                let touches = |(_, (at, size, kinds)): &&(u32, (u64, u64, u32))| {
                    *at < offset + len && offset < at + size && kinds & kind != 0
                };
                let expected: Vec<u32> = left.iter().filter(touches).map(|one| one.0).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
