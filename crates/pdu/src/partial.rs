//! Incomplete PDUs: a table of bounded size, in the order of their age.

use std::collections::HashMap;
use std::time::Instant;

use crate::format::Fragment;
use crate::ranges::Ranges;

/// The key of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) source: [u8; 6],
    pub(crate) channel: u32,
    pub(crate) id: u32,
}

impl Key {
    pub(crate) fn of(fragment: &Fragment) -> Key {
        Key { source: fragment.source, channel: fragment.channel, id: fragment.id }
    }
}

/// The fields that all fragments of a PDU share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) total: u32,
    pub(crate) crc: u32,
}

impl Identity {
    pub(crate) fn of(fragment: &Fragment) -> Identity {
        Identity { total: fragment.total, crc: fragment.crc }
    }
}

/// An incomplete PDU.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) key: Key,
    pub(crate) identity: Identity,
    /// The received bytes, at their offsets. Empty in a free slot.
    pub(crate) buffer: Box<[u8]>,
    pub(crate) ranges: Ranges,
    /// The time of its first fragment.
    since: Instant,
    older: Option<usize>,
    newer: Option<usize>,
}

/// The table. The age of a PDU is that of its first fragment, so the oldest PDU is also the first
/// to expire.
#[derive(Debug)]
pub(crate) struct Partials {
    places: Vec<Partial>,
    free: Vec<usize>,
    by_key: HashMap<Key, usize>,
    /// The slot found last: fragments of one PDU mostly follow each other.
    last: Option<usize>,
    oldest: Option<usize>,
    newest: Option<usize>,
}

impl Partials {
    pub(crate) fn new(limit: usize) -> Partials {
        Partials {
            places: Vec::with_capacity(limit),
            free: Vec::with_capacity(limit),
            // Twice the room: a table that is at most half full cleans up in place and never grows.
            by_key: HashMap::with_capacity(limit * 2),
            last: None,
            oldest: None,
            newest: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn find(&mut self, key: &Key) -> Option<usize> {
        // A free slot has no buffer.
        if let Some(last) = self.last
            && self.places[last].key == *key
            && !self.places[last].buffer.is_empty()
        {
            return Some(last);
        }
        let found = self.by_key.get(key).copied();
        self.last = found.or(self.last);
        found
    }

    pub(crate) fn get(&mut self, place: usize) -> &mut Partial {
        &mut self.places[place]
    }

    /// Returns the oldest PDU's slot, and the time of its first fragment.
    pub(crate) fn oldest(&self) -> Option<(usize, Instant)> {
        self.oldest.map(|place| (place, self.places[place].since))
    }

    /// Returns the number of a source's PDUs, and the oldest of them. Scans all entries; called
    /// once per PDU.
    pub(crate) fn of_source(&self, source: [u8; 6]) -> (usize, Option<usize>) {
        let (mut count, mut first, mut next) = (0, None, self.oldest);
        while let Some(place) = next {
            if self.places[place].key.source == source {
                count += 1;
                first = first.or(Some(place));
            }
            next = self.places[place].newer;
        }
        (count, first)
    }

    /// Inserts a PDU; the table must have none with that key.
    pub(crate) fn insert(
        &mut self,
        key: Key,
        identity: Identity,
        buffer: Box<[u8]>,
        now: Instant,
    ) -> usize {
        let older = self.newest;
        let place = match self.free.pop() {
            Some(place) => {
                let partial = &mut self.places[place];
                partial.ranges.clear();
                (partial.key, partial.identity, partial.buffer) = (key, identity, buffer);
                (partial.since, partial.older, partial.newer) = (now, older, None);
                place
            }
            None => {
                let ranges = Ranges::new();
                let newer = None;
                let since = now;
                self.places.push(Partial { key, identity, buffer, ranges, since, older, newer });
                self.places.len() - 1
            }
        };
        match older {
            Some(older) => self.places[older].newer = Some(place),
            None => self.oldest = Some(place),
        }
        self.newest = Some(place);
        self.by_key.insert(key, place);
        self.last = Some(place);
        place
    }

    /// Removes a PDU and returns its buffer.
    pub(crate) fn remove(&mut self, place: usize) -> Box<[u8]> {
        let partial = &mut self.places[place];
        let buffer = std::mem::take(&mut partial.buffer);
        let (key, older, newer) = (partial.key, partial.older, partial.newer);
        match older {
            Some(older) => self.places[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.places[newer].older = older,
            None => self.newest = older,
        }
        self.by_key.remove(&key);
        self.free.push(place);
        buffer
    }
}
