//! The descriptor on which the engine sleeps: an epoll instance of the sockets, and a timer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::Counters;
use crate::xdp::socket::XdpSocket;

/// Events that one system call takes off the descriptor: those of all hardware queues.
const EVENTS: usize = 64;
/// Polls without a sleep after which the sockets leave the epoll instance: enough that the two
/// system calls per socket cost little.
const POLLS_BEFORE_UNWATCH: u32 = 1 << 12;
/// The interval at which the engine polls for what nothing reports, and while the interface is
/// down: 1 and 100 ms.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const DOWN_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What wakes a sleeping engine.
pub(super) struct Sleep {
    /// Edge-triggered. Each sleep first takes its events, so only later ones make it readable.
    epoll: OwnedFd,
    /// Wakes the engine where nothing else does.
    timer: OwnedFd,
    /// `true` while the epoll instance has the AF_XDP sockets. The kernel then calls epoll for each
    /// packet, so they are there only while the engine sleeps now and then.
    watches: bool,
    /// Polls since the last sleep.
    polls: u32,
}

impl Sleep {
    /// Makes the descriptor. `rings`: the packet sockets, which stay in the epoll instance.
    pub(super) fn new<'a>(rings: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Sleep> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let add = |fd: BorrowedFd<'_>| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), flags).map_err(io::Error::from)
        };
        add(timer.as_fd())?;
        rings.into_iter().try_for_each(add)?;
        Ok(Sleep { epoll, timer, watches: false, polls: 0 })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Notes that the engine polled. After many polls without a sleep, the sockets leave the epoll
    /// instance.
    #[inline]
    pub(super) fn polled(&mut self, sockets: &[XdpSocket], counters: &mut Counters) {
        self.polls = self.polls.saturating_add(1);
        if self.polls == POLLS_BEFORE_UNWATCH && std::mem::take(&mut self.watches) {
            for socket in sockets {
                counters.system_calls += 1;
                // The socket is there, so the kernel does not refuse this.
                let _ = epoll::delete(&self.epoll, &socket.fd);
            }
        }
    }

    /// Takes the events so far, and makes the descriptor readable with each new one.
    pub(super) fn arm(&mut self, sockets: &[XdpSocket], counters: &mut Counters) -> io::Result<()> {
        self.polls = 0;
        if !self.watches {
            self.watch(sockets, counters)?;
        }
        counters.system_calls += 1;
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A call that fails leaves the events, and the engine wakes up once more.
        let _ = epoll::wait(&self.epoll, &mut events[..], Some(&now));
        Ok(())
    }

    /// Adds new sockets. Closed ones leave the epoll instance by themselves.
    pub(super) fn watch(
        &mut self,
        sockets: &[XdpSocket],
        counters: &mut Counters,
    ) -> io::Result<()> {
        sockets.iter().try_for_each(|socket| self.add(socket, counters))?;
        self.watches = true;
        Ok(())
    }

    /// Adds one more socket, if the others are there.
    pub(super) fn watch_more(&self, socket: &XdpSocket, counters: &mut Counters) -> io::Result<()> {
        if self.watches { self.add(socket, counters) } else { Ok(()) }
    }

    /// Removes a socket that another thread will close.
    pub(super) fn unwatch(&self, socket: &XdpSocket, counters: &mut Counters) {
        if self.watches {
            counters.system_calls += 1;
            // The socket is there, so the kernel does not refuse this.
            let _ = epoll::delete(&self.epoll, &socket.fd);
        }
    }

    fn add(&self, socket: &XdpSocket, counters: &mut Counters) -> io::Result<()> {
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        counters.system_calls += 1;
        Ok(epoll::add(&self.epoll, &socket.fd, epoll::EventData::new_u64(0), both)?)
    }

    /// Wakes the engine after a while.
    pub(super) fn set_timer(&self, is_down: bool, counters: &mut Counters) {
        counters.system_calls += 1;
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The link watch does not report an interface that went down and is up again before the
        // watch reads its state.
        let it_value = if is_down { DOWN_POLL_INTERVAL } else { POLL_INTERVAL };
        let due = Itimerspec { it_interval: none, it_value };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &due);
    }
}
