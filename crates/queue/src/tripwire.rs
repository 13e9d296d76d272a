//! Tripwires: a side learns that another one accessed a place in its memory, without a message
//! (Riddoch and Pope, section 3.3).
//!
//! A tripwire is armed, fires once, and is armed again. Its owner arms it in a word of its own,
//! which the server and those who access the memory read. The server says in a bitmap of its own
//! which tripwires fired, so their owner polls 64 of them with one load.
//!
//! ```text
//! armed word, by the owner    bit 0 armed   1..64 number of the arming
//! fired bit, by the server    the lowest bit of the number of the arming for which it fired last
//! ```
//! The owner chooses the number of each arming so that its lowest bit differs from the fired bit.
//! If the server fires for an earlier arming at that moment, the tripwire seems to have fired for
//! the new one: the owner wakes once without new data. To fire twice for one arming is the same as
//! once, so a successor of the server need not know what its predecessor did.
//!
//! Owner: arm, fence, look at the memory, sleep. Accessor: access the memory, fence, read the armed
//! word, and if it says armed have the server fire. At least one of the two sees the other's store.

use alloc::boxed::Box;

use crate::layout::lines;
use crate::word::{Barrier, OwnWords, PeerWords, full_fence};

const ARMED: u64 = 1;

/// The number of tripwires of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TripwireShape {
    tripwires: u32,
}

impl TripwireShape {
    /// Returns the shape for `tripwires` tripwires.
    #[must_use]
    pub const fn new(tripwires: u32) -> TripwireShape {
        TripwireShape { tripwires }
    }

    /// Returns the number of tripwires.
    #[must_use]
    pub const fn tripwires(self) -> u32 {
        self.tripwires
    }

    /// Returns how many words the owner writes: one for each tripwire.
    #[must_use]
    pub const fn owner_words(self) -> usize {
        lines(self.tripwires as usize)
    }

    /// Returns how many words the server writes: a bit for each tripwire.
    #[must_use]
    pub const fn server_words(self) -> usize {
        lines(self.tripwires.div_ceil(64) as usize)
    }
}

/// Returns the word and the bit of a tripwire in the bitmap.
#[inline]
fn place(tripwire: u32) -> (usize, u64) {
    (tripwire as usize / 64, 1 << (tripwire % 64))
}

/// Returns the lowest bit of the number of an arming.
#[inline]
fn parity(word: u64) -> bool {
    word >> 1 & 1 == 1
}

/// The owner's side. A number out of range has no effect, and never fires.
#[derive(Debug)]
pub struct Tripwires {
    armed: OwnWords,
    fired: PeerWords,
    /// The tripwires that are armed.
    armed_bits: Box<[u64]>,
    /// For each tripwire, its fired bit once it has fired for its latest arming.
    expected: Box<[u64]>,
    tripwires: u32,
}

impl Tripwires {
    /// Creates the owner's side of new memory: no tripwire is armed.
    #[must_use]
    pub fn new(shape: TripwireShape, armed: OwnWords, fired: PeerWords) -> Tripwires {
        let zeros = || (0..shape.server_words()).map(|_| 0).collect();
        Tripwires {
            armed,
            fired,
            armed_bits: zeros(),
            expected: zeros(),
            tripwires: shape.tripwires,
        }
    }

    /// Arms a tripwire. **After this call, the caller looks at the memory, and waits only if there
    /// is nothing new.**
    #[inline]
    pub fn arm(&mut self, tripwire: u32) {
        if tripwire >= self.tripwires {
            return;
        }
        let (word, bit) = place(tripwire);
        let fired = self.fired.observe(word) & bit != 0;
        let last = self.armed.get(tripwire as usize);
        let next = (last | ARMED).wrapping_add(2);
        // The lowest bit of the number differs from the fired bit.
        let next = if parity(next) == fired { next.wrapping_add(2) } else { next };
        self.armed_bits[word] |= bit;
        self.expected[word] =
            if fired { self.expected[word] & !bit } else { self.expected[word] | bit };
        self.armed.publish(tripwire as usize, next);
        // SYNC: armed before the caller looks at the memory. Partner: `AccessorChecks`.
        full_fence(Barrier::ArmerChecks);
    }

    /// Ends the wait for a tripwire: no access causes a notification any more, except one that is
    /// under way.
    #[inline]
    pub fn disarm(&mut self, tripwire: u32) {
        if tripwire >= self.tripwires {
            return;
        }
        let (word, bit) = place(tripwire);
        self.armed_bits[word] &= !bit;
        let last = self.armed.get(tripwire as usize);
        self.armed.store(tripwire as usize, last & !ARMED);
    }

    /// Returns `true` if a tripwire is armed and has fired.
    #[inline]
    #[must_use]
    pub fn has_fired(&self, tripwire: u32) -> bool {
        let (word, bit) = place(tripwire);
        tripwire < self.tripwires && self.fired_in(word) & bit != 0
    }

    /// Passes each tripwire that is armed and has fired to `found`: one load of shared memory for 64
    /// tripwires.
    #[inline]
    pub fn for_each_fired(&self, mut found: impl FnMut(u32)) {
        for word in 0..self.tripwires.div_ceil(64) {
            let mut fired = self.fired_in(word as usize);
            while fired != 0 {
                found(word * 64 + fired.trailing_zeros());
                fired &= fired - 1;
            }
        }
    }

    /// Returns which of 64 tripwires, from number `64 * word` on, are armed and have fired: one
    /// load of shared memory.
    #[inline]
    fn fired_in(&self, word: usize) -> u64 {
        // SYNC: pairs with the publication in `Firing::fire`.
        self.armed_bits[word] & !(self.fired.observe(word) ^ self.expected[word])
    }
}

/// Proof that the caller called [`fence`]; one serves all accesses of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Fenced(());

/// Orders earlier accesses to memory before later loads of armed words.
#[inline]
#[must_use]
pub fn fence() -> Fenced {
    // SYNC: the memory was accessed before this side reads armed words. Partner: `ArmerChecks`.
    full_fence(Barrier::AccessorChecks);
    Fenced(())
}

/// The server's side: it fires.
#[derive(Debug)]
pub struct Firing {
    fired: OwnWords,
    armed: PeerWords,
    tripwires: u32,
}

impl Firing {
    /// Creates the server's side, over new memory or a predecessor's.
    #[must_use]
    pub fn new(shape: TripwireShape, fired: OwnWords, armed: PeerWords) -> Firing {
        Firing { fired, armed, tripwires: shape.tripwires }
    }

    /// Fires a tripwire if it is armed and has not fired. Returns whether this call fired it.
    #[inline]
    pub fn fire(&mut self, _: Fenced, tripwire: u32) -> bool {
        if tripwire >= self.tripwires {
            return false;
        }
        let armed = self.armed.observe(tripwire as usize);
        let (word, bit) = place(tripwire);
        let fired = self.fired.get(word);
        if armed & ARMED == 0 || parity(armed) == (fired & bit != 0) {
            return false;
        }
        self.fired.publish(word, fired ^ bit);
        true
    }
}

/// The armed word of a tripwire, as a side reads it that accesses the memory itself.
#[derive(Debug)]
pub struct ArmedWord {
    words: PeerWords,
    tripwire: usize,
    /// The arming of which this side told the server last.
    reported: u64,
}

impl ArmedWord {
    /// Reads the armed word of a tripwire among those of its owner; `None` if the owner has fewer.
    #[must_use]
    pub fn new(words: PeerWords, tripwire: u32) -> Option<ArmedWord> {
        let tripwire = tripwire as usize;
        (tripwire < words.len()).then_some(ArmedWord { words, tripwire, reported: 0 })
    }

    /// Returns `true` if the tripwire is armed and the server is to fire it. The caller tells the
    /// server, since later calls do not ask for it again for the same arming.
    #[inline]
    #[must_use]
    pub fn must_report(&mut self, _: Fenced) -> bool {
        let armed = self.words.fetch(self.tripwire);
        if armed & ARMED == 0 || armed == self.reported {
            return false;
        }
        self.reported = armed;
        true
    }

    /// Forgets which arming was reported: another server has the session.
    pub fn restart(&mut self) {
        self.reported = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::test_memory::Memory;

    fn sides(tripwires: u32) -> (Tripwires, Firing, ArmedWord, Memory) {
        let shape = TripwireShape::new(tripwires);
        let (armed, fired) = (Memory::new(shape.owner_words()), Memory::new(shape.server_words()));
        (
            Tripwires::new(shape, armed.own(), fired.peer()),
            Firing::new(shape, fired.own(), armed.peer()),
            ArmedWord::new(armed.peer(), tripwires - 1).unwrap(),
            fired,
        )
    }

    #[test]
    fn a_tripwire_fires_once_for_each_arming() {
        let (mut own, mut firing, mut accessor, _) = sides(130);
        assert!(!firing.fire(fence(), 129) && !accessor.must_report(fence()), "not armed");
        for _ in 0..5 {
            own.arm(129);
            assert!(!own.has_fired(129));
            assert!(accessor.must_report(fence()) && !accessor.must_report(fence()));
            assert!(firing.fire(fence(), 129) && !firing.fire(fence(), 129));
            let mut all = Vec::new();
            own.for_each_fired(|number| all.push(number));
            assert!(own.has_fired(129) && all == [129]);
            own.disarm(129);
            assert!(!own.has_fired(129) && !firing.fire(fence(), 129));
        }
        own.arm(129);
        own.disarm(129);
        assert!(!accessor.must_report(fence()) && !firing.fire(fence(), 129));
        own.arm(129);
        own.arm(129);
        assert!(firing.fire(fence(), 129) && own.has_fired(129), "armed twice is armed");
        assert!(!firing.fire(fence(), 0) && !firing.fire(fence(), 130));
        own.arm(u32::MAX);
        own.disarm(u32::MAX);
        assert!(!own.has_fired(130));
    }

    /// Polling costs one load per 64 tripwires, armed or not.
    #[test]
    fn ten_thousand_tripwires_are_157_loads() {
        let (mut own, mut firing, _, _) = sides(10_000);
        for armed in [0, 1, 10_000] {
            (0..armed).for_each(|number| own.arm(number));
            let polled = || own.for_each_fired(|number| panic!("{number} has not fired"));
            assert_eq!(crate::stop_tests::loads_of(polled), 157, "{armed} armed");
        }
        (0..10_000).for_each(|number| assert!(firing.fire(fence(), number)));
        let mut fired = 0;
        assert_eq!(crate::stop_tests::loads_of(|| own.for_each_fired(|_| fired += 1)), 157);
        assert_eq!(fired, 10_000);
    }

    /// A server that fires for an arming that is over makes its owner look once in vain, and a
    /// successor that fires again changes nothing.
    #[test]
    fn a_late_and_a_repeated_firing_lose_nothing() {
        let (mut own, mut firing, _, fired) = sides(1);
        own.arm(0);
        let before = fired.word(0).load(std::sync::atomic::Ordering::Relaxed);
        assert!(firing.fire(fence(), 0));
        let late = fired.word(0).load(std::sync::atomic::Ordering::Relaxed);
        // As if the server had read the armed word, and stored only now.
        fired.word(0).store(before, std::sync::atomic::Ordering::Relaxed);
        own.disarm(0);
        own.arm(0);
        fired.word(0).store(late, std::sync::atomic::Ordering::Relaxed);
        assert!(own.has_fired(0), "early, and not lost");
        own.disarm(0);
        own.arm(0);
        assert!(!own.has_fired(0));
        assert!(firing.fire(fence(), 0) && own.has_fired(0));
    }
}
