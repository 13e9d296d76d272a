//! The users whom the policy has admitted, each with the party that it counts for.

use std::collections::{HashMap, VecDeque};

use towpath_engine::account::Party;

/// The most users that the server remembers.
const MOST: usize = 4096;

/// Users whom the policy has admitted. When there are too many, the party with the most users loses its oldest one. So a
/// member of a group with thousands of user numbers (`subuid(5)`) displaces its group's users only.
#[derive(Debug, Default)]
pub(crate) struct KnownUsers {
    parties: HashMap<u32, Party>,
    /// The users in the order in which they became known.
    order: VecDeque<u32>,
    /// How many users each party has.
    counts: HashMap<Party, usize>,
}

impl KnownUsers {
    /// Returns the party of a user, if the user is known.
    pub(crate) fn party_of(&self, uid: u32) -> Option<Party> {
        self.parties.get(&uid).copied()
    }

    /// Adds a user.
    pub(crate) fn add(&mut self, uid: u32, party: Party) {
        match self.parties.insert(uid, party) {
            Some(before) if before == party => return,
            Some(before) => self.discount(before),
            None => self.order.push_back(uid),
        }
        *self.counts.entry(party).or_default() += 1;
        if self.order.len() > MOST {
            self.forget_one();
        }
    }

    fn forget_one(&mut self) {
        let most = self.counts.values().copied().max();
        let is_of_largest = |uid: &u32| {
            let party = self.parties.get(uid);
            party.and_then(|party| self.counts.get(party)).copied() == most
        };
        let Some(at) = self.order.iter().position(is_of_largest) else { return };
        let party = self.order.remove(at).and_then(|uid| self.parties.remove(&uid));
        if let Some(party) = party {
            self.discount(party);
        }
    }

    fn discount(&mut self, party: Party) {
        if let Some(count) = self.counts.get_mut(&party) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_group_displaces_its_own_users() {
        let mut known = KnownUsers::default();
        known.add(7, Party::User(7));
        for uid in 0..MOST as u32 {
            known.add(10_000 + uid, Party::Group(5));
        }
        known.add(8, Party::User(8));
        let party_of = |uid| known.party_of(uid);
        assert_eq!((party_of(7), party_of(8)), (Some(Party::User(7)), Some(Party::User(8))));
        assert_eq!((party_of(10_000), party_of(10_001)), (None, None));
        assert_eq!(party_of(10_002), Some(Party::Group(5)));
        assert_eq!(known.order.len(), MOST);
    }

    /// Among parties of one user each, the user that became known first gives way.
    #[test]
    fn a_user_counts_for_its_latest_party() {
        let mut known = KnownUsers::default();
        for uid in 0..MOST as u32 {
            known.add(uid, Party::Group(5));
        }
        for uid in 0..MOST as u32 {
            known.add(uid, Party::User(uid));
        }
        assert_eq!(known.counts.len(), MOST);
        known.add(9_999, Party::User(9_999));
        assert_eq!((known.party_of(0), known.party_of(1)), (None, Some(Party::User(1))));
        assert_eq!((known.order.len(), known.parties.len()), (MOST, MOST));
    }
}
