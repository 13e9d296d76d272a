//! The descriptor by which a program's event loop waits for a network's work.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use towpath_stack::Instant;

/// The time of a timer that is not set, in microseconds.
pub(crate) const NEVER: u64 = u64::MAX;

/// What a program's event loop waits for.
pub(crate) struct WorkFd {
    /// Watches the link's descriptor, the wake-up of other threads, the timer, and `again`.
    set: OwnedFd,
    timer: OwnedFd,
    /// Readable while a turn is due for another reason.
    again: OwnedFd,
    /// The time for which the timer is set, in microseconds of the clock; [`NEVER`]: it is not set.
    /// The thread that drives changes it.
    timer_at: AtomicU64,
    /// The bits of the events for which the set watches the link's descriptor. The thread that drives changes them.
    watched: AtomicU32,
    /// `true` if the program's event loop has left work to a thread that blocks and drives, and has made no turn since.
    is_left: AtomicBool,
}

impl WorkFd {
    pub(crate) fn new(link: &OwnedFd, wake: &OwnedFd) -> std::io::Result<WorkFd> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        // The first turn is due: it arms the link.
        let again = rustix::event::eventfd(1, flags)?;
        for fd in [link, wake, &timer, &again] {
            epoll::add(&set, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        let watched = AtomicU32::new(EventFlags::IN.bits());
        let (timer_at, is_left) = (AtomicU64::new(NEVER), AtomicBool::new(false));
        Ok(WorkFd { set, timer, again, timer_at, watched, is_left })
    }

    /// Makes a turn due.
    pub(crate) fn make_due(&self) {
        let _ = rustix::io::write(&self.again, &1u64.to_ne_bytes());
    }

    /// Makes a turn due if the program's event loop has left work to a thread that blocked: that thread has ended its call.
    /// Each call of a socket comes here, and most of them have not driven.
    pub(crate) fn take_back(&self) {
        if self.is_left.load(Ordering::Relaxed) {
            self.make_due();
        }
    }

    /// Leaves the work to the thread that drives. Call it under the stack's lock, or as that thread.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// Begins a turn: none is due by [`WorkFd::make_due`] any more.
    pub(crate) fn begin(&self) {
        self.is_left.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.again, &mut [0; 8]);
    }

    /// Leaves the link and the timers to a thread that blocks and drives: what it handles is no work of the program's
    /// event loop.
    pub(crate) fn pause(&self, link: &OwnedFd) -> std::io::Result<()> {
        self.leave();
        self.watch_for(link, EventFlags::empty())?;
        self.set_timer(Instant::from_micros(NEVER), NEVER)
    }

    /// Has the descriptor become readable at a time; `now`: the present one. A timer that is set for an earlier time
    /// stays: a connection in use always has one, and setting it again for each of its packets would cost a system
    /// call each.
    pub(crate) fn set_timer(&self, now: Instant, at: u64) -> std::io::Result<()> {
        let set_for = self.timer_at.load(Ordering::Relaxed);
        let has_passed = set_for <= now.as_micros();
        if set_for == at || (!has_passed && set_for < at) {
            return Ok(());
        }
        // A timer that has passed is readable until it is set again; the time 0 means: not at all.
        let left = match at {
            NEVER => Duration::ZERO,
            at => Duration::from_micros(at.saturating_sub(now.as_micros()).max(1)),
        };
        let it_value = Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval, it_value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time)?;
        self.timer_at.store(at, Ordering::Relaxed);
        Ok(())
    }

    /// Watches the link's descriptor for writing, or only for reading.
    pub(crate) fn watch(&self, link: &OwnedFd, writable: bool) -> std::io::Result<()> {
        let out = if writable { EventFlags::OUT } else { EventFlags::empty() };
        self.watch_for(link, EventFlags::IN | out)
    }

    fn watch_for(&self, link: &OwnedFd, events: EventFlags) -> std::io::Result<()> {
        if self.watched.swap(events.bits(), Ordering::Relaxed) != events.bits() {
            epoll::modify(&self.set, link, EventData::new_u64(0), events)?;
        }
        Ok(())
    }
}

impl AsFd for WorkFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_turn_is_due_after_a_thread_that_was_left_the_work() {
        let made = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).unwrap()
        };
        let (link, wake) = (made(), made());
        let work = WorkFd::new(&link, &wake).unwrap();
        let is_due = || {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&work, PollFlags::IN)], Some(&now)).unwrap() == 1
        };
        assert!(is_due(), "the first turn");
        work.begin();
        work.take_back();
        assert!(!is_due(), "no thread has driven");
        work.pause(&link).unwrap();
        rustix::io::write(&link, &1_u64.to_ne_bytes()).unwrap();
        assert!(!is_due(), "a thread drives");
        work.take_back();
        assert!(is_due(), "it has ended its call");
        work.begin();
        work.watch(&link, false).unwrap();
        rustix::io::read(&link, &mut [0; 8]).unwrap();
        assert!(!is_due());
        work.leave();
        work.take_back();
        assert!(is_due(), "a turn was refused meanwhile");
    }
}
