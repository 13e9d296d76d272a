//! The wait strategy of the engine, as its settings say. This module decides the next step;
//! `wait.rs` executes it.

use rustix::time::{ClockId, clock_gettime};
use towpath_protocol::settings::{Setting, Values};
use towpath_waiting::{Bounds, Clock, Controller, Costs, Found, Next, Spinner, Step, Throttled};

/// The engine's wait strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStrategy {
    /// The engine never sleeps.
    Poll,
    /// The engine sleeps when it finds nothing to do, and clients notify it.
    Block,
    /// The engine spins before it sleeps if work is likely to come within the time of a wake-up. It
    /// spins at most that long.
    SpinThenBlock,
    /// The engine polls at a fixed rate per second, and clients do not notify it.
    TimerDriven,
    /// The engine picks the cheapest strategy within bounds on latency and processor time.
    Auto,
}

impl WaitStrategy {
    /// All strategies, in the order of the setting's values.
    pub const ALL: [WaitStrategy; 5] = [
        WaitStrategy::Poll,
        WaitStrategy::Block,
        WaitStrategy::SpinThenBlock,
        WaitStrategy::TimerDriven,
        WaitStrategy::Auto,
    ];

    /// Returns the strategy that the setting's value stands for.
    pub(crate) fn of(value: u64) -> WaitStrategy {
        WaitStrategy::ALL.get(value as usize).copied().unwrap_or(WaitStrategy::Block)
    }
}

impl From<WaitStrategy> for Values {
    /// Returns the default values, except for the strategy.
    fn from(strategy: WaitStrategy) -> Values {
        let mut values = Values::default();
        let set = values.set(Setting::Wait, strategy as u64);
        debug_assert!(set.is_ok(), "the table has all strategies");
        values
    }
}

/// One wait strategy with its state.
#[derive(Debug)]
pub(crate) enum Waiter {
    Poll,
    Block,
    SpinThenBlock(Spinner),
    TimerDriven(Clock),
    Auto(Box<Controller>),
}

/// Counts of former wait strategies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) ticks: u64,
    pub(crate) missed: u64,
    pub(crate) late_ns: u64,
    pub(crate) latest_ns: u64,
    pub(crate) switches: u64,
    pub(crate) late_packets: u64,
    pub(crate) throttled: u64,
    pub(crate) preempted: u64,
    pub(crate) awake: u64,
}

impl Waiter {
    /// Creates the waiter for the settings, from `now` on, in nanoseconds; at most `packets` may
    /// arrive between two poll iterations.
    pub(crate) fn new(values: &Values, packets: u64, now: u64) -> Waiter {
        let strategy = WaitStrategy::of(values.get(Setting::Wait));
        match strategy {
            WaitStrategy::Poll => Waiter::Poll,
            WaitStrategy::Block => Waiter::Block,
            WaitStrategy::SpinThenBlock => {
                Waiter::SpinThenBlock(Spinner::new(Costs::of_this_machine().wake_up))
            }
            WaitStrategy::TimerDriven => {
                let hz = values.get(Setting::TickHz);
                Waiter::TimerDriven(Clock::new(hz, Costs::of_this_machine().least_sleep(), now))
            }
            WaitStrategy::Auto => {
                let costs = Costs::of_this_machine();
                Waiter::Auto(Box::new(Controller::new(bounds(values, packets), costs)))
            }
        }
    }

    /// Applies a changed setting. The waiter adopts new bounds without a restart.
    pub(crate) fn set(
        &mut self,
        values: &Values,
        packets: u64,
        setting: Setting,
        now: u64,
    ) -> Option<Counted> {
        match (setting, &mut *self) {
            (Setting::LatencyUs | Setting::CpuPercent, Waiter::Auto(controller)) => {
                controller.set(bounds(values, packets));
                None
            }
            // The timer's slack belongs to the thread.
            (Setting::LatencyUs | Setting::CpuPercent | Setting::TimerSlackUs, _) => None,
            (Setting::TickHz, waiter) if !matches!(waiter, Waiter::TimerDriven(_)) => None,
            _ => {
                let counted = self.counted();
                *self = Waiter::new(values, packets, now);
                Some(counted)
            }
        }
    }

    /// Returns `true` if the waiter needs the time after each poll iteration.
    pub(crate) fn needs_time(&self) -> bool {
        !matches!(self, Waiter::Poll | Waiter::Block)
    }

    /// Returns `true` if the waiter may be timer-driven. [`Waiter::woke`] needs the time for such waiters alone.
    pub(crate) fn has_clock(&self) -> bool {
        matches!(self, Waiter::TimerDriven(_) | Waiter::Auto(_))
    }

    /// Returns `true` if the engine stays awake between ticks, because no sleep is as short as a
    /// tick.
    pub(crate) fn spins_between_ticks(&self) -> bool {
        matches!(self, Waiter::TimerDriven(clock) if clock.spins())
    }

    /// Yields the processor between two polls without sleep. An engine that spins for a while gives
    /// other threads precedence. Otherwise the application that it has just notified could wait for
    /// milliseconds. An engine that polls has its own processor and makes no system call.
    pub(crate) fn give_way(&self) {
        if matches!(self, Waiter::Poll) {
            std::hint::spin_loop();
        } else {
            rustix::thread::sched_yield();
        }
    }

    /// Decides after a poll iteration that found `found`. `drained`: the engine left nothing
    /// behind. `slept`: the iteration followed a sleep that a notification can end.
    pub(crate) fn after(&mut self, now: u64, found: Found, drained: bool, slept: bool) -> Next {
        let is_busy = found.work > 0;
        Next::Take(match self {
            Waiter::Poll => Step::Poll,
            Waiter::Block => {
                // After one batch directly after a sleep, the check before the sleep replaces a
                // poll iteration that would find nothing. An engine with more to do stays awake,
                // and one that received gives the device new buffers before it sleeps.
                let sleeps = slept && drained && found.received == 0;
                if is_busy && !sleeps { Step::Poll } else { Step::Block }
            }
            Waiter::SpinThenBlock(spinner) => {
                if is_busy {
                    spinner.found(now, slept);
                    Step::Poll
                } else if spinner.poll_again(now) {
                    Step::Poll
                } else {
                    Step::Block
                }
            }
            Waiter::TimerDriven(clock) => {
                if is_busy && !drained {
                    Step::Poll
                } else {
                    clock.step(now)
                }
            }
            Waiter::Auto(controller) => {
                if controller.wants_usage(now) {
                    controller.used(now, thread_cpu_ns());
                }
                return controller.after(now, found, drained);
            }
        })
    }

    /// Records the end of a sleep.
    pub(crate) fn woke(&mut self, now: u64) {
        match self {
            Waiter::TimerDriven(clock) => clock.woke(now),
            Waiter::Auto(controller) => controller.woke(now),
            Waiter::Poll | Waiter::Block | Waiter::SpinThenBlock(_) => {}
        }
    }

    /// Records that the engine executed commands while it was throttled. `None`: the engine may run
    /// a poll iteration.
    pub(crate) fn throttled(&mut self, now: u64) -> Option<Throttled> {
        match self {
            Waiter::Auto(controller) => controller.throttled(now),
            // The commands selected another wait strategy.
            _ => None,
        }
    }

    /// Records that the engine announced sleep and found work instead.
    pub(crate) fn stayed(&mut self) {
        if let Waiter::Auto(controller) = self {
            controller.stayed();
        }
    }

    /// Returns the waiter's counts.
    pub(crate) fn counted(&self) -> Counted {
        match self {
            Waiter::TimerDriven(clock) => Counted {
                ticks: clock.counts.kept,
                missed: clock.counts.missed,
                late_ns: clock.counts.late,
                latest_ns: clock.counts.latest,
                awake: clock.counts.awake,
                ..Counted::default()
            },
            Waiter::Auto(controller) => Counted {
                ticks: controller.counts.ticks,
                switches: controller.counts.switches,
                late_packets: controller.counts.late,
                throttled: controller.counts.throttled,
                preempted: controller.preempted(),
                ..Counted::default()
            },
            Waiter::SpinThenBlock(spinner) => {
                Counted { preempted: spinner.preempted(), ..Counted::default() }
            }
            Waiter::Poll | Waiter::Block => Counted::default(),
        }
    }
}

impl Counted {
    /// Adds earlier counts to these.
    pub(crate) fn and(self, other: Counted) -> Counted {
        Counted {
            ticks: self.ticks + other.ticks,
            missed: self.missed + other.missed,
            late_ns: self.late_ns + other.late_ns,
            latest_ns: self.latest_ns.max(other.latest_ns),
            switches: self.switches + other.switches,
            late_packets: self.late_packets + other.late_packets,
            throttled: self.throttled + other.throttled,
            preempted: self.preempted + other.preempted,
            awake: self.awake + other.awake,
        }
    }
}

/// Returns the processor time of this thread, in nanoseconds, according to the kernel's scheduler.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn bounds(values: &Values, packets: u64) -> Bounds {
    Bounds {
        packets,
        latency: values.get(Setting::LatencyUs) * 1000,
        cpu_percent: values.get(Setting::CpuPercent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrelated_settings_keep_the_waiters_state() {
        for strategy in [WaitStrategy::SpinThenBlock, WaitStrategy::TimerDriven, WaitStrategy::Auto]
        {
            let mut values = Values::from(strategy);
            let mut waiter = Waiter::new(&values, 64, 0);
            let before = format!("{waiter:?}");
            values.set(Setting::TimerSlackUs, 7).unwrap();
            assert!(waiter.set(&values, 64, Setting::TimerSlackUs, 1_000_000).is_none());
            assert_eq!(format!("{waiter:?}"), before);
            // A setting that concerns the waiter makes it begin anew.
            values.set(Setting::Wait, WaitStrategy::Poll as u64).unwrap();
            assert!(waiter.set(&values, 64, Setting::Wait, 1_000_000).is_some());
            assert!(matches!(waiter, Waiter::Poll));
        }
    }

    #[test]
    fn one_batch_of_applications_after_a_sleep_needs_no_further_iteration() {
        let mut waiter = Waiter::Block;
        let sent = Found { work: 3, packets: 3, received: 0 };
        let received = Found { received: 3, ..sent };
        assert_eq!(waiter.after(0, sent, true, true), Next::Take(Step::Block));
        for (found, drained, slept) in
            [(received, true, true), (sent, false, true), (sent, true, false)]
        {
            let next = waiter.after(0, found, drained, slept);
            assert_eq!(next, Next::Take(Step::Poll), "{found:?} {drained} {slept}");
        }
    }
}
