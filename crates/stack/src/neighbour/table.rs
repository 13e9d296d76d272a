//! A table of entries by address, also in the order of their last use. The cost of an operation
//! does not depend on the number of entries.

use std::collections::HashMap;
use std::net::IpAddr;

const NONE: u32 = u32::MAX;

struct Slot<T> {
    address: IpAddr,
    entry: T,
    /// The slots used just after and just before this one.
    newer: u32,
    older: u32,
}

/// The table. A small number identifies an entry until its removal.
pub(super) struct Table<T> {
    by_address: HashMap<IpAddr, u32>,
    slots: Vec<Option<Slot<T>>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// The number of visited slots, a measure of the work.
    #[cfg(test)]
    pub(super) visits: u64,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Table {
            by_address: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            #[cfg(test)]
            visits: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns the number of an address's entry.
    pub(super) fn find(&self, address: IpAddr) -> Option<u32> {
        self.by_address.get(&address).copied()
    }

    /// Returns the least recently used entry.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    fn slot(&mut self, index: u32) -> Option<&mut Slot<T>> {
        #[cfg(test)]
        {
            self.visits += 1;
        }
        self.slots.get_mut(index as usize).and_then(Option::as_mut)
    }

    /// Returns an entry and its address.
    pub(super) fn get(&mut self, index: u32) -> Option<(IpAddr, &mut T)> {
        self.slot(index).map(|slot| (slot.address, &mut slot.entry))
    }

    /// Returns all entries, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|slot| &slot.entry)
    }

    /// Adds an entry as the most recently used one, and replaces the address's former entry.
    /// Returns its number.
    pub(super) fn insert(&mut self, address: IpAddr, entry: T) -> u32 {
        if let Some(former) = self.find(address) {
            self.remove(former);
        }
        let slot = Some(Slot { address, entry, newer: NONE, older: NONE });
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.by_address.insert(address, index);
        self.link(index);
        index
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        self.unlink(index);
        let slot = self.slots.get_mut(index as usize)?.take()?;
        self.by_address.remove(&slot.address);
        self.free.push(index);
        Some(slot.entry)
    }

    /// Makes an entry the most recently used one.
    pub(super) fn touch(&mut self, index: u32) {
        if self.newest != index {
            self.unlink(index);
            self.link(index);
        }
    }

    fn link(&mut self, index: u32) {
        let older = std::mem::replace(&mut self.newest, index);
        if let Some(slot) = self.slot(index) {
            (slot.newer, slot.older) = (NONE, older);
        }
        match older {
            NONE => self.oldest = index,
            older => self.slot(older).into_iter().for_each(|slot| slot.newer = index),
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(&mut Slot { newer, older, .. }) = self.slot(index) else { return };
        match newer {
            NONE => self.newest = older,
            newer => self.slot(newer).into_iter().for_each(|slot| slot.older = older),
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slot(older).into_iter().for_each(|slot| slot.newer = newer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u64) -> IpAddr {
        [10, 0, (number >> 8) as u8, number as u8].into()
    }

    /// Compares with a plain list, whose end holds the most recently used one.
    #[test]
    fn entries_are_in_order_of_use() {
        let mut table = Table::new();
        let mut list: Vec<u64> = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let number = random.u64(..50);
            let found = table.find(address(number));
            assert_eq!(found.is_some(), list.contains(&number));
            match (random.u64(..4), found) {
                (0, Some(index)) => {
                    assert_eq!(table.remove(index), Some(number));
                    list.retain(|other| *other != number);
                }
                (1, Some(index)) => {
                    table.touch(index);
                    assert_eq!(
                        table.get(index).map(|(ip, entry)| (ip, *entry)),
                        Some((address(number), number))
                    );
                    list.retain(|other| *other != number);
                    list.push(number);
                }
                (2 | 3, _) => {
                    table.insert(address(number), number);
                    list.retain(|other| *other != number);
                    list.push(number);
                }
                _ => {}
            }
            assert_eq!(table.len(), list.len());
            let oldest = table.oldest().and_then(|index| table.get(index)).map(|(_, entry)| *entry);
            assert_eq!(oldest, list.first().copied());
        }
    }
}
