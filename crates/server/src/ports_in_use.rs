//! The ports in use, in words of 64 ports. A search for a free port takes a step for each word, and not for each port:
//! the control thread makes the search for an application that may hold tens of thousands of ports.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::RangeInclusive;

/// The ports in use by their keys, for example by protocol and address.
#[derive(Debug)]
pub(crate) struct PortsInUse<K>(HashMap<K, Ports>);

impl<K> Default for PortsInUse<K> {
    fn default() -> PortsInUse<K> {
        PortsInUse(HashMap::new())
    }
}

/// The ports of a key: for each 64 ports with one in use, a bit for each.
#[derive(Debug, Default)]
pub(crate) struct Ports(BTreeMap<u16, u64>);

impl Ports {
    /// Returns the bits of the ports from 64 times `word` on that are in use.
    pub(crate) fn word(&self, word: u16) -> u64 {
        self.0.get(&word).copied().unwrap_or(0)
    }
}

fn place(port: u16) -> (u16, u64) {
    (port / 64, 1 << (port % 64))
}

impl<K: Eq + Hash> PortsInUse<K> {
    pub(crate) fn add(&mut self, key: K, port: u16) {
        let (word, bit) = place(port);
        *self.0.entry(key).or_default().0.entry(word).or_default() |= bit;
    }

    pub(crate) fn remove(&mut self, key: &K, port: u16) {
        let Some(ports) = self.0.get_mut(key) else { return };
        let (word, bit) = place(port);
        let bits = ports.word(word) & !bit;
        if bits == 0 {
            ports.0.remove(&word);
        } else {
            ports.0.insert(word, bits);
        }
        if ports.0.is_empty() {
            self.0.remove(key);
        }
    }

    /// Returns the ports of a key, if any is in use.
    pub(crate) fn of(&self, key: &K) -> Option<&Ports> {
        self.0.get(key)
    }

    pub(crate) fn contains(&self, key: &K, port: u16) -> bool {
        let (word, bit) = place(port);
        self.of(key).is_some_and(|ports| ports.word(word) & bit != 0)
    }
}

/// Returns the free ports of a range in their order. Calls `used` once for each 64 ports: see [`Ports::word`].
pub(crate) fn free_ports(
    range: RangeInclusive<u16>,
    used: impl Fn(u16) -> u64,
) -> impl Iterator<Item = u16> {
    let (first, last) = (*range.start(), *range.end());
    (first / 64..=last / 64).flat_map(move |word| {
        let mut free = if range.is_empty() { 0 } else { !used(word) };
        let next = move || {
            let bit = (free != 0).then(|| free.trailing_zeros() as u16)?;
            free &= free - 1;
            Some(word * 64 + bit)
        };
        std::iter::from_fn(next).filter(move |port| (first..=last).contains(port))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_search_through_full_ports_takes_a_step_for_64_of_them() {
        let mut ports = PortsInUse::default();
        (49_152..u16::MAX).for_each(|port| ports.add((), port));
        let steps = Cell::new(0);
        let search = |ports: &PortsInUse<()>| {
            let used = |word| {
                steps.set(steps.get() + 1);
                ports.of(&()).map_or(0, |one| one.word(word))
            };
            free_ports(49_152..=u16::MAX, used).next()
        };
        assert_eq!((search(&ports), steps.take()), (Some(u16::MAX), 16_384 / 64));
        ports.add((), u16::MAX);
        assert_eq!((search(&ports), steps.take()), (None, 16_384 / 64));
        ports.remove(&(), 49_152);
        assert_eq!((search(&ports), steps.take()), (Some(49_152), 1));
    }

    proptest! {
        #[test]
        fn the_free_ports_are_those_not_in_use(
            changes in proptest::collection::vec((0..300_u16, any::<bool>()), 0..200),
            (first, last) in (0..300_u16, 0..300_u16),
        ) {
            let (mut ports, mut model) = (PortsInUse::default(), BTreeSet::new());
            for (port, is_added) in changes {
                if is_added {
                    ports.add(7, port);
                    model.insert(port);
                } else {
                    ports.remove(&7, port);
                    model.remove(&port);
                }
            }
            let free: Vec<u16> =
                free_ports(first..=last, |word| ports.of(&7).map_or(0, |one| one.word(word))).collect();
            let expected: Vec<u16> = (first..=last).filter(|port| !model.contains(port)).collect();
            prop_assert_eq!(free, expected);
            prop_assert!((0..300).all(|port| ports.contains(&7, port) == model.contains(&port)));
            model.iter().for_each(|port| ports.remove(&7, *port));
            prop_assert!(ports.of(&7).is_none(), "nothing is left");
        }
    }
}
