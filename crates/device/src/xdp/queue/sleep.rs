//! What wakes a sleeping engine: the packet sockets, the AF_XDP sockets, and a timer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::Timespec;
use rustix::event::epoll::EventFlags;

use crate::Counters;
use crate::kernel_interface::edge_sleep::{DOWN_POLL_INTERVAL, EdgeSleep};
use crate::xdp::socket::XdpSocket;

/// Polls without a sleep after which the sockets leave the epoll instance: enough that the two
/// system calls per socket cost little.
const POLLS_BEFORE_UNWATCH: u32 = 1 << 12;
/// The interval at which the engine polls for what nothing reports: 1 ms.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// What wakes a sleeping engine.
pub(super) struct Sleep {
    descriptor: EdgeSleep,
    /// `true` while the epoll instance has the AF_XDP sockets. The kernel then calls epoll for each
    /// packet, so they are there only while the engine sleeps now and then.
    watches: bool,
    /// Polls since the last sleep.
    polls: u32,
}

impl Sleep {
    /// Makes the descriptor. `rings`: the packet sockets, which stay in the epoll instance.
    pub(super) fn new<'a>(rings: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Sleep> {
        Ok(Sleep { descriptor: EdgeSleep::new(rings)?, watches: false, polls: 0 })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.fd()
    }

    /// Notes that the engine polled. After many polls without a sleep, the sockets leave the epoll
    /// instance.
    #[inline]
    pub(super) fn polled(&mut self, sockets: &[XdpSocket], counters: &mut Counters) {
        self.polls = self.polls.saturating_add(1);
        if self.polls == POLLS_BEFORE_UNWATCH && std::mem::take(&mut self.watches) {
            for socket in sockets {
                self.descriptor.remove(socket.fd.as_fd(), counters);
            }
        }
    }

    /// Takes the events so far, and makes the descriptor readable with each new one.
    pub(super) fn arm(&mut self, sockets: &[XdpSocket], counters: &mut Counters) -> io::Result<()> {
        self.polls = 0;
        if !self.watches {
            self.watch(sockets, counters)?;
        }
        self.descriptor.take_events(counters);
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
            self.descriptor.remove(socket.fd.as_fd(), counters);
        }
    }

    fn add(&self, socket: &XdpSocket, counters: &mut Counters) -> io::Result<()> {
        let both = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        counters.system_calls += 1;
        self.descriptor.add(socket.fd.as_fd(), both)
    }

    /// Wakes the engine after a while.
    pub(super) fn set_timer(&self, is_down: bool, counters: &mut Counters) {
        let after = if is_down { DOWN_POLL_INTERVAL } else { POLL_INTERVAL };
        let _ = self.descriptor.set_timer(after, counters);
    }
}
