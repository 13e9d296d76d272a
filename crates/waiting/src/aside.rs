//! Detects that another thread wants the processor on which this one spins.
//!
//! A spinning thread is always ready to run, so the kernel takes the processor from it only when
//! its share is used up. That takes some milliseconds, for which all other threads of that
//! processor wait, perhaps only to take what the spinner has just delivered. The spinner sees this
//! as a look that took far too long. Then it stops spinning for a while: a sleeping thread leaves
//! the processor at once.

/// A look that takes longer was interrupted, in nanoseconds. The kernel's shares are longer
/// (`kernel/sched/fair.c`: 0.7 ms and more), and a poll iteration that takes a batch is shorter.
const LONGEST_LOOK: u64 = 500_000;
/// The pause in spinning, the shortest and the longest, in nanoseconds.
const FIRST: u64 = 50_000_000;
const LAST: u64 = 1_600_000_000;

/// Stops a spinner that was interrupted from spinning for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Aside {
    /// When it last looked, if it spins.
    looked: Option<u64>,
    until: u64,
    pause: u64,
    /// Times that another thread interrupted it.
    pub(crate) times: u64,
}

impl Aside {
    /// Returns whether to spin when there is nothing to do. A spinner calls this or [`Aside::over`]
    /// after each look.
    pub(crate) fn may_spin(&mut self, now: u64) -> bool {
        self.over(now);
        let may = now >= self.until;
        if may {
            self.looked = Some(now);
        }
        may
    }

    /// Notes that a look was the last one: the spinner found something to do, or goes to sleep.
    pub(crate) fn over(&mut self, now: u64) {
        let Some(looked) = self.looked.take() else { return };
        if now.saturating_sub(looked) < LONGEST_LOOK {
            return;
        }
        self.times += 1;
        // A spinner that has spun for as long as its last pause starts anew.
        let well = now.saturating_sub(self.until) > self.pause;
        self.pause = if well { FIRST } else { (self.pause * 2).clamp(FIRST, LAST) };
        self.until = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: u64 = 100;
    const SLICE: u64 = 4_000_000;

    /// Spins until `until` where it may. If another thread is there, that thread gets a slice after
    /// each slice of spinning. Returns how long the other thread waited.
    fn spin(aside: &mut Aside, now: &mut u64, until: u64, crowded: bool) -> u64 {
        let (mut spun, mut waited) = (0, 0);
        while *now < until {
            if !aside.may_spin(*now) {
                *now += 10_000;
            } else if crowded && spun >= SLICE {
                (spun, waited) = (0, waited + SLICE);
                *now += SLICE;
            } else {
                spun += LOOK;
                *now += LOOK;
            }
        }
        waited
    }

    #[test]
    fn who_is_alone_spins_and_who_is_not_makes_others_wait_seldom() {
        let (mut aside, mut now) = (Aside::default(), 0);
        spin(&mut aside, &mut now, 1_000_000_000, false);
        assert_eq!(aside.times, 0);
        assert!(aside.may_spin(now));
        // The other thread loses some shares in the first half-second, and then one in a second and
        // a half.
        spin(&mut aside, &mut now, 2_000_000_000, true);
        let waited = spin(&mut aside, &mut now, 12_000_000_000, true);
        assert!((1..=8).contains(&(waited / SLICE)), "{waited}");
        // The other thread is gone: the spinner spins again, and gives way at once to the next one.
        spin(&mut aside, &mut now, 20_000_000_000, false);
        let times = aside.times;
        assert!(aside.may_spin(now));
        aside.over(now + SLICE);
        assert_eq!(aside.times, times + 1);
        assert!(!aside.may_spin(now + SLICE + FIRST - 1));
        assert!(aside.may_spin(now + SLICE + FIRST));
    }

    #[test]
    fn what_is_found_late_counts_and_what_was_slept_for_does_not() {
        let mut aside = Aside::default();
        assert!(aside.may_spin(1));
        aside.over(2);
        // The spinner is asleep meanwhile.
        assert!(aside.may_spin(1_000_000_000));
        aside.over(1_000_000_000 + LONGEST_LOOK);
        assert_eq!(aside.times, 1);
        assert!(!aside.may_spin(1_000_000_001 + LONGEST_LOOK));
    }
}
