//! The destinations of a checked packet: endpoints of this host, the device, or both. The engine
//! delivers it, hands it off, or does both.

use towpath_device::{DeviceError, Meta, Part, VlanTag};
use towpath_packet::headers::Headers;
use towpath_packet::segment::MAX_HEADER_BYTES;
use towpath_protocol::counters::{Device as Count, Endpoint as EndpointCount};

use crate::delivery::{CAPTURED_OUTGOING, partial};
use crate::demux::{Direction, is_group};
use crate::neighbours::{self, NeighbourRequest, REQUESTS_PER_ITERATION};
use crate::session::transmit_side::SendsFrom;
use crate::source::{Packet, Source};
use crate::tx::TxPath;
use crate::tx::batch::Batch;
use crate::tx::check::{Refusal, Unchecked, check, count_sent, rest_of, segments};
use crate::tx::context::TxContext;
use crate::tx::handoff::EXPEDITED_SLOTS;
use crate::tx::outcome::EntryOutcome;
use crate::tx::outgoing::Outgoing;
use crate::tx::tag::insert_tag;
use crate::work::Work;

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
    ) -> Result<EntryOutcome, DeviceError> {
        let Some(slot) = self.bounce.take() else { return Ok(EntryOutcome::NoRoom) };
        self.bounce.hold(slot, batch.beginning(index));
        let outcome = self.check_and_send_from::<CAPTURES>(batch, index, slot, context)?;
        // A packet that the engine handed off keeps its slot.
        if !matches!(outcome, EntryOutcome::HandedOff) {
            self.bounce.release(slot);
        }
        Ok(outcome)
    }

    /// Checks a packet whose beginning is in a slot, and sends it to its destinations.
    fn check_and_send_from<const CAPTURES: bool>(
        &mut self,
        batch: &Batch,
        index: usize,
        slot: u32,
        context: &mut TxContext<'_>,
    ) -> Result<EntryOutcome, DeviceError> {
        let one = Outgoing::new(batch, index, slot);
        let mtu = context.port.mtu();
        let Some(memory) = context.sender_memory(one.key) else { return Ok(EntryOutcome::Done) };
        let Some(session) = context.sender(one.key) else {
            return Ok(EntryOutcome::Done);
        };
        let mut headers = Headers::NONE;
        let packet = Unchecked { batch, index, slot };
        let meta = match check(packet, session, memory, &mut self.bounce, mtu, &mut headers) {
            Ok(meta) => meta,
            Err(Refusal::Violates(violation)) => return Ok(EntryOutcome::Violation(violation)),
            Err(Refusal::Counted(count)) => return Ok(one.refuse(count, context)),
        };
        let pool = session.shape().transmit_pool;
        let Some(endpoint) = session.receive.endpoints.get(one.endpoint) else {
            return Ok(EntryOutcome::Done);
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
    ) -> Result<EntryOutcome, DeviceError> {
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
        let tagged = insert_tag(&mut self.bounce, one.slot, one.len, tag, meta, &mut headers);
        let Some((len, meta)) = tagged else {
            return Ok(one.refuse(EndpointCount::TxTooLong, context));
        };
        one.len = len;
        one.inserted = VlanTag::BYTES as u8;
        self.route::<CAPTURES>(&one, meta, &headers, receivers, context)
    }

    /// Passes a request for a link address to the control thread.
    #[cold]
    fn ask_for_neighbour(
        &mut self,
        one: &Outgoing,
        headers: &Headers,
        context: &mut TxContext<'_>,
    ) -> EntryOutcome {
        let Some(target) = neighbours::target(headers) else {
            return one.refuse(EndpointCount::TxOutsideRule, context);
        };
        let Some(session) = context.sender(one.key) else { return EntryOutcome::Done };
        let number = session.number();
        let Some(left) = session.receive.endpoints.requests_left(one.endpoint) else {
            return EntryOutcome::Done;
        };
        if *left == 0 || self.neighbour_requests.len() == REQUESTS_PER_ITERATION {
            context.counters.add(Count::TxNeighbourRequests, 1);
            return EntryOutcome::Done;
        }
        *left -= 1;
        let request = NeighbourRequest { session: number, endpoint: one.endpoint, target };
        self.neighbour_requests.push(request);
        self.count_sent(one, context);
        EntryOutcome::Done
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
    ) -> Result<EntryOutcome, DeviceError> {
        let software = to_device && !self.device_takes(one, &meta, context);
        let packets = if software { segments(&meta, headers, one.len) } else { 1 };
        if to_device && !self.has_room_for(one, packets, context) {
            return Ok(EntryOutcome::NoRoom);
        }
        if CAPTURES {
            let promiscuous = context.flows.promiscuous().iter();
            self.found.extend(promiscuous.filter(|found| !one.is_sender(found)));
        }
        let local = self.found.len();
        let (mut work, mut captures) = (Work::default(), Work::default());
        if local > 0 || CAPTURES && !context.flows.captures().is_empty() {
            let is_tagged = headers.is_tagged();
            (work, captures) =
                self.deliver_here::<CAPTURES>(one, meta, is_tagged, members, context);
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
        let outcome = if software {
            context.counters.add(Count::TxSoftwareOffloads, 1);
            self.send_by_software(one, meta, context)?
        } else if to_device {
            self.send_as_it_is(one, meta, context)?
        } else {
            EntryOutcome::Done
        };
        if to_device {
            work += Work { copies: packets as u64, bytes: one.len as u64 };
        }
        self.spent.add(work.beyond_one(one.len), captures);
        Ok(outcome)
    }

    /// Returns `true` if the device does the offload work of a packet. A bounce buffer does not
    /// hold a large packet that the device cannot send in place.
    #[inline]
    fn device_takes(&self, one: &Outgoing, meta: &Meta, context: &mut TxContext<'_>) -> bool {
        context.port.takes(meta)
            && (meta.segmentation.is_none()
                || context.port.copies(meta)
                || context
                    .delivery
                    .session(one.key)
                    .is_some_and(|session| session.transmit.sends_from.in_place))
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
            context.flows.append_companions(headers, &mut self.found);
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

    #[inline]
    fn count_sent(&mut self, one: &Outgoing, context: &mut TxContext<'_>) {
        let copies = u64::from(self.bounce.slots[one.slot as usize].copies);
        if let Some(session) = context.sender(one.key) {
            let len = one.len - usize::from(one.inserted);
            count_sent(session.receive.endpoints.counters(), one.endpoint, len, copies);
        }
    }

    /// Delivers to the endpoints of this host in `found`, the first `members` of which are the
    /// packet's receivers, and to captures. Returns the copies for the receivers, and those for all
    /// others.
    fn deliver_here<const CAPTURES: bool>(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        is_tagged: bool,
        members: usize,
        context: &mut TxContext<'_>,
    ) -> (Work, Work) {
        let (mut work, mut captures) = (Work::default(), Work::default());
        let Some(memory) = context.sender_memory(one.key) else { return (work, captures) };
        let TxContext { flows, delivery, .. } = context;
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

    /// Sends the slot's bytes, and the rest in place where the device supports it.
    fn send_as_it_is(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        context: &mut TxContext<'_>,
    ) -> Result<EntryOutcome, DeviceError> {
        let Some(session) = context.sender(one.key) else {
            return Ok(EntryOutcome::Done);
        };
        let (SendsFrom { space, in_place }, own) =
            (session.transmit.sends_from, session.extras.own.place());
        let base = own.map_or(0, |own| own.offsets.transmit);
        let fits = own.is_none_or(|own| self.pieces.len() < own.parts);
        let in_place = in_place && fits || context.port.copies(&meta);
        if !in_place && !self.append_rest(one, None, context) {
            return Ok(one.refuse(EndpointCount::TxTooLong, context));
        }
        let in_flight = one.begin_in_flight(1, &mut self.in_flight, context);
        let Some(in_flight_slot) = in_flight else {
            return Ok(EntryOutcome::NoRoom);
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
        Ok(EntryOutcome::HandedOff)
    }

    fn append_rest(
        &mut self,
        one: &Outgoing,
        complete: Option<(u16, u16)>,
        context: &TxContext<'_>,
    ) -> bool {
        let Some(memory) = context.sender_memory(one.key) else { return false };
        let rest = Source { prefix: &[], memory: memory.mapping(), pieces: &self.pieces };
        self.bounce.append(one.slot, rest, complete)
    }

    /// Completes checksums and segments in software, for a device that cannot.
    fn send_by_software(
        &mut self,
        one: &Outgoing,
        meta: Meta,
        context: &mut TxContext<'_>,
    ) -> Result<EntryOutcome, DeviceError> {
        if meta.segmentation.is_some() {
            return self.send_segments(one, meta, context);
        }
        if !self.append_rest(one, partial(&meta), context) {
            return Ok(one.refuse(EndpointCount::TxTooLong, context));
        }
        self.pieces.clear();
        self.send_as_it_is(one, Meta::FULL, context)
    }
}
