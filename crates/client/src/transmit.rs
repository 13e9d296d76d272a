//! The transmit side of a session: its queues, the pool of its buffers, and what the server is yet
//! to be told.

use std::sync::Arc;

use towpath_packet::Meta;
use towpath_packet::flow::FLOW_BYTES;
use towpath_queue::Violation;
use towpath_queue::buffers::FreeBuffers;
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN};

use crate::error::{Lost, QueuePairError, SendError};
use crate::hold::DoorbellHold;
use crate::ids::QueuePair;
use crate::lanes::{TransmitLane, TransmitPair, lane_of};
use crate::options::{Endpoint, Statistics};
use crate::pool::{LentBuffers, TransmitPool};
use crate::ready::Ready;
use crate::status::Status;

/// See the module.
pub(crate) struct Transmit {
    pub(crate) lanes: Box<[TransmitLane]>,
    /// The transmit queues of all lanes: first all of the first lane, and so on.
    pub(crate) pairs: Vec<TransmitPair>,
    /// The number of queue pairs of each lane.
    pub(crate) per_lane: usize,
    /// The longest packet that the client writes without looking for its lane: a buffer's data
    /// bytes, or 0 if there are several lanes.
    pub(crate) direct_bytes: usize,
    pub(crate) pool: TransmitPool,
    pub(crate) free: FreeBuffers,
    /// The pool as the reserved buffers know it, with the dropped buffers that the client has yet to free.
    pub(crate) lent: Arc<LentBuffers>,
    pub(crate) expedited_queue_pair: Option<QueuePair>,
    pub(crate) hold: DoorbellHold,
    /// Queue pairs with packets that are not published.
    pub(crate) dirty: Vec<u32>,
    /// The counts that sending changes; the other fields are zero.
    pub(crate) statistics: Statistics,
}

/// A packet that is to be queued.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) queue_pair: QueuePair,
    pub(crate) len: usize,
    pub(crate) meta: Meta,
    pub(crate) flags: u16,
}

impl Transmit {
    /// Returns the queue pair of a lane that the application knows by this number.
    ///
    /// # Errors
    /// [`QueuePairError::NoQueuePair`].
    #[inline]
    pub(crate) fn unit(&self, queue_pair: QueuePair, lane: usize) -> Result<usize, QueuePairError> {
        let number = queue_pair.number() as usize;
        if number >= self.per_lane {
            let queue_pairs = self.per_lane as u32;
            return Err(QueuePairError::NoQueuePair { queue_pair, queue_pairs });
        }
        Ok(lane * self.per_lane + number)
    }

    /// Returns `true` if the queue pairs of all lanes that the application knows by this number
    /// have so many buffers of room together, as far as the client knows. Together they take at
    /// most as many buffers as one of them has slots, which is the queue pair's share of the pool.
    fn fits(&self, first: usize, needed: usize) -> bool {
        let pairs = self.pairs.iter().skip(first).step_by(self.per_lane);
        let slots = pairs.clone().map(|pair| pair.queue.capacity()).min().unwrap_or(0);
        let used: u32 = pairs.map(|pair| pair.queue.capacity() - pair.queue.room()).sum();
        self.free.len() >= needed && used as usize + needed <= slots as usize
    }

    /// Reclaims the completed buffers of the queue pairs of all lanes whose first one is `first`, and
    /// the buffers that the application has dropped.
    fn reclaim(&mut self, first: usize) -> Result<(), Violation> {
        let free = &mut self.free;
        for pair in self.pairs.iter_mut().skip(first).step_by(self.per_lane) {
            pair.queue.reclaim(|buffer| free.release(buffer))?;
        }
        self.reclaim_lent();
        Ok(())
    }

    /// Frees the reserved buffers that the application has dropped.
    pub(crate) fn reclaim_lent(&mut self) {
        let free = &mut self.free;
        self.lent.take_returned(|buffer| free.release(buffer));
    }

    /// Reclaims completed buffers. Returns how many buffers of a queue pair are unsent.
    pub(crate) fn unsent(
        &mut self,
        status: &Status,
        queue_pair: QueuePair,
    ) -> Result<u32, QueuePairError> {
        status.check()?;
        let first = self.unit(queue_pair, 0)?;
        self.reclaim(first).map_err(|violation| status.wrong(violation))?;
        let pairs = self.pairs.iter().skip(first).step_by(self.per_lane);
        Ok(pairs.map(|pair| pair.queue.in_flight()).sum())
    }

    /// Returns `true` if a packet of `len` bytes would find room now.
    pub(crate) fn has_room(
        &mut self,
        status: &Status,
        queue_pair: QueuePair,
        len: usize,
    ) -> Result<bool, QueuePairError> {
        status.check()?;
        let first = self.unit(queue_pair, 0)?;
        let needed = len.div_ceil(self.pool.data_bytes());
        if needed == 0 || needed > MAX_CHAIN {
            return Ok(false);
        }
        if self.fits(first, needed) {
            return Ok(true);
        }
        self.unsent(status, queue_pair)?;
        Ok(self.fits(first, needed))
    }

    /// Requests that the client enters a queue pair into `ready` when half of its buffers in flight
    /// are completed.
    pub(crate) fn want_room(
        &mut self,
        status: &Status,
        ready: &mut Ready,
        queue_pair: QueuePair,
    ) -> Result<(), QueuePairError> {
        status.check()?;
        let first = self.unit(queue_pair, 0)?;
        let units = (first..self.pairs.len()).step_by(self.per_lane);
        let fullest = units.max_by_key(|unit| self.pairs[*unit].queue.in_flight());
        let unit = fullest.unwrap_or(first);
        let pair = &mut self.pairs[unit];
        let half = pair.queue.in_flight().div_ceil(2);
        pair.queue.want(half);
        pair.wants = true;
        // One check after the request is written: later completions come with an event.
        Ok(self.poll_for_room(status, ready, unit)?)
    }

    /// Checks whether a queue pair has the room that the application requested.
    pub(crate) fn poll_for_room(
        &mut self,
        status: &Status,
        ready: &mut Ready,
        unit: usize,
    ) -> Result<(), Lost> {
        status.check()?;
        let first = self.pairs[unit].number as usize;
        self.reclaim(first).map_err(|violation| status.wrong(violation))?;
        let pair = &mut self.pairs[unit];
        if pair.queue.has_what_it_wanted() {
            // The client reports this room even if the application has not asked for the last
            // report.
            (pair.wants, pair.room, pair.room_told) = (false, true, false);
            ready.enter(unit as u32);
        }
        Ok(())
    }

    /// Returns the lane of the packet of `len` bytes that begins in a buffer.
    pub(crate) fn lane_of(&mut self, buffer: u32, len: usize) -> usize {
        let lanes = self.lanes.len();
        if lanes == 1 {
            return 0;
        }
        let len = len.min(self.pool.data_bytes()).min(FLOW_BYTES);
        self.pool.bytes_mut(buffer, len).map_or(0, |beginning| lane_of(beginning, lanes))
    }

    /// Puts descriptors into a transmit queue.
    pub(crate) fn push(&mut self, unit: usize, descriptors: &[Descriptor]) -> bool {
        let pair = &mut self.pairs[unit];
        if !pair.queue.push(descriptors) {
            return false;
        }
        if !pair.dirty {
            pair.dirty = true;
            self.dirty.push(unit as u32);
        }
        self.statistics.sent += 1;
        true
    }

    /// Queues what `fill` writes, of `len` bytes and with these flags, in one buffer on an endpoint's
    /// queue pair in the first lane. Returns `false` if there is no room.
    pub(crate) fn push_message(
        &mut self,
        status: &Status,
        endpoint: Endpoint,
        (len, flags): (usize, u16),
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<bool, QueuePairError> {
        let unit = self.unit(endpoint.queue_pair, 0)?;
        if !self.has_room(status, endpoint.queue_pair, len)? {
            return Ok(false);
        }
        let Some(buffer) = self.free.take() else { return Ok(false) };
        let descriptor = self.pool.write_one(buffer, len, endpoint.number, |parts| {
            if let [part] = parts {
                fill(part);
            }
        });
        let pushed = self.push(unit, &[Descriptor { flags, ..descriptor }]);
        debug_assert!(pushed, "there was room");
        Ok(true)
    }

    /// Queues a packet of any kind on an endpoint, and reclaims buffers for it.
    #[inline(never)]
    pub(crate) fn put_any(
        &mut self,
        status: &Status,
        endpoint: Endpoint,
        packet: Outgoing,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        // An application that only sends takes no events.
        status.update_revoked();
        if status.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        self.put_chosen(status, packet, |parts| {
            fill(parts);
            Some(endpoint.number)
        })
    }

    /// Queues a packet on the endpoint that `fill` returns, and reclaims buffers for it.
    pub(crate) fn put_chosen(
        &mut self,
        status: &Status,
        packet: Outgoing,
        fill: impl FnOnce(&mut [&mut [u8]]) -> Option<u32>,
    ) -> Result<(), SendError> {
        let Outgoing { queue_pair, len, meta, flags } = packet;
        let data_bytes = self.pool.data_bytes();
        let needed =
            if len <= data_bytes { usize::from(len > 0) } else { len.div_ceil(data_bytes) };
        let first = self.unit(queue_pair, 0)?;
        let most = MAX_CHAIN.min(self.pairs[first].queue.capacity() as usize);
        if needed == 0 || needed > most {
            return Err(SendError::Length { len, max: most * data_bytes });
        }
        // `fill` runs only if the packet finds room, whatever its lane.
        if !self.fits(first, needed) {
            if let Err(violation) = self.reclaim(first) {
                return Err(status.wrong(violation).into());
            }
            if !self.fits(first, needed) {
                return Err(SendError::Full);
            }
        }
        // There are enough buffers, as just checked.
        let mut buffers = [0; MAX_CHAIN];
        for buffer in &mut buffers[..needed] {
            *buffer = self.free.take().unwrap_or(0);
        }
        let mut endpoint = None;
        let (mut descriptors, count) =
            self.pool.write(&buffers[..needed], len, meta, |parts| endpoint = fill(parts));
        let Some(endpoint) = endpoint else {
            buffers[..needed].iter().for_each(|buffer| self.free.release(*buffer));
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
}
