//! The transmit half of a driver: directly into the device's ring while no packet waits.

use towpath_device::{Completion, Kick, Meta, Outcome, Packet};

use super::{BATCH, Driver, LENGTH_BYTES, Waiting};
use crate::SendError;

impl Driver {
    /// Sends a packet of the thread inside, after all waiting packets. If none waits, the packet
    /// goes directly into the device's ring, and waits only if the device refuses it. While the
    /// device's link is down, all packets wait.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, packet: &[u8]) -> Result<(), SendError> {
        let most = self.buffers.longest;
        if packet.len() > most {
            return Err(SendError::TooLong { len: packet.len(), most });
        }
        self.collect_due();
        self.send_next(packet)
    }

    /// Sends a packet as [`Driver::send`] does. The caller has checked the packet's length, and has
    /// called [`Driver::collect_due`].
    #[inline]
    pub(crate) fn send_next(&mut self, packet: &[u8]) -> Result<(), SendError> {
        let buffer = if self.has_failed() {
            Err(SendError::Failed)
        } else {
            self.own.take().ok_or(SendError::WouldBlock)
        };
        let buffer = buffer.inspect_err(|error| {
            self.counts.refused += u64::from(*error == SendError::WouldBlock);
            self.flush();
        })?;
        let start = (buffer - self.buffers.left) as usize * self.buffers.transmit_bytes;
        let written = self.own_memory.copy_in(start + LENGTH_BYTES, packet);
        debug_assert!(written, "buffers are as long as the longest packet");
        self.counts.direct += 1;
        let one = Waiting { buffer, len: packet.len() as u32 };
        if !self.is_link_up {
            self.counts.link_down += 1;
            self.waiting.push_back(one);
        } else if self.waiting.is_empty() {
            self.place(one);
        } else {
            self.counts.behind += 1;
            self.waiting.push_back(one);
            self.flush();
        }
        Ok(())
    }

    /// Adds a packet that a thread left to the waiting packets.
    pub(crate) fn add_left(&mut self, slot: u32) {
        let len = self.buffers.left_len(slot);
        self.waiting.push_back(Waiting { buffer: slot, len });
    }

    /// `true` if the device failed, and was not reset since.
    pub(super) fn has_failed(&self) -> bool {
        self.is_broken || self.failure.is_some()
    }

    /// `true` if packets wait for the device.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Places a packet in the device's ring. A packet that the device refuses waits.
    fn place(&mut self, one: Waiting) {
        let mut taken = self.submit(&[one]);
        if taken == Some(0) && self.in_flight() > 0 {
            // The device may have room once the driver takes its completions.
            self.collect();
            taken = self.submit(&[one]);
        }
        if taken == Some(1) {
            self.counts.straight += 1;
            self.kick();
        } else {
            self.counts.busy += 1;
            self.waiting.push_back(one);
        }
        self.note_owed();
    }

    /// Takes completions from the device if packets wait for its room, or if many packets are in
    /// flight.
    pub(crate) fn collect_due(&mut self) {
        if self.has_waiting() || self.in_flight() >= self.collect_at {
            self.collect();
        }
    }

    /// Takes completions from the device.
    pub fn collect(&mut self) {
        self.completions.clear();
        if self.is_broken {
            return;
        }
        let budget = self.completions.capacity();
        if let Err(error) = self.queue.tx_complete(&mut self.completions, budget) {
            self.fail(error);
        }
        self.counts.returned += self.completions.len() as u64;
        for Completion { token, outcome } in &self.completions {
            self.counts.lost += u64::from(*outcome == Outcome::Returned);
            let buffer = *token as u32;
            if buffer < self.buffers.left {
                self.slots.push(buffer);
            } else {
                self.own.release(buffer);
            }
        }
    }

    /// Submits waiting packets to the device while it has room. Returns whether the device took
    /// all.
    pub fn flush(&mut self) -> bool {
        let before = self.counts.taken;
        let all = self.submit_waiting();
        if self.counts.taken > before {
            self.kick();
        }
        self.note_owed();
        all
    }

    fn submit_waiting(&mut self) -> bool {
        if self.is_broken || !self.is_link_up {
            return !self.has_waiting();
        }
        // The device may now have room to go on with packets that it took before. So the driver
        // calls it at least once, without packets if none wait.
        let mut asked = !self.goes_on || self.pending() == 0;
        while !asked || self.has_waiting() {
            asked = true;
            let none = Waiting { buffer: 0, len: 0 };
            let mut batch = [none; BATCH];
            let count = self.waiting.len().min(BATCH);
            for (one, waiting) in batch.iter_mut().zip(&self.waiting) {
                *one = *waiting;
            }
            // One descriptor is cheaper to make than a batch.
            let taken = match &batch[..count] {
                [one] => self.submit(&[*one]),
                _ => self.submit_first(&batch, count),
            };
            let Some(taken) = taken else { return false };
            self.waiting.drain(..taken);
            if taken < count {
                return false;
            }
        }
        true
    }

    /// Submits packets to the device. Returns how many it took; `None` if it failed.
    fn submit<const MOST: usize>(&mut self, batch: &[Waiting; MOST]) -> Option<usize> {
        self.submit_first(batch, MOST)
    }

    /// Submits the first `count` packets as [`Driver::submit`] does.
    #[inline]
    fn submit_first<const MOST: usize>(
        &mut self,
        batch: &[Waiting; MOST],
        count: usize,
    ) -> Option<usize> {
        let parts = batch.map(|one| [self.buffers.part(one, self.space)]);
        let packets: [Packet<'_>; MOST] = std::array::from_fn(|place| Packet {
            parts: &parts[place],
            meta: Meta::FULL,
            tag: None,
            token: u64::from(batch[place].buffer),
        });
        match self.queue.tx_submit(&mut self.spaces, &packets[..count]) {
            Ok(taken) => {
                self.counts.taken += taken as u64;
                Some(taken)
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn kick(&mut self) {
        if let Err(error) = self.queue.kick(&mut self.spaces, Kick::Tx) {
            self.fail(error);
        }
    }

    /// Wakes the sleeping thread if the driver must poll the device again, and the device does not
    /// wake that thread for it.
    fn note_owed(&mut self) {
        if self.bell.is_some()
            && self.is_owed()
            && let Some(bell) = &mut self.bell
        {
            bell.sent();
        }
    }

    /// `true` if the driver must poll the device again for sent packets: the device had no room, or
    /// completes packets later.
    pub(super) fn is_owed(&self) -> bool {
        self.is_link_up && self.has_waiting() || self.goes_on && self.in_flight() > 0
    }
}
