//! Turns of a program's event loop, which do the work that is due without waiting.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use towpath_stack::{Instant, SocketId};

use super::{AWAKE, NEVER, Round, SharedNetwork};
use crate::lock::lock;
use crate::readiness::Ready;
use crate::ready_set::Sockets;
use crate::work_fd::WorkFd;
use crate::{Armed, LinkError, error};

/// The most rounds of a turn; the descriptor stays readable if there is more work.
const TURN_ROUNDS: usize = 64;

impl SharedNetwork {
    /// Returns a descriptor that is readable while [`SharedNetwork::turn`] has work, once that was called.
    ///
    /// # Errors
    /// If the library's thread drives, or the system has no descriptor left.
    pub(crate) fn work_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        Ok(self.external()?.as_fd())
    }

    fn external(&self) -> std::io::Result<&WorkFd> {
        if self.threaded {
            let text =
                "a thread of the library drives this network; make it with Driving::Application";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        if let Some(external) = self.external.get() {
            return Ok(external);
        }
        let made = WorkFd::new(&self.link_fd, &self.wake)?;
        Ok(self.external.get_or_init(|| made))
    }

    /// Does the work that is due, without waiting. Afterwards the descriptor of [`SharedNetwork::work_fd`] becomes readable
    /// with the next work. If another thread drives, leaves the work to that thread, whose call makes a turn due at its
    /// end.
    ///
    /// # Errors
    /// If the link is dead, or the library's thread drives.
    pub(crate) fn turn(&self) -> std::io::Result<()> {
        let external = self.external()?;
        let mut core = self.core();
        if let Some(dead) = &core.dead {
            return Err(error::link(dead));
        }
        if !core.standby.begin(false) {
            external.leave();
            return Ok(());
        }
        drop(core);
        let worked = self.work_and_arm(external);
        let mut core = self.core();
        // Without a thread of the library, none has to be woken.
        let _ = core.standby.end(false);
        let turn_ends = core.turn_ends.clone();
        self.hand_on(core);
        turn_ends.iter().for_each(|waiter| waiter.tell(Ready::EMPTY));
        worked.map_err(|error| self.die(error))
    }

    fn work_and_arm(&self, external: &WorkFd) -> Result<(), LinkError> {
        self.sleeps_until.store(AWAKE, Ordering::SeqCst);
        external.begin();
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut link = lock(&self.link);
        link.disarm();
        for _ in 0..TURN_ROUNDS {
            self.pending.store(false, Ordering::Relaxed);
            if self.round(link.as_mut(), Round::Application)?.worked {
                continue;
            }
            let now = self.clock.now();
            let core = self.core();
            let (next, blocked) = (core.due_at(now), core.stack.is_blocked());
            drop(core);
            if next.is_some_and(|next| next <= now) {
                continue;
            }
            let Armed::Sleep { writable } = link.arm(blocked)? else { continue };
            let next = next.map_or(NEVER, Instant::as_micros);
            external.watch(&self.link_fd, writable)?;
            external.set_timer(now, next)?;
            self.sleeps_until.store(next, Ordering::SeqCst);
            drop(link);
            // Pairs with the fence in `kick`.
            fence(Ordering::SeqCst);
            if self.pending.load(Ordering::SeqCst) {
                external.make_due();
            }
            return Ok(());
        }
        drop(link);
        external.make_due();
        Ok(())
    }
}

impl Sockets for SharedNetwork {
    fn readiness(&self, id: SocketId) -> Ready {
        self.core().readiness(id)
    }

    fn is_driven_by_program(&self) -> bool {
        !self.threaded
    }

    fn turn(&self) -> std::io::Result<()> {
        SharedNetwork::turn(self)
    }

    fn work_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        SharedNetwork::work_fd(self)
    }
}
