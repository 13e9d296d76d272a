//! The fast path of most packets: plain, with a full checksum, in one frame, and for an endpoint of
//! this host.
//!
//! The fast path decides nothing differently from `check.rs` and `route.rs`. To these modules it
//! leaves every packet that is unusual in any way, may not be sent, or has no receiver here.

use towpath_protocol::counters::Device as Count;

use crate::engine::demux::Direction;
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
    let longest = port.mtu() + ETHERNET_BYTES;
    // Each packet on this path has one slot.
    let (mut first, mut slots) = (0u32, 0u32);
    for index in from..batch.count {
        let (one, plain) = (&batch.packets[index], &batch.plain[index]);
        // Packets whose slots are not consecutive were taken around one that a predecessor
        // completed.
        if !one.plain || slots > 0 && one.first != first.wrapping_add(slots) {
            break;
        }
        let len = one.len as usize;
        let Some(sender) = delivery.session(batch.key) else { break };
        let Some(Some(endpoint)) = sender.endpoints.get(one.endpoint as usize) else { break };
        if endpoint.queue_pair != batch.queue_pair
            || !endpoint.rights.allow(plain)
            || plain.is_for_group()
            || len > longest
        {
            break;
        }
        let Some(destination) = flows.lookup_plain(Direction::Sent, plain) else {
            batch.packets[index].no_local_match = true;
            break;
        };
        let copies = u64::from(bounce.slots[batch.slots[index] as usize].copies);
        count_sent(&mut sender.counters, one.endpoint, len, copies);
        let prefix = bounce.bytes(batch.slots[index]);
        let pool = sender.shape.transmit_pool;
        let rest = [Piece {
            offset: (batch.descriptors[one.at as usize].pool_offset(&pool) + prefix.len()) as u32,
            len: (len - prefix.len()) as u32,
        }];
        let pieces = if rest[0].len > 0 { &rest[..] } else { &[] };
        delivery.deliver_complete(destination, Source { prefix, memory: memory.mapping(), pieces });
        if slots == 0 {
            first = one.first;
        }
        slots += 1;
    }
    if slots > 0 {
        delivery.complete((batch.key, batch.queue_pair), first, slots);
        counters.add(Count::LocalPackets, u64::from(slots));
    }
    slots as usize
}
