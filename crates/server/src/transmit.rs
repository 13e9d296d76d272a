//! From the applications to the device, and to each other.

use std::ops::ControlFlow;

use towpath_device::{Checksum, DeviceError, Meta, Part};
use towpath_packet::headers::{Headers, Malformed};
use towpath_packet::offload;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_packet::transport::Transport;
use towpath_queue::Violation;
use towpath_queue::descriptor::META;

use crate::copy::{PREFIX_BYTES, Piece, Source, WHOLE_BYTES, session_word};
use crate::demux::is_group;
use crate::engine::{Engine, Flight, STAGE_SLOTS, touch};
use crate::receive::{CAPTURED_OUTGOING, Packet};
use towpath_protocol::counters::{self, Device as Count, Endpoint as EndpointCount};

/// A packet taken from a queue and not done with.
#[derive(Clone, Copy)]
struct Taken {
    place: u32,
    queue_set: u32,
    first: u32,
    chain: usize,
    endpoint: u32,
    len: usize,
}

/// What became of it.
enum Sent {
    /// Done with: dropped, or delivered here.
    Now,
    /// On its way to the device.
    Later,
    /// No room for it now.
    NoRoom,
    /// No correct application sends it.
    Violates(Violation),
}

impl Engine {
    /// Takes packets from the queue sets that have some, one set after the other, within budgets.
    pub(crate) fn transmit(&mut self) -> Result<usize, DeviceError> {
        self.discover();
        let mut left = self.settings.turn_budget;
        let mut work = 0;
        for _ in 0..self.active.len() {
            if left == 0 {
                break;
            }
            let Some((place, queue_set)) = self.active.pop_front() else { break };
            let budget = self.settings.transmit_budget.min(left);
            let (taken, go_on) = self.transmit_set(place, queue_set, budget)?;
            work += taken;
            left -= taken;
            self.end_if_violated(place);
            if go_on.is_break() {
                break;
            }
        }
        Ok(work)
    }

    /// Finds the queue sets with something to send: only sessions with events cost more than a
    /// look.
    fn discover(&mut self) {
        for place in 0..self.sessions.len() as u32 {
            let Some(session) = &mut self.sessions[place as usize] else { continue };
            if session.closing {
                continue;
            }
            let (active, sets) = (&mut self.active, &mut session.queue_sets);
            let outcome = session.work.take(session.shape.queue_sets, |queue_set| {
                let set = &mut sets[queue_set as usize];
                if !set.active {
                    set.active = true;
                    active.push_back((place, queue_set));
                }
            });
            if let Err(violation) = outcome {
                session.violation.get_or_insert(violation);
                self.end_if_violated(place);
            }
        }
    }

    /// Sends from one queue set. Answers how many packets were taken, and whether others may go
    /// on: not when the device has no room. A set that has more to send stands in line again.
    fn transmit_set(
        &mut self,
        place: u32,
        queue_set: u32,
        budget: usize,
    ) -> Result<(usize, ControlFlow<()>), DeviceError> {
        let mut taken = 0;
        let mut flow = ControlFlow::Continue(());
        while taken < budget {
            let Some(session) = &mut self.sessions[place as usize] else { break };
            let set = &mut session.queue_sets[queue_set as usize];
            let outcome = (|| {
                if set.transmit.waiting() == 0 && set.transmit.observe()? == 0 {
                    return Ok(None);
                }
                set.transmit.take(&mut session.transmit_ledger, &mut self.packet)
            })();
            let (chain, first) = match outcome {
                Ok(Some(packet)) => packet,
                Ok(None) => {
                    set.active = false;
                    return Ok((taken, flow));
                }
                Err(violation) => {
                    session.violation = Some(violation);
                    return Ok((taken, flow));
                }
            };
            let endpoint = self.packet[0].endpoint;
            let one = Taken { place, queue_set, first, chain, endpoint, len: 0 };
            let sent = self.transmit_one(one)?;
            let Some(session) = &mut self.sessions[place as usize] else { break };
            let set = &mut session.queue_sets[queue_set as usize];
            match sent {
                Sent::Now => {
                    set.transmit.complete(&mut session.transmit_ledger, first, chain as u32);
                    touch(&mut self.touched, session, place, queue_set);
                }
                Sent::Later => {}
                Sent::NoRoom => {
                    set.transmit.put_back(&mut session.transmit_ledger, first, chain as u32);
                    flow = ControlFlow::Break(());
                    break;
                }
                Sent::Violates(violation) => {
                    session.violation = Some(violation);
                    return Ok((taken, flow));
                }
            }
            taken += 1;
        }
        // First in line again when the device was full, last when its share was used up.
        match flow {
            ControlFlow::Break(()) => self.active.push_front((place, queue_set)),
            ControlFlow::Continue(()) => self.active.push_back((place, queue_set)),
        }
        Ok((taken, flow))
    }

    fn transmit_one(&mut self, mut one: Taken) -> Result<Sent, DeviceError> {
        let Some(slot) = self.stage.take() else { return Ok(Sent::NoRoom) };
        let sent = self.check_and_send(&mut one, slot);
        match sent {
            // A packet on its way keeps its slot.
            Ok(Sent::Later) => {}
            Ok(Sent::Now | Sent::NoRoom | Sent::Violates(_)) | Err(_) => {
                self.stage.give_back(slot);
            }
        }
        sent
    }

    fn refuse(&mut self, one: &Taken, count: EndpointCount) -> Sent {
        if let Some(session) = &mut self.sessions[one.place as usize] {
            counters::add(&mut session.counters, session_word(one.endpoint, count), 1);
        }
        Sent::Now
    }

    /// Fetches the packet's beginning into the slot, checks it there, and sends what was checked.
    fn check_and_send(&mut self, one: &mut Taken, slot: u32) -> Result<Sent, DeviceError> {
        let Some(session) = &self.sessions[one.place as usize] else { return Ok(Sent::Now) };
        let Some((_, heap_words)) = &self.heaps[one.place as usize] else { return Ok(Sent::Now) };
        let packet = &self.packet[..one.chain];
        if one.endpoint >= session.shape.endpoints
            || packet.iter().any(|descriptor| descriptor.endpoint != one.endpoint)
        {
            return Ok(Sent::Violates(Violation::Endpoint));
        }
        let heap = session.shape.transmit_heap;
        self.pieces.clear();
        for descriptor in packet {
            let offset = descriptor.heap_offset(&heap) as u32;
            self.pieces.push(Piece { offset, len: descriptor.len });
            one.len += descriptor.len as usize;
        }
        let meta = if packet[0].flags & META == 0 {
            Meta::FINISHED
        } else {
            let mut words = [0; 16];
            let start = heap.frame_offset(packet[0].frame);
            let fetched = heap_words.fetch_bytes(start, &mut words);
            let (low, high) = words.split_at(8);
            let word = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_ne_bytes);
            match Meta::from_words([word(low), word(high)]) {
                Some(meta) if fetched => meta,
                _ => return Ok(Sent::Violates(Violation::Flags)),
            }
        };
        // An endpoint that was closed while packets waited: they are dropped, that is no crime.
        let Some(endpoint) = &session.endpoints[one.endpoint as usize] else {
            return Ok(self.refuse(one, EndpointCount::TxOutsideRule));
        };
        if endpoint.queue_set != one.queue_set {
            return Ok(Sent::Violates(Violation::Endpoint));
        }
        let small = one.len <= WHOLE_BYTES;
        let mut looked = if small { one.len } else { PREFIX_BYTES };
        let mut headers;
        loop {
            if !self.stage.fetch(slot, heap_words, &self.pieces, looked) {
                return Ok(Sent::Violates(Violation::Range));
            }
            headers = Headers::parse(self.stage.bytes(slot), one.len);
            let beyond = matches!(&headers, Ok(headers) if headers.malformed == Some(Malformed::BeyondPrefix));
            if !beyond || looked == WHOLE_BYTES {
                break;
            }
            looked = WHOLE_BYTES.min(one.len);
        }
        let Ok(headers) = headers else {
            return Ok(self.refuse(one, EndpointCount::TxMalformed));
        };
        if let Err(count) = endpoint.rights.check(&headers) {
            return Ok(self.refuse(one, count));
        }
        if offload::check(&meta, &headers).is_err() {
            return Ok(self.refuse(one, EndpointCount::TxMalformed));
        }
        let meta = match meta.checksum {
            // That a device found it right is for devices to say.
            Checksum::Verified => Meta::FINISHED,
            _ => meta,
        };
        if wire_bytes(&meta, &headers, one.len)
            > self.device.info().mtu + usize::from(headers.l3_offset)
        {
            return Ok(self.refuse(one, EndpointCount::TxTooLong));
        }
        self.route(one, slot, meta, &headers, small)
    }

    fn route(
        &mut self,
        one: &Taken,
        slot: u32,
        meta: Meta,
        headers: &Headers,
        small: bool,
    ) -> Result<Sent, DeviceError> {
        self.found.clear();
        let group = is_group(headers.destination);
        if group {
            self.flows.members(headers, &mut self.found);
        } else if let Some(destination) = self.flows.lookup(headers) {
            self.found.push(destination);
        }
        let to_device = group || self.found.is_empty();
        let software = to_device && !self.device_takes(&meta);
        if to_device {
            let packets = if software { segments(&meta, headers, one.len) } else { 1 };
            if packets > STAGE_SLOTS as usize / 2 || packets > crate::handoff::BACKLOG / 2 {
                return Ok(self.refuse(one, EndpointCount::TxTooLong));
            }
            if !self.handoff.has_room(packets, small)
                || self.stage.free() < packets
                || self.free_flights.is_empty()
            {
                return Ok(Sent::NoRoom);
            }
        }
        self.found.extend_from_slice(&self.flows.promiscuous);
        let sender = |found: &crate::demux::Destination| {
            found.session == one.place && found.endpoint == one.endpoint
        };
        if group || !self.flows.promiscuous.is_empty() {
            self.found.retain(|found| !sender(found));
        }
        let local = self.found.len();
        self.drop_prefix(self.stage.bytes(slot).len());
        if local > 0 || !self.flows.captures.is_empty() {
            self.deliver_here(one, slot, meta);
        }
        if !group && local > 0 {
            self.count(Count::LocalPackets);
        }
        if let Some(session) = &mut self.sessions[one.place as usize] {
            for (count, by) in [
                (EndpointCount::TxPackets, 1),
                (EndpointCount::TxBytes, one.len as u64),
                (EndpointCount::TxCopies, 1),
            ] {
                counters::add(&mut session.counters, session_word(one.endpoint, count), by);
            }
        }
        if !to_device {
            return Ok(Sent::Now);
        }
        if software {
            self.count(Count::TxSoftware);
            self.send_by_software(one, slot, meta)
        } else {
            self.send_as_it_is(one, slot, meta)
        }
    }

    /// What the slot holds needs not be read from the heap again.
    fn drop_prefix(&mut self, mut held: usize) {
        let mut gone = 0;
        for piece in &mut self.pieces {
            let now = held.min(piece.len as usize);
            piece.offset += now as u32;
            piece.len -= now as u32;
            held -= now;
            gone += usize::from(piece.len == 0);
        }
        self.pieces.drain(..gone);
    }

    /// Delivers to the endpoints of this host in `found`, and to those that capture.
    fn deliver_here(&mut self, one: &Taken, slot: u32, meta: Meta) {
        let Some((memory, _)) = self.heaps[one.place as usize].clone() else { return };
        let mut looked = [0; WHOLE_BYTES];
        let held = self.stage.bytes(slot).len();
        looked[..held].copy_from_slice(self.stage.bytes(slot));
        let pieces = std::mem::take(&mut self.pieces);
        let source = Source { prefix: &looked[..held], memory: &memory, pieces: &pieces };
        let packet = Packet { source, looked: &looked[..held], meta };
        if !self.flows.captures.is_empty() {
            self.deliver_to_captures(&packet, CAPTURED_OUTGOING);
        }
        self.deliver_to_found(&packet, 0);
        self.pieces = pieces;
    }

    fn device_takes(&self, meta: &Meta) -> bool {
        let can = self.device.info().can;
        meta.is_finished()
            || can.tx_checksum && (meta.segmentation.is_none() || can.tx_segmentation)
    }

    fn begin_flight(&mut self, one: &Taken, packets: u32) -> Option<u32> {
        let number = self.free_flights.take()?;
        self.flights[number as usize] = Flight {
            session: one.place,
            queue_set: one.queue_set,
            first: one.first,
            chain: one.chain as u32,
            remaining: packets,
        };
        if let Some(session) = &mut self.sessions[one.place as usize] {
            session.flights += 1;
        }
        Some(number)
    }

    /// The slot's bytes, and the rest in place where the device can take it so.
    fn send_as_it_is(&mut self, one: &Taken, slot: u32, meta: Meta) -> Result<Sent, DeviceError> {
        let Some(session) = &self.sessions[one.place as usize] else { return Ok(Sent::Now) };
        let space = session.transmit_space;
        let in_place = self.device.info().can.tx_in_place;
        if !in_place && !self.append_rest(one, slot, None) {
            return Ok(self.refuse(one, EndpointCount::TxTooLong));
        }
        let Some(flight) = self.begin_flight(one, 1) else { return Ok(Sent::NoRoom) };
        let part = self.stage.part(slot);
        let entry = &mut self.stage.slots[slot as usize];
        entry.parts.clear();
        entry.parts.push(part);
        if in_place {
            let rest = self.pieces.iter();
            entry.parts.extend(rest.map(|p| Part { space, offset: p.offset, len: p.len }));
        }
        entry.meta = meta;
        entry.flight = flight;
        self.handoff.give(slot, &self.stage, &self.spaces, self.device.as_mut())?;
        Ok(Sent::Later)
    }

    fn append_rest(&mut self, one: &Taken, slot: u32, finish: Option<(u16, u16)>) -> bool {
        let Some((memory, _)) = &self.heaps[one.place as usize] else { return false };
        let rest = Source { prefix: &[], memory, pieces: &self.pieces };
        self.stage.append(slot, rest, finish)
    }

    /// Finishes and cuts in software: the device cannot.
    fn send_by_software(
        &mut self,
        one: &Taken,
        slot: u32,
        meta: Meta,
    ) -> Result<Sent, DeviceError> {
        if meta.segmentation.is_none() {
            let finish = match meta.checksum {
                Checksum::Unfinished { start, offset } => Some((start, offset)),
                _ => None,
            };
            if !self.append_rest(one, slot, finish) {
                return Ok(self.refuse(one, EndpointCount::TxTooLong));
            }
            self.pieces.clear();
            return self.send_as_it_is(one, slot, Meta::FINISHED);
        }
        let mut looked = [0; WHOLE_BYTES];
        let held = self.stage.bytes(slot).len();
        looked[..held].copy_from_slice(self.stage.bytes(slot));
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
        let mut own_slot = Some(slot);
        let mut failed = None;
        while let Some(segment) = segmenter.next(&mut header) {
            let payload = segment.payload.clone();
            let (header_bytes, unfinished) = segment.leave_unfinished(&mut header);
            let finish = match unfinished.checksum {
                Checksum::Unfinished { start, offset } => Some((start, offset)),
                _ => None,
            };
            // The first takes the packet's own slot; that there are enough was looked at before.
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
                self.land(slot);
                continue;
            }
            if let Err(error) =
                self.handoff.give(slot, &self.stage, &self.spaces, self.device.as_mut())
            {
                failed = Some(error);
                break;
            }
        }
        self.pieces = pieces;
        failed.map_or(Ok(Sent::Later), Err)
    }
}

/// How long the longest frame is that a packet becomes on the wire.
fn wire_bytes(meta: &Meta, headers: &Headers, len: usize) -> usize {
    match (meta.segmentation, headers.transport(), headers.l4_offset()) {
        (Some(segmentation), Transport::Tcp { header_bytes, .. }, Some(l4)) => {
            len.min(l4 + usize::from(header_bytes) + usize::from(segmentation.segment_bytes))
        }
        _ => len,
    }
}

/// How many frames a packet becomes on the wire.
fn segments(meta: &Meta, headers: &Headers, len: usize) -> usize {
    match (meta.segmentation, headers.transport(), headers.l4_offset()) {
        (Some(segmentation), Transport::Tcp { header_bytes, .. }, Some(l4)) => {
            let payload = len.saturating_sub(l4 + usize::from(header_bytes));
            payload.div_ceil(usize::from(segmentation.segment_bytes)).max(1)
        }
        _ => 1,
    }
}
