//! The control thread's list of freed leases, with the time for which the engines answer for each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::engine::freed::MOST_FREED;

/// The time for which the engines answer for a freed lease. Linux gives a connection up after 924.6 s without an
/// acknowledgement (`tcp_retries2`), so each peer that sends data gets a reset in this time.
const ANSWERED: Duration = Duration::from_secs(930);

/// A freed lease, by its MAC address.
#[derive(Debug)]
struct Freed {
    mac: [u8; 6],
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

    /// `true` at the limit of the engines.
    pub(crate) fn is_full(&self) -> bool {
        self.all.len() == MOST_FREED
    }

    /// Adds a lease by its MAC address.
    pub(crate) fn push(&mut self, mac: [u8; 6]) {
        self.all.push_back(Freed { mac, until: Instant::now() + ANSWERED });
    }

    /// Removes a lease. Returns `false` if it is not in the list.
    pub(crate) fn remove(&mut self, mac: [u8; 6]) -> bool {
        let at = self.all.iter().position(|one| one.mac == mac);
        at.is_some_and(|at| self.all.remove(at).is_some())
    }

    /// Returns the MAC address of the oldest lease.
    pub(crate) fn oldest(&self) -> Option<[u8; 6]> {
        self.all.front().map(|one| one.mac)
    }

    /// `true` if the time of the oldest lease is over.
    pub(crate) fn has_expired(&self) -> bool {
        self.all.front().is_some_and(|one| one.until <= Instant::now())
    }
}
