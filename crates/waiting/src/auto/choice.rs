//! The next step after a poll, and the choice of the wait strategy while no work is left.

use super::{Controller, Found, Next, SAVED, Strategy, TRY_FIRST};
use crate::Step;
use crate::imagined::Imagined;

/// Wake-ups after which the controller compares the strategies.
const WINDOW: u32 = 16;
/// The percentage of a strategy's cost below which another strategy's cost must lie for a change,
/// so that noise changes nothing.
const WORTH: u64 = 87;
/// Windows in a row that must favour a change, unless the difference is large.
const VOTES: u32 = 3;
/// The longest time after a change to the clock until the controller tests again whether
/// notifications cost less, in nanoseconds.
const TRY_LAST: u64 = 160_000_000;

impl Controller {
    /// Returns the next step after a poll. `drained` is `true` if this side took all work.
    pub fn after(&mut self, now: u64, found: Found, drained: bool) -> Next {
        if self.mark == 0 {
            (self.mark, self.looked) = (now, now);
        }
        if std::mem::take(&mut self.spins) {
            self.paid += now.saturating_sub(self.mark);
        }
        self.spinner.preemption.over(now);
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
            Next::Take(Step::Poll)
        } else {
            Next::Take(self.idle(now, found.work > 0))
        };
        self.slept = match next {
            Next::Take(Step::Poll | Step::Spin { .. }) => None,
            Next::Take(Step::Block | Step::SleepUntil { .. }) | Next::Throttle { .. } => {
                self.sleeps(now);
                Some(next)
            }
        };
        next
    }

    /// Returns the next step when no work is left.
    fn idle(&mut self, now: u64, found: bool) -> Step {
        let Some(interval) = self.interval() else {
            // With notifications, a packet waits for one wake-up, which the bound may allow.
            let strategy = if self.bounds.latency < self.costs.wake_up {
                Strategy::Spin
            } else {
                Strategy::Block
            };
            self.change_to(strategy);
            return if strategy == Strategy::Spin {
                self.spin(now)
            } else {
                self.until_notified(now)
            };
        };
        if self.strategy == Strategy::Spin {
            self.change_to(Strategy::Block);
        }
        match self.strategy {
            Strategy::TimerDriven => self.timer_driven(now, found, interval),
            Strategy::Block | Strategy::Spin => {
                let clock = self.clock.cost(&self.costs);
                // A large difference shows after a few wake-ups.
                let much_better = self.blocked >= WINDOW / 4 && clock * 2 < self.paid;
                if self.blocked >= WINDOW || much_better {
                    let better = clock * 100 < self.paid * WORTH;
                    self.begin_window();
                    self.votes = if better { self.votes + 1 } else { 0 };
                    if much_better || self.votes >= VOTES {
                        self.change_to(Strategy::TimerDriven);
                        self.try_at = now + self.try_after;
                        return self.timer_driven(now, found, interval);
                    }
                }
                self.until_notified(now)
            }
        }
    }

    fn timer_driven(&mut self, now: u64, found: bool, interval: u64) -> Step {
        if now >= self.try_at {
            // Notifications would have cost at least this much.
            let least = u64::from(self.found) * self.costs.wake_up_cpu;
            let sure = self.paid * 100 < least * WORTH;
            self.begin_window();
            if sure {
                self.try_after = TRY_FIRST;
                self.try_at = now + TRY_FIRST;
            } else {
                self.try_after = (self.try_after * 2).min(TRY_LAST);
                self.change_to(Strategy::Block);
                return self.until_notified(now);
            }
        }
        if found {
            return Step::SleepUntil { until: now + interval };
        }
        if !self.empty {
            self.empty = true;
            self.armed_empty = now;
            // Take another tick if it is likely to cost less than a notification.
            if u64::from(self.again) * self.costs.wake_up_cpu > 256 * self.costs.tick_cpu {
                return Step::SleepUntil { until: now + interval };
            }
        }
        Step::Block
    }

    /// Spins while the spinner expects that to cost less than a sleep, then sleeps until a
    /// notification.
    fn until_notified(&mut self, now: u64) -> Step {
        if self.tokens > 0 && self.spinner.poll_again(now) {
            self.spins = true;
            return Step::Poll;
        }
        Step::Block
    }

    /// Spins while the bound needs it and processor time is left, then sleeps until a notification.
    fn spin(&mut self, now: u64) -> Step {
        let limited = self.bounds.cpu_percent < 100;
        if limited && self.tokens < SAVED / 2 {
            return Step::Block;
        }
        let idle = now.saturating_sub(self.gaps.since);
        if idle < self.gaps.spin && self.spinner.preemption.may_spin(now) {
            Step::Poll
        } else {
            Step::Block
        }
    }

    fn change_to(&mut self, strategy: Strategy) {
        if self.strategy != strategy {
            self.strategy = strategy;
            self.counts.switches += 1;
            self.votes = 0;
            self.begin_window();
        }
    }

    fn begin_window(&mut self) {
        (self.paid, self.blocked, self.found) = (0, 0, 0);
        self.clock = Imagined::default();
    }
}
