//! The copy areas of workers ([`towpath_memory::copying`]), and the copy areas of an earlier server.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_engine::account::Account;
use towpath_memory::copying::{CopyArea, is_released};

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

/// The copy area of a worker.
#[derive(Debug)]
struct WorkerArea {
    area: Arc<CopyArea>,
    /// Its name in the store.
    name: String,
    /// The memories that the worker maps.
    memories: usize,
}

/// The copy areas of the workers.
#[derive(Debug, Default)]
pub(crate) struct CopyAreas {
    by_worker: HashMap<u64, WorkerArea>,
    /// The areas of an earlier server, by their names, until its workers have gone. A late copy of such a worker would
    /// overwrite bytes that the application has written since. So new copies of the account wait.
    earlier: HashMap<String, Vec<OwnedFd>>,
    looks_at: Option<Instant>,
}

impl CopyAreas {
    /// Takes over the areas of an earlier server.
    pub(crate) fn adopt(&mut self, earlier: HashMap<String, Vec<OwnedFd>>) {
        self.earlier = earlier;
        self.looks_at = Some(Instant::now());
    }

    /// Returns the time until the next look at the workers of an earlier server.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.looks_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Looks whether workers of an earlier server remain, and lets the copies begin for which none does. Returns the
    /// names of the store that are of no use any more.
    pub(crate) fn look_again(&mut self) -> Vec<String> {
        if self.looks_at.is_none_or(|at| Instant::now() < at) {
            return Vec::new();
        }
        let mut unused = Vec::new();
        self.earlier.retain(|name, areas| {
            areas.retain(|area| !is_released(area));
            if areas.is_empty() {
                unused.push(name.clone());
            }
            !areas.is_empty()
        });
        for WorkerArea { area, name, .. } in self.by_worker.values() {
            area.set_waits(self.earlier.contains_key(name));
            unused.retain(|other| other != name);
        }
        self.looks_at = (!self.earlier.is_empty()).then(|| Instant::now() + EARLIER_PAUSE);
        unused
    }

    /// Returns `true` if a worker of an earlier server may still copy for an account, by the name of the area.
    pub(super) fn has_earlier(&self, name: &str) -> bool {
        self.earlier.get(name).is_some_and(|all| all.iter().any(|area| !is_released(area)))
    }

    /// Returns the area of a worker, and counts a further memory that the worker maps.
    pub(super) fn add_memory(&mut self, worker: u64) -> Option<Arc<CopyArea>> {
        let one = self.by_worker.get_mut(&worker)?;
        one.memories += 1;
        Some(one.area.clone())
    }

    /// Enters the area of a worker, for its first memory.
    pub(super) fn insert(&mut self, worker: u64, area: Arc<CopyArea>, name: String) {
        area.set_waits(self.has_earlier(&name));
        self.by_worker.insert(worker, WorkerArea { area, name, memories: 1 });
    }

    /// Counts a memory that a worker no longer maps. Returns the name of the area if it was the last memory: the area
    /// is of no use now.
    pub(super) fn remove_memory(&mut self, worker: u64) -> Option<String> {
        let one = self.by_worker.get_mut(&worker)?;
        one.memories -= 1;
        if one.memories > 0 {
            return None;
        }
        self.by_worker.remove(&worker).map(|one| one.name)
    }

    /// Records that a worker has ended or hangs.
    pub(crate) fn lose(&mut self, worker: u64) {
        if let Some(one) = self.by_worker.remove(&worker) {
            one.area.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn area() -> (Arc<CopyArea>, OwnedFd) {
        let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (area, file) = CopyArea::create(Arc::new(wake)).unwrap();
        (Arc::new(area), file)
    }

    /// All memories of an account wait for its earlier workers, also those that come later, and no other account's.
    #[test]
    fn copies_wait_for_the_earlier_workers_of_their_account() {
        let mut areas = CopyAreas::default();
        let (earlier, file) = area();
        let files = vec![file.as_fd().try_clone_to_owned().unwrap()];
        areas.adopt(HashMap::from([("copies-7".to_owned(), files)]));
        let ((mine, _), (other, _)) = (area(), area());
        areas.insert(1, mine.clone(), "copies-7".to_owned());
        areas.insert(2, other.clone(), "copies-8".to_owned());
        for _ in 0..2 {
            assert!(areas.has_earlier("copies-7") && !areas.has_earlier("copies-8"));
            assert!(!mine.has_free_slot() && other.has_free_slot());
            areas.looks_at = Some(Instant::now());
            assert!(areas.look_again().is_empty());
            assert!(areas.next_deadline().is_some());
        }
        drop(earlier);
        areas.looks_at = Some(Instant::now());
        assert!(areas.look_again().is_empty(), "the name is the present area's, too");
        assert!(mine.has_free_slot() && !areas.has_earlier("copies-7"));
        assert!(areas.next_deadline().is_none());
    }

    #[test]
    fn an_area_lasts_as_long_as_memories_of_its_worker() {
        let mut areas = CopyAreas::default();
        assert!(areas.add_memory(1).is_none());
        areas.insert(1, area().0, "copies-7".to_owned());
        assert!(areas.add_memory(1).is_some());
        assert_eq!(areas.remove_memory(1), None);
        assert_eq!(areas.remove_memory(1), Some("copies-7".to_owned()));
        assert_eq!(areas.remove_memory(1), None, "of a worker without memories");
        let (lost, _file) = area();
        areas.insert(2, lost.clone(), "copies-8".to_owned());
        areas.lose(2);
        assert!(lost.is_lost() && areas.remove_memory(2).is_none());
    }

    /// An area of an account without memories leaves the store when its worker has gone.
    #[test]
    fn earlier_areas_of_no_use_are_named() {
        let mut areas = CopyAreas::default();
        let (earlier, file) = area();
        drop(earlier);
        areas.adopt(HashMap::from([("copies-7".to_owned(), vec![file])]));
        assert_eq!(areas.look_again(), ["copies-7"]);
    }
}
