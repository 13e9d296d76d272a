//! What a thread sleeps on that drives for all: the device's descriptor, and a bell for what comes
//! from other threads while it sleeps, which the device does not know of.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};

/// Wakes who sleeps. It is the driver's: whoever is inside rings it.
pub(super) struct Bell {
    eventfd: OwnedFd,
    sleeps: Option<Sleeps>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleeps {
    /// For packets alone.
    ForPackets,
    /// And for what was sent, which the device knows of.
    ForSent,
}

/// A descriptor that is readable when the device's is, or the bell was rung, and the bell.
pub(super) fn over(device: BorrowedFd<'_>) -> io::Result<(OwnedFd, Bell)> {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // Which of the two it was does not matter.
    epoll::add(&both, device, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    epoll::add(&both, &eventfd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok((both, Bell { eventfd, sleeps: None }))
}

impl Bell {
    /// A thread is about to sleep. `for_sent`: the device is to wake it for what was sent, too.
    pub(super) fn sleeps(&mut self, for_sent: bool) {
        self.sleeps = Some(if for_sent { Sleeps::ForSent } else { Sleeps::ForPackets });
    }

    /// Nobody sleeps; rings that came are taken.
    pub(super) fn silence(&mut self) {
        self.sleeps = None;
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }

    /// The device is to be looked at again for what was sent. Who sleeps for packets alone is to ask
    /// it for that.
    pub(super) fn sent(&mut self) {
        if self.sleeps == Some(Sleeps::ForPackets) {
            self.ring();
        }
    }

    /// Wakes who sleeps, once.
    pub(super) fn ring(&mut self) {
        if self.sleeps.take().is_some() {
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }
}
