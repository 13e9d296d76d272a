//! Which sessions have something to send, at a cost that does not follow how many there are.
//!
//! The engine looks by itself at those that had something lately: they are *watched*. The others
//! *rest*: each has a flag of its own in its server pages that says "ring", and the engine does not
//! look at it again, neither in a turn nor before a sleep, until its eventfd comes out of the epoll.
//! An engine that is awake asks the epoll every so many turns, and only while somebody rests.
//!
//! When to let a session rest is the question of the skier who may rent or buy: after so many looks
//! in vain that they have cost others about what a ring costs. Looks of an engine that has nothing
//! else to do cost nobody anything, and hardly count. A few are always watched, so that a server of
//! few applications makes them no system call but to wake it.

use std::mem::MaybeUninit;

use rustix::event::{Timespec, epoll};
use towpath_device::DeviceError;

use crate::engine::Engine;
use crate::transmit::EVENTS;

/// What the epoll says of: the server's own eventfd, with orders.
pub(crate) const ORDERS: u64 = 0;
/// The device.
pub(crate) const DEVICE: u64 = 1;
/// From here on, the sessions, by their number.
pub(crate) const SESSIONS: u64 = 2;

/// The engine watches this many sessions in any case, so that the applications of a server with few of
/// them make no system call while the engine is awake.
const FEW: usize = 8;
/// A turn that did something counts as much as this many that did not: an idle engine that polls must not
/// make every session rest at once.
const BUSY: u64 = 1024;
/// A session without news for so long may rest: 64 turns that did something. So many looks in vain cost
/// the other sessions about as much as one ring costs.
const VAIN: u64 = 64 * BUSY;
/// Rings taken from the epoll at once, so that many applications that ring cannot make one turn long. The
/// others stay in the epoll for the next turn.
const RINGS: usize = 64;
/// An engine that is awake asks for rings every 64 turns that did nothing: asking is a system call, which
/// must not come once a packet.
const ASK: u32 = 64;
/// A turn that did something counts as this many that did not, so that a busy engine asks every 16 turns:
/// busy turns last longer, and a first packet must not wait longer because of them.
const BUSY_ASK: u32 = 4;

/// Not watched.
pub(crate) const RESTS: u32 = u32::MAX;

/// The sessions that are watched.
#[derive(Debug)]
pub(crate) struct Watch {
    /// By their place, in no order.
    watched: Vec<u32>,
    /// How many rest.
    resting: usize,
    /// Turns so far, busy ones counted as [`BUSY`].
    age: u64,
    /// Turns since rings were asked for.
    since: u32,
    /// In the turn that is over, a session named as many queue sets as are taken at once: there may
    /// be more.
    left: bool,
    pub(crate) counts: Counts,
}

/// What was done to find news.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Sessions looked at, in turns and before sleeps.
    pub(crate) looks: u64,
    /// Sessions that began to rest.
    pub(crate) rests: u64,
    /// Times that an engine that was awake asked for rings.
    pub(crate) asked: u64,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        let counts = Counts::default();
        Watch { watched: Vec::new(), resting: 0, age: 0, since: 0, left: false, counts }
    }

    /// A turn is over.
    #[inline]
    pub(crate) fn passed(&mut self, work: usize) {
        let (age, since) = if work > 0 { (BUSY, BUSY_ASK) } else { (1, 1) };
        self.age += age;
        self.since = self.since.saturating_add(since);
    }

    /// Whether some queue sets with something to send may not have been heard of yet.
    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// The next turn asks for rings.
    pub(crate) fn ask(&mut self) {
        self.since = ASK;
    }

    /// Which one is watched at a place of the list.
    #[inline]
    fn at(&self, at: usize) -> Option<u32> {
        self.watched.get(at).copied()
    }
}

impl Engine {
    /// Finds the queue sets with something to send: of those sessions that are watched, and of those
    /// that rang.
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
            // Another one may stand there now.
            at += usize::from(self.watch.at(at) == Some(place));
        }
        self.watch.counts.looks += at as u64;
        Ok(())
    }

    /// Looks at everything that the engine would be woken for, after it announced its sleep: those
    /// that rest ring whether or not it sleeps. An order that came meanwhile has made `wake`
    /// readable, or is among those that are left.
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

    /// Whether a session has nothing to send that was not taken. One that violates the protocol is
    /// ended.
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

    /// Looks at a session by itself from now on.
    pub(crate) fn watch(&mut self, place: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        session.watched_at = self.watch.watched.len() as u32;
        session.news_at = self.watch.age;
        session.rest.awake();
        self.watch.watched.push(place);
    }

    /// Takes a session out that is about to go.
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

    /// Tells a session to ring, looks once more, and from then on does not look.
    fn let_rest(&mut self, place: u32) {
        let Some(session) = &mut self.sessions[place as usize] else { return };
        // Flag, fence, look: the doorbell's handshake, with a flag for this session alone.
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

    /// A session rang. If it rests and has something to send, it is watched again.
    ///
    /// If it has nothing, its ring came late, for what an earlier look had found. It takes this ring
    /// for the one of the flag as it stands, and would not ring again: it begins to rest anew.
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

    /// Waits for rings, as long as `timeout` says: zero only asks. Edges stay in the epoll until they
    /// are taken, each session's at most once, so that who rings all the time is heard no more often
    /// than the others.
    pub(crate) fn hear(&mut self, timeout: Option<&Timespec>) -> Result<(), DeviceError> {
        let mut events = [const { MaybeUninit::uninit() }; RINGS];
        let heard = match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok((heard, _)) => heard,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(cause) => return Err(self.waiting_failed(cause)),
        };
        // When there may be more, they are asked for in the next turn.
        self.watch.since = if heard.len() == RINGS { ASK } else { 0 };
        for event in heard {
            match event.data.u64() {
                ORDERS => {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&*self.wake, &mut count);
                    // They may have come after this turn looked, and nothing rings for them again.
                    self.orders_left = true;
                }
                DEVICE => {}
                session => {
                    let number = u32::try_from(session - SESSIONS).ok();
                    // Of one that has ended meanwhile, or is yet to come, nothing is to be done.
                    if let Some(place) = number.and_then(|number| self.place(number)) {
                        self.rang(place);
                    }
                }
            }
        }
        Ok(())
    }
}
