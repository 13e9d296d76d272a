//! The doorbell: who sleeps, and whether to wake it.
//!
//! The sleeper sets its flag, fences, looks at its queues once more, and sleeps. The producer
//! publishes, fences, reads the flag and rings if it is set. One of the two is certain to see the
//! other. How a ring travels (a pipe, an eventfd) is not known here; it must persist until the
//! sleeper takes it.
//!
//! The flag counts: an odd value says "asleep, for the n-th time". A ringer remembers for which
//! sleep it rang last and rings once for each, however long the sleeper takes to wake up.

use crate::word::{Barrier, OwnWords, PeerWords, full_fence};

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper {
    flag: OwnWords,
    count: u64,
}

impl Sleeper {
    /// Takes over the flag's word, awake.
    #[must_use]
    pub fn new(mut flag: OwnWords) -> Sleeper {
        // A predecessor may have died asleep: the count goes on, so that no ringer believes to
        // have rung for a sleep that is yet to come.
        let count = flag.get(0).wrapping_add(1) & !1;
        flag.store(0, count);
        Sleeper { flag, count }
    }

    /// Announces sleep. **The caller must look at everything that it would be woken for, after
    /// this, and sleep only if there is nothing.** Ends with [`Sleeper::awake`] either way.
    pub fn prepare(&mut self) {
        if self.count & 1 == 0 {
            self.count = self.count.wrapping_add(1);
            self.flag.store(0, self.count);
        }
        // SYNC: the flag is set before the queues are looked at. Partner: `RingerLooks`.
        full_fence(Barrier::SleeperLooks);
    }

    /// Awake again, or not gone to sleep: nobody needs to ring.
    pub fn awake(&mut self) {
        if self.count & 1 == 1 {
            self.count = self.count.wrapping_add(1);
            self.flag.store(0, self.count);
        }
    }

    /// Whether sleep is announced.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.count & 1 == 1
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
    /// gets `true` rings; it is not told again for the same sleep.
    #[inline]
    #[must_use]
    pub fn must_ring(&mut self, _: Fenced) -> bool {
        let count = self.flag.fetch(0);
        if count & 1 == 0 || count == self.rung {
            return false;
        }
        self.rung = count;
        true
    }
}
