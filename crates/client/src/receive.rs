//! A session's receive side: the application reads packets in place, and the client provides empty
//! buffers.

use towpath_queue::Violation;
use towpath_queue::buffers::FreeBuffers;
use towpath_queue::descriptor::{Descriptor, MAX_CHAIN, prefetch_distance};

use crate::error::{Lost, QueuePairError};
use crate::ids::QueuePair;
use crate::lanes::ReceivePair;
use crate::pool::{ReceivePool, Received};
use crate::status::Status;

/// The receive queues of a session, and the pool of its buffers.
pub(crate) struct Receive {
    /// The receive queues of all lanes: first all of the first lane, and so on.
    pub(crate) pairs: Vec<ReceivePair>,
    /// The number of queue pairs of each lane.
    per_lane: usize,
    /// The free buffers of each lane.
    free: Box<[FreeBuffers]>,
    /// The lane that the next call to receive begins with.
    next_lane: usize,
    pool: ReceivePool,
    /// The most buffers that the client provides for one queue pair.
    provided: u32,
    taken: [Descriptor; MAX_CHAIN],
    /// Length of the first buffer of the packet received last.
    length: usize,
    /// The number of packets received.
    received: u64,
}

/// The receiving part of a session ([`Session::receiver`](crate::Session::receiver),
/// [`Session::split`](crate::Session::split)).
///
/// It takes no time to get a receiver, so an application gets one where it receives, or keeps one.
/// Dropping it changes nothing: packets that wait stay in the queue.
pub struct Receiver<'a> {
    receive: &'a mut Receive,
    status: &'a Status,
}

impl std::fmt::Debug for Receiver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<'a> Receiver<'a> {
    #[inline]
    pub(crate) fn new(receive: &'a mut Receive, status: &'a Status) -> Receiver<'a> {
        Receiver { receive, status }
    }

    /// Passes at most `budget` received packets of a queue pair to `each`, which reads them in
    /// place. The client provides the packets' buffers again afterwards. Returns the number of
    /// packets.
    ///
    /// With the two halves of [`Session::split`](crate::Session::split), `each` can send.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let got = session.receiver().receive(QueuePair::FIRST, 64, |packet| {
    ///     println!("{} bytes for endpoint {}", packet.len(), packet.endpoint());
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError`].
    ///
    /// # Panics
    /// When `each` panics, packets that the client took together with the current one are lost.
    pub fn receive(
        &mut self,
        queue_pair: QueuePair,
        budget: usize,
        mut each: impl FnMut(Received<'_>),
    ) -> Result<usize, QueuePairError> {
        self.status.check()?;
        let receive = &mut *self.receive;
        let number = queue_pair.number() as usize;
        if number >= receive.per_lane {
            let queue_pairs = receive.per_lane as u32;
            return Err(QueuePairError::NoQueuePair { queue_pair, queue_pairs });
        }
        let got = if receive.free.len() == 1 {
            receive.receive_unit(self.status, number, budget, &mut each)?
        } else {
            receive.receive_lanes(self.status, number, budget, &mut each)?
        };
        if got == 0 {
            self.status.check_more_comes()?;
        }
        Ok(got)
    }

    /// Receives a copy of one packet of a queue pair; `None` when nothing waits.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(packet) = session.receiver().receive_one(QueuePair::FIRST)? {
    ///     println!("{packet:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError`].
    pub fn receive_one(
        &mut self,
        queue_pair: QueuePair,
    ) -> Result<Option<Vec<u8>>, QueuePairError> {
        let mut packet = None;
        self.receive(queue_pair, 1, |received| {
            let mut bytes = Vec::new();
            received.append_to(&mut bytes);
            packet = Some(bytes);
        })?;
        Ok(packet)
    }
}

impl Receive {
    /// Creates the receive side, and provides empty buffers.
    pub(crate) fn new(
        pairs: Vec<ReceivePair>,
        free: Vec<FreeBuffers>,
        pool: ReceivePool,
        provided: u32,
    ) -> Receive {
        let mut receive = Receive {
            per_lane: pairs.len() / free.len().max(1),
            pairs,
            free: free.into_boxed_slice(),
            next_lane: 0,
            pool,
            provided,
            taken: [Descriptor::default(); MAX_CHAIN],
            length: 64,
            received: 0,
        };
        for unit in 0..receive.pairs.len() {
            receive.provide(unit);
            receive.pairs[unit].queue.publish();
        }
        receive
    }

    /// Returns the number of packets received.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Returns how many bytes of packets the buffers of one lane hold.
    pub(crate) fn lane_bytes(&self) -> usize {
        self.pool.data_bytes() / self.free.len()
    }

    /// Returns the length of the packet received last, in its first buffer: an answer is often as
    /// long.
    #[inline]
    pub(crate) fn last_len(&self) -> usize {
        self.length
    }

    /// Provides empty buffers, up to the limit for one queue pair ([`crate::Options::provided`]).
    fn provide(&mut self, unit: usize) {
        let pair = &mut self.pairs[unit];
        let limit = self.provided;
        let most = limit.saturating_sub(pair.queue.in_flight());
        pair.queue.provide_from(&mut self.free[pair.lane], most);
    }

    /// Receives from the queue pairs of all lanes that the application knows by this number. The
    /// next call begins with the next lane.
    fn receive_lanes(
        &mut self,
        status: &Status,
        queue_pair: usize,
        budget: usize,
        each: &mut impl FnMut(Received<'_>),
    ) -> Result<usize, Lost> {
        let lanes = self.free.len();
        let first = self.next_lane;
        self.next_lane = (first + 1) % lanes;
        let mut got = 0;
        for lane in (first..lanes).chain(0..first) {
            got +=
                self.receive_unit(status, lane * self.per_lane + queue_pair, budget - got, each)?;
        }
        Ok(got)
    }

    /// Receives from the queue pair of one lane.
    #[inline]
    fn receive_unit(
        &mut self,
        status: &Status,
        unit: usize,
        budget: usize,
        each: &mut impl FnMut(Received<'_>),
    ) -> Result<usize, Lost> {
        let mut got = 0;
        while got < budget {
            let (packets, slots) = match self.take(unit, budget - got) {
                Ok(taken) => taken,
                Err(violation) => return Err(status.wrong(violation)),
            };
            if packets == 0 {
                break;
            }
            let taken = &mut self.taken[..slots];
            let ReceivePair { lane, first_buffer, .. } = self.pairs[unit];
            // The free list returns the last released buffer first: buffers that follow each other
            // in the pool stay in order, so that the engine can place a large packet in one piece.
            self.free[lane].release_all(taken.iter().rev().map(|one| one.buffer));
            if first_buffer > 0 {
                taken.iter_mut().for_each(|one| one.buffer += first_buffer);
            }
            if packets < slots {
                each(Received::new(&self.pool, taken));
            } else {
                self.read_singles(unit, slots, each);
            }
            got += packets;
            self.provide(unit);
        }
        if got > 0 {
            self.received += got as u64;
            // The server sees no provided buffer before the last packet is read.
            self.pairs[unit].queue.publish();
        }
        Ok(got)
    }

    /// Takes packets, and prefetches the first of them: either packets in one buffer each, or one
    /// in several. Returns the numbers of packets and of buffers, of which `taken` has the
    /// descriptors.
    #[inline]
    fn take(&mut self, unit: usize, most: usize) -> Result<(usize, usize), Violation> {
        let pair = &mut self.pairs[unit];
        if pair.queue.waiting() == 0 {
            pair.queue.observe()?;
            let first = prefetch_distance(self.length);
            for buffer in (0..first).map_while(|ahead| pair.queue.waiting_buffer(ahead)) {
                self.pool.prefetch(pair.first_buffer + buffer, self.length);
            }
        }
        let most = most.min(self.taken.len());
        let singles = pair.queue.take_singles(&mut self.taken[..most])?;
        if singles > 0 {
            return Ok((singles, singles));
        }
        let slots = pair.queue.take(&mut self.taken)?;
        Ok((usize::from(slots > 0), slots))
    }

    /// Passes the packets in `taken`, of one buffer each, to `each`.
    #[inline]
    fn read_singles(&mut self, unit: usize, packets: usize, each: &mut impl FnMut(Received<'_>)) {
        let ReceivePair { queue, first_buffer, .. } = &self.pairs[unit];
        let taken = &self.taken[..packets];
        for (index, one) in taken.iter().enumerate() {
            // The next packet is usually as long as this one.
            self.length = one.len as usize;
            let ahead = index + prefetch_distance(self.length) as usize;
            let buffer = match taken.get(ahead) {
                Some(later) => Some(later.buffer),
                None => queue
                    .waiting_buffer((ahead - packets) as u32)
                    .map(|buffer| buffer + first_buffer),
            };
            if let Some(buffer) = buffer {
                self.pool.prefetch(buffer, self.length);
            }
            each(Received::new(&self.pool, std::slice::from_ref(one)));
        }
    }
}
