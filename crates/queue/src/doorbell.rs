//! The doorbell: who sleeps, and whether to wake it.
//!
//! The sleeper sets its flag, fences, looks at its queues once more, and sleeps. The producer
//! publishes, fences, reads the flag and rings if it is set. One of the two is certain to see the
//! other. How a ring travels (a pipe, an eventfd) is not known here; it must persist until the
//! sleeper takes it.
//!
//! The flag counts: its two lowest bits say awake, asleep, or the same by the clock; the others say
//! for the how manieth time. A ringer remembers for which sleep it rang last and rings once for each,
//! however long the sleeper takes to wake up. Who sleeps by the clock will look by itself, and is
//! rung only for what cannot wait so long. It does not look again before it sleeps, so that such a
//! ring is made also while it is awake: it ends the sleep that comes.

use crate::word::{Barrier, OwnWords, PeerWords, full_fence};

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper {
    flag: OwnWords,
    count: u64,
}

/// What the lowest bits of the flag say.
const STATE: u64 = 3;
const ASLEEP: u64 = 1;
const ASLEEP_BY_THE_CLOCK: u64 = 2;
const AWAKE_BY_THE_CLOCK: u64 = 3;

impl Sleeper {
    /// Takes over the flag's word, awake.
    #[must_use]
    pub fn new(mut flag: OwnWords) -> Sleeper {
        // A predecessor may have died asleep: the count goes on, so that no ringer believes to
        // have rung for a sleep that is yet to come.
        let count = (flag.get(0) | STATE).wrapping_add(1);
        flag.store(0, count);
        Sleeper { flag, count }
    }

    /// Announces sleep. **The caller must look at everything that it would be woken for, after
    /// this, and sleep only if there is nothing.** Ends with [`Sleeper::awake`] either way.
    pub fn prepare(&mut self) {
        self.say(self.count & !STATE | ASLEEP);
        // SYNC: the flag is set before the queues are looked at. Partner: `RingerLooks`.
        full_fence(Barrier::SleeperLooks);
    }

    /// Announces a sleep that ends by itself: only what is urgent rings. Answers whether the caller
    /// must look once more, as after [`Sleeper::prepare`]: who was awake by the clock need not, since
    /// what is urgent has rung since its last look. Ends with [`Sleeper::awake_by_the_clock`].
    #[must_use]
    pub fn prepare_by_the_clock(&mut self) -> bool {
        let must_look = self.count & STATE != AWAKE_BY_THE_CLOCK;
        self.say(self.count & !STATE | ASLEEP_BY_THE_CLOCK);
        if must_look {
            // SYNC: as in `prepare`.
            full_fence(Barrier::SleeperLooks);
        }
        must_look
    }

    /// Awake again, or not gone to sleep: nobody needs to ring.
    pub fn awake(&mut self) {
        if self.count & STATE != 0 {
            self.say((self.count | STATE).wrapping_add(1));
        }
    }

    /// Awake again, and about to look once and sleep by the clock: what is urgent rings.
    pub fn awake_by_the_clock(&mut self) {
        self.say((self.count | STATE).wrapping_add(1) | AWAKE_BY_THE_CLOCK);
        // SYNC: a ringer that still sees the flag of the sleep before, and has rung for it, published
        // before what follows is looked at. Partner: `RingerLooks`.
        full_fence(Barrier::SleeperLooks);
    }

    fn say(&mut self, count: u64) {
        if count != self.count {
            self.count = count;
            self.flag.store(0, count);
        }
    }

    /// Whether a sleep is announced that only a ring ends.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.count & STATE == ASLEEP
    }
}

/// Proof that [`fence`] was called; one serves all ringers of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Fenced(());

/// To be called after everything was published and before flags are read: once a batch.
#[inline]
#[must_use]
pub fn fence() -> Fenced {
    // SYNC: what was published is there before the flags are read. Partner: `SleeperLooks`.
    full_fence(Barrier::RingerLooks);
    Fenced(())
}

/// A side that wakes the sleeper.
#[derive(Debug)]
pub struct Ringer {
    flag: PeerWords,
    rung: u64,
}

impl Ringer {
    /// Watches the flag's word.
    #[must_use]
    pub fn new(flag: PeerWords) -> Ringer {
        Ringer { flag, rung: 0 }
    }

    /// After publishing and [`fence`]: whether the other side must be woken. Once a batch. Whoever
    /// gets [`Due::Now`] rings; it is not told again for the same sleep. `urgent`: even a side that
    /// looks by the clock is to look now.
    #[inline]
    #[must_use]
    pub fn must_ring(&mut self, _: Fenced, urgent: bool) -> Due {
        let count = self.flag.fetch(0);
        match count & STATE {
            ASLEEP => {}
            ASLEEP_BY_THE_CLOCK | AWAKE_BY_THE_CLOCK if urgent => {}
            _ => return Due::Not,
        }
        if count == self.rung {
            return Due::Rung;
        }
        self.rung = count;
        Due::Now
    }
}

/// Whether to ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It sleeps: ring.
    Now,
    /// It was rung for this sleep, and is about to look.
    Rung,
    /// It is awake, or looks by the clock.
    Not,
}
