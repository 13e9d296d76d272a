//! A session's receive side: the application reads packets in place, and the client provides empty
//! buffers.

use towpath_queue::Violation;
use towpath_queue::descriptor::prefetch_distance;

use crate::error::Lost;
use crate::lanes::QueuePair;
use crate::pool::Received;
use crate::session::Session;

impl Session {
    /// Provides empty buffers, up to the limit for one queue pair ([`crate::Options::provided`]).
    pub(crate) fn provide(&mut self, unit: usize) {
        let pair = &mut self.queue_pairs[unit];
        let limit = self.provided;
        let most = limit.saturating_sub(pair.receive.in_flight());
        pair.receive.provide_from(&mut self.lanes[pair.lane].receive_free, most);
    }

    /// Passes at most `budget` received packets of a queue pair to `each`, which reads them in
    /// place. The client provides the packets' buffers again afterwards. Returns the number of
    /// packets.
    ///
    /// # Errors
    /// [`Lost`].
    ///
    /// # Panics
    /// When there is no such queue pair. When `each` panics, packets that the client took together
    /// with the current one are lost.
    pub fn receive(
        &mut self,
        queue_pair: u32,
        budget: usize,
        mut each: impl FnMut(Received<'_>),
    ) -> Result<usize, Lost> {
        self.check()?;
        let queue_pair = queue_pair as usize;
        assert!(queue_pair < self.per_lane, "there is no queue pair {queue_pair}");
        let got = if self.lanes.len() == 1 {
            self.receive_unit(queue_pair, budget, &mut each)?
        } else {
            self.receive_lanes(queue_pair, budget, &mut each)?
        };
        if got == 0 && self.hung_up && !self.start_resuming() {
            return Err(self.over());
        }
        Ok(got)
    }

    /// Receives from the queue pairs of all lanes that the application knows by this number. The
    /// next call begins with the next lane.
    fn receive_lanes(
        &mut self,
        queue_pair: usize,
        budget: usize,
        each: &mut impl FnMut(Received<'_>),
    ) -> Result<usize, Lost> {
        let lanes = self.lanes.len();
        let first = self.next_lane;
        self.next_lane = (first + 1) % lanes;
        let mut got = 0;
        for lane in (first..lanes).chain(0..first) {
            got += self.receive_unit(lane * self.per_lane + queue_pair, budget - got, each)?;
        }
        Ok(got)
    }

    /// Receives from the queue pair of one lane.
    #[inline]
    fn receive_unit(
        &mut self,
        unit: usize,
        budget: usize,
        each: &mut impl FnMut(Received<'_>),
    ) -> Result<usize, Lost> {
        let mut got = 0;
        while got < budget {
            let (packets, slots) = match self.take(unit, budget - got) {
                Ok(taken) => taken,
                Err(violation) => return Err(self.wrong(violation)),
            };
            if packets == 0 {
                break;
            }
            let taken = &mut self.taken[..slots];
            let QueuePair { lane, first_buffer, .. } = self.queue_pairs[unit];
            // The free list returns the last released buffer first: buffers that follow each other
            // in the pool stay in order, so that the engine can place a large packet in one piece.
            self.lanes[lane].receive_free.release_all(taken.iter().rev().map(|one| one.buffer));
            if first_buffer > 0 {
                taken.iter_mut().for_each(|one| one.buffer += first_buffer);
            }
            if packets < slots {
                each(Received::new(&self.receive_pool, taken));
            } else {
                self.read_singles(unit, slots, each);
            }
            got += packets;
            self.provide(unit);
        }
        if got > 0 {
            self.statistics.received += got as u64;
            // The server sees no provided buffer before the last packet is read.
            self.queue_pairs[unit].receive.publish();
            // Applications often answer, so this prefetches the next free transmit buffer.
            if let Some(next) = self.transmit_free.next(0) {
                self.transmit_pool.prefetch(next, self.length);
            }
        }
        Ok(got)
    }

    /// Takes packets, and prefetches the first of them: either packets in one buffer each, or one
    /// in several. Returns the numbers of packets and of buffers, of which `taken` has the
    /// descriptors.
    #[inline]
    fn take(&mut self, unit: usize, most: usize) -> Result<(usize, usize), Violation> {
        let pair = &mut self.queue_pairs[unit];
        if pair.receive.waiting() == 0 {
            pair.receive.observe()?;
            let first = prefetch_distance(self.length);
            for buffer in (0..first).map_while(|ahead| pair.receive.waiting_buffer(ahead)) {
                self.receive_pool.prefetch(pair.first_buffer + buffer, self.length);
            }
        }
        let most = most.min(self.taken.len());
        let singles = pair.receive.take_singles(&mut self.taken[..most])?;
        if singles > 0 {
            return Ok((singles, singles));
        }
        let slots = pair.receive.take(&mut self.taken)?;
        Ok((usize::from(slots > 0), slots))
    }

    /// Passes the packets in `taken`, of one buffer each, to `each`.
    #[inline]
    fn read_singles(&mut self, unit: usize, packets: usize, each: &mut impl FnMut(Received<'_>)) {
        let QueuePair { receive, first_buffer, .. } = &self.queue_pairs[unit];
        let taken = &self.taken[..packets];
        for (index, one) in taken.iter().enumerate() {
            // The next packet is usually as long as this one.
            self.length = one.len as usize;
            let ahead = index + prefetch_distance(self.length) as usize;
            let buffer = match taken.get(ahead) {
                Some(later) => Some(later.buffer),
                None => receive
                    .waiting_buffer((ahead - packets) as u32)
                    .map(|buffer| buffer + first_buffer),
            };
            if let Some(buffer) = buffer {
                self.receive_pool.prefetch(buffer, self.length);
            }
            each(Received::new(&self.receive_pool, std::slice::from_ref(one)));
        }
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
