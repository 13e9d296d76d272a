//! A session's transmit side: the client writes packets in place, publishes them in batches, and
//! waits for room.

use towpath_packet::Meta;
use towpath_packet::flow::FLOW_BYTES;
use towpath_queue::Violation;
use towpath_queue::descriptor::{
    Descriptor, EXPEDITED, EXPEDITED_BYTES, MAX_CHAIN, TOGETHER, prefetch_distance,
};

use crate::error::{Lost, SendError};
use crate::lanes::lane_of;
use crate::options::Endpoint;
use crate::session::Session;

impl Session {
    /// Queues a packet of `len` bytes on an endpoint. `fill` writes the packet in place: into one
    /// slice, or into several in order if the packet is longer than a buffer. The next
    /// [`Session::flush`] sends the packet.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send(
        &mut self,
        endpoint: Endpoint,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        self.put(endpoint, endpoint.queue_pair, len, meta, 0, fill)
    }

    /// Queues a packet as [`Session::send`] does; the next packet on this queue pair belongs to the
    /// same message. The engine sends no other packet between the two to the device, if both are
    /// published when the engine takes the first, up to the endpoint's setting `max_message_bytes`.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send_more(
        &mut self,
        endpoint: Endpoint,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        self.put(endpoint, endpoint.queue_pair, len, meta, TOGETHER, fill)
    }

    /// Queues an expedited packet of at most [`EXPEDITED_BYTES`] bytes, Ethernet header included,
    /// with full checksums. The engine sends it ahead of the backlog and of every scheduled packet,
    /// to the device or to an endpoint of this host. In each poll iteration the device's setting
    /// `expedited` limits the number of expedited packets of all applications together; the engine
    /// sends the rest after them. The endpoint's rights, rates and quotas apply.
    ///
    /// The packet uses the queue pair of
    /// [`Options::expedited_queue_pair`](crate::Options::expedited_queue_pair), where only other
    /// expedited packets wait before it. Without that option it waits in the endpoint's own queue
    /// pair for earlier packets. Once it is at the head, it overtakes the packets that wait for the
    /// device. In the middle of a message of several packets, the engine sends it with that
    /// message. Either way it may overtake packets that this endpoint sent earlier; expedited
    /// packets stay in order.
    ///
    /// The next [`Session::flush`] sends the packet.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send_expedited(&mut self, endpoint: Endpoint, packet: &[u8]) -> Result<(), SendError> {
        let (len, max) =
            (packet.len(), self.transmit_pool.data_bytes().min(EXPEDITED_BYTES as usize));
        if len > max {
            return Err(SendError::Length { len, max });
        }
        let queue_pair = self.expedited_queue_pair.unwrap_or(endpoint.queue_pair);
        self.put(endpoint, queue_pair, len, Meta::FULL, EXPEDITED, |parts| {
            if let [part] = parts {
                part.copy_from_slice(packet);
            }
        })
    }

    /// Queues a packet of `len` bytes whose endpoint follows from its bytes. `fill` writes the
    /// packet, as in [`Session::send`], and returns its endpoint, one of the queue pair
    /// `queue_pair`. With `None`, or an endpoint of another queue pair, the session drops the
    /// packet.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send_chosen(
        &mut self,
        queue_pair: u32,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]) -> Option<Endpoint>,
    ) -> Result<(), SendError> {
        self.check()?;
        self.update_revoked();
        self.put_chosen(queue_pair, len, meta, 0, |parts| {
            fill(parts).filter(|one| one.queue_pair == queue_pair).map(|one| one.number)
        })
    }

    /// Queues most packets here: in one buffer, with full checksums, and with room for them.
    #[inline]
    fn put(
        &mut self,
        endpoint: Endpoint,
        queue_pair: u32,
        len: usize,
        meta: Meta,
        flags: u16,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        self.check()?;
        if self.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        if meta.is_full()
            // With several lanes, the packet itself tells which one it takes.
            && len.wrapping_sub(1) < self.direct_bytes
            && let Some(pair) = self.queue_pairs.get_mut(queue_pair as usize)
            && let Some(slot) = pair.transmit.free_slot()
            && let Some(buffer) = self.transmit_free.take()
        {
            if let Some(later) = self.transmit_free.next(prefetch_distance(len) as usize - 1) {
                self.transmit_pool.prefetch(later, len);
            }
            let descriptor = self.transmit_pool.write_one(buffer, len, endpoint.number, fill);
            slot.push(Descriptor { flags, ..descriptor });
            if !pair.dirty {
                pair.dirty = true;
                self.dirty.push(queue_pair);
                // The flush of this batch will write these lines, which the engine's core has
                // cached.
                pair.transmit.prefetch_publication();
                self.lanes[0].marker.prefetch(queue_pair);
            }
            self.statistics.sent += 1;
            return Ok(());
        }
        self.put_any(endpoint, queue_pair, len, meta, flags, fill)
    }

    /// Queues a packet of any kind, and reclaims buffers for it.
    #[inline(never)]
    fn put_any(
        &mut self,
        endpoint: Endpoint,
        queue_pair: u32,
        len: usize,
        meta: Meta,
        flags: u16,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        // An application that only sends takes no events.
        self.update_revoked();
        if self.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        self.put_chosen(queue_pair, len, meta, flags, |parts| {
            fill(parts);
            Some(endpoint.number)
        })
    }

    /// Returns the queue pair of a lane that the application knows by this number.
    ///
    /// # Errors
    /// [`SendError::NoQueuePair`].
    pub(crate) fn unit(&self, queue_pair: u32, lane: usize) -> Result<usize, SendError> {
        let queue_pairs = self.per_lane as u32;
        if queue_pair >= queue_pairs {
            return Err(SendError::NoQueuePair { queue_pair, queue_pairs });
        }
        Ok(lane * self.per_lane + queue_pair as usize)
    }

    /// Returns `true` if the queue pairs of all lanes that the application knows by this number
    /// have so many buffers of room together, as far as the client knows. Together they take at
    /// most as many buffers as one of them has slots, which is the queue pair's share of the pool.
    fn fits(&self, queue_pair: usize, needed: usize) -> bool {
        let pairs = self.queue_pairs.iter().skip(queue_pair).step_by(self.per_lane);
        let slots = pairs.clone().map(|pair| pair.transmit.capacity()).min().unwrap_or(0);
        let used: u32 = pairs.map(|pair| pair.transmit.capacity() - pair.transmit.room()).sum();
        self.transmit_free.len() >= needed && used as usize + needed <= slots as usize
    }

    /// Reclaims the completed buffers of the queue pairs of all lanes that the application knows by
    /// this number.
    fn reclaim(&mut self, queue_pair: usize) -> Result<(), Violation> {
        let free = &mut self.transmit_free;
        for pair in self.queue_pairs.iter_mut().skip(queue_pair).step_by(self.per_lane) {
            pair.transmit.reclaim(|buffer| free.release(buffer))?;
        }
        Ok(())
    }

    /// Returns the lane of the packet of `len` bytes that begins in a buffer.
    pub(crate) fn lane_of(&mut self, buffer: u32, len: usize) -> usize {
        let lanes = self.lanes.len();
        if lanes == 1 {
            return 0;
        }
        let len = len.min(self.transmit_pool.data_bytes()).min(FLOW_BYTES);
        self.transmit_pool.bytes_mut(buffer, len).map_or(0, |beginning| lane_of(beginning, lanes))
    }

    /// Puts descriptors into a transmit queue.
    pub(crate) fn push(&mut self, unit: usize, descriptors: &[Descriptor]) -> bool {
        let pair = &mut self.queue_pairs[unit];
        if !pair.transmit.push(descriptors) {
            return false;
        }
        if !pair.dirty {
            pair.dirty = true;
            self.dirty.push(unit as u32);
        }
        self.statistics.sent += 1;
        true
    }

    /// Queues a packet on the endpoint that `fill` returns, and reclaims buffers for it.
    fn put_chosen(
        &mut self,
        queue_pair: u32,
        len: usize,
        meta: Meta,
        flags: u16,
        fill: impl FnOnce(&mut [&mut [u8]]) -> Option<u32>,
    ) -> Result<(), SendError> {
        let data_bytes = self.transmit_pool.data_bytes();
        let needed =
            if len <= data_bytes { usize::from(len > 0) } else { len.div_ceil(data_bytes) };
        let first = self.unit(queue_pair, 0)?;
        let most = MAX_CHAIN.min(self.queue_pairs[first].transmit.capacity() as usize);
        if needed == 0 || needed > most {
            return Err(SendError::Length { len, max: most * data_bytes });
        }
        // `fill` runs only if the packet finds room, whatever its lane.
        if !self.fits(first, needed) {
            if let Err(violation) = self.reclaim(first) {
                return Err(self.wrong(violation).into());
            }
            if !self.fits(first, needed) {
                return Err(SendError::Full);
            }
        }
        // There are enough buffers, as just checked.
        let mut buffers = [0; MAX_CHAIN];
        for buffer in &mut buffers[..needed] {
            *buffer = self.transmit_free.take().unwrap_or(0);
        }
        let mut endpoint = None;
        let (mut descriptors, count) =
            self.transmit_pool.write(&buffers[..needed], len, meta, |parts| endpoint = fill(parts));
        let Some(endpoint) = endpoint else {
            buffers[..needed].iter().for_each(|buffer| self.transmit_free.release(*buffer));
            return Ok(());
        };
        descriptors[..count].iter_mut().for_each(|one| one.endpoint = endpoint);
        descriptors[count - 1].flags |= flags;
        let lane = self.lane_of(buffers[0], len);
        let unit = self.unit(queue_pair, lane)?;
        let pushed = self.push(unit, &descriptors[..count]);
        debug_assert!(pushed, "there was room");
        Ok(())
    }

    /// `true` if [`Session::send`] would accept a packet of `len` bytes now.
    pub fn has_room(&mut self, endpoint: Endpoint, len: usize) -> bool {
        self.has_room_in(endpoint.queue_pair, len)
    }

    /// `true` if [`Session::send_chosen`] would accept a packet of `len` bytes now.
    pub fn has_room_in(&mut self, queue_pair: u32, len: usize) -> bool {
        let needed = len.div_ceil(self.transmit_pool.data_bytes());
        let queue_pair = queue_pair as usize;
        let is_there = queue_pair < self.per_lane;
        if self.check().is_err() || !is_there || needed == 0 || needed > MAX_CHAIN {
            return false;
        }
        self.fits(queue_pair, needed)
            || (self.unsent(queue_pair as u32).is_ok() && self.fits(queue_pair, needed))
    }

    /// Queues a copy of a packet with full checksums on an endpoint.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send_bytes(&mut self, endpoint: Endpoint, packet: &[u8]) -> Result<(), SendError> {
        self.send(endpoint, packet.len(), Meta::FULL, |parts| {
            let mut rest = packet;
            for part in parts {
                let (now, later) = rest.split_at(part.len());
                part.copy_from_slice(now);
                rest = later;
            }
        })
    }

    /// Requests that [`Session::wait`] also returns when half of a queue pair's buffers in flight
    /// are completed. Each request is answered once.
    ///
    /// # Errors
    /// [`Lost`].
    ///
    /// # Panics
    /// When there is no such queue pair.
    pub fn want_room(&mut self, queue_pair: u32) -> Result<(), Lost> {
        self.check()?;
        let unit = self.fullest(queue_pair as usize);
        let pair = &mut self.queue_pairs[unit];
        let half = pair.transmit.in_flight().div_ceil(2);
        pair.transmit.want(half);
        pair.wants = true;
        // One check after the request is written: later completions come with an event.
        self.poll_for_room(unit)
    }

    /// Returns the fullest of the queue pairs of all lanes that the application knows by this
    /// number.
    fn fullest(&self, queue_pair: usize) -> usize {
        assert!(queue_pair < self.per_lane, "there is no queue pair {queue_pair}");
        let units = (queue_pair..self.queue_pairs.len()).step_by(self.per_lane);
        units.max_by_key(|unit| self.queue_pairs[*unit].transmit.in_flight()).unwrap_or(queue_pair)
    }

    /// Checks whether a queue pair has the room that the application requested.
    pub(crate) fn poll_for_room(&mut self, unit: usize) -> Result<(), Lost> {
        self.unsent(self.queue_pairs[unit].number)?;
        let pair = &mut self.queue_pairs[unit];
        if pair.transmit.has_what_it_wanted() {
            // The client reports this room even if the application has not asked for the last
            // report.
            (pair.wants, pair.room, pair.room_told) = (false, true, false);
            if !pair.ready {
                pair.ready = true;
                self.ready.push_back(unit as u32);
            }
        }
        Ok(())
    }

    /// Reclaims completed buffers. Returns how many buffers of a queue pair's transmit queue are
    /// unsent.
    ///
    /// # Errors
    /// [`Lost`].
    ///
    /// # Panics
    /// When there is no such queue pair.
    pub fn unsent(&mut self, queue_pair: u32) -> Result<u32, Lost> {
        self.check()?;
        let queue_pair = queue_pair as usize;
        assert!(queue_pair < self.per_lane, "there is no queue pair {queue_pair}");
        if let Err(violation) = self.reclaim(queue_pair) {
            return Err(self.wrong(violation));
        }
        let pairs = self.queue_pairs.iter().skip(queue_pair).step_by(self.per_lane);
        Ok(pairs.map(|pair| pair.transmit.in_flight()).sum())
    }
}
