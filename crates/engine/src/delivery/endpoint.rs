//! The endpoint that receives a packet: its budget, its offloads, and its counts.

use towpath_device::{Checksum, Meta};
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_protocol::counters::Endpoint as EndpointCount;

use crate::copy::{Delivered, deliver};
use crate::session::endpoints::{Endpoint, Endpoints};
use crate::session::receive_side::ReceiveSide;
use crate::source::{Packet, SegmentPieces, SoftwareOffloads, Source, TAGGED_BYTES};
use crate::work::Work;

/// The packets that an endpoint may receive in a poll iteration.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    pub(super) packets: u32,
    pub(super) iteration: u64,
}

impl Budget {
    /// Counts a packet for an endpoint. Returns how many more the endpoint may receive; `None` if
    /// it may not receive this one.
    #[inline(always)]
    pub(super) fn admit(self, endpoint: &mut Endpoint) -> Option<u32> {
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
pub(super) fn admit(
    side: &mut ReceiveSide,
    number: u32,
    budget: Budget,
) -> Option<(ReceivingEndpoint<'_>, bool)> {
    if side.violation.is_some() {
        return None;
    }
    let endpoint = side.endpoints.get_mut(number)?;
    let Some(left) = budget.admit(endpoint) else {
        count(&mut side.endpoints, number, EndpointCount::RxOverBudget);
        return None;
    };
    let (queue_pair, offload) = (endpoint.queue_pair, endpoint.offload);
    Some((ReceivingEndpoint { side, endpoint: number, queue_pair, flags: 0, left }, offload))
}

/// Counts a packet that an endpoint does not receive.
#[cold]
pub(super) fn count(endpoints: &mut Endpoints, endpoint: u32, reason: EndpointCount) {
    endpoints.count(endpoint, reason, 1);
}

/// An endpoint that receives a packet.
pub(super) struct ReceivingEndpoint<'a> {
    pub(super) side: &'a mut ReceiveSide,
    endpoint: u32,
    pub(super) queue_pair: u32,
    pub(super) flags: u16,
    /// The rest of the endpoint's budget for this poll iteration, beside this packet.
    left: u32,
}

impl ReceivingEndpoint<'_> {
    #[inline(always)]
    pub(super) fn hand_over(
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
        if let Some(endpoint) = self.side.endpoints.get_mut(self.endpoint) {
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
        self.side.endpoints.count(self.endpoint, EndpointCount::RxOverBudget, over);
        Delivered::Yes
    }

    #[inline(always)]
    pub(super) fn one(
        &mut self,
        source: Source<'_>,
        meta: Meta,
        complete: Option<(u16, u16)>,
    ) -> Delivered {
        let (endpoint, queue_pair) = (self.endpoint, self.queue_pair);
        deliver(self.side, endpoint, queue_pair, source, meta, complete, self.flags)
    }

    #[inline]
    pub(super) fn count(&mut self, outcome: Delivered) {
        let reason = match outcome {
            Delivered::Yes => return,
            Delivered::NoBuffers => EndpointCount::RxNoBuffers,
            Delivered::Unusable => EndpointCount::RxUnusable,
        };
        count(&mut self.side.endpoints, self.endpoint, reason);
    }
}

/// Returns the place of the checksum that a packet leaves to its receiver or to software.
pub(crate) fn partial(meta: &Meta) -> Option<(u16, u16)> {
    match meta.checksum {
        Checksum::Partial { start, offset } => Some((start, offset)),
        Checksum::Full | Checksum::Verified => None,
    }
}
