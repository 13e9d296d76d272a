//! Notifications that the engine leaves to the workers of the applications' users.
//!
//! To notify an application, the kernel walks all waiters of its doorbell, and an application may
//! have millions of them there. Where others would have to wait meanwhile, the engine therefore
//! increments a counter once for each session with a notification. It then wakes the worker of its
//! user once for all of them. The worker's eventfd and the counters are the server's own: no
//! application reaches them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use towpath_memory::{Region, own_words, peer_words};
use towpath_queue::{OwnWords, PeerWords};

/// The means by which the worker of a session's user notifies the application in place of the
/// engine.
#[derive(Clone, Debug)]
pub struct Relay {
    /// The number of the notification counter.
    pub number: u32,
    /// Wakes the worker.
    pub worker: Arc<OwnedFd>,
    /// `true` if the user is the server's, or root.
    pub trusted: bool,
}

/// The counters of notifications of one lane, and the workers to call.
#[derive(Debug)]
pub struct Relays {
    counters: OwnWords,
    called: Vec<Arc<OwnedFd>>,
}

impl Relays {
    /// Creates counters for `sessions` sessions, and a view of them for the workers, which are
    /// forks of this process.
    ///
    /// # Errors
    /// Fails with the error of `mmap`.
    pub fn new(sessions: usize) -> std::io::Result<(Relays, PeerWords)> {
        let memory = Region::shared_with_forks(sessions * 8)?;
        let seen = peer_words(memory.mapping());
        let counters = own_words(memory);
        Ok((Relays { counters, called: Vec::with_capacity(64) }, seen))
    }

    /// Creates no counters, for an engine that notifies all its sessions directly.
    ///
    /// # Errors
    /// Fails with the error of `mmap`.
    pub fn none() -> std::io::Result<Relays> {
        Ok(Relays::new(1)?.0)
    }

    /// Records a notification. The worker finds it when the engine calls it.
    pub(crate) fn notify(&mut self, relay: &Relay) {
        let index = relay.number as usize;
        self.counters.publish(index, self.counters.get(index).wrapping_add(1));
        // Few users have notifications in one poll iteration.
        if !self.called.iter().any(|one| Arc::ptr_eq(one, &relay.worker)) {
            self.called.push(relay.worker.clone());
        }
    }

    /// Calls the workers that have something to do.
    pub(crate) fn call(&mut self) {
        for worker in self.called.drain(..) {
            while rustix::io::write(&*worker, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {}
        }
    }
}
