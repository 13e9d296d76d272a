//! The fast path of most packets: plain, with a full checksum, in one frame, and for an endpoint of
//! this host.
//!
//! The fast path decides nothing differently from `send.rs`. It leaves every packet to that module
//! that is unusual in any way, may not be sent, or has no receiver here.

use towpath_protocol::counters::{self, Device as Count};

use crate::demux::Way;
use crate::engine::Engine;
use crate::receive::Deliverer;
use crate::send::count_sent;
use crate::source::{Piece, Source};
use crate::transmit::Group;

/// The bytes of a frame around its IP packet.
const ETHERNET_BYTES: usize = 14;

impl Engine {
    /// Passes on the packets of a batch from `from` up to the first that needs another path.
    /// Returns how many. The engine calls it only while there is no capture and no promiscuous
    /// endpoint.
    pub(crate) fn pass_on(&mut self, group: &mut Group, from: usize, mtu: usize) -> usize {
        let Some((memory, _)) = &self.heaps[group.place as usize] else { return 0 };
        // Each packet on this path has one slot.
        let (mut first, mut slots) = (0u32, 0u32);
        for place in from..group.count {
            let (one, plain) = (&group.packets[place], &group.plain[place]);
            // Packets whose slots are not consecutive were taken around one that a predecessor
            // completed.
            if !one.plain || slots > 0 && one.first != first.wrapping_add(slots) {
                break;
            }
            let len = one.len as usize;
            let Some(sender) = &mut self.sessions[group.place as usize] else { break };
            let Some(Some(endpoint)) = sender.endpoints.get(one.endpoint as usize) else { break };
            if endpoint.queue_set != group.queue_set
                || !endpoint.rights.allow(plain)
                || plain.is_for_group()
                || len > mtu + ETHERNET_BYTES
            {
                break;
            }
            let Some(destination) = self.flows.lookup_plain(Way::Sent, plain) else {
                group.packets[place].for_nobody_here = true;
                break;
            };
            let copies = u64::from(self.stage.slots[group.slots[place] as usize].copies);
            count_sent(&mut sender.counters, one.endpoint, len, copies);
            let prefix = self.stage.bytes(group.slots[place]);
            let heap = sender.shape.transmit_heap;
            let rest = [Piece {
                offset: (group.descriptors[one.at as usize].heap_offset(&heap) + prefix.len())
                    as u32,
                len: (len - prefix.len()) as u32,
            }];
            let pieces = if rest[0].len > 0 { &rest[..] } else { &[] };
            let mut deliverer = Deliverer {
                sessions: &mut self.sessions,
                touched: &mut self.touched,
                segment: &mut self.segment,
                receive_budget: self.budgets.receive_budget,
                turn: self.turn,
            };
            deliverer.deliver_finished(destination, Source { prefix, memory, pieces });
            if slots == 0 {
                first = one.first;
            }
            slots += 1;
        }
        if slots > 0 {
            self.finish(group, first, slots);
            counters::add(&mut self.counters, Count::LocalPackets as usize, u64::from(slots));
        }
        slots as usize
    }
}
