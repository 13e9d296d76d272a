//! What the maps of the masks and of the flows contain, as the server knows it.

use std::collections::HashMap;

use super::key::{self, Fields, Key};
use super::program::{MASK_BYTES, MASKS, MASKS_BYTES};
use crate::Filter;

/// The most flows.
pub(super) const FLOWS: u32 = 65_536;

/// A mask in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    pub(super) mask: Fields,
    /// The number of rules with this mask.
    pub(super) rules: usize,
}

/// What the maps contain.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) masks: [Option<Mask>; MASKS],
    /// The number of each rule's mask.
    pub(super) flows: HashMap<Key, usize>,
}

impl Tables {
    /// Returns the number of a mask: that of a mask in use, or a free one.
    pub(super) fn number_of(&self, mask: &Fields) -> Option<usize> {
        let used = self.masks.iter().position(|one| one.is_some_and(|one| one.mask == *mask));
        used.or_else(|| self.masks.iter().position(Option::is_none))
    }

    /// Returns `true` if there is room for the flows of `wanted` without those of `removed`.
    pub(super) fn would_have_room(&self, wanted: &[Filter], removed: &[Filter]) -> bool {
        let flows = |filters: &[Filter]| {
            let flows = filters.iter().filter_map(|one| match one {
                Filter::Flow(rule) => Some(key::of_rule(rule)),
                _ => None,
            });
            flows.collect::<Vec<_>>()
        };
        let (mut masks, mut rules) = (self.masks, self.flows.len());
        for (fields, mask) in flows(removed) {
            let Some(number) = self.number_of(&mask) else { continue };
            if self.flows.contains_key(&key::key(&fields, number as u32)) {
                let left = |one: Mask| Some(Mask { rules: one.rules - 1, ..one });
                masks[number] = masks[number].and_then(left).filter(|one| one.rules > 0);
                rules -= 1;
            }
        }
        let wanted = flows(wanted);
        rules += wanted.len();
        rules <= FLOWS as usize
            && wanted.into_iter().all(|(_, mask)| {
                let has = |one: &Option<Mask>| one.is_some_and(|one| one.mask == mask);
                masks.iter().any(has)
                    || masks.iter_mut().find(|one| one.is_none()).is_some_and(|free| {
                        *free = Some(Mask { mask, rules: 1 });
                        true
                    })
            })
    }

    /// Adds a rule under the mask of this number.
    pub(super) fn add(&mut self, key: Key, number: usize, mask: Fields) {
        if self.flows.insert(key, number).is_none() {
            self.masks[number].get_or_insert(Mask { mask, rules: 0 }).rules += 1;
        }
    }

    /// Returns the masks that the program reads, without rules.
    pub(super) fn of_masks(bytes: &[u8]) -> Tables {
        let mut tables = Tables::default();
        let Some((head, places)) = bytes.split_first_chunk::<8>() else { return tables };
        let count = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let places = places.chunks_exact(MASK_BYTES).take(count);
        for (mask, place) in tables.masks.iter_mut().zip(places) {
            let is_used = place[..4] != [0; 4];
            let fields = Fields::try_from(&place[8..]).ok().filter(|_| is_used);
            *mask = fields.map(|mask| Mask { mask, rules: 0 });
        }
        tables
    }

    /// Adds a rule that is in the map already. Returns `false` if its mask is not in use.
    pub(super) fn add_earlier(&mut self, key: Key) -> bool {
        let number = key::mask_number(&key) as usize;
        let Some(Some(mask)) = self.masks.get_mut(number) else { return false };
        mask.rules += 1;
        self.flows.insert(key, number);
        true
    }

    /// Frees the masks without rules.
    pub(super) fn free_unused_masks(&mut self) {
        for mask in &mut self.masks {
            *mask = mask.filter(|mask| mask.rules > 0);
        }
    }

    /// Removes a rule. Returns `true` if its mask is free now.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let Some(number) = self.flows.remove(key) else { return false };
        let Some(mask) = &mut self.masks[number] else { return false };
        mask.rules -= 1;
        let is_free = mask.rules == 0;
        if is_free {
            self.masks[number] = None;
        }
        is_free
    }

    /// Returns the masks as the program reads them. `not_yet`: the number of a mask that the
    /// program must not use yet.
    pub(super) fn masks(&self, not_yet: Option<usize>) -> Vec<u8> {
        let mut bytes = vec![0; MASKS_BYTES];
        let count = self.masks.iter().rposition(Option::is_some).map_or(0, |last| last as u32 + 1);
        bytes[..4].copy_from_slice(&count.to_ne_bytes());
        let places = bytes[8..].chunks_exact_mut(MASK_BYTES);
        for ((place, mask), number) in places.zip(&self.masks).zip(0..) {
            if let Some(Mask { mask, .. }) = mask {
                let in_use = u32::from(not_yet != Some(number));
                place[..4].copy_from_slice(&in_use.to_ne_bytes());
                place[8..].copy_from_slice(mask);
            }
        }
        bytes
    }
}
