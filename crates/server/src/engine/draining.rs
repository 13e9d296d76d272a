//! Draining sessions: their applications have ended, and the engine still sends their last packets.
//!
//! An application that detaches or dies may leave complete packets in its transmit queues. The engine sends those
//! that are there when it learns of the end, with the same checks, shares and rates as before. Then it begins to
//! close the session.

use std::collections::VecDeque;

use crate::engine::session::Session;

/// The time for which a draining session's packets may wait for the device or for their rates, in nanoseconds. At
/// 100 Mbit/s, 1 024 packets of 1 500 bytes take this time.
const DRAIN_NS: u64 = 123_000_000;

/// The limit of draining sessions, so that a poll iteration checks few. The engine closes further sessions at once.
const MOST_DRAINING: usize = 64;

/// A draining session.
#[derive(Debug)]
pub(super) struct Draining {
    pub(super) key: u32,
    pub(super) number: u32,
    /// The queue pairs with packets left, each with the index behind its last packet.
    queue_pairs: Vec<(u32, u32)>,
    /// The latest time at which the engine begins to close the session, in nanoseconds.
    until: u64,
}

impl Draining {
    /// Returns a session with its last packets. `None` if the session has none, or its indexes are impossible.
    pub(super) fn of(key: u32, session: &mut Session, now: u64) -> Option<Draining> {
        let mut queue_pairs = Vec::new();
        for (number, set) in session.queue_pairs.iter_mut().enumerate() {
            if set.transmit.observe().ok()? > 0 {
                queue_pairs.push((number as u32, set.transmit.seen()));
            }
        }
        let has_some = !queue_pairs.is_empty() || session.in_flight > 0;
        has_some.then(|| Draining {
            key,
            number: session.number,
            queue_pairs,
            until: now + DRAIN_NS,
        })
    }

    /// Returns the queue pairs with packets left.
    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = u32> {
        self.queue_pairs.iter().map(|(number, _)| *number)
    }

    /// `true` once the engine has taken all packets, and the device has completed them. Also `true` if no packet of any
    /// session waits for the device (`waits` is `false`), and after the session's latest time.
    fn is_drained(&mut self, session: &Session, waits: bool, now: u64) -> bool {
        while let Some((number, end)) = self.queue_pairs.last() {
            let next = session.queue_pairs[*number as usize].transmit.next_index();
            if (next.wrapping_sub(*end) as i32) < 0 {
                return now >= self.until;
            }
            self.queue_pairs.pop();
        }
        session.in_flight == 0 || !waits || now >= self.until
    }
}

/// The draining sessions, in the order of their ends.
#[derive(Debug, Default)]
pub(super) struct DrainingSessions {
    all: VecDeque<Draining>,
}

impl DrainingSessions {
    /// Returns `true` below the limit of draining sessions.
    pub(super) fn has_room(&self) -> bool {
        self.all.len() < MOST_DRAINING
    }

    pub(super) fn push(&mut self, draining: Draining) {
        self.all.push_back(draining);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the latest time of the first session, in nanoseconds.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.all.front().map(|one| one.until)
    }

    /// Removes a session that has nothing left to send, and returns its key. `session`: returns a session by its key.
    /// `waits`: `true` if packets wait for the device.
    pub(super) fn take_drained<'a>(
        &mut self,
        session: impl Fn(u32) -> Option<&'a Session>,
        waits: bool,
        now: u64,
    ) -> Option<u32> {
        let at = self.all.iter_mut().position(|one| {
            let session = session(one.key).filter(|session| session.number == one.number);
            session.is_none_or(|session| session.closing || one.is_drained(session, waits, now))
        })?;
        let taken = self.all.remove(at)?;
        let lives = session(taken.key).is_some_and(|session| session.number == taken.number);
        // Otherwise the engine has closed the session for a violation.
        lives.then_some(taken.key)
    }
}
