//! The control thread's list of freed leases, with the time for which the engines answer for each.
//!
//! A lease that gives way is of the party with the most leases: a user, or all users that one group lets in. Among the
//! users of a group, the one with the most leases gives way. A user's oldest lease gives way first. So a user whose
//! applications attach and detach often takes no room from the leases of others, not even with many user numbers
//! (`subuid(5)`).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use towpath_engine::account::{Account, Party};
use towpath_engine::freed::MOST_FREED;

/// The time for which the engines answer for a freed lease. Linux gives a connection up after 924.6 s without an
/// acknowledgement (`tcp_retries2`), so each peer that sends data gets a reset in this time.
const ANSWERED: Duration = Duration::from_secs(930);

/// A freed lease, by its MAC address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) mac: [u8; 6],
    /// The account of the ended session.
    account: Account,
    until: Instant,
}

/// The numbers of leases per party and per user, for [`FreedLeases::take_yielding`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    parties: HashMap<Party, usize>,
    users: HashMap<(Party, Party), usize>,
}

/// The freed leases for which the engines answer, oldest first.
#[derive(Debug, Default)]
pub(crate) struct FreedLeases {
    all: VecDeque<Freed>,
}

impl FreedLeases {
    /// Returns the time until the oldest lease expires.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let until = self.all.front()?.until;
        Some(until.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Returns `true` without a lease.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds the lease of an account by its MAC address. Returns the lease that gives way, if the engines have no room
    /// for both.
    pub(crate) fn push(&mut self, mac: [u8; 6], account: Account) -> Option<Freed> {
        self.all.push_back(Freed { mac, account, until: Instant::now() + ANSWERED });
        if self.all.len() <= MOST_FREED {
            return None;
        }
        self.take_yielding(&mut self.counts())
    }

    /// Removes a lease. Returns `false` if it is not in the list.
    pub(crate) fn remove(&mut self, mac: [u8; 6]) -> bool {
        let at = self.all.iter().position(|one| one.mac == mac);
        at.is_some_and(|at| self.all.remove(at).is_some())
    }

    /// Returns the MAC addresses of the freed leases.
    pub(crate) fn macs(&self) -> impl Iterator<Item = [u8; 6]> {
        self.all.iter().map(|one| one.mac)
    }

    /// Counts the leases.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for Freed { account, .. } in &self.all {
            *counts.parties.entry(account.party()).or_default() += 1;
            *counts.users.entry((account.party(), account.user())).or_default() += 1;
        }
        counts
    }

    /// Removes the lease that gives way first. `counts`: the counts of all leases, which this function keeps up to
    /// date.
    pub(crate) fn take_yielding(&mut self, counts: &mut Counts) -> Option<Freed> {
        let lease = self.all.remove(counts.yielding(&self.all)?)?;
        counts.subtract(lease.account);
        Some(lease)
    }

    /// Adds a lease again that [`FreedLeases::take_yielding`] has removed.
    pub(crate) fn put_back(&mut self, lease: Freed) {
        let at = self.all.partition_point(|one| one.until <= lease.until);
        self.all.insert(at, lease);
    }

    /// Returns the MAC address of the oldest lease if its time is over.
    pub(crate) fn expired(&self) -> Option<[u8; 6]> {
        self.all.front().filter(|one| one.until <= Instant::now()).map(|one| one.mac)
    }
}

impl Counts {
    fn subtract(&mut self, account: Account) {
        let (party, user) = (account.party(), (account.party(), account.user()));
        self.parties.entry(party).and_modify(|count| *count -= 1);
        self.users.entry(user).and_modify(|count| *count -= 1);
    }

    /// Returns the index of the lease that gives way first.
    fn yielding(&self, all: &VecDeque<Freed>) -> Option<usize> {
        let most = self.parties.values().max()?;
        let first = all.iter().find(|one| self.parties[&one.account.party()] == *most)?;
        let party = first.account.party();
        let users = self.users.iter().filter(|((of, _), _)| *of == party);
        let most = users.map(|(_, count)| count).max()?;
        all.iter().position(|one| {
            one.account.party() == party && self.users[&(party, one.account.user())] == *most
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(uid: u32, number: usize) -> [u8; 6] {
        [2, 0, 0, uid as u8, (number >> 8) as u8, number as u8]
    }

    fn user(uid: u32) -> Account {
        Account { uid, group: None, is_limited: true }
    }

    fn member(uid: u32) -> Account {
        Account { group: Some(1), ..user(uid) }
    }

    fn count(leases: &FreedLeases, account: Account) -> usize {
        leases.all.iter().filter(|one| one.account == account).count()
    }

    #[test]
    fn the_user_with_the_most_leases_gives_way() {
        let mut leases = FreedLeases::default();
        (0..10).for_each(|number| assert_eq!(leases.push(mac(1, number), user(1)), None));
        for number in 0..MOST_FREED {
            let yielded = leases.push(mac(2, number), user(2)).map(|lease| lease.mac);
            let expected = number.checked_sub(MOST_FREED - 10).map(|first| mac(2, first));
            assert_eq!(yielded, expected);
        }
        assert_eq!((count(&leases, user(1)), count(&leases, user(2))), (10, MOST_FREED - 10));
        // Another user also has room.
        assert_eq!(leases.push(mac(3, 0), user(3)).unwrap().mac, mac(2, 10));
    }

    /// The group has the number of the user, who is no member.
    #[test]
    fn the_users_of_a_group_give_way_together() {
        let mut leases = FreedLeases::default();
        (0..10).for_each(|number| assert_eq!(leases.push(mac(1, number), user(1)), None));
        for number in 0..MOST_FREED {
            // One member has two leases, the others have one each.
            let uid = if number == 5 { 104 } else { 100 + number as u32 };
            let yielded = leases.push(mac(2, number), member(uid)).map(|lease| lease.mac);
            let expected = number.checked_sub(MOST_FREED - 10).map(|nth| match nth {
                0 => mac(2, 4),
                nth if nth <= 4 => mac(2, nth - 1),
                nth => mac(2, nth),
            });
            assert_eq!(yielded, expected, "{number}");
        }
        assert_eq!(count(&leases, user(1)), 10);
    }

    #[test]
    fn a_lease_that_is_put_back_has_its_place() {
        let mut leases = FreedLeases::default();
        for (number, uid) in [(0, 1), (1, 2), (2, 2), (3, 1), (4, 2)] {
            leases.push(mac(uid, number), user(uid));
            std::thread::sleep(Duration::from_millis(1));
        }
        let before: Vec<_> = leases.all.iter().map(|one| one.mac).collect();
        let mut counts = leases.counts();
        let taken: Vec<_> = std::iter::from_fn(|| leases.take_yielding(&mut counts)).collect();
        let order: Vec<_> = taken.iter().map(|one| one.mac).collect();
        assert_eq!(order, [mac(2, 1), mac(1, 0), mac(2, 2), mac(1, 3), mac(2, 4)]);
        taken.into_iter().for_each(|lease| leases.put_back(lease));
        assert_eq!(leases.all.iter().map(|one| one.mac).collect::<Vec<_>>(), before);
        assert_eq!(leases.expired(), None);
    }
}
