//! What the thread of a switch's host sleeps on.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A descriptor that is readable after a notification, and at a time.
pub(super) struct Doorbell {
    /// Watches both of the others.
    set: OwnedFd,
    bell: OwnedFd,
    timer: OwnedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Doorbell> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        for fd in [&bell, &timer] {
            epoll::add(&set, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Doorbell { set, bell, timer })
    }

    /// Returns a copy of the descriptor.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.set.try_clone()
    }

    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Sets the timer to a time from now; `None`: to none.
    pub(super) fn set_timer(&self, left: Option<Duration>) -> io::Result<()> {
        // The time 0 means: not at all.
        let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
        let it_value = Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time)?;
        Ok(())
    }

    /// Takes all notifications.
    pub(super) fn clear(&self) {
        for fd in [&self.bell, &self.timer] {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }
}
