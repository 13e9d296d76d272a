//! A table whose entries are found by key, and linked in the order of their age. The caller bounds
//! their number.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    /// The time at which it was inserted.
    since: Instant,
    is_free: bool,
    older: Option<usize>,
    newer: Option<usize>,
}

/// The table. Its entries are incomplete PDUs. All may take the same time, so the oldest is also the
/// first to expire.
#[derive(Debug)]
pub(crate) struct Aged<K, V> {
    places: Vec<Entry<K, V>>,
    free: Vec<usize>,
    by_key: HashMap<K, usize>,
    /// The entry found last: parts of one PDU mostly follow each other.
    last: Option<usize>,
    oldest: Option<usize>,
    newest: Option<usize>,
}

impl<K: Copy + Eq + Hash, V: Default> Aged<K, V> {
    pub(crate) fn new(limit: usize) -> Aged<K, V> {
        Aged {
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

    pub(crate) fn find(&mut self, key: &K) -> Option<usize> {
        if let Some(last) = self.last
            && self.places[last].key == *key
            && !self.places[last].is_free
        {
            return Some(last);
        }
        let found = self.by_key.get(key).copied();
        self.last = found.or(self.last);
        found
    }

    pub(crate) fn key(&self, place: usize) -> K {
        self.places[place].key
    }

    pub(crate) fn get(&mut self, place: usize) -> &mut V {
        &mut self.places[place].value
    }

    /// Returns the oldest entry, and the time at which it was inserted.
    pub(crate) fn oldest(&self) -> Option<(usize, Instant)> {
        self.oldest.map(|place| (place, self.places[place].since))
    }

    /// Returns the oldest entry if it is as old as `time` at `now`.
    pub(crate) fn expired(&self, now: Instant, time: Duration) -> Option<usize> {
        let (oldest, since) = self.oldest()?;
        (now.saturating_duration_since(since) >= time).then_some(oldest)
    }

    /// Returns when the oldest entry is as old as `time`.
    pub(crate) fn deadline(&self, time: Duration) -> Option<Instant> {
        self.oldest().and_then(|(_, since)| since.checked_add(time))
    }

    /// Returns the number of entries whose keys match, and the oldest of them. Scans all
    /// entries.
    pub(crate) fn matching(&self, matches: impl Fn(&K) -> bool) -> (usize, Option<usize>) {
        let (mut count, mut first, mut next) = (0, None, self.oldest);
        while let Some(place) = next {
            if matches(&self.places[place].key) {
                count += 1;
                first = first.or(Some(place));
            }
            next = self.places[place].newer;
        }
        (count, first)
    }

    /// Inserts an entry; the table must have none with that key, and fewer than its limit. Its value is that of a removed
    /// entry, whose memory it reuses, or the default one.
    pub(crate) fn insert(&mut self, key: K, now: Instant) -> usize {
        let older = self.newest;
        let place = match self.free.pop() {
            Some(place) => {
                let entry = &mut self.places[place];
                (entry.key, entry.since, entry.is_free) = (key, now, false);
                (entry.older, entry.newer) = (older, None);
                place
            }
            None => {
                let (value, since) = (V::default(), now);
                let (is_free, newer) = (false, None);
                self.places.push(Entry { key, value, since, is_free, older, newer });
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

    /// Removes an entry, and returns its value, which a later entry reuses.
    pub(crate) fn remove(&mut self, place: usize) -> &mut V {
        let entry = &mut self.places[place];
        entry.is_free = true;
        let (key, older, newer) = (entry.key, entry.older, entry.newer);
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
        &mut self.places[place].value
    }
}
