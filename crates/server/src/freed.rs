//! The control thread's list of freed leases, with the time for which the engines answer for each.
//!
//! A lease that gives way is the oldest one of the user with the most leases. So a user whose applications attach and
//! detach often takes no room from the leases of other users.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::engine::freed::MOST_FREED;

/// The time for which the engines answer for a freed lease. Linux gives a connection up after 924.6 s without an
/// acknowledgement (`tcp_retries2`), so each peer that sends data gets a reset in this time.
const ANSWERED: Duration = Duration::from_secs(930);

/// A freed lease, by its MAC address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) mac: [u8; 6],
    /// The user of the ended session.
    uid: u32,
    until: Instant,
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

    /// Adds the lease of a user by its MAC address. Returns the lease that gives way, if the engines have no room for
    /// both.
    pub(crate) fn push(&mut self, mac: [u8; 6], uid: u32) -> Option<Freed> {
        self.all.push_back(Freed { mac, uid, until: Instant::now() + ANSWERED });
        if self.all.len() > MOST_FREED { self.take_yielding() } else { None }
    }

    /// Removes a lease. Returns `false` if it is not in the list.
    pub(crate) fn remove(&mut self, mac: [u8; 6]) -> bool {
        let at = self.all.iter().position(|one| one.mac == mac);
        at.is_some_and(|at| self.all.remove(at).is_some())
    }

    /// Removes the lease that gives way first.
    pub(crate) fn take_yielding(&mut self) -> Option<Freed> {
        let mut counts = HashMap::<u32, usize>::new();
        self.all.iter().for_each(|one| *counts.entry(one.uid).or_default() += 1);
        let most = counts.values().max()?;
        let at = self.all.iter().position(|one| counts[&one.uid] == *most)?;
        self.all.remove(at)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(uid: u32, number: usize) -> [u8; 6] {
        [2, 0, 0, uid as u8, (number >> 8) as u8, number as u8]
    }

    fn count(leases: &FreedLeases, uid: u32) -> usize {
        leases.all.iter().filter(|one| one.uid == uid).count()
    }

    #[test]
    fn the_user_with_the_most_leases_gives_way() {
        let mut leases = FreedLeases::default();
        (0..10).for_each(|number| assert_eq!(leases.push(mac(1, number), 1), None));
        for number in 0..MOST_FREED {
            let yielded = leases.push(mac(2, number), 2).map(|lease| lease.mac);
            let expected = number.checked_sub(MOST_FREED - 10).map(|first| mac(2, first));
            assert_eq!(yielded, expected);
        }
        assert_eq!((count(&leases, 1), count(&leases, 2)), (10, MOST_FREED - 10));
        // Another user also has room.
        assert_eq!(leases.push(mac(3, 0), 3).unwrap().mac, mac(2, 10));
    }

    #[test]
    fn a_lease_that_is_put_back_has_its_place() {
        let mut leases = FreedLeases::default();
        for (number, uid) in [(0, 1), (1, 2), (2, 2), (3, 1), (4, 2)] {
            leases.push(mac(uid, number), uid);
            std::thread::sleep(Duration::from_millis(1));
        }
        let before: Vec<_> = leases.all.iter().map(|one| one.mac).collect();
        let taken: Vec<_> = std::iter::from_fn(|| leases.take_yielding()).collect();
        let order: Vec<_> = taken.iter().map(|one| one.mac).collect();
        assert_eq!(order, [mac(2, 1), mac(1, 0), mac(2, 2), mac(1, 3), mac(2, 4)]);
        taken.into_iter().for_each(|lease| leases.put_back(lease));
        assert_eq!(leases.all.iter().map(|one| one.mac).collect::<Vec<_>>(), before);
        assert_eq!(leases.expired(), None);
    }
}
