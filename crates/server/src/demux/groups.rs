//! Who receives broadcast and multicast.
//!
//! Local addresses do not count here, as a packet for a group has the group's. Of the eight fields
//! of a rule six are left, and members whose rules give the same of these share one hash table, as
//! rules do in the flow table. A packet for a group asks each table that there is, at most
//! `GROUP_TABLES`, and touches no member but those it is for.

use std::collections::BTreeSet;

use super::Destination;
use super::hash::Table;
use super::rule::{
    ETHERTYPE, Fields, Key, Looked, PORT, PROTOCOL, REMOTE_IP, REMOTE_PORT, Rule, VLAN, mask,
};

/// What of a rule counts for a packet for a group.
const COUNTS: Fields = VLAN | ETHERTYPE | PROTOCOL | PORT | REMOTE_IP | REMOTE_PORT;

/// How many hash tables there are at most: one for each set of the fields that count.
#[cfg(test)]
pub(super) const GROUP_TABLES: usize = 1 << COUNTS.count_ones();

/// The words of a key that have something that counts.
type GroupKey = [u64; 4];

fn group_key(key: &Key, mask: &GroupKey) -> GroupKey {
    let words = [key[0], key[1], key[4], key[5]];
    std::array::from_fn(|word| words[word] & mask[word])
}

/// The members whose rules give the same fields.
#[derive(Debug)]
struct Members {
    fields: Fields,
    mask: GroupKey,
    /// Those that ask for the same, in the order in which they are given what they get.
    table: Table<4, BTreeSet<Destination>>,
}

impl Members {
    fn new(fields: Fields) -> Members {
        let mask = mask(fields);
        Members { fields, mask: [mask[0], mask[1], mask[4], mask[5]], table: Table::default() }
    }
}

/// All members of a device. The seed that every call is given is the flow table's.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Those with members, in no order.
    shapes: Vec<Members>,
}

impl Groups {
    pub(super) fn insert(&mut self, seed: u64, rule: &Rule, destination: Destination) {
        let fields = rule.given() & COUNTS;
        let place = self.shapes.iter().position(|shape| shape.fields == fields);
        let place = place.unwrap_or_else(|| {
            self.shapes.push(Members::new(fields));
            self.shapes.len() - 1
        });
        let shape = &mut self.shapes[place];
        let key = group_key(&rule.key(), &shape.mask);
        match shape.table.find_mut(seed, &key) {
            Some(members) => {
                members.insert(destination);
            }
            None => {
                shape.table.insert(seed, key, BTreeSet::from([destination]));
            }
        }
    }

    /// Takes a member out, if it is one.
    pub(super) fn remove(&mut self, seed: u64, rule: &Rule, destination: Destination) {
        let fields = rule.given() & COUNTS;
        let Some(place) = self.shapes.iter().position(|shape| shape.fields == fields) else {
            return;
        };
        let shape = &mut self.shapes[place];
        let key = group_key(&rule.key(), &shape.mask);
        if let Some(members) = shape.table.find_mut(seed, &key) {
            members.remove(&destination);
            shape.table.remove(seed, &key, BTreeSet::is_empty);
        }
        if shape.table.used() == 0 {
            self.shapes.swap_remove(place);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Appends everybody that receives a packet, in order.
    pub(super) fn append(&self, seed: u64, looked: &Looked, found: &mut Vec<Destination>) {
        let first = found.len();
        let mut tables = 0;
        for shape in &self.shapes {
            if shape.fields & !looked.has != 0 {
                continue;
            }
            if let Some(members) = shape.table.find(seed, &group_key(&looked.key, &shape.mask)) {
                found.extend(members);
                tables += 1;
            }
        }
        // Each table's are in order.
        if tables > 1 {
            found[first..].sort_unstable();
        }
    }

    /// How many keys were compared in lookups so far.
    #[cfg(test)]
    pub(super) fn compared(&self) -> usize {
        self.shapes.iter().map(|shape| shape.table.compared.get()).sum()
    }

    #[cfg(test)]
    pub(super) fn tables(&self) -> usize {
        self.shapes.len()
    }
}
