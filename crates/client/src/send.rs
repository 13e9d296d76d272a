//! A session's transmit side: packets written in place, made known a batch at a time, and room.

use towpath_packet::Meta;
use towpath_queue::descriptor::{MAX_CHAIN, prefetch_distance};
use towpath_queue::{doorbell, events};

use crate::error::{Lost, SendError};
use crate::options::Endpoint;
use crate::session::Session;

impl Session {
    /// Puts a packet of `len` bytes into the transmit queue of an endpoint. `fill` writes it in
    /// place: into one slice, or into several one after the other when it is longer than a frame.
    /// It is sent with the next [`Session::flush`].
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued then.
    pub fn send(
        &mut self,
        endpoint: Endpoint,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        self.check()?;
        let data_bytes = self.transmit_heap.data_bytes();
        let needed =
            if len <= data_bytes { usize::from(len > 0) } else { len.div_ceil(data_bytes) };
        let set = &mut self.queue_sets[endpoint.queue_set as usize];
        if needed == 0 || needed > MAX_CHAIN.min(set.transmit.capacity() as usize) {
            let max = MAX_CHAIN.min(set.transmit.capacity() as usize) * data_bytes;
            return Err(SendError::Length { len, max });
        }
        if (set.transmit.room() as usize) < needed || self.transmit_free.len() < needed {
            let free = &mut self.transmit_free;
            if let Err(violation) = set.transmit.reclaim(|frame| free.give_back(frame)) {
                return Err(self.wrong(violation).into());
            }
            if (set.transmit.room() as usize) < needed || self.transmit_free.len() < needed {
                return Err(SendError::Full);
            }
        }
        // There are enough frames, as just looked at.
        if let Some(frame) = self.transmit_free.next(prefetch_distance(len) as usize) {
            self.transmit_heap.prefetch(frame, len);
        }
        let pushed = if needed == 1 && meta.is_finished() {
            let frame = self.transmit_free.take().unwrap_or(0);
            let descriptor = self.transmit_heap.write_one(frame, len, endpoint.number, fill);
            set.transmit.push(&[descriptor])
        } else {
            let mut frames = [0; MAX_CHAIN];
            for frame in &mut frames[..needed] {
                *frame = self.transmit_free.take().unwrap_or(0);
            }
            let (descriptors, count) =
                self.transmit_heap.write(&frames[..needed], len, meta, endpoint.number, fill);
            set.transmit.push(&descriptors[..count])
        };
        debug_assert!(pushed, "there was room");
        if !set.dirty {
            set.dirty = true;
            self.dirty.push(endpoint.queue_set);
        }
        self.statistics.sent += 1;
        Ok(())
    }

    /// Whether a packet of `len` bytes would be taken by [`Session::send`] now.
    pub fn has_room(&mut self, endpoint: Endpoint, len: usize) -> bool {
        let needed = len.div_ceil(self.transmit_heap.data_bytes());
        let fits = |session: &Session| {
            let set = &session.queue_sets[endpoint.queue_set as usize];
            set.transmit.room() as usize >= needed && session.transmit_free.len() >= needed
        };
        if self.check().is_err() || needed == 0 || needed > MAX_CHAIN {
            return false;
        }
        fits(self) || (self.unsent(endpoint.queue_set).is_ok() && fits(self))
    }

    /// Puts a finished packet into the transmit queue of an endpoint.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued then.
    pub fn send_bytes(&mut self, endpoint: Endpoint, packet: &[u8]) -> Result<(), SendError> {
        self.send(endpoint, packet.len(), Meta::FINISHED, |parts| {
            let mut rest = packet;
            for part in parts {
                let (now, later) = rest.split_at(part.len());
                part.copy_from_slice(now);
                rest = later;
            }
        })
    }

    /// Makes everything queued known to the server, and wakes it if it sleeps: once a batch.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn flush(&mut self) -> Result<(), Lost> {
        self.check()?;
        if self.dirty.is_empty() {
            return Ok(());
        }
        for queue_set in &self.dirty {
            self.queue_sets[*queue_set as usize].transmit.publish();
        }
        let fenced = events::fence();
        let mut outcome = Ok(());
        for queue_set in &self.dirty {
            self.queue_sets[*queue_set as usize].dirty = false;
            outcome = outcome.and(self.marker.mark(fenced, *queue_set).map(|_| ()));
        }
        self.dirty.clear();
        if let Err(violation) = outcome {
            return Err(self.wrong(violation));
        }
        self.statistics.batches += 1;
        if self.marker.publish() && self.ringer.must_ring(doorbell::fence()) {
            self.statistics.rings += 1;
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Asks that [`Session::wait`] also returns when half of what a queue set has to send is sent.
    /// Once: ask again for the next time.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn want_room(&mut self, queue_set: u32) -> Result<(), Lost> {
        self.check()?;
        let set = &mut self.queue_sets[queue_set as usize];
        let half = set.transmit.in_flight().div_ceil(2);
        set.transmit.want(half);
        if !self.wanting.contains(&queue_set) {
            self.wanting.push(queue_set);
        }
        Ok(())
    }

    /// Looks what is sent; answers how many frames of a queue set's transmit queue are not.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn unsent(&mut self, queue_set: u32) -> Result<u32, Lost> {
        self.check()?;
        let set = &mut self.queue_sets[queue_set as usize];
        let free = &mut self.transmit_free;
        let outcome = set.transmit.reclaim(|frame| free.give_back(frame));
        match outcome {
            Ok(_) => Ok(set.transmit.in_flight()),
            Err(violation) => Err(self.wrong(violation)),
        }
    }
}
