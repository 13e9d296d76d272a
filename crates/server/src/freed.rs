//! The addresses of ended sessions, for which the engines answer: which ones, and for how long.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::engine::freed::MOST_FREED;

/// The time for which the engines answer for an address. A peer that has written data learns by then that the application
/// is gone: Linux gives a connection up after 924.6 s without an acknowledgement (`tcp_retries2`).
const ANSWERED: Duration = Duration::from_secs(930);

/// The addresses of an ended session.
#[derive(Debug)]
struct Freed {
    mac: [u8; 6],
    until: Instant,
}

/// Those for which the engines answer, oldest first.
#[derive(Debug, Default)]
pub(crate) struct FreedLeases {
    all: VecDeque<Freed>,
}

impl FreedLeases {
    /// Returns the time until the oldest ones expire.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let until = self.all.front()?.until;
        Some(until.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Returns `true` if no more addresses may be entered.
    pub(crate) fn is_full(&self) -> bool {
        self.all.len() == MOST_FREED
    }

    /// Enters addresses by their MAC address.
    pub(crate) fn push(&mut self, mac: [u8; 6]) {
        self.all.push_back(Freed { mac, until: Instant::now() + ANSWERED });
    }

    /// Removes addresses. Returns `false` if they are not there.
    pub(crate) fn remove(&mut self, mac: [u8; 6]) -> bool {
        let at = self.all.iter().position(|one| one.mac == mac);
        at.is_some_and(|at| self.all.remove(at).is_some())
    }

    /// Returns the oldest addresses.
    pub(crate) fn oldest(&self) -> Option<[u8; 6]> {
        self.all.front().map(|one| one.mac)
    }

    /// Returns `true` if the time of the oldest addresses is over.
    pub(crate) fn has_expired(&self) -> bool {
        self.all.front().is_some_and(|one| one.until <= Instant::now())
    }
}
