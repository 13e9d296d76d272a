//! The copy areas of workers ([`crate::copying`]), and those that an earlier server left.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::copying::{CopyArea, is_released};

/// The beginning of the names of copy areas in the store.
pub(crate) const COPIES: &str = "copies-";

/// Returns the name of the copy area of an account's worker in the store.
pub(super) fn area_name(account: Account) -> String {
    let Account { uid, .. } = account;
    if account.is_limited {
        format!("{COPIES}{uid}")
    } else {
        format!("{COPIES}administrator-{uid}")
    }
}

/// The time from one look at the workers of an earlier server to the next one.
const EARLIER_PAUSE: Duration = Duration::from_millis(10);

/// The copy areas of the workers.
#[derive(Debug, Default)]
pub(crate) struct CopyAreas {
    /// With the number of memories that the worker maps.
    pub(super) by_worker: HashMap<u64, (Arc<CopyArea>, usize)>,
    /// The areas of an earlier server, by their names, until its workers have gone. A late copy of such a worker would
    /// overwrite bytes that the application has written since. So new copies wait.
    pub(crate) earlier: HashMap<String, Vec<OwnedFd>>,
    waiting: Vec<(OwnedFd, Arc<CopyArea>)>,
    looks_at: Option<Instant>,
}

impl CopyAreas {
    /// Returns the time until the next look at the workers of an earlier server.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.looks_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Records that a worker has ended or hangs.
    pub(crate) fn lose(&mut self, worker: u64) {
        if let Some((area, _)) = self.by_worker.remove(&worker) {
            area.lose();
        }
    }

    /// Lets the copies begin for which no worker of an earlier server remains.
    pub(crate) fn look_again(&mut self) {
        if self.looks_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.waiting.iter().for_each(|(_, area)| area.set_waits(false));
        self.waiting.retain(|(earlier, _)| !is_released(earlier));
        self.waiting.iter().for_each(|(_, area)| area.set_waits(true));
        self.looks_at = (!self.waiting.is_empty()).then(|| Instant::now() + EARLIER_PAUSE);
    }

    /// Counts a memory that a worker no longer maps. Returns `true` if it was the last one, whose area is of no use
    /// now.
    pub(super) fn remove_memory(&mut self, worker: u64) -> bool {
        let Some((_, memories)) = self.by_worker.get_mut(&worker) else { return false };
        *memories -= 1;
        *memories == 0 && self.by_worker.remove(&worker).is_some()
    }

    /// Makes the copies of an area wait for the earlier worker of the account.
    pub(super) fn wait_for_earlier(&mut self, name: &str, area: &Arc<CopyArea>) {
        let earlier = self.earlier.remove(name).unwrap_or_default();
        for earlier in earlier.into_iter().filter(|earlier| !is_released(earlier)) {
            area.set_waits(true);
            self.waiting.push((earlier, area.clone()));
            self.looks_at.get_or_insert(Instant::now() + EARLIER_PAUSE);
        }
    }

    /// Returns `true` if a worker of an earlier server may still copy for an account.
    pub(super) fn has_earlier(&self, name: &str) -> bool {
        self.earlier.get(name).is_some_and(|all| all.iter().any(|area| !is_released(area)))
    }
}
