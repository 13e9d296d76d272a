//! The watchers of a socket: pollers, descriptors and tasks.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use crate::lock::lock;
use crate::readiness::{Interest, Ready};
use crate::ready_set::Member;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// The watchers of a socket, except blocked threads.
#[derive(Default)]
pub(crate) struct Watchers {
    /// Its registrations with pollers.
    pub(crate) members: Vec<Arc<Member>>,
    /// Eventfds of `mio` registrations. The event loop watches its eventfd edge-triggered, and never reads it.
    pub(crate) descriptors: Vec<(Interest, Arc<OwnedFd>)>,
    pub(crate) tasks: Tasks,
}

impl Watchers {
    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.descriptors.is_empty() && self.tasks.is_empty()
    }

    /// Reports what the socket is ready for. Returns the tasks to wake once the lock is released.
    pub(crate) fn ready(&mut self, ready: Ready) -> Woken {
        self.members.iter().for_each(|member| member.ready(ready));
        for (interest, descriptor) in &self.descriptors {
            if !ready.of_interest(*interest).is_empty() {
                // Fails only after 2^64 - 2 events, of which each is an edge.
                let _ = rustix::io::write(descriptor, &1_u64.to_ne_bytes());
            }
        }
        self.tasks.ready(ready)
    }
}

/// Tasks to wake. Without tasks that wait by number, this allocates nothing.
#[must_use]
pub(crate) struct Woken {
    polling: [Option<Waker>; 2],
    waiting: Vec<Waker>,
}

impl Woken {
    fn wake(self) {
        self.polling.into_iter().flatten().chain(self.waiting).for_each(Waker::wake);
    }
}

/// Tasks that wait for a socket.
#[derive(Default)]
pub(crate) struct Tasks {
    /// The wakers of the task that reads and of the task that writes, by [`TaskDirection`].
    polling: [Option<Waker>; 2],
    /// The wakers of tasks that wait by number, each with its interest.
    waiting: Vec<(u64, Interest, Waker)>,
    /// The number of the latest task that waits by number.
    last_number: u64,
}

/// A direction in which one task at a time polls a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskDirection {
    /// Reading or accepting.
    Read,
    /// Writing or connecting.
    Write,
}

impl TaskDirection {
    fn interest(self) -> Interest {
        match self {
            TaskDirection::Read => Interest::READABLE,
            TaskDirection::Write => Interest::WRITABLE,
        }
    }
}

#[allow(dead_code, reason = "the feature tokio uses all of it")]
impl Tasks {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.polling.iter().all(Option::is_none)
    }

    /// Sets the task that polls in a direction. Returns the earlier one, to be dropped without a lock: that may end the
    /// task, which may use the socket.
    #[must_use]
    pub(crate) fn poll(&mut self, direction: TaskDirection, waker: &Waker) -> Option<Waker> {
        let place = &mut self.polling[direction as usize];
        if place.as_ref().is_some_and(|before| before.will_wake(waker)) {
            return None;
        }
        place.replace(waker.clone())
    }

    /// Adds a task that waits. Returns its number.
    pub(crate) fn add(&mut self, interest: Interest, waker: &Waker) -> u64 {
        self.last_number += 1;
        self.waiting.push((self.last_number, interest, waker.clone()));
        self.last_number
    }

    /// Removes a task that waits. Returns its waker, to be dropped without a lock; `None` if it was woken.
    #[must_use]
    pub(crate) fn remove(&mut self, number: u64) -> Option<Waker> {
        let at = self.waiting.iter().position(|(other, ..)| *other == number)?;
        Some(self.waiting.swap_remove(at).2)
    }

    /// Takes the tasks that wait for something that the socket is ready for.
    fn ready(&mut self, ready: Ready) -> Woken {
        let polling = [TaskDirection::Read, TaskDirection::Write].map(|direction| {
            let is_ready = !ready.of_interest(direction.interest()).is_empty();
            self.polling[direction as usize].take_if(|_| is_ready)
        });
        let is_ready = |(_, interest, _): &mut (u64, Interest, Waker)| {
            !ready.of_interest(*interest).is_empty()
        };
        let waiting = self.waiting.extract_if(.., is_ready).map(|(.., waker)| waker).collect();
        Woken { polling, waiting }
    }
}

/// The watchers of a socket. The stack's thread checks without a lock whether there are any.
#[derive(Default)]
pub(crate) struct WatcherList {
    watchers: Mutex<Watchers>,
    /// `true` if there are watchers. [`WatchersGuard`] updates it when it is dropped.
    is_watched: AtomicBool,
}

impl WatcherList {
    /// Returns `true` if the socket has watchers. A watcher that is added later asks for the present state under the
    /// stack's lock, so it misses nothing.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Locks the watchers. Take this lock after the stack's, or without it.
    pub(crate) fn lock(&self) -> WatchersGuard<'_> {
        WatchersGuard { watchers: lock(&self.watchers), is_watched: &self.is_watched }
    }

    /// Reports what the socket is ready for. Call it without the stack's lock. It may run under the link's lock, so a
    /// task's waker must not use a network itself, but have an executor run the task.
    pub(crate) fn tell(&self, ready: Ready) {
        if !ready.is_empty() {
            let woken = self.lock().ready(ready);
            woken.wake();
        }
    }

    /// Removes the watchers of a socket whose last handle was dropped.
    pub(crate) fn end(&self) {
        let ended = std::mem::take(&mut *self.lock());
        ended.members.into_iter().for_each(|member| member.end());
    }
}

/// The locked watchers of a socket.
pub(crate) struct WatchersGuard<'a> {
    watchers: MutexGuard<'a, Watchers>,
    is_watched: &'a AtomicBool,
}

impl std::ops::Deref for WatchersGuard<'_> {
    type Target = Watchers;

    fn deref(&self) -> &Watchers {
        &self.watchers
    }
}

impl std::ops::DerefMut for WatchersGuard<'_> {
    fn deref_mut(&mut self) -> &mut Watchers {
        &mut self.watchers
    }
}

impl Drop for WatchersGuard<'_> {
    fn drop(&mut self) {
        self.is_watched.store(!self.watchers.is_empty(), Ordering::Relaxed);
    }
}
