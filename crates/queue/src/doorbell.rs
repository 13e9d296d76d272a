//! The doorbell's flag: which side sleeps, and whether the other side must notify it.
//!
//! The sleeper sets its flag, fences, checks its queues once more, and sleeps. The producer
//! publishes, fences, reads the flag, and sends a notification if the flag is set. At least one of
//! the two sees the other's store. This module does not know how a notification travels (a pipe, an
//! eventfd). A notification must persist until the sleeper takes it.
//!
//! The flag's two lowest bits say awake or asleep, each with or without a timer. The other bits
//! number the sleep. The notifying side remembers the sleep for which it sent its last
//! notification. It sends at most one per sleep, however long the sleeper takes to wake up.
//!
//! A timer-driven sleeper checks its queues at each tick, and receives notifications only for
//! urgent work that cannot wait for the tick. The sleeper does not check again before it sleeps. So
//! the other side sends an urgent notification also to an awake sleeper: the next sleep then ends
//! at once.

use alloc::vec::Vec;

use crate::word::{Barrier, OwnWords, PeerWords, full_fence};

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper {
    flag: OwnWords,
    /// Further flags with the same contents, by numbers that the caller chose.
    others: Vec<(u32, OwnWords)>,
    count: u64,
}

/// The state in the lowest bits of the flag.
const STATE: u64 = 3;
const ASLEEP: u64 = 1;
const ASLEEP_TIMER_DRIVEN: u64 = 2;
const AWAKE_TIMER_DRIVEN: u64 = 3;

impl Sleeper {
    /// Takes over the flag's word and marks this side awake.
    #[must_use]
    pub fn new(mut flag: OwnWords) -> Sleeper {
        // A predecessor may have died asleep. The count continues, so that the peer takes no
        // later sleep for one that it has notified.
        let count = (flag.get(0) | STATE).wrapping_add(1);
        flag.store(0, count);
        Sleeper { flag, others: Vec::new(), count }
    }

    /// Takes over the word of another flag with the same contents, for peers that cannot see the first one. A peer gets
    /// to know the flag only after this call. The caller is awake.
    pub fn add(&mut self, number: u32, flag: OwnWords) {
        self.remove(number);
        // A predecessor may have counted further in this flag than in the others.
        let last = flag.get(0);
        self.others.push((number, flag));
        let count = if last > self.count { (last | STATE).wrapping_add(1) } else { self.count };
        let state = self.count & STATE;
        self.count = count & !STATE | state;
        self.store();
    }

    /// Gives up a flag. Its peers are gone.
    pub fn remove(&mut self, number: u32) {
        self.others.retain(|(other, _)| *other != number);
    }

    /// Announces sleep. **After this call, the caller must check everything for which the other
    /// side would wake it, and sleep only if there is nothing.** The caller ends the sleep with
    /// [`Sleeper::awake`] either way.
    pub fn prepare(&mut self) {
        self.say(self.count & !STATE | ASLEEP);
        // SYNC: the flag is set before this side checks the queues. Partner: `NotifierChecks`.
        full_fence(Barrier::SleeperChecks);
    }

    /// Announces a sleep that a timer ends: only urgent work causes a notification. Returns whether
    /// the caller must check once more, as after [`Sleeper::prepare`]. A side that was awake and
    /// timer-driven need not check, since urgent work has caused a notification since its last
    /// check. The caller ends the sleep with [`Sleeper::awake_timer_driven`].
    #[must_use]
    pub fn prepare_timer_driven(&mut self) -> bool {
        let must_check = self.count & STATE != AWAKE_TIMER_DRIVEN;
        self.say(self.count & !STATE | ASLEEP_TIMER_DRIVEN);
        if must_check {
            // SYNC: as in `prepare`.
            full_fence(Barrier::SleeperChecks);
        }
        must_check
    }

    /// Marks this side awake, after a sleep or instead of one: notifications are suppressed.
    pub fn awake(&mut self) {
        if self.count & STATE != 0 {
            self.say((self.count | STATE).wrapping_add(1));
        }
    }

    /// Marks this side awake, about to check once and start a timer-driven sleep: urgent work
    /// causes a notification.
    pub fn awake_timer_driven(&mut self) {
        self.say((self.count | STATE).wrapping_add(1) | AWAKE_TIMER_DRIVEN);
        // SYNC: a peer that still sees the flag of the previous sleep, and has sent its
        // notification for it, published before this side checks. Partner: `NotifierChecks`.
        full_fence(Barrier::SleeperChecks);
    }

    fn say(&mut self, count: u64) {
        if count != self.count {
            self.count = count;
            self.store();
        }
    }

    #[inline]
    fn store(&mut self) {
        let count = self.count;
        self.flag.store(0, count);
        for (_, flag) in &mut self.others {
            flag.store(0, count);
        }
    }

    /// `true` if this side announced a sleep that only a notification ends.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.count & STATE == ASLEEP
    }
}

/// Proof that the caller called [`fence`]; one serves all sleep flags that a batch concerns.
#[derive(Clone, Copy, Debug)]
pub struct Fenced(());

/// Orders earlier publications before later loads of the flags. The caller calls it once per batch,
/// after it has published everything.
#[inline]
#[must_use]
pub fn fence() -> Fenced {
    // SYNC: this side's publications are visible before it reads the flags. Partner:
    // `SleeperChecks`.
    full_fence(Barrier::NotifierChecks);
    Fenced(())
}

/// The other side's sleep flag, as the side that notifies reads it.
#[derive(Debug)]
pub struct PeerSleepFlag {
    flag: PeerWords,
    /// The flag of the sleep for which this side sent its last notification.
    notified: u64,
}

impl PeerSleepFlag {
    /// Reads the sleep flag in this word.
    #[must_use]
    pub fn new(flag: PeerWords) -> PeerSleepFlag {
        PeerSleepFlag { flag, notified: 0 }
    }

    /// Forgets the sleep for which this side notified the other one: the notification may have gone
    /// with a doorbell that exists no more.
    pub fn restart(&mut self) {
        self.notified = 0;
    }

    /// Returns whether this side must notify the other one. The caller asks once per batch, after
    /// publishing and [`fence`]. A caller that gets [`Due::Now`] must send the notification, since
    /// later calls do not ask for it again for the same sleep. With `urgent`, a timer-driven side
    /// is notified too.
    #[inline]
    #[must_use]
    pub fn must_notify(&mut self, _: Fenced, urgent: bool) -> Due {
        let count = self.flag.fetch(0);
        match count & STATE {
            ASLEEP => {}
            ASLEEP_TIMER_DRIVEN | AWAKE_TIMER_DRIVEN if urgent => {}
            _ => return Due::Not,
        }
        if count == self.notified {
            return Due::Already;
        }
        self.notified = count;
        Due::Now
    }
}

/// Whether a notification is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The other side sleeps: notify it.
    Now,
    /// This side has sent this sleep's notification, and the other side is about to check.
    Already,
    /// The other side is awake, or timer-driven: the notification is suppressed.
    Not,
}
