//! The time to spin before sleep.
//!
//! A side without work may poll for a while, which costs that time, or sleep, which costs a
//! wake-up. From the lengths of the last idle times, the spinner finds the time to spin that would
//! have cost least. That time is at most the price of a sleep, so this side pays at most twice the
//! best possible cost (the ski rental problem). The time is zero when no packet is likely to come
//! within it. The side also does not spin while another thread needs the processor.

use crate::preemption::Preemption;

/// The number of parts into which the longest time to spin is divided.
const PARTS: usize = 16;
/// Idle times after which the spinner chooses anew.
const EACH: u32 = 16;
/// The most choices that the spinner skips after one that was in vain.
const MAX_PAUSE: u32 = 64;
/// Idle times after which the spinner halves all counts, so that older ones count less.
const HISTORY: u32 = 128;

/// Chooses how long to spin, from the last idle times.
#[derive(Clone, Debug)]
pub struct Spinner {
    /// The longest time to spin: what a sleep costs.
    price: u64,
    /// The part of an idle time that ended in a sleep for which the packet had come already.
    wake_up: u64,
    /// Idle times by their length in parts of the price; the last counts longer ones.
    lengths: [u32; PARTS + 1],
    seen: u32,
    until_choice: u32,
    /// The chosen time to spin, in parts of the price.
    parts: usize,
    /// Spins since the last choice during which a packet came.
    helped: u32,
    /// Choices to skip, and how many the next spin in vain will skip.
    paused: u32,
    pause: u32,
    idle_since: Option<u64>,
    /// `true` if the present idle time was spun to the end.
    spun: bool,
    pub(crate) preemption: Preemption,
}

impl Spinner {
    /// Creates a spinner for a side whose wake-up costs `wake_up` nanoseconds. The side does not
    /// spin until idle times show that spinning helps.
    #[must_use]
    pub fn new(wake_up: u64) -> Spinner {
        Spinner::with_price(wake_up, wake_up)
    }

    /// Creates a spinner as [`Spinner::new`] does, for a side that spins for up to `price`
    /// nanoseconds to avoid a sleep, which may cost others a wake-up too.
    #[must_use]
    pub fn with_price(wake_up: u64, price: u64) -> Spinner {
        Spinner {
            price: price.max(PARTS as u64),
            wake_up,
            lengths: [0; PARTS + 1],
            seen: 0,
            until_choice: EACH,
            parts: 0,
            helped: 0,
            paused: 0,
            pause: 1,
            idle_since: None,
            spun: false,
            preemption: Preemption::default(),
        }
    }

    /// Returns how often another thread took the processor while this side spun. After each time
    /// this side does not spin for 50 ms, and up to 1.6 s if it happens again at once.
    #[must_use]
    pub fn preempted(&self) -> u64 {
        self.preemption.times
    }

    /// Returns how long the side spins, in nanoseconds: 0 to the price of a sleep.
    #[must_use]
    pub fn spin(&self) -> u64 {
        self.price * self.parts as u64 / PARTS as u64
    }

    /// Returns whether to poll again when no work is left; if not, the side sleeps.
    pub fn poll_again(&mut self, now: u64) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        if now.saturating_sub(since) < self.spin() {
            return self.preemption.may_spin(now);
        }
        self.spun = self.parts > 0;
        self.preemption.over(now);
        false
    }

    /// Returns `true` if the side has polled without work since it last found some.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    /// Notes that the side sleeps, which is no preemption.
    pub fn sleeps(&mut self, now: u64) {
        self.preemption.over(now);
    }

    /// Forgets the present idle time: the side stops waiting.
    pub fn stop(&mut self, now: u64) {
        self.preemption.over(now);
        self.idle_since = None;
        self.spun = false;
    }

    /// Notes that a poll found work. `slept`: the side slept, so a wake-up lies between the
    /// packet's arrival and now.
    pub fn found(&mut self, now: u64, slept: bool) {
        self.preemption.over(now);
        let spun = std::mem::take(&mut self.spun);
        let Some(since) = self.idle_since.take() else { return };
        self.helped += u32::from(!slept && self.parts > 0);
        let wake_up = if slept { self.wake_up } else { 0 };
        let idle = now.saturating_sub(since).saturating_sub(wake_up);
        let part = (idle.saturating_mul(PARTS as u64) / self.price) as usize;
        // A spin in vain shows that the idle time was at least as long.
        let part = if slept && spun { part.max(self.parts) } else { part };
        self.lengths[part.min(PARTS)] += 1;
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
        if self.paused > 0 {
            self.paused -= 1;
            return;
        }
        let total: u64 = self.lengths.iter().map(|count| u64::from(*count)).sum();
        // Costs are in halves of parts. For a spin of n parts, an idle time within them costs its
        // own length, and any other costs n parts and a sleep.
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
        if best == 0 && self.parts > 0 {
            // Spinning was in vain, perhaps because wake-ups take less time than this side
            // believes.
            self.paused = self.pause;
            self.pause = (2 * self.pause).min(MAX_PAUSE);
        } else if self.helped * 2 > EACH {
            self.pause = 1;
        }
        self.helped = 0;
        self.parts = best;
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
        for (wake_up, price) in [(COST, COST), (32_001, 32_001), (33_333, 33_333), (30_000, 60_001)]
        {
            let mut spinner = Spinner::with_price(wake_up, price);
            let (mut now, mut slept_last) = (0, 0);
            for turn in 0..600 {
                let since = now;
                let awake = spinner.spin() > 20_000;
                while spinner.poll_again(now) && (!awake || now < since + 20_000) {
                    now += 200;
                }
                let slept = now < since + 20_000;
                now = if slept { since + wake_up + 4_000 } else { now };
                spinner.found(now, slept);
                slept_last = if slept { turn } else { slept_last };
            }
            assert!(slept_last < 300, "{wake_up}: {slept_last}, {}", spinner.spin());
        }
    }

    /// Wake-ups that take far less time than the side believes make idle times that no spin covers
    /// seem short.
    #[test]
    fn a_side_that_never_spins_with_success_rarely_spins() {
        let mut spinner = Spinner::new(COST);
        let (mut now, mut spun) = (0, 0);
        for _ in 0..20_000 {
            let since = now;
            while spinner.poll_again(now) {
                now += 200;
            }
            spun += now - since;
            now = since + COST + 10_000;
            spinner.found(now, true);
        }
        assert!(spun > 0 && spun < 20_000 * COST / 6, "{} ns each", spun / 20_000);
    }

    #[test]
    fn the_spinner_pays_at_most_about_twice_the_optimum() {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        for mean in [500, 5_000, 30_000, 100_000, 1_000_000] {
            let mut spinner = Spinner::new(COST);
            let idle: Vec<u64> = (0..2_000).map(|_| random.u64(..2 * mean)).collect();
            let best: u64 = idle.iter().map(|idle| (*idle).min(COST)).sum();
            let paid = paid(&mut spinner, idle);
            assert!(paid <= best * 2 + 32 * COST, "mean {mean}: {paid} paid, {best} is possible");
        }
    }
}
