//! The engine's waiting: awake, asleep until a notification, asleep until a deadline, or asleep
//! until the processor time that it has used is paid for.

mod wake_set;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_device::{Armed, DeviceError};
use towpath_protocol::counters::Device as Count;
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::OwnWords;
use towpath_queue::doorbell::Sleeper;
use towpath_waiting::{Found, Next, Step};

use crate::clock::{clock_ns, timespec};
use crate::device_counters::DeviceCounters;
use crate::port::DevicePort;
use crate::sessions::SessionTable;
use crate::waiter::{Counted, Waiter};
use wake_set::WakeSet;

pub use wake_set::wake_data;

/// The shortest time that the engine sleeps for; shorter times pass before a sleep would begin.
const SHORTEST_SLEEP_NS: u64 = 1_000;

/// How often a throttled engine executes commands, so that a stream of commands cannot delay the
/// next poll iteration forever.
pub(crate) const COMMAND_ROUNDS_THROTTLED: usize = 8;

/// What a poll iteration left behind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leftovers {
    /// `true` if commands, or work that follows from them, are left.
    pub(crate) commands: bool,
    /// `true` if received packets are left.
    pub(crate) received: bool,
    /// `true` if there is something to send that need not wait.
    pub(crate) to_send: bool,
    /// `true` if a queue pair waits for the next poll iteration, which is the next tick.
    pub(crate) tick: bool,
    /// `true` if packets wait for room in the device.
    pub(crate) for_room: bool,
    /// The time of the engine's next own task, on the monotonic clock in nanoseconds. The engine
    /// must not sleep longer.
    pub(crate) due: Option<u64>,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The next poll iteration begins.
    Poll,
    /// The engine is throttled. It calls [`EngineWait::continue_throttled`].
    Throttled,
    /// The engine is throttled. It executes commands, and calls [`EngineWait::continue_throttled`].
    Commands,
}

/// The other parts of the engine that a sleep concerns.
pub(crate) struct WaitContext<'a> {
    pub(crate) port: &'a mut DevicePort,
    pub(crate) sessions: &'a mut SessionTable,
    pub(crate) counters: &'a mut DeviceCounters,
}

/// A sleep of a throttled engine.
#[derive(Clone, Copy, Debug)]
struct Throttle {
    /// The time until which the engine sleeps, in nanoseconds.
    until: u64,
    /// The time until which it executes no commands.
    no_commands_until: u64,
    /// The times that it executed commands.
    command_rounds: usize,
}

/// The wait strategy, the epoll set and the sleep flag.
#[derive(Debug)]
pub(crate) struct EngineWait {
    waiter: Waiter,
    /// Counts of waiters that the engine has replaced.
    counted: Counted,
    sleeper: Sleeper,
    wakes: WakeSet,
    /// Packets that may wait in the device.
    most_waiting: u64,
    /// The clock's ticks that the engine already counted.
    ticks: u64,
    /// `true` if the engine has just woken from a sleep that a notification can end.
    woken_by_notification: bool,
    throttle: Option<Throttle>,
    /// The latest reading of the clock, in nanoseconds, if the next poll iteration may begin with it.
    clock_reading: Option<u64>,
}

impl EngineWait {
    /// Makes the epoll set, which `wake` and the device's descriptor can end.
    ///
    /// # Errors
    /// Fails if descriptors are not available.
    pub(crate) fn new(
        port: &DevicePort,
        flag: OwnWords,
        wake: Arc<OwnedFd>,
        values: &Values,
    ) -> Result<EngineWait, DeviceError> {
        let most_waiting = port.most_waiting();
        Ok(EngineWait {
            waiter: Waiter::new(values, most_waiting, clock_ns()),
            counted: Counted::default(),
            sleeper: Sleeper::new(flag),
            wakes: WakeSet::new(port, wake)?,
            most_waiting,
            ticks: 0,
            woken_by_notification: false,
            throttle: None,
            clock_reading: None,
        })
    }

    /// Also writes the sleep flag into a user's state page.
    pub(crate) fn add_flag(&mut self, user: u32, flag: OwnWords) {
        self.sleeper.add(user, flag);
    }

    /// Writes the sleep flag into a user's state page no more.
    pub(crate) fn remove_flag(&mut self, user: u32) {
        self.sleeper.remove(user);
    }

    /// Returns the descriptors that end a sleep.
    pub(crate) fn wakes(&self) -> &WakeSet {
        &self.wakes
    }

    /// Returns `true` if there may be commands whose notification the engine took, and forgets it.
    pub(crate) fn take_commands(&mut self) -> bool {
        self.wakes.take_commands()
    }

    /// Returns the counts of the wait strategies.
    pub(crate) fn counts(&self) -> Counted {
        self.counted.and(self.waiter.counted())
    }

    /// Returns the ticks since the last call: those of the clock, or 1 without a clock.
    #[inline]
    pub(crate) fn ticks(&mut self) -> u64 {
        let Waiter::TimerDriven(clock) = &self.waiter else { return 1 };
        let ticks = clock.counts.kept + clock.counts.missed;
        // A newly set clock starts at zero.
        let new = ticks.saturating_sub(self.ticks);
        self.ticks = ticks;
        new
    }

    /// Decides the next step after a poll iteration that found `found`. `drained`: the iteration
    /// left nothing behind.
    pub(crate) fn after(&mut self, found: Found, drained: bool) -> Next {
        self.clock_reading = self.waiter.needs_time().then(clock_ns);
        let by_notification = std::mem::take(&mut self.woken_by_notification);
        let now = self.clock_reading.unwrap_or(0);
        let next = self.waiter.after(now, found, drained, by_notification);
        if found.work == 0 && matches!(next, Next::Take(Step::Poll)) {
            self.waiter.give_way();
            // Other threads may have run for milliseconds.
            self.clock_reading = None;
        }
        next
    }

    /// Returns the time at which a poll iteration begins. A clock that is not read in user space (HPET, as
    /// in some virtual machines) takes microseconds: the wait strategy's reading serves an engine that goes on.
    pub(crate) fn take_time(&mut self) -> u64 {
        self.clock_reading.take().unwrap_or_else(clock_ns)
    }

    /// Continues, spins or sleeps.
    ///
    /// # Errors
    /// Fails if the kernel or the device refuses to wait.
    pub(crate) fn sleep(
        &mut self,
        next: Next,
        left: &Leftovers,
        context: &mut WaitContext<'_>,
    ) -> Result<Woken, DeviceError> {
        match next {
            Next::Take(Step::Poll) => {}
            Next::Take(Step::Spin { until }) => {
                while clock_ns() < until {
                    self.waiter.give_way();
                }
                // The engine then executes commands as often as with a sleep between ticks.
                context.sessions.ask_next();
                self.woken();
            }
            Next::Take(Step::Block) => self.sleep_until_notified(left, context)?,
            Next::Take(Step::SleepUntil { until }) => self.sleep_until(until, left, context)?,
            Next::Throttle { until } => {
                self.sleeper.awake();
                context.port.slept();
                context.counters.add(Count::Sleeps, 1);
                self.throttle = Some(Throttle { until, no_commands_until: 0, command_rounds: 0 });
                return Ok(Woken::Throttled);
            }
        }
        Ok(Woken::Poll)
    }

    /// Announces sleep, checks every source of a wake-up once more, and sleeps. Parked sessions
    /// notify whether or not the engine sleeps. A command that arrived meanwhile has made `wake`
    /// readable, or is among those left over.
    fn sleep_until_notified(
        &mut self,
        left: &Leftovers,
        context: &mut WaitContext<'_>,
    ) -> Result<(), DeviceError> {
        self.wakes.watch_device(true, context.port)?;
        self.sleeper.prepare();
        let idle = context.sessions.is_idle()
            && !left.commands
            && !left.received
            && !left.to_send
            && !left.tick;
        let time = left.due.map(|due| due.saturating_sub(clock_ns()));
        if idle && time != Some(0) && context.port.arm(left.for_room)? == Armed::Sleep {
            self.sleep_for(time, context)?;
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
    fn sleep_until(
        &mut self,
        until: u64,
        left: &Leftovers,
        context: &mut WaitContext<'_>,
    ) -> Result<(), DeviceError> {
        let until = left.due.map_or(until, |due| due.min(until));
        let now = clock_ns();
        if until > now + SHORTEST_SLEEP_NS {
            self.wakes.watch_device(false, context.port)?;
            let must_check = self.sleeper.prepare_timer_driven();
            if !must_check || !left.commands && !left.received && context.sessions.is_idle() {
                self.sleep_for(Some(until - now), context)?;
            }
            self.sleeper.awake_timer_driven();
        }
        self.woken();
        Ok(())
    }

    /// Continues the sleep of a throttled engine. The engine has reached the bound on its processor
    /// time, and sleeps until that is paid for, whatever work arrives or is pending. Applications
    /// have no influence on the end of this sleep. The engine advertises itself as awake, which
    /// suppresses notifications. Edges of clients that notify all the same stay in the epoll set,
    /// and the next poll iteration checks everything.
    ///
    /// The engine executes only commands, so that an operator can still change settings. An
    /// application also causes commands, by its requests to the control thread. The engine
    /// therefore pays for the time that commands took before it executes the next ones. After
    /// [`COMMAND_ROUNDS_THROTTLED`] times, further commands wait for the poll iteration.
    ///
    /// `commands`: there are commands left whose notification the engine already took.
    ///
    /// # Errors
    /// Fails if the kernel refuses to wait.
    pub(crate) fn continue_throttled(
        &mut self,
        commands: bool,
        context: &mut WaitContext<'_>,
    ) -> Result<Woken, DeviceError> {
        let Some(throttle) = self.throttle else { return Ok(Woken::Poll) };
        loop {
            let now = clock_ns();
            let Throttle { until, no_commands_until, .. } = throttle;
            if now >= until {
                break;
            }
            let takes_commands = now >= no_commands_until;
            let end = if takes_commands { until } else { until.min(no_commands_until) };
            let left = commands && takes_commands;
            if left || self.wakes.has_command(takes_commands, end - now, context.port)? {
                self.waiter.woke(clock_ns());
                return Ok(Woken::Commands);
            }
        }
        self.throttle = None;
        context.sessions.ask_next();
        self.woken();
        Ok(Woken::Poll)
    }

    /// Returns `true` if the engine has begun the sleep of a throttled engine, and not ended it.
    #[cfg(test)]
    pub(crate) fn is_throttled(&self) -> bool {
        self.throttle.is_some()
    }

    /// Records that a throttled engine executed commands.
    pub(crate) fn executed(&mut self) {
        let Some(throttle) = &mut self.throttle else { return };
        throttle.command_rounds += 1;
        // Another strategy has no throttle, and its sleep ends.
        let Some(throttled) = self.waiter.throttled(clock_ns()) else {
            throttle.until = 0;
            return;
        };
        throttle.until = throttled.until;
        let takes_more = throttle.command_rounds < COMMAND_ROUNDS_THROTTLED;
        throttle.no_commands_until = if takes_more { throttled.deaf } else { throttled.until };
    }

    fn woken(&mut self) {
        self.clock_reading = self.waiter.has_clock().then(clock_ns);
        if let Some(now) = self.clock_reading {
            self.waiter.woke(now);
        }
    }

    fn sleep_for(
        &mut self,
        left: Option<u64>,
        context: &mut WaitContext<'_>,
    ) -> Result<(), DeviceError> {
        context.counters.add(Count::Sleeps, 1);
        context.port.slept();
        self.wakes.take_notifications(left.map(timespec).as_ref(), context.port, context.sessions)
    }

    /// Asks for notifications without a sleep.
    ///
    /// # Errors
    /// Fails if the kernel refuses to wait.
    pub(crate) fn ask(&mut self, context: &mut WaitContext<'_>) -> Result<(), DeviceError> {
        self.wakes.take_notifications(Some(&timespec(0)), context.port, context.sessions)
    }

    /// Applies a changed setting of the wait strategy.
    pub(crate) fn set(&mut self, setting: Setting, values: &Values, port: &DevicePort) {
        self.sleeper.awake();
        if let Some(counted) = self.waiter.set(values, self.most_waiting, setting, clock_ns()) {
            self.counted = self.counted.and(counted);
            self.warn_if_it_spins(values, port);
        }
        if setting == Setting::TimerSlackUs {
            set_timer_slack(values);
        }
    }

    /// Prepares the engine's thread, which calls this once.
    pub(crate) fn begin(&self, values: &Values, port: &DevicePort) {
        set_timer_slack(values);
        self.warn_if_it_spins(values, port);
    }

    /// Logs a warning if the engine stays awake between the clock's ticks. It then keeps a
    /// processor busy without traffic, which is seldom intended.
    fn warn_if_it_spins(&self, values: &Values, port: &DevicePort) {
        if self.waiter.spins_between_ticks() {
            tracing::warn!(
                device = port.name(),
                tick_hz = values.get(Setting::TickHz),
                "no sleep here is as short as a tick: the engine stays awake between ticks, and \
                 takes a processor; a lower tick_hz lets it sleep"
            );
        }
    }
}

/// Sets the timer slack: the kernel may delay this thread's timers by it, to end several sleeps at
/// once.
fn set_timer_slack(values: &Values) {
    let slack = values.get(Setting::TimerSlackUs) * 1000;
    // Zero would select the default slack.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(slack.max(1)));
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use towpath_device_testing::loopback;
    use towpath_memory::Region;
    use towpath_protocol::layout::STATE_WORDS;

    use super::*;
    use crate::testing::session;
    use crate::waiter::WaitStrategy;

    struct World {
        port: DevicePort,
        sessions: SessionTable,
        counters: DeviceCounters,
        wait: EngineWait,
        wake: Arc<OwnedFd>,
        _far: loopback::LoopbackDevice,
    }

    impl World {
        fn new() -> World {
            let values = Values::from(WaitStrategy::Block);
            let (mut near, far) = loopback::pair(&loopback::Config::default()).unwrap();
            let (port, _) = DevicePort::start(&mut near, 0, 64, false, &values).unwrap();
            let state = Region::private(STATE_WORDS * 8).unwrap();
            let (counters, flag) = DeviceCounters::new(state, 1);
            let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
            let wait = EngineWait::new(&port, flag, wake.clone(), &values).unwrap();
            let sessions = SessionTable::default();
            World { port, sessions, counters, wait, wake, _far: far }
        }

        /// Waits after an idle poll iteration. Returns `true` if the engine slept.
        fn sleep(&mut self, left: &Leftovers) -> bool {
            let before = self.counters.get(Count::Sleeps);
            let next = self.wait.after(Found::default(), true);
            let (port, sessions) = (&mut self.port, &mut self.sessions);
            let context = &mut WaitContext { port, sessions, counters: &mut self.counters };
            assert_eq!(self.wait.sleep(next, left, context).unwrap(), Woken::Poll);
            self.counters.get(Count::Sleeps) > before
        }
    }

    #[test]
    fn the_engine_does_not_sleep_over_anything_left() {
        let mut world = World::new();
        let past = Some(1);
        for left in [
            Leftovers { commands: true, ..Leftovers::default() },
            Leftovers { received: true, ..Leftovers::default() },
            Leftovers { to_send: true, ..Leftovers::default() },
            Leftovers { tick: true, ..Leftovers::default() },
            Leftovers { due: past, ..Leftovers::default() },
        ] {
            assert!(!world.sleep(&left), "{left:?}");
        }
        let soon = Leftovers { due: Some(clock_ns() + 3_000_000), ..Leftovers::default() };
        assert!(world.sleep(&soon));
        assert!(!world.wait.take_commands());
    }

    #[test]
    fn an_engine_that_goes_on_begins_with_the_wait_strategys_time() {
        let mut world = World::new();
        world.wait.set(Setting::Wait, &Values::from(WaitStrategy::SpinThenBlock), &world.port);
        let before = clock_ns();
        world.wait.after(Found { work: 1, packets: 1, received: 0 }, true);
        let after = clock_ns();
        let begins = world.wait.take_time();
        assert!((before..=after).contains(&begins), "{begins} is not within {before} to {after}");
        assert!(world.wait.take_time() >= after, "a reading counts for one iteration");
        // One that has slept in between reads it again.
        let next = world.wait.after(Found::default(), true);
        assert_eq!(next, Next::Take(Step::Block));
        let before = clock_ns();
        rustix::io::write(&*world.wake, &1u64.to_ne_bytes()).unwrap();
        let (port, sessions) = (&mut world.port, &mut world.sessions);
        let context = &mut WaitContext { port, sessions, counters: &mut world.counters };
        world.wait.sleep(next, &Leftovers::default(), context).unwrap();
        assert!(world.wait.take_time() >= before);
    }

    #[test]
    fn commands_end_a_sleep() {
        let mut world = World::new();
        rustix::io::write(&*world.wake, &1u64.to_ne_bytes()).unwrap();
        assert!(world.sleep(&Leftovers::default()));
        assert!(world.wait.take_commands() && !world.wait.take_commands());
    }

    #[test]
    fn news_of_a_session_keeps_the_engine_awake() {
        let mut world = World::new();
        let (session, mut application) = session(1);
        let key = world.sessions.reserve();
        world.sessions.insert(key, session);
        application.mark();
        assert!(!world.sleep(&Leftovers::default()));
    }
}
