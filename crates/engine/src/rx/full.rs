//! The full path: packets of any kind, for any number of receivers.

use towpath_device::{Meta, Received};
use towpath_packet::headers::{Headers, PREFIX_BYTES};
use towpath_packet::plain::Plain;
use towpath_protocol::counters::Device as Count;

use crate::delivery::Delivery;
use crate::demux::{Destination, FlowTable, is_group};
use crate::device_counters::DeviceCounters;
use crate::port::DevicePort;
use crate::remote::{self, Inbox};
use crate::rx::headers::{flow_of, is_rdma, read_headers};
use crate::rx::located::{FRONT_BYTES, locate};
use crate::source::{Packet, Piece, Source};
use crate::work::Work;

/// Memory for one packet on the full path.
#[derive(Debug)]
pub(super) struct Scratch {
    /// The packet's receivers.
    pub(super) found: Vec<Destination>,
    /// The pieces of the packet.
    pub(super) pieces: Vec<Piece>,
}

/// Handles a packet in one buffer on the full path, and returns the copies that it made. `found` is
/// memory for the packet's receivers.
#[inline(never)]
pub(super) fn deliver_one<const CAPTURES: bool>(
    received: &Received,
    port: &DevicePort,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
    found: &mut Vec<Destination>,
) -> Work {
    let piece = [Piece { offset: received.offset, len: received.len }];
    let source = Source { prefix: &[], memory: port.memory(), pieces: &piece };
    deliver_source::<CAPTURES>(source, received.meta, flows, delivery, inbox, counters, found)
}

/// Handles a packet that spans several buffers, or whose VLAN tag the device removed, on the full
/// path. Returns the copies that it made. `buffers` are the packet's.
#[inline(never)]
pub(super) fn deliver_located<const CAPTURES: bool>(
    buffers: &[Received],
    port: &DevicePort,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
    Scratch { found, pieces }: &mut Scratch,
) -> Work {
    let mut front = [0; FRONT_BYTES];
    let (source, meta) = match locate(buffers, port.memory(), pieces, &mut front) {
        Ok(located) => located,
        Err(reason) => {
            counters.add(reason, 1);
            return Work::default();
        }
    };
    deliver_source::<CAPTURES>(source, meta, flows, delivery, inbox, counters, found)
}

/// Delivers a packet to all of its receivers, and to captures. Returns the copies that it made.
#[inline(always)]
fn deliver_source<const CAPTURES: bool>(
    source: Source<'_>,
    meta: Meta,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
    found: &mut Vec<Destination>,
) -> Work {
    let (mut work, mut prefix) = (Work::default(), [0; PREFIX_BYTES]);
    let Some((read, headers)) = read_headers(&source, &mut prefix) else {
        counters.add(Count::RxMalformed, 1);
        return work;
    };
    let packet = &Packet { source, beginning: &prefix[..read], meta };
    if CAPTURES {
        for destination in flows.captures() {
            work += delivery.deliver(*destination, packet, 0);
        }
    }
    let Some(headers) = &headers else {
        counters.add(Count::RxMalformed, 1);
        return work;
    };
    work += if headers.is_priority_tagged() {
        deliver_priority_tagged::<CAPTURES>(packet, flows, delivery, inbox, counters, found)
    } else {
        deliver_to_flows::<CAPTURES>(packet, headers, flows, delivery, inbox, counters, found)
    };
    work
}

/// Delivers a priority-tagged packet without its tag, as an untagged packet (IEEE 802.1Q, 9.6).
#[cold]
#[inline(never)]
fn deliver_priority_tagged<const CAPTURES: bool>(
    packet: &Packet<'_>,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
    found: &mut Vec<Destination>,
) -> Work {
    delivery.with_untagged(packet, |delivery, packet| {
        let read = |packet: &Packet<'_>| {
            let headers = Headers::parse(packet.beginning, packet.source.len()).ok();
            headers.filter(|headers| headers.malformed.is_none())
        };
        let Some((packet, headers)) = packet.and_then(|packet| Some((packet, read(packet)?)))
        else {
            counters.add(Count::RxMalformed, 1);
            return Work::default();
        };
        // The packet has a second tag behind its priority tag, so it matches no rule. Promiscuous endpoints receive the
        // packet all the same.
        if headers.is_tagged() {
            let promiscuous = if CAPTURES { flows.promiscuous() } else { &[] };
            if promiscuous.is_empty() {
                counters.add(Count::RxNoMatch, 1);
            }
            let mut work = Work::default();
            for destination in promiscuous {
                work += delivery.deliver_tagged(*destination, packet);
            }
            return work;
        }
        deliver_to_flows::<CAPTURES>(packet, &headers, flows, delivery, inbox, counters, found)
    })
}

/// Delivers a packet to the receivers that its flow has.
#[inline(always)]
fn deliver_to_flows<const CAPTURES: bool>(
    packet: &Packet<'_>,
    headers: &Headers,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
    found: &mut Vec<Destination>,
) -> Work {
    let mut work = Work::default();
    if inbox.is_on() && remote::concerns(headers) {
        inbox.push(packet.source.len(), |to| packet.source.copy_beginning(to));
        if Plain::of(headers).is_some_and(|plain| is_rdma(&plain)) {
            return work;
        }
    }
    found.clear();
    if is_group(headers.destination) {
        counters.add(Count::RxGroup, 1);
        flows.members(headers, found);
    } else {
        found.extend(flow_of(headers, packet.beginning, flows));
        flows.append_companions(headers, found);
    }
    if (found.is_empty() || is_group(headers.destination)) && !flows.freed_mut().is_empty() {
        flows.freed_mut().take(packet.beginning, packet.source.len());
    }
    if CAPTURES {
        found.extend_from_slice(flows.promiscuous());
    }
    for destination in &*found {
        work += if headers.vlan.is_some() {
            delivery.deliver_tagged(*destination, packet)
        } else {
            delivery.deliver(*destination, packet, 0)
        };
    }
    if found.is_empty() {
        counters.add(Count::RxNoMatch, 1);
    }
    work
}
