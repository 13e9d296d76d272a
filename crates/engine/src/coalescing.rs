//! The coalescing settings of one queue pair's endpoints. The lowest ones apply, and are found
//! without a check of each endpoint.

use std::collections::BTreeMap;

/// Packets, and microseconds, of an endpoint without settings: any number, and at once.
pub const UNSET: (u32, u32) = (u32::MAX, 0);

/// The number of endpoints for each value, except the default.
#[derive(Debug)]
pub(crate) struct Values {
    unset: u32,
    counts: BTreeMap<u32, u32>,
    total: u32,
}

impl Values {
    pub(crate) fn new(unset: u32) -> Values {
        Values { unset, counts: BTreeMap::new(), total: 0 }
    }

    pub(crate) fn add(&mut self, value: u32) {
        if value != self.unset {
            *self.counts.entry(value).or_default() += 1;
            self.total += 1;
        }
    }

    pub(crate) fn remove(&mut self, value: u32) {
        let Some(count) = self.counts.get_mut(&value) else { return };
        *count -= 1;
        self.total -= 1;
        if *count == 0 {
            self.counts.remove(&value);
        }
    }

    /// Returns the lowest value among `endpoints` endpoints.
    pub(crate) fn least(&self, endpoints: u32) -> u32 {
        let asked = self.counts.first_key_value().map(|(value, _)| *value);
        let unset = (self.total < endpoints).then_some(self.unset);
        asked.into_iter().chain(unset).min().unwrap_or(self.unset)
    }
}

/// The coalescing settings of one queue pair's endpoints.
#[derive(Debug)]
pub(crate) struct Coalescing {
    endpoints: u32,
    packets: Values,
    microseconds: Values,
}

impl Default for Coalescing {
    fn default() -> Coalescing {
        let (packets, microseconds) = (Values::new(UNSET.0), Values::new(UNSET.1));
        Coalescing { endpoints: 0, packets, microseconds }
    }
}

impl Coalescing {
    /// Adds an endpoint with its packets and microseconds.
    pub(crate) fn add(&mut self, (packets, microseconds): (u32, u32)) {
        self.endpoints += 1;
        self.packets.add(packets);
        self.microseconds.add(microseconds);
    }

    /// Removes an endpoint with its packets and microseconds.
    pub(crate) fn remove(&mut self, (packets, microseconds): (u32, u32)) {
        self.endpoints -= 1;
        self.packets.remove(packets);
        self.microseconds.remove(microseconds);
    }

    /// Returns the settings that apply to all endpoints.
    pub(crate) fn least(&self) -> (u32, u32) {
        (self.packets.least(self.endpoints), self.microseconds.least(self.endpoints))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_value_applies() {
        let mut values = Values::new(1);
        assert_eq!(values.least(0), 1, "no endpoint");
        assert_eq!(values.least(2), 1, "two that asked for nothing");
        values.add(8);
        assert_eq!(values.least(2), 1, "one that asked for nothing");
        values.add(4);
        assert_eq!(values.least(2), 4);
        values.add(4);
        values.remove(4);
        assert_eq!(values.least(2), 4, "the other one's");
        values.remove(4);
        assert_eq!((values.least(1), values.least(0)), (8, 8));
        values.remove(8);
        values.remove(8);
        assert_eq!(values.least(1), 1);
        let mut usecs = Values::new(5);
        usecs.add(3);
        assert_eq!((usecs.least(1), usecs.least(2)), (3, 3), "less than unset");
    }
}
