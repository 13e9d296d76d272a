//! What all parts of a session read: whether the session is over, and which endpoints the server closed.

use std::cell::Cell;

use towpath_memory::ForkGuard;
use towpath_protocol::layout::{
    CLOSED_ADDRESS_GONE, CLOSED_AFTER_CRASHES, CLOSED_BY_POLICY, CLOSED_QUEUE_BROKE,
};
use towpath_queue::Violation;

use crate::error::Lost;
use crate::lanes::LaneWords;
use crate::options::Endpoint;

/// The state of a session. Its parts borrow it at once, on one thread, so its fields are cells.
pub(crate) struct Status {
    guard: ForkGuard,
    lost: Cell<Option<Lost>>,
    /// `true` if the doorbell's other end is closed. The application may still take the packets in
    /// the queues.
    hung_up: Cell<bool>,
    /// `true` if another server may resume the session.
    is_resumable: Cell<bool>,
    /// The number of endpoints that the server closed, as far as the client knows.
    revoked: Cell<u64>,
    /// `true` if no wait has returned since that number rose.
    revoked_untold: Cell<bool>,
    lanes: Box<[LaneWords]>,
}

impl Status {
    pub(crate) fn new(guard: ForkGuard, lanes: Vec<LaneWords>) -> Status {
        Status {
            guard,
            lost: Cell::new(None),
            hung_up: Cell::new(false),
            is_resumable: Cell::new(false),
            revoked: Cell::new(0),
            revoked_untold: Cell::new(false),
            lanes: lanes.into_boxed_slice(),
        }
    }

    /// Returns what each lane's engine says of the session.
    pub(crate) fn lanes(&self) -> &[LaneWords] {
        &self.lanes
    }

    /// `true` if this is the process that attached. A child made by `fork` does not have the
    /// session's memory, and messages on its descriptors are for the parent.
    #[inline]
    pub(crate) fn is_parents(&self) -> bool {
        self.guard.is_parent()
    }

    /// Returns the guard, which memory keeps because its accesses do not take the session.
    pub(crate) fn guard(&self) -> &ForkGuard {
        &self.guard
    }

    /// Returns an error if the session is over, as far as the client knows.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Lost> {
        if !self.guard.is_parent() {
            return Err(Lost::Forked);
        }
        self.lost.get().map_or(Ok(()), Err)
    }

    /// Returns why the session is over, if it is.
    #[inline]
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lost.get()
    }

    /// Ends the session for this reason, unless it has ended. Returns why it has ended.
    pub(crate) fn end(&self, lost: Lost) -> Lost {
        let lost = self.lost.get().unwrap_or(lost);
        self.lost.set(Some(lost));
        lost
    }

    /// Ends the session because the server wrote an impossible value.
    #[cold]
    pub(crate) fn wrong(&self, violation: Violation) -> Lost {
        self.end(Lost::ServerWrong(violation))
    }

    /// Returns why the session is over, now that the server has hung up.
    pub(crate) fn over(&self) -> Lost {
        if let Some(lost) = self.lost.get() {
            return lost;
        }
        // One engine writes the violation; the others then end the session without a reason.
        let word = self.lanes.iter().map(LaneWords::closed).find(|word| *word != 0).unwrap_or(0);
        self.end(match (word, Violation::from_number(word)) {
            (_, Some(violation)) => Lost::Violated(violation),
            (CLOSED_BY_POLICY, _) => Lost::Revoked,
            (CLOSED_ADDRESS_GONE, _) => Lost::AddressGone,
            (CLOSED_QUEUE_BROKE, _) => Lost::QueueBroke,
            (CLOSED_AFTER_CRASHES, _) => Lost::ServersCrashed,
            _ => Lost::ServerGone,
        })
    }

    #[inline]
    pub(crate) fn hung_up(&self) -> bool {
        self.hung_up.get()
    }

    pub(crate) fn set_hung_up(&self, hung_up: bool) {
        self.hung_up.set(hung_up);
    }

    pub(crate) fn set_resumable(&self) {
        self.is_resumable.set(true);
    }

    /// `true` if a server may resume the session, should its server be gone.
    pub(crate) fn can_resume(&self) -> bool {
        self.is_resumable.get()
            && self.lost.get().is_none()
            && !self.lanes.iter().any(LaneWords::is_closed)
    }

    /// Returns an error if the server has hung up and no other one will resume the session: nothing
    /// more comes.
    #[inline]
    pub(crate) fn check_more_comes(&self) -> Result<(), Lost> {
        if self.hung_up.get() && !self.can_resume() { Err(self.over()) } else { Ok(()) }
    }

    /// Returns how many endpoints the server closed, as far as the client knows.
    pub(crate) fn revoked(&self) -> u64 {
        self.revoked.get()
    }

    #[inline]
    pub(crate) fn is_revoked(&self, endpoint: Endpoint) -> bool {
        self.revoked.get() != 0 && self.has_revoked_word(endpoint)
    }

    #[cold]
    fn has_revoked_word(&self, endpoint: Endpoint) -> bool {
        self.guard.is_parent() && self.lanes.iter().all(|lane| lane.has_revoked(endpoint.number))
    }

    /// Checks whether the server has closed endpoints.
    pub(crate) fn update_revoked(&self) {
        // An endpoint is closed once every engine has closed it.
        let revoked = self.lanes.iter().map(LaneWords::revoked).min().unwrap_or(0);
        if self.revoked.replace(revoked) != revoked {
            self.revoked_untold.set(true);
        }
    }

    /// Returns `true` once after the server has closed endpoints.
    pub(crate) fn take_revoked(&self) -> bool {
        self.revoked_untold.take()
    }
}
