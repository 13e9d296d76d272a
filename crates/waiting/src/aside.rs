//! Whether somebody else wants the processor on which one spins.
//!
//! Who spins is always ready to run, so that the kernel takes the processor from him only when his
//! share is used up: some milliseconds, for which everybody else on that processor waits, perhaps for
//! no more than to take what he has just delivered. From inside, that is seen as a look that took far
//! too long. Then it is better not to spin for a while: who sleeps leaves the processor at once.

/// A look that takes longer was interrupted, in nanoseconds. The kernel's shares are longer
/// (`kernel/sched/fair.c`: 0.7 ms and more), and a turn that takes a batch is shorter.
const LONGEST_LOOK: u64 = 500_000;
/// For how long it does not spin, at first and at last, in nanoseconds.
const FIRST: u64 = 50_000_000;
const LAST: u64 = 1_600_000_000;

/// Keeps from spinning who was put aside for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Aside {
    /// When it last looked, if it spins.
    looked: Option<u64>,
    until: u64,
    pause: u64,
    /// Times that it was put aside.
    pub(crate) times: u64,
}

impl Aside {
    /// There is nothing to do. Answers whether to spin at all; who does calls this or
    /// [`Aside::over`] after each look.
    pub(crate) fn may_spin(&mut self, now: u64) -> bool {
        self.over(now);
        let may = now >= self.until;
        if may {
            self.looked = Some(now);
        }
        may
    }

    /// A look was the last one: there is something to do, or it goes to sleep.
    pub(crate) fn over(&mut self, now: u64) {
        let Some(looked) = self.looked.take() else { return };
        if now.saturating_sub(looked) < LONGEST_LOOK {
            return;
        }
        self.times += 1;
        // Who has spun for as long as he paused before starts anew.
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

    /// Spins until then where it may, and is put aside for a slice after each slice of spinning, if
    /// somebody else is there. Answers for how long the other waited.
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
        // In the first half of a second some shares are lost, and then one in a second and a half.
        spin(&mut aside, &mut now, 2_000_000_000, true);
        let waited = spin(&mut aside, &mut now, 12_000_000_000, true);
        assert!((1..=8).contains(&(waited / SLICE)), "{waited}");
        // The other is gone: it spins again, and the next one finds it ready to give way at once.
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
        // Asleep meanwhile.
        assert!(aside.may_spin(1_000_000_000));
        aside.over(1_000_000_000 + LONGEST_LOOK);
        assert_eq!(aside.times, 1);
        assert!(!aside.may_spin(1_000_000_001 + LONGEST_LOOK));
    }
}
