//! The filters of one end: its control part adds and removes them, and its queue applies them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use towpath_device::Filter;
use towpath_packet::Headers;

/// The filters of one end, which any thread may change.
#[derive(Default)]
pub(super) struct Filters {
    set: Mutex<BTreeSet<Filter>>,
    /// Counts changes. The control part changes it after `set`.
    version: AtomicU64,
}

impl Filters {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Filter>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, filter: Filter) {
        self.lock().insert(filter);
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn remove(&self, filter: Filter) {
        self.lock().remove(&filter);
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn all(&self) -> Vec<Filter> {
        self.lock().iter().copied().collect()
    }
}

/// The queue's copy of the filters.
#[derive(Default)]
pub(super) struct Applied {
    version: u64,
    set: BTreeSet<Filter>,
}

impl Applied {
    /// Copies the filters if they changed.
    pub(super) fn follow(&mut self, filters: &Filters) {
        let version = filters.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.set.clone_from(&filters.lock());
        }
    }

    /// Returns `true` if the device receives a packet. `by_address`, `by_flow`: the device filters
    /// by addresses and groups, and by flows. Packets to groups pass every flow.
    pub(super) fn let_in(&self, packet: &[u8], by_address: bool, by_flow: bool) -> bool {
        let has = |filter| self.set.contains(&filter);
        if !(by_address || by_flow) || has(Filter::Everything) {
            return true;
        }
        let Some(destination) = packet.first_chunk::<6>() else { return false };
        let is_group = destination[0] & 1 != 0;
        if by_address
            && !has(Filter::Address(*destination))
            && !(is_group && has(Filter::AllGroups))
        {
            return false;
        }
        if !by_flow || is_group {
            return true;
        }
        let Ok(headers) = Headers::parse(packet, packet.len()) else { return false };
        self.set.iter().any(|one| matches!(one, Filter::Flow(flow) if flow.matches(&headers)))
    }
}
