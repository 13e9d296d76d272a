//! What wakes the control thread: its epoll set, and the requests of the server's owner.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use crate::control_request::Request;

/// The epoll data of the control thread's own descriptors. Other values are worker numbers.
pub(crate) const WAKE: u64 = u64::MAX - 1;
pub(crate) const DEVICE: u64 = u64::MAX - 2;
pub(crate) const HOST: u64 = u64::MAX - 3;
pub(crate) const KEEPER: u64 = u64::MAX - 4;
/// Added to a connection's token: the event is the end of an unclaimed session's process.
pub(crate) const UNCLAIMED: u64 = 1 << 62;

/// Events that the control thread takes per wake-up.
const EVENTS: usize = 64;

/// The descriptors for which the control thread wakes.
pub(crate) struct Wakeups {
    set: Arc<OwnedFd>,
    /// Readable after a request, a reply or a report.
    wake: Arc<OwnedFd>,
    requests: Receiver<Request>,
}

impl Wakeups {
    /// Makes an epoll set with a descriptor that is readable after each request.
    ///
    /// # Errors
    /// Fails without descriptors.
    pub(crate) fn new(wake: Arc<OwnedFd>, requests: Receiver<Request>) -> io::Result<Wakeups> {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let data = epoll::EventData::new_u64;
        epoll::add(&*set, &*wake, data(WAKE), epoll::EventFlags::IN)?;
        Ok(Wakeups { set, wake, requests })
    }

    /// Returns the epoll set.
    pub(crate) fn set(&self) -> &Arc<OwnedFd> {
        &self.set
    }

    /// Wakes whenever a descriptor is readable. `data`: the data of its events.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(data);
        Ok(epoll::add(&*self.set, fd, data, epoll::EventFlags::IN)?)
    }

    /// Wakes once when the other side of a descriptor hangs up. `data`: the data of the event.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    pub(crate) fn watch_end(&self, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::HUP | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(&*self.set, fd, epoll::EventData::new_u64(data), flags)?)
    }

    /// Wakes once when the process of an unclaimed session ends. `token`: that of the session's connection.
    pub(crate) fn watch_process(&self, process: &OwnedFd, token: u64) {
        let data = epoll::EventData::new_u64(UNCLAIMED | token);
        // Once: the keeper's copies of the descriptor keep the entry alive after this process has
        // closed its own. Without this, the session ends when the time to claim it is over.
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let _ = epoll::add(&*self.set, process, data, once);
    }

    /// Stops waking for a process.
    pub(crate) fn forget_process(&self, process: &OwnedFd) {
        let _ = epoll::delete(&*self.set, process);
    }

    /// Waits for events, at most for a time. Returns their data and flags.
    ///
    /// # Errors
    /// Fails with the kernel's error, but not for a signal.
    pub(crate) fn wait(
        &self,
        timeout: Option<Duration>,
    ) -> io::Result<Vec<(u64, epoll::EventFlags)>> {
        let timeout = timeout.map(|after| Timespec {
            tv_sec: after.as_secs() as i64,
            tv_nsec: i64::from(after.subsec_nanos()),
        });
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none; EVENTS];
        let count = match epoll::wait(&*self.set, &mut events[..], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => 0,
            count => count?,
        };
        Ok(events[..count].iter().map(|event| (event.data.u64(), event.flags)).collect())
    }

    /// Resets the descriptor that wakes this thread, before it takes the requests.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.wake.as_fd(), &mut count);
    }

    /// Returns the next request of the server's owner, if there is one.
    pub(crate) fn next_request(&self) -> Option<Request> {
        self.requests.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_request_wakes_once() {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let (owner, requests) = channel();
        let wakeups = Wakeups::new(wake.clone(), requests).unwrap();
        assert_eq!(wakeups.wait(Some(Duration::ZERO)).unwrap(), []);
        owner.send(Request::Stop).unwrap();
        rustix::io::write(&*wake, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wakeups.wait(None).unwrap(), [(WAKE, epoll::EventFlags::IN)]);
        wakeups.clear();
        assert!(matches!(wakeups.next_request(), Some(Request::Stop)));
        assert!(wakeups.next_request().is_none());
        assert_eq!(wakeups.wait(Some(Duration::ZERO)).unwrap(), []);
    }

    #[test]
    fn the_end_of_a_process_wakes_once() {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let wakeups = Wakeups::new(wake, channel().1).unwrap();
        // A descriptor that is readable at the end, as that of a process is.
        let (process, end) = std::io::pipe().unwrap();
        let process = process.into();
        wakeups.watch_process(&process, 7);
        assert_eq!(wakeups.wait(Some(Duration::ZERO)).unwrap(), []);
        drop(end);
        let events = wakeups.wait(None).unwrap();
        assert_eq!(events.iter().map(|(data, _)| *data).collect::<Vec<_>>(), [UNCLAIMED | 7]);
        assert_eq!(wakeups.wait(Some(Duration::ZERO)).unwrap(), []);
        wakeups.forget_process(&process);
        wakeups.forget_process(&process);
    }
}
