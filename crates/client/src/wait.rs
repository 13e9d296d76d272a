//! Waiting: by a wait strategy, or in the caller's epoll.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use towpath_queue::Violation;
use towpath_waiting::Step;

use crate::clock;
use crate::error::{Lost, OpenError, Refusal};
use crate::news::{Awaited, NewsSource, SessionNews, SourceNews};
use crate::options::WaitStrategy;
use crate::reconnect::Resumable;
use crate::session::Session;
use crate::waiter::Waiter;

/// A time that no wait reaches.
const FAR: Duration = Duration::from_secs(86_400);

/// How often a wait for a source looks for its news while the session waits for another server.
const RESUME_STEP: Duration = Duration::from_millis(1);

impl Session {
    /// Waits until a queue pair has news: packets, or room that the application requested
    /// ([`Sender::want_room`](crate::Sender::want_room)); or an endpoint has: out-of-band messages, or a
    /// new state of its peer ([`Oob::ready`](crate::Oob::ready)); or a tripwire fired
    /// ([`Tripwires::ready`](crate::Tripwires::ready)). It also
    /// returns once after the server has closed an endpoint ([`Session::is_revoked`]). If the
    /// server was killed, the call waits for the next server, and returns `true` once that server
    /// has resumed the session. Returns `false` when the timeout expires. `None` and a deadline
    /// beyond the clock's range never expire; zero only checks. Packets that were received before
    /// and not taken are news too. The client first flushes the transmit queues.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let second = std::time::Duration::from_secs(1);
    /// if session.wait(Some(second))? {
    ///     println!("there is news");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`]: within milliseconds if the server ended in order; after
    /// [`crate::Options::resume_timeout`] if no server follows one that was killed.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Lost> {
        self.wait_on(&mut SessionNews, timeout)
    }

    /// Waits until a source has news. Other news of the session does not end this wait: it stays for
    /// the next [`Session::wait`]. Nor does a server that resumes the session. Returns `false` when
    /// the timeout expires; `None` never expires, and zero only checks.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, source: &mut impl NewsSource) -> Result<(), Box<dyn std::error::Error>> {
    /// session.wait_for(source, None)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Session::wait`], and those of the source.
    pub fn wait_for(
        &mut self,
        source: &mut impl NewsSource,
        timeout: Option<Duration>,
    ) -> Result<bool, Lost> {
        self.wait_on(&mut SourceNews(source), timeout)
    }

    fn wait_on(
        &mut self,
        awaited: &mut impl Awaited,
        timeout: Option<Duration>,
    ) -> Result<bool, Lost> {
        let deadline = timeout.and_then(|timeout| clock::now().checked_add(timeout));
        let mut slept = false;
        self.transmit.flush(&self.status)?;
        loop {
            if awaited.has_news(self)? {
                self.waiter.found(slept);
                return Ok(true);
            }
            if self.status.hung_up() {
                if !self.start_resuming() {
                    return Err(self.status.over());
                }
                let until = match timeout {
                    None => clock::now() + FAR,
                    Some(timeout) => deadline.unwrap_or_else(|| clock::now() + timeout.min(FAR)),
                };
                let ends = awaited.ends_on_resume();
                // A source may have news before there is another server.
                let step = if ends { until } else { until.min(clock::now() + RESUME_STEP) };
                match self.resume(Some(step))? {
                    true if ends => return Ok(true),
                    false if timeout.is_some() && clock::now() >= until => return Ok(false),
                    _ => continue,
                }
            }
            let left = deadline.map(|at| at.saturating_duration_since(clock::now()));
            if left == Some(Duration::ZERO) && timeout != Some(Duration::ZERO) {
                return Ok(false);
            }
            let step =
                if timeout == Some(Duration::ZERO) { Step::Block } else { self.waiter.idle() };
            match step {
                Step::Poll => self.check_server()?,
                Step::Spin { until } if self.waiter.is_timer_driven() => {
                    self.spin_to_the_tick(until, left)?;
                }
                // The thread that would send the awaited packet may need this processor.
                Step::Spin { .. } => rustix::thread::sched_yield(),
                Step::SleepUntil { until } => self.sleep_by_the_clock(until, left)?,
                Step::Block => {
                    if awaited.arm(self)? {
                        self.waiter.found(slept);
                        return Ok(true);
                    }
                    let woken = self.sleep(left);
                    awaited.disarm(self);
                    slept = true;
                    if !woken? && timeout == Some(Duration::ZERO) {
                        return awaited.has_news(self);
                    }
                }
            }
        }
    }

    /// Changes the strategy of [`Session::wait`].
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// session.set_wait_strategy(WaitStrategy::Poll)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`], for example for a clock out of its range; then the old strategy stays in
    /// force.
    pub fn set_wait_strategy(&mut self, waiting: WaitStrategy) -> Result<(), OpenError> {
        self.status.check()?;
        waiting.check().map_err(|wrong| OpenError::Refused {
            refusal: Refusal::Malformed,
            text: format!("set_wait_strategy: {wrong}"),
        })?;
        // This keeps the counts of the old clock.
        self.statistics = self.statistics();
        self.waiter = Waiter::new(waiting);
        self.awake();
        Ok(())
    }

    /// Checks whether the server lives, once in many calls, for a client that
    /// polls.
    fn check_server(&mut self) -> Result<(), Lost> {
        std::hint::spin_loop();
        if self.waiter.is_time_to_poll() {
            self.sleep(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Stays awake until the tick, or for `left` if that is shorter: a sleep would take longer.
    fn spin_to_the_tick(&mut self, until: u64, left: Option<Duration>) -> Result<(), Lost> {
        self.transmit.notify_deferred();
        let left = left.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let until = until.min(self.waiter.now().saturating_add(left));
        while self.waiter.now() < until {
            // The thread that would send the awaited packet may need this processor.
            rustix::thread::sched_yield();
        }
        self.waiter.woke();
        if self.waiter.is_time_to_check() {
            self.sleep(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Sleeps until the tick, or for `left` if that is shorter. The server notifies the client only
    /// when half of its buffers are used.
    fn sleep_by_the_clock(&mut self, until: u64, left: Option<Duration>) -> Result<(), Lost> {
        self.transmit.flush(&self.status)?;
        self.transmit.notify_deferred();
        let to_tick = Duration::from_nanos(until.saturating_sub(self.waiter.now()));
        let mut must_check = false;
        for lane in &mut self.event_lanes {
            must_check |= lane.sleeper.prepare_timer_driven();
        }
        let woken = if !must_check || self.is_idle().unwrap_or(false) {
            self.sleep(Some(left.map_or(to_tick, |left| left.min(to_tick))))
        } else {
            Ok(false)
        };
        self.event_lanes.iter_mut().for_each(|lane| lane.sleeper.awake_timer_driven());
        self.waiter.woke();
        woken.map(|_| ())
    }

    /// Announces a sleep in the caller's epoll, and checks once more; the caller calls this before
    /// each sleep. `true`: there is news already, so the caller does not sleep. `false`:
    /// [`Session::as_fd`] becomes readable when there is news. After the sleep the caller calls
    /// [`Session::disarm`].
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// if !session.arm()? {
    ///     // Here the program sleeps in its epoll until `session.as_fd()` is readable.
    ///     session.disarm();
    ///     session.take_notifications();
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn arm(&mut self) -> Result<bool, Lost> {
        self.status.check()?;
        if self.status.hung_up() {
            return match self.has_news()? {
                true => Ok(true),
                false if self.start_resuming() => self.resume(None),
                false => Err(self.status.over()),
            };
        }
        self.transmit.flush(&self.status)?;
        self.transmit.notify_deferred();
        self.event_lanes.iter_mut().for_each(|lane| lane.sleeper.prepare());
        let idle = match self.is_idle() {
            Ok(idle) => idle,
            Err(violation) => return Err(self.status.wrong(violation)),
        };
        let none_left = self.ready.is_empty()
            && self.oob.as_ref().is_none_or(|oob| oob.has_no_news())
            && self.apertures.as_ref().is_none_or(|one| one.has_no_news());
        if idle && none_left || !self.has_news()? {
            return Ok(false);
        }
        self.awake();
        Ok(true)
    }

    /// Announces a sleep that the news of a source ends, and checks once more. Returns `true` if
    /// there is news already.
    pub(crate) fn arm_for(&mut self, source: &mut impl NewsSource) -> Result<bool, Lost> {
        source.prepare_sleep(self)?;
        self.transmit.flush(&self.status)?;
        self.transmit.notify_deferred();
        self.event_lanes.iter_mut().for_each(|lane| lane.sleeper.prepare());
        // Further events end the sleep. The news of those taken here is for another wait.
        self.take_events()?;
        if source.has_news(self)? {
            source.end_sleep(self);
            self.awake();
            return Ok(true);
        }
        Ok(false)
    }

    /// Marks this side awake for all engines.
    fn awake(&mut self) {
        self.event_lanes.iter_mut().for_each(|lane| lane.sleeper.awake());
    }

    /// Returns `true` if no engine has an event for this side.
    fn is_idle(&mut self) -> Result<bool, Violation> {
        let mut idle = true;
        for lane in &mut self.event_lanes {
            idle &= lane.events.is_idle()?;
        }
        Ok(idle)
    }

    /// Ends an announced sleep, so that the server suppresses further notifications.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) {
    /// session.disarm();
    /// # }
    /// ```
    pub fn disarm(&mut self) {
        if self.status.is_parents() && self.event_lanes[0].sleeper.is_announced() {
            self.awake();
        }
    }

    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) -> Result<bool, Lost> {
        let is_poll = timeout == Some(Duration::ZERO);
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        self.statistics.sleeps += u64::from(!is_poll);
        let mut checked_at = [PollFd::new(&self.doorbell, PollFlags::IN)];
        // An interrupted sleep counts as a sleep without news.
        let count = poll(&mut checked_at, timeout.as_ref()).unwrap_or(0);
        if count == 0 {
            return Ok(false);
        }
        self.take_notifications();
        if self.status.hung_up() {
            // The caller takes what news is left, and then waits for another server.
            self.awake();
            return Ok(true);
        }
        self.statistics.wake_ups += 1;
        Ok(true)
    }

    /// Empties the doorbell. A caller with its own epoll calls this after the doorbell became
    /// readable.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) {
    /// session.take_notifications();
    /// # }
    /// ```
    pub fn take_notifications(&mut self) {
        if !self.status.is_parents() {
            return;
        }
        let mut bytes = [0; 64];
        loop {
            match rustix::io::read(&self.doorbell, &mut bytes) {
                Ok(0) => {
                    self.status.set_hung_up(true);
                    return;
                }
                Ok(count) if count < bytes.len() => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Session {
    /// Returns a descriptor that becomes readable when the server notifies the client, and when the
    /// server ends. It stays the same when another server resumes the session. See
    /// [`Session::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.resumable.as_ref().map_or_else(|| self.doorbell.as_fd(), Resumable::ready)
    }
}
