//! Completion: the bounce buffers of completed packets, and their applications' buffers, are free
//! again.

use towpath_device::DeviceError;

use crate::engine::{Engine, STAGE_SLOTS};

impl Engine {
    /// Collects the device's completions, after giving it the waiting packets. Returns how many
    /// there were.
    pub(crate) fn complete(&mut self) -> Result<usize, DeviceError> {
        // The engine asks a device that had no room again in the next poll iteration.
        if !self.handoff.is_blocked() {
            self.handoff.flush(&self.stage, &mut self.spaces, self.device.as_mut())?;
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        let count = self.device.tx_return(&mut tokens, STAGE_SLOTS as usize)?;
        for token in &tokens {
            self.land(*token as u32);
        }
        self.tokens = tokens;
        self.returned += count as u64;
        Ok(count)
    }

    /// Completes a device packet that the device returned or that will never be sent. Its slot is
    /// free. With the last device packet of an in-flight entry, the application's buffers are free,
    /// too.
    pub(crate) fn land(&mut self, slot: u32) {
        let number = self.stage.slots[slot as usize].flight;
        self.stage.give_back(slot);
        let flight = &mut self.flights[number as usize];
        flight.remaining -= 1;
        if flight.remaining > 0 {
            return;
        }
        let flight = *flight;
        self.free_flights.give_back(number);
        if let Some(session) = &mut self.sessions[flight.session as usize] {
            session.flights -= 1;
            if session.closing && session.flights == 0 {
                self.landed.push(flight.session);
            }
            let set = &mut session.queue_sets[flight.queue_set as usize];
            set.transmit.complete(&mut session.transmit_ledger, flight.first, flight.chain);
            self.touch(flight.session, flight.queue_set);
        }
    }
}
