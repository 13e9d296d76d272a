//! Receive path, from the device to the applications.

use towpath_device::{Checksum, DeviceError, Meta, Received};
use towpath_packet::headers::{Headers, Malformed, PREFIX_BYTES};
use towpath_packet::plain;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_queue::descriptor::OUTGOING;

use crate::engine::Engine;
use crate::engine::copy::{Delivered, deliver, session_word};
use crate::engine::demux::{Destination, Direction, is_group};
use crate::engine::publish::touch;
use crate::engine::session::Session;
use crate::engine::source::{Piece, SegmentPieces, Source};
use crate::engine::work::{ITERATION_BYTES, Work};
use towpath_protocol::counters::{self, Device as Count, Endpoint as EndpointCount};

/// The engine reads headers from a copy of this many bytes first, and of 256 where they are longer.
const FIRST_READ_BYTES: usize = 128;

/// The path that a received packet took.
enum Path {
    /// The fast path.
    Fast,
    /// The fast path, including segmentation.
    Large(Work),
    /// The full path.
    Full,
}

impl Engine {
    /// Makes packets take the path for captures and promiscuous endpoints although there are none.
    /// Measurements use this to show how much the separate path saves.
    pub fn assume_captures(&mut self, assumed: bool) {
        self.flows.assumes_captures = assumed;
    }

    /// Takes a batch from the device and delivers each packet.
    pub(crate) fn receive(&mut self) -> Result<usize, DeviceError> {
        let mut outcome = Ok(());
        let mut received = std::mem::take(&mut self.received);
        if self.received_done == received.len() {
            self.provide();
            received.clear();
            self.received_done = 0;
            outcome =
                self.device.rx_poll(&mut self.spaces, &mut received, self.rx_batch).map(|_| ());
        }
        let left = &received[self.received_done..];
        // No capture begins within a batch: the engine executes commands before it.
        let (packets, bytes) = if self.flows.has_no_captures() {
            self.receive_batch::<false>(left)
        } else {
            self.receive_batch::<true>(left)
        };
        if packets > 0 {
            counters::add(&mut self.counters, Count::RxPackets as usize, packets as u64);
            counters::add(&mut self.counters, Count::RxBytes as usize, bytes);
        }
        self.received_done += packets;
        self.received = received;
        outcome.map(|()| packets)
    }

    /// Returns `true` if packets of the last batch wait for the next poll iteration, because this
    /// one used up its budget.
    pub(crate) fn has_received_left(&self) -> bool {
        self.received_done < self.received.len()
    }

    /// Gives the device empty buffers, the most recently used first.
    fn provide(&mut self) {
        let mut buffers = [0; 64];
        while !self.empty.is_empty() {
            let mut count = 0;
            while count < buffers.len() {
                let Some(buffer) = self.empty.take() else { break };
                buffers[count] = self.pool_offset(buffer);
                count += 1;
            }
            let taken = self.device.rx_fill(&self.spaces, self.pool_space, &buffers[..count]);
            for buffer in buffers[taken..count].iter().rev() {
                self.empty.release(buffer / self.pool_buffer_bytes);
            }
            if taken < count {
                break;
            }
        }
    }

    /// Delivers each packet and frees its buffer, until the poll iteration reaches its limit
    /// ([`ITERATION_BYTES`]). Returns the number of these packets, and of their bytes. The compiler
    /// makes one routine with captures and promiscuous endpoints and one without, so absent ones
    /// cost nothing.
    fn receive_batch<const CAPTURES: bool>(&mut self, received: &[Received]) -> (usize, u64) {
        let (mut bytes, mut beyond) = (0, 0);
        let mut waiting = received.iter();
        for one in waiting.by_ref() {
            bytes += u64::from(one.len);
            let way = if CAPTURES { Path::Full } else { self.receive_plain(one) };
            let work = match way {
                Path::Fast => None,
                Path::Large(work) => Some(work),
                Path::Full => Some(self.receive_one::<CAPTURES>(one)),
            };
            self.empty.release(one.buffer / self.pool_buffer_bytes);
            // The fast path makes one copy of at most the MTU, which the batch bounds.
            if let Some(work) = work {
                beyond += work.beyond_one(one.len as usize).cost();
                if bytes + beyond >= ITERATION_BYTES {
                    break;
                }
            }
        }
        (received.len() - waiting.as_slice().len(), bytes)
    }

    /// Handles most packets on the fast path: plain packets for one endpoint. Returns the path that
    /// the packet took; [`Path::Full`] if it is none of these and still needs the full path. As in
    /// `local.rs`, the fast path decides nothing differently from the full path.
    #[inline(always)]
    fn receive_plain(&mut self, received: &Received) -> Path {
        let mut prefix = [0; FIRST_READ_BYTES];
        let read = (received.len as usize).min(FIRST_READ_BYTES);
        if !self.pool.copy_out(received.offset as usize, &mut prefix[..read]) {
            return Path::Full;
        }
        let Some(plain) = plain::read(&prefix[..read], received.len as usize) else {
            return Path::Full;
        };
        if plain.is_for_group() {
            return Path::Full;
        }
        let Some(destination) = self.flows.lookup_plain(Direction::Received, &plain) else {
            self.count(Count::RxNoMatch);
            return Path::Fast;
        };
        let piece = [Piece { offset: received.offset, len: received.len }];
        let source = Source { prefix: &[], memory: &self.pool, pieces: &piece };
        let mut deliverer = Deliverer {
            sessions: &mut self.sessions,
            touched: &mut self.touched,
            segment: &mut self.segment,
            receive_budget: self.budgets.receive_budget,
            iteration: self.iteration,
        };
        if received.meta == Meta::FULL {
            deliverer.deliver_complete(destination, source);
            return Path::Fast;
        }
        let packet = Packet { source, beginning: &prefix[..read], meta: received.meta };
        if received.meta.segmentation.is_none() {
            deliverer.deliver_to(destination, &packet, 0);
            return Path::Fast;
        }
        Path::Large(deliverer.deliver_to(destination, &packet, 0))
    }

    /// Handles all other packets on the full path, and returns the copies that it made.
    fn receive_one<const CAPTURES: bool>(&mut self, received: &Received) -> Work {
        let mut work = Work::default();
        let mut prefix = [0; PREFIX_BYTES];
        let len = received.len as usize;
        let mut read = len.min(FIRST_READ_BYTES);
        if !self.pool.copy_out(received.offset as usize, &mut prefix[..read]) {
            self.count(Count::RxMalformed);
            return work;
        }
        let mut headers = Headers::parse(&prefix[..read], len);
        if let Ok(first) = &headers
            && first.malformed == Some(Malformed::BeyondPrefix)
        {
            read = len.min(PREFIX_BYTES);
            if self.pool.copy_out(received.offset as usize, &mut prefix[..read]) {
                headers = Headers::parse(&prefix[..read], len);
            }
        }
        let piece = [Piece { offset: received.offset, len: received.len }];
        let source = Source { prefix: &[], memory: &self.pool, pieces: &piece };
        let packet = Packet { source, beginning: &prefix[..read], meta: received.meta };
        let mut deliverer = Deliverer {
            sessions: &mut self.sessions,
            touched: &mut self.touched,
            segment: &mut self.segment,
            receive_budget: self.budgets.receive_budget,
            iteration: self.iteration,
        };
        if CAPTURES {
            for destination in &self.flows.captures {
                work += deliverer.deliver_to(*destination, &packet, 0);
            }
        }
        let headers = match headers {
            Ok(headers) if headers.malformed.is_none() => headers,
            _ => {
                self.count(Count::RxMalformed);
                return work;
            }
        };
        self.found.clear();
        if is_group(headers.destination) {
            self.flows.members(&headers, &mut self.found);
        } else if let Some(destination) = self.flows.lookup(Direction::Received, &headers) {
            self.found.push(destination);
        }
        if CAPTURES {
            self.found.extend_from_slice(&self.flows.promiscuous);
        }
        for destination in &self.found {
            work += deliverer.deliver_to(*destination, &packet, 0);
        }
        if self.found.is_empty() {
            self.count(Count::RxNoMatch);
        }
        work
    }

    pub(crate) fn count(&mut self, count: Count) {
        counters::add(&mut self.counters, count as usize, 1);
    }
}

/// The parts of the engine that delivery needs: all but the packet's source.
pub(crate) struct Deliverer<'a> {
    pub(crate) sessions: &'a mut [Option<Box<Session>>],
    pub(crate) touched: &'a mut Vec<(u32, u32)>,
    pub(crate) segment: &'a mut SegmentPieces,
    pub(crate) receive_budget: u32,
    pub(crate) iteration: u64,
}

impl Deliverer<'_> {
    /// Delivers to one endpoint, with full checksums and segmented unless the endpoint accepts
    /// less. Returns the copies that it made. A packet that the engine drops before a copy counts
    /// as a copy of no bytes, so an endpoint without buffers cannot cause uncharged work.
    #[inline(always)]
    pub(crate) fn deliver_to(
        &mut self,
        destination: Destination,
        packet: &Packet<'_>,
        flags: u16,
    ) -> Work {
        let Some((mut to, offload)) =
            admit(self.sessions, destination, self.receive_budget, self.iteration)
        else {
            return Work::copy(0);
        };
        to.flags = flags;
        let mut work = Work::copy(0);
        let outcome = to.hand_over(packet, offload, self.segment, &mut work);
        to.count(outcome);
        touch(self.touched, to.session, destination.session, to.queue_pair);
        work
    }

    /// Delivers a packet that needs neither checksums nor segmentation.
    #[inline(always)]
    pub(crate) fn deliver_complete(&mut self, destination: Destination, source: Source<'_>) {
        let Some((mut to, _)) =
            admit(self.sessions, destination, self.receive_budget, self.iteration)
        else {
            return;
        };
        let outcome = to.one(source, Meta::FULL, None);
        to.count(outcome);
        touch(self.touched, to.session, destination.session, to.queue_pair);
    }
}

/// Returns the endpoint's session, unless the endpoint is over its budget for this poll iteration;
/// and whether the endpoint takes large packets and packets with partial checksums.
#[inline(always)]
fn admit(
    sessions: &mut [Option<Box<Session>>],
    destination: Destination,
    receive_budget: u32,
    iteration: u64,
) -> Option<(To<'_>, bool)> {
    let session = sessions[destination.session as usize].as_mut()?;
    let endpoint = session.endpoints.get_mut(destination.endpoint as usize)?.as_mut()?;
    if endpoint.iteration != iteration {
        endpoint.iteration = iteration;
        endpoint.received = 0;
    }
    endpoint.received += 1;
    if endpoint.received > receive_budget {
        let word = session_word(destination.endpoint, EndpointCount::RxOverBudget);
        counters::add(&mut session.counters, word, 1);
        return None;
    }
    let (queue_pair, offload) = (endpoint.queue_pair, endpoint.offload);
    let left = receive_budget - endpoint.received;
    Some((To { session, endpoint: destination.endpoint, queue_pair, flags: 0, left }, offload))
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
            let mut start = [0; MAX_HEADER_BYTES + crate::engine::bounce::WHOLE_BYTES];
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

fn partial(meta: &Meta) -> Option<(u16, u16)> {
    match meta.checksum {
        Checksum::Partial { start, offset } => Some((start, offset)),
        Checksum::Full | Checksum::Verified => None,
    }
}
