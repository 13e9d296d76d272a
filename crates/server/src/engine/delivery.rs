//! Delivery: the only way into a receive queue, for packets of the device and for packets between
//! two endpoints of this host.

use std::ops::Range;

use towpath_device::{Checksum, Meta, VlanTag};
use towpath_memory::{Mapping, Region};
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_protocol::counters::{self, Endpoint as EndpointCount};
use towpath_queue::OwnWords;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES, OUTGOING, prefetch_distance};

use crate::engine::copy::{
    Delivered, count_delivered, deliver, deliver_in_place, observe, session_word,
};
use crate::engine::demux::Destination;
use crate::engine::notifier::Notifier;
use crate::engine::session::{Endpoint, Session};
use crate::engine::sessions::SessionTable;
use crate::engine::source::{Piece, SegmentPieces, SoftwareOffloads, Source, TAGGED_BYTES};
use crate::engine::untagged::{UNTAGGED_BYTES, without_tag};
use crate::engine::work::Work;

/// The parts of the engine that delivery needs, borrowed for a batch.
pub(crate) struct Delivery<'a> {
    sessions: &'a mut SessionTable,
    notifier: &'a mut Notifier,
    software: &'a mut SoftwareOffloads,
    receive_budget: u32,
    iteration: u64,
}

impl<'a> Delivery<'a> {
    /// Borrows what delivery needs in the poll iteration `iteration`. An endpoint may receive
    /// `receive_budget` packets in it.
    pub(crate) fn new(
        sessions: &'a mut SessionTable,
        notifier: &'a mut Notifier,
        software: &'a mut SoftwareOffloads,
        receive_budget: u32,
        iteration: u64,
    ) -> Delivery<'a> {
        Delivery { sessions, notifier, software, receive_budget, iteration }
    }

    /// Returns a session, for the sender's side.
    #[inline]
    pub(crate) fn session(&mut self, key: u32) -> Option<&mut Session> {
        self.sessions.get_mut(key)
    }

    /// Removes a packet's VLAN tag, and passes the packet to `function`. Passes `None` if the tag cannot be removed.
    pub(crate) fn with_untagged<R>(
        &mut self,
        packet: &Packet<'_>,
        function: impl FnOnce(&mut Self, Option<&Packet<'_>>) -> R,
    ) -> R {
        let mut room = [0; UNTAGGED_BYTES];
        let mut pieces = std::mem::take(&mut self.software.untagged);
        let whole = (packet.source, packet.beginning, packet.meta);
        let untagged = without_tag(whole, &mut room, &mut pieces);
        let untagged = untagged.map(|(source, beginning, meta)| Packet { source, beginning, meta });
        let result = function(self, untagged.as_ref());
        self.software.untagged = pieces;
        result
    }

    /// Returns the sessions and the notifier.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut SessionTable, &mut Notifier) {
        (self.sessions, self.notifier)
    }

    /// Records packets of a queue pair that were delivered locally or dropped; see
    /// [`Notifier::complete`].
    #[inline]
    pub(crate) fn complete(&mut self, (key, queue_pair): (u32, u32), first: u32, slots: u32) {
        if let Some(session) = self.sessions.get_mut(key) {
            self.notifier.complete(session, (key, queue_pair), first, slots);
        }
    }

    /// Delivers to one endpoint, with full checksums and segmented unless the endpoint accepts
    /// less. Returns the copies that it made. A packet that the engine drops before a copy counts
    /// as a copy of no bytes, so an endpoint without buffers cannot cause uncharged work.
    #[inline(always)]
    pub(crate) fn deliver(
        &mut self,
        destination: Destination,
        packet: &Packet<'_>,
        flags: u16,
    ) -> Work {
        let Some(session) = self.sessions.receiver(destination.session) else {
            return Work::copy(0);
        };
        let budget = Budget { packets: self.receive_budget, iteration: self.iteration };
        let mut work = Work::copy(0);
        if let Some((mut to, offload)) = admit(session, destination.endpoint, budget) {
            to.flags = flags;
            let outcome = to.hand_over(packet, offload, self.software, &mut work);
            to.count(outcome);
            self.notifier.touch(to.session, destination.session, to.queue_pair);
        }
        work
    }

    /// Delivers a packet that may have a VLAN tag, as [`Delivery::deliver`] does. An endpoint within
    /// the VLAN receives the packet without the tag. A priority tag is removed for every endpoint.
    #[inline(never)]
    pub(crate) fn deliver_tagged(&mut self, destination: Destination, packet: &Packet<'_>) -> Work {
        let Destination { session: key, endpoint } = destination;
        let Some(session) = self.sessions.get_mut(key) else { return Work::copy(0) };
        let is_priority_tag = VlanTag::of(packet.beginning).is_some_and(VlanTag::is_priority_tag);
        if !is_priority_tag && !session.is_within_vlan(endpoint) {
            return self.deliver(destination, packet, 0);
        }
        self.with_untagged(packet, |delivery, untagged| match untagged {
            Some(untagged) => delivery.deliver(destination, untagged, 0),
            None => {
                if let Some(session) = delivery.sessions.get_mut(key) {
                    count(&mut session.counters, endpoint, EndpointCount::RxUnusable);
                }
                Work::copy(0)
            }
        })
    }

    /// Gives the application a buffer of its own in which the device put a packet.
    pub(crate) fn deliver_in_place(
        &mut self,
        destination: Destination,
        placed: Placed,
        meta: Meta,
    ) -> InPlace {
        let (key, number) = (destination.session, destination.endpoint);
        let Some(session) = self.sessions.receiver(key) else { return InPlace::Dropped };
        let endpoint = session.endpoints.get(number as usize).and_then(Option::as_ref);
        let Some(endpoint) = endpoint else { return InPlace::Dropped };
        if endpoint.queue_pair != 0
            // The bytes in place are as the endpoint expects them only if both hold, or neither.
            || endpoint.within.is_some() != placed.tag_removed
            || meta.segmentation.is_some() && !endpoint.offload
        {
            return InPlace::NeedsCopy;
        }
        let budget = Budget { packets: self.receive_budget, iteration: self.iteration };
        let Some((mut to, offload)) = admit(session, number, budget) else {
            return InPlace::Dropped;
        };
        let (meta, complete) = if offload { (meta, None) } else { (Meta::FULL, partial(&meta)) };
        let descriptor = Descriptor {
            buffer: placed.buffer / to.session.shape.receive_pool.frame_bytes(),
            start: placed.offset - placed.buffer,
            len: placed.len,
            endpoint: number,
            flags: 0,
        };
        let outcome = deliver_in_place(to.session, descriptor, meta, complete);
        to.count(outcome);
        self.notifier.touch(to.session, key, to.queue_pair);
        if outcome == Delivered::Yes { InPlace::Given } else { InPlace::Dropped }
    }

    /// Returns a session as the receiver of several packets.
    #[inline]
    pub(crate) fn receiver(&mut self, key: u32) -> Option<Receiver<'_>> {
        let session = self.sessions.receiver(key)?;
        let budget = Budget { packets: self.receive_budget, iteration: self.iteration };
        Some(Receiver { key, session, notifier: self.notifier, budget })
    }
}

/// A packet that the device put into a receive buffer of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// The offsets of the packet and of its buffer in the session's receive pool.
    pub(crate) offset: u32,
    pub(crate) buffer: u32,
    pub(crate) len: u32,
    /// `true` if the device removed the packet's VLAN tag.
    pub(crate) tag_removed: bool,
}

/// What became of such a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// The application has the buffer.
    Given,
    /// The packet is dropped and counted.
    Dropped,
    /// The packet cannot stay where it is.
    NeedsCopy,
}

/// The packets that an endpoint may receive in a poll iteration.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    packets: u32,
    iteration: u64,
}

impl Budget {
    /// Counts a packet for an endpoint. Returns how many more the endpoint may receive; `None` if
    /// it may not receive this one.
    #[inline(always)]
    pub(crate) fn admit(self, endpoint: &mut Endpoint) -> Option<u32> {
        if endpoint.iteration != self.iteration {
            (endpoint.iteration, endpoint.received) = (self.iteration, 0);
        }
        endpoint.received += 1;
        self.packets.checked_sub(endpoint.received)
    }
}

/// Returns an endpoint as the receiver of a packet, unless its session violated the protocol or the
/// endpoint is over its budget; and whether the endpoint takes large packets and packets with
/// partial checksums.
#[inline(always)]
fn admit(session: &mut Session, number: u32, budget: Budget) -> Option<(To<'_>, bool)> {
    if session.violation.is_some() {
        return None;
    }
    let endpoint = session.endpoints.get_mut(number as usize)?.as_mut()?;
    let Some(left) = budget.admit(endpoint) else {
        count(&mut session.counters, number, EndpointCount::RxOverBudget);
        return None;
    };
    let (queue_pair, offload) = (endpoint.queue_pair, endpoint.offload);
    Some((To { session, endpoint: number, queue_pair, flags: 0, left }, offload))
}

/// Counts a packet that an endpoint does not receive.
#[cold]
fn count(counters: &mut OwnWords, endpoint: u32, reason: EndpointCount) {
    counters::add(counters, session_word(endpoint, reason), 1);
}

/// The receiver of several packets, none of which needs checksums or segmentation.
pub(crate) struct Receiver<'a> {
    key: u32,
    session: &'a mut Session,
    notifier: &'a mut Notifier,
    budget: Budget,
}

/// A packet that needs neither checksums nor segmentation.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'p> {
    /// The endpoint that receives it.
    pub(crate) endpoint: u32,
    /// Its beginning, in private memory.
    pub(crate) beginning: &'p [u8],
    /// The rest, in the memory that it is sent from; of no bytes for a packet that is whole.
    pub(crate) rest: Piece,
}

impl Frame<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.beginning.len() + self.rest.len as usize
    }
}

impl Receiver<'_> {
    /// Delivers packets, by their numbers in a batch. `memory`: where they are sent from.
    #[inline]
    pub(crate) fn deliver_all<'p>(
        &mut self,
        packets: Range<usize>,
        memory: &Mapping,
        frame: impl Fn(usize) -> Frame<'p>,
    ) {
        let mut next = packets.start;
        while next < packets.end {
            let first = frame(next);
            let endpoint = self.session.endpoints.get(first.endpoint as usize);
            let Some(Some(endpoint)) = endpoint else {
                next += 1;
                continue;
            };
            let queue_pair = endpoint.queue_pair;
            let delivered = self.fill(queue_pair, next..packets.end, memory, &frame);
            if delivered == next {
                // There is no buffer, or the packet needs several.
                let pieces: &[Piece] = if first.rest.len > 0 { &[first.rest] } else { &[] };
                let source = Source { prefix: first.beginning, memory, pieces };
                self.deliver_alone(first.endpoint, source);
            }
            next = delivered.max(next + 1);
        }
    }

    /// Delivers packets of one queue pair, each in one buffer. Returns the number of the first that
    /// is not among them.
    #[inline(always)]
    fn fill<'p>(
        &mut self,
        queue_pair: u32,
        packets: Range<usize>,
        memory: &Mapping,
        frame: &impl Fn(usize) -> Frame<'p>,
    ) -> usize {
        let session = &mut *self.session;
        let set = &mut session.queue_pairs[queue_pair as usize];
        let (ledger, violation) = (&mut session.receive_ledger, &mut session.violation);
        let mut next = packets.start;
        if violation.is_some() {
            return next;
        }
        if set.receive.available() == 0 && !observe(set, ledger, violation, 1) {
            // The notifier condemns the session if the application violated the protocol.
            self.notifier.touch(session, self.key, queue_pair);
            return next;
        }
        // The notifier writes these lines at the end of the poll iteration; the application has
        // them.
        set.receive.prefetch_publication();
        session.marker.prefetch(queue_pair);
        let (pool, buffers) = (session.shape.receive_pool, &mut session.receive_pool);
        let mut filling = set.receive.fill();
        while next < packets.end
            && let Some(buffer) = filling.buffer(0)
        {
            let one = frame(next);
            let Some(Some(endpoint)) = session.endpoints.get_mut(one.endpoint as usize) else {
                break;
            };
            if endpoint.queue_pair != queue_pair || one.len() > pool.data_bytes() as usize {
                break;
            }
            next += 1;
            if self.budget.admit(endpoint).is_none() {
                count(&mut session.counters, one.endpoint, EndpointCount::RxOverBudget);
                continue;
            }
            if let Some(later) = filling.buffer(prefetch_distance(one.len())) {
                let start = pool.buffer_offset(later) + HEADROOM_BYTES as usize;
                buffers.prefetch_to_write(start, one.len());
            }
            let start = pool.buffer_offset(buffer) + HEADROOM_BYTES as usize;
            if !copy(&one, memory, buffers, start) {
                count(&mut session.counters, one.endpoint, EndpointCount::RxUnusable);
                continue;
            }
            filling.push(Descriptor {
                buffer,
                start: HEADROOM_BYTES,
                len: one.len() as u32,
                endpoint: one.endpoint,
                flags: 0,
            });
            count_delivered(&mut session.counters, one.endpoint, one.len());
        }
        drop(filling);
        self.notifier.touch(session, self.key, queue_pair);
        next
    }

    /// Delivers a packet that [`Receiver::fill`] does not deliver.
    #[inline(never)]
    fn deliver_alone(&mut self, endpoint: u32, source: Source<'_>) {
        self.deliver(endpoint, source);
    }

    /// Delivers one packet.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, endpoint: u32, source: Source<'_>) {
        let Some((mut to, _)) = admit(self.session, endpoint, self.budget) else { return };
        let outcome = to.one(source, Meta::FULL, None);
        to.count(outcome);
        self.notifier.touch(to.session, self.key, to.queue_pair);
    }
}

/// Copies a packet into a buffer that has room for it. Returns `false` if a range is out of bounds.
#[inline(always)]
fn copy(one: &Frame<'_>, memory: &Mapping, buffers: &mut Region, start: usize) -> bool {
    let Piece { offset, len } = one.rest;
    buffers.copy_in(start, one.beginning)
        && (len == 0
            || buffers.copy_from(
                start + one.beginning.len(),
                memory,
                offset as usize,
                len as usize,
            ))
}

/// Marks the captured copy of a packet that an application sent.
pub(crate) const CAPTURED_OUTGOING: u16 = OUTGOING;

/// A packet under delivery.
pub(crate) struct Packet<'a> {
    pub(crate) source: Source<'a>,
    /// A private copy of the packet's beginning, from which the engine read the headers.
    pub(crate) beginning: &'a [u8],
    pub(crate) meta: Meta,
}

struct To<'a> {
    session: &'a mut Session,
    endpoint: u32,
    queue_pair: u32,
    flags: u16,
    /// The rest of the endpoint's budget for this poll iteration, beside this packet.
    left: u32,
}

impl To<'_> {
    #[inline(always)]
    fn hand_over(
        &mut self,
        packet: &Packet<'_>,
        offload: bool,
        software: &mut SoftwareOffloads,
        work: &mut Work,
    ) -> Delivered {
        let meta = packet.meta;
        if offload || meta.segmentation.is_none() {
            let (meta, complete) =
                if offload { (meta, None) } else { (Meta::FULL, partial(&meta)) };
            let outcome = self.one(packet.source, meta, complete);
            if outcome == Delivered::Yes {
                work.bytes = packet.source.len() as u64;
                software.packets += u64::from(complete.is_some());
            }
            return outcome;
        }
        match Segmenter::new(packet.beginning, packet.source.len(), &meta) {
            Ok(segmenter) => {
                let outcome = self.segments(packet, segmenter, &mut software.pieces, work);
                software.packets += u64::from(outcome == Delivered::Yes);
                outcome
            }
            Err(_) => Delivered::Unusable,
        }
    }

    /// Delivers as many segments as fit, as a wire would. Each segment counts as one packet against
    /// the endpoint's budget.
    fn segments(
        &mut self,
        packet: &Packet<'_>,
        mut segmenter: Segmenter,
        pieces: &mut SegmentPieces,
        work: &mut Work,
    ) -> Delivered {
        work.copies = 0;
        let outcome = self.copy_segments(packet, &mut segmenter, pieces, work);
        let made = u32::try_from(work.copies).unwrap_or(u32::MAX).max(1);
        if let Some(Some(endpoint)) = self.session.endpoints.get_mut(self.endpoint as usize) {
            endpoint.received += made - 1;
        }
        outcome
    }

    fn copy_segments(
        &mut self,
        packet: &Packet<'_>,
        segmenter: &mut Segmenter,
        pieces: &mut SegmentPieces,
        work: &mut Work,
    ) -> Delivered {
        let whole = packet.source;
        let inside = whole.prefix.len();
        let mut header = [0; MAX_HEADER_BYTES];
        while work.copies <= u64::from(self.left)
            && let Some(one) = segmenter.next(&mut header)
        {
            work.copies += 1;
            let payload = one.payload.clone();
            let (header_bytes, meta) = one.leave_partial(&mut header);
            // The payload may start within the private copy and continue behind it.
            let kept = whole.prefix.get(payload.start..payload.end.min(inside)).unwrap_or(&[]);
            let mut start = [0; MAX_HEADER_BYTES + TAGGED_BYTES];
            let start_bytes = header_bytes + kept.len();
            let rest = payload.start + kept.len();
            let Some(cut) = pieces.cut(&whole, rest, payload.end) else {
                return Delivered::Unusable;
            };
            start[..header_bytes].copy_from_slice(&header[..header_bytes]);
            start[header_bytes..start_bytes].copy_from_slice(kept);
            let source =
                Source { prefix: &start[..start_bytes], memory: whole.memory, pieces: cut };
            let outcome = self.one(source, Meta::FULL, partial(&meta));
            if outcome != Delivered::Yes {
                return outcome;
            }
            work.bytes += source.len() as u64;
        }
        let over = segmenter.remaining() as u64;
        let word = session_word(self.endpoint, EndpointCount::RxOverBudget);
        counters::add(&mut self.session.counters, word, over);
        Delivered::Yes
    }

    #[inline(always)]
    fn one(&mut self, source: Source<'_>, meta: Meta, complete: Option<(u16, u16)>) -> Delivered {
        let set = self.queue_pair as usize;
        deliver(self.session, self.endpoint, set, source, meta, complete, self.flags)
    }

    #[inline]
    fn count(&mut self, outcome: Delivered) {
        let reason = match outcome {
            Delivered::Yes => return,
            Delivered::NoBuffers => EndpointCount::RxNoBuffers,
            Delivered::Unusable => EndpointCount::RxUnusable,
        };
        count(&mut self.session.counters, self.endpoint, reason);
    }
}

/// Returns the place of the checksum that a packet leaves to its receiver or to software.
pub(crate) fn partial(meta: &Meta) -> Option<(u16, u16)> {
    match meta.checksum {
        Checksum::Partial { start, offset } => Some((start, offset)),
        Checksum::Full | Checksum::Verified => None,
    }
}
