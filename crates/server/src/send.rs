//! One packet of an application: the engine checks it and sends it to its destinations.

use towpath_device::{Checksum, DeviceError, Meta, Part};
use towpath_packet::headers::{Headers, Malformed};
use towpath_packet::offload;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_packet::transport::Transport;
use towpath_protocol::counters::{self, Device as Count, Endpoint as EndpointCount};
use towpath_queue::descriptor::{MAX_PACKET_BYTES, META, SMALL};
use towpath_queue::{OwnWords, Violation};

use crate::copy::session_word;
use crate::demux::{Destination, Way, is_group};
use crate::engine::{Engine, Flight, STAGE_SLOTS};
use crate::handoff::{BACKLOG, SMALL_PLACES};
use crate::receive::{CAPTURED_OUTGOING, Deliverer, Packet};
use crate::source::{Piece, Source};
use crate::stage::WHOLE_BYTES;
use crate::transmit::Group;
use crate::work::Work;

/// The result for a packet.
pub(crate) enum Sent {
    /// The packet is done: dropped, or delivered here.
    Now,
    /// The packet is on its way to the device.
    Later,
    /// Either of these, with more than one copy: see [`Engine::spent`].
    Costly {
        /// `true` if the packet is on its way to the device.
        later: bool,
    },
    /// The device has no room for the packet now.
    NoRoom,
    /// No correct application sends the packet.
    Violates(Violation),
}

/// A packet that the engine is about to send.
#[derive(Clone, Copy)]
struct Outgoing {
    place: u32,
    queue_set: u32,
    endpoint: u32,
    first: u32,
    chain: u32,
    len: usize,
    /// The bounce buffer that holds the packet's beginning.
    slot: u32,
    /// See [`crate::transmit::Taken`].
    for_nobody_here: bool,
    /// The number of the packet's queue pair in the scheduler.
    unit: u32,
    /// `true` if the packet passes the others.
    small: bool,
}

impl Engine {
    fn refuse(&mut self, one: &Outgoing, count: EndpointCount) -> Sent {
        if let Some(session) = &mut self.sessions[one.place as usize] {
            counters::add(&mut session.counters, session_word(one.endpoint, count), 1);
        }
        Sent::Now
    }

    /// Checks a packet by its beginning in its slot, and sends the checked bytes.
    pub(crate) fn check_and_send<const TAPS: bool>(
        &mut self,
        group: &mut Group,
        place: usize,
        mtu: usize,
    ) -> Result<Sent, DeviceError> {
        let taken = group.packets[place];
        let slot = group.slots[place];
        let one = &Outgoing {
            place: group.place,
            queue_set: group.queue_set,
            endpoint: taken.endpoint,
            first: taken.first,
            chain: taken.chain,
            len: taken.len as usize,
            slot,
            for_nobody_here: taken.for_nobody_here,
            unit: group.unit,
            small: group.small,
        };
        if taken.late {
            return Ok(self.refuse(one, EndpointCount::TxLate));
        }
        let Some(session) = &self.sessions[one.place as usize] else { return Ok(Sent::Now) };
        let Some((_, heap_words)) = &self.heaps[one.place as usize] else { return Ok(Sent::Now) };
        if !taken.fetched {
            return Ok(Sent::Violates(Violation::Range));
        }
        let descriptors = &group.descriptors[taken.at as usize..][..taken.chain as usize];
        let Some(endpoint) = session.endpoints.get(one.endpoint as usize) else {
            return Ok(Sent::Violates(Violation::Endpoint));
        };
        if descriptors.iter().any(|descriptor| descriptor.endpoint != one.endpoint) {
            return Ok(Sent::Violates(Violation::Endpoint));
        }
        let heap = session.shape.transmit_heap;
        let meta = match descriptors {
            [first, ..] if first.flags & META != 0 => {
                let mut words = [0; 16];
                let fetched = heap_words.fetch_bytes(heap.frame_offset(first.frame), &mut words);
                let (low, high) = words.split_at(8);
                let word = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_ne_bytes);
                match Meta::from_words([word(low), word(high)]) {
                    Some(meta) if fetched => meta,
                    _ => return Ok(Sent::Violates(Violation::Flags)),
                }
            }
            _ => Meta::FINISHED,
        };
        // The application closed the endpoint while packets waited. The engine drops them; this is
        // no violation.
        let Some(endpoint) = endpoint else {
            return Ok(self.refuse(one, EndpointCount::TxOutsideRule));
        };
        // Expedited packets may have their own queue pair, in which they do not wait behind others.
        let small = descriptors.first().is_some_and(|first| first.flags & SMALL != 0);
        if endpoint.queue_set != one.queue_set && !small {
            return Ok(Sent::Violates(Violation::Endpoint));
        }
        let mut headers = Headers::NONE;
        let mut readable = headers.read(self.stage.bytes(slot), one.len).is_ok();
        if readable
            && headers.malformed == Some(Malformed::BeyondPrefix)
            && self.stage.bytes(slot).len() < one.len.min(WHOLE_BYTES)
        {
            let looked = one.len.min(WHOLE_BYTES);
            if !self.stage.fetch_again(slot, heap_words, &heap, descriptors, looked) {
                return Ok(Sent::Violates(Violation::Range));
            }
            readable = headers.read(self.stage.bytes(slot), one.len).is_ok();
        }
        if !readable {
            return Ok(self.refuse(one, EndpointCount::TxMalformed));
        }
        if let Err(count) = endpoint.rights.check(&headers, || self.stage.bytes(slot)) {
            return Ok(self.refuse(one, count));
        }
        if meta != Meta::FINISHED && offload::check(&meta, &headers, one.len).is_err() {
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
            Checksum::Verified => Meta::FINISHED,
            _ => meta,
        };
        if wire_bytes(&meta, &headers, one.len) > mtu + usize::from(headers.l3_offset) {
            return Ok(self.refuse(one, EndpointCount::TxTooLong));
        }
        // The engine need not read the slot's bytes from the transmit buffer pool again.
        let mut held = self.stage.bytes(slot).len();
        self.pieces.clear();
        if held < one.len {
            for descriptor in descriptors {
                let skip = held.min(descriptor.len as usize) as u32;
                held -= skip as usize;
                if skip < descriptor.len {
                    let offset = descriptor.heap_offset(&heap) as u32 + skip;
                    self.pieces.push(Piece { offset, len: descriptor.len - skip });
                }
            }
        }
        self.route::<TAPS>(one, meta, &headers)
    }

    fn route<const TAPS: bool>(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        headers: &Headers,
    ) -> Result<Sent, DeviceError> {
        let group = is_group(headers.destination);
        let destination =
            if group || one.for_nobody_here { None } else { self.flows.lookup(Way::Sent, headers) };
        self.found.clear();
        if let Some(destination) = destination {
            self.found.push(destination);
            if !TAPS {
                let (work, _) = self.deliver_here::<TAPS>(one, meta, 1);
                self.count(Count::LocalPackets);
                self.count_sent(one);
                if meta.segmentation.is_none() {
                    return Ok(Sent::Now);
                }
                return Ok(self.spend(one, work, Work::default(), Sent::Now));
            }
        }
        let sender =
            |found: &Destination| found.session == one.place && found.endpoint == one.endpoint;
        if group {
            self.flows.members(headers, &mut self.found);
            self.found.retain(|found| !sender(found));
        }
        let to_device = group || self.found.is_empty();
        let software = to_device && !self.device_takes(&meta);
        let packets = if software { segments(&meta, headers, one.len) } else { 1 };
        if to_device {
            let room = if one.small {
                self.has_small_room()
            } else {
                // Packets that have waited longer, or units in the middle of a message, precede
                // this one.
                self.handoff.has_room(packets)
                    && self.has_slots(packets + SMALL_PLACES)
                    && self.schedule.may_use_device(one.unit)
            };
            if !room {
                return Ok(Sent::NoRoom);
            }
        }
        let members = self.found.len();
        if TAPS {
            self.found.extend(self.flows.promiscuous.iter().filter(|found| !sender(found)));
        }
        let local = self.found.len();
        let (mut work, mut taps) = (Work::default(), Work::default());
        if local > 0 || TAPS && !self.flows.captures.is_empty() {
            (work, taps) = self.deliver_here::<TAPS>(one, meta, members);
        }
        if !group && local > 0 {
            self.count(Count::LocalPackets);
        }
        self.count_sent(one);
        if !software && to_device && local == 0 && !TAPS {
            return self.send_as_it_is(one, meta);
        }
        let sent = if software {
            self.count(Count::TxSoftware);
            self.send_by_software(one, meta)?
        } else if to_device {
            self.send_as_it_is(one, meta)?
        } else {
            Sent::Now
        };
        if to_device {
            work += Work { copies: packets as u64, bytes: one.len as u64 };
        }
        Ok(self.spend(one, work, taps, sent))
    }

    /// Records a packet's cost: `work` in place of the one copy that every packet is charged for,
    /// and `taps` for captures and promiscuous endpoints.
    fn spend(&mut self, one: &Outgoing, work: Work, taps: Work, sent: Sent) -> Sent {
        let beyond = work.beyond_one(one.len);
        if beyond == Work::default() && taps == Work::default() {
            return sent;
        }
        self.spent.unit += beyond;
        self.spent.taps += taps;
        match sent {
            Sent::Now => Sent::Costly { later: false },
            Sent::Later => Sent::Costly { later: true },
            other => other,
        }
    }

    #[inline]
    fn count_sent(&mut self, one: &Outgoing) {
        let copies = u64::from(self.stage.slots[one.slot as usize].copies);
        if let Some(session) = &mut self.sessions[one.place as usize] {
            count_sent(&mut session.counters, one.endpoint, one.len, copies);
        }
    }

    /// Delivers to the endpoints of this host in `found`, the first `members` of which are the
    /// packet's receivers, and to captures. Returns the copies for the receivers, and those for all
    /// others.
    fn deliver_here<const TAPS: bool>(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        members: usize,
    ) -> (Work, Work) {
        let (mut work, mut taps) = (Work::default(), Work::default());
        let Some((memory, _)) = &self.heaps[one.place as usize] else { return (work, taps) };
        let looked = self.stage.bytes(one.slot);
        let source = Source { prefix: looked, memory, pieces: &self.pieces };
        let packet = Packet { source, looked, meta };
        let mut deliverer = Deliverer {
            sessions: &mut self.sessions,
            touched: &mut self.touched,
            segment: &mut self.segment,
            receive_budget: self.budgets.receive_budget,
            turn: self.turn,
        };
        if TAPS {
            for destination in &self.flows.captures {
                taps += deliverer.deliver_to(*destination, &packet, CAPTURED_OUTGOING);
            }
        }
        let (members, promiscuous) = self.found.split_at(members.min(self.found.len()));
        for destination in members {
            work += deliverer.deliver_to(*destination, &packet, 0);
        }
        if TAPS {
            for destination in promiscuous {
                taps += deliverer.deliver_to(*destination, &packet, 0);
            }
        }
        (work, taps)
    }

    fn device_takes(&self, meta: &Meta) -> bool {
        let can = self.device.info().can;
        meta.is_finished()
            || can.tx_checksum && (meta.segmentation.is_none() || can.tx_segmentation)
    }

    fn begin_flight(&mut self, one: &Outgoing, packets: u32) -> Option<u32> {
        let number = self.free_flights.take()?;
        self.flights[number as usize] = Flight {
            session: one.place,
            queue_set: one.queue_set,
            first: one.first,
            chain: one.chain,
            remaining: packets,
        };
        if let Some(session) = &mut self.sessions[one.place as usize] {
            session.flights += 1;
        }
        Some(number)
    }

    /// Sends the slot's bytes, and the rest in place where the device supports it.
    fn send_as_it_is(&mut self, one: &Outgoing, meta: Meta) -> Result<Sent, DeviceError> {
        let Some(session) = &self.sessions[one.place as usize] else { return Ok(Sent::Now) };
        let space = session.transmit_space;
        let in_place = self.device.info().can.tx_in_place;
        if !in_place && !self.append_rest(one, None) {
            return Ok(self.refuse(one, EndpointCount::TxTooLong));
        }
        let Some(flight) = self.begin_flight(one, 1) else { return Ok(Sent::NoRoom) };
        let part = self.stage.part(one.slot);
        let entry = &mut self.stage.slots[one.slot as usize];
        entry.parts.clear();
        entry.parts.push(part);
        if in_place {
            let rest = self.pieces.iter();
            entry.parts.extend(rest.map(|p| Part { space, offset: p.offset, len: p.len }));
        }
        entry.meta = meta;
        entry.flight = flight;
        self.handoff.give(
            one.slot,
            one.small,
            &self.stage,
            &mut self.spaces,
            self.device.as_mut(),
        )?;
        Ok(Sent::Later)
    }

    fn append_rest(&mut self, one: &Outgoing, finish: Option<(u16, u16)>) -> bool {
        let Some((memory, _)) = &self.heaps[one.place as usize] else { return false };
        let rest = Source { prefix: &[], memory, pieces: &self.pieces };
        self.stage.append(one.slot, rest, finish)
    }

    /// Completes checksums and segments in software, for a device that cannot.
    fn send_by_software(&mut self, one: &Outgoing, meta: Meta) -> Result<Sent, DeviceError> {
        if meta.segmentation.is_none() {
            let finish = match meta.checksum {
                Checksum::Unfinished { start, offset } => Some((start, offset)),
                _ => None,
            };
            if !self.append_rest(one, finish) {
                return Ok(self.refuse(one, EndpointCount::TxTooLong));
            }
            self.pieces.clear();
            return self.send_as_it_is(one, Meta::FINISHED);
        }
        let mut looked = [0; WHOLE_BYTES];
        let held = self.stage.bytes(one.slot).len();
        looked[..held].copy_from_slice(self.stage.bytes(one.slot));
        let Ok(mut segmenter) = Segmenter::new(&looked[..held], one.len, &meta) else {
            return Ok(self.refuse(one, EndpointCount::TxMalformed));
        };
        let packets = segmenter.remaining() as u32;
        let Some(flight) = self.begin_flight(one, packets) else { return Ok(Sent::NoRoom) };
        let Some((memory, _)) = self.heaps[one.place as usize].clone() else {
            return Ok(Sent::Now);
        };
        let pieces = std::mem::take(&mut self.pieces);
        let source = Source { prefix: &looked[..held], memory: &memory, pieces: &pieces };
        let mut header = [0; MAX_HEADER_BYTES];
        let mut own_slot = Some(one.slot);
        let mut failed = None;
        while let Some(segment) = segmenter.next(&mut header) {
            let payload = segment.payload.clone();
            let (header_bytes, unfinished) = segment.leave_unfinished(&mut header);
            let finish = match unfinished.checksum {
                Checksum::Unfinished { start, offset } => Some((start, offset)),
                _ => None,
            };
            // The first segment takes the packet's own slot. The engine has checked before that
            // there are enough.
            let Some(slot) = own_slot.take().or_else(|| self.stage.take()) else { break };
            let built = self.stage.build(
                slot,
                &header[..header_bytes],
                source,
                payload.start,
                payload.len(),
                finish,
            );
            let part = self.stage.part(slot);
            let entry = &mut self.stage.slots[slot as usize];
            entry.parts.clear();
            entry.parts.push(part);
            entry.meta = Meta::FINISHED;
            entry.flight = flight;
            if !built {
                self.refuse(one, EndpointCount::TxTooLong);
                self.land(slot);
                continue;
            }
            if let Err(error) =
                self.handoff.give(slot, false, &self.stage, &mut self.spaces, self.device.as_mut())
            {
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
const _: () = assert!(offload::MAX_SENT_SEGMENTS <= STAGE_SLOTS as usize / 2);
