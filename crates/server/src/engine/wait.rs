//! The engine's waiting: awake, asleep until a notification, asleep until a deadline, or asleep
//! until the processor time that it has used is paid for.

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::time::{ClockId, clock_gettime};
use towpath_device::{Armed, DeviceError};
use towpath_protocol::counters::{self, Device as Count};
use towpath_protocol::settings::Setting;
use towpath_waiting::{Found, Next, Step};

use crate::engine::Engine;
use crate::engine::parking::DEVICE;

/// The shortest time that the engine sleeps for; shorter times pass before a sleep would begin.
const SHORTEST_SLEEP_NS: u64 = 1_000;

/// Returns the monotonic clock's time, in nanoseconds.
pub(crate) fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// How often a throttled engine executes commands, so that a stream of commands cannot delay the
/// next poll iteration forever.
pub(crate) const HEARD_THROTTLED: usize = 8;

impl Engine {
    /// Continues, spins or sleeps after a poll iteration that did `work`, as the strategy says.
    pub(crate) fn pause(&mut self, work: usize) -> Result<(), DeviceError> {
        let now = if self.waiter.needs_time() { self.read_clock() } else { 0 };
        let woken_by_notification = std::mem::take(&mut self.woken_by_notification);
        // A batch that was not full took every packet there was. So did a poll of a session's
        // events.
        let left = self.active.has_left();
        let drained = self.received.len() < self.rx_batch
            && !self.has_received_left()
            && !self.can_transmit()
            && !left
            && !self.has_commands_left();
        // Taken events count as work, even if they led to no packet.
        let found = Found { work: work.max(usize::from(left)), ..self.packets };
        let step = match self.waiter.after(now, found, drained, woken_by_notification) {
            Next::Take(step) => step,
            Next::Throttle { until } => return self.sleep_throttled(until),
        };
        match step {
            Step::Poll => {
                if work == 0 {
                    self.waiter.give_way();
                }
                Ok(())
            }
            Step::Spin { until } => {
                while clock_ns() < until {
                    self.waiter.give_way();
                }
                // The engine then executes commands as often as with a sleep between ticks.
                self.active.ask();
                self.woken();
                Ok(())
            }
            Step::Block => self.sleep_until_notified(),
            Step::SleepUntil { until } => self.sleep_until(until),
        }
    }

    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now = clock_ns();
        self.now
    }

    /// Announces sleep, checks every source of a wake-up once more, and sleeps.
    fn sleep_until_notified(&mut self) -> Result<(), DeviceError> {
        self.publish_device_counters();
        self.watch_device(true)?;
        self.sleeper.prepare();
        // Without a clock the next poll iteration is the next tick.
        let ticks = self.schedule.next_tick().is_some();
        let idle = self.is_idle() && !self.can_transmit() && !ticks;
        let waiting = self.handoff.is_waiting() || self.schedule.blocked() > 0;
        let left = self.next_due().map(|due| due.saturating_sub(clock_ns()));
        if idle && left != Some(0) && self.device.arm(waiting)? == Armed::Sleep {
            counters::add(&mut self.counters, Count::Sleeps as usize, 1);
            self.sleep(left)?;
            self.woken_by_notification = true;
            self.woken();
        } else {
            self.waiter.stayed();
        }
        // With a clock, the next sleep may follow without another check of the queues. Urgent
        // packets must therefore cause notifications from now on.
        if self.waiter.has_clock() {
            self.sleeper.awake_timer_driven();
        } else {
            self.sleeper.awake();
        }
        Ok(())
    }

    /// Sleeps until a deadline. The device does not wake the engine, and applications notify it
    /// only of urgent packets.
    fn sleep_until(&mut self, until: u64) -> Result<(), DeviceError> {
        let until = self.next_due().map_or(until, |due| due.min(until));
        let now = self.read_clock();
        if until > now + SHORTEST_SLEEP_NS {
            self.publish_device_counters();
            self.watch_device(false)?;
            let must_check = self.sleeper.prepare_timer_driven();
            if !must_check || self.is_idle() {
                counters::add(&mut self.counters, Count::Sleeps as usize, 1);
                self.sleep(Some(until - now))?;
            }
            self.sleeper.awake_timer_driven();
        }
        self.woken();
        Ok(())
    }

    /// Sleeps until a deadline because the engine has reached the bound on its processor time,
    /// whatever work arrives or is pending. Applications have no influence on the end of this
    /// sleep. The engine advertises itself as awake, which suppresses notifications. Edges of
    /// clients that notify all the same stay in the epoll set, and the next poll iteration checks
    /// everything.
    ///
    /// The engine executes only commands, so that an operator can still change settings. An
    /// application also causes commands, by its requests to the control thread. The engine
    /// therefore pays for the time that commands took before it executes the next ones. After
    /// [`HEARD_THROTTLED`] times, further commands wait for the poll iteration.
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
            // The notification for commands left over from a poll iteration is already consumed.
            let left = (self.commands_left || !self.hurrying.is_empty()) && now >= deaf;
            if !left && !self.has_command(now >= deaf, end - now)? {
                continue;
            }
            let now = self.read_clock();
            self.waiter.woke(now);
            self.execute_commands();
            let now = self.read_clock();
            let Some(throttled) = self.waiter.throttled(now) else { break };
            heard += 1;
            until = throttled.until;
            deaf = if heard < HEARD_THROTTLED { throttled.deaf } else { until };
        }
        self.active.ask();
        self.woken();
        Ok(())
    }

    /// Sleeps for a time, in nanoseconds, or until a command arrives if the engine is to hear
    /// commands (`heard`). Returns `true` if there are commands.
    fn has_command(&self, heard: bool, left: u64) -> Result<bool, DeviceError> {
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
        self.take_notifications(timeout.as_ref())
    }

    /// Sets whether the device wakes the engine. The setting changes only with the kind of sleep.
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

    /// Returns the time of the engine's next own task, on the monotonic clock in nanoseconds. The
    /// task is a deferred notification, a packet whose time comes, or a check of a device that
    /// keeps packets. The engine must not sleep longer.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let (notify, packet) = (self.deferred.next(), self.schedule.next_due());
        let watchdog = self.watchdog.next_due(self.out());
        notify.into_iter().chain(packet).chain(watchdog).min()
    }

    /// Applies a changed setting of the wait strategy.
    pub(crate) fn set_wait_strategy(&mut self, setting: Setting) {
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

    /// Logs a warning if the engine stays awake between the clock's ticks. It then keeps a
    /// processor busy without traffic, which is seldom intended.
    pub(crate) fn say_whether_it_spins(&self) {
        if self.waiter.spins_between_ticks() {
            tracing::warn!(
                device = self.device.info().name,
                tick_hz = self.values.get(Setting::TickHz),
                "no sleep here is as short as a tick: the engine stays awake between ticks, and \
                 takes a processor; a lower tick_hz lets it sleep"
            );
        }
    }

    /// Sets the timer slack: the kernel may delay this thread's timers by it, to end several sleeps
    /// at once.
    pub(crate) fn set_timer_slack(&self) {
        let slack = self.values.get(Setting::TimerSlackUs) * 1000;
        // Zero would select the default slack.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(slack.max(1)));
    }
}
