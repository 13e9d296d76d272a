//! Looking by the clock: β times a second, whatever comes.
//!
//! Smith and Traw's clocked interrupts: with C the cost of a wake-up, α that of a frame and k frames
//! a packet, a clock carries a load λ as long as 1 > βC + λkα, where an interrupt a packet needs
//! 1 > λk(C + α).

use crate::Step;

/// A clock.
#[derive(Clone, Debug)]
pub struct Clock {
    period: u64,
    next: u64,
    /// Sleeping takes longer than a period: it stays awake between ticks.
    spins: bool,
    /// What became of the ticks.
    pub counts: Ticks,
}

/// What became of a clock's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Ticks that were kept.
    pub kept: u64,
    /// Ticks that passed while there was work, or that sleep took too long for.
    pub missed: u64,
    /// How much too late those kept were, all together, in nanoseconds.
    pub late: u64,
    /// How much too late the latest one was, in nanoseconds.
    pub latest: u64,
    /// Ticks kept that it stayed awake for.
    pub awake: u64,
}

impl Clock {
    /// Ticks `hz` times a second, 1 to 1 000 000. `least_sleep` is the shortest time that sleeping
    /// holds, in nanoseconds: below, it spins between ticks.
    #[must_use]
    pub fn new(hz: u64, least_sleep: u64, now: u64) -> Clock {
        let period = 1_000_000_000 / hz.clamp(1, 1_000_000);
        Clock { period, next: now + period, spins: period < least_sleep, counts: Ticks::default() }
    }

    /// Whether it stays awake between ticks.
    #[must_use]
    pub fn spins(&self) -> bool {
        self.spins
    }

    /// Time between ticks, in nanoseconds.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period
    }

    /// There is nothing more to do: when the next tick is.
    pub fn step(&mut self, now: u64) -> Step {
        if let Some(behind) = now.checked_sub(self.next) {
            let passed = behind / self.period + 1;
            self.counts.missed += passed;
            self.next += passed * self.period;
        }
        let until = self.next;
        if self.spins { Step::Spin { until } } else { Step::Unrung { until } }
    }

    /// The wait is over: by the tick, or before it, for what was urgent.
    pub fn woke(&mut self, now: u64) {
        if let Some(late) = now.checked_sub(self.next) {
            self.counts.kept += 1;
            self.counts.awake += u64::from(self.spins);
            self.counts.late += late;
            self.counts.latest = self.counts.latest.max(late);
            self.next += self.period;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_kept_missed_and_late() {
        let mut clock = Clock::new(1_000, 30_000, 5);
        assert_eq!(clock.step(100), Step::Unrung { until: 1_000_005 });
        clock.woke(900_000);
        assert_eq!(clock.counts, Ticks::default(), "woken before the tick for what is urgent");
        assert_eq!(clock.step(900_100), Step::Unrung { until: 1_000_005 });
        clock.woke(1_040_005);
        assert_eq!(
            clock.counts,
            Ticks { kept: 1, missed: 0, late: 40_000, latest: 40_000, awake: 0 }
        );
        // At work over three ticks.
        assert_eq!(clock.step(4_500_000), Step::Unrung { until: 5_000_005 });
        assert_eq!(clock.counts.missed, 3);
        clock.woke(5_000_005);
        assert_eq!(clock.counts.kept, 2);
    }

    #[test]
    fn a_fast_clock_spins() {
        let mut clock = Clock::new(100_000, 30_000, 0);
        assert!(clock.spins() && matches!(clock.step(0), Step::Spin { until: 10_000 }));
        clock.woke(10_000);
        assert_eq!((clock.counts.kept, clock.counts.awake), (1, 1));
        assert!(!Clock::new(10_000, 30_000, 0).spins());
        assert_eq!(Clock::new(0, 1, 0).period(), 1_000_000_000);
    }
}
