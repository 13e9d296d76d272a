//! The fast path of most packets: plain, with a full checksum, in one frame, and for an endpoint of
//! this host.
//!
//! The fast path decides nothing differently from `check.rs` and `route.rs`. To these modules it
//! leaves every packet that is unusual in any way, may not be sent, or has no receiver here.

use towpath_device::ETHERNET_HEADER_BYTES;
use towpath_protocol::counters::Device as Count;

use crate::engine::demux::{Direction, FlowTable};
use crate::engine::session::Session;
use crate::engine::source::{Piece, Source};
use crate::engine::tx::batch::{Batch, Taken};
use crate::engine::tx::bounce::BounceBuffers;
use crate::engine::tx::check::count_sent;
use crate::engine::tx::context::TxContext;

/// Checks the sender's rights for the plain packets of a batch, and finds their endpoints of this
/// host. Marks the packets that [`deliver_run`] may deliver, and those that have no endpoint here.
/// All others need the full path, which decides the same or finds the reason to drop them.
///
/// The engine calls this function only while there is no capture and no promiscuous endpoint.
pub(crate) fn admit(batch: &mut Batch, sender: &Session, flows: &mut FlowTable, mtu: usize) {
    let longest = (mtu + ETHERNET_HEADER_BYTES) as u32;
    let queue_pair = batch.queue_pair;
    let packets = batch.packets[..batch.count].iter_mut();
    for ((one, plain), place) in packets.zip(&batch.plain).zip(&mut batch.destinations) {
        if !one.plain {
            continue;
        }
        let endpoint = sender.endpoints.get(one.endpoint as usize);
        let Some(endpoint) = endpoint.and_then(Option::as_ref) else { continue };
        if endpoint.queue_pair != queue_pair
            || !endpoint.rights.allow(plain)
            || plain.is_for_group()
            || one.len > longest
        {
            continue;
        }
        match flows.lookup_plain(Direction::Sent, plain) {
            Some(destination) => (*place, one.local) = (destination, true),
            None => one.no_local_match = true,
        }
    }
}

/// Delivers the marked packets from `from` on, up to the first that is not, and returns how many.
pub(crate) fn deliver_run(
    batch: &Batch,
    from: usize,
    bounce: &BounceBuffers,
    context: &mut TxContext<'_>,
) -> usize {
    let first = batch.packets[from].first;
    // Each packet on this path has one slot. Packets whose slots are not consecutive were taken
    // around one that a predecessor completed.
    let run = batch.packets[from..batch.count].iter().zip(0..);
    let follows =
        |(one, ahead): &(&Taken, u32)| one.local && one.first == first.wrapping_add(*ahead);
    let count = run.take_while(follows).count();
    if count == 0 {
        return 0;
    }
    let TxContext { memories, delivery, counters, .. } = context;
    let Some(memory) = memories.get(batch.key) else { return 0 };
    let Some(sender) = delivery.session(batch.key) else { return 0 };
    let pool = sender.shape.transmit_pool;
    for index in from..from + count {
        let (one, slot) = (&batch.packets[index], batch.slots[index]);
        let copies = u64::from(bounce.slots[slot as usize].copies);
        count_sent(&mut sender.counters, one.endpoint, one.len as usize, copies);
    }
    for index in from..from + count {
        let (one, slot) = (&batch.packets[index], batch.slots[index]);
        let prefix = bounce.bytes(slot);
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
    delivery.complete((batch.key, batch.queue_pair), first, count as u32);
    counters.add(Count::LocalPackets, count as u64);
    count
}
