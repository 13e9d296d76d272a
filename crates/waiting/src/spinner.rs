//! The time to spin before sleep.
//!
//! A side without work may poll for a while, which costs that time, or sleep, which costs a
//! wake-up. From the lengths of the last idle times, the spinner finds the time to spin that would
//! have cost least. That time is at most the cost of a wake-up, so this side pays at most twice the
//! best possible cost (the ski rental problem). The time is zero when no packet is likely to come
//! within it. The side also does not spin while another thread needs the processor.

use crate::preemption::Preemption;

/// The number of parts into which the longest time to spin is divided.
const PARTS: usize = 16;
/// Idle times after which the spinner chooses anew.
const EACH: u32 = 16;
/// Idle times after which the spinner halves all counts, so that older ones count less.
const HISTORY: u32 = 128;

/// Chooses how long to spin, from the last idle times.
#[derive(Clone, Debug)]
pub struct Spinner {
    wake_up: u64,
    /// Idle times by their length in parts of a wake-up's cost; the last counts longer ones.
    lengths: [u32; PARTS + 1],
    seen: u32,
    until_choice: u32,
    spin: u64,
    idle_since: Option<u64>,
    pub(crate) preemption: Preemption,
}

impl Spinner {
    /// Creates a spinner for a side whose wake-up costs `wake_up` nanoseconds. The side does not
    /// spin until idle times show that spinning helps.
    #[must_use]
    pub fn new(wake_up: u64) -> Spinner {
        Spinner {
            wake_up: wake_up.max(PARTS as u64),
            lengths: [0; PARTS + 1],
            seen: 0,
            until_choice: EACH,
            spin: 0,
            idle_since: None,
            preemption: Preemption::default(),
        }
    }

    /// Returns how often another thread took the processor while this side spun. After each time
    /// this side does not spin for 50 ms, and up to 1.6 s if it happens again at once.
    #[must_use]
    pub fn preempted(&self) -> u64 {
        self.preemption.times
    }

    /// Returns how long the side spins, in nanoseconds: 0 to the cost of a wake-up.
    #[must_use]
    pub fn spin(&self) -> u64 {
        self.spin
    }

    /// Returns whether to poll again when no work is left; if not, the side sleeps.
    pub fn poll_again(&mut self, now: u64) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        if now.saturating_sub(since) < self.spin {
            return self.preemption.may_spin(now);
        }
        self.preemption.over(now);
        false
    }

    /// Notes that a poll found work. `slept`: the side slept, so a wake-up lies between the
    /// packet's arrival and now.
    pub fn found(&mut self, now: u64, slept: bool) {
        self.preemption.over(now);
        let Some(since) = self.idle_since.take() else { return };
        let idle = now.saturating_sub(since);
        // A side that slept had spun before in vain.
        let idle = if slept { idle.saturating_sub(self.wake_up).max(self.spin) } else { idle };
        let part = idle.saturating_mul(PARTS as u64) / self.wake_up;
        self.lengths[(part as usize).min(PARTS)] += 1;
        self.seen += 1;
        if self.seen >= HISTORY {
            self.seen /= 2;
            for count in &mut self.lengths {
                *count /= 2;
            }
        }
        self.until_choice -= 1;
        if self.until_choice == 0 {
            self.until_choice = EACH;
            self.choose();
        }
    }

    /// Chooses the time to spin with which the counted idle times would have cost least.
    fn choose(&mut self) {
        let total: u64 = self.lengths.iter().map(|count| u64::from(*count)).sum();
        // Costs are in halves of parts. For a spin of n parts, an idle time within them costs its
        // own length, and any other costs n parts and a wake-up.
        let (mut best, mut best_cost) = (0, total * 2 * PARTS as u64);
        let (mut came, mut came_cost) = (0, 0);
        for parts in 1..=PARTS {
            let count = u64::from(self.lengths[parts - 1]);
            came += count;
            came_cost += count * (2 * parts as u64 - 1);
            let cost = came_cost + (total - came) * 2 * (parts + PARTS) as u64;
            if cost < best_cost {
                (best, best_cost) = (parts, cost);
            }
        }
        self.spin = self.wake_up * best as u64 / PARTS as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: u64 = 32_000;

    /// Runs the spinner through idle times. Returns the cost of spinning and wake-ups.
    fn paid(spinner: &mut Spinner, idle: impl IntoIterator<Item = u64>) -> u64 {
        let mut now = 0;
        let mut paid = 0;
        for idle in idle {
            let comes = now + idle;
            let mut slept = false;
            while now < comes {
                if !spinner.poll_again(now) {
                    slept = true;
                    break;
                }
                now += 200;
                paid += 200;
            }
            if slept {
                now = comes + COST;
                paid += COST;
            }
            spinner.found(now, slept);
        }
        paid
    }

    #[test]
    fn short_idle_times_are_spun_and_long_ones_are_slept() {
        let mut spinner = Spinner::new(COST);
        paid(&mut spinner, [3_000; 100]);
        assert!((3_000..6_000).contains(&spinner.spin()), "{}", spinner.spin());
        let soon = paid(&mut spinner, [3_000; 100]);
        assert!(soon < 110 * 3_200, "{soon}: wake-ups");
        paid(&mut spinner, [10_000_000; 300]);
        assert_eq!(spinner.spin(), 0, "no packet comes within a spin any more");
        // Half of the idle times are very short: spinning pays for them.
        paid(&mut spinner, (0..600).map(|n| if n % 2 == 0 { 2_000 } else { 1_000_000 }));
        assert!((2_000..=4_000).contains(&spinner.spin()), "{}", spinner.spin());
    }

    /// A peer that answers sooner while this side is awake: idle times that end in a sleep seem
    /// shorter than a spin that was in vain.
    #[test]
    fn a_spin_in_vain_is_followed_by_longer_ones_until_they_help() {
        let mut spinner = Spinner::new(COST);
        let (mut now, mut slept_last) = (0, 0);
        for turn in 0..600 {
            let since = now;
            let awake = spinner.spin() > 20_000;
            while spinner.poll_again(now) && (!awake || now < since + 20_000) {
                now += 200;
            }
            let slept = now < since + 20_000;
            now = if slept { since + COST + 4_000 } else { now };
            spinner.found(now, slept);
            slept_last = if slept { turn } else { slept_last };
        }
        assert!(slept_last < 300 && spinner.spin() > 20_000, "{slept_last}, {}", spinner.spin());
    }

    #[test]
    fn the_spinner_pays_at_most_about_twice_the_optimum() {
        let mut state = 0x5eed_u64;
        for mean in [500, 5_000, 30_000, 100_000, 1_000_000] {
            let mut spinner = Spinner::new(COST);
            let idle: Vec<u64> = (0..2_000)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) % (2 * mean)
                })
                .collect();
            let best: u64 = idle.iter().map(|idle| (*idle).min(COST)).sum();
            let paid = paid(&mut spinner, idle);
            assert!(paid <= best * 2 + 32 * COST, "mean {mean}: {paid} paid, {best} is possible");
        }
    }
}
