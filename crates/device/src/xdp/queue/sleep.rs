//! Sleeps: the epoll instance that wakes the engine, the sockets in it, and the timer.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::XdpQueue;
use crate::DeviceError;

/// Polls without a sleep after which the driver takes the sockets out of the epoll instance: enough
/// that the two system calls per socket cost little.
pub(super) const POLLS_BEFORE_UNWATCH: u32 = 1 << 12;
/// The interval at which the engine polls for what nothing reports, and while the interface is down:
/// 1 and 100 ms.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const DOWN_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl XdpQueue {
    /// Adds the AF_XDP sockets to the epoll instance, unless they are there. A closed socket leaves
    /// it by itself.
    pub(super) fn watch(&mut self) -> Result<(), DeviceError> {
        if !self.watched {
            self.watched = true;
            let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            for socket in &self.sockets {
                self.counters.system_calls += 1;
                epoll::add(&self.sleep, &socket.fd, epoll::EventData::new_u64(0), both)
                    .map_err(|errno| self.failure("epoll", errno.into()))?;
            }
        }
        Ok(())
    }

    /// Takes the AF_XDP sockets out of the epoll instance.
    pub(super) fn unwatch(&mut self) {
        if std::mem::take(&mut self.watched) {
            for socket in &self.sockets {
                self.counters.system_calls += 1;
                // Only a socket that is not there refuses this.
                let _ = epoll::delete(&self.sleep, &socket.fd);
            }
        }
    }

    /// Sets the timer, if packets are in flight whose completions nothing else reports, or if the
    /// kernel did not take packets for a reason whose end nothing reports.
    pub(super) fn set_timer(&mut self, tx_waiting: bool) {
        let waits = self.unsent || tx_waiting && self.waits_for_kernel;
        if waits || self.zero_copy && self.in_flight.len() > 0 {
            self.counters.system_calls += 1;
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            // An interface that is up again before the link watch looks is no news to it.
            let it_value = if self.down { DOWN_POLL_INTERVAL } else { POLL_INTERVAL };
            let due = Itimerspec { it_interval: none, it_value };
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &due);
        }
    }
}

/// Makes an epoll instance that becomes readable with each new event of a packet socket or the timer.
pub(super) fn sleep_fd<'a>(
    rings: impl Iterator<Item = BorrowedFd<'a>>,
    timer: BorrowedFd<'a>,
) -> io::Result<OwnedFd> {
    let sleep = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for fd in rings.chain([timer]) {
        epoll::add(&sleep, fd, epoll::EventData::new_u64(0), flags)?;
    }
    Ok(sleep)
}

pub(super) fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}
