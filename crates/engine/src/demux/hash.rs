//! A hash table with open addressing, at most half full.

use std::fmt;

/// Keys of `N` words and their values. Callers pass the seed to every call. It keeps a peer that
/// may choose keys from choosing colliding ones.
pub(crate) struct Table<const N: usize, V> {
    slots: Vec<Option<([u64; N], V)>>,
    used: usize,
    /// Number of keys that lookups were compared with.
    #[cfg(test)]
    pub(super) compared: std::cell::Cell<usize>,
}

impl<const N: usize, V> Default for Table<N, V> {
    fn default() -> Table<N, V> {
        Table {
            slots: Vec::new(),
            used: 0,
            #[cfg(test)]
            compared: std::cell::Cell::default(),
        }
    }
}

impl<const N: usize, V> fmt::Debug for Table<N, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table of {} in {}", self.used, self.slots.len())
    }
}

#[inline(always)]
fn hash<const N: usize>(seed: u64, key: &[u64; N]) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let (pairs, rest) = key.as_chunks::<2>();
    let mut sum = seed;
    for (number, [low, high]) in pairs.iter().enumerate() {
        // The pairs are independent of each other. Both factors contain a secret: if a peer could
        // make one factor zero, the product would be the same for all values of the other.
        let (turn, other) = (32 * number as u32, 32 * number as u32 + 17);
        sum = sum.rotate_left(23)
            ^ fold(low ^ seed.rotate_left(turn), high ^ seed.rotate_left(other) ^ MIX);
    }
    for word in rest {
        sum = sum.rotate_left(23) ^ word;
    }
    fold(sum ^ seed, MIX) as usize
}

/// Compares word by word. A comparison of all words at once would wait until the key, just written
/// in words, has reached the cache.
#[inline]
pub(crate) fn same<const N: usize>(found: &[u64; N], key: &[u64; N]) -> bool {
    let mut table_index = 0;
    while table_index < N {
        if found[table_index] != key[table_index] {
            return false;
        }
        table_index += 1;
    }
    true
}

impl<const N: usize, V: Copy> Table<N, V> {
    /// Returns the value of a key.
    #[inline(always)]
    pub(crate) fn lookup(&self, seed: u64, key: &[u64; N]) -> Option<V> {
        self.find(seed, key).copied()
    }
}

impl<const N: usize, V> Table<N, V> {
    /// Returns the number of keys.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns a reference to the value of a key.
    #[inline(always)]
    pub(crate) fn find(&self, seed: u64, key: &[u64; N]) -> Option<&V> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut table_index = hash(seed, key) & mask;
        // The table is at most half full, so there is always an empty slot to stop at.
        loop {
            match self.slots.get(table_index)? {
                None => return None,
                Some((found, value)) => {
                    #[cfg(test)]
                    self.compared.set(self.compared.get() + 1);
                    if same(found, key) {
                        return Some(value);
                    }
                    table_index = (table_index + 1) & mask;
                }
            }
        }
    }

    /// Returns a mutable reference to the value of a key.
    pub(crate) fn find_mut(&mut self, seed: u64, key: &[u64; N]) -> Option<&mut V> {
        let table_index = self.index_of(seed, key)?;
        self.slots[table_index].as_mut().map(|(_, value)| value)
    }

    fn index_of(&self, seed: u64, key: &[u64; N]) -> Option<usize> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut table_index = hash(seed, key) & mask;
        loop {
            match self.slots.get(table_index)? {
                None => return None,
                Some((found, _)) if found == key => return Some(table_index),
                Some(_) => table_index = (table_index + 1) & mask,
            }
        }
    }

    /// Inserts a key. Returns `false` and changes nothing if it exists.
    pub(crate) fn insert(&mut self, seed: u64, key: [u64; N], value: V) -> bool {
        if self.index_of(seed, &key).is_some() {
            return false;
        }
        if (self.used + 1) * 2 > self.slots.len() {
            let larger = (self.slots.len() * 2).max(16);
            let empty = std::iter::repeat_with(|| None).take(larger).collect();
            let old = std::mem::replace(&mut self.slots, empty);
            for (key, value) in old.into_iter().flatten() {
                self.table_index(seed, key, value);
            }
        }
        self.table_index(seed, key, value);
        self.used += 1;
        true
    }

    fn table_index(&mut self, seed: u64, key: [u64; N], value: V) {
        let mask = self.slots.len() - 1;
        let mut table_index = hash(seed, &key) & mask;
        while self.slots[table_index].is_some() {
            table_index = (table_index + 1) & mask;
        }
        self.slots[table_index] = Some((key, value));
    }

    /// Removes a key if `theirs` accepts its value, and returns whether it did. An empty table
    /// holds no memory.
    pub(crate) fn remove(
        &mut self,
        seed: u64,
        key: &[u64; N],
        theirs: impl FnOnce(&V) -> bool,
    ) -> bool {
        let Some(table_index) = self.index_of(seed, key) else { return false };
        if !self.slots[table_index].as_ref().is_some_and(|(_, value)| theirs(value)) {
            return false;
        }
        self.used -= 1;
        if self.used == 0 {
            self.slots = Vec::new();
            return true;
        }
        // Later entries move up, so that no lookup stops before them.
        let mask = self.slots.len() - 1;
        let mut hole = table_index;
        let mut next = (table_index + 1) & mask;
        while let Some((key, _)) = &self.slots[next] {
            let home = hash(seed, key) & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots.swap(hole, next);
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    /// A peer chooses one word of a pair so as to make a factor zero, and chooses the other freely.
    #[test]
    fn no_chosen_word_makes_keys_collide() {
        const PUBLIC: [u64; 4] = [0, u64::MAX, 0x9e37_79b9_7f4a_7c15, !0x9e37_79b9_7f4a_7c15];
        for seed in [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0] {
            for chosen in PUBLIC {
                for table_index in 0..4 {
                    let hashes: HashSet<usize> = (0..4096_u64)
                        .map(|word| {
                            let mut key = [7; 4];
                            (key[table_index], key[table_index ^ 1]) = (chosen, word);
                            hash(seed, &key) & 0xffff
                        })
                        .collect();
                    // Of 4096 keys in 65536 slots, some 124 meet a slot that an earlier key has.
                    assert!(
                        hashes.len() > 3800,
                        "{seed:x} {chosen:x} {table_index}: {}",
                        hashes.len()
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_table_against_a_map(steps in proptest::collection::vec((any::<bool>(), 0..40u64), 1..400)) {
            let mut table = Table::<4, u64>::default();
            let mut oracle = HashMap::new();
            for (insert, key) in steps {
                let key = [key, 0, 0, key / 2];
                if insert {
                    let new = !oracle.contains_key(&key);
                    prop_assert_eq!(table.insert(5, key, key[0]), new);
                    oracle.insert(key, key[0]);
                } else {
                    prop_assert!(!table.remove(5, &key, |_| false));
                    let there = oracle.remove(&key).is_some();
                    prop_assert_eq!(table.remove(5, &key, |value| *value == key[0]), there);
                }
                prop_assert_eq!(table.used(), oracle.len());
                prop_assert!(table.slots.len() <= (4 * 40usize).next_power_of_two());
                for key in 0..40 {
                    let key = [key, 0, 0, key / 2];
                    prop_assert_eq!(table.lookup(5, &key), oracle.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn every_word_counts() {
        let mut table = Table::<6, usize>::default();
        for word in 0..6 {
            let mut key = [7; 6];
            key[word] = 8;
            assert!(table.insert(1, key, word));
        }
        assert_eq!(table.lookup(1, &[7; 6]), None);
        assert_eq!(table.lookup(1, &[7, 7, 7, 8, 7, 7]), Some(3));
        let mut one = Table::<1, ()>::default();
        assert!(one.insert(1, [9], ()) && !one.insert(1, [9], ()));
        assert_eq!(one.lookup(1, &[8]), None);
    }
}
