//! One packet of an application: the engine checks it and sends it to its destinations.

use towpath_device::{Checksum, DeviceError, Meta, Part};
use towpath_packet::headers::{Headers, Malformed};
use towpath_packet::offload;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_packet::transport::Transport;
use towpath_protocol::counters::{self, Device as Count, Endpoint as EndpointCount};
use towpath_queue::descriptor::{EXPEDITED, MAX_PACKET_BYTES, META};
use towpath_queue::{OwnWords, Violation};

use crate::engine::bounce::WHOLE_BYTES;
use crate::engine::copy::session_word;
use crate::engine::demux::{Destination, Direction, is_group};
use crate::engine::handoff::{BACKLOG, EXPEDITED_SLOTS};
use crate::engine::receive::{CAPTURED_OUTGOING, Deliverer, Packet};
use crate::engine::source::{Piece, Source};
use crate::engine::transmit::Batch;
use crate::engine::work::Work;
use crate::engine::{BOUNCE_SLOTS, Engine, InFlight};

/// The result for a packet.
pub(crate) enum Sent {
    /// The packet is done: dropped, or delivered here.
    Now,
    /// The packet is handed off: the device has it, or the backlog.
    Later,
    /// Either of these, with more than one copy: see [`Engine::spent`].
    Costly {
        /// `true` if the packet is handed off.
        later: bool,
    },
    /// The device has no room for the packet now.
    NoRoom,
    /// No correct application sends such a packet.
    Violates(Violation),
}

/// A packet that the engine is about to send.
#[derive(Clone, Copy)]
struct Outgoing {
    key: u32,
    queue_pair: u32,
    endpoint: u32,
    first: u32,
    chain: u32,
    len: usize,
    /// The bounce buffer that holds the packet's beginning.
    slot: u32,
    /// See [`crate::engine::transmit::Taken`].
    no_local_match: bool,
    /// The number of the packet's queue pair in the scheduler.
    unit: u32,
    /// `true` if the packet is expedited and precedes the others.
    expedited: bool,
}

impl Engine {
    fn refuse(&mut self, one: &Outgoing, count: EndpointCount) -> Sent {
        if let Some(session) = &mut self.sessions[one.key as usize] {
            counters::add(&mut session.counters, session_word(one.endpoint, count), 1);
        }
        Sent::Now
    }

    /// Checks a packet by its beginning in its slot, and sends the checked bytes.
    pub(crate) fn check_and_send<const CAPTURES: bool>(
        &mut self,
        batch: &mut Batch,
        index: usize,
        mtu: usize,
    ) -> Result<Sent, DeviceError> {
        let taken = batch.packets[index];
        let slot = batch.slots[index];
        let one = &Outgoing {
            key: batch.key,
            queue_pair: batch.queue_pair,
            endpoint: taken.endpoint,
            first: taken.first,
            chain: taken.chain,
            len: taken.len as usize,
            slot,
            no_local_match: taken.no_local_match,
            unit: batch.unit,
            expedited: batch.expedited,
        };
        if taken.late {
            return Ok(self.refuse(one, EndpointCount::TxLate));
        }
        let Some(session) = &self.sessions[one.key as usize] else { return Ok(Sent::Now) };
        let Some((_, pool_words)) = &self.transmit_pools[one.key as usize] else {
            return Ok(Sent::Now);
        };
        if !taken.fetched {
            return Ok(Sent::Violates(Violation::Range));
        }
        let descriptors = &batch.descriptors[taken.at as usize..][..taken.chain as usize];
        let Some(endpoint) = session.endpoints.get(one.endpoint as usize) else {
            return Ok(Sent::Violates(Violation::Endpoint));
        };
        if descriptors.iter().any(|descriptor| descriptor.endpoint != one.endpoint) {
            return Ok(Sent::Violates(Violation::Endpoint));
        }
        let pool = session.shape.transmit_pool;
        let meta = match descriptors {
            [first, ..] if first.flags & META != 0 => {
                let mut words = [0; 16];
                let fetched = pool_words.fetch_bytes(pool.buffer_offset(first.buffer), &mut words);
                let (low, high) = words.split_at(8);
                let word = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_ne_bytes);
                match Meta::from_words([word(low), word(high)]) {
                    Some(meta) if fetched => meta,
                    _ => return Ok(Sent::Violates(Violation::Flags)),
                }
            }
            _ => Meta::FULL,
        };
        // The application closed the endpoint while packets waited. The engine drops them; this is
        // no violation.
        let Some(endpoint) = endpoint else {
            return Ok(self.refuse(one, EndpointCount::TxOutsideRule));
        };
        // Expedited packets may have their own queue pair, in which they do not wait behind others.
        let expedited = descriptors.first().is_some_and(|first| first.flags & EXPEDITED != 0);
        if endpoint.queue_pair != one.queue_pair && !expedited {
            return Ok(Sent::Violates(Violation::Endpoint));
        }
        let mut headers = Headers::NONE;
        let mut readable = headers.read(self.bounce.bytes(slot), one.len).is_ok();
        if readable
            && headers.malformed == Some(Malformed::BeyondPrefix)
            && self.bounce.bytes(slot).len() < one.len.min(WHOLE_BYTES)
        {
            let needed = one.len.min(WHOLE_BYTES);
            if !self.bounce.fetch_again(slot, pool_words, &pool, descriptors, needed) {
                return Ok(Sent::Violates(Violation::Range));
            }
            readable = headers.read(self.bounce.bytes(slot), one.len).is_ok();
        }
        if !readable {
            return Ok(self.refuse(one, EndpointCount::TxMalformed));
        }
        if let Err(count) = endpoint.rights.check(&headers, || self.bounce.bytes(slot)) {
            return Ok(self.refuse(one, count));
        }
        if meta != Meta::FULL && offload::check(&meta, &headers, one.len).is_err() {
            return Ok(self.refuse(one, EndpointCount::TxMalformed));
        }
        if meta.segmentation.is_some() {
            // No TCP packet is for a group (RFC 9293, 3.9.2.3), and each of its segments would be
            // copied to each member.
            if is_group(headers.destination) {
                return Ok(self.refuse(one, EndpointCount::TxMalformed));
            }
            if one.len > MAX_PACKET_BYTES
                || segments(&meta, &headers, one.len) > offload::MAX_SENT_SEGMENTS
            {
                return Ok(self.refuse(one, EndpointCount::TxTooLong));
            }
        }
        let meta = match meta.checksum {
            // Only a device may declare a checksum verified.
            Checksum::Verified => Meta::FULL,
            _ => meta,
        };
        if wire_bytes(&meta, &headers, one.len) > mtu + usize::from(headers.l3_offset) {
            return Ok(self.refuse(one, EndpointCount::TxTooLong));
        }
        // The engine need not read the slot's bytes from the transmit buffer pool again.
        let mut held = self.bounce.bytes(slot).len();
        self.pieces.clear();
        if held < one.len {
            for descriptor in descriptors {
                let skip = held.min(descriptor.len as usize) as u32;
                held -= skip as usize;
                if skip < descriptor.len {
                    let offset = descriptor.pool_offset(&pool) as u32 + skip;
                    self.pieces.push(Piece { offset, len: descriptor.len - skip });
                }
            }
        }
        self.route::<CAPTURES>(one, meta, &headers)
    }

    fn route<const CAPTURES: bool>(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        headers: &Headers,
    ) -> Result<Sent, DeviceError> {
        let group = is_group(headers.destination);
        let destination = if group || one.no_local_match {
            None
        } else {
            self.flows.lookup(Direction::Sent, headers)
        };
        self.found.clear();
        if let Some(destination) = destination {
            self.found.push(destination);
            if !CAPTURES {
                let (work, _) = self.deliver_here::<CAPTURES>(one, meta, 1);
                self.count(Count::LocalPackets);
                self.count_sent(one);
                if meta.segmentation.is_none() {
                    return Ok(Sent::Now);
                }
                return Ok(self.spend(one, work, Work::default(), Sent::Now));
            }
        }
        let sender =
            |found: &Destination| found.session == one.key && found.endpoint == one.endpoint;
        if group {
            self.flows.members(headers, &mut self.found);
            self.found.retain(|found| !sender(found));
        }
        let to_device = group || self.found.is_empty();
        let software = to_device && !self.device_takes(&meta);
        let packets = if software { segments(&meta, headers, one.len) } else { 1 };
        if to_device {
            let room = if one.expedited {
                self.has_expedited_room()
            } else {
                // Packets that have waited longer, or units in the middle of a message, precede
                // this one.
                self.handoff.has_room(packets)
                    && self.has_slots(packets + EXPEDITED_SLOTS)
                    && self.schedule.may_use_device(one.unit)
            };
            if !room {
                return Ok(Sent::NoRoom);
            }
        }
        let members = self.found.len();
        if CAPTURES {
            self.found.extend(self.flows.promiscuous.iter().filter(|found| !sender(found)));
        }
        let local = self.found.len();
        let (mut work, mut captures) = (Work::default(), Work::default());
        if local > 0 || CAPTURES && !self.flows.captures.is_empty() {
            (work, captures) = self.deliver_here::<CAPTURES>(one, meta, members);
        }
        if !group && local > 0 {
            self.count(Count::LocalPackets);
        }
        self.count_sent(one);
        if !software && to_device && local == 0 && !CAPTURES {
            return self.send_as_it_is(one, meta);
        }
        let sent = if software {
            self.count(Count::TxSoftwareOffloads);
            self.send_by_software(one, meta)?
        } else if to_device {
            self.send_as_it_is(one, meta)?
        } else {
            Sent::Now
        };
        if to_device {
            work += Work { copies: packets as u64, bytes: one.len as u64 };
        }
        Ok(self.spend(one, work, captures, sent))
    }

    /// Records a packet's cost: `work` in place of the one copy that every packet is charged for,
    /// and `captures` for captures and promiscuous endpoints.
    fn spend(&mut self, one: &Outgoing, work: Work, captures: Work, sent: Sent) -> Sent {
        let beyond = work.beyond_one(one.len);
        if beyond == Work::default() && captures == Work::default() {
            return sent;
        }
        self.spent.unit += beyond;
        self.spent.captures += captures;
        match sent {
            Sent::Now => Sent::Costly { later: false },
            Sent::Later => Sent::Costly { later: true },
            other => other,
        }
    }

    #[inline]
    fn count_sent(&mut self, one: &Outgoing) {
        let copies = u64::from(self.bounce.slots[one.slot as usize].copies);
        if let Some(session) = &mut self.sessions[one.key as usize] {
            count_sent(&mut session.counters, one.endpoint, one.len, copies);
        }
    }

    /// Delivers to the endpoints of this host in `found`, the first `members` of which are the
    /// packet's receivers, and to captures. Returns the copies for the receivers, and those for all
    /// others.
    fn deliver_here<const CAPTURES: bool>(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        members: usize,
    ) -> (Work, Work) {
        let (mut work, mut captures) = (Work::default(), Work::default());
        let Some((memory, _)) = &self.transmit_pools[one.key as usize] else {
            return (work, captures);
        };
        let beginning = self.bounce.bytes(one.slot);
        let source = Source { prefix: beginning, memory, pieces: &self.pieces };
        let packet = Packet { source, beginning, meta };
        let mut deliverer = Deliverer {
            sessions: &mut self.sessions,
            touched: &mut self.touched,
            segment: &mut self.segment,
            receive_budget: self.budgets.receive_budget,
            iteration: self.iteration,
        };
        if CAPTURES {
            for destination in &self.flows.captures {
                captures += deliverer.deliver_to(*destination, &packet, CAPTURED_OUTGOING);
            }
        }
        let (members, promiscuous) = self.found.split_at(members.min(self.found.len()));
        for destination in members {
            work += deliverer.deliver_to(*destination, &packet, 0);
        }
        if CAPTURES {
            for destination in promiscuous {
                captures += deliverer.deliver_to(*destination, &packet, 0);
            }
        }
        (work, captures)
    }

    fn device_takes(&self, meta: &Meta) -> bool {
        let can = self.device.info().can;
        meta.is_full() || can.tx_checksum && (meta.segmentation.is_none() || can.tx_segmentation)
    }

    fn begin_in_flight(&mut self, one: &Outgoing, packets: u32) -> Option<u32> {
        let number = self.free_in_flight.take()?;
        self.in_flight[number as usize] = InFlight {
            session: one.key,
            queue_pair: one.queue_pair,
            first: one.first,
            chain: one.chain,
            remaining: packets,
        };
        if let Some(session) = &mut self.sessions[one.key as usize] {
            session.in_flight += 1;
        }
        Some(number)
    }

    /// Sends the slot's bytes, and the rest in place where the device supports it.
    fn send_as_it_is(&mut self, one: &Outgoing, meta: Meta) -> Result<Sent, DeviceError> {
        let Some(session) = &self.sessions[one.key as usize] else { return Ok(Sent::Now) };
        let space = session.transmit_space;
        let in_place = self.device.info().can.tx_in_place;
        if !in_place && !self.append_rest(one, None) {
            return Ok(self.refuse(one, EndpointCount::TxTooLong));
        }
        let Some(in_flight_slot) = self.begin_in_flight(one, 1) else { return Ok(Sent::NoRoom) };
        let part = self.bounce.part(one.slot);
        let entry = &mut self.bounce.slots[one.slot as usize];
        entry.parts.clear();
        entry.parts.push(part);
        if in_place {
            let rest = self.pieces.iter();
            entry.parts.extend(rest.map(|p| Part { space, offset: p.offset, len: p.len }));
        }
        entry.meta = meta;
        entry.in_flight_slot = in_flight_slot;
        self.handoff.hand_off(
            one.slot,
            one.expedited,
            &self.bounce,
            &mut self.spaces,
            self.device.as_mut(),
        )?;
        Ok(Sent::Later)
    }

    fn append_rest(&mut self, one: &Outgoing, complete: Option<(u16, u16)>) -> bool {
        let Some((memory, _)) = &self.transmit_pools[one.key as usize] else { return false };
        let rest = Source { prefix: &[], memory, pieces: &self.pieces };
        self.bounce.append(one.slot, rest, complete)
    }

    /// Completes checksums and segments in software, for a device that cannot.
    fn send_by_software(&mut self, one: &Outgoing, meta: Meta) -> Result<Sent, DeviceError> {
        if meta.segmentation.is_none() {
            let complete = match meta.checksum {
                Checksum::Partial { start, offset } => Some((start, offset)),
                _ => None,
            };
            if !self.append_rest(one, complete) {
                return Ok(self.refuse(one, EndpointCount::TxTooLong));
            }
            self.pieces.clear();
            return self.send_as_it_is(one, Meta::FULL);
        }
        let mut beginning = [0; WHOLE_BYTES];
        let held = self.bounce.bytes(one.slot).len();
        beginning[..held].copy_from_slice(self.bounce.bytes(one.slot));
        let Ok(mut segmenter) = Segmenter::new(&beginning[..held], one.len, &meta) else {
            return Ok(self.refuse(one, EndpointCount::TxMalformed));
        };
        let packets = segmenter.remaining() as u32;
        let Some(in_flight_slot) = self.begin_in_flight(one, packets) else {
            return Ok(Sent::NoRoom);
        };
        let Some((memory, _)) = self.transmit_pools[one.key as usize].clone() else {
            return Ok(Sent::Now);
        };
        let pieces = std::mem::take(&mut self.pieces);
        let source = Source { prefix: &beginning[..held], memory: &memory, pieces: &pieces };
        let mut header = [0; MAX_HEADER_BYTES];
        let mut own_slot = Some(one.slot);
        let mut failed = None;
        while let Some(segment) = segmenter.next(&mut header) {
            let payload = segment.payload.clone();
            let (header_bytes, partial) = segment.leave_partial(&mut header);
            let complete = match partial.checksum {
                Checksum::Partial { start, offset } => Some((start, offset)),
                _ => None,
            };
            // The first segment takes the packet's own slot. The engine has checked before that
            // there are enough.
            let Some(slot) = own_slot.take().or_else(|| self.bounce.take()) else { break };
            let built = self.bounce.build(
                slot,
                &header[..header_bytes],
                source,
                payload.start,
                payload.len(),
                complete,
            );
            let part = self.bounce.part(slot);
            let entry = &mut self.bounce.slots[slot as usize];
            entry.parts.clear();
            entry.parts.push(part);
            entry.meta = Meta::FULL;
            entry.in_flight_slot = in_flight_slot;
            if !built {
                self.refuse(one, EndpointCount::TxTooLong);
                self.land(slot);
                continue;
            }
            if let Err(error) = self.handoff.hand_off(
                slot,
                false,
                &self.bounce,
                &mut self.spaces,
                self.device.as_mut(),
            ) {
                failed = Some(error);
                break;
            }
        }
        self.pieces = pieces;
        failed.map_or(Ok(Sent::Later), Err)
    }
}

/// Counts a packet sent to the device or to an endpoint of this host.
#[inline]
pub(crate) fn count_sent(words: &mut OwnWords, endpoint: u32, len: usize, copies: u64) {
    for (count, by) in [
        (EndpointCount::TxPackets, 1),
        (EndpointCount::TxBytes, len as u64),
        (EndpointCount::TxCopies, copies),
    ] {
        counters::add(words, session_word(endpoint, count), by);
    }
}

/// Returns the length of the longest frame that a packet becomes on the wire.
fn wire_bytes(meta: &Meta, headers: &Headers, len: usize) -> usize {
    if meta.segmentation.is_none() {
        return len;
    }
    match (meta.segmentation, headers.transport(), headers.l4_offset()) {
        (Some(segmentation), Transport::Tcp { header_bytes, .. }, Some(l4)) => {
            len.min(l4 + usize::from(header_bytes) + usize::from(segmentation.segment_bytes))
        }
        _ => len,
    }
}

/// Returns the number of frames that a packet becomes on the wire.
fn segments(meta: &Meta, headers: &Headers, len: usize) -> usize {
    match (meta.segmentation, headers.transport(), headers.l4_offset()) {
        (Some(segmentation), Transport::Tcp { header_bytes, .. }, Some(l4)) => {
            let payload = len.saturating_sub(l4 + usize::from(header_bytes));
            payload.div_ceil(usize::from(segmentation.segment_bytes)).max(1)
        }
        _ => 1,
    }
}

// A packet segmented in software has room behind those that wait, and in the bounce buffers.
const _: () = assert!(offload::MAX_SENT_SEGMENTS <= BACKLOG / 2);
const _: () = assert!(offload::MAX_SENT_SEGMENTS <= BOUNCE_SLOTS as usize / 2);
