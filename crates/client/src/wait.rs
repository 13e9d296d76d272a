//! Waiting: by polling, by blocking, or in somebody else's epoll.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Lost;
use crate::session::Session;

impl Session {
    /// Waits until a queue set has news: packets, or room that was wanted
    /// ([`Session::want_room`]). Answers `false` when the time is over; `None` waits for ever, and
    /// zero only looks. What was received before and not taken is news too.
    ///
    /// # Errors
    /// [`Lost`], within milliseconds of the server's end.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Lost> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.has_news()? {
                return Ok(true);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) && timeout != Some(Duration::ZERO) {
                return Ok(false);
            }
            if self.arm()? {
                return Ok(true);
            }
            let woken = self.sleep(left);
            self.disarm();
            if !woken? && timeout == Some(Duration::ZERO) {
                return self.has_news();
            }
        }
    }

    /// A queue set that has news: packets that wait, or room that was wanted. The same one until
    /// its packets are taken.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn ready(&mut self) -> Result<Option<u32>, Lost> {
        self.check()?;
        while let Some(queue_set) = self.ready.front().copied() {
            let set = &mut self.queue_sets[queue_set as usize];
            // Looked at after its event was acknowledged: what comes later is a new event.
            match set.receive.observe() {
                Ok(0) if !set.room => {
                    set.ready = false;
                    self.ready.pop_front();
                }
                Ok(_) => {
                    set.room = false;
                    return Ok(Some(queue_set));
                }
                Err(violation) => return Err(self.wrong(violation)),
            }
        }
        Ok(None)
    }

    /// For somebody else's epoll, before each sleep: announces it, and looks once more. `true`:
    /// there is news already, do not sleep. `false`: [`Session::as_fd`] becomes readable when there
    /// is. After the sleep comes [`Session::disarm`].
    ///
    /// # Errors
    /// [`Lost`].
    pub fn arm(&mut self) -> Result<bool, Lost> {
        self.check()?;
        if self.hung_up {
            return if self.has_news()? { Ok(true) } else { Err(self.over()) };
        }
        self.flush()?;
        self.sleeper.prepare();
        let idle = match self.events.is_idle() {
            Ok(idle) => idle,
            Err(violation) => return Err(self.wrong(violation)),
        };
        if idle && self.wanting.is_empty() || !self.has_news()? {
            return Ok(false);
        }
        self.sleeper.awake();
        Ok(true)
    }

    /// After a sleep: nobody needs to ring any more; takes the rings that came.
    pub fn disarm(&mut self) {
        if self.is_parents() && self.sleeper.is_announced() {
            self.sleeper.awake();
        }
    }

    /// Takes events. Whether any queue set has news, new or left over.
    fn has_news(&mut self) -> Result<bool, Lost> {
        self.check()?;
        let (sets, ready) = (&mut self.queue_sets, &mut self.ready);
        let budget = sets.len() as u32;
        let outcome = self.events.take(budget, |queue_set| {
            let set = &mut sets[queue_set as usize];
            if !set.ready {
                set.ready = true;
                ready.push_back(queue_set);
            }
        });
        if let Err(violation) = outcome {
            return Err(self.wrong(violation));
        }
        let mut place = 0;
        while let Some(queue_set) = self.wanting.get(place).copied() {
            self.unsent(queue_set)?;
            let set = &mut self.queue_sets[queue_set as usize];
            if !set.transmit.has_what_it_wanted() {
                place += 1;
                continue;
            }
            self.wanting.swap_remove(place);
            set.room = true;
            if !set.ready {
                set.ready = true;
                self.ready.push_back(queue_set);
            }
        }
        Ok(self.ready()?.is_some())
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<bool, Lost> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        self.statistics.sleeps += 1;
        let mut heard = [PollFd::new(&self.doorbell, PollFlags::IN)];
        // An interrupted sleep is one without news.
        let count = poll(&mut heard, timeout.as_ref()).unwrap_or(0);
        if count == 0 {
            return Ok(false);
        }
        self.take_rings();
        if self.hung_up {
            self.sleeper.awake();
            if self.has_news()? {
                return Ok(true);
            }
            return Err(self.over());
        }
        self.statistics.wake_ups += 1;
        Ok(true)
    }

    /// Empties the doorbell's pipe; for somebody else's epoll, after it became readable.
    pub fn take_rings(&mut self) {
        if !self.is_parents() {
            return;
        }
        let mut bytes = [0; 64];
        loop {
            match rustix::io::read(&self.doorbell, &mut bytes) {
                Ok(0) => {
                    self.hung_up = true;
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
    /// Readable when the server rings, and hung up when it ends. See [`Session::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
