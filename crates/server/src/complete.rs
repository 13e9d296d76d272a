//! Packets that the device is done with: their places in the stage and their applications' frames
//! are free again.

use towpath_device::DeviceError;

use crate::engine::{Engine, STAGE_SLOTS};

impl Engine {
    /// Takes back what the device is done with, after it was given what waits. Answers how much came.
    pub(crate) fn complete(&mut self) -> Result<usize, DeviceError> {
        // A device that had no room is asked again in the next turn.
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

    /// A device packet is back, or will never be sent: its slot is free, and when it was the last
    /// of its flight, the application's frames are too.
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
