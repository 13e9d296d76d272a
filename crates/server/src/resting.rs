//! Discovery of the sessions that have something to send. Its cost does not grow with the number of
//! sessions.
//!
//! The engine polls the sessions that had news recently: these are *active*. The others are
//! *parked*. Each session has its own flag in its server pages that requests notifications. The
//! engine does not poll a parked session, neither in a poll iteration nor before a sleep, until the
//! epoll set reports the session's eventfd. An awake engine asks the epoll set every few
//! iterations, and only while a session is parked.
//!
//! Parking is the ski-rental problem. The engine parks a session once vain looks have cost other
//! sessions about as much as a notification. Looks of an otherwise idle engine cost other sessions
//! nothing and hardly count. A few sessions are always active. The applications of a server with
//! few sessions therefore make no system call except to wake the engine.

use std::mem::MaybeUninit;

use rustix::event::{Timespec, epoll};
use towpath_device::DeviceError;

use crate::engine::Engine;
use crate::transmit::EVENTS;

/// The epoll data of the engine's own eventfd, which signals commands.
pub(crate) const ORDERS: u64 = 0;
/// The epoll data of the device.
pub(crate) const DEVICE: u64 = 1;
/// From this value on, the epoll data names sessions by their numbers.
pub(crate) const SESSIONS: u64 = 2;

/// The number of sessions that the engine always keeps active. The applications of a server with
/// few sessions therefore make no system call while the engine is awake.
const FEW: usize = 8;
/// The weight of a busy poll iteration in idle ones: an idle engine that polls must not park every
/// session at once.
const BUSY: u64 = 1024;
/// The age without news after which the engine may park a session: 64 busy poll iterations. So many
/// vain looks cost the other sessions about as much as one notification.
const VAIN: u64 = 64 * BUSY;
/// Notifications that the engine takes from the epoll set at once, so that many notifying clients
/// cannot prolong a poll iteration. The rest stays in the epoll set for the next one.
const RINGS: usize = 64;
/// An awake engine asks for notifications every 64 idle poll iterations. Asking is a system call,
/// which must not happen once per packet.
const ASK: u32 = 64;
/// The weight of a busy poll iteration in idle ones for asking: a busy engine asks every 16. Busy
/// iterations last longer, and must not make a first packet wait longer.
const BUSY_ASK: u32 = 4;

/// Marks a parked session.
pub(crate) const RESTS: u32 = u32::MAX;

/// The active sessions.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Session keys of the active sessions, in no order.
    watched: Vec<u32>,
    /// Number of parked sessions.
    resting: usize,
    /// Age in poll iterations; a busy one counts as [`BUSY`].
    age: u64,
    /// Poll iterations since the engine last asked for notifications.
    since: u32,
    /// `true` if, in the last poll iteration, a session named as many queue pairs as the engine
    /// takes at once; there may be more.
    left: bool,
    pub(crate) counts: Counts,
}

/// Counts of the work to find news.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Looks at sessions, in poll iterations and before sleeps.
    pub(crate) looks: u64,
    /// Sessions parked.
    pub(crate) rests: u64,
    /// Times that an awake engine asked for notifications.
    pub(crate) asked: u64,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        let counts = Counts::default();
        Watch { watched: Vec::new(), resting: 0, age: 0, since: 0, left: false, counts }
    }

    /// Records the end of a poll iteration.
    #[inline]
    pub(crate) fn passed(&mut self, work: usize) {
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
    pub(crate) fn ask(&mut self) {
        self.since = ASK;
    }

    /// Returns the session at an index of the active list.
    #[inline]
    fn at(&self, at: usize) -> Option<u32> {
        self.watched.get(at).copied()
    }
}

impl Engine {
    /// Finds the queue pairs with something to send, among active sessions and those that sent a
    /// notification.
    pub(crate) fn discover(&mut self) -> Result<(), DeviceError> {
        if self.watch.resting > 0 && self.watch.since >= ASK {
            self.watch.counts.asked += 1;
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            self.hear(Some(&now))?;
        }
        self.watch.left = false;
        let mut at = 0;
        while let Some(place) = self.watch.at(at) {
            let news = self.discover_in(place);
            self.watch.left |= news == EVENTS;
            let age = self.watch.age;
            if let Some(session) = &mut self.sessions[place as usize] {
                if news > 0 {
                    session.news_at = age;
                } else if age - session.news_at >= VAIN && self.watch.watched.len() > FEW {
                    self.let_rest(place);
                }
            }
            // The list may now hold another session at this index.
            at += usize::from(self.watch.at(at) == Some(place));
        }
        self.watch.counts.looks += at as u64;
        Ok(())
    }

    /// Checks every source of a wake-up after the engine announced its sleep. Parked sessions
    /// notify whether or not the engine sleeps. A command that arrived meanwhile has made `wake`
    /// readable, or is among those left over.
    pub(crate) fn is_idle(&mut self) -> bool {
        let mut idle = !self.has_orders_left() && !self.has_received_left();
        let mut at = 0;
        while let Some(place) = self.watch.at(at) {
            idle &= self.has_no_news(place);
            at += usize::from(self.watch.at(at) == Some(place));
        }
        self.watch.counts.looks += at as u64;
        idle
    }

    /// Returns `true` if a session has nothing new to send. Ends a session that violates the
    /// protocol.
    fn has_no_news(&mut self, place: u32) -> bool {
        let Some(session) = &mut self.sessions[place as usize] else { return true };
        match session.work.is_idle() {
            Ok(idle) => idle,
            Err(violation) => {
                session.violation.get_or_insert(violation);
                self.end_if_violated(place);
                false
            }
        }
    }

    /// Makes a session active.
    pub(crate) fn watch(&mut self, place: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        session.watched_at = self.watch.watched.len() as u32;
        session.news_at = self.watch.age;
        session.rest.awake();
        self.watch.watched.push(place);
    }

    /// Removes a session that is about to end from the active list.
    pub(crate) fn unwatch(&mut self, place: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        match std::mem::replace(&mut session.watched_at, RESTS) {
            RESTS => self.watch.resting -= 1,
            at => self.take_off(at),
        }
    }

    fn take_off(&mut self, at: u32) {
        self.watch.watched.swap_remove(at as usize);
        if let Some(moved) = self.watch.at(at as usize)
            && let Some(session) = &mut self.sessions[moved as usize]
        {
            session.watched_at = at;
        }
    }

    /// Parks a session: asks it to notify, looks once more, and then stops polling it.
    fn let_rest(&mut self, place: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        // This is the doorbell's handshake (flag, fence, look) with a flag of this session alone.
        session.rest.prepare();
        if !self.has_no_news(place) {
            if let Some(session) = &mut self.sessions[place as usize] {
                session.rest.awake();
            }
            return;
        }
        let Some(session) = &mut self.sessions[place as usize] else { return };
        let at = std::mem::replace(&mut session.watched_at, RESTS);
        self.take_off(at);
        self.watch.resting += 1;
        self.watch.counts.rests += 1;
    }

    /// Handles a session's notification. A parked session that has something to send becomes active
    /// again.
    ///
    /// If it has nothing to send, the notification is late and belongs to packets that an earlier
    /// look found. The client regards it as the notification for the current flag and would not
    /// notify again. The engine therefore parks the session anew.
    fn rang(&mut self, place: u32) {
        let Some(Some(session)) = self.sessions.get_mut(place as usize) else { return };
        if session.closing || session.watched_at != RESTS {
            return;
        }
        session.rest.awake();
        session.rest.prepare();
        self.watch.counts.looks += 1;
        if !self.has_no_news(place)
            && let Some(session) = &self.sessions[place as usize]
            && !session.closing
        {
            self.watch.resting -= 1;
            self.watch(place);
        }
    }

    /// Waits for notifications for at most `timeout`; zero only asks. Edges stay in the epoll set
    /// until the engine takes them, at most one per session. A client that notifies constantly is
    /// therefore handled no more often than the others.
    pub(crate) fn hear(&mut self, timeout: Option<&Timespec>) -> Result<(), DeviceError> {
        let mut events = [const { MaybeUninit::uninit() }; RINGS];
        let heard = match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok((heard, _)) => heard,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(cause) => return Err(self.waiting_failed(cause)),
        };
        // If there may be more notifications, the next poll iteration asks for them.
        self.watch.since = if heard.len() == RINGS { ASK } else { 0 };
        for event in heard {
            match event.data.u64() {
                ORDERS => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&*self.wake, &mut count);
                    // Commands may have arrived after this iteration's look, and no further
                    // notification follows for them.
                    self.orders_left = true;
                }
                DEVICE => {}
                session => {
                    let number = u32::try_from(session - SESSIONS).ok();
                    // The engine ignores a notification of a session that has ended or not begun.
                    if let Some(place) = number.and_then(|number| self.place(number)) {
                        self.rang(place);
                    }
                }
            }
        }
        Ok(())
    }
}
