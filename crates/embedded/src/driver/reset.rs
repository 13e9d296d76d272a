//! The reset of the device.

use super::Driver;

impl Driver {
    /// Resets the device. Packets in flight that the device did not send are lost and counted.
    /// Waiting packets stay queued. A driver in which a thread panicked stays failed.
    pub fn reset(&mut self) {
        if self.is_broken {
            return;
        }
        self.collect();
        self.returned_buffers.clear();
        self.counts.resets += 1;
        self.failure = self.queue.reset(&mut self.returned_buffers).err();
        for start in self.returned_buffers.drain(..) {
            self.receive.release(self.buffers.receive_buffer(start));
        }
        self.collect();
        // The reset device has forgotten the wake-ups that a thread requested.
        self.wake();
    }
}
