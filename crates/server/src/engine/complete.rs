//! Completion: the engine frees the bounce buffers of completed packets, and their applications'
//! buffers.

use towpath_device::DeviceError;

use crate::engine::{BOUNCE_SLOTS, Engine};

impl Engine {
    /// Collects the device's completions, after giving it the waiting packets. Returns how many
    /// there were.
    pub(crate) fn complete(&mut self) -> Result<usize, DeviceError> {
        // The engine tries a device that had no room again in the next poll iteration.
        if !self.handoff.is_blocked() {
            self.handoff.flush(&self.bounce, &mut self.spaces, self.device.as_mut())?;
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        let count = self.device.tx_complete(&mut tokens, BOUNCE_SLOTS as usize)?;
        for token in &tokens {
            self.land(*token as u32);
        }
        self.tokens = tokens;
        self.returned += count as u64;
        Ok(count)
    }

    /// Completes a device packet that the device returned or that will never be sent, and frees its
    /// slot. The last device packet of an in-flight entry also frees the application's buffers.
    pub(crate) fn land(&mut self, slot: u32) {
        let number = self.bounce.slots[slot as usize].in_flight_slot;
        self.bounce.release(slot);
        let in_flight_slot = &mut self.in_flight[number as usize];
        in_flight_slot.remaining -= 1;
        if in_flight_slot.remaining > 0 {
            return;
        }
        let in_flight_slot = *in_flight_slot;
        self.free_in_flight.release(number);
        if let Some(session) = &mut self.sessions[in_flight_slot.session as usize] {
            session.in_flight -= 1;
            if session.closing && session.in_flight == 0 {
                self.landed.push(in_flight_slot.session);
            }
            let set = &mut session.queue_pairs[in_flight_slot.queue_pair as usize];
            set.transmit.complete(
                &mut session.transmit_ledger,
                in_flight_slot.first,
                in_flight_slot.chain,
            );
            self.touch(in_flight_slot.session, in_flight_slot.queue_pair);
        }
    }
}
