//! A packet that the engine is about to send.

use towpath_device::VlanTag;
use towpath_protocol::counters::Endpoint as EndpointCount;
use towpath_queue::Violation;

use crate::clock::clock_ns;
use crate::demux::Destination;
use crate::tx::batch::Batch;
use crate::tx::context::TxContext;
use crate::tx::in_flight::{InFlight, InFlightTable};
use crate::tx::outcome::EntryOutcome;

/// A packet that the engine is about to send.
#[derive(Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) key: u32,
    pub(super) queue_pair: u32,
    pub(super) endpoint: u32,
    pub(super) first: u32,
    pub(super) chain: u32,
    pub(super) len: usize,
    /// The bounce buffer that holds the packet's beginning.
    pub(super) slot: u32,
    /// Bytes of a VLAN tag that the engine inserted.
    pub(super) inserted: u8,
    /// The VLAN tag that the device inserts.
    pub(super) tag: Option<VlanTag>,
    /// See [`crate::tx::batch::Taken`].
    pub(super) no_local_match: bool,
    /// The number of the packet's queue pair in the scheduler.
    pub(super) unit: u32,
    /// `true` if the packet is expedited and precedes the others.
    pub(super) expedited: bool,
}

impl Outgoing {
    pub(super) fn new(batch: &Batch, index: usize, slot: u32) -> Outgoing {
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
    pub(super) fn refuse(&self, count: EndpointCount, context: &mut TxContext<'_>) -> EntryOutcome {
        let Some(session) = context.sender(self.key) else { return EntryOutcome::Done };
        session.receive.endpoints.count(self.endpoint, count, 1);
        if session.receive.endpoints.get(self.endpoint).is_some()
            && is_forbidden(count)
            && session.extras.forbidden.as_mut().is_some_and(|limit| limit.exceeds(clock_ns()))
        {
            return EntryOutcome::Violation(Violation::Forbidden);
        }
        EntryOutcome::Done
    }

    /// Enters the packet, which becomes `packets` device packets, into the packets in flight. Returns its number
    /// there; `None` if there is no room.
    pub(super) fn begin_in_flight(
        &self,
        packets: u32,
        in_flight: &mut InFlightTable,
        context: &mut TxContext<'_>,
    ) -> Option<u32> {
        let number = in_flight.begin(InFlight {
            session: self.key,
            queue_pair: self.queue_pair,
            first: self.first,
            chain: self.chain,
            remaining: packets,
        })?;
        if let Some(session) = context.sender(self.key) {
            session.transmit.begin_in_flight();
        }
        Some(number)
    }

    pub(super) fn is_sender(&self, found: &Destination) -> bool {
        found.session == self.key && found.endpoint == self.endpoint
    }
}

/// Returns `true` if a packet was refused because its sender has no right to send it.
fn is_forbidden(count: EndpointCount) -> bool {
    use EndpointCount::{TxOutsideRule, TxSourceAddress, TxSourceMac};
    matches!(count, TxSourceMac | TxSourceAddress | TxOutsideRule)
}
