//! Waiting for a socket: the waiting threads, and their wake-ups.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::lock::lock;
use crate::poller::Registration;

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
    pub(crate) registration: Mutex<Option<Registration>>,
}

impl Waiter {
    /// Returns `true` if a thread or poller waits for an event. Call it under the stack's lock.
    pub(crate) fn wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
            || self.leading.load(Ordering::Relaxed)
            || lock(&self.registration).is_some()
    }

    /// Returns `true` if a thread waits for the condition variable. Call it under the stack's lock.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Wakes the waiting threads and the poller. Call it after releasing the stack's lock, which
    /// the threads need first.
    pub(crate) fn tell(&self) {
        // A wake-up is a system call even if no thread waits. A thread that starts to wait after
        // this check has seen the present state of the stack, since it took the lock after us.
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.condvar.notify_all();
        }
        if let Some(registration) = lock(&self.registration).as_ref() {
            registration.ready();
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

/// The waiters to wake after releasing the stack's lock.
pub(crate) type ToTell = Vec<Arc<Waiter>>;
