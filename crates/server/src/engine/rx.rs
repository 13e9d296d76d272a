//! The receive path, from the device to the applications.

mod located;
pub(crate) mod own;

use towpath_device::{Checksum, DeviceError, MAX_PARTS, Meta, Received};
use towpath_packet::headers::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Headers, Malformed, PREFIX_BYTES, PROTOCOL_UDP,
};
use towpath_packet::plain::{self, Plain};
use towpath_packet::roce::UDP_PORT;
use towpath_protocol::counters::Device as Count;
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::buffers::FreeBuffers;

use crate::engine::delivery::{Delivery, Packet};
use crate::engine::demux::{Destination, Direction, FlowTable, is_group};
use crate::engine::device_counters::DeviceCounters;
use crate::engine::port::DevicePort;
use crate::engine::remote::{self, Inbox};
use crate::engine::source::{Piece, Source};
use crate::engine::work::{ITERATION_BYTES, Work};
use located::{FRONT_BYTES, locate, packet_buffers};

/// The engine reads headers from a copy of this many bytes first, and of 256 where they are longer.
const FIRST_READ_BYTES: usize = 128;

/// The path that a received packet took.
enum Path {
    /// The fast path.
    Fast,
    /// The fast path, including segmentation.
    Large(Work),
    /// The full path.
    Full,
}

/// The receive path's buffers and batch.
#[derive(Debug)]
pub(crate) struct RxPath {
    /// The device's pool buffers that the engine holds empty.
    empty: FreeBuffers,
    /// The buffers of the batch's packets.
    received: Vec<Received>,
    /// Buffers of the batch whose packets are done; the rest waits for the next poll iteration.
    done: usize,
    /// Packets that the engine takes from the device per poll iteration, and the upper limit.
    batch: usize,
    most: usize,
    scratch: Scratch,
}

/// Memory for one packet on the full path.
#[derive(Debug)]
struct Scratch {
    /// The packet's receivers.
    found: Vec<Destination>,
    /// The pieces of the packet.
    pieces: Vec<Piece>,
}

impl RxPath {
    /// Creates the path for a device's pool buffers. The engine takes at most `most` packets from
    /// the device per poll iteration.
    pub(crate) fn new(port: &DevicePort, most: usize, values: &Values) -> RxPath {
        RxPath {
            empty: port.empty_buffers(),
            received: Vec::with_capacity(most * port.rx_packet_buffers()),
            done: 0,
            batch: most.min(values.get(Setting::RxBatch) as usize),
            most,
            scratch: Scratch {
                found: Vec::with_capacity(64),
                pieces: Vec::with_capacity(MAX_PARTS),
            },
        }
    }

    /// Changes the number of packets per poll iteration.
    pub(crate) fn set_batch(&mut self, packets: usize) {
        self.batch = packets.min(self.most);
    }

    /// Returns `true` if packets of the last batch wait for the next poll iteration, because this
    /// one used up its budget.
    pub(crate) fn has_left(&self) -> bool {
        self.done < self.received.len()
    }

    /// Returns `true` if the device may have more packets than the last batch took.
    pub(crate) fn was_full(&self) -> bool {
        self.received.len() >= self.batch
    }

    /// Takes back buffers that a reset of the device returned, by their offsets.
    pub(crate) fn take_back(&mut self, port: &DevicePort, offsets: &[u32]) {
        for offset in offsets {
            self.empty.release(port.buffer_at(*offset));
        }
    }

    /// Takes a batch from the device and delivers each packet. Returns how many.
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    pub(crate) fn poll(
        &mut self,
        port: &mut DevicePort,
        flows: &mut FlowTable,
        delivery: &mut Delivery<'_>,
        inbox: &mut Inbox,
        counters: &mut DeviceCounters,
    ) -> Result<usize, DeviceError> {
        let mut outcome = Ok(());
        if self.done == self.received.len() {
            self.fill(port);
            self.received.clear();
            self.done = 0;
            outcome = port.poll(&mut self.received, self.batch).map(|_| ());
        }
        // No capture begins within a batch: the engine executes commands before it.
        let (buffers, packets, bytes) = if flows.has_no_captures() {
            self.deliver_batch::<false>(port, flows, delivery, inbox, counters)
        } else {
            self.deliver_batch::<true>(port, flows, delivery, inbox, counters)
        };
        if packets > 0 {
            counters.add(Count::RxPackets, packets as u64);
            counters.add(Count::RxBytes, bytes);
        }
        self.done += buffers;
        outcome.map(|()| packets)
    }

    /// Gives the device empty buffers, the most recently used first.
    fn fill(&mut self, port: &mut DevicePort) {
        let mut offsets = [0; 64];
        while !self.empty.is_empty() {
            let mut count = 0;
            while count < offsets.len() {
                let Some(buffer) = self.empty.take() else { break };
                offsets[count] = port.offset_of(buffer);
                count += 1;
            }
            let taken = port.fill(&offsets[..count]);
            for offset in offsets[taken..count].iter().rev() {
                self.empty.release(port.buffer_at(*offset));
            }
            if taken < count {
                break;
            }
        }
    }

    /// Delivers each packet and frees its buffers, until the poll iteration reaches its limit
    /// ([`ITERATION_BYTES`]). Returns the number of these buffers, of their packets, and of their
    /// bytes. The compiler makes one routine with captures and promiscuous endpoints and one
    /// without, so absent ones cost nothing.
    fn deliver_batch<const CAPTURES: bool>(
        &mut self,
        port: &DevicePort,
        flows: &mut FlowTable,
        delivery: &mut Delivery<'_>,
        inbox: &mut Inbox,
        counters: &mut DeviceCounters,
    ) -> (usize, usize, u64) {
        let (mut bytes, mut beyond, mut further) = (0, 0, 0);
        let left = &self.received[self.done..];
        let mut waiting = left.iter();
        while let Some(one) = waiting.next() {
            let path = if CAPTURES {
                Path::Full
            } else {
                deliver_plain(one, port, flows, delivery, inbox, counters)
            };
            let mut len = one.len as usize;
            let scratch = &mut self.scratch;
            let work = match path {
                Path::Fast => None,
                Path::Large(work) => Some(work),
                Path::Full if one.is_whole() => {
                    let found = &mut scratch.found;
                    Some(deliver_one::<CAPTURES>(
                        one, port, flows, delivery, inbox, counters, found,
                    ))
                }
                Path::Full => {
                    let from = left.len() - waiting.as_slice().len() - 1;
                    let packet = &left[from..from + packet_buffers(&left[from..])];
                    for more in waiting.by_ref().take(packet.len() - 1) {
                        self.empty.release(port.buffer_at(more.buffer));
                        len += more.len as usize;
                        further += 1;
                    }
                    Some(deliver_located::<CAPTURES>(
                        packet, port, flows, delivery, inbox, counters, scratch,
                    ))
                }
            };
            self.empty.release(port.buffer_at(one.buffer));
            if let Checksum::Partial { .. } = one.meta.checksum {
                counters.add(Count::RxPartial, 1);
            }
            bytes += len as u64;
            // The fast path makes one copy of at most the MTU, which the batch bounds.
            if let Some(work) = work {
                beyond += work.beyond_one(len).cost();
                if bytes + beyond >= ITERATION_BYTES {
                    break;
                }
            }
        }
        let buffers = left.len() - waiting.as_slice().len();
        (buffers, buffers - further, bytes)
    }
}

/// Handles most packets on the fast path: plain packets for one endpoint. Returns the path that the
/// packet took; [`Path::Full`] if it is none of these and still needs the full path. The fast path
/// decides nothing differently from the full path.
#[inline(always)]
fn deliver_plain(
    received: &Received,
    port: &DevicePort,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
) -> Path {
    if !received.is_whole() {
        return Path::Full;
    }
    let mut prefix = [0; FIRST_READ_BYTES];
    let read = (received.len as usize).min(FIRST_READ_BYTES);
    if !port.memory().copy_out(received.offset as usize, &mut prefix[..read]) {
        return Path::Full;
    }
    let mut plain = Plain::default();
    if plain::read_into(&prefix[..read], received.len as usize, &mut plain).is_none() {
        return Path::Full;
    }
    if plain.is_for_group() {
        return Path::Full;
    }
    if inbox.is_on() && is_rdma(&plain) {
        let copy = |to: &mut [u8]| port.memory().copy_out(received.offset as usize, to);
        inbox.push(received.len as usize, copy);
        return Path::Fast;
    }
    let Some(destination) = flows.lookup_plain(Direction::Received, &plain) else {
        counters.add(Count::RxNoMatch, 1);
        if !flows.freed_mut().is_empty() {
            flows.freed_mut().take(&prefix[..read], received.len as usize);
        }
        return Path::Fast;
    };
    let piece = [Piece { offset: received.offset, len: received.len }];
    let source = Source { prefix: &[], memory: port.memory(), pieces: &piece };
    if received.meta == Meta::FULL {
        if let Some(mut receiver) = delivery.receiver(destination.session) {
            receiver.deliver(destination.endpoint, source);
        }
        return Path::Fast;
    }
    let packet = Packet { source, beginning: &prefix[..read], meta: received.meta };
    let work = delivery.deliver(destination, &packet, 0);
    if received.meta.segmentation.is_none() { Path::Fast } else { Path::Large(work) }
}

/// Handles a packet in one buffer on the full path, and returns the copies that it made. `found` is
/// memory for the packet's receivers.
#[inline(never)]
fn deliver_one<const CAPTURES: bool>(
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
    let read = |to: &mut [u8]| port.memory().copy_out(received.offset as usize, to);
    let mut prefix = [0; PREFIX_BYTES];
    let Some((read, headers)) = read_headers(received.len as usize, read, &mut prefix) else {
        counters.add(Count::RxMalformed, 1);
        return Work::default();
    };
    let packet = Packet { source, beginning: &prefix[..read], meta: received.meta };
    deliver_packet::<CAPTURES>(&packet, headers.as_ref(), flows, delivery, inbox, counters, found)
}

/// Handles a packet that spans several buffers, or whose VLAN tag the device removed, on the full
/// path. Returns the copies that it made. `buffers` are the packet's.
#[inline(never)]
fn deliver_located<const CAPTURES: bool>(
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
    let read = |to: &mut [u8]| source.copy_beginning(to);
    let mut prefix = [0; PREFIX_BYTES];
    let Some((read, headers)) = read_headers(source.len(), read, &mut prefix) else {
        counters.add(Count::RxMalformed, 1);
        return Work::default();
    };
    let packet = Packet { source, beginning: &prefix[..read], meta };
    deliver_packet::<CAPTURES>(&packet, headers.as_ref(), flows, delivery, inbox, counters, found)
}

/// Delivers a packet to all of its receivers, and to captures. Returns the copies that it made.
#[inline(always)]
fn deliver_packet<const CAPTURES: bool>(
    packet: &Packet<'_>,
    headers: Option<&Headers>,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    inbox: &mut Inbox,
    counters: &mut DeviceCounters,
    found: &mut Vec<Destination>,
) -> Work {
    let mut work = Work::default();
    if CAPTURES {
        for destination in flows.captures() {
            work += delivery.deliver(*destination, packet, 0);
        }
    }
    let Some(headers) = headers else {
        counters.add(Count::RxMalformed, 1);
        return work;
    };
    if headers.is_priority_tagged() {
        work +=
            deliver_priority_tagged::<CAPTURES>(packet, flows, delivery, inbox, counters, found);
        return work;
    }
    work += deliver_to_flows::<CAPTURES>(packet, headers, flows, delivery, inbox, counters, found);
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

/// `true` if a packet is for connections with other hosts.
#[inline(always)]
fn is_rdma(plain: &Plain) -> bool {
    const IPV4: u64 = plain::kind(ETHERTYPE_IPV4, PROTOCOL_UDP, 4, UDP_PORT);
    const IPV6: u64 = plain::kind(ETHERTYPE_IPV6, PROTOCOL_UDP, 6, UDP_PORT);
    matches!(plain.destination[1], IPV4 | IPV6)
}

/// Returns the endpoint of a packet that is to no group, whose first bytes are `beginning`.
#[inline(always)]
fn flow_of(headers: &Headers, beginning: &[u8], flows: &mut FlowTable) -> Option<Destination> {
    flows.lookup(Direction::Received, headers).or_else(|| {
        // An ICMP error goes to the flow that it is about.
        flows.lookup(Direction::Received, &headers.as_quoted_flow(beginning)?)
    })
}

/// Copies the beginning of a packet of `len` bytes and reads its headers there. `copy` copies as
/// many first bytes as it is given room for. Returns the number of bytes copied, and the headers
/// unless they are malformed; `None` if the packet is not in the pool.
#[inline(always)]
fn read_headers(
    len: usize,
    copy: impl Fn(&mut [u8]) -> bool,
    prefix: &mut [u8; PREFIX_BYTES],
) -> Option<(usize, Option<Headers>)> {
    let mut read = len.min(FIRST_READ_BYTES);
    if !copy(&mut prefix[..read]) {
        return None;
    }
    let mut headers = Headers::parse(&prefix[..read], len);
    if let Ok(first) = &headers
        && first.malformed == Some(Malformed::BeyondPrefix)
    {
        read = len.min(PREFIX_BYTES);
        if copy(&mut prefix[..read]) {
            headers = Headers::parse(&prefix[..read], len);
        }
    }
    Some((read, headers.ok().filter(|headers| headers.malformed.is_none())))
}

#[cfg(test)]
mod tests;
