//! The reset of a stalled device, and the resending of the packets that it kept.
//!
//! Packets completed before the reset were sent, or the driver dropped and counted them. The device
//! kept the packets that the reset returns. The engine sends them again, in their order and before
//! everything that waited behind them. A driver tells the two apart as well as its device does. A
//! packet that a device sent without completing it is sent twice. The engine cannot know this, and
//! networks may duplicate packets anyway. No packet is lost.

use towpath_device::DeviceError;
use towpath_protocol::counters::{self, Device as Count};

use crate::engine::commands::EngineReport;
use crate::engine::wait::clock_ns;
use crate::engine::watchdog::{Verdict, Watchdog};
use crate::engine::{BOUNCE_SLOTS, Engine};

impl Engine {
    /// Checks after each poll iteration whether the device completes packets, and returns the
    /// amount of work done.
    ///
    /// # Errors
    /// Fails if a stalled device cannot be reset.
    #[inline]
    pub(crate) fn look_after_device(&mut self) -> Result<usize, DeviceError> {
        match self.watchdog.after_iteration(self.out(), self.returned, clock_ns) {
            Verdict::Fine => Ok(0),
            Verdict::Stalled { new } => {
                if new {
                    self.tell(EngineReport::Stalled { packets: self.out() });
                }
                self.revive()
            }
            Verdict::Recovered { resets } => {
                self.tell(EngineReport::Recovered { resets });
                Ok(0)
            }
        }
    }

    /// Returns the number of packets in flight.
    #[inline]
    pub(crate) fn out(&self) -> u64 {
        self.handoff.counts.taken - self.returned
    }

    fn revive(&mut self) -> Result<usize, DeviceError> {
        let name = self.device.info().name.clone();
        let stalled = |cause| DeviceError::Stalled { name: name.clone(), cause: Box::new(cause) };
        let mut buffers = Vec::new();
        self.device.reset(&mut buffers).map_err(stalled)?;
        for buffer in buffers {
            self.empty.release(buffer / self.pool_buffer_bytes);
        }
        let out = self.out();
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        let returned =
            self.device.tx_complete(&mut tokens, BOUNCE_SLOTS as usize).map_err(stalled)?;
        if returned as u64 != out {
            let cause = std::io::Error::other(format!("{returned} of {out} packets came back"));
            let what = "a reset that keeps packets";
            return Err(stalled(DeviceError::Failed { name: name.clone(), what, cause }));
        }
        self.returned += out;
        self.watchdog.was_reset(self.returned);
        let mut ended = 0;
        tokens.retain(|token| {
            let in_flight_slot = self.bounce.slots[*token as usize].in_flight_slot;
            let session = self.in_flight[in_flight_slot as usize].session;
            let lives =
                self.sessions[session as usize].as_ref().is_some_and(|session| !session.closing);
            if !lives {
                ended += 1;
                self.land(*token as u32);
            }
            lives
        });
        self.handoff.again(&tokens);
        counters::add(&mut self.counters, Count::TxEnded as usize, ended);
        counters::add(&mut self.counters, Count::TxResubmitted as usize, tokens.len() as u64);
        self.tokens = tokens;
        self.publish_device_counters();
        Ok(returned)
    }

    /// Applies a changed setting of the watchdog.
    pub(crate) fn set_watchdog(&mut self) {
        self.watchdog.change(Watchdog::of(&self.values));
    }
}
