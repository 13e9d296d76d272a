//! How much of a limited resource each user, the users of each group, and all users together may have at a time.
//!
//! Each limited resource has one [`Shares`], which counts all parties of an account. So no limit leaves out the groups.
//! A member of a group may have many user numbers (`subuid(5)`), and gains nothing by them. Shares count things, for
//! example sessions, or bytes.

use std::collections::HashMap;
use std::fmt;

use crate::account::{Account, Party};

/// The limits of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// Of one user.
    pub user: usize,
    /// Of the users that one group lets in.
    pub group: usize,
    /// Of all granted users. The rest is for administrators.
    pub granted: usize,
    /// Of all users, administrators included.
    pub all: usize,
    /// `true` if the limit of one user also binds administrators.
    pub binds_administrators: bool,
}

impl ShareLimits {
    /// No limit.
    pub const NONE: ShareLimits = ShareLimits {
        user: usize::MAX,
        group: usize::MAX,
        granted: usize::MAX,
        all: usize::MAX,
        binds_administrators: false,
    };

    /// Returns limits that leave half to the users of other groups, and an eighth to administrators.
    pub const fn of(all: usize, user: usize) -> ShareLimits {
        let (group, granted) = (all / 2, all - all / 8);
        ShareLimits { user, group, granted, all, binds_administrators: true }
    }
}

/// The party that has all that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// One user, or the users that a group lets in.
    Party(Party),
    /// All granted users together.
    Granted,
    /// All users together.
    All,
}

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The party that has as much as it may have.
    pub whose: Whose,
    /// The limit.
    pub most: usize,
    /// What the party would have.
    pub wanted: usize,
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

/// The amount of a resource that each party has.
#[derive(Debug)]
pub struct Shares {
    limits: ShareLimits,
    parties: HashMap<Party, usize>,
    granted: usize,
    all: usize,
}

impl Default for Shares {
    /// Creates shares whose limits come with each check ([`Shares::check_within`]).
    fn default() -> Shares {
        Shares::new(ShareLimits::NONE)
    }
}

impl Shares {
    /// Creates the shares of a resource of which no party has anything.
    pub fn new(limits: ShareLimits) -> Shares {
        Shares { limits, parties: HashMap::new(), granted: 0, all: 0 }
    }

    /// Checks that an account may have one more. The party's own limits come first: a user can do more about these than
    /// about the limits of all users.
    ///
    /// # Errors
    /// The limit that one more would exceed.
    pub fn check(&self, account: Account) -> Result<(), Exceeded> {
        self.check_within(self.limits, account, 1)
    }

    /// Checks as [`Shares::check`] does, with other limits, that an account may have `amount` more.
    ///
    /// # Errors
    /// The limit that `amount` more would exceed.
    pub fn check_within(
        &self,
        limits: ShareLimits,
        account: Account,
        amount: usize,
    ) -> Result<(), Exceeded> {
        let ShareLimits { user, group, granted, all, binds_administrators } = limits;
        let check = |whose: Whose, held: usize, most: usize| {
            let wanted = held.saturating_add(amount);
            if wanted > most { Err(Exceeded { whose, most, wanted }) } else { Ok(()) }
        };
        let is_bound = account.is_limited || binds_administrators;
        for party in account.parties().filter(|_| is_bound) {
            let most = if matches!(party, Party::Group(_)) { group } else { user };
            check(Whose::Party(party), self.of(party), most)?;
        }
        if account.is_limited {
            check(Whose::Granted, self.granted, granted)?;
        }
        check(Whose::All, self.all, all)
    }

    /// Checks that two accounts may have one more each.
    ///
    /// # Errors
    /// The limit that one more would exceed.
    pub fn check_two(&mut self, one: Account, other: Account) -> Result<(), Exceeded> {
        self.check(one)?;
        // Both may have one group.
        self.add(one);
        let outcome = self.check(other);
        self.give_back(one);
        outcome
    }

    /// Counts one more for an account. The caller has checked the limits, unless an earlier server permitted the thing.
    pub fn add(&mut self, account: Account) {
        self.add_amount(account, 1);
    }

    /// Counts one less for an account.
    pub fn give_back(&mut self, account: Account) {
        self.give_back_amount(account, 1);
    }

    /// Counts `amount` more for an account. The caller has checked the limits, as for [`Shares::add`].
    pub fn add_amount(&mut self, account: Account, amount: usize) {
        if amount == 0 {
            return;
        }
        self.all += amount;
        self.granted += if account.is_limited { amount } else { 0 };
        for party in account.parties() {
            *self.parties.entry(party).or_default() += amount;
        }
    }

    /// Counts `amount` less for an account.
    pub fn give_back_amount(&mut self, account: Account, amount: usize) {
        self.all -= amount;
        self.granted -= if account.is_limited { amount } else { 0 };
        for party in account.parties() {
            if let Some(held) = self.parties.get_mut(&party) {
                *held -= amount;
                if *held == 0 {
                    self.parties.remove(&party);
                }
            }
        }
    }

    /// Returns how much all accounts have together.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Returns how many users have some.
    pub fn users(&self) -> usize {
        self.parties.keys().filter(|party| !matches!(party, Party::Group(_))).count()
    }

    /// Returns how much a party has.
    pub fn of(&self, party: Party) -> usize {
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

        #[test]
        fn an_amount_is_refused_as_so_many_single_ones_are(
            held in proptest::collection::vec((0..3_u32, 0..6_usize), 0..6), uid in 0..3_u32, amount in 1..9_usize
        ) {
            let mut shares = Shares::new(LIMITS);
            held.into_iter().for_each(|(uid, amount)| shares.add_amount(member(uid), amount));
            let outcome = shares.check_within(LIMITS, member(uid), amount);
            let one_by_one = (0..amount).all(|_| shares.take(member(uid)).is_ok());
            prop_assert_eq!(outcome.is_ok(), one_by_one);
            if let Err(Exceeded { most, wanted, .. }) = outcome {
                prop_assert!(wanted > most);
            }
        }
    }
}
