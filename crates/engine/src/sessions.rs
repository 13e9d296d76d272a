//! The sessions, and the discovery of those that have something to send. The cost of discovery does
//! not grow with the number of sessions.
//!
//! The engine polls the sessions that had news recently: these are *active*. The others are
//! *parked*. Each session has its own flag in its server pages that requests notifications. The
//! engine does not poll a parked session, neither in a poll iteration nor before a sleep, until the
//! epoll set reports the session's eventfd. An awake engine asks the epoll set every few
//! iterations, and only while a session is parked.
//!
//! Parking is the ski-rental problem. The engine parks a session once fruitless polls have cost
//! other sessions about as much as a notification. Polls by an otherwise idle engine cost other
//! sessions nothing and hardly count. A few sessions are always active. The applications of a
//! server with few sessions therefore make no system call except to wake the engine.

use std::collections::HashMap;

use towpath_queue::Violation;

use crate::meter::Meter;
use crate::session::Session;
use crate::session::activity::PARKED;
use towpath_protocol::position::Position;

/// How many bytes of the next packet the engine prefetches before it has read its descriptor: two
/// cache lines.
const EXPECTED_BYTES: usize = 128;
/// Events of one session that the engine takes per poll iteration; the rest waits for the next one.
pub(crate) const EVENTS: u32 = 256;

/// The number of sessions that the engine always keeps active. The applications of a server with
/// few sessions therefore make no system call while the engine is awake.
const FEW: usize = 8;
/// The weight of a busy poll iteration in idle ones: an idle engine that polls must not park every
/// session at once.
const BUSY: u64 = 1024;
/// The age without news after which the engine may park a session: 64 busy poll iterations. This
/// many fruitless polls cost the other sessions about as much as one notification.
const PARKING_AGE: u64 = 64 * BUSY;
/// An awake engine asks for notifications every 64 idle poll iterations. Asking is a system call,
/// which must not happen once per packet.
const ASK: u32 = 64;
/// The weight of a busy poll iteration in idle ones for asking: a busy engine asks every 16. Busy
/// iterations last longer, and must not make a first packet wait longer.
const BUSY_ASK: u32 = 4;

/// Counts of the work to find news.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Polls of sessions, in poll iterations and before sleeps.
    pub(crate) polls: u64,
    /// Sessions parked.
    pub(crate) parks: u64,
    /// Times that an awake engine asked for notifications.
    pub(crate) asked: u64,
}

/// All sessions of an engine, by session key.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    by_key: Vec<Option<Box<Session>>>,
    /// Session keys by session number.
    keys: HashMap<u32, u32>,
    /// Free session keys.
    free: Vec<u32>,
    /// Session keys of the active sessions, in no order.
    active: Vec<u32>,
    /// Number of parked sessions.
    parked: usize,
    /// Age in poll iterations; a busy one counts as [`BUSY`].
    age: u64,
    /// Poll iterations since the engine last asked for notifications.
    since: u32,
    /// `true` if, in the last poll iteration, a session named as many queue pairs as the engine
    /// takes at once; there may be more.
    left: bool,
    /// Queue pairs that a session's events name, while the engine checks them.
    named: Vec<u32>,
    /// Imported tripwires that sessions' events name, by session key and number.
    tripped: Vec<(u32, u32)>,
    /// Sessions that violated the protocol and that the engine has yet to close.
    condemned: Vec<u32>,
    /// Number of sessions that have ended and of which something is left in the engine.
    ending: usize,
    counts: Counts,
    /// Where the engine stands.
    pub(crate) position: Position,
    /// Measures the engine's time for sessions.
    pub(crate) meter: Meter,
}

impl SessionTable {
    /// Creates the table of an engine that records its position.
    pub(crate) fn new(position: Position) -> SessionTable {
        SessionTable { position, ..SessionTable::default() }
    }

    /// Returns the key of a session.
    pub(crate) fn key(&self, number: u32) -> Option<u32> {
        self.keys.get(&number).copied()
    }

    /// Returns the session with a key.
    #[inline]
    pub(crate) fn get(&self, key: u32) -> Option<&Session> {
        self.by_key.get(key as usize)?.as_deref()
    }

    /// Returns the session with a key.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut Session> {
        self.by_key.get_mut(key as usize)?.as_deref_mut()
    }

    /// Returns the session with a key. The engine serves it from now on.
    #[inline]
    pub(crate) fn serve(&mut self, key: u32) -> Option<&mut Session> {
        let session = self.by_key.get_mut(key as usize)?.as_deref_mut()?;
        self.position.serve(session.number());
        Some(session)
    }

    /// Returns the session with a key, to which the engine delivers a packet.
    #[inline]
    pub(crate) fn receiver(&mut self, key: u32) -> Option<&mut Session> {
        let session = self.by_key.get_mut(key as usize)?.as_deref_mut()?;
        self.position.deliver_to(session.number());
        Some(session)
    }

    /// Returns the number of keys: one more than the largest key so far.
    pub(crate) fn keys(&self) -> usize {
        self.by_key.len()
    }

    /// Reserves a key for a session that [`SessionTable::insert`] will enter.
    pub(crate) fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.by_key.push(None);
            self.by_key.len() as u32 - 1
        })
    }

    /// Enters a session under a reserved key. The session is active.
    pub(crate) fn insert(&mut self, key: u32, session: Box<Session>) {
        self.keys.insert(session.number(), key);
        self.by_key[key as usize] = Some(session);
        self.make_active(key);
    }

    /// Removes a session of which nothing is left in the engine; `None` if there is something left.
    pub(crate) fn take_ended(&mut self, key: u32) -> Option<Box<Session>> {
        let session = self.by_key[key as usize].take_if(|one| one.has_ended())?;
        self.keys.remove(&session.number());
        self.free.push(key);
        self.ending = self.ending.saturating_sub(1);
        Some(session)
    }

    /// Returns `true` if there are sessions that have ended and of which something is left in the
    /// engine.
    #[inline]
    pub(crate) fn has_ending(&self) -> bool {
        self.ending > 0
    }

    /// Removes all sessions, at the engine's end.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Box<Session>> + use<> {
        std::mem::take(&mut self.by_key).into_iter().flatten()
    }

    /// Records that a session violated the protocol. From now on the engine serves it no more, and
    /// closes it at the end of the poll iteration.
    #[cold]
    pub(crate) fn condemn(&mut self, key: u32, violation: Violation) {
        if let Some(session) = self.get_mut(key) {
            session.violate(violation);
            self.condemned.push(key);
        }
    }

    /// Returns a session that the engine must close.
    pub(crate) fn take_condemned(&mut self) -> Option<u32> {
        while let Some(key) = self.condemned.pop() {
            let session = self.get(key);
            if session.is_some_and(|session| session.violation().is_some() && !session.is_closing())
            {
                return Some(key);
            }
        }
        None
    }

    /// Returns `true` if the engine has yet to close a session.
    pub(crate) fn has_condemned(&self) -> bool {
        !self.condemned.is_empty()
    }

    /// Returns the counts.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Records the end of a poll iteration.
    #[inline]
    pub(crate) fn iteration_over(&mut self, work: usize) {
        let (age, since) = if work > 0 { (BUSY, BUSY_ASK) } else { (1, 1) };
        self.age += age;
        self.since = self.since.saturating_add(since);
    }

    /// Returns `true` if there may be queue pairs with something to send that the engine has not
    /// read yet.
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// Makes the next poll iteration ask for notifications.
    pub(crate) fn ask_next(&mut self) {
        self.since = ASK;
    }

    /// Returns `true` if the awake engine must ask for notifications now, and counts that it does.
    #[inline]
    pub(crate) fn must_ask(&mut self) -> bool {
        let must = self.parked > 0 && self.since >= ASK;
        self.counts.asked += u64::from(must);
        must
    }

    /// Records that the engine has taken notifications. `left`: there may be more of them, and the
    /// next poll iteration asks again.
    pub(crate) fn asked(&mut self, left: bool) {
        self.since = if left { ASK } else { 0 };
    }

    /// Finds the queue pairs with something to send, among active sessions, and passes them to
    /// `found`. Parks sessions without news.
    pub(crate) fn discover(
        &mut self,
        mut found: impl FnMut(u32, &mut Session, u32) -> Result<(), Violation>,
    ) {
        self.left = false;
        let mut at = 0;
        while let Some(key) = self.active_at(at) {
            let news = self.discover_in(key, &mut found);
            self.left |= news == EVENTS;
            let age = self.age;
            let few = self.active.len() <= FEW;
            if let Some(session) = self.get_mut(key) {
                if news > 0 {
                    session.activity.news_at = age;
                } else if age - session.activity.news_at >= PARKING_AGE && !few {
                    self.park(key);
                }
            }
            // The list may now hold another session at this index.
            at += usize::from(self.active_at(at) == Some(key));
        }
        self.position.serve(0);
        self.counts.polls += at as u64;
    }

    /// Finds the queue pairs of a session that have something to send, and returns how many the
    /// session named.
    fn discover_in(
        &mut self,
        key: u32,
        found: &mut impl FnMut(u32, &mut Session, u32) -> Result<(), Violation>,
    ) -> u32 {
        let session = self.by_key[key as usize].as_deref_mut();
        debug_assert!(session.is_some(), "an active session that does not exist");
        let Some(session) = session else { return 0 };
        if !session.is_claimed() {
            return 0;
        }
        self.position.serve(session.number());
        let named = &mut self.named;
        named.clear();
        if let Ok(Some(expected)) = session.events.events_from_client().expected()
            && let Some(queue) = session.transmit.get(expected)
        {
            queue.consumer.prefetch_news();
            session.transmit.memory().prefetch(queue.consumer.expected_offset(), EXPECTED_BYTES);
        }
        let outcome =
            session.events.events_from_client().take(EVENTS, |queue_pair| named.push(queue_pair));
        // All events are acknowledged before this check, so later packets cause a new event.
        let queue_pairs = session.shape().queue_pairs;
        let tripped = &mut self.tripped;
        let found = named.iter().try_for_each(|source| match source.checked_sub(queue_pairs) {
            None => found(key, session, *source),
            Some(tripwire) => {
                tripped.push((key, tripwire));
                Ok(())
            }
        });
        match found.and(outcome) {
            Ok(count) => count,
            Err(violation) => {
                self.condemn(key, violation);
                0
            }
        }
    }

    /// Returns an imported tripwire that a session named, by session key and number.
    #[inline]
    pub(crate) fn take_tripped(&mut self) -> Option<(u32, u32)> {
        self.tripped.pop()
    }

    /// Checks every active session after the engine announced its sleep. Parked sessions notify
    /// whether or not the engine sleeps. Returns `true` if none has news.
    pub(crate) fn is_idle(&mut self) -> bool {
        let mut idle = true;
        for at in 0..self.active.len() {
            let key = self.active[at];
            idle &= self.has_no_news(key);
        }
        self.position.serve(0);
        self.counts.polls += self.active.len() as u64;
        idle
    }

    /// Returns `true` if a session has nothing new to send. A session that violates the protocol
    /// has: its end.
    fn has_no_news(&mut self, key: u32) -> bool {
        let Some(session) = self.serve(key).filter(|one| one.is_claimed()) else { return true };
        match session.events.events_from_client().is_idle() {
            Ok(idle) => idle,
            Err(violation) => {
                self.condemn(key, violation);
                false
            }
        }
    }

    /// Handles a session's notification. A parked session that has something to send becomes active
    /// again. The engine ignores a notification of a session that has ended or not begun.
    ///
    /// If the session has nothing to send, the notification is late and belongs to packets that an
    /// earlier poll found. The client regards it as the notification for the current flag and would
    /// not notify again. The engine therefore parks the session anew.
    pub(crate) fn notified(&mut self, number: u32) {
        let Some(key) = self.key(number) else { return };
        let Some(session) = self.get_mut(key) else { return };
        if session.is_closing() || session.activity.at != PARKED {
            return;
        }
        session.activity.parking.awake();
        session.activity.parking.prepare();
        self.counts.polls += 1;
        if !self.has_no_news(key) {
            self.parked -= 1;
            self.make_active(key);
        }
    }

    /// Removes a session that is about to end from the active list.
    pub(crate) fn deactivate(&mut self, key: u32) {
        let Some(session) = self.get_mut(key) else { return };
        let at = std::mem::replace(&mut session.activity.at, PARKED);
        self.ending += 1;
        match at {
            PARKED => self.parked -= 1,
            at => self.take_off(at),
        }
    }

    /// Returns the session at an index of the active list.
    #[inline]
    fn active_at(&self, at: usize) -> Option<u32> {
        self.active.get(at).copied()
    }

    fn make_active(&mut self, key: u32) {
        let (at, age) = (self.active.len() as u32, self.age);
        let Some(session) = self.get_mut(key) else { return };
        session.activity.at = at;
        session.activity.news_at = age;
        session.activity.parking.awake();
        self.active.push(key);
    }

    fn take_off(&mut self, at: u32) {
        self.active.swap_remove(at as usize);
        if let Some(moved) = self.active_at(at as usize)
            && let Some(session) = self.get_mut(moved)
        {
            session.activity.at = at;
        }
    }

    /// Parks a session: asks it to notify, polls it once more, and then stops polling it.
    fn park(&mut self, key: u32) {
        let Some(session) = self.get_mut(key) else { return };
        // This is the doorbell's handshake (flag, fence, check) with a flag of this session alone.
        session.activity.parking.prepare();
        let idle = self.has_no_news(key);
        let Some(session) = self.get_mut(key) else { return };
        if !idle {
            session.activity.parking.awake();
            return;
        }
        let at = std::mem::replace(&mut session.activity.at, PARKED);
        self.take_off(at);
        self.parked += 1;
        self.counts.parks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Application, session};

    fn table(count: u32) -> (SessionTable, Vec<Application>) {
        let mut table = SessionTable::default();
        let applications = (0..count).map(|number| {
            let (session, application) = session(100 + number);
            let key = table.reserve();
            table.insert(key, session);
            application
        });
        let applications = applications.collect();
        (table, applications)
    }

    fn discovered(table: &mut SessionTable) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        table.discover(|key, _, queue_pair| {
            found.push((key, queue_pair));
            Ok(())
        });
        table.iteration_over(1);
        found
    }

    #[test]
    fn a_key_is_free_again_once_nothing_of_its_session_is_left() {
        let (mut table, _applications) = table(2);
        assert_eq!((table.key(100), table.key(101), table.key(102)), (Some(0), Some(1), None));
        assert!(table.take_ended(1).is_none(), "it lives");
        let ending = table.get_mut(1).unwrap();
        let _ = ending.close(0);
        ending.set_emptied();
        ending.transmit.begin_in_flight();
        assert!(!table.has_ending());
        table.deactivate(1);
        assert!(table.take_ended(1).is_none(), "a packet is in flight");
        assert!(table.has_ending());
        table.get_mut(1).unwrap().transmit.forget_in_flight();
        assert_eq!(table.take_ended(1).unwrap().number(), 101);
        assert!(!table.has_ending());
        assert_eq!((table.key(101), table.get(1).is_none()), (None, true));
        assert_eq!((table.reserve(), table.reserve()), (1, 2));
        assert_eq!(table.take_all().count(), 1);
    }

    #[test]
    fn sessions_without_news_are_parked_until_they_notify() {
        let many = FEW as u32 + 2;
        let (mut table, mut applications) = table(many);
        for _ in 0..PARKING_AGE / BUSY {
            applications[3].mark();
            assert_eq!(discovered(&mut table), [(3, 0)]);
        }
        applications[3].mark();
        assert_eq!(discovered(&mut table), [(3, 0)]);
        assert_eq!(table.counts().parks, 2, "all but a few");
        let parked: Vec<u32> =
            (0..many).filter(|key| table.get(*key).unwrap().activity.at == PARKED).collect();
        let (news, none) = (parked[0], parked[1]);
        applications[news as usize].mark();
        assert!(discovered(&mut table).is_empty(), "the engine does not poll it");
        assert!(table.must_ask());
        table.notified(100 + news);
        table.notified(100 + none);
        table.asked(false);
        assert_eq!(discovered(&mut table), [(news, 0)]);
        assert_eq!(table.get(none).unwrap().activity.at, PARKED, "its notification was late");
        assert!(!table.must_ask() && table.is_idle());
    }

    #[test]
    fn a_condemned_session_is_closed_once() {
        let (mut table, mut applications) = table(2);
        applications[0].mark();
        table.discover(|_, _, _| Err(Violation::Index));
        table.condemn(0, Violation::Chain);
        assert!(table.has_condemned());
        assert_eq!(table.take_condemned(), Some(0));
        assert_eq!(table.get(0).unwrap().violation(), Some(Violation::Index), "the first one");
        let _ = table.get_mut(0).unwrap().close(0);
        assert_eq!(table.take_condemned(), None);
        assert!(!table.has_condemned());
    }
}
