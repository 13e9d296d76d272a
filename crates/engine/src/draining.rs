//! Draining sessions: their applications have ended, and the engine still sends their last packets.
//!
//! An application that detaches or dies may leave complete packets in its transmit queues. The engine sends those
//! that it finds there, with the same checks, shares and rates as before. Then it begins to close the session.
//!
//! The engine looks at few queue pairs per poll iteration, in turn for each draining session.

use std::collections::VecDeque;

use towpath_queue::Violation;

use crate::session::Session;

/// The time for which a draining session's packets may wait for the device or for their rates, in nanoseconds. At
/// 100 Mbit/s, 1 024 packets of 1 500 bytes take this time.
pub(super) const DRAIN_NS: u64 = 123_000_000;

/// A draining session.
#[derive(Debug)]
pub(super) struct Draining {
    pub(super) key: u32,
    pub(super) number: u32,
    /// The next queue pair in which the engine looks for last packets.
    next: u32,
    /// The queue pairs with packets left, each with the index behind its last packet.
    queue_pairs: Vec<(u32, u32)>,
    /// The latest time at which the engine begins to close the session, in nanoseconds.
    until: u64,
}

/// What the engine learned at a queue pair of a draining session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The queue pair has packets. Those of an application that was killed may have no event.
    Found(u32),
    /// The queue pair has no packet left.
    Empty,
    /// The session waits until the engine has taken its packets, and the device has completed them.
    Waits,
    /// No packet is left, or the session's time limit is over.
    Over,
}

impl Draining {
    pub(super) fn new(key: u32, number: u32, now: u64) -> Draining {
        Draining { key, number, next: 0, queue_pairs: Vec::new(), until: now + DRAIN_NS }
    }

    /// Looks at the next queue pair. `waits`: `true` if packets of any session wait for the device. If none waits, the
    /// device has all of the session's packets, and the engine need not wait for their completion.
    ///
    /// # Errors
    /// The violation that the queue pair's indexes show.
    pub(super) fn step(
        &mut self,
        session: &mut Session,
        waits: bool,
        now: u64,
    ) -> Result<Step, Violation> {
        if now >= self.until {
            return Ok(Step::Over);
        }
        if let Some(queue) = session.transmit.get_mut(self.next) {
            let number = self.next;
            self.next += 1;
            if queue.consumer.observe()? == 0 {
                return Ok(Step::Empty);
            }
            self.queue_pairs.push((number, queue.consumer.seen()));
            return Ok(Step::Found(number));
        }
        let Some((number, end)) = self.queue_pairs.last() else {
            let is_over = session.transmit.in_flight() == 0 || !waits;
            return Ok(if is_over { Step::Over } else { Step::Waits });
        };
        let next = session.transmit.queue(*number).consumer.next_index();
        if (next.wrapping_sub(*end) as i32) < 0 {
            return Ok(Step::Waits);
        }
        self.queue_pairs.pop();
        Ok(Step::Empty)
    }
}

/// The draining sessions, in the order of their ends.
#[derive(Debug, Default)]
pub(super) struct DrainingSessions {
    all: VecDeque<Draining>,
    /// The index of the session whose turn it is.
    turn: usize,
    /// The number of sessions, beginning with that one, that the engine has to look at.
    unchecked: usize,
}

impl DrainingSessions {
    pub(super) fn push(&mut self, draining: Draining) {
        self.all.push_back(draining);
        self.unchecked = self.all.len();
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the latest time of the first session, in nanoseconds.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.all.front().map(|one| one.until)
    }

    /// Begins a poll iteration. The engine has to look at all sessions if it did some work, or if a session's time
    /// limit is over.
    pub(super) fn begin(&mut self, has_worked: bool, now: u64) {
        if has_worked || self.next_due().is_some_and(|until| until <= now) {
            self.unchecked = self.all.len();
        }
    }

    /// Returns `true` if the engine has to look at a further session.
    pub(super) fn has_left(&self) -> bool {
        self.unchecked > 0
    }

    /// Returns the session whose turn it is, if the engine has to look at it.
    pub(super) fn current(&mut self) -> Option<&mut Draining> {
        if self.unchecked == 0 {
            return None;
        }
        self.turn %= self.all.len().max(1);
        self.all.get_mut(self.turn)
    }

    /// Passes the turn to the next session, because the current one waits.
    pub(super) fn pass(&mut self) {
        self.turn += 1;
        self.unchecked -= 1;
    }

    /// Passes the turn to the next session, before the engine has looked at the whole current one.
    pub(super) fn interrupt(&mut self) {
        self.turn += 1;
        self.unchecked = self.all.len();
    }

    /// Removes the current session.
    pub(super) fn remove(&mut self) {
        self.all.remove(self.turn);
        self.unchecked -= 1;
    }
}

#[cfg(test)]
mod tests;
