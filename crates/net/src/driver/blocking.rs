//! Calls that block: for a wake-up by the thread that drives, or driving themselves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::{Instant, SocketError, Stack};

use super::sleeping::Caller;
use super::{Core, SharedNetwork};
use crate::LinkError;
use crate::error;
use crate::lock::lock;
use crate::readiness::Ready;
use crate::wait::{Patience, Waiter};

impl SharedNetwork {
    /// Repeats `f` until it returns anything but `WouldBlock`, the time expires or the link dies.
    /// With `send`, the call reports a dead link before it calls `f`; otherwise it returns received
    /// data first.
    pub(crate) fn block_on<R>(
        &self,
        waiter: &Arc<Waiter>,
        patience: Patience,
        send: bool,
        mut f: impl FnMut(&mut Stack, Instant) -> Result<R, SocketError>,
    ) -> std::io::Result<R> {
        let mut core = self.core();
        let (mut kicked, mut spins) = (false, false);
        let result = loop {
            if let Some(dead) = core.dead.as_ref().filter(|_| send) {
                break Err(error::link(dead));
            }
            match f(&mut core.stack, self.clock.now()) {
                Err(SocketError::WouldBlock) => {}
                result => {
                    waiter.wrote.store(send, Ordering::Relaxed);
                    break result.map_err(error::socket);
                }
            }
            if let Some(dead) = &core.dead {
                break Err(error::link(dead));
            }
            if core.stack.wants_poll() && !kicked {
                drop(core);
                self.kick();
                core = self.core();
                kicked = true;
                continue;
            }
            kicked = false;
            let until = match patience {
                Patience::None => break Err(error::socket(SocketError::WouldBlock)),
                Patience::Forever => None,
                Patience::Until(until) if until <= StdInstant::now() => {
                    break Err(error::timeout());
                }
                Patience::Until(until) => Some(until),
            };
            let awaits_answer = !send && waiter.wrote.load(Ordering::Relaxed);
            spins |= awaits_answer;
            core = self.wait(core, waiter, Caller { until, awaits_answer });
        };
        let wants = core.dead.is_none() && core.stack.wants_poll();
        self.leave(core);
        if spins {
            lock(&self.spinning).stop(self.clock.now());
        }
        if wants {
            self.kick();
        }
        result
    }

    /// Waits for a wake-up, or drives if no other thread does.
    fn wait<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        waiter: &Arc<Waiter>,
        caller: Caller,
    ) -> MutexGuard<'a, Core> {
        if !core.standby.begin(self.threaded) {
            if !self.threaded {
                core.followers.push(waiter.clone());
            }
            core.standby.blocked += 1;
            let mut core = waiter.wait(core, caller.until);
            core.standby.blocked -= 1;
            core.standby.wakes += 1;
            if !self.threaded {
                core.follow_no_more(waiter);
            }
            return core;
        }
        waiter.leading.store(true, Ordering::Relaxed);
        drop(core);
        let paused = self.external.get().map_or(Ok(()), |external| external.pause(&self.link_fd));
        let worked =
            paused.map_err(LinkError::from).and_then(|()| self.work_or_sleep(Some(&caller)));
        waiter.leading.store(false, Ordering::Relaxed);
        if let Err(error) = worked {
            self.die(error);
        }
        let mut core = self.core();
        let wakes = core.standby.end(self.threaded);
        if !wakes && core.turn_ends.is_empty() {
            return core;
        }
        let turn_ends = core.turn_ends.clone();
        drop(core);
        if wakes {
            self.stands_by.notify_all();
        }
        turn_ends.iter().for_each(|waiter| waiter.tell(Ready::EMPTY));
        self.core()
    }

    /// Ends a call. If no thread drives a network without a library thread now, one that waits has
    /// to, or the program's event loop: this thread may not come back.
    fn leave(&self, core: MutexGuard<'_, Core>) {
        let is_led = self.threaded || core.standby.led;
        self.hand_on(core);
        if !is_led {
            self.rearm_external();
        }
    }

    /// Has a thread that waits drive, if no thread drives a network without a library thread now.
    pub(super) fn hand_on(&self, mut core: MutexGuard<'_, Core>) {
        let is_led = self.threaded || core.standby.led || core.succeeding;
        let successor = core.followers.last().filter(|_| !is_led).cloned();
        core.succeeding |= successor.is_some();
        drop(core);
        if let Some(successor) = successor {
            successor.wake_one();
        }
    }

    /// Drives for at most `timeout`, until some work is done. Fails if the link is dead.
    pub(crate) fn drive(&self, timeout: Duration) -> std::io::Result<()> {
        let until = StdInstant::now().checked_add(timeout);
        let waiter = Arc::new(Waiter::default());
        let mut core = self.core();
        core.turn_ends.push(waiter.clone());
        let mut core = self.wait(core, &waiter, Caller { until, awaits_answer: false });
        core.turn_ends.retain(|other| !Arc::ptr_eq(other, &waiter));
        let result = core.dead.as_ref().map_or(Ok(()), |dead| Err(error::link(dead)));
        let wants = core.dead.is_none() && core.stack.wants_poll();
        self.leave(core);
        if wants {
            // Another thread met the lock during the turn, and left its frames to this one.
            self.kick();
        }
        result
    }
}

impl Core {
    /// Ends the waiting of a thread that another one was driving for. The thread drives now, or at
    /// its end leaves that to the next one.
    fn follow_no_more(&mut self, waiter: &Arc<Waiter>) {
        if let Some(at) = self.followers.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            self.followers.swap_remove(at);
        }
        self.succeeding = false;
    }
}
