//! Sending: the application writes packets in place, and waits for room.

use towpath_packet::Meta;
use towpath_queue::descriptor::{
    Descriptor, EXPEDITED, EXPEDITED_BYTES, TOGETHER, prefetch_distance,
};

use crate::error::{QueuePairError, SendError};
use crate::ids::QueuePair;
use crate::options::Endpoint;
use crate::ready::Ready;
use crate::status::Status;
use crate::transmit::{Outgoing, Transmit};

/// The sending part of a session ([`Session::sender`](crate::Session::sender),
/// [`Session::split`](crate::Session::split)): the client writes packets in place, publishes them in
/// batches, and reports room.
///
/// It takes no time to get a sender, so an application gets one where it sends, or keeps one while it
/// sends much. Dropping it changes nothing: packets that are queued stay queued.
pub struct Sender<'a> {
    pub(crate) transmit: &'a mut Transmit,
    pub(crate) status: &'a Status,
    ready: &'a mut Ready,
}

impl std::fmt::Debug for Sender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<'a> Sender<'a> {
    #[inline]
    pub(crate) fn new(
        transmit: &'a mut Transmit,
        status: &'a Status,
        ready: &'a mut Ready,
    ) -> Sender<'a> {
        Sender { transmit, status, ready }
    }

    /// Queues a packet of `len` bytes on an endpoint. `fill` writes the packet in place: into one
    /// slice, or into several in order if the packet is longer than a buffer. The next
    /// [`Sender::flush`] sends the packet.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// session.sender().send(endpoint, 60, Meta::FULL, |parts| {
    ///     for part in parts {
    ///         part.fill(0);
    ///     }
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    #[inline]
    pub fn send(
        &mut self,
        endpoint: Endpoint,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        self.put(endpoint, endpoint.queue_pair, len, meta, 0, fill)
    }

    /// Queues a packet as [`Sender::send`] does; the next packet on this queue pair belongs to the
    /// same message. The engine sends no other packet between the two to the device, if both are
    /// published when the engine takes the first, up to the endpoint's setting `max_message_bytes`.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut sender = session.sender();
    /// sender.send_more(endpoint, 60, Meta::FULL, |parts| parts[0].fill(1))?;
    /// sender.send(endpoint, 60, Meta::FULL, |parts| parts[0].fill(2))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    #[inline]
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
    /// The next [`Sender::flush`] sends the packet.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, packet: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// session.sender().send_expedited(endpoint, packet)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send_expedited(&mut self, endpoint: Endpoint, packet: &[u8]) -> Result<(), SendError> {
        let (len, max) =
            (packet.len(), self.transmit.pool.data_bytes().min(EXPEDITED_BYTES as usize));
        if len > max {
            return Err(SendError::Length { len, max });
        }
        let queue_pair = self.transmit.expedited_queue_pair.unwrap_or(endpoint.queue_pair);
        self.put(endpoint, queue_pair, len, Meta::FULL, EXPEDITED, |parts| {
            if let [part] = parts {
                part.copy_from_slice(packet);
            }
        })
    }

    /// Queues a packet of `len` bytes whose endpoint follows from its bytes. `fill` writes the
    /// packet, as in [`Sender::send`], and returns its endpoint, one of the queue pair
    /// `queue_pair`. With `None`, or an endpoint of another queue pair, the session drops the
    /// packet.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoints: &[Endpoint]) -> Result<(), Box<dyn std::error::Error>> {
    /// session.sender().send_chosen(QueuePair::FIRST, 60, Meta::FULL, |parts| {
    ///     parts[0].fill(0);
    ///     endpoints.first().copied()
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
    pub fn send_chosen(
        &mut self,
        queue_pair: QueuePair,
        len: usize,
        meta: Meta,
        fill: impl FnOnce(&mut [&mut [u8]]) -> Option<Endpoint>,
    ) -> Result<(), SendError> {
        self.status.check()?;
        self.status.update_revoked();
        let packet = Outgoing { queue_pair, len, meta, flags: 0 };
        self.transmit.put_chosen(self.status, packet, |parts| {
            fill(parts).filter(|one| one.queue_pair == queue_pair).map(|one| one.number)
        })
    }

    /// Queues a copy of a packet with full checksums on an endpoint.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, packet: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// session.sender().send_bytes(endpoint, packet)?;
    /// session.sender().flush()?;
    /// # Ok(()) }
    /// ```
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

    /// Queues most packets here: in one buffer, with full checksums, and with room for them.
    #[inline]
    fn put(
        &mut self,
        endpoint: Endpoint,
        queue_pair: QueuePair,
        len: usize,
        meta: Meta,
        flags: u16,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), SendError> {
        self.status.check()?;
        if self.status.is_revoked(endpoint) {
            return Err(SendError::Revoked);
        }
        let transmit = &mut *self.transmit;
        let unit = queue_pair.number();
        if meta.is_full()
            // With several lanes, the packet itself tells which one it takes.
            && len.wrapping_sub(1) < transmit.direct_bytes
            && let Some(pair) = transmit.pairs.get_mut(unit as usize)
            && let Some(slot) = pair.queue.free_slot()
            && let Some(buffer) = transmit.free.take()
        {
            if let Some(later) = transmit.free.next(prefetch_distance(len) as usize - 1) {
                transmit.pool.prefetch(later, len);
            }
            let descriptor = transmit.pool.write_one(buffer, len, endpoint.number, fill);
            slot.push(Descriptor { flags, ..descriptor });
            if !pair.dirty {
                pair.dirty = true;
                transmit.dirty.push(unit);
                // The flush of this batch will write these lines, which the engine's core has
                // cached.
                pair.queue.prefetch_publication();
                transmit.lanes[0].marker.prefetch(unit);
            }
            transmit.statistics.sent += 1;
            return Ok(());
        }
        // Made here, so that the packets above do not pay for it.
        let packet = Outgoing { queue_pair, len, meta, flags };
        transmit.put_any(self.status, endpoint, packet, fill)
    }

    /// Returns `true` if [`Sender::send`] would accept a packet of `len` bytes now.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// if session.sender().has_room(endpoint, 1514)? {
    ///     session.sender().send_bytes(endpoint, &[0; 1514])?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError`].
    pub fn has_room(&mut self, endpoint: Endpoint, len: usize) -> Result<bool, QueuePairError> {
        self.has_room_in(endpoint.queue_pair, len)
    }

    /// Returns `true` if [`Sender::send_chosen`] would accept a packet of `len` bytes now.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let has_room = session.sender().has_room_in(QueuePair::FIRST, 1514)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError`].
    pub fn has_room_in(
        &mut self,
        queue_pair: QueuePair,
        len: usize,
    ) -> Result<bool, QueuePairError> {
        self.transmit.has_room(self.status, queue_pair, len)
    }

    /// Requests that [`Session::wait`](crate::Session::wait) also returns when half of a queue pair's
    /// buffers in flight are completed. Each request is answered once.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint, packet: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// while session.sender().send_bytes(endpoint, packet) == Err(SendError::Full) {
    ///     session.sender().want_room(endpoint.queue_pair())?;
    ///     session.wait(None)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError`].
    pub fn want_room(&mut self, queue_pair: QueuePair) -> Result<(), QueuePairError> {
        self.transmit.want_room(self.status, self.ready, queue_pair)
    }

    /// Reclaims completed buffers. Returns how many buffers of a queue pair's transmit queue are
    /// unsent.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let unsent = session.sender().unsent(endpoint.queue_pair())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError`].
    pub fn unsent(&mut self, queue_pair: QueuePair) -> Result<u32, QueuePairError> {
        self.transmit.unsent(self.status, queue_pair)
    }

    /// Returns how many buffers a queue pair's transmit queue holds.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let slots = session.sender().slots(endpoint.queue_pair())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`QueuePairError`].
    pub fn slots(&self, queue_pair: QueuePair) -> Result<u32, QueuePairError> {
        let unit = self.transmit.unit(queue_pair, 0)?;
        Ok(self.transmit.pairs[unit].queue.capacity())
    }
}
