//! Discovery of the sessions that have something to send. Its cost does not grow with the number of
//! sessions.
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

use std::mem::MaybeUninit;

use rustix::event::{Timespec, epoll};
use towpath_device::DeviceError;

use crate::engine::Engine;
use crate::engine::transmit::EVENTS;

/// The epoll data of the engine's own eventfd, which signals commands.
pub(crate) const COMMANDS: u64 = 0;
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
/// The age without news after which the engine may park a session: 64 busy poll iterations. This
/// many fruitless polls cost the other sessions about as much as one notification.
const VAIN: u64 = 64 * BUSY;
/// Notifications that the engine takes from the epoll set at once, so that many notifying clients
/// cannot prolong a poll iteration. The rest stays in the epoll set for the next one.
const NOTIFICATIONS: usize = 64;
/// An awake engine asks for notifications every 64 idle poll iterations. Asking is a system call,
/// which must not happen once per packet.
const ASK: u32 = 64;
/// The weight of a busy poll iteration in idle ones for asking: a busy engine asks every 16. Busy
/// iterations last longer, and must not make a first packet wait longer.
const BUSY_ASK: u32 = 4;

/// Marks a parked session.
pub(crate) const PARKED: u32 = u32::MAX;

/// The active sessions.
#[derive(Debug)]
pub(crate) struct ActiveSessions {
    /// Session keys of the active sessions, in no order.
    keys: Vec<u32>,
    /// Number of parked sessions.
    parked: usize,
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
    /// Polls of sessions, in poll iterations and before sleeps.
    pub(crate) polls: u64,
    /// Sessions parked.
    pub(crate) parks: u64,
    /// Times that an awake engine asked for notifications.
    pub(crate) asked: u64,
}

impl ActiveSessions {
    pub(crate) fn new() -> ActiveSessions {
        let counts = Counts::default();
        ActiveSessions { keys: Vec::new(), parked: 0, age: 0, since: 0, left: false, counts }
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
    pub(crate) fn ask(&mut self) {
        self.since = ASK;
    }

    /// Returns the session at an index of the active list.
    #[inline]
    fn at(&self, at: usize) -> Option<u32> {
        self.keys.get(at).copied()
    }
}

impl Engine {
    /// Finds the queue pairs with something to send, among active sessions and those that sent a
    /// notification.
    pub(crate) fn discover(&mut self) -> Result<(), DeviceError> {
        if self.active.parked > 0 && self.active.since >= ASK {
            self.active.counts.asked += 1;
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            self.take_notifications(Some(&now))?;
        }
        self.active.left = false;
        let mut at = 0;
        while let Some(key) = self.active.at(at) {
            let news = self.discover_in(key);
            self.active.left |= news == EVENTS;
            let age = self.active.age;
            if let Some(session) = &mut self.sessions[key as usize] {
                if news > 0 {
                    session.news_at = age;
                } else if age - session.news_at >= VAIN && self.active.keys.len() > FEW {
                    self.park(key);
                }
            }
            // The list may now hold another session at this index.
            at += usize::from(self.active.at(at) == Some(key));
        }
        self.active.counts.polls += at as u64;
        Ok(())
    }

    /// Checks every source of a wake-up after the engine announced its sleep. Parked sessions
    /// notify whether or not the engine sleeps. A command that arrived meanwhile has made `wake`
    /// readable, or is among those left over.
    pub(crate) fn is_idle(&mut self) -> bool {
        let mut idle = !self.has_commands_left() && !self.has_received_left();
        let mut at = 0;
        while let Some(key) = self.active.at(at) {
            idle &= self.has_no_news(key);
            at += usize::from(self.active.at(at) == Some(key));
        }
        self.active.counts.polls += at as u64;
        idle
    }

    /// Returns `true` if a session has nothing new to send. Ends a session that violates the
    /// protocol.
    fn has_no_news(&mut self, key: u32) -> bool {
        let Some(session) = &mut self.sessions[key as usize] else { return true };
        match session.work.is_idle() {
            Ok(idle) => idle,
            Err(violation) => {
                session.violation.get_or_insert(violation);
                self.end_if_violated(key);
                false
            }
        }
    }

    /// Makes a session active.
    pub(crate) fn make_active(&mut self, key: u32) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        session.active_at = self.active.keys.len() as u32;
        session.news_at = self.active.age;
        session.parking.awake();
        self.active.keys.push(key);
    }

    /// Removes a session that is about to end from the active list.
    pub(crate) fn remove_active(&mut self, key: u32) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        match std::mem::replace(&mut session.active_at, PARKED) {
            PARKED => self.active.parked -= 1,
            at => self.take_off(at),
        }
    }

    fn take_off(&mut self, at: u32) {
        self.active.keys.swap_remove(at as usize);
        if let Some(moved) = self.active.at(at as usize)
            && let Some(session) = &mut self.sessions[moved as usize]
        {
            session.active_at = at;
        }
    }

    /// Parks a session: asks it to notify, polls it once more, and then stops polling it.
    fn park(&mut self, key: u32) {
        let Some(session) = &mut self.sessions[key as usize] else { return };
        // This is the doorbell's handshake (flag, fence, check) with a flag of this session alone.
        session.parking.prepare();
        if !self.has_no_news(key) {
            if let Some(session) = &mut self.sessions[key as usize] {
                session.parking.awake();
            }
            return;
        }
        let Some(session) = &mut self.sessions[key as usize] else { return };
        let at = std::mem::replace(&mut session.active_at, PARKED);
        self.take_off(at);
        self.active.parked += 1;
        self.active.counts.parks += 1;
    }

    /// Handles a session's notification. A parked session that has something to send becomes active
    /// again.
    ///
    /// If it has nothing to send, the notification is late and belongs to packets that an earlier
    /// poll found. The client regards it as the notification for the current flag and would not
    /// notify again. The engine therefore parks the session anew.
    fn notified(&mut self, key: u32) {
        let Some(Some(session)) = self.sessions.get_mut(key as usize) else { return };
        if session.closing || session.active_at != PARKED {
            return;
        }
        session.parking.awake();
        session.parking.prepare();
        self.active.counts.polls += 1;
        if !self.has_no_news(key)
            && let Some(session) = &self.sessions[key as usize]
            && !session.closing
        {
            self.active.parked -= 1;
            self.make_active(key);
        }
    }

    /// Waits for notifications for at most `timeout`; zero only asks. Edges stay in the epoll set
    /// until the engine takes them, at most one per session. A client that notifies constantly is
    /// therefore handled no more often than the others.
    pub(crate) fn take_notifications(
        &mut self,
        timeout: Option<&Timespec>,
    ) -> Result<(), DeviceError> {
        let mut events = [const { MaybeUninit::uninit() }; NOTIFICATIONS];
        let taken = match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok((taken, _)) => taken,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(cause) => return Err(self.waiting_failed(cause)),
        };
        // If there may be more notifications, the next poll iteration asks for them.
        self.active.since = if taken.len() == NOTIFICATIONS { ASK } else { 0 };
        for event in taken {
            match event.data.u64() {
                COMMANDS => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&*self.wake, &mut count);
                    // Commands may have arrived after this iteration's check for them, and no
                    // further notification follows.
                    self.commands_left = true;
                }
                DEVICE => {}
                session => {
                    let number = u32::try_from(session - SESSIONS).ok();
                    // The engine ignores a notification of a session that has ended or not begun.
                    if let Some(key) = number.and_then(|number| self.key(number)) {
                        self.notified(key);
                    }
                }
            }
        }
        Ok(())
    }
}
