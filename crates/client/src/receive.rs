//! A session's receive side: the application reads packets in place, and the client provides empty
//! buffers.

use towpath_queue::descriptor::prefetch_distance;

use crate::error::Lost;
use crate::pool::Received;
use crate::session::Session;

impl Session {
    /// Provides empty buffers, up to the limit for one queue pair ([`crate::Options::provided`]).
    pub(crate) fn provide(&mut self, queue_pair: u32) {
        let set = &mut self.queue_pairs[queue_pair as usize];
        let limit = self.provided;
        while set.receive.in_flight() < limit {
            let Some(buffer) = self.receive_free.take() else { break };
            if !set.receive.provide(buffer) {
                self.receive_free.release(buffer);
                break;
            }
        }
    }

    /// Passes at most `budget` received packets of a queue pair to `each`, which reads them in
    /// place. The client provides the packets' buffers again afterwards. Returns the number of
    /// packets.
    ///
    /// # Errors
    /// [`Lost`].
    ///
    /// # Panics
    /// When there is no such queue pair.
    pub fn receive(
        &mut self,
        queue_pair: u32,
        budget: usize,
        mut each: impl FnMut(Received<'_>),
    ) -> Result<usize, Lost> {
        self.check()?;
        let mut got = 0;
        while got < budget {
            let set = &mut self.queue_pairs[queue_pair as usize];
            let mut looked = Ok(0);
            if set.receive.waiting() == 0 {
                looked = set.receive.observe();
                let first = prefetch_distance(self.length);
                for buffer in (0..first).map_while(|ahead| set.receive.waiting_buffer(ahead)) {
                    self.receive_pool.prefetch(buffer, self.length);
                }
            }
            if let Some(buffer) = set.receive.waiting_buffer(prefetch_distance(self.length)) {
                self.receive_pool.prefetch(buffer, self.length);
            }
            let taken = looked.and_then(|_| set.receive.take(&mut self.packet));
            let count = match taken {
                Ok(count) => count,
                Err(violation) => return Err(self.wrong(violation)),
            };
            if count == 0 {
                break;
            }
            // The next packet is usually as long as this one.
            self.length = self.packet[0].len as usize;
            each(Received::new(&self.receive_pool, &self.packet[..count]));
            for descriptor in &self.packet[..count] {
                self.receive_free.release(descriptor.buffer);
            }
            got += 1;
        }
        if got == 0 && self.hung_up {
            return Err(self.over());
        }
        if got > 0 {
            self.statistics.received += got as u64;
            self.provide(queue_pair);
            self.queue_pairs[queue_pair as usize].receive.publish();
        }
        Ok(got)
    }

    /// Receives a copy of one packet of a queue pair; `None` when nothing waits.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn receive_one(&mut self, queue_pair: u32) -> Result<Option<Vec<u8>>, Lost> {
        let mut packet = None;
        self.receive(queue_pair, 1, |received| {
            let mut bytes = Vec::new();
            received.append_to(&mut bytes);
            packet = Some(bytes);
        })?;
        Ok(packet)
    }
}
