//! The fast path of most packets: plain, with a full checksum, in one frame, and for an endpoint of
//! this host.
//!
//! The fast path decides nothing differently from `check.rs` and `route.rs`. To these modules it
//! leaves every packet that is unusual in any way, may not be sent, or has no receiver here.

use towpath_protocol::counters::Device as Count;

use crate::engine::demux::{Direction, FlowTable};
use crate::engine::session::Session;
use crate::engine::source::{Piece, Source};
use crate::engine::tx::batch::Batch;
use crate::engine::tx::bounce::BounceBuffers;
use crate::engine::tx::check::count_sent;
use crate::engine::tx::context::{ETHERNET_BYTES, TxContext};

/// Delivers packets of a batch locally, from `from` up to the first that needs another path, and
/// returns how many. The engine calls this function only while there is no capture and no
/// promiscuous endpoint.
pub(crate) fn deliver_locally(
    batch: &mut Batch,
    from: usize,
    bounce: &BounceBuffers,
    context: &mut TxContext<'_>,
) -> usize {
    let TxContext { port, memories, flows, delivery, counters } = context;
    let Some(memory) = memories.get(batch.key) else { return 0 };
    let Some(sender) = delivery.session(batch.key) else { return 0 };
    let pool = sender.shape.transmit_pool;
    let longest = port.mtu() + ETHERNET_BYTES;
    let count = admit(batch, from, sender, flows, bounce, longest);
    if count == 0 {
        return 0;
    }
    for index in from..from + count {
        let one = &batch.packets[index];
        let prefix = bounce.bytes(batch.slots[index]);
        if prefix.len() == one.len as usize {
            delivery.deliver_bytes(batch.destinations[index], prefix, memory.mapping());
            continue;
        }
        let rest = [Piece {
            offset: (batch.descriptors[one.at as usize].pool_offset(&pool) + prefix.len()) as u32,
            len: one.len - prefix.len() as u32,
        }];
        let source = Source { prefix, memory: memory.mapping(), pieces: &rest };
        delivery.deliver_complete(batch.destinations[index], source);
    }
    // Each packet on this path has one slot.
    let first = batch.packets[from].first;
    delivery.complete((batch.key, batch.queue_pair), first, count as u32);
    counters.add(Count::LocalPackets, count as u64);
    count
}

/// Checks the sender's rights for the packets from `from` on, and finds their endpoints of this
/// host. Counts them as sent. Stops at the first packet that needs another path. Returns how many
/// the fast path takes.
#[inline(always)]
fn admit(
    batch: &mut Batch,
    from: usize,
    sender: &mut Session,
    flows: &mut FlowTable,
    bounce: &BounceBuffers,
    longest: usize,
) -> usize {
    let first = batch.packets.get(from).map_or(0, |one| one.first);
    for index in from..batch.count {
        let (one, plain) = (&batch.packets[index], &batch.plain[index]);
        // Packets whose slots are not consecutive were taken around one that a predecessor
        // completed.
        if !one.plain || one.first != first.wrapping_add((index - from) as u32) {
            return index - from;
        }
        let Some(Some(endpoint)) = sender.endpoints.get(one.endpoint as usize) else {
            return index - from;
        };
        if endpoint.queue_pair != batch.queue_pair
            || !endpoint.rights.allow(plain)
            || plain.is_for_group()
            || one.len as usize > longest
        {
            return index - from;
        }
        let Some(destination) = flows.lookup_plain(Direction::Sent, plain) else {
            batch.packets[index].no_local_match = true;
            return index - from;
        };
        batch.destinations[index] = destination;
        let copies = u64::from(bounce.slots[batch.slots[index] as usize].copies);
        count_sent(&mut sender.counters, one.endpoint, one.len as usize, copies);
    }
    batch.count - from
}
