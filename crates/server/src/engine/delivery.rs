//! Delivery: the only way into a receive queue, for packets of the device and for packets between
//! two endpoints of this host.

use towpath_device::{Checksum, Meta};
use towpath_memory::Mapping;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_protocol::counters::{self, Endpoint as EndpointCount};
use towpath_queue::descriptor::OUTGOING;

use crate::engine::copy::{Delivered, deliver, deliver_bytes, session_word};
use crate::engine::demux::Destination;
use crate::engine::notifier::Notifier;
use crate::engine::session::Session;
use crate::engine::sessions::SessionTable;
use crate::engine::source::{SegmentPieces, Source, WHOLE_BYTES};
use crate::engine::work::Work;

/// The parts of the engine that delivery needs, borrowed for a batch.
pub(crate) struct Delivery<'a> {
    sessions: &'a mut SessionTable,
    notifier: &'a mut Notifier,
    segment: &'a mut SegmentPieces,
    receive_budget: u32,
    iteration: u64,
}

impl<'a> Delivery<'a> {
    /// Borrows what delivery needs in the poll iteration `iteration`. An endpoint may receive
    /// `receive_budget` packets in it. `segment` is memory for the pieces of a segment.
    pub(crate) fn new(
        sessions: &'a mut SessionTable,
        notifier: &'a mut Notifier,
        segment: &'a mut SegmentPieces,
        receive_budget: u32,
        iteration: u64,
    ) -> Delivery<'a> {
        Delivery { sessions, notifier, segment, receive_budget, iteration }
    }

    /// Returns a session, for the sender's side.
    #[inline]
    pub(crate) fn session(&mut self, key: u32) -> Option<&mut Session> {
        self.sessions.get_mut(key)
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
        let Some(session) = self.sessions.get_mut(destination.session) else {
            return Work::copy(0);
        };
        let admitted = admit(session, destination.endpoint, self.receive_budget, self.iteration);
        let Some((mut to, offload)) = admitted else { return Work::copy(0) };
        to.flags = flags;
        let mut work = Work::copy(0);
        let outcome = to.hand_over(packet, offload, self.segment, &mut work);
        to.count(outcome);
        self.notifier.touch(to.session, destination.session, to.queue_pair);
        work
    }

    /// Returns a session as the receiver of several packets.
    #[inline]
    pub(crate) fn receiver(&mut self, key: u32) -> Option<Receiver<'_>> {
        let session = self.sessions.get_mut(key)?;
        let (budget, iteration) = (self.receive_budget, self.iteration);
        Some(Receiver { key, session, notifier: self.notifier, budget, iteration })
    }
}

/// The receiver of several packets.
pub(crate) struct Receiver<'a> {
    key: u32,
    session: &'a mut Session,
    notifier: &'a mut Notifier,
    budget: u32,
    iteration: u64,
}

impl Receiver<'_> {
    /// Delivers a packet that needs neither checksums nor segmentation and is all in private memory.
    /// `memory`: any, of which the packet has no bytes.
    #[inline(always)]
    pub(crate) fn deliver_bytes(&mut self, endpoint: u32, bytes: &[u8], memory: &Mapping) {
        if bytes.len() > self.session.shape.receive_pool.data_bytes() as usize {
            self.deliver_complete(endpoint, Source { prefix: bytes, memory, pieces: &[] });
            return;
        }
        let admitted = admit(self.session, endpoint, self.budget, self.iteration);
        let Some((mut to, _)) = admitted else { return };
        let outcome = deliver_bytes(to.session, endpoint, to.queue_pair as usize, bytes);
        to.count(outcome);
        self.notifier.touch(to.session, self.key, to.queue_pair);
    }

    /// Delivers a packet that needs neither checksums nor segmentation.
    #[inline(always)]
    pub(crate) fn deliver_complete(&mut self, endpoint: u32, source: Source<'_>) {
        let admitted = admit(self.session, endpoint, self.budget, self.iteration);
        let Some((mut to, _)) = admitted else { return };
        let outcome = to.one(source, Meta::FULL, None);
        to.count(outcome);
        self.notifier.touch(to.session, self.key, to.queue_pair);
    }
}

/// Returns an endpoint as the receiver of a packet, unless its session violated the protocol or the
/// endpoint is over its budget for this poll iteration; and whether the endpoint takes large packets
/// and packets with partial checksums.
#[inline(always)]
fn admit(
    session: &mut Session,
    number: u32,
    budget: u32,
    iteration: u64,
) -> Option<(To<'_>, bool)> {
    if session.violation.is_some() {
        return None;
    }
    let endpoint = session.endpoints.get_mut(number as usize)?.as_mut()?;
    if endpoint.iteration != iteration {
        endpoint.iteration = iteration;
        endpoint.received = 0;
    }
    endpoint.received += 1;
    if endpoint.received > budget {
        let word = session_word(number, EndpointCount::RxOverBudget);
        counters::add(&mut session.counters, word, 1);
        return None;
    }
    let (queue_pair, offload) = (endpoint.queue_pair, endpoint.offload);
    let left = budget - endpoint.received;
    Some((To { session, endpoint: number, queue_pair, flags: 0, left }, offload))
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
        segment: &mut SegmentPieces,
        work: &mut Work,
    ) -> Delivered {
        let meta = packet.meta;
        if offload || meta.segmentation.is_none() {
            let (meta, complete) =
                if offload { (meta, None) } else { (Meta::FULL, partial(&meta)) };
            let outcome = self.one(packet.source, meta, complete);
            if outcome == Delivered::Yes {
                work.bytes = packet.source.len() as u64;
            }
            return outcome;
        }
        match Segmenter::new(packet.beginning, packet.source.len(), &meta) {
            Ok(segmenter) => self.segments(packet, segmenter, segment, work),
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
            let mut start = [0; MAX_HEADER_BYTES + WHOLE_BYTES];
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

    fn count(&mut self, outcome: Delivered) {
        let count = match outcome {
            Delivered::Yes => return,
            Delivered::NoBuffers => EndpointCount::RxNoBuffers,
            Delivered::Unusable => EndpointCount::RxUnusable,
        };
        counters::add(&mut self.session.counters, session_word(self.endpoint, count), 1);
    }
}

/// Returns the place of the checksum that a packet leaves to its receiver or to software.
pub(crate) fn partial(meta: &Meta) -> Option<(u16, u16)> {
    match meta.checksum {
        Checksum::Partial { start, offset } => Some((start, offset)),
        Checksum::Full | Checksum::Verified => None,
    }
}
