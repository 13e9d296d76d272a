//! The fast path of most packets: plain, with a full checksum, in one frame, and for an endpoint of
//! this host.
//!
//! The fast path decides nothing differently from `send.rs`. To that module it leaves every packet
//! that is unusual in any way, may not be sent, or has no receiver here.

use towpath_protocol::counters::{self, Device as Count};

use crate::engine::Engine;
use crate::engine::demux::Direction;
use crate::engine::receive::Deliverer;
use crate::engine::send::count_sent;
use crate::engine::source::{Piece, Source};
use crate::engine::transmit::Batch;

/// The bytes of a frame around its IP packet.
const ETHERNET_BYTES: usize = 14;

impl Engine {
    /// Delivers packets of a batch locally, from `from` up to the first that needs another path,
    /// and returns how many. The engine calls this function only while there is no capture and no
    /// promiscuous endpoint.
    pub(crate) fn deliver_locally(&mut self, batch: &mut Batch, from: usize, mtu: usize) -> usize {
        let Some((memory, _)) = &self.transmit_pools[batch.key as usize] else { return 0 };
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
            let Some(sender) = &mut self.sessions[batch.key as usize] else { break };
            let Some(Some(endpoint)) = sender.endpoints.get(one.endpoint as usize) else { break };
            if endpoint.queue_pair != batch.queue_pair
                || !endpoint.rights.allow(plain)
                || plain.is_for_group()
                || len > mtu + ETHERNET_BYTES
            {
                break;
            }
            let Some(destination) = self.flows.lookup_plain(Direction::Sent, plain) else {
                batch.packets[index].no_local_match = true;
                break;
            };
            let copies = u64::from(self.bounce.slots[batch.slots[index] as usize].copies);
            count_sent(&mut sender.counters, one.endpoint, len, copies);
            let prefix = self.bounce.bytes(batch.slots[index]);
            let pool = sender.shape.transmit_pool;
            let rest = [Piece {
                offset: (batch.descriptors[one.at as usize].pool_offset(&pool) + prefix.len())
                    as u32,
                len: (len - prefix.len()) as u32,
            }];
            let pieces = if rest[0].len > 0 { &rest[..] } else { &[] };
            let mut deliverer = Deliverer {
                sessions: &mut self.sessions,
                touched: &mut self.touched,
                segment: &mut self.segment,
                receive_budget: self.budgets.receive_budget,
                iteration: self.iteration,
            };
            deliverer.deliver_complete(destination, Source { prefix, memory, pieces });
            if slots == 0 {
                first = one.first;
            }
            slots += 1;
        }
        if slots > 0 {
            self.record_completion(batch, first, slots);
            counters::add(&mut self.counters, Count::LocalPackets as usize, u64::from(slots));
        }
        slots as usize
    }
}
