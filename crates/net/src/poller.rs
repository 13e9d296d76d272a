//! Readiness of many sockets through one descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::EventfdFlags;
use towpath_memory::ForkGuard;

use crate::error;
use crate::lock::lock;

/// The readiness of a socket may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token with which the socket was registered.
    pub token: u64,
}

struct State {
    ready: Vec<(u64, Arc<AtomicBool>)>,
    /// `true` if the descriptor is readable already.
    notified: bool,
}

struct Shared {
    fd: OwnedFd,
    state: Mutex<State>,
    guard: ForkGuard,
}

/// Collects the events of the sockets registered with it. Its descriptor is readable while events
/// wait, and goes into `epoll`, `poll` or `select`, as the only descriptor for all of a network's
/// sockets.
///
/// Events are edge-triggered: after one, use the socket until it returns `WouldBlock`. All events
/// before the next [`Poller::take`] together cost one system call. A socket has one registration:
/// a second one, also of a clone, replaces the first.
///
/// In a child made by `fork`, an inherited poller has no events, and registers no socket. Its
/// descriptor is the parent's, and shows the parent's events.
#[derive(Clone)]
pub struct Poller {
    shared: Arc<Shared>,
}

impl Poller {
    /// Creates a poller without sockets.
    ///
    /// # Errors
    /// If the system has no descriptor or memory left.
    pub fn new() -> io::Result<Poller> {
        let guard = ForkGuard::new()?;
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::new(State { ready: Vec::new(), notified: false });
        Ok(Poller { shared: Arc::new(Shared { fd, state, guard }) })
    }

    /// Takes the events, in the order of their arrival.
    pub fn take(&self, events: &mut Vec<Event>) {
        if !self.shared.guard.is_parent() {
            return;
        }
        let mut state = lock(&self.shared.state);
        if state.notified {
            // Reset under the lock, before a later notification.
            let _ = rustix::io::read(&self.shared.fd, &mut [0; 8]);
            state.notified = false;
        }
        events.extend(state.ready.drain(..).map(|(token, queued)| {
            queued.store(false, Ordering::Relaxed);
            Event { token }
        }));
    }

    /// Returns a registration for a socket.
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub(crate) fn registration(&self, token: u64) -> io::Result<Registration> {
        error::not_forked(&self.shared.guard)?;
        Ok(Registration { poller: self.clone(), token, queued: Arc::default() })
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

/// A socket's registration with a poller.
pub(crate) struct Registration {
    poller: Poller,
    token: u64,
    /// `true` if the socket has a waiting event. Changes under the poller's lock only.
    queued: Arc<AtomicBool>,
}

impl Registration {
    /// Reports an event of the socket.
    pub(crate) fn ready(&self) {
        let shared = &self.poller.shared;
        let mut state = lock(&shared.state);
        if !self.queued.swap(true, Ordering::Relaxed) {
            state.ready.push((self.token, self.queued.clone()));
        }
        if !state.notified {
            state.notified = true;
            let _ = rustix::io::write(&shared.fd, &1u64.to_ne_bytes());
        }
    }
}
