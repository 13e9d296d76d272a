//! A detector of other threads that need the processor on which a thread spins.
//!
//! A spinning thread is always ready to run, so the kernel preempts it only when its share is used
//! up. That takes some milliseconds, for which all other threads of that processor wait, perhaps
//! only to take packets that the spinner has just delivered. The spinner sees this as a poll that
//! took far too long. Then the spinner stops spinning for a while, since a sleeping thread leaves
//! the processor at once.

/// The longest poll that was not preempted, in nanoseconds. The kernel's shares are longer
/// (`kernel/sched/fair.c`: 0.7 ms and more), and a poll iteration with a full batch is shorter.
const LONGEST_POLL: u64 = 500_000;
/// The shortest and the longest pause in spinning, in nanoseconds.
const FIRST: u64 = 50_000_000;
const LAST: u64 = 1_600_000_000;

/// Stops a preempted spinner from spinning for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preemption {
    /// When the spinner last polled, if it spins.
    looked: Option<u64>,
    until: u64,
    pause: u64,
    /// How often another thread preempted the spinner.
    pub(crate) times: u64,
}

impl Preemption {
    /// Returns whether to spin when no work is left. A spinner calls this or [`Preemption::over`]
    /// after each poll.
    pub(crate) fn may_spin(&mut self, now: u64) -> bool {
        self.over(now);
        let may = now >= self.until;
        if may {
            self.looked = Some(now);
        }
        may
    }

    /// Notes the last poll of a spin: the spinner found work, or goes to sleep.
    pub(crate) fn over(&mut self, now: u64) {
        let Some(looked) = self.looked.take() else { return };
        if now.saturating_sub(looked) < LONGEST_POLL {
            return;
        }
        self.times += 1;
        // A spinner that ran for longer than its last pause starts with the shortest pause again.
        let well = now.saturating_sub(self.until) > self.pause;
        self.pause = if well { FIRST } else { (self.pause * 2).clamp(FIRST, LAST) };
        self.until = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: u64 = 100;
    const SLICE: u64 = 4_000_000;

    /// Spins until `until` where the detector allows it. If `crowded`, another thread gets a slice
    /// after each slice of spinning. Returns how long the other thread waited.
    fn spin(preemption: &mut Preemption, now: &mut u64, until: u64, crowded: bool) -> u64 {
        let (mut spun, mut waited) = (0, 0);
        while *now < until {
            if !preemption.may_spin(*now) {
                *now += 10_000;
            } else if crowded && spun >= SLICE {
                (spun, waited) = (0, waited + SLICE);
                *now += SLICE;
            } else {
                spun += POLL;
                *now += POLL;
            }
        }
        waited
    }

    #[test]
    fn a_lone_thread_spins_and_a_shared_core_is_rarely_delayed() {
        let (mut preemption, mut now) = (Preemption::default(), 0);
        spin(&mut preemption, &mut now, 1_000_000_000, false);
        assert_eq!(preemption.times, 0);
        assert!(preemption.may_spin(now));
        // The other thread waits for some slices in the first half-second, and then for one in a
        // second and a half.
        spin(&mut preemption, &mut now, 2_000_000_000, true);
        let waited = spin(&mut preemption, &mut now, 12_000_000_000, true);
        assert!((1..=8).contains(&(waited / SLICE)), "{waited}");
        // The other thread is gone: the spinner spins again, and yields to the next one at once.
        spin(&mut preemption, &mut now, 20_000_000_000, false);
        let times = preemption.times;
        assert!(preemption.may_spin(now));
        preemption.over(now + SLICE);
        assert_eq!(preemption.times, times + 1);
        assert!(!preemption.may_spin(now + SLICE + FIRST - 1));
        assert!(preemption.may_spin(now + SLICE + FIRST));
    }

    #[test]
    fn late_found_work_counts_and_slept_time_does_not() {
        let mut preemption = Preemption::default();
        assert!(preemption.may_spin(1));
        preemption.over(2);
        // The spinner is asleep meanwhile.
        assert!(preemption.may_spin(1_000_000_000));
        preemption.over(1_000_000_000 + LONGEST_POLL);
        assert_eq!(preemption.times, 1);
        assert!(!preemption.may_spin(1_000_000_001 + LONGEST_POLL));
    }
}
