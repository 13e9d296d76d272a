//! A descriptor on which an engine sleeps: an edge-triggered epoll instance with a timer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::Counters;

/// The interval at which the engine tries again to send while the interface is down: 100 ms. The
/// link watch does not report an interface that went down and is up again before the watch reads
/// its state.
pub(crate) const DOWN_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Events that one system call takes off the descriptor: those of all hardware queues.
const EVENTS: usize = 64;

/// The descriptor. Each sleep first takes its events, so only later ones make it readable.
pub(crate) struct EdgeSleep {
    epoll: OwnedFd,
    /// Wakes the engine where nothing else does.
    timer: OwnedFd,
}

impl EdgeSleep {
    /// Makes the descriptor, which becomes readable with each event of the timer and of `sockets`.
    pub(crate) fn new<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<EdgeSleep> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let sleep = EdgeSleep { epoll, timer };
        sleep.add(sleep.timer.as_fd(), EventFlags::IN | EventFlags::ET)?;
        for socket in sockets {
            sleep.add(socket, EventFlags::IN | EventFlags::ET)?;
        }
        Ok(sleep)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Adds a descriptor with the events of it that wake the engine.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, events: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(0), events)?)
    }

    /// Changes the events of a descriptor that wake the engine.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, events: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(0), events)?)
    }

    /// Removes a descriptor, which was added.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>, counters: &mut Counters) {
        counters.system_calls += 1;
        // The descriptor is there, so the kernel does not refuse this.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Takes the events so far: the descriptor becomes readable with each new one.
    pub(crate) fn take_events(&self, counters: &mut Counters) {
        counters.system_calls += 1;
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A call that fails leaves the events, and the engine wakes up once more.
        let _ = epoll::wait(&self.epoll, &mut events[..], Some(&now));
    }

    /// Wakes the engine after a while.
    pub(crate) fn set_timer(&self, after: Timespec, counters: &mut Counters) -> io::Result<()> {
        counters.system_calls += 1;
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let due = Itimerspec { it_interval: none, it_value: after };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &due)?;
        Ok(())
    }
}
