//! The loop of the thread that drives: rounds while there is work, then sleep.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant as StdInstant};

use rustix::event::{PollFd, PollFlags, Timespec};
use towpath_stack::Instant;

use super::{AWAKE, Core, FOREVER, Round, Shared};
use crate::lock::lock;
use crate::standby::Standby;
use crate::{Armed, Link, LinkError};

/// A blocked call whose thread drives.
pub(super) struct Caller {
    pub(super) until: Option<StdInstant>,
    /// `true` if the call waits for data, and the program has written some since it last read.
    pub(super) awaits_answer: bool,
}

impl Shared {
    /// Drives until the network is closed or the link dies; runs in the library's thread.
    pub(crate) fn run(&self) {
        let is_over = |core: &Core| self.closing.load(Ordering::SeqCst) || core.dead.is_some();
        loop {
            let core = self.core();
            let core = Standby::wait(core, &self.stands_by, |core| &mut core.standby, is_over);
            if is_over(&core) {
                return;
            }
            drop(core);
            if let Err(error) = self.work_or_sleep(None) {
                return self.die(error);
            }
        }
    }

    /// Works while there is work, then sleeps once. A blocked caller that drives passes itself. The function returns to such a caller after the work and before any sleep: the
    /// caller may wait for the result of that work.
    pub(super) fn work_or_sleep(&self, caller: Option<&Caller>) -> Result<(), LinkError> {
        let round = if caller.is_some() { Round::Application } else { Round::Library };
        let mut link = lock(&self.link);
        for _ in 0..64 {
            self.pending.store(false, Ordering::Relaxed);
            let worked = self.round(link.as_mut(), round)?;
            if worked && caller.is_some() {
                lock(&self.spinning).found(self.clock.now());
                return Ok(());
            }
            if caller.is_none() && self.core().standby.active {
                // From here on, a thread that blocks drives. It may wait for the link already.
                drop(link);
                return self.leave_to_others();
            }
            if !worked {
                break;
            }
        }
        let now = self.clock.now();
        let core = self.core();
        let (next, blocked) = (core.stack.poll_at(now), core.stack.is_blocked());
        drop(core);
        if next.is_some_and(|next| next <= now) {
            return Ok(());
        }
        if caller.is_some_and(|caller| caller.awaits_answer) && self.spin(link.as_mut())? {
            return Ok(());
        }
        let Armed::Sleep { writable } = link.arm(blocked)? else { return Ok(()) };
        let mut next = next.map_or(FOREVER, Instant::as_micros);
        if let Some(until) = caller.and_then(|caller| caller.until) {
            let left = until.saturating_duration_since(StdInstant::now());
            next = next.min((now + left).as_micros());
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
        let stay = !self.pending.load(Ordering::SeqCst) && !self.closing.load(Ordering::SeqCst);
        let slept = if stay { self.sleep(next, writable) } else { Ok(()) };
        self.sleeps_until.store(AWAKE, Ordering::SeqCst);
        lock(&self.link).disarm();
        slept
    }

    /// Spins until there may be work, and returns `true`, or until it is better to sleep.
    fn spin(&self, link: &mut dyn Link) -> Result<bool, LinkError> {
        let mut spinning = lock(&self.spinning);
        while spinning.goes_on(self.clock.now()) {
            if self.pending.load(Ordering::Relaxed) || link.has_news()? {
                return Ok(true);
            }
            // The thread that would send the awaited frame may need this processor.
            rustix::thread::sched_yield();
        }
        Ok(false)
    }

    /// Ends the driving of the library's thread, which has just released the link. Frames of a
    /// thread that found the link taken are still to be sent.
    fn leave_to_others(&self) -> Result<(), LinkError> {
        // Pairs with the fence in `kick`.
        fence(Ordering::SeqCst);
        if self.pending.load(Ordering::Relaxed) {
            self.kick();
        }
        Ok(())
    }

    /// Sleeps until a time, a received frame, room for a frame, or a wake-up.
    fn sleep(&self, until: u64, writable: bool) -> Result<(), LinkError> {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        let left = (until != FOREVER)
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
