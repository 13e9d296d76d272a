//! The destinations of a checked packet: endpoints of this host, the device, or both. The engine
//! delivers it, hands it off, or does both.

use towpath_device::{DeviceError, Meta, Part, VlanTag};
use towpath_packet::headers::Headers;
use towpath_packet::offload;
use towpath_packet::segment::{MAX_HEADER_BYTES, Segmenter};
use towpath_protocol::counters::{self, Device as Count, Endpoint as EndpointCount};

use towpath_queue::Violation;

use crate::clock::clock_ns;
use crate::engine::copy::session_word;
use crate::engine::delivery::{CAPTURED_OUTGOING, Packet, partial};
use crate::engine::demux::{Destination, Direction, is_group};
use crate::engine::neighbours::{self, NeighbourRequest, REQUESTS_PER_ITERATION};
use crate::engine::port::BOUNCE_SLOTS;
use crate::engine::source::{Source, TAGGED_BYTES};
use crate::engine::tx::TxPath;
use crate::engine::tx::batch::Batch;
use crate::engine::tx::check::{Refusal, check, count_sent, rest_of, segments};
use crate::engine::tx::context::{Sent, TxContext};
use crate::engine::tx::handoff::{BACKLOG, EXPEDITED_SLOTS};
use crate::engine::tx::in_flight::InFlight;
use crate::engine::tx::tag::insert_tag;
use crate::engine::work::Work;

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
    /// Bytes of a VLAN tag that the engine inserted.
    inserted: u8,
    /// The VLAN tag that the device inserts.
    tag: Option<VlanTag>,
    /// See [`crate::engine::tx::batch::Taken`].
    no_local_match: bool,
    /// The number of the packet's queue pair in the scheduler.
    unit: u32,
    /// `true` if the packet is expedited and precedes the others.
    expedited: bool,
}

impl Outgoing {
    fn new(batch: &Batch, index: usize, slot: u32) -> Outgoing {
        let taken = &batch.packets[index];
        Outgoing {
            key: batch.key,
            queue_pair: batch.queue_pair,
            endpoint: taken.endpoint,
            first: taken.first,
            chain: taken.chain,
            len: taken.len as usize,
            slot,
            inserted: 0,
            tag: None,
            no_local_match: taken.no_local_match,
            unit: batch.unit,
            expedited: batch.expedited,
        }
    }

    /// Counts that the engine drops the packet.
    fn refuse(&self, count: EndpointCount, context: &mut TxContext<'_>) -> Sent {
        let Some(session) = context.delivery.session(self.key) else { return Sent::Now };
        counters::add(&mut session.counters, session_word(self.endpoint, count), 1);
        let is_open = session.endpoints.get(self.endpoint as usize).is_some_and(Option::is_some);
        if is_open
            && is_forbidden(count)
            && session.forbidden.as_mut().is_some_and(|limit| limit.exceeds(clock_ns()))
        {
            return Sent::Violates(Violation::Forbidden);
        }
        Sent::Now
    }

    fn is_sender(&self, found: &Destination) -> bool {
        found.session == self.key && found.endpoint == self.endpoint
    }
}

/// Returns `true` if a packet was refused because its sender has no right to send it.
fn is_forbidden(count: EndpointCount) -> bool {
    use EndpointCount::{TxOutsideRule, TxSourceAddress, TxSourceMac};
    matches!(count, TxSourceMac | TxSourceAddress | TxOutsideRule)
}

/// The receivers of a packet, as far as the flow rules decide.
struct Receivers {
    /// `true` if the packet is for a group.
    group: bool,
    /// `true` if the packet also goes to the device.
    to_device: bool,
    /// The endpoints in [`TxPath::found`] that are the packet's receivers.
    members: usize,
}

impl TxPath {
    /// Checks a packet of a batch, and sends it to its destinations.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(super) fn check_and_send<const CAPTURES: bool>(
        &mut self,
        batch: &Batch,
        index: usize,
        context: &mut TxContext<'_>,
    ) -> Result<Sent, DeviceError> {
        let Some(slot) = self.bounce.take() else { return Ok(Sent::NoRoom) };
        self.bounce.hold(slot, batch.beginning(index));
        let sent = self.check_and_send_from::<CAPTURES>(batch, index, slot, context)?;
        // A packet that the engine handed off keeps its slot.
        if !matches!(sent, Sent::Later | Sent::Costly { later: true }) {
            self.bounce.release(slot);
        }
        Ok(sent)
    }

    /// Checks a packet whose beginning is in a slot, and sends it to its destinations.
    fn check_and_send_from<const CAPTURES: bool>(
        &mut self,
        batch: &Batch,
        index: usize,
        slot: u32,
        context: &mut TxContext<'_>,
    ) -> Result<Sent, DeviceError> {
        let one = Outgoing::new(batch, index, slot);
        let mtu = context.port.mtu();
        let Some(memory) = context.memories.get(one.key) else { return Ok(Sent::Now) };
        let Some(session) = context.delivery.session(one.key) else { return Ok(Sent::Now) };
        let mut headers = Headers::NONE;
        let meta =
            match check(batch, (index, slot), session, memory, &mut self.bounce, mtu, &mut headers)
            {
                Ok(meta) => meta,
                Err(Refusal::Violates(violation)) => return Ok(Sent::Violates(violation)),
                Err(Refusal::Counted(count)) => return Ok(one.refuse(count, context)),
            };
        let pool = session.shape.transmit_pool;
        let Some(Some(endpoint)) = session.endpoints.get(one.endpoint as usize) else {
            return Ok(Sent::Now);
        };
        if endpoint.requests_left.is_some() {
            return Ok(self.ask_for_neighbour(&one, &headers, context));
        }
        let within = endpoint.within;
        let held = self.bounce.bytes(one.slot).len();
        rest_of(batch.descriptors_of(index), &pool, held, &mut self.pieces);
        if let Some(tag) = within {
            return self.send_within::<CAPTURES>(one, tag, meta, headers, context);
        }
        let receivers = self.find(&one, &headers, context);
        self.route::<CAPTURES>(&one, meta, &headers, receivers, context)
    }

    /// Sends a checked packet with the tag of its endpoint's VLAN. The device inserts the tag where
    /// it can; for receivers on this host and for captures, the engine does.
    #[cold]
    #[inline(never)]
    fn send_within<const CAPTURES: bool>(
        &mut self,
        mut one: Outgoing,
        tag: VlanTag,
        meta: Meta,
        mut headers: Headers,
        context: &mut TxContext<'_>,
    ) -> Result<Sent, DeviceError> {
        let header_bytes = meta.segmentation.map_or(0, |one| usize::from(one.header_bytes));
        if header_bytes + VlanTag::BYTES > MAX_HEADER_BYTES {
            // Nothing segments a packet with such headers and a tag.
            return Ok(one.refuse(EndpointCount::TxMalformed, context));
        }
        let tagged = Headers { vlan: Some(tag.control), ..headers };
        let receivers = self.find(&one, &tagged, context);
        let is_for_device = !receivers.group && receivers.members == 0;
        let inserts = !CAPTURES && context.port.can().tx_tag && !context.port.copies(&meta);
        if is_for_device && inserts && self.device_takes(&one, &meta, context) {
            one.tag = Some(tag);
            return self.route::<CAPTURES>(&one, meta, &headers, receivers, context);
        }
        let packet = (one.slot, one.len);
        let Some(tagged) = insert_tag(&mut self.bounce, packet, tag, meta, &mut headers) else {
            return Ok(one.refuse(EndpointCount::TxTooLong, context));
        };
        one.len = tagged.0;
        one.inserted = VlanTag::BYTES as u8;
        self.route::<CAPTURES>(&one, tagged.1, &headers, receivers, context)
    }

    /// Passes a request for a link address to the control thread.
    #[cold]
    fn ask_for_neighbour(
        &mut self,
        one: &Outgoing,
        headers: &Headers,
        context: &mut TxContext<'_>,
    ) -> Sent {
        let Some(target) = neighbours::target(headers) else {
            return one.refuse(EndpointCount::TxOutsideRule, context);
        };
        let Some(session) = context.delivery.session(one.key) else { return Sent::Now };
        let number = session.number;
        let Some(left) = session.requests_left(one.endpoint) else { return Sent::Now };
        if *left == 0 || self.neighbour_requests.len() == REQUESTS_PER_ITERATION {
            context.counters.add(Count::TxNeighbourRequests, 1);
            return Sent::Now;
        }
        *left -= 1;
        let request = NeighbourRequest { session: number, endpoint: one.endpoint, target };
        self.neighbour_requests.push(request);
        self.count_sent(one, context);
        Sent::Now
    }

    /// Sends a packet to the receivers that [`TxPath::find`] has left in `found`, and to the device.
    #[inline(always)]
    fn route<const CAPTURES: bool>(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        headers: &Headers,
        Receivers { group, to_device, members }: Receivers,
        context: &mut TxContext<'_>,
    ) -> Result<Sent, DeviceError> {
        let software = to_device && !self.device_takes(one, &meta, context);
        let packets = if software { segments(&meta, headers, one.len) } else { 1 };
        if to_device && !self.has_room_for(one, packets, context) {
            return Ok(Sent::NoRoom);
        }
        if CAPTURES {
            let promiscuous = context.flows.promiscuous().iter();
            self.found.extend(promiscuous.filter(|found| !one.is_sender(found)));
        }
        let local = self.found.len();
        let (mut work, mut captures) = (Work::default(), Work::default());
        if local > 0 || CAPTURES && !context.flows.captures().is_empty() {
            let packet = (meta, headers.is_tagged());
            (work, captures) = self.deliver_here::<CAPTURES>(one, packet, members, context);
        }
        if group {
            context.counters.add(Count::TxGroup, 1);
        } else if local > 0 {
            context.counters.add(Count::LocalPackets, 1);
        }
        self.count_sent(one, context);
        if !software && to_device && local == 0 && !CAPTURES {
            return self.send_as_it_is(one, meta, context);
        }
        let sent = if software {
            context.counters.add(Count::TxSoftwareOffloads, 1);
            self.send_by_software(one, meta, context)?
        } else if to_device {
            self.send_as_it_is(one, meta, context)?
        } else {
            Sent::Now
        };
        if to_device {
            work += Work { copies: packets as u64, bytes: one.len as u64 };
        }
        Ok(self.spend(one, work, captures, sent))
    }

    /// Returns `true` if the device does the offload work of a packet. A bounce buffer does not
    /// hold a large packet that the device cannot send in place.
    #[inline]
    fn device_takes(&self, one: &Outgoing, meta: &Meta, context: &mut TxContext<'_>) -> bool {
        context.port.takes(meta)
            && (meta.segmentation.is_none()
                || context.port.copies(meta)
                || context.delivery.session(one.key).is_some_and(|session| session.in_place))
    }

    /// Finds the packet's receivers on this host. Leaves them in `found`.
    fn find(
        &mut self,
        one: &Outgoing,
        headers: &Headers,
        context: &mut TxContext<'_>,
    ) -> Receivers {
        self.found.clear();
        let group = is_group(headers.destination);
        if group {
            context.flows.members(headers, &mut self.found);
            self.found.retain(|found| !one.is_sender(found));
        } else if !one.no_local_match {
            self.found.extend(context.flows.lookup(Direction::Sent, headers));
        }
        let members = self.found.len();
        Receivers { group, to_device: group || members == 0, members }
    }

    /// Returns `true` if a packet that becomes `packets` device packets may be sent towards the
    /// device.
    fn has_room_for(&self, one: &Outgoing, packets: usize, context: &TxContext<'_>) -> bool {
        if one.expedited {
            return self.has_expedited_room(context.port);
        }
        // Packets that have waited longer, or units in the middle of a message, precede this one.
        self.handoff.has_room(packets)
            && self.has_slots(packets + EXPEDITED_SLOTS, context.port)
            && self.schedule.may_use_device(one.unit)
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
    fn count_sent(&mut self, one: &Outgoing, context: &mut TxContext<'_>) {
        let copies = u64::from(self.bounce.slots[one.slot as usize].copies);
        if let Some(session) = context.delivery.session(one.key) {
            let len = one.len - usize::from(one.inserted);
            count_sent(&mut session.counters, one.endpoint, len, copies);
        }
    }

    /// Delivers to the endpoints of this host in `found`, the first `members` of which are the
    /// packet's receivers, and to captures. Returns the copies for the receivers, and those for all
    /// others.
    fn deliver_here<const CAPTURES: bool>(
        &mut self,
        one: &Outgoing,
        (meta, is_tagged): (Meta, bool),
        members: usize,
        context: &mut TxContext<'_>,
    ) -> (Work, Work) {
        let (mut work, mut captures) = (Work::default(), Work::default());
        let TxContext { memories, flows, delivery, .. } = context;
        let Some(memory) = memories.get(one.key) else { return (work, captures) };
        let beginning = self.bounce.bytes(one.slot);
        let source = Source { prefix: beginning, memory: memory.mapping(), pieces: &self.pieces };
        let packet = Packet { source, beginning, meta };
        if CAPTURES {
            for destination in flows.captures() {
                captures += delivery.deliver(*destination, &packet, CAPTURED_OUTGOING);
            }
        }
        let (members, promiscuous) = self.found.split_at(members.min(self.found.len()));
        for destination in members {
            work += if is_tagged {
                delivery.deliver_tagged(*destination, &packet)
            } else {
                delivery.deliver(*destination, &packet, 0)
            };
        }
        if CAPTURES {
            for destination in promiscuous {
                captures += delivery.deliver(*destination, &packet, 0);
            }
        }
        (work, captures)
    }

    fn begin_in_flight(
        &mut self,
        one: &Outgoing,
        packets: u32,
        context: &mut TxContext<'_>,
    ) -> Option<u32> {
        let number = self.in_flight.begin(InFlight {
            session: one.key,
            queue_pair: one.queue_pair,
            first: one.first,
            chain: one.chain,
            remaining: packets,
        })?;
        if let Some(session) = context.delivery.session(one.key) {
            session.in_flight += 1;
        }
        Some(number)
    }

    /// Sends the slot's bytes, and the rest in place where the device supports it.
    fn send_as_it_is(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        context: &mut TxContext<'_>,
    ) -> Result<Sent, DeviceError> {
        let Some(session) = context.delivery.session(one.key) else { return Ok(Sent::Now) };
        let (space, own) = (session.transmit_space, session.own.place());
        let base = own.map_or(0, |own| own.offsets.transmit);
        let fits = own.is_none_or(|own| self.pieces.len() < own.parts);
        let in_place = session.in_place && fits || context.port.copies(&meta);
        if !in_place && !self.append_rest(one, None, context) {
            return Ok(one.refuse(EndpointCount::TxTooLong, context));
        }
        let Some(in_flight_slot) = self.begin_in_flight(one, 1, context) else {
            return Ok(Sent::NoRoom);
        };
        let part = self.bounce.part(one.slot, own);
        let entry = &mut self.bounce.slots[one.slot as usize];
        entry.parts.clear();
        entry.parts.push(part);
        if in_place {
            let rest = self.pieces.iter();
            entry.parts.extend(rest.map(|p| Part { space, offset: base + p.offset, len: p.len }));
        }
        entry.meta = meta;
        entry.tag = one.tag;
        entry.in_flight_slot = in_flight_slot;
        self.bounce.prepare(one.slot, &meta);
        self.handoff.hand_off(one.slot, one.expedited, &self.bounce, context.port)?;
        Ok(Sent::Later)
    }

    fn append_rest(
        &mut self,
        one: &Outgoing,
        complete: Option<(u16, u16)>,
        context: &TxContext<'_>,
    ) -> bool {
        let Some(memory) = context.memories.get(one.key) else { return false };
        let rest = Source { prefix: &[], memory: memory.mapping(), pieces: &self.pieces };
        self.bounce.append(one.slot, rest, complete)
    }

    /// Completes checksums and segments in software, for a device that cannot.
    fn send_by_software(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        context: &mut TxContext<'_>,
    ) -> Result<Sent, DeviceError> {
        if meta.segmentation.is_some() {
            return self.send_segments(one, meta, context);
        }
        if !self.append_rest(one, partial(&meta), context) {
            return Ok(one.refuse(EndpointCount::TxTooLong, context));
        }
        self.pieces.clear();
        self.send_as_it_is(one, Meta::FULL, context)
    }

    fn send_segments(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        context: &mut TxContext<'_>,
    ) -> Result<Sent, DeviceError> {
        let mut beginning = [0; TAGGED_BYTES];
        let held = self.bounce.bytes(one.slot).len();
        beginning[..held].copy_from_slice(self.bounce.bytes(one.slot));
        let Ok(mut segmenter) = Segmenter::new(&beginning[..held], one.len, &meta) else {
            return Ok(one.refuse(EndpointCount::TxMalformed, context));
        };
        let packets = segmenter.remaining() as u32;
        let Some(in_flight_slot) = self.begin_in_flight(one, packets, context) else {
            return Ok(Sent::NoRoom);
        };
        let memories = context.memories;
        let Some(memory) = memories.get(one.key) else { return Ok(Sent::Now) };
        let pieces = std::mem::take(&mut self.pieces);
        let source =
            Source { prefix: &beginning[..held], memory: memory.mapping(), pieces: &pieces };
        let mut header = [0; MAX_HEADER_BYTES];
        let own = context.delivery.session(one.key).and_then(|session| session.own.place());
        let mut own_slot = Some(one.slot);
        let mut outcome = Ok(Sent::Later);
        while let Some(segment) = segmenter.next(&mut header) {
            let payload = segment.payload.clone();
            let (header_bytes, meta) = segment.leave_partial(&mut header);
            // The first segment takes the packet's own slot. The engine has checked before that
            // there are enough.
            let Some(slot) = own_slot.take().or_else(|| self.bounce.take()) else { break };
            let (header, complete) = (&header[..header_bytes], partial(&meta));
            let built =
                self.bounce.build(slot, header, source, payload.start, payload.len(), complete);
            let part = self.bounce.part(slot, own);
            let entry = &mut self.bounce.slots[slot as usize];
            entry.parts.clear();
            entry.parts.push(part);
            entry.meta = Meta::FULL;
            entry.tag = None;
            entry.in_flight_slot = in_flight_slot;
            if !built {
                one.refuse(EndpointCount::TxTooLong, context);
                let (sessions, notifier) = context.delivery.parts();
                self.land(slot, sessions, notifier);
                continue;
            }
            if let Err(error) = self.handoff.hand_off(slot, false, &self.bounce, context.port) {
                outcome = Err(error);
                break;
            }
        }
        self.pieces = pieces;
        outcome
    }
}

// A packet segmented in software has room behind those that wait, and in the bounce buffers.
const _: () = assert!(offload::MAX_SENT_SEGMENTS <= BACKLOG / 2);
const _: () = assert!(offload::MAX_SENT_SEGMENTS <= BOUNCE_SLOTS as usize / 2);
