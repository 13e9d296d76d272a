//! A descriptor to sleep on that wakes for the wrapped device and at a set time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

pub(crate) struct Sleeper {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The time that the timer is set to.
    due: Option<Instant>,
    /// `true` if the epoll has the wrapped device's descriptor.
    watches: bool,
}

/// Adds a descriptor. The sleeper does not need to know which of the two woke it, so both have the
/// same event data.
fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

impl Sleeper {
    /// Creates a sleeper; `device` is the wrapped device's descriptor.
    pub(crate) fn new(device: BorrowedFd<'_>) -> io::Result<Sleeper> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, device)?;
        watch(&epoll, timer.as_fd())?;
        Ok(Sleeper { epoll, timer, due: None, watches: true })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Sets the wake-up time to `due`, or to none. Returns the number of system calls made.
    pub(crate) fn wake_at(&mut self, due: Option<Instant>, now: Instant) -> io::Result<u64> {
        if due == self.due {
            return Ok(0);
        }
        // A value of zero stops the timer, so a due time becomes one nanosecond from now.
        let left =
            due.map_or(Duration::ZERO, |due| due.duration_since(now).max(Duration::from_nanos(1)));
        let value = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            },
        };
        // This also clears an earlier expiration.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        self.due = due;
        Ok(1)
    }

    /// Sets whether `device`, the one given to [`Sleeper::new`], wakes the thread. Returns the
    /// number of system calls made.
    pub(crate) fn watch(&mut self, device: BorrowedFd<'_>, wanted: bool) -> io::Result<u64> {
        if wanted == self.watches {
            return Ok(0);
        }
        if wanted {
            watch(&self.epoll, device)?;
        } else {
            epoll::delete(&self.epoll, device)?;
        }
        self.watches = wanted;
        Ok(1)
    }
}
