//! The fast path: plain packets for one endpoint, in one buffer. It decides nothing differently from the full
//! path, to which it leaves every packet that is unusual in any way.

use towpath_device::{Meta, Received};
use towpath_packet::plain::{self, Plain};
use towpath_protocol::counters::Device as Count;

use crate::delivery::Delivery;
use crate::demux::{Direction, FlowTable};
use crate::device_counters::DeviceCounters;
use crate::port::DevicePort;
use crate::remote::Inbox;
use crate::rx::headers::{FIRST_READ_BYTES, is_rdma};
use crate::source::{Packet, Piece, Source};
use crate::work::Work;

/// The outcome of a packet on the fast path.
pub(super) enum FastOutcome {
    /// The engine delivered the packet with at most one copy, or its endpoint lost it, which a counter of the
    /// endpoint shows.
    Delivered,
    /// The engine delivered the packet as segments.
    Segmented(Work),
    /// No rule matches the packet. The engine dropped and counted it.
    NoMatch,
    /// The packet is for a connection with another host, and is in the inbox.
    OtherHost,
    /// The packet is not plain. It needs the full path.
    NotPlain,
}

/// Handles a packet on the fast path, unless it is not plain.
#[inline(always)]
pub(super) fn deliver_plain(
    received: &Received,
    port: &DevicePort,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
) -> FastOutcome {
    if !received.is_whole() {
        return FastOutcome::NotPlain;
    }
    let mut prefix = [0; FIRST_READ_BYTES];
    let read = (received.len as usize).min(FIRST_READ_BYTES);
    if !port.memory().copy_out(received.offset as usize, &mut prefix[..read]) {
        return FastOutcome::NotPlain;
    }
    let mut plain = Plain::default();
    if plain::read_into(&prefix[..read], received.len as usize, &mut plain).is_none() {
        return FastOutcome::NotPlain;
    }
    if plain.is_for_group() {
        return FastOutcome::NotPlain;
    }
    if inbox.is_on() && is_rdma(&plain) {
        let copy = |to: &mut [u8]| port.memory().copy_out(received.offset as usize, to);
        inbox.push(received.len as usize, copy);
        return FastOutcome::OtherHost;
    }
    let Some(destination) = flows.lookup_plain(Direction::Received, &plain) else {
        counters.add(Count::RxNoMatch, 1);
        if !flows.freed_mut().is_empty() {
            flows.freed_mut().take(&prefix[..read], received.len as usize);
        }
        return FastOutcome::NoMatch;
    };
    let piece = [Piece { offset: received.offset, len: received.len }];
    let source = Source { prefix: &[], memory: port.memory(), pieces: &piece };
    if received.meta == Meta::FULL {
        if let Some(mut receiver) = delivery.receiver(destination.session) {
            receiver.deliver(destination.endpoint, source);
        }
        return FastOutcome::Delivered;
    }
    let packet = Packet { source, beginning: &prefix[..read], meta: received.meta };
    let work = delivery.deliver(destination, &packet, 0);
    if received.meta.segmentation.is_none() {
        FastOutcome::Delivered
    } else {
        FastOutcome::Segmented(work)
    }
}
