//! A clock, which ticks β times per second, whatever traffic comes.
//!
//! Smith and Traw's clocked interrupts: with C the cost of a wake-up, α that of a frame and k
//! frames per packet, a clock carries a load λ as long as 1 > βC + λkα, where one interrupt per
//! packet needs 1 > λk(C + α).

use crate::Step;

/// A clock.
#[derive(Clone, Debug)]
pub struct Clock {
    period: u64,
    next: u64,
    /// `true` if the shortest sleep is longer than a period: the side stays awake between ticks.
    spins: bool,
    /// The counts of the ticks.
    pub counts: Ticks,
}

/// The counts of a clock's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Ticks that were kept.
    pub kept: u64,
    /// Ticks that passed while the side worked or slept too long.
    pub missed: u64,
    /// Total delay of the ticks kept, in nanoseconds.
    pub late: u64,
    /// The largest delay of a tick, in nanoseconds.
    pub latest: u64,
    /// Ticks kept for which the side stayed awake.
    pub awake: u64,
}

impl Clock {
    /// Creates a clock of `hz` ticks per second, 1 to 1 000 000. `least_sleep` is the shortest
    /// sleep in nanoseconds: with a shorter period, the side spins between ticks.
    #[must_use]
    pub fn new(hz: u64, least_sleep: u64, now: u64) -> Clock {
        let period = 1_000_000_000 / hz.clamp(1, 1_000_000);
        Clock { period, next: now + period, spins: period < least_sleep, counts: Ticks::default() }
    }

    /// `true` if the side stays awake between ticks.
    #[must_use]
    pub fn spins(&self) -> bool {
        self.spins
    }

    /// Returns the time between ticks, in nanoseconds.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period
    }

    /// Returns the step to the next tick, when no work is left.
    pub fn step(&mut self, now: u64) -> Step {
        if let Some(behind) = now.checked_sub(self.next) {
            let passed = behind / self.period + 1;
            self.counts.missed += passed;
            self.next += passed * self.period;
        }
        let until = self.next;
        if self.spins { Step::Spin { until } } else { Step::SleepUntil { until } }
    }

    /// Notes the end of a wait: at the tick, or before it for urgent work.
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
        assert_eq!(clock.step(100), Step::SleepUntil { until: 1_000_005 });
        clock.woke(900_000);
        assert_eq!(clock.counts, Ticks::default(), "woken before the tick for urgent work");
        assert_eq!(clock.step(900_100), Step::SleepUntil { until: 1_000_005 });
        clock.woke(1_040_005);
        assert_eq!(
            clock.counts,
            Ticks { kept: 1, missed: 0, late: 40_000, latest: 40_000, awake: 0 }
        );
        // The side works during three ticks.
        assert_eq!(clock.step(4_500_000), Step::SleepUntil { until: 5_000_005 });
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
