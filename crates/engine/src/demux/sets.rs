//! The sets of fields that the rules of a MAC address give; they bound a lookup.

use std::collections::HashMap;

use towpath_packet::FlowRule;

use super::rule::{FIELD_SETS, Fields, given_fields};

/// Sets of fields that the rules of one MAC address may give, and the limit of those without one. A
/// lookup reads one hash table per set. Its worst cost is therefore twice this number, and one for
/// the MAC address.
pub const SETS_PER_MAC: usize = 16;

/// The number of rules that give each set, by MAC address; `None`: rules without one.
#[derive(Debug)]
pub struct Sets {
    counts: HashMap<Option<[u8; 6]>, Vec<(Fields, u32)>>,
    /// The totals by set, over all MAC addresses.
    totals: [u32; FIELD_SETS],
}

impl Default for Sets {
    fn default() -> Sets {
        Sets { counts: HashMap::new(), totals: [0; FIELD_SETS] }
    }
}

impl Sets {
    /// Returns `true` if there is room for a rule.
    #[must_use]
    pub fn has_room(&self, rule: &FlowRule) -> bool {
        let given = given_fields(rule);
        self.counts.get(&rule.mac).is_none_or(|sets| {
            sets.len() < SETS_PER_MAC || sets.iter().any(|(fields, _)| *fields == given)
        })
    }

    /// Counts a rule that [`Sets::has_room`] admitted.
    pub fn add(&mut self, rule: &FlowRule) {
        let given = given_fields(rule);
        self.totals[usize::from(given)] += 1;
        let sets = self.counts.entry(rule.mac).or_default();
        match sets.iter_mut().find(|(fields, _)| *fields == given) {
            Some((_, count)) => *count += 1,
            None => sets.push((given, 1)),
        }
    }

    /// Removes a counted rule.
    pub fn remove(&mut self, rule: &FlowRule) {
        let given = given_fields(rule);
        let Some(sets) = self.counts.get_mut(&rule.mac) else { return };
        if let Some(table_index) = sets.iter().position(|(fields, _)| *fields == given) {
            self.totals[usize::from(given)] -= 1;
            sets[table_index].1 -= 1;
            if sets[table_index].1 == 0 {
                sets.swap_remove(table_index);
            }
        }
        if sets.is_empty() {
            self.counts.remove(&rule.mac);
        }
    }

    /// Returns the sets of one MAC address' rules.
    pub(crate) fn of(&self, mac: Option<[u8; 6]>) -> impl Iterator<Item = Fields> {
        self.counts.get(&mac).into_iter().flatten().map(|(fields, _)| *fields)
    }

    /// Returns the sets of all rules.
    pub(crate) fn all(&self) -> impl Iterator<Item = Fields> {
        (0..=Fields::MAX).filter(|fields| self.totals[usize::from(*fields)] > 0)
    }
}
