//! How many memories each account has, and the memories that their owners have released.
//!
//! A released memory exists as long as an importer maps it, and counts as that importer's.

use std::collections::HashMap;

use towpath_engine::account::Account;
use towpath_engine::shares::{Exceeded, Shares};

use super::tables::{MEMORIES, Released};

/// The memories of all accounts.
#[derive(Debug)]
pub(super) struct CountedMemories {
    counts: Shares,
    /// Memories whose owners have released them, and which importers still map, by their ids, with
    /// the accounts of the importers as whose the memories count.
    released: HashMap<u64, (Released, Account)>,
}

impl CountedMemories {
    pub(super) fn new() -> CountedMemories {
        CountedMemories { counts: Shares::new(MEMORIES), released: HashMap::new() }
    }

    /// Checks that an account may have one more memory.
    ///
    /// # Errors
    /// The limit that one more would exceed.
    pub(super) fn check(&self, account: Account) -> Result<(), Exceeded> {
        self.counts.check(account)
    }

    /// Counts a memory of an account.
    pub(super) fn add(&mut self, account: Account) {
        self.counts.add(account);
    }

    /// Counts a memory of an account no more.
    pub(super) fn give_back(&mut self, account: Account) {
        self.counts.give_back(account);
    }

    /// Keeps a memory that its owner has released, as that of an importer.
    pub(super) fn keep(&mut self, memory: Released, importer: Account) {
        self.counts.add(importer);
        self.released.insert(memory.id, (memory, importer));
    }

    /// Counts a released memory as that of one of its present importers. Returns the memory if there is none.
    pub(super) fn recount(
        &mut self,
        id: u64,
        mut importers: impl Iterator<Item = Account>,
    ) -> Option<Released> {
        let (_, counted) = self.released.get_mut(&id)?;
        let before = *counted;
        let Some(importer) = importers.next() else {
            self.counts.give_back(before);
            return self.released.remove(&id).map(|(memory, _)| memory);
        };
        if importer != before && importers.all(|one| one != before) {
            *counted = importer;
            self.counts.give_back(before);
            self.counts.add(importer);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Account {
        Account { uid, group: None, is_limited: true }
    }

    /// Returns the number of memories that a user may have yet.
    fn left(memories: &mut CountedMemories, account: Account) -> usize {
        let mut left = 0;
        while memories.check(account).is_ok() {
            memories.add(account);
            left += 1;
        }
        (0..left).for_each(|_| memories.give_back(account));
        left
    }

    #[test]
    fn a_released_memory_counts_as_that_of_an_importer() {
        let mut memories = CountedMemories::new();
        let most = left(&mut memories, user(7));
        let file = std::io::pipe().unwrap().0.into();
        let memory = Released { id: 3, file, bytes: 4096, owner: user(6), writer: None };
        memories.keep(memory, user(7));
        assert_eq!(left(&mut memories, user(7)), most - 1);
        assert!(memories.recount(3, [user(8), user(7)].into_iter()).is_none());
        assert_eq!((left(&mut memories, user(7)), left(&mut memories, user(8))), (most - 1, most));
        // The importer as whose it counts releases it.
        assert!(memories.recount(3, [user(8), user(9)].into_iter()).is_none());
        assert_eq!((left(&mut memories, user(7)), left(&mut memories, user(8))), (most, most - 1));
        assert!(memories.recount(4, std::iter::empty()).is_none());
        assert_eq!(memories.recount(3, std::iter::empty()).unwrap().id, 3);
        assert_eq!(left(&mut memories, user(8)), most);
        assert!(memories.recount(3, std::iter::empty()).is_none(), "once");
    }
}
