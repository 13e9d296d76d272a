//! How many of a limited thing each user, the users of each group, and all users together may have at a time.
//!
//! Each limited resource has one [`Shares`], which counts all parties of an account. So no limit leaves out the groups.
//! A member of a group may have many user numbers (`subuid(5)`), and gains nothing by them.

use std::collections::HashMap;
use std::fmt;

use crate::account::{Account, Party};

/// The limits of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareLimits {
    /// Of one user.
    pub(crate) user: usize,
    /// Of the users that one group lets in.
    pub(crate) group: usize,
    /// Of all granted users. The rest is for administrators.
    pub(crate) granted: usize,
    pub(crate) all: usize,
    /// `true` if the limit of one user also binds administrators.
    pub(crate) binds_administrators: bool,
}

impl ShareLimits {
    /// No limit.
    pub(crate) const NONE: ShareLimits = ShareLimits {
        user: usize::MAX,
        group: usize::MAX,
        granted: usize::MAX,
        all: usize::MAX,
        binds_administrators: false,
    };

    /// Returns limits that leave half to the users of other groups, and an eighth to administrators.
    pub(crate) const fn of(all: usize, user: usize) -> ShareLimits {
        let (group, granted) = (all / 2, all - all / 8);
        ShareLimits { user, group, granted, all, binds_administrators: true }
    }
}

/// The party that has all that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Party(Party),
    Granted,
    All,
}

/// A limit that one more would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) whose: Whose,
    pub(crate) most: usize,
}

impl fmt::Display for Exceeded {
    /// Writes the beginning of a sentence, for example `user 7 has the most allowed, 256`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.whose {
            Whose::Party(Party::User(uid) | Party::Administrator(uid)) => {
                write!(f, "user {uid} has")?
            }
            Whose::Party(Party::Group(group)) => {
                write!(f, "the users let in by group {group} have together")?;
            }
            Whose::Granted => write!(f, "all granted users have together")?,
            Whose::All => write!(f, "this server has")?,
        }
        write!(f, " the most allowed, {}", self.most)
    }
}

/// Who has how many of a thing.
#[derive(Debug)]
pub(crate) struct Shares {
    limits: ShareLimits,
    parties: HashMap<Party, usize>,
    granted: usize,
    all: usize,
}

impl Shares {
    pub(crate) fn new(limits: ShareLimits) -> Shares {
        Shares { limits, parties: HashMap::new(), granted: 0, all: 0 }
    }

    /// Checks that an account may have one more. The party's own limits come first: a user can do more about these than
    /// about the limits of all users.
    ///
    /// # Errors
    /// The limit that one more would exceed.
    pub(crate) fn check(&self, account: Account) -> Result<(), Exceeded> {
        self.check_within(self.limits, account)
    }

    /// Checks as [`Shares::check`] does, with other limits.
    ///
    /// # Errors
    /// The limit that one more would exceed.
    pub(crate) fn check_within(
        &self,
        limits: ShareLimits,
        account: Account,
    ) -> Result<(), Exceeded> {
        let ShareLimits { user, group, granted, all, binds_administrators } = limits;
        let is_bound = account.is_limited || binds_administrators;
        for party in account.parties().filter(|_| is_bound) {
            let most = if matches!(party, Party::Group(_)) { group } else { user };
            if self.of(party) >= most {
                return Err(Exceeded { whose: Whose::Party(party), most });
            }
        }
        if account.is_limited && self.granted >= granted {
            return Err(Exceeded { whose: Whose::Granted, most: granted });
        }
        if self.all >= all { Err(Exceeded { whose: Whose::All, most: all }) } else { Ok(()) }
    }

    /// Checks that two accounts may have one more each.
    ///
    /// # Errors
    /// The limit that one more would exceed.
    pub(crate) fn check_two(&mut self, one: Account, other: Account) -> Result<(), Exceeded> {
        self.check(one)?;
        // Both may have one group.
        self.add(one);
        let outcome = self.check(other);
        self.give_back(one);
        outcome
    }

    /// Counts one more for an account. The caller has checked the limits, unless an earlier server permitted the thing.
    pub(crate) fn add(&mut self, account: Account) {
        self.all += 1;
        self.granted += usize::from(account.is_limited);
        for party in account.parties() {
            *self.parties.entry(party).or_default() += 1;
        }
    }

    /// Counts one less for an account.
    pub(crate) fn give_back(&mut self, account: Account) {
        self.all -= 1;
        self.granted -= usize::from(account.is_limited);
        for party in account.parties() {
            if let Some(held) = self.parties.get_mut(&party) {
                *held -= 1;
                if *held == 0 {
                    self.parties.remove(&party);
                }
            }
        }
    }

    /// Returns how many a party has.
    pub(crate) fn of(&self, party: Party) -> usize {
        self.parties.get(&party).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: ShareLimits = ShareLimits::of(16, 3);

    fn user(uid: u32) -> Account {
        Account { uid, group: None, is_limited: true }
    }

    fn member(uid: u32) -> Account {
        Account { group: Some(70), ..user(uid) }
    }

    const ADMINISTRATOR: Account = Account { uid: 0, group: None, is_limited: false };

    impl Shares {
        fn take(&mut self, account: Account) -> Result<(), Exceeded> {
            self.check(account)?;
            self.add(account);
            Ok(())
        }
    }

    /// Takes as many as the limits allow. Returns how many, and the limit.
    fn take_all(
        shares: &mut Shares,
        accounts: impl IntoIterator<Item = Account>,
    ) -> (usize, Exceeded) {
        let mut taken = 0;
        for account in accounts {
            match shares.take(account) {
                Ok(()) => taken += 1,
                Err(exceeded) => return (taken, exceeded),
            }
        }
        panic!("{taken} are not enough for a limit")
    }

    #[test]
    fn each_party_has_a_limit() {
        let mut shares = Shares::new(LIMITS);
        let (count, exceeded) = take_all(&mut shares, [user(7); 9]);
        assert_eq!((count, exceeded.to_string()), (3, "user 7 has the most allowed, 3".into()));
        // However many user numbers the members of a group have.
        let (count, exceeded) = take_all(&mut shares, (100..).map(member));
        assert_eq!(count, 8);
        assert_eq!(exceeded.whose, Whose::Party(Party::Group(70)));
        let (count, exceeded) = take_all(&mut shares, (200..).map(user));
        assert_eq!((count, exceeded.whose), (14 - 3 - 8, Whose::Granted));
        let (count, exceeded) = take_all(&mut shares, [ADMINISTRATOR; 9]);
        assert_eq!((count, exceeded.whose), (2, Whose::All));
        shares.give_back(member(100));
        assert_eq!(shares.check(member(300)), Ok(()));
    }

    proptest! {
        #[test]
        fn what_is_given_back_is_free(uids in proptest::collection::vec((0..4_u32, 0..3_u32), 0..40)) {
            let mut shares = Shares::new(LIMITS);
            let account = |(uid, kind): &(u32, u32)| match kind {
                0 => user(*uid),
                1 => member(*uid),
                _ => ADMINISTRATOR,
            };
            let taken: Vec<_> = uids.iter().map(account).filter(|one| shares.take(*one).is_ok()).collect();
            prop_assert!(taken.len() <= LIMITS.all);
            taken.into_iter().for_each(|one| shares.give_back(one));
            prop_assert_eq!((shares.all, shares.granted, shares.parties.len()), (0, 0, 0));
        }
    }
}
