//! The controller of the automatic wait strategy. It makes a side spin, sleep until a notification,
//! or sleep until a tick. It chooses the cheapest of these within a bound on added latency, and
//! never exceeds a bound on processor time.
//!
//! Smith and Traw left the choice of their clock's base rate as an unsolved problem. Here the
//! bounds determine the rate: a packet that comes just after a poll waits until the next one. The
//! longest interval that keeps the bound is therefore the bound minus the timer's delay and the
//! time of the work, on this side and after the application's wake-up. The work of a tick grows
//! with the time since the last tick, so the controller derives it from the share of time that this
//! side works. The larger that share is, the shorter this side sleeps. A longer interval breaks the
//! bound; a shorter one only costs more. The controller decides by counting whether the clock is
//! cheaper:
//!
//! - While this side sleeps until notifications, the controller sees when packets come. It counts
//!   the actual cost, and the clock's cost for the same packets. If the clock costs less, the
//!   controller changes to the clock.
//! - While this side is timer-driven, the controller cannot see how many notifications would have
//!   come: at least one for each tick that found packets. Unless these alone would cost more than
//!   the ticks, this side sleeps until notifications for a few wake-ups, and the controller counts.
//!   A tick that finds nothing ends the ticking until the next notification, so that an idle side
//!   does not wake up at all.
//! - Only spinning can keep a bound that is shorter than a wake-up. This side spins long enough for
//!   all but one packet in a hundred to find it awake, and then sleeps.
//!
//! The bound on processor time is a token bucket that fills at the bound's rate. When the bucket is
//! empty, this side waits for tokens, in a separate wait that traffic cannot cut short. The
//! controller estimates the used tokens from the time awake. Every few milliseconds it corrects the
//! estimate by the scheduler's figure for the thread's processor time. So this side pays a real
//! debt in full, and owes nothing for time in which its thread was stopped.

mod choice;

use crate::gaps::Gaps;
use crate::imagined::Imagined;
use crate::{Costs, Spinner, Step};

/// The bounds that the controller keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest latency that waiting may add, for 99 packets in 100, in nanoseconds.
    pub latency: u64,
    /// Processor time, in percent of a processor: 1 to 100.
    pub cpu_percent: u64,
    /// The maximum number of packets that may come between two ticks: the device may lose packets
    /// once more than half of its capacity has come. 0: no limit.
    pub packets: u64,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// All work: received packets, packets to send and completions, commands.
    pub work: usize,
    /// Packets that had waited for the poll: received, or to be sent.
    pub packets: usize,
    /// Of these, the packets that had waited in the device, whose capacity is bounded.
    pub received: usize,
}

impl Found {
    /// Returns the result of a poll that only received packets.
    #[must_use]
    pub fn received(packets: usize) -> Found {
        Found { work: packets, packets, received: packets }
    }
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take the wait strategy's step.
    Take(Step),
    /// Sleep until then and ignore notifications of traffic: the bound on processor time is
    /// reached.
    Throttle {
        /// When to poll.
        until: u64,
    },
}

/// How a throttled side continues after it ran commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// When to poll.
    pub until: u64,
    /// Until then, commands wait too: this side first pays for those that it ran.
    pub deaf: u64,
}

/// The controller's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes between the wait strategies.
    pub switches: u64,
    /// Packets found later than the bound allows, in the worst case.
    pub late: u64,
    /// How often this side waited because it reached the bound on processor time.
    pub throttled: u64,
    /// Ticks.
    pub ticks: u64,
}

/// The current wait strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Sleeps until a notification.
    Block,
    /// Sleeps until a tick.
    TimerDriven,
    /// Spins, because no sleep keeps the bound.
    Spin,
}

/// The shortest time after a change to the clock until the controller tests again whether
/// notifications cost less, in nanoseconds.
const TRY_FIRST: u64 = 10_000_000;
/// The maximum processor time that this side may save, in nanoseconds.
const SAVED: i64 = 2_000_000;
/// The maximum debt by the estimate, in nanoseconds. Few poll iterations take as long: if a side
/// seems to have been awake for longer, its thread was stopped, or another thread had its
/// processor. A debt by the scheduler's figure has no maximum.
const OWED: i64 = 4 * SAVED;
/// How often the controller asks for the scheduler's figure, in nanoseconds.
const ASK: u64 = 5_000_000;
/// The longest time for which commands wait, in nanoseconds.
const DEAF: u64 = 500_000_000;

/// The denominator of the controller's shares of time.
const ALL: u64 = 1024;

/// Chooses the wait strategy.
#[derive(Clone, Debug)]
pub struct Controller {
    bounds: Bounds,
    costs: Costs,
    /// The controller's counts.
    pub counts: Counts,
    strategy: Strategy,
    /// The start of the awake time that is not yet accounted for; 0: not begun.
    mark: u64,
    /// When this side last polled.
    looked: u64,
    /// The time since which there was always more work than this side took; `None`: it took all.
    behind: Option<u64>,
    slept: Option<Next>,
    /// `true` if the last poll was part of a spin.
    spins: bool,
    /// An estimate of the ticks' delay that most ticks stay below.
    late: u64,
    /// The recent share of the time that this side works, in parts of [`ALL`].
    share: u64,
    /// When this side last woke up, last found work, and last went to sleep.
    woken: u64,
    served: u64,
    asleep: u64,
    /// Packets per second that the device receives at times of high load.
    per_second: u64,
    tokens: i64,
    /// When the controller last asked for the scheduler's figure, that figure, and the tokens at
    /// that time.
    asked: Option<(u64, u64, i64)>,
    spinner: Spinner,
    gaps: Gaps,
    /// For this window: the actual cost, the number of wake-ups, the number of polls that found
    /// work, and the clock's cost.
    paid: u64,
    blocked: u32,
    found: u32,
    clock: Imagined,
    votes: u32,
    try_at: u64,
    try_after: u64,
    /// Of 256 ticks after an empty one, the ticks that find work.
    again: u32,
    empty: bool,
    armed_empty: u64,
}

impl Controller {
    /// Creates a controller that begins with [`Strategy::Block`].
    #[must_use]
    pub fn new(bounds: Bounds, costs: Costs) -> Controller {
        Controller {
            bounds,
            costs,
            counts: Counts::default(),
            strategy: Strategy::Block,
            mark: 0,
            looked: 0,
            behind: None,
            slept: None,
            spins: false,
            late: costs.tick_late,
            share: 0,
            woken: 0,
            served: 0,
            asleep: 0,
            per_second: 0,
            tokens: SAVED,
            asked: None,
            spinner: Spinner::new(costs.wake_up_cpu),
            gaps: Gaps::default(),
            paid: 0,
            blocked: 0,
            found: 0,
            clock: Imagined::default(),
            votes: 0,
            try_at: 0,
            try_after: TRY_FIRST,
            again: 0,
            empty: false,
            armed_empty: 0,
        }
    }

    /// Replaces the bounds.
    pub fn set(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        // The processor time used before was under another bound.
        self.asked = None;
    }

    /// Returns the current wait strategy.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Returns how often another thread took the processor while this side spun.
    #[must_use]
    pub fn preempted(&self) -> u64 {
        self.spinner.preempted()
    }

    /// Returns the interval between ticks, in nanoseconds: the longest that keeps the bound.
    /// `None`: no sleep is this short.
    #[must_use]
    pub fn interval(&self) -> Option<u64> {
        let latency = self.bounds.latency;
        // Where the timer's delay is longer than half of the bound, no other strategy would be
        // earlier. A packet that a tick finds still needs the application's wake-up.
        let left = latency - self.late.min(latency / 2) - (2 * self.costs.wake_up).min(latency / 8);
        // The share is the work's part of an interval with its work. The application takes about as
        // long for the packets of a tick as this side.
        let interval = left * (ALL - self.share) / (ALL + self.share);
        let least = self.costs.least_sleep().max(2 * self.costs.tick_cpu);
        let most = if self.bounds.packets > 0 && self.per_second > 0 {
            left.min(self.bounds.packets * 1_000_000_000 / self.per_second)
        } else {
            left
        };
        // The subtraction reserves a little for unforeseen delay.
        let interval = interval.min(most);
        (most >= least).then(|| (interval - interval / 24).max(least))
    }

    /// Returns the time until the debt is paid and a few tokens are saved.
    fn until_paid(&self) -> u64 {
        let owed = (SAVED / 4).saturating_sub(self.tokens).max(0) as u64;
        owed.saturating_mul(100) / self.bounds.cpu_percent.max(1)
    }

    /// Returns how a throttled side continues after it ran commands during the wait. `None`: the
    /// wait ends now.
    pub fn throttled(&mut self, now: u64) -> Option<Throttled> {
        let spent = now.saturating_sub(self.mark) + self.costs.wake_up_cpu;
        self.account(now, true);
        if self.tokens >= SAVED / 4 {
            return None;
        }
        let until = now + self.until_paid();
        self.slept = Some(Next::Throttle { until });
        let deaf = spent.saturating_mul(100) / self.bounds.cpu_percent.max(1);
        Some(Throttled { until, deaf: now + deaf.min(DEAF) })
    }

    /// `true` if the controller wants the processor time that this side has used.
    #[must_use]
    pub fn wants_usage(&self, now: u64) -> bool {
        self.bounds.cpu_percent < 100
            && self.asked.is_none_or(|(at, ..)| now.saturating_sub(at) >= ASK)
    }

    /// Corrects the estimates since the last call. `cpu` is the scheduler's figure for the total
    /// processor time of this side, in nanoseconds.
    pub fn used(&mut self, now: u64, cpu: u64) {
        if let Some((at, before, tokens)) = self.asked {
            let filled = now.saturating_sub(at).saturating_mul(self.bounds.cpu_percent) / 100;
            let taken = cpu.saturating_sub(before);
            let change = i64::try_from(filled).unwrap_or(i64::MAX).saturating_sub_unsigned(taken);
            self.tokens = tokens.saturating_add(change).min(SAVED);
            self.mark = now;
        }
        self.asked = Some((now, cpu, self.tokens));
    }

    /// Notes the end of a sleep, before the poll. A sleep that this side announced but did not
    /// begin, because a last check found work, does not count.
    pub fn woke(&mut self, now: u64) {
        let Some(next) = self.slept else { return };
        self.account(now, false);
        self.woken = now;
        match next {
            Next::Take(Step::Block) => {
                self.tokens -= self.costs.wake_up_cpu as i64;
                self.paid += self.costs.wake_up_cpu;
                self.blocked += 1;
            }
            Next::Take(Step::SleepUntil { until }) => {
                self.paid += self.costs.tick_cpu;
                if let Some(late) = now.checked_sub(until) {
                    self.tokens -= self.costs.tick_cpu as i64;
                    self.counts.ticks += 1;
                    follow(&mut self.late, late);
                } else {
                    // An urgent notification ended the sleep.
                    self.tokens -= self.costs.wake_up_cpu as i64;
                }
            }
            Next::Throttle { .. } => {
                self.tokens -= self.costs.tick_cpu as i64;
                self.paid += self.costs.tick_cpu;
            }
            Next::Take(Step::Poll | Step::Spin { .. }) => {}
        }
    }

    /// Notes that this side announced a sleep but did not begin it, because a last check found
    /// work.
    pub fn stayed(&mut self) {
        self.slept = None;
    }

    /// Fills the bucket for the time that passed, and takes tokens from it if that time was awake.
    fn account(&mut self, now: u64, awake: bool) {
        let passed = now.saturating_sub(self.mark);
        self.mark = now;
        if self.bounds.cpu_percent >= 100 {
            self.tokens = SAVED;
            return;
        }
        let share = |percent| (passed.saturating_mul(percent) / 100).min(i64::MAX as u64) as i64;
        if awake {
            // The used tokens minus the added ones. The debt grows to at most the plausible amount,
            // and a larger existing debt stays.
            let least = self.tokens.min(-OWED);
            let change = share(100 - self.bounds.cpu_percent);
            self.tokens = self.tokens.saturating_sub(change).max(least);
        } else {
            let change = share(self.bounds.cpu_percent);
            self.tokens = self.tokens.saturating_add(change).min(SAVED);
        }
    }

    /// Notes the beginning of a sleep, and updates the share of work with the time since the last
    /// one.
    fn sleeps(&mut self, now: u64) {
        let work = self.served.saturating_sub(self.woken.max(self.asleep));
        let passed = now.saturating_sub(std::mem::replace(&mut self.asleep, now));
        let seen = work.saturating_mul(ALL).checked_div(passed).unwrap_or(0).min(ALL);
        self.share = (self.share * 7 + seen) / 8;
    }

    /// Notes that a poll found work.
    fn came(&mut self, now: u64, found: Found) {
        let waited = now.saturating_sub(self.looked);
        let slept = self.slept.take();
        // After a notification, the first packet came one wake-up ago. Packets of a tick may have
        // come at any time since the last poll.
        let longest = match slept {
            Some(Next::Take(Step::Block)) => waited.min(self.costs.wake_up),
            _ => waited,
        };
        // If a side does not drain, packets may have waited since it last did.
        let longest = longest.max(self.behind.map_or(0, |at| self.looked.saturating_sub(at)));
        if longest > self.bounds.latency + self.bounds.latency / 8 {
            // Only packets count as late, not completions or commands.
            self.counts.late += found.packets as u64;
        }
        let was_notified = slept == Some(Next::Take(Step::Block));
        self.spinner.found(now, was_notified);
        let late = if was_notified { self.costs.wake_up } else { 0 };
        self.gaps.add(now, late, found.work as u64);
        self.found += 1;
        if waited > 0 {
            // Rounded up: the next tick may find as many packets again.
            let received = found.received as u64 * 1_000_000_000;
            follow(&mut self.per_second, received.div_ceil(waited));
        }
        self.served = now;
        if let Some(interval) = self.interval() {
            self.clock.came(now, interval);
        }
        if self.empty {
            // `true` if one more tick would have found this work.
            let soon = self.interval().is_some_and(|one| now - self.armed_empty <= one);
            self.again =
                if soon { self.again + (256 - self.again) / 8 } else { self.again * 7 / 8 };
            self.empty = false;
        }
    }
}

/// Moves an estimate that most samples stay below: quickly up and slowly down. A sample far above
/// the estimate counts little.
fn follow(estimate: &mut u64, seen: u64) {
    if seen > *estimate {
        *estimate += (seen - *estimate).min(*estimate + 1000) / 3;
    } else {
        *estimate -= (*estimate - seen) / 128;
    }
}
