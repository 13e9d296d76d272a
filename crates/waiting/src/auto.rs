//! The controller: spins, sleeps until rung, or sleeps by the clock, whichever costs least within a
//! bound on added latency, and never more than a bound on processor time.
//!
//! Smith and Traw left the choice of the base rate of their clock as an unsolved problem. Here it
//! follows from what is asked for: a frame that comes just after a look waits until the next one, so
//! the longest interval that keeps the bound is the bound less what the timer is late and what the
//! work takes, here and behind the next wake-up. The work of a tick is as long as what came since the
//! last one, so it is known by the share of the time that this side works: the nearer that is to all
//! of it, the shorter it sleeps. A longer interval breaks the bound; a shorter one only costs more.
//! What is left to choose is whether the clock pays at all, and that is counted:
//!
//! - While it sleeps until rung it sees when frames come, and counts beside what it pays what the
//!   clock would have paid for the same frames. When that is less, it goes by the clock.
//! - While it goes by the clock it cannot see how often it would have been rung, but at least once
//!   for each tick that found something. Where that is less than what the ticks cost, it sleeps until
//!   rung for a few wake-ups, and counts. A tick that finds nothing ends the ticking until the next
//!   ring, so that an idle side sleeps altogether.
//! - A bound that is shorter than a wake-up can be kept by spinning alone. It spins as long as it
//!   takes for all but one frame in a hundred to be found awake, and sleeps after that.
//!
//! The bound on processor time is a bucket of tokens that is filled at the bound's rate. An empty one
//! is waited for, whatever comes meanwhile, in a step of its own that nobody ends who sends or
//! receives. What is taken out of it is estimated from the time that goes by awake, and every few
//! milliseconds put right by what the scheduler says that the thread has used: a debt that is real is
//! paid in full, and time in which the thread was stopped is none.

use crate::gaps::Gaps;
use crate::imagined::Imagined;
use crate::{Costs, Spinner, Step};

/// What the controller keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest time that waiting may add to a frame's way, for 99 frames in 100, in
    /// nanoseconds.
    pub latency: u64,
    /// Processor time, in hundredths of a processor: 1 to 100.
    pub cpu_percent: u64,
    /// Packets that may come between two ticks: more than half of what the device keeps may be
    /// lost. 0: no limit.
    pub packets: u64,
}

/// What a look found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// All that there was to do: packets, those that are sent and come back, orders.
    pub work: usize,
    /// Packets that had waited for the look: received, or to be sent.
    pub packets: usize,
    /// Of these, those that had waited in the device, which keeps so many.
    pub received: usize,
}

impl Found {
    /// Nothing but packets that were received.
    #[must_use]
    pub fn received(packets: usize) -> Found {
        Found { work: packets, packets, received: packets }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// What the way of waiting has it do.
    Take(Step),
    /// The bound on processor time is reached: sleep until then, and wait for nothing that whoever
    /// sends or receives can ring.
    Throttle {
        /// When to look.
        until: u64,
    },
}

/// How a side that is throttled goes on after it followed orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// When to look.
    pub until: u64,
    /// Until then, orders wait too: those that it followed are paid for first.
    pub deaf: u64,
}

/// What it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes between the ways of waiting.
    pub switches: u64,
    /// Packets found later than the bound allows, at the worst.
    pub late: u64,
    /// Times that it waited because the bound on processor time was reached.
    pub throttled: u64,
    /// Ticks.
    pub ticks: u64,
}

/// How it waits at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Asleep until rung.
    Rung,
    /// By the clock.
    Clock,
    /// Awake, for a bound that no sleep keeps.
    Awake,
}

/// Wake-ups after which the ways are compared.
const WINDOW: u32 = 16;
/// Of what a way costs, per hundred, another must cost less for a change to it: so that noise
/// changes nothing.
const WORTH: u64 = 87;
/// Windows in a row that must speak for a change, unless the difference is great.
const VOTES: u32 = 3;
/// How soon after a change to the clock it is tried again whether being rung costs less, at first and
/// at last, in nanoseconds.
const TRY_FIRST: u64 = 10_000_000;
const TRY_LAST: u64 = 160_000_000;
/// Processor time that may be saved up, in nanoseconds.
const SAVED: i64 = 2_000_000;
/// Processor time that is taken to be owed by what went by awake, in nanoseconds. Few turns take as
/// long: a side that seems to have been awake for longer was stopped, or its processor was another's.
/// What the scheduler says is owed in full.
const OWED: i64 = 4 * SAVED;
/// How often the scheduler is asked, in nanoseconds.
const ASK: u64 = 5_000_000;
/// Orders do not wait longer than this, in nanoseconds.
const DEAF: u64 = 500_000_000;

/// All of the time, as a share of it is counted.
const ALL: u64 = 1024;

/// Chooses how to wait.
#[derive(Clone, Debug)]
pub struct Controller {
    bounds: Bounds,
    costs: Costs,
    /// What it did.
    pub counts: Counts,
    way: Way,
    /// Since when it is awake and not accounted for; 0: not begun.
    mark: u64,
    /// When it last had looked.
    looked: u64,
    /// Since when there was always more than it took; `None`: it took all.
    behind: Option<u64>,
    slept: Option<Next>,
    /// The last look was one of its spinning.
    spins: bool,
    /// How late ticks are, mostly.
    late: u64,
    /// The share of the time that this side works, in parts of [`ALL`], of late.
    share: u64,
    /// When it last was awake again, when it had last found something, and when it last went to
    /// sleep.
    woken: u64,
    served: u64,
    asleep: u64,
    /// Packets that the device receives in a second, when it receives many.
    per_second: u64,
    tokens: i64,
    /// When the scheduler was asked last, what it said, and the tokens that there were.
    asked: Option<(u64, u64, i64)>,
    spinner: Spinner,
    gaps: Gaps,
    /// What was paid in this window, what for, and what the clock would have cost.
    paid: u64,
    rung: u32,
    found: u32,
    clock: Imagined,
    votes: u32,
    try_at: u64,
    try_after: u64,
    /// Of 256 ticks after an empty one, how many find something.
    again: u32,
    empty: bool,
    armed_empty: u64,
}

impl Controller {
    /// Begins; asleep until rung.
    #[must_use]
    pub fn new(bounds: Bounds, costs: Costs) -> Controller {
        Controller {
            bounds,
            costs,
            counts: Counts::default(),
            way: Way::Rung,
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
            rung: 0,
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

    /// Takes other bounds.
    pub fn set(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        // What was used before was within another bound.
        self.asked = None;
    }

    /// How it waits at the moment.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Times that somebody else got the processor while it spun.
    #[must_use]
    pub fn put_aside(&self) -> u64 {
        self.spinner.put_aside()
    }

    /// The interval between ticks, in nanoseconds: the longest that keeps the bound. `None`: no
    /// sleep is so short.
    #[must_use]
    pub fn interval(&self) -> Option<u64> {
        let latency = self.bounds.latency;
        // Where the timer is later than that, nothing else would be earlier. What is found has a
        // wake-up of its own before it, the application's.
        let left = latency - self.late.min(latency / 2) - (2 * self.costs.wake_up).min(latency / 8);
        // Of an interval and its work, the work is the share; and what a tick finds takes the
        // application about as long as it took this side.
        let interval = left * (ALL - self.share) / (ALL + self.share);
        let least = self.costs.least_sleep().max(2 * self.costs.tick_cpu);
        let most = if self.bounds.packets > 0 && self.per_second > 0 {
            left.min(self.bounds.packets * 1_000_000_000 / self.per_second)
        } else {
            left
        };
        // Less a little for what is not foreseen.
        let interval = interval.min(most);
        (most >= least).then(|| (interval - interval / 24).max(least))
    }

    /// After each look: what to do next. `drained`: it took all that there was.
    pub fn after(&mut self, now: u64, found: Found, drained: bool) -> Next {
        if self.mark == 0 {
            (self.mark, self.looked) = (now, now);
        }
        if std::mem::take(&mut self.spins) {
            self.paid += now.saturating_sub(self.mark);
        }
        self.spinner.aside.over(now);
        self.account(now, true);
        if found.work > 0 {
            self.came(now, found);
        }
        self.looked = now;
        self.behind = if drained { None } else { self.behind.or(Some(now)) };
        let next = if self.tokens < 0 {
            self.counts.throttled += 1;
            Next::Throttle { until: now + self.until_paid() }
        } else if found.work > 0 && !drained {
            Next::Take(Step::Look)
        } else {
            Next::Take(self.idle(now, found.work > 0))
        };
        self.slept = match next {
            Next::Take(Step::Look | Step::Spin { .. }) => None,
            Next::Take(Step::Rung | Step::Unrung { .. }) | Next::Throttle { .. } => {
                self.sleeps(now);
                Some(next)
            }
        };
        next
    }

    /// How long it takes until what is owed is paid and a little saved up.
    fn until_paid(&self) -> u64 {
        let owed = (SAVED / 4).saturating_sub(self.tokens).max(0) as u64;
        owed.saturating_mul(100) / self.bounds.cpu_percent.max(1)
    }

    /// After orders were followed while it was throttled, before its time was over. `None`: that is
    /// over now.
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

    /// Whether it wants to be told how much processor time this side has used.
    #[must_use]
    pub fn wants_usage(&self, now: u64) -> bool {
        self.bounds.cpu_percent < 100
            && self.asked.is_none_or(|(at, ..)| now.saturating_sub(at) >= ASK)
    }

    /// The processor time that this side has ever used, in nanoseconds, as the scheduler has it: what
    /// was estimated since the last time is put right.
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

    /// After each sleep, before the look. A sleep that was announced and not slept, since there was
    /// something after all, is none.
    pub fn woke(&mut self, now: u64) {
        let Some(next) = self.slept else { return };
        self.account(now, false);
        self.woken = now;
        match next {
            Next::Take(Step::Rung) => {
                self.tokens -= self.costs.wake_up_cpu as i64;
                self.paid += self.costs.wake_up_cpu;
                self.rung += 1;
            }
            Next::Take(Step::Unrung { until }) => {
                self.paid += self.costs.tick_cpu;
                if let Some(late) = now.checked_sub(until) {
                    self.tokens -= self.costs.tick_cpu as i64;
                    self.counts.ticks += 1;
                    follow(&mut self.late, late);
                } else {
                    // Rung for what is urgent.
                    self.tokens -= self.costs.wake_up_cpu as i64;
                }
            }
            Next::Throttle { .. } => {
                self.tokens -= self.costs.tick_cpu as i64;
                self.paid += self.costs.tick_cpu;
            }
            Next::Take(Step::Look | Step::Spin { .. }) => {}
        }
    }

    /// A sleep was announced and not slept: there was something after all.
    pub fn stayed(&mut self) {
        self.slept = None;
    }

    /// Fills the bucket for the time that went by, and empties it for what was awake of it.
    fn account(&mut self, now: u64, awake: bool) {
        let passed = now.saturating_sub(self.mark);
        self.mark = now;
        if self.bounds.cpu_percent >= 100 {
            self.tokens = SAVED;
            return;
        }
        let share = |percent| (passed.saturating_mul(percent) / 100).min(i64::MAX as u64) as i64;
        if awake {
            // What is taken less what is filled up; no more than it may have been, and nothing is
            // forgiven of what is owed already.
            let least = self.tokens.min(-OWED);
            let change = share(100 - self.bounds.cpu_percent);
            self.tokens = self.tokens.saturating_sub(change).max(least);
        } else {
            let change = share(self.bounds.cpu_percent);
            self.tokens = self.tokens.saturating_add(change).min(SAVED);
        }
    }

    /// It goes to sleep: which share of the time since it last did was work.
    fn sleeps(&mut self, now: u64) {
        let work = self.served.saturating_sub(self.woken.max(self.asleep));
        let passed = now.saturating_sub(std::mem::replace(&mut self.asleep, now));
        let seen = work.saturating_mul(ALL).checked_div(passed).unwrap_or(0).min(ALL);
        self.share = (self.share * 7 + seen) / 8;
    }

    /// There was something to do.
    fn came(&mut self, now: u64, found: Found) {
        let waited = now.saturating_sub(self.looked);
        let slept = self.slept.take();
        // Rung, the first came a wake-up ago; the others, and those of a tick, since the last look.
        let longest = match slept {
            Some(Next::Take(Step::Rung)) => waited.min(self.costs.wake_up),
            _ => waited,
        };
        // Who never drains has some that wait since it last did.
        let longest = longest.max(self.behind.map_or(0, |at| self.looked.saturating_sub(at)));
        if longest > self.bounds.latency + self.bounds.latency / 8 {
            // Nobody waits for what comes back, or for the turn behind an order.
            self.counts.late += found.packets as u64;
        }
        let is_rung = slept == Some(Next::Take(Step::Rung));
        self.spinner.found(now, is_rung);
        let late = if is_rung { self.costs.wake_up } else { 0 };
        self.gaps.add(now, late, found.work as u64);
        self.found += 1;
        if waited > 0 {
            // Rounded up: a tick after this one it may be so many again.
            let received = found.received as u64 * 1_000_000_000;
            follow(&mut self.per_second, received.div_ceil(waited));
        }
        self.served = now;
        if let Some(interval) = self.interval() {
            self.clock.came(now, interval);
        }
        if self.empty {
            // Would one more tick have found this?
            let soon = self.interval().is_some_and(|one| now - self.armed_empty <= one);
            self.again =
                if soon { self.again + (256 - self.again) / 8 } else { self.again * 7 / 8 };
            self.empty = false;
        }
    }

    /// Nothing is left to do.
    fn idle(&mut self, now: u64, found: bool) -> Step {
        let Some(interval) = self.interval() else {
            // Rung, a frame waits for a wake-up; that may be soon enough.
            let way = if self.bounds.latency < self.costs.wake_up { Way::Awake } else { Way::Rung };
            self.go(way);
            return if way == Way::Awake { self.awake(now) } else { self.until_rung(now) };
        };
        if self.way == Way::Awake {
            self.go(Way::Rung);
        }
        match self.way {
            Way::Clock => self.by_the_clock(now, found, interval),
            Way::Rung | Way::Awake => {
                let clock = self.clock.cost(&self.costs);
                // Where the difference is great, a few wake-ups are enough to see it.
                let much_better = self.rung >= WINDOW / 4 && clock * 2 < self.paid;
                if self.rung >= WINDOW || much_better {
                    let better = clock * 100 < self.paid * WORTH;
                    self.begin_window();
                    self.votes = if better { self.votes + 1 } else { 0 };
                    if much_better || self.votes >= VOTES {
                        self.go(Way::Clock);
                        self.try_at = now + self.try_after;
                        return self.by_the_clock(now, found, interval);
                    }
                }
                self.until_rung(now)
            }
        }
    }

    fn by_the_clock(&mut self, now: u64, found: bool, interval: u64) -> Step {
        if now >= self.try_at {
            // Being rung would have cost at least this.
            let least = u64::from(self.found) * self.costs.wake_up_cpu;
            let sure = self.paid * 100 < least * WORTH;
            self.begin_window();
            if sure {
                self.try_after = TRY_FIRST;
                self.try_at = now + TRY_FIRST;
            } else {
                self.try_after = (self.try_after * 2).min(TRY_LAST);
                self.go(Way::Rung);
                return self.until_rung(now);
            }
        }
        if found {
            return Step::Unrung { until: now + interval };
        }
        if !self.empty {
            self.empty = true;
            self.armed_empty = now;
            // Another tick, if that is likely to cost less than being rung.
            if u64::from(self.again) * self.costs.wake_up_cpu > 256 * self.costs.tick_cpu {
                return Step::Unrung { until: now + interval };
            }
        }
        Step::Rung
    }

    /// Spins as long as that costs less than sleeping, and sleeps.
    fn until_rung(&mut self, now: u64) -> Step {
        if self.tokens > 0 && self.spinner.look_again(now) {
            self.spins = true;
            return Step::Look;
        }
        Step::Rung
    }

    /// Spins as long as the bound needs it and processor time is left, and sleeps.
    fn awake(&mut self, now: u64) -> Step {
        let limited = self.bounds.cpu_percent < 100;
        if limited && self.tokens < SAVED / 2 {
            return Step::Rung;
        }
        let idle = now.saturating_sub(self.gaps.since);
        if idle < self.gaps.spin && self.spinner.aside.may_spin(now) {
            Step::Look
        } else {
            Step::Rung
        }
    }

    fn go(&mut self, way: Way) {
        if self.way != way {
            self.way = way;
            self.counts.switches += 1;
            self.votes = 0;
            self.begin_window();
        }
    }

    fn begin_window(&mut self) {
        (self.paid, self.rung, self.found) = (0, 0, 0);
        self.clock = Imagined::default();
    }
}

/// Quickly up and slowly down: what most are not above. One that is far off counts little.
fn follow(estimate: &mut u64, seen: u64) {
    if seen > *estimate {
        *estimate += (seen - *estimate).min(*estimate + 1000) / 3;
    } else {
        *estimate -= (*estimate - seen) / 128;
    }
}
