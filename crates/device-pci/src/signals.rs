//! Eventfds, which the kernel signals at a card's interrupts, and waits that end.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};

/// The pause between two looks of [`has_in_time`].
const PAUSE: Duration = Duration::from_micros(100);

/// Makes an eventfd, which does not block.
pub(super) fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Returns `true` if an eventfd was signalled since the last call.
pub(super) fn take_signal(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}

/// Signals an eventfd, as an interrupt does.
pub(super) fn signal(event: &OwnedFd) {
    // A counter that is full has been signalled.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Makes an epoll instance that is readable with any of these descriptors.
pub(super) fn any_of(fds: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in fds {
        epoll::add(&events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(events)
}

/// Waits until `is_done` returns `true`, at most for `limit`. Returns `true` if it did in time.
pub(super) fn has_in_time(limit: Duration, is_done: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_done() {
        if begun.elapsed() > limit {
            return false;
        }
        sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_without_the_event() {
        assert!(has_in_time(Duration::ZERO, || true));
        assert!(!has_in_time(Duration::from_millis(1), || false));
    }

    #[test]
    fn a_signal_is_taken_once() {
        let event = new_eventfd().unwrap();
        assert!(!take_signal(&event));
        signal(&event);
        signal(&event);
        assert!(take_signal(&event) && !take_signal(&event));
    }
}
