//! The engine waits: awake, asleep until it is rung, asleep until a time, or asleep until what it has
//! used of the processor is paid.

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{ClockId, clock_gettime};
use towpath_device::{Armed, DeviceError};
use towpath_protocol::counters::{self, Device as Count};
use towpath_protocol::settings::Setting;
use towpath_waiting::{Found, Next, Step};

use crate::engine::Engine;
use crate::resting::DEVICE;

/// Shorter times are not slept for: they are over before a sleep would be.
const SHORTEST_SLEEP_NS: u64 = 1_000;

/// The monotonic clock, in nanoseconds.
pub(crate) fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// How often orders are heard while the engine is throttled: who gives one after the other does not
/// put off the turn behind it for ever.
pub(crate) const HEARD_THROTTLED: usize = 8;

impl Engine {
    /// After a turn that did so much: goes on, spins or sleeps, as the mode says.
    pub(crate) fn pause(&mut self, work: usize) -> Result<(), DeviceError> {
        let now = if self.waiter.needs_time() { self.read_clock() } else { 0 };
        let rung = std::mem::take(&mut self.rung);
        // A batch that was not full took what there was; so did a look at the events of a session.
        let left = self.watch.has_left();
        let drained = self.received.len() < self.batch
            && !self.has_received_left()
            && !self.can_transmit()
            && !left
            && !self.has_orders_left();
        // Events were taken, whatever came of them.
        let found = Found { work: work.max(usize::from(left)), ..self.packets };
        let step = match self.waiter.after(now, found, drained, rung) {
            Next::Take(step) => step,
            Next::Throttle { until } => return self.sleep_throttled(until),
        };
        match step {
            Step::Look => {
                if work == 0 {
                    self.waiter.give_way();
                }
                Ok(())
            }
            Step::Spin { until } => {
                while clock_ns() < until {
                    self.waiter.give_way();
                }
                // As often as a sleep between ticks would hear them.
                self.watch.ask();
                self.woken();
                Ok(())
            }
            Step::Rung => self.sleep_until_rung(),
            Step::Unrung { until } => self.sleep_until(until),
        }
    }

    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now = clock_ns();
        self.now
    }

    /// Announces sleep, looks once more at everything that it would be woken for, and sleeps.
    fn sleep_until_rung(&mut self) -> Result<(), DeviceError> {
        self.publish_device_counters();
        self.watch_device(true)?;
        self.sleeper.prepare();
        // Without a clock the next turn is the next tick.
        let ticks = self.schedule.next_tick().is_some();
        let idle = self.is_idle() && !self.can_transmit() && !ticks;
        let waiting = self.handoff.is_waiting() || self.schedule.blocked() > 0;
        let left = self.next_due().map(|due| due.saturating_sub(clock_ns()));
        if idle && left != Some(0) && self.device.arm(waiting)? == Armed::Sleep {
            counters::add(&mut self.counters, Count::Sleeps as usize, 1);
            self.sleep(left)?;
            self.rung = true;
            self.woken();
        } else {
            self.waiter.stayed();
        }
        // Who may sleep by the clock next does not look again before.
        if self.waiter.has_clock() {
            self.sleeper.awake_by_the_clock();
        } else {
            self.sleeper.awake();
        }
        Ok(())
    }

    /// Sleeps until then: the device is not waited for, and applications ring only for what is
    /// urgent.
    fn sleep_until(&mut self, until: u64) -> Result<(), DeviceError> {
        let until = self.next_due().map_or(until, |due| due.min(until));
        let now = self.read_clock();
        if until > now + SHORTEST_SLEEP_NS {
            self.publish_device_counters();
            self.watch_device(false)?;
            let must_look = self.sleeper.prepare_by_the_clock();
            if !must_look || self.is_idle() {
                counters::add(&mut self.counters, Count::Sleeps as usize, 1);
                self.sleep(Some(until - now))?;
            }
            self.sleeper.awake_by_the_clock();
        }
        self.woken();
        Ok(())
    }

    /// The bound on processor time is reached: sleeps until then, whatever comes and whatever was to
    /// be done meanwhile. No application has a part in how this sleep ends: it says awake, so that
    /// nobody rings; edges of those that ring all the same stay in the epoll; and the turn behind it
    /// looks at everything.
    ///
    /// Orders alone are followed, so that the operator's are heard. An application has orders made,
    /// too, by what it asks the control thread for; so each time what they took is paid for before
    /// the next ones are heard, and after [`HEARD_THROTTLED`] times they wait for the turn.
    fn sleep_throttled(&mut self, mut until: u64) -> Result<(), DeviceError> {
        self.publish_device_counters();
        self.sleeper.awake();
        self.watchdog.slept();
        counters::add(&mut self.counters, Count::Sleeps as usize, 1);
        let (mut deaf, mut heard) = (0, 0);
        loop {
            let now = self.read_clock();
            let end = if now < deaf { until.min(deaf) } else { until };
            if now >= until || self.stop {
                break;
            }
            // What a turn left of them has rung already.
            let left = (self.orders_left || !self.hurrying.is_empty()) && now >= deaf;
            if !left && !self.is_ordered(now >= deaf, end - now)? {
                continue;
            }
            let now = self.read_clock();
            self.waiter.woke(now);
            self.follow_orders();
            let now = self.read_clock();
            let Some(throttled) = self.waiter.throttled(now) else { break };
            heard += 1;
            until = throttled.until;
            deaf = if heard < HEARD_THROTTLED { throttled.deaf } else { until };
        }
        self.watch.ask();
        self.woken();
        Ok(())
    }

    /// Sleeps so long, in nanoseconds, or until there are orders, where those are `heard`. Answers
    /// whether there are.
    fn is_ordered(&self, heard: bool, left: u64) -> Result<bool, DeviceError> {
        let mut polled = [PollFd::new(&*self.wake, PollFlags::IN)];
        let polled = if heard { &mut polled[..] } else { &mut [] };
        match poll(polled, Some(&timespec(left))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) => {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.wake, &mut count);
                Ok(true)
            }
            Err(cause) => Err(self.waiting_failed(cause)),
        }
    }

    fn woken(&mut self) {
        if self.waiter.needs_time() {
            let now = self.read_clock();
            self.waiter.woke(now);
        }
    }

    fn sleep(&mut self, left: Option<u64>) -> Result<(), DeviceError> {
        self.watchdog.slept();
        let timeout = left.map(timespec);
        self.hear(timeout.as_ref())
    }

    /// Whether the device wakes: only changed where the way of sleeping changes.
    fn watch_device(&mut self, watched: bool) -> Result<(), DeviceError> {
        if self.device_watched == watched {
            return Ok(());
        }
        let Some(fd) = self.device.sleep_fd() else { return Ok(()) };
        let flags = if watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(DEVICE), flags)
            .map_err(|cause| self.waiting_failed(cause))?;
        self.device_watched = watched;
        Ok(())
    }

    pub(crate) fn waiting_failed(&self, cause: rustix::io::Errno) -> DeviceError {
        let name = self.device.info().name.clone();
        DeviceError::Failed { name, what: "waiting", cause: cause.into() }
    }

    /// When the engine has something to do by itself, on the monotonic clock in nanoseconds: a
    /// ring that was put off, a packet whose time comes, a look at a device that keeps packets. It
    /// must not sleep longer.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let (ring, packet) = (self.held.next(), self.schedule.next_due());
        let watchdog = self.watchdog.next_due(self.out());
        ring.into_iter().chain(packet).chain(watchdog).min()
    }

    /// A setting of how to wait was changed.
    pub(crate) fn set_waiting(&mut self, setting: Setting) {
        let now = self.read_clock();
        self.sleeper.awake();
        if let Some(counted) = self.waiter.set(&self.values, self.most_waiting, setting, now) {
            self.counted = self.counted.and(counted);
            self.say_whether_it_spins();
        }
        if setting == Setting::TimerSlackUs {
            self.set_timer_slack();
        }
    }

    /// A clock that keeps a processor busy although nothing comes is seldom what was meant.
    pub(crate) fn say_whether_it_spins(&self) {
        if self.waiter.spins_between_ticks() {
            tracing::warn!(
                device = self.device.info().name,
                clock_hz = self.values.get(Setting::ClockHz),
                "no sleep here is as short as a tick: the engine stays awake between ticks, and \
                 takes a processor; a lower clock_hz lets it sleep"
            );
        }
    }

    /// The kernel may let timers of this thread be so much late, to end several sleeps at once.
    pub(crate) fn set_timer_slack(&self) {
        let slack = self.values.get(Setting::TimerSlackUs) * 1000;
        // None at all would be the default.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(slack.max(1)));
    }
}
