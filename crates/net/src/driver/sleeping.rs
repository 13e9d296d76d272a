//! The loop of the thread that drives: rounds while there is work, then sleep.

use std::sync::atomic::{Ordering, fence};
use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant as StdInstant};

use rustix::event::{PollFd, PollFlags, Timespec};
use towpath_stack::Instant;

use super::{AWAKE, Core, NEVER, Round, SharedNetwork};
use crate::lock::lock;
use crate::standby::Standby;
use crate::{Armed, Link, LinkError};

/// A blocked call whose thread drives.
pub(super) struct Caller {
    /// The call's deadline; `None`: it waits without a limit.
    pub(super) until: Option<StdInstant>,
    /// `true` if the call waits for data of a socket to which the program has written since it last
    /// read.
    pub(super) awaits_answer: bool,
}

type LinkGuard<'a> = MutexGuard<'a, Box<dyn Link>>;

fn left(until: StdInstant) -> Duration {
    until.saturating_duration_since(StdInstant::now())
}

/// Ends the network if its thread panics: the calls that wait for that thread would never return.
struct EndsOnPanic<'a>(&'a SharedNetwork);

impl Drop for EndsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.die(std::io::Error::other("the library's thread panicked").into());
        }
    }
}

impl SharedNetwork {
    /// Drives until the network is closed or the link dies; runs in the library's thread.
    pub(crate) fn run(&self) {
        let _ends = EndsOnPanic(self);
        let is_over = |core: &Core| self.closing.load(Ordering::SeqCst) || core.dead.is_some();
        loop {
            let core = self.core();
            let core = Standby::wait(core, &self.stands_by, |core| &mut core.standby, is_over);
            if is_over(&core) {
                return;
            }
            drop(core);
            if let Err(error) = self.work_or_sleep(None) {
                self.die(error);
                return;
            }
        }
    }

    /// Returns `true` if a thread of the library drives the network.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn has_thread(&self) -> bool {
        self.threaded
    }

    /// Returns the microseconds until the network has something to do; `None` if it has not.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn next_due(&self) -> Option<u64> {
        let now = self.clock.now();
        let due = self.core().due_at(now)?;
        Some(due.as_micros().saturating_sub(now.as_micros()))
    }

    /// Works while there is work, then sleeps once. `caller`: the blocked call whose thread drives;
    /// `None` in the library's thread. Returns to such a call after the work and before any sleep:
    /// the call may wait for the result of that work.
    pub(super) fn work_or_sleep(&self, caller: Option<&Caller>) -> Result<(), LinkError> {
        let round = if caller.is_some() { Round::Application } else { Round::Library };
        let awaits_answer = caller.is_some_and(|caller| caller.awaits_answer);
        let mut link = lock(&self.link);
        for _ in 0..64 {
            self.pending.store(false, Ordering::Relaxed);
            let done = self.round(link.as_mut(), round)?;
            if done.received && awaits_answer {
                lock(&self.spinning).received(self.clock.now());
            }
            if done.worked && caller.is_some() {
                return Ok(());
            }
            if caller.is_none() && self.core().standby.active {
                // From here on, a thread that blocks drives. It may wait for the link already.
                drop(link);
                self.send_for_others();
                return Ok(());
            }
            if !done.worked {
                break;
            }
        }
        if awaits_answer && let Some(caller) = caller {
            match self.spin(link, caller)? {
                Some(held) => link = held,
                None => return Ok(()),
            }
        }
        let now = self.clock.now();
        let core = self.core();
        let (next, blocked) = (core.due_at(now), core.stack.is_blocked());
        drop(core);
        if next.is_some_and(|next| next <= now) {
            return Ok(());
        }
        let Armed::Sleep { writable } = link.arm(blocked)? else { return Ok(()) };
        let mut next = next.map_or(NEVER, Instant::as_micros);
        if let Some(until) = caller.and_then(|caller| caller.until) {
            next = next.min((now + left(until)).as_micros());
        }
        // The driver keeps a wake-up time until it has passed, even if no work is due then any
        // more. A connection in use always has a timer due within a second, so a writer need not
        // wake the driver for it. This costs one wake-up after the last traffic.
        let kept = self.kept.load(Ordering::Relaxed);
        if kept > now.as_micros() {
            next = next.min(kept);
        }
        self.kept.store(next, Ordering::Relaxed);
        self.sleeps_until.store(next, Ordering::SeqCst);
        drop(link);
        // Pairs with the fence in `kick`.
        fence(Ordering::SeqCst);
        // Only the library's thread ends with the network. The last drop still sends frames that wait.
        let ends = caller.is_none() && self.closing.load(Ordering::SeqCst);
        let stay = !self.pending.load(Ordering::SeqCst) && !ends;
        if stay && awaits_answer {
            lock(&self.spinning).sleeps(self.clock.now());
        }
        let slept = if stay { self.sleep(next, writable) } else { Ok(()) };
        self.sleeps_until.store(AWAKE, Ordering::SeqCst);
        lock(&self.link).disarm();
        slept
    }

    /// Spins until there may be work, and returns `None`, or until it is better to sleep, and
    /// returns the link. A frame that waits for room, the next timer, as of the spin's start, and
    /// the caller's deadline end the spin.
    fn spin<'a>(
        &'a self,
        link: LinkGuard<'a>,
        caller: &Caller,
    ) -> Result<Option<LinkGuard<'a>>, LinkError> {
        let since = self.clock.now();
        if !lock(&self.spinning).keeps_spinning(since) {
            return Ok(Some(link));
        }
        let core = self.core();
        let (next, blocked) = (core.due_at(since), core.stack.is_blocked());
        drop(core);
        if blocked {
            return Ok(Some(link));
        }
        let deadline = caller.until.map(|until| since + left(until));
        let end = next.into_iter().chain(deadline).min();
        let mut held = Some(link);
        loop {
            let now = self.clock.now();
            if let Some(link) = &mut held {
                match link.has_news()? {
                    Some(false) => {}
                    Some(true) => return Ok(None),
                    None => return Ok(held),
                }
            }
            if self.pending.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let is_over = end.is_some_and(|end| end <= now);
            if is_over || !lock(&self.spinning).keeps_spinning(now) {
                return Ok(Some(held.unwrap_or_else(|| lock(&self.link))));
            }
            // A thread that writes sends its frames itself meanwhile, and the thread that would
            // send the awaited frame may need this processor.
            drop(held.take());
            rustix::thread::sched_yield();
            held = match self.link.try_lock() {
                Ok(link) => Some(link),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
        }
    }

    /// Sends the frames of threads that found the link taken by this thread, which has just released it.
    pub(super) fn send_for_others(&self) {
        // Pairs with the fence in `kick`.
        fence(Ordering::SeqCst);
        if self.pending.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    /// Sleeps until a time, a received frame, room for a frame, or a wake-up.
    fn sleep(&self, until: u64, writable: bool) -> Result<(), LinkError> {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        let left = (until != NEVER)
            .then(|| Duration::from_micros(until.saturating_sub(self.clock.now().as_micros())));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut link_events = PollFlags::IN;
        if writable {
            link_events |= PollFlags::OUT;
        }
        let mut fds =
            [PollFd::new(&self.link_fd, link_events), PollFd::new(&self.wake, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        if fds[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        Ok(())
    }
}
