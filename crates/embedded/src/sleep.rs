//! The descriptors of a thread that drives for all and sleeps: the device's, and a doorbell. Other
//! threads use the doorbell for work that comes during the sleep and of which the device does not
//! know.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};

/// The doorbell of the sleeping thread. It belongs to the driver, so only the thread inside uses
/// it.
pub(super) struct Bell {
    eventfd: OwnedFd,
    sleeps: Option<Sleeps>,
    /// `true` if the eventfd holds a notification.
    notified: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleeps {
    /// The device wakes the thread for received packets only.
    ForPackets,
    /// The device wakes the thread also for sent packets.
    ForSent,
}

/// Returns the doorbell, and a descriptor that is readable when the device's is, when the device has
/// an event, or after a notification by the doorbell.
pub(super) fn over(
    device: BorrowedFd<'_>,
    events: Option<BorrowedFd<'_>>,
) -> io::Result<(OwnedFd, Bell)> {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // The sleeper does not need to know which of them woke it.
    for one in [Some(device), events].into_iter().flatten() {
        epoll::add(&both, one, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    epoll::add(&both, &eventfd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok((both, Bell { eventfd, sleeps: None, notified: false }))
}

impl Bell {
    /// Notes that a thread is about to sleep. `for_sent`: the device will wake it also for sent
    /// packets.
    pub(super) fn sleeps(&mut self, for_sent: bool) {
        self.sleeps = Some(if for_sent { Sleeps::ForSent } else { Sleeps::ForPackets });
    }

    /// Notes that no thread sleeps.
    pub(super) fn awake(&mut self) {
        self.sleeps = None;
    }

    /// Notes that no thread sleeps, and takes pending notifications.
    pub(super) fn silence(&mut self) {
        self.awake();
        if std::mem::take(&mut self.notified) {
            let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        }
    }

    /// Notes that the driver must poll the device again for sent packets. A thread that sleeps only
    /// for received packets wakes up, to arm the device for both.
    pub(super) fn sent(&mut self) {
        if self.sleeps == Some(Sleeps::ForPackets) {
            self.notify();
        }
    }

    /// Wakes the sleeping thread, once.
    pub(super) fn notify(&mut self) {
        if self.sleeps.take().is_some() {
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
            self.notified = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(descriptor: &OwnedFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn the_bell_wakes_a_sleeping_thread_once() {
        let device = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let (both, mut bell) = over(device.as_fd(), None).unwrap();
        bell.notify();
        assert!(!is_readable(&both), "no thread sleeps");
        bell.sleeps(true);
        bell.sent();
        assert!(!is_readable(&both), "the device wakes the thread for sent packets");
        bell.notify();
        assert!(is_readable(&both));
        bell.silence();
        assert!(!is_readable(&both));
        bell.sleeps(false);
        bell.sent();
        assert!(is_readable(&both), "the device does not wake the thread for sent packets");
        bell.silence();
        assert!(!is_readable(&both), "the notification is taken");
        bell.sleeps(false);
        bell.awake();
        bell.sent();
        assert!(!is_readable(&both), "the thread is awake");
        rustix::io::write(&device, &1_u64.to_ne_bytes()).unwrap();
        assert!(is_readable(&both), "the device itself wakes the thread");
    }
}
