//! A stalled device is reset, and what it kept is sent again.
//!
//! What came back before the reset was sent, or dropped by the driver and counted there. What comes
//! back by the reset was kept: it is sent again, in its order and before everything that waited
//! behind it. A driver tells the two apart as well as its device does. A packet that a device sent
//! and had not told of goes out twice: nobody can know it, and networks may double packets anyway.
//! None is lost.

use towpath_device::DeviceError;
use towpath_protocol::counters::{self, Device as Count};

use crate::engine::{Engine, STAGE_SLOTS};
use crate::orders::Event;
use crate::wait::clock_ns;
use crate::watchdog::{Verdict, Watchdog};

impl Engine {
    /// Looks after each turn whether the device gives back what it was given. Answers how much was
    /// done.
    ///
    /// # Errors
    /// When a stalled device cannot be reset.
    #[inline]
    pub(crate) fn look_after_device(&mut self) -> Result<usize, DeviceError> {
        match self.watchdog.after_turn(self.out(), self.returned, clock_ns) {
            Verdict::Fine => Ok(0),
            Verdict::Stalled { new } => {
                if new {
                    self.tell(Event::Stalled { packets: self.out() });
                }
                self.revive()
            }
            Verdict::Recovered { resets } => {
                self.tell(Event::Recovered { resets });
                Ok(0)
            }
        }
    }

    /// Packets that are with the device.
    #[inline]
    pub(crate) fn out(&self) -> u64 {
        self.handoff.counts.taken - self.returned
    }

    fn revive(&mut self) -> Result<usize, DeviceError> {
        let name = self.device.info().name.clone();
        let stalled = |cause| DeviceError::Stalled { name: name.clone(), cause: Box::new(cause) };
        let mut frames = Vec::new();
        self.device.reset(&mut frames).map_err(stalled)?;
        for frame in frames {
            self.empty.give_back(frame / self.pool_frame_bytes);
        }
        let out = self.out();
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        let returned = self.device.tx_return(&mut tokens, STAGE_SLOTS as usize).map_err(stalled)?;
        if returned as u64 != out {
            let cause = std::io::Error::other(format!("{returned} of {out} packets came back"));
            let what = "a reset that keeps packets";
            return Err(stalled(DeviceError::Failed { name: name.clone(), what, cause }));
        }
        self.returned += out;
        self.watchdog.was_reset(self.returned);
        let mut ended = 0;
        tokens.retain(|token| {
            let flight = self.stage.slots[*token as usize].flight;
            let session = self.flights[flight as usize].session;
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
        counters::add(&mut self.counters, Count::TxAgain as usize, tokens.len() as u64);
        self.tokens = tokens;
        self.publish_device_counters();
        Ok(returned)
    }

    /// A setting of the watchdog was changed.
    pub(crate) fn set_watchdog(&mut self) {
        self.watchdog.change(Watchdog::of(&self.values));
    }
}
