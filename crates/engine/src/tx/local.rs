//! The fast path of most packets: plain, with a full checksum, in one frame, and for an endpoint of
//! this host.
//!
//! The fast path decides nothing differently from `check.rs` and `route.rs`. To these modules it
//! leaves every packet that is unusual in any way, may not be sent, or has no receiver here.

use towpath_device::ETHERNET_HEADER_BYTES;
use towpath_packet::plain;
use towpath_protocol::counters::Device as Count;

use crate::delivery::Frame;
use crate::demux::{Destination, Direction, FlowTable};
use crate::session::Session;
use crate::session::endpoints::Endpoint;
use crate::source::Piece;
use crate::tx::batch::{Batch, Beginning, Taken};
use crate::tx::check::count_sent;
use crate::tx::context::TxContext;

/// Checks the sender's rights for the plain packets of a batch, and finds their endpoints of this
/// host. Marks the packets that [`deliver_run`] may deliver, and those that have no endpoint here.
/// All others need the full path, which decides the same or finds the reason to drop them.
///
/// The engine calls this function only while there is no capture and no promiscuous endpoint.
pub(crate) fn admit(batch: &mut Batch, sender: &mut Session, flows: &mut FlowTable, mtu: usize) {
    let longest = (mtu + ETHERNET_HEADER_BYTES) as u32;
    let (queue_pair, changes) = (batch.queue_pair, flows.changes());
    let packets = batch.packets[..batch.count].iter_mut().zip(&batch.beginnings);
    for ((one, beginning), place) in packets.zip(&mut batch.destinations) {
        if !one.single || one.len > longest {
            continue;
        }
        let Some(endpoint) = sender.receive.endpoints.get_mut(one.endpoint) else { continue };
        if endpoint.queue_pair != queue_pair {
            continue;
        }
        let Some(compared) = beginning.0.first_chunk() else { continue };
        let found = match endpoint.last_sent.ask(compared, one.len as usize, changes) {
            Some(found) => found,
            None => match find(endpoint, one, beginning, flows) {
                Some(found) => found,
                None => continue,
            },
        };
        match found {
            Some(destination) => (*place, one.local) = (destination, true),
            None => one.no_local_match = true,
        }
    }
}

/// Reads the headers of a packet in one buffer. Returns its endpoint of this host, if there is one;
/// `None` for a packet that is not plain, is for a group, or may not be sent.
#[inline(never)]
fn find(
    endpoint: &mut Endpoint,
    one: &Taken,
    beginning: &Beginning,
    flows: &mut FlowTable,
) -> Option<Option<Destination>> {
    let plain = plain::read(beginning.0.get(..one.held as usize)?, one.len as usize)?;
    if plain.is_for_group() || !endpoint.rights.allow(&plain) {
        return None;
    }
    let found = flows.lookup_plain(Direction::Sent, &plain);
    if flows.may_remember(Direction::Sent) {
        let compared = beginning.0.first_chunk()?;
        endpoint.last_sent.remember(&plain, compared, found, flows.changes());
    }
    Some(found)
}

/// Delivers the marked packets from `from` on, up to the first that is not, and returns how many.
pub(crate) fn deliver_run(batch: &Batch, from: usize, context: &mut TxContext<'_>) -> usize {
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
    let Some(memory) = context.sender_memory(batch.key) else { return 0 };
    let Some(sender) = context.sender(batch.key) else { return 0 };
    for one in &batch.packets[from..from + count] {
        count_sent(sender.receive.endpoints.counters(), one.endpoint, one.len as usize, 1);
    }
    let TxContext { delivery, counters, .. } = context;
    let mut index = from;
    while index < from + count {
        // Packets for endpoints of one session follow each other in most batches.
        let key = batch.destinations[index].session;
        let destinations = batch.destinations[index..from + count].iter();
        let end = index + destinations.take_while(|one| one.session == key).count();
        let Some(mut receiver) = delivery.receiver(key) else {
            index = end;
            continue;
        };
        receiver.deliver_all(index..end, memory.mapping(), |index| {
            let one = &batch.packets[index];
            let (offset, len) = (one.offset + one.held, one.len - one.held);
            Frame {
                endpoint: batch.destinations[index].endpoint,
                beginning: batch.beginning(index),
                rest: Piece { offset, len },
            }
        });
        index = end;
    }
    delivery.complete(batch.key, batch.queue_pair, first, count as u32);
    counters.add(Count::LocalPackets, count as u64);
    count
}
