//! Receivers of broadcast and multicast packets.
//!
//! Local addresses do not count here, because a packet for a group carries the group's. Of a rule's
//! eight fields, six remain. Members whose rules give the same of these share one hash table, as
//! rules do in the flow table. A packet for a group reads every existing table, at most
//! `GROUP_TABLES`, and touches only its receivers.

use std::collections::BTreeSet;

use towpath_packet::FlowRule;

use super::destination::Destination;
use super::hash::Table;
use super::rule::{
    ETHERTYPE, Fields, Key, LookupKey, PORT, PROTOCOL, REMOTE_IP, REMOTE_PORT, VLAN, given_fields,
    mask, rule_key,
};

/// The fields of a rule that count for a packet for a group.
const COUNTS: Fields = VLAN | ETHERTYPE | PROTOCOL | PORT | REMOTE_IP | REMOTE_PORT;

/// The maximum number of hash tables: one for each set of the fields that count.
#[cfg(test)]
pub(super) const GROUP_TABLES: usize = 1 << COUNTS.count_ones();

/// The words of a key that contain a field that counts.
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
    /// The members whose rules ask for the same values, in the order of delivery.
    table: Table<4, BTreeSet<Destination>>,
}

impl Members {
    fn new(fields: Fields) -> Members {
        let mask = mask(fields);
        Members { fields, mask: [mask[0], mask[1], mask[4], mask[5]], table: Table::default() }
    }
}

/// All members of a device. Callers pass the flow table's seed to every call.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The tables with members, in no order.
    shapes: Vec<Members>,
}

impl Groups {
    pub(super) fn insert(&mut self, seed: u64, rule: &FlowRule, destination: Destination) {
        let fields = given_fields(rule) & COUNTS;
        let table_index = self.shapes.iter().position(|shape| shape.fields == fields);
        let table_index = table_index.unwrap_or_else(|| {
            self.shapes.push(Members::new(fields));
            self.shapes.len() - 1
        });
        let shape = &mut self.shapes[table_index];
        let key = group_key(&rule_key(rule), &shape.mask);
        match shape.table.find_mut(seed, &key) {
            Some(members) => {
                members.insert(destination);
            }
            None => {
                shape.table.insert(seed, key, BTreeSet::from([destination]));
            }
        }
    }

    /// Removes a member, if it is one.
    pub(super) fn remove(&mut self, seed: u64, rule: &FlowRule, destination: Destination) {
        let fields = given_fields(rule) & COUNTS;
        let Some(table_index) = self.shapes.iter().position(|shape| shape.fields == fields) else {
            return;
        };
        let shape = &mut self.shapes[table_index];
        let key = group_key(&rule_key(rule), &shape.mask);
        if let Some(members) = shape.table.find_mut(seed, &key) {
            members.remove(&destination);
            shape.table.remove(seed, &key, BTreeSet::is_empty);
        }
        if shape.table.used() == 0 {
            self.shapes.swap_remove(table_index);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Appends every receiver of a packet, in order.
    pub(super) fn append(&self, seed: u64, lookup_key: &LookupKey, found: &mut Vec<Destination>) {
        let first = found.len();
        let mut tables = 0;
        for shape in &self.shapes {
            if shape.fields & !lookup_key.has != 0 {
                continue;
            }
            if let Some(members) = shape.table.find(seed, &group_key(&lookup_key.key, &shape.mask))
            {
                found.extend(members);
                tables += 1;
            }
        }
        // Each table's members are in order.
        if tables > 1 {
            found[first..].sort_unstable();
        }
    }

    /// Returns the number of keys compared in lookups so far.
    #[cfg(test)]
    pub(super) fn compared(&self) -> usize {
        self.shapes.iter().map(|shape| shape.table.compared.get()).sum()
    }

    #[cfg(test)]
    pub(super) fn tables(&self) -> usize {
        self.shapes.len()
    }
}
