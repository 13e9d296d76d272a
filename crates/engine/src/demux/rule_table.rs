//! The rules that give the same fields, in hash tables, and sets of such tables.

use towpath_packet::plain::{self, Plain};

use super::destination::Destination;
use super::hash::Table;
use super::rule::{FIELD_SETS, Fields, Key, LookupKey, REMOTE_IP, TABLE_INDEX, mask, masked};

/// A bit set of field sets, by their table index.
pub(super) type TableSet = [u64; FIELD_SETS / 64];

pub(super) fn table_set(sets: impl Iterator<Item = Fields>) -> TableSet {
    let mut table_set = TableSet::default();
    for fields in sets {
        let table_index = usize::from(TABLE_INDEX[usize::from(fields)]);
        table_set[table_index / 64] |= 1 << (table_index % 64);
    }
    table_set
}

/// The rules that give the same fields.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) fields: Fields,
    mask: Key,
    /// Rules without a remote IP address.
    pub(super) local: Table<4, Destination>,
    /// Rules with a remote IP address.
    pub(super) remote: Table<6, Destination>,
}

impl Rules {
    pub(super) fn new(fields: Fields) -> Rules {
        let (local, remote) = (Table::default(), Table::default());
        Rules { fields, mask: mask(fields), local, remote }
    }

    #[inline]
    pub(super) fn lookup(&self, seed: u64, key: &Key) -> Option<Destination> {
        if self.fields & REMOTE_IP == 0 {
            self.local.lookup(seed, &masked(key, &self.mask))
        } else {
            self.remote.lookup(seed, &masked(key, &self.mask))
        }
    }

    /// Returns the part of a plain packet's key that rules without a remote IP address compare.
    #[inline(always)]
    pub(super) fn local_key(&self, packet: &Plain) -> plain::Key {
        let key = LookupKey::local(packet);
        let [link, kind, low, high, ..] = self.mask;
        [key[0] & link, key[1] & kind, key[2] & low, key[3] & high]
    }

    pub(super) fn insert(&mut self, seed: u64, key: &Key, destination: Destination) -> bool {
        if self.fields & REMOTE_IP == 0 {
            self.local.insert(seed, masked(key, &self.mask), destination)
        } else {
            self.remote.insert(seed, masked(key, &self.mask), destination)
        }
    }

    pub(super) fn remove(&mut self, seed: u64, key: &Key, destination: Destination) -> bool {
        let theirs = |found: &Destination| *found == destination;
        if self.fields & REMOTE_IP == 0 {
            self.local.remove(seed, &masked(key, &self.mask), theirs)
        } else {
            self.remote.remove(seed, &masked(key, &self.mask), theirs)
        }
    }
}
