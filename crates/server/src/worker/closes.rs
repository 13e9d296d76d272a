//! The closes of the server's copies of descriptors, and how many may wait for them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::process::{Resource, getrlimit};

use super::closer::{Closer, ClosingQueue};
use super::owner::Owner;

/// The number of waiting connections to close unread at which the server accepts no more.
const UNREAD_WAITING: usize = 64;
/// Owners whose queues are kept although nothing may wait in them.
const OWNERS: usize = 1024;

/// Limits on the server's descriptors that wait for a worker or for their close, because applications prolong these.
#[derive(Clone, Copy, Debug)]
struct Limits {
    of_user: usize,
    of_all: usize,
}

impl Limits {
    /// Returns limits for a limit of descriptors.
    fn new(descriptors: u64) -> Limits {
        let part =
            |of, least, most| usize::try_from(descriptors / of).unwrap_or(most).clamp(least, most);
        // A program that attaches 500 times a second has 3000 descriptors to close in a second, and no thread may run for
        // a while.
        Limits { of_user: part(8, 128, 1 << 14), of_all: part(2, 512, 1 << 15) }
    }

    /// Returns `true` if so many descriptors of a user wait that the server should take no more: more than a user may
    /// have, or more than a quarter of that while all users together have too many (`of_all`).
    fn are_exceeded(self, of_user: usize, of_all: impl FnOnce() -> usize) -> bool {
        of_user >= self.of_user || of_user >= self.of_user / 4 && of_all() >= self.of_all
    }
}

/// The threads that close descriptors, and their queues.
#[derive(Debug)]
pub(crate) struct Closes {
    closer: Closer,
    /// The closer of connections that are refused or closed unread: strangers can prolong these closes.
    of_strangers: Closer,
    /// The queue of descriptors that are of no owner.
    own: ClosingQueue,
    by_owner: HashMap<Owner, ClosingQueue>,
    /// The number of the next queue.
    next: u64,
    limits: Limits,
    /// Connections that were closed without reading them.
    unread: u64,
    /// Descriptors that a thread of the server closes because no worker is available.
    by_threads: u64,
}

impl Closes {
    /// Starts the threads.
    ///
    /// # Errors
    /// Fails if no thread is available.
    pub(crate) fn start() -> io::Result<Closes> {
        let closer = Closer::start("closer")?;
        Ok(Closes {
            own: closer.queue(0),
            closer,
            of_strangers: Closer::start("closer-refused")?,
            by_owner: HashMap::new(),
            next: 1,
            limits: Limits::new(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)),
            unread: 0,
            by_threads: 0,
        })
    }

    /// Returns the queue of an owner's descriptors.
    pub(crate) fn of(&mut self, owner: Owner) -> ClosingQueue {
        if self.by_owner.len() >= OWNERS {
            self.by_owner.retain(|_, queue| !queue.is_unused());
        }
        let closer = match owner {
            Owner::Refused | Owner::Unread => &self.of_strangers,
            Owner::User(_) | Owner::Administrator(_) | Owner::Pair(_) => &self.closer,
        };
        let next = &mut self.next;
        let queue = self.by_owner.entry(owner).or_insert_with(|| {
            *next += 1;
            closer.queue(*next)
        });
        queue.clone()
    }

    /// Returns the queue of descriptors that are of no owner.
    pub(crate) fn own(&self) -> &ClosingQueue {
        &self.own
    }

    /// Counts connections that are closed unread.
    pub(crate) fn count_unread(&mut self, connections: usize) {
        self.unread += connections as u64;
    }

    /// Closes descriptors of an owner for which no worker is available.
    pub(crate) fn close_without_worker(&mut self, owner: Owner, descriptors: Vec<OwnedFd>) {
        self.by_threads += descriptors.len() as u64;
        self.of(owner).close(descriptors);
    }

    /// Returns the number of connections that were closed unread, and of descriptors that threads close for want of a worker.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.unread, self.by_threads)
    }

    /// Returns `true` if so many connections to close unread wait that the server should accept no more. `queued`: those
    /// that wait for the worker.
    pub(crate) fn are_behind(&self, queued: usize) -> bool {
        // While the server accepts nothing, nothing more comes that would give a hung thread a companion.
        self.of_strangers.relieve(Instant::now());
        queued.max(self.of_strangers.waiting()) >= UNREAD_WAITING
    }

    /// Returns `true` if so many descriptors of an owner wait that the server should admit no more of its connections.
    /// `queued`: those of all owners that wait for a worker.
    pub(crate) fn are_too_many(&self, owner: Owner, queued: impl FnOnce() -> usize) -> bool {
        let closing = self.by_owner.get(&owner).map_or(0, ClosingQueue::waiting);
        self.limits.are_exceeded(closing, || queued() + self.closer.waiting())
    }

    /// Returns `true` if so many descriptors of an owner wait that the server should not even refuse more of its
    /// connections: twice as many as when it admits no more. `waiting`: those of this owner that wait for its worker.
    pub(crate) fn are_flooded(
        &self,
        owner: Owner,
        waiting: usize,
        queued: impl FnOnce() -> usize,
    ) -> bool {
        let closing = self.by_owner.get(&owner).map_or(0, ClosingQueue::waiting);
        self.limits.are_exceeded(waiting.max(closing) / 2, || queued() + self.closer.waiting())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::closer::tests::hold;

    fn pipe() -> OwnedFd {
        std::io::pipe().unwrap().0.into()
    }

    #[test]
    fn the_limit_per_user_is_lower_while_all_have_many() {
        let limits = Limits { of_user: 256, of_all: 1024 };
        let exceeded = |of_user, of_all| limits.are_exceeded(of_user, || of_all);
        assert_eq!([0, 255, 256].map(|count| exceeded(count, 0)), [false, false, true]);
        assert_eq!([0, 63, 64].map(|count| exceeded(count, 1023)), [false, false, false]);
        assert_eq!([0, 63, 64].map(|count| exceeded(count, 1024)), [false, false, true]);
        let of = |descriptors| {
            let Limits { of_user, of_all } = Limits::new(descriptors);
            (of_user, of_all)
        };
        let most = (1 << 14, 1 << 15);
        assert_eq!([1024, 65_536, u64::MAX].map(of), [(128, 512), (8192, 1 << 15), most]);
    }

    /// Slow closes of a user limit only that user. A new worker of the user begins with the count of the earlier worker.
    #[test]
    fn slow_closes_count_for_their_owner() {
        let mut closes = Closes::start().unwrap();
        closes.limits = Limits { of_user: 4, of_all: usize::MAX };
        let (user, other) = (Owner::User(7), Owner::User(8));
        let go = hold(closes.own());
        let too_many = |closes: &Closes, owner| closes.are_too_many(owner, || 0);
        let flooded = |closes: &Closes, owner| closes.are_flooded(owner, 0, || 0);
        (0..4).for_each(|_| closes.of(user).close(vec![pipe()]));
        assert!(too_many(&closes, user) && !flooded(&closes, user), "a refusal is possible");
        (0..4).for_each(|_| closes.of(user).close(vec![pipe()]));
        assert!(flooded(&closes, user));
        assert!(!too_many(&closes, other) && !flooded(&closes, other));
        drop(go);
        while too_many(&closes, user) {
            std::thread::yield_now();
        }
        assert_eq!(closes.counts(), (0, 0));
    }

    #[test]
    fn slow_closes_of_strangers_stop_accepting() {
        let mut closes = Closes::start().unwrap();
        let unread = closes.of(Owner::Unread);
        let go = hold(&unread);
        assert!(!closes.are_behind(0) && closes.are_behind(UNREAD_WAITING));
        (0..UNREAD_WAITING).for_each(|_| unread.close(vec![pipe()]));
        assert!(closes.are_behind(0));
        drop(go);
        while closes.are_behind(0) {
            std::thread::yield_now();
        }
    }
}
