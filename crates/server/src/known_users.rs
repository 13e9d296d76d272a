//! The users whom the policy has admitted, with the party of each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use towpath_engine::account::Party;

/// The most users that the server remembers.
const MOST: usize = 4096;

/// Users whom the policy has admitted. Beyond [`MOST`], the server forgets the user whose last admission is longest ago, of
/// the party with the most users. So a member of a group with thousands of user numbers (`subuid(5)`) displaces its group's
/// users only.
#[derive(Debug, Default)]
pub(crate) struct KnownUsers {
    users: HashMap<u32, Known>,
    /// The users of each party, by their last admission.
    parties: HashMap<Party, BTreeMap<u64, u32>>,
    /// The parties by size, and of equal ones by the oldest admission. The last one gives way.
    sizes: BTreeSet<Size>,
    admissions: u64,
}

/// A user's party and last admission.
#[derive(Clone, Copy, Debug)]
struct Known {
    party: Party,
    admission: u64,
}

type Size = (usize, Reverse<u64>, Party);

impl KnownUsers {
    /// Returns the party of a user, if the user is known.
    pub(crate) fn party_of(&self, uid: u32) -> Option<Party> {
        self.users.get(&uid).map(|known| known.party)
    }

    /// Adds a user whom the policy admits now.
    pub(crate) fn add(&mut self, uid: u32, party: Party) {
        self.remove(uid);
        self.admissions += 1;
        let admission = self.admissions;
        self.users.insert(uid, Known { party, admission });
        self.change(party, |users| {
            users.insert(admission, uid);
        });
        if self.users.len() > MOST
            && let Some(oldest) = self.oldest_of_largest()
        {
            self.remove(oldest);
        }
    }

    /// Forgets a user.
    pub(crate) fn remove(&mut self, uid: u32) {
        if let Some(Known { party, admission }) = self.users.remove(&uid) {
            self.change(party, |users| {
                users.remove(&admission);
            });
        }
    }

    fn oldest_of_largest(&self) -> Option<u32> {
        let (.., party) = self.sizes.last()?;
        self.parties.get(party)?.values().next().copied()
    }

    /// Changes the users of a party.
    fn change(&mut self, party: Party, change: impl FnOnce(&mut BTreeMap<u64, u32>)) {
        let users = self.parties.entry(party).or_default();
        if let Some(before) = size(party, users) {
            self.sizes.remove(&before);
        }
        change(users);
        match size(party, users) {
            Some(now) => drop(self.sizes.insert(now)),
            None => drop(self.parties.remove(&party)),
        }
    }
}

fn size(party: Party, users: &BTreeMap<u64, u32>) -> Option<Size> {
    let (oldest, _) = users.first_key_value()?;
    Some((users.len(), Reverse(*oldest), party))
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
        known.add(10_001, Party::Group(5));
        known.add(8, Party::User(8));
        let party_of = |uid| known.party_of(uid);
        assert_eq!((party_of(7), party_of(8)), (Some(Party::User(7)), Some(Party::User(8))));
        assert_eq!((party_of(10_000), party_of(10_002)), (None, None), "admitted longest ago");
        assert_eq!(
            (party_of(10_001), party_of(10_003)),
            (Some(Party::Group(5)), Some(Party::Group(5)))
        );
        assert_eq!((known.users.len(), known.sizes.len()), (MOST, 3));
    }

    /// Among parties of one user each, the user whose last admission is longest ago gives way.
    #[test]
    fn a_user_counts_for_its_latest_party() {
        let mut known = KnownUsers::default();
        for uid in 0..MOST as u32 {
            known.add(uid, Party::Group(5));
        }
        for uid in 0..MOST as u32 {
            known.add(uid, Party::User(uid));
        }
        assert_eq!((known.parties.len(), known.sizes.len()), (MOST, MOST));
        known.add(9_999, Party::User(9_999));
        assert_eq!((known.party_of(0), known.party_of(1)), (None, Some(Party::User(1))));
        known.remove(9_999);
        known.remove(9_999);
        assert_eq!(
            (known.users.len(), known.parties.len(), known.sizes.len()),
            (MOST - 1, MOST - 1, MOST - 1)
        );
    }
}
