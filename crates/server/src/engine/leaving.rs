//! Sessions whose applications have ended, and whose last packets the engine still sends.
//!
//! An application that detaches or dies may leave complete packets in its transmit queues. The engine sends those that are
//! there when it learns of the end, with the same checks, shares and rates as before, and then begins to close the session.

use std::collections::VecDeque;

use crate::engine::session::Session;

/// The time for which an ended session's packets may wait for the device or for their rates, in nanoseconds. 1 024 packets
/// of 1 500 bytes take as long at 100 Mbit/s.
const LEAVE_NS: u64 = 123_000_000;

/// Ended sessions that may still send. More of them end at once, so that a poll iteration looks at few.
const LEAVING: usize = 64;

/// A session that still sends.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) key: u32,
    pub(super) number: u32,
    /// The queue pairs with packets left, and the ends of these.
    queue_pairs: Vec<(u32, u32)>,
    /// The latest time at which it closes, in nanoseconds.
    until: u64,
}

impl Leaving {
    /// Returns the session's last packets; `None` if it has none, or its indexes are impossible.
    pub(super) fn of(key: u32, session: &mut Session, now: u64) -> Option<Leaving> {
        let mut queue_pairs = Vec::new();
        for (number, set) in session.queue_pairs.iter_mut().enumerate() {
            if set.transmit.observe().ok()? > 0 {
                queue_pairs.push((number as u32, set.transmit.seen()));
            }
        }
        let has_some = !queue_pairs.is_empty() || session.in_flight > 0;
        has_some.then(|| Leaving {
            key,
            number: session.number,
            queue_pairs,
            until: now + LEAVE_NS,
        })
    }

    /// Returns the queue pairs with packets left.
    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = u32> {
        self.queue_pairs.iter().map(|(number, _)| *number)
    }

    /// Returns `true` if the engine has taken all of these packets and none of any session waits for the device, or if the
    /// time is over.
    fn is_over(&mut self, session: &Session, waits: bool, now: u64) -> bool {
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

/// The sessions that still send, in the order of their ends.
#[derive(Debug, Default)]
pub(super) struct LeavingSessions {
    all: VecDeque<Leaving>,
}

impl LeavingSessions {
    /// Returns `true` if there is room for one more session.
    pub(super) fn has_room(&self) -> bool {
        self.all.len() < LEAVING
    }

    /// Enters a session.
    pub(super) fn push(&mut self, leaving: Leaving) {
        self.all.push_back(leaving);
    }

    /// Returns `true` if no session still sends.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the time at which the next session must close, in nanoseconds.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.all.front().map(|one| one.until)
    }

    /// Takes a session out that has nothing left to send, and returns its key. `session`: a session by its key. `waits`:
    /// `true` if packets wait for the device.
    pub(super) fn take_over<'a>(
        &mut self,
        session: impl Fn(u32) -> Option<&'a Session>,
        waits: bool,
        now: u64,
    ) -> Option<u32> {
        let at = self.all.iter_mut().position(|one| {
            let session = session(one.key).filter(|session| session.number == one.number);
            session.is_none_or(|session| session.closing || one.is_over(session, waits, now))
        })?;
        let taken = self.all.remove(at)?;
        let lives = session(taken.key).is_some_and(|session| session.number == taken.number);
        // Otherwise the engine has closed the session for a violation.
        lives.then_some(taken.key)
    }
}
