//! The wait strategy of the engine, as its settings say. This module decides the next step;
//! `wait.rs` executes it.

use rustix::time::{ClockId, clock_gettime};
use towpath_protocol::settings::{Setting, Values};
use towpath_waiting::{Bounds, Clock, Controller, Costs, Found, Next, Spinner, Step, Throttled};

use crate::engine::Mode;

/// One wait strategy with its state.
#[derive(Debug)]
pub(crate) enum Waiter {
    Poll,
    Interrupt,
    Adaptive(Spinner),
    Clocked(Clock),
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
    pub(crate) put_aside: u64,
    pub(crate) awake: u64,
}

impl Waiter {
    /// Creates the waiter for the settings, from `now` on, in nanoseconds; up to `packets` may
    /// arrive between two looks.
    pub(crate) fn new(values: &Values, packets: u64, now: u64) -> Waiter {
        let mode = Mode::of(values.get(Setting::Mode));
        match mode {
            Mode::Poll => Waiter::Poll,
            Mode::Interrupt => Waiter::Interrupt,
            Mode::Adaptive => Waiter::Adaptive(Spinner::new(Costs::of_this_machine().wake_up)),
            Mode::Clocked => {
                let hz = values.get(Setting::ClockHz);
                Waiter::Clocked(Clock::new(hz, Costs::of_this_machine().least_sleep(), now))
            }
            Mode::Auto => {
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
            (Setting::ClockHz, waiter) if !matches!(waiter, Waiter::Clocked(_)) => None,
            _ => {
                let counted = self.counted();
                *self = Waiter::new(values, packets, now);
                Some(counted)
            }
        }
    }

    /// Returns `true` if the waiter needs the time after each poll iteration.
    pub(crate) fn needs_time(&self) -> bool {
        !matches!(self, Waiter::Poll | Waiter::Interrupt)
    }

    /// Returns `true` if the waiter may sleep by the clock.
    pub(crate) fn has_clock(&self) -> bool {
        matches!(self, Waiter::Clocked(_) | Waiter::Auto(_))
    }

    /// Returns `true` if the engine stays awake between ticks, because no sleep is so short.
    pub(crate) fn spins_between_ticks(&self) -> bool {
        matches!(self, Waiter::Clocked(clock) if clock.spins())
    }

    /// Yields the processor between two looks without sleep. An engine that spins for a while gives
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
            Waiter::Poll => Step::Look,
            Waiter::Interrupt => {
                if is_busy {
                    Step::Look
                } else {
                    Step::Rung
                }
            }
            Waiter::Adaptive(spinner) => {
                if is_busy {
                    spinner.found(now, slept);
                    Step::Look
                } else if spinner.look_again(now) {
                    Step::Look
                } else {
                    Step::Rung
                }
            }
            Waiter::Clocked(clock) => {
                if is_busy && !drained {
                    Step::Look
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
            Waiter::Clocked(clock) => clock.woke(now),
            Waiter::Auto(controller) => controller.woke(now),
            Waiter::Poll | Waiter::Interrupt | Waiter::Adaptive(_) => {}
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
            Waiter::Clocked(clock) => Counted {
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
                put_aside: controller.put_aside(),
                ..Counted::default()
            },
            Waiter::Adaptive(spinner) => {
                Counted { put_aside: spinner.put_aside(), ..Counted::default() }
            }
            Waiter::Poll | Waiter::Interrupt => Counted::default(),
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
            put_aside: self.put_aside + other.put_aside,
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
    fn what_it_has_learnt_is_kept_by_settings_of_others() {
        for mode in [Mode::Adaptive, Mode::Clocked, Mode::Auto] {
            let mut values = Values::from(mode);
            let mut waiter = Waiter::new(&values, 64, 0);
            let before = format!("{waiter:?}");
            values.set(Setting::TimerSlackUs, 7).unwrap();
            assert!(waiter.set(&values, 64, Setting::TimerSlackUs, 1_000_000).is_none());
            assert_eq!(format!("{waiter:?}"), before);
            // A setting that concerns the waiter makes it begin anew.
            values.set(Setting::Mode, Mode::Poll as u64).unwrap();
            assert!(waiter.set(&values, 64, Setting::Mode, 1_000_000).is_some());
            assert!(matches!(waiter, Waiter::Poll));
        }
    }
}
