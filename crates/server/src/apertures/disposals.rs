//! The memories that two users' applications could write to, and that workers of neither user free.
//!
//! A process that can write to the file can hold the kernel's lock of the file without limit: it writes from a page
//! that never arrives. A worker that frees the file's pages then hangs. The server cannot tell which of the two
//! users has caused that. So each such memory gets a worker that serves no session ([`Owner::Pair`]), and a hang counts
//! against both users. Until the worker is done, the memory stays charged to both, half to each.
//!
//! [`Owner::Pair`]: crate::worker::workers::Owner::Pair

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use towpath_engine::account::Account;
use towpath_engine::shares::{ShareLimits, Shares};

use super::tables::Released;
use crate::worker::pair::Pair;

/// The most hung workers of two users. With this number, the two get no further memory that both can write to.
pub(crate) const MOST_HUNG: usize = 4;
/// The workers of all pairs together, hung or not. Each counts for both of its users.
const PLACES: ShareLimits = ShareLimits::of(128, 16);
/// The time until the next attempt, if there was no worker.
const PAUSE: Duration = Duration::from_millis(100);

/// A memory to free.
#[derive(Debug)]
pub(crate) struct Disposal {
    pub(super) memory: Released,
    pub(super) writer: Account,
}

impl Disposal {
    /// Returns the accounts of the two users.
    pub(super) fn accounts(&self) -> [Account; 2] {
        [self.memory.owner, self.writer]
    }

    pub(super) fn pair(&self) -> Pair {
        Pair::of(self.memory.owner, self.writer)
    }
}

/// A memory that a worker frees.
#[derive(Debug)]
struct Working {
    disposal: Disposal,
    is_hung: bool,
}

/// All memories to free. Two users have one worker at a time that does not hang.
#[derive(Debug)]
pub(crate) struct Disposals {
    waiting: BTreeMap<Pair, VecDeque<Disposal>>,
    /// By their workers.
    working: BTreeMap<u64, Working>,
    places: Shares,
    /// The pair that got the last worker. The next one is another pair's, if others wait.
    last: Option<Pair>,
    /// The time before which no worker is to be made.
    not_before: Option<Instant>,
    /// `true` if no memory that waits may begin until something changes.
    is_settled: bool,
}

impl Disposals {
    pub(crate) fn new() -> Disposals {
        Disposals {
            waiting: BTreeMap::new(),
            working: BTreeMap::new(),
            places: Shares::new(PLACES),
            last: None,
            not_before: None,
            is_settled: true,
        }
    }

    /// Adds a memory.
    pub(super) fn push(&mut self, disposal: Disposal) {
        self.is_settled = false;
        self.waiting.entry(disposal.pair()).or_default().push_back(disposal);
    }

    /// Takes the next memory for which there may be a worker. The caller starts it, or puts it back.
    pub(super) fn take_next(&mut self, now: Instant) -> Option<Disposal> {
        if self.is_settled || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        (self.not_before, self.is_settled) = (None, true);
        let behind = |pair: &&Pair| self.last.is_some_and(|last| **pair <= last);
        let (before, after): (Vec<Pair>, Vec<Pair>) =
            self.waiting.keys().partition(|pair| behind(pair));
        let pair = after.into_iter().chain(before).find(|pair| self.may_begin(*pair))?;
        let waiting = self.waiting.get_mut(&pair)?;
        let disposal = waiting.pop_front()?;
        if waiting.is_empty() {
            self.waiting.remove(&pair);
        }
        (self.last, self.is_settled) = (Some(pair), false);
        disposal.accounts().into_iter().for_each(|one| self.places.add(one));
        Some(disposal)
    }

    /// Returns `true` if two users may have a worker, or one more.
    fn may_begin(&mut self, pair: Pair) -> bool {
        let hung = self.hung(pair);
        let theirs = self.working.values().filter(|one| one.disposal.pair() == pair).count();
        let Some(first) = self.waiting.get(&pair).and_then(VecDeque::front) else { return false };
        let [owner, writer] = first.accounts();
        theirs == hung && hung < MOST_HUNG && self.places.check_two(owner, writer).is_ok()
    }

    /// Records that a worker frees a memory.
    pub(super) fn start(&mut self, worker: u64, disposal: Disposal) {
        self.working.insert(worker, Working { disposal, is_hung: false });
    }

    /// Puts a memory back for which there was no worker.
    pub(super) fn put_back(&mut self, disposal: Disposal, now: Instant) {
        disposal.accounts().into_iter().for_each(|one| self.places.give_back(one));
        self.waiting.entry(disposal.pair()).or_default().push_front(disposal);
        (self.not_before, self.is_settled) = (Some(now + PAUSE), false);
    }

    /// Takes the memory of a worker that is done or gone, and gives its place back.
    pub(super) fn finish(&mut self, worker: u64) -> Option<Disposal> {
        let Working { disposal, .. } = self.working.remove(&worker)?;
        self.is_settled = false;
        disposal.accounts().into_iter().for_each(|one| self.places.give_back(one));
        Some(disposal)
    }

    /// Takes the memory of a worker that has ended before it was done, and puts it back.
    pub(super) fn retry(&mut self, worker: u64, now: Instant) {
        if let Some(Working { disposal, .. }) = self.working.remove(&worker) {
            self.put_back(disposal, now);
        }
    }

    /// Records that a worker hangs. Returns its memory.
    pub(super) fn hang(&mut self, worker: u64) -> Option<&Disposal> {
        let working = self.working.get_mut(&worker)?;
        working.is_hung = true;
        self.is_settled = false;
        Some(&working.disposal)
    }

    /// Returns the number of hung workers of two users.
    pub(super) fn hung(&self, pair: Pair) -> usize {
        let hangs = |one: &&Working| one.is_hung && one.disposal.pair() == pair;
        self.working.values().filter(hangs).count()
    }

    /// Returns the time of the next attempt to make a worker.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let at = self.not_before.filter(|_| !self.waiting.is_empty());
        at.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn user(uid: u32) -> Account {
        Account { uid, group: None, is_limited: true }
    }

    fn disposal(id: u64, owner: u32, writer: u32) -> Disposal {
        let file = std::io::pipe().unwrap().0.into();
        let memory = Released { id, file, bytes: 8192, owner: user(owner), writer: None };
        Disposal { memory, writer: user(writer) }
    }

    /// Starts all workers that may start. Worker and memory have the same number. Returns the numbers.
    fn start(all: &mut Disposals) -> BTreeSet<u64> {
        let mut started = BTreeSet::new();
        while let Some(disposal) = all.take_next(Instant::now()) {
            let id = disposal.memory.id;
            all.start(id, disposal);
            started.insert(id);
        }
        started
    }

    /// Two users have one worker that does not hang, and four that hang, in either role. A hung one that ends gives its
    /// place back.
    #[test]
    fn two_users_have_four_hung_workers() {
        let mut all = Disposals::new();
        for id in 0..8 {
            // Each of the two is the owner of some.
            all.push(if id % 2 == 0 { disposal(id, 7, 8) } else { disposal(id, 8, 7) });
        }
        let pair = Pair::of(user(7), user(8));
        for id in 0..4 {
            assert_eq!(start(&mut all), BTreeSet::from([id]), "one at a time");
            assert_eq!(all.hung(pair), id as usize);
            assert_eq!(all.hang(id).unwrap().memory.id, id);
        }
        assert_eq!(start(&mut all), BTreeSet::new());
        assert_eq!(all.hung(pair), MOST_HUNG);
        // Other pairs of these users are still served.
        all.push(disposal(20, 7, 9));
        assert_eq!(start(&mut all), BTreeSet::from([20]));
        assert_eq!((all.hung(Pair::of(user(9), user(7))), all.hung(pair)), (0, 4));
        // The end of one lets the next begin, and the memory that comes after that one.
        assert_eq!(all.finish(2).unwrap().memory.id, 2);
        assert_eq!(start(&mut all), BTreeSet::from([4]));
        assert_eq!(all.finish(4).unwrap().memory.id, 4);
        assert_eq!(start(&mut all), BTreeSet::from([5]));
        assert!(all.finish(2).is_none() && all.hang(2).is_none());
    }

    /// The workers of all pairs have a limit, and so have those of one user and of one group.
    #[test]
    fn users_with_many_partners_leave_places_to_others() {
        let mut all = Disposals::new();
        for id in 0..40 {
            all.push(disposal(id, 7, 1000 + id as u32));
        }
        assert_eq!(start(&mut all).len(), 16, "those of user 7");
        assert!((0..16).all(|id| all.hang(id).is_some()));
        // The members of a group, each with a partner in the group.
        for id in 100..200 {
            let mut one = disposal(id, 2 * id as u32, 2 * id as u32 + 1);
            (one.memory.owner.group, one.writer.group) = (Some(70), Some(70));
            all.push(one);
        }
        assert_eq!(start(&mut all).len(), 32, "those of the group");
        for id in 200..300 {
            all.push(disposal(id, 2 * id as u32, 2 * id as u32 + 1));
        }
        assert_eq!(start(&mut all).len(), 56 - 16 - 32, "those of all granted users");
        // Administrators have places, and what waits begins when others end.
        let mut one = disposal(300, 0, 5);
        (one.memory.owner.is_limited, one.writer.is_limited) = (false, false);
        all.push(one);
        assert_eq!(start(&mut all), BTreeSet::from([300]));
        assert!(all.finish(3).is_some());
        let next = start(&mut all);
        assert!(
            next.len() == 1 && next.iter().all(|id| (16..40).contains(id) || *id >= 200),
            "{next:?}"
        );
        assert_eq!(all.working.len(), 57);
    }

    /// A pair with many memories does not keep others from a worker.
    #[test]
    fn pairs_take_turns() {
        let mut all = Disposals::new();
        for id in 0..3 {
            all.push(disposal(id, 7, 8));
            all.push(disposal(10 + id, 7, 9));
        }
        assert_eq!(all.take_next(Instant::now()).unwrap().memory.id, 0);
        assert_eq!(all.take_next(Instant::now()).unwrap().memory.id, 10);
        assert_eq!(all.take_next(Instant::now()).unwrap().memory.id, 1);
    }

    #[test]
    fn a_memory_without_a_worker_is_tried_again_later() {
        let mut all = Disposals::new();
        all.push(disposal(1, 7, 8));
        all.push(disposal(2, 7, 8));
        let now = Instant::now();
        let first = all.take_next(now).unwrap();
        all.put_back(first, now);
        assert!(all.take_next(now).is_none() && all.next_deadline().is_some());
        let first = all.take_next(now + PAUSE).unwrap();
        assert_eq!(first.memory.id, 1);
        all.start(5, first);
        // Its worker ends before it is done.
        all.retry(5, now);
        assert_eq!(all.take_next(now + PAUSE).unwrap().memory.id, 1);
        assert_eq!(all.next_deadline(), None);
    }
}
