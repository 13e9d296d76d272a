//! The doorbell's flag: which side sleeps, and whether the other side must notify it.
//!
//! The sleeper sets its flag, fences, looks at its queues once more, and sleeps. The producer
//! publishes, fences, reads the flag and sends a notification if it is set. One of the two is
//! certain to see the other. This module does not know how a notification travels (a pipe, an
//! eventfd); it must persist until the sleeper takes it.
//!
//! The flag counts. Its two lowest bits say awake, asleep, or the same by the clock; the others
//! number the sleep. The notifier remembers the sleep for which it sent its last notification, and
//! sends one for each sleep, however long the sleeper takes to wake up.
//!
//! A timer-driven sleeper looks by itself, and receives notifications only for urgent work that
//! cannot wait so long. It does not look again before it sleeps. The notifier therefore sends an
//! urgent notification also while that sleeper is awake: it ends the sleep that comes.

use crate::word::{Barrier, OwnWords, PeerWords, full_fence};

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper {
    flag: OwnWords,
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
        // A predecessor may have died asleep. The count goes on, so that no notifier believes that
        // it has notified a sleep that is yet to come.
        let count = (flag.get(0) | STATE).wrapping_add(1);
        flag.store(0, count);
        Sleeper { flag, count }
    }

    /// Announces sleep. **After this call, the caller must look at everything for which the other
    /// side would wake it, and sleep only if there is nothing.** The sleep ends with
    /// [`Sleeper::awake`] either way.
    pub fn prepare(&mut self) {
        self.say(self.count & !STATE | ASLEEP);
        // SYNC: the flag is set before this side looks at the queues. Partner: `NotifierChecks`.
        full_fence(Barrier::SleeperChecks);
    }

    /// Announces a sleep that ends by itself: only urgent work causes a notification. Returns
    /// whether the caller must look once more, as after [`Sleeper::prepare`]. A side that was awake
    /// by the clock need not look, since urgent work has caused a notification since its last look.
    /// The sleep ends with [`Sleeper::awake_timer_driven`].
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

    /// Marks this side awake, about to look once and sleep by the clock: urgent work causes a
    /// notification.
    pub fn awake_timer_driven(&mut self) {
        self.say((self.count | STATE).wrapping_add(1) | AWAKE_TIMER_DRIVEN);
        // SYNC: a notifier that still sees the flag of the previous sleep, and has sent its
        // notification for it, published before this side looks. Partner: `NotifierChecks`.
        full_fence(Barrier::SleeperChecks);
    }

    fn say(&mut self, count: u64) {
        if count != self.count {
            self.count = count;
            self.flag.store(0, count);
        }
    }

    /// `true` if this side announced a sleep that only a notification ends.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.count & STATE == ASLEEP
    }
}

/// Proof that [`fence`] was called; one serves all notifiers of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Fenced(());

/// Orders what was published before the flags that are read next. The caller calls it once a batch,
/// after it has published everything.
#[inline]
#[must_use]
pub fn fence() -> Fenced {
    // SYNC: what was published is there before this side reads the flags. Partner: `SleeperChecks`.
    full_fence(Barrier::NotifierChecks);
    Fenced(())
}

/// The side that notifies the sleeper.
#[derive(Debug)]
pub struct Notifier {
    flag: PeerWords,
    notified: u64,
}

impl Notifier {
    /// Creates a notifier that watches the flag's word.
    #[must_use]
    pub fn new(flag: PeerWords) -> Notifier {
        Notifier { flag, notified: 0 }
    }

    /// Returns whether this side must notify the other one, once a batch, after publishing and
    /// [`fence`]. A caller that gets [`Due::Now`] must send the notification: later calls do not
    /// ask for it again for the same sleep. `urgent` asks even a timer-driven side to look now.
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
    /// This sleep has its notification, and the other side is about to look.
    Already,
    /// The other side is awake, or timer-driven: the notification is suppressed.
    Not,
}
