//! Delivery: the only way into a receive queue, for packets of the device and for packets between
//! two endpoints of this host. `endpoint.rs` delivers to one endpoint, and `several.rs` a run of packets
//! to one session.

mod endpoint;
mod several;

use towpath_device::{Meta, VlanTag};
use towpath_protocol::counters::Endpoint as EndpointCount;
use towpath_queue::descriptor::{Descriptor, OUTGOING};

use crate::copy::{Delivered, deliver_in_place};
use crate::demux::Destination;
use crate::notifier::Notifier;
use crate::session::Session;
use crate::sessions::SessionTable;
use crate::source::{Packet, SoftwareOffloads};
use crate::untagged::{UNTAGGED_BYTES, without_tag};
use crate::work::Work;
use endpoint::{Budget, admit};

pub(crate) use endpoint::partial;
pub(crate) use several::{Frame, Receiver};

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
        let untagged = without_tag(packet, &mut room, &mut pieces);
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
    pub(crate) fn complete(&mut self, key: u32, queue_pair: u32, first: u32, slots: u32) {
        if let Some(session) = self.sessions.get_mut(key) {
            self.notifier.complete(session, key, queue_pair, first, slots);
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
        if let Some((mut to, offload)) = admit(&mut session.receive, destination.endpoint, budget) {
            to.flags = flags;
            let outcome = to.hand_over(packet, offload, self.software, &mut work);
            to.count(outcome);
            self.notifier.touch(to.side, destination.session, to.queue_pair);
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
        if !is_priority_tag && !session.receive.endpoints.is_within_vlan(endpoint) {
            return self.deliver(destination, packet, 0);
        }
        self.with_untagged(packet, |delivery, untagged| match untagged {
            Some(untagged) => delivery.deliver(destination, untagged, 0),
            None => {
                if let Some(session) = delivery.sessions.get_mut(key) {
                    session.receive.endpoints.count(endpoint, EndpointCount::RxUnusable, 1);
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
        let Some(endpoint) = session.receive.endpoints.get(number) else { return InPlace::Dropped };
        if endpoint.queue_pair != 0
            // The bytes in place are as the endpoint expects them only if both hold, or neither.
            || endpoint.within.is_some() != placed.tag_removed
            || meta.segmentation.is_some() && !endpoint.offload
        {
            return InPlace::NeedsCopy;
        }
        let budget = Budget { packets: self.receive_budget, iteration: self.iteration };
        let Some((mut to, offload)) = admit(&mut session.receive, number, budget) else {
            return InPlace::Dropped;
        };
        let (meta, complete) = if offload { (meta, None) } else { (Meta::FULL, partial(&meta)) };
        let descriptor = Descriptor {
            buffer: placed.buffer / to.side.pool().frame_bytes(),
            start: placed.offset - placed.buffer,
            len: placed.len,
            endpoint: number,
            flags: 0,
        };
        let outcome = deliver_in_place(to.side, descriptor, meta, complete);
        to.count(outcome);
        self.notifier.touch(to.side, key, to.queue_pair);
        if outcome == Delivered::Yes { InPlace::Given } else { InPlace::Dropped }
    }

    /// Returns a session as the receiver of several packets.
    #[inline]
    pub(crate) fn receiver(&mut self, key: u32) -> Option<Receiver<'_>> {
        let session = self.sessions.receiver(key)?;
        let budget = Budget { packets: self.receive_budget, iteration: self.iteration };
        Some(Receiver {
            key,
            side: &mut session.receive,
            events: &session.events,
            notifier: self.notifier,
            budget,
        })
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

/// Marks the captured copy of a packet that an application sent.
pub(crate) const CAPTURED_OUTGOING: u16 = OUTGOING;
