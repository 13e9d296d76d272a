//! Calls that block: for a wake-up by the thread that drives, or driving themselves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::{Instant, SocketError, Stack};

use super::{Core, Shared};
use crate::error;
use crate::wait::{Patience, Waiter};

impl Shared {
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
        let mut kicked = false;
        loop {
            if let Some(dead) = core.dead.as_ref().filter(|_| send) {
                return Err(error::link(dead));
            }
            let result = f(&mut core.stack, self.clock.now());
            let wants = core.stack.wants_poll();
            match result {
                Err(SocketError::WouldBlock) => {}
                result => {
                    drop(core);
                    if wants {
                        self.kick();
                    }
                    return result.map_err(error::socket);
                }
            }
            if let Some(dead) = &core.dead {
                return Err(error::link(dead));
            }
            if wants && !kicked {
                drop(core);
                self.kick();
                core = self.core();
                kicked = true;
                continue;
            }
            kicked = false;
            let until = match patience {
                Patience::None => return Err(error::socket(SocketError::WouldBlock)),
                Patience::Forever => None,
                Patience::Until(until) if until <= StdInstant::now() => {
                    return Err(error::timeout());
                }
                Patience::Until(until) => Some(until),
            };
            core = self.wait(core, waiter, until)?;
        }
    }

    /// Waits for a wake-up, or drives if no other thread does.
    fn wait<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        waiter: &Arc<Waiter>,
        until: Option<StdInstant>,
    ) -> std::io::Result<MutexGuard<'a, Core>> {
        if !core.standby.begin(self.threaded) {
            if !self.threaded {
                core.followers.push(waiter.clone());
            }
            core.standby.blocked += 1;
            let mut core = waiter.wait(core, until);
            core.standby.blocked -= 1;
            return Ok(core);
        }
        waiter.leading.store(true, Ordering::Relaxed);
        drop(core);
        let worked = self.work_or_sleep(Some(until));
        waiter.leading.store(false, Ordering::Relaxed);
        if let Err(error) = worked {
            self.die(error);
        }
        let mut core = self.core();
        let wakes = core.standby.end();
        // Another thread must drive if this one does not come back. So this thread wakes all
        // followers: some may have stopped waiting already, and a follower without a leader would
        // wait for ever.
        let followers = std::mem::take(&mut core.followers);
        drop(core);
        if wakes {
            self.stands_by.notify_all();
        }
        followers.iter().for_each(|follower| follower.tell());
        Ok(self.core())
    }

    /// Drives for at most `timeout`, until some work is done. Fails if the link is dead.
    pub(crate) fn drive(&self, timeout: Duration) -> std::io::Result<()> {
        let until = StdInstant::now().checked_add(timeout);
        let waiter = Arc::new(Waiter::default());
        let core = self.core();
        let core = self.wait(core, &waiter, until)?;
        match &core.dead {
            Some(error) => Err(error::link(error)),
            None => Ok(()),
        }
    }
}
