//! Stalls of the device and of the queues that sessions have to themselves: their detection, and the reset.

use std::io;

use towpath_device::{Completion, DeviceError};
use towpath_protocol::settings::Values;

use super::{BOUNCE_SLOTS, DevicePort};
use crate::clock::clock_ns;
use crate::own::Checked;
use crate::watchdog::{self, Verdict, Watchdog};

impl DevicePort {
    /// Checks after each poll iteration whether the device completes packets. While the link is
    /// down, checks only if ended sessions wait for their packets (`sessions_end`).
    #[inline]
    pub(crate) fn check(&mut self, sessions_end: bool) -> Verdict {
        if !self.link_up && !sessions_end {
            return Verdict::Fine;
        }
        let (out, returned) = self.of_device();
        self.watchdog.after_iteration(out, returned, clock_ns)
    }

    /// Checks the queues of sessions' own. While the link is down, checks only those of sessions that
    /// end (`ends`), by their keys.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn check_own(&mut self, ends: impl Fn(u32) -> bool) -> Result<Checked, DeviceError> {
        let link_up = self.link_up;
        self.own.check(|key| link_up || ends(key))
    }

    /// Resets a stalled device. Appends the receive buffers that the device had to `buffers`, and
    /// the completions of all packets in flight to `out`. The queues of sessions' own are others'.
    ///
    /// # Errors
    /// Fails if the device does not work afterwards, or returns another number of packets than it
    /// kept.
    pub(crate) fn reset(
        &mut self,
        buffers: &mut Vec<u32>,
        out: &mut Vec<Completion>,
    ) -> Result<(), DeviceError> {
        let name = self.name().to_string();
        let stalled = |cause| DeviceError::Stalled { name: name.clone(), cause: Box::new(cause) };
        self.queue.reset(buffers).map_err(stalled)?;
        self.unkicked = [false; 2];
        let (kept, _) = self.of_device();
        let returned = self.queue.tx_complete(out, BOUNCE_SLOTS as usize).map_err(stalled)?;
        self.returned += returned as u64;
        if returned as u64 != kept {
            let cause = io::Error::other(format!("{returned} of {kept} packets came back"));
            let what = "a reset that keeps packets";
            return Err(stalled(DeviceError::Failed { name: name.clone(), what, cause }));
        }
        self.watchdog.restart(self.of_device().1);
        Ok(())
    }

    /// Applies changed settings of the watchdog.
    pub(crate) fn set_watchdog(&mut self, values: &Values) {
        self.watchdog.change(Watchdog::of(values));
        self.own.set_watchdog(|| Watchdog::of(values));
    }

    /// Records a sleep of the engine, after which the watchdog reads the clock.
    pub(crate) fn slept(&mut self) {
        self.watchdog.slept();
        self.own.slept();
    }

    /// Returns the time of the watchdog's next check, in nanoseconds; `sessions_end` as for
    /// [`DevicePort::check`].
    pub(crate) fn next_due(&self, sessions_end: bool) -> Option<u64> {
        let device = self.watchdog.next_due(self.of_device().0);
        let all = device.into_iter().chain(self.own.next_due()).min();
        all.filter(|_| self.link_up || sessions_end)
    }

    /// Returns the watchdog's counts.
    pub(crate) fn watchdog_counts(&self) -> watchdog::Counts {
        self.watchdog.counts
    }
}
