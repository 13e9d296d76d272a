//! Waiting for a socket: the waiting threads, and their wake-ups.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Instant;

use crate::readiness::Ready;
use crate::watchers::WatcherList;

/// The maximum time that a call may block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// The call does not block.
    None,
    /// The call blocks until this time at most.
    Until(Instant),
    /// The call blocks without a limit.
    Forever,
}

/// A socket's waiters, used with the stack's lock.
#[derive(Default)]
pub(crate) struct Waiter {
    condvar: Condvar,
    /// Changes under the stack's lock only.
    waiting: AtomicU32,
    /// `true` if the waiting thread drives the network, and sleeps on the link.
    pub(crate) leading: AtomicBool,
    /// `true` if the last completed call of the socket wrote or connected.
    pub(crate) wrote: AtomicBool,
    /// What else watches the socket.
    pub(crate) watchers: WatcherList,
    /// `true` if one event is for one thread, which passes on what it leaves
    /// ([`Waiter::wake_one`]).
    wakes_one: bool,
}

impl Waiter {
    /// Returns the waiter of a listener, whose connections are for one thread each.
    pub(crate) fn waking_one() -> Waiter {
        Waiter { wakes_one: true, ..Waiter::default() }
    }

    /// Returns `true` if a thread waits for an event. Call it under the stack's lock.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0 || self.leading.load(Ordering::Relaxed)
    }

    /// Returns the number of threads that wait for the condition variable. Call it under the
    /// stack's lock.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed) as usize
    }

    /// Reports an event to the waiting threads, and what the socket is ready for to its watchers. Call it
    /// after releasing the stack's lock, which the threads need first.
    pub(crate) fn tell(&self, ready: Ready) {
        if self.wakes_one {
            self.wake_one();
        } else {
            self.wake_all();
        }
        self.watchers.tell(ready);
    }

    /// Reports an event that the caller's own thread handles next, if the event is for one thread.
    pub(crate) fn tell_others(&self, ready: Ready) {
        if self.wakes_one {
            self.watchers.tell(ready);
        } else {
            self.tell(ready);
        }
    }

    /// Reports the end of the link, which concerns each waiting thread.
    pub(crate) fn tell_all(&self) {
        self.wake_all();
        self.tell(Ready::DEAD);
    }

    fn wake_all(&self) {
        // A wake-up is a system call even if no thread waits. A thread that starts to wait after
        // this check has seen the present state of the stack, since it took the lock after us.
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.condvar.notify_all();
        }
    }

    /// Wakes one of the waiting threads, if any. Call it after releasing the stack's lock.
    pub(crate) fn wake_one(&self) {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.condvar.notify_one();
        }
    }

    /// Waits for a wake-up or until `until`, and releases the lock meanwhile.
    pub(crate) fn wait<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = match until {
            None => self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                let waited = self.condvar.wait_timeout(guard, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

/// The waiters to wake after releasing the stack's lock, each with what its watchers are told.
pub(crate) type ToTell = Vec<(Arc<Waiter>, Ready)>;
