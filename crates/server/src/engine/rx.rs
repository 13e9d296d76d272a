//! The receive path, from the device to the applications.

use towpath_device::{DeviceError, Meta, Received};
use towpath_packet::headers::{Headers, Malformed, PREFIX_BYTES};
use towpath_packet::plain::{self, Plain};
use towpath_protocol::counters::Device as Count;
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::buffers::FreeBuffers;

use crate::engine::delivery::{Delivery, Packet};
use crate::engine::demux::{Destination, Direction, FlowTable, is_group};
use crate::engine::device_counters::DeviceCounters;
use crate::engine::port::DevicePort;
use crate::engine::source::{Piece, Source};
use crate::engine::work::{ITERATION_BYTES, Work};

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
    received: Vec<Received>,
    /// Received packets of the batch that are done; the rest waits for the next poll iteration.
    done: usize,
    /// Packets that the engine takes from the device per poll iteration, and the upper limit.
    batch: usize,
    most: usize,
    found: Vec<Destination>,
}

impl RxPath {
    /// Creates the path for a device's pool buffers. The engine takes at most `most` packets from
    /// the device per poll iteration.
    pub(crate) fn new(port: &DevicePort, most: usize, values: &Values) -> RxPath {
        RxPath {
            empty: FreeBuffers::new(0, port.pool_buffers()),
            received: Vec::with_capacity(most),
            done: 0,
            batch: most.min(values.get(Setting::RxBatch) as usize),
            most,
            found: Vec::with_capacity(64),
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
        let (packets, bytes) = if flows.has_no_captures() {
            self.deliver_batch::<false>(port, flows, delivery, counters)
        } else {
            self.deliver_batch::<true>(port, flows, delivery, counters)
        };
        if packets > 0 {
            counters.add(Count::RxPackets, packets as u64);
            counters.add(Count::RxBytes, bytes);
        }
        self.done += packets;
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

    /// Delivers each packet and frees its buffer, until the poll iteration reaches its limit
    /// ([`ITERATION_BYTES`]). Returns the number of these packets, and of their bytes. The compiler
    /// makes one routine with captures and promiscuous endpoints and one without, so absent ones
    /// cost nothing.
    fn deliver_batch<const CAPTURES: bool>(
        &mut self,
        port: &DevicePort,
        flows: &mut FlowTable,
        delivery: &mut Delivery<'_>,
        counters: &mut DeviceCounters,
    ) -> (usize, u64) {
        let (mut bytes, mut beyond) = (0, 0);
        let left = &self.received[self.done..];
        let mut waiting = left.iter();
        for one in waiting.by_ref() {
            bytes += u64::from(one.len);
            let path = if CAPTURES {
                Path::Full
            } else {
                deliver_plain(one, port, flows, delivery, counters)
            };
            let work = match path {
                Path::Fast => None,
                Path::Large(work) => Some(work),
                Path::Full => Some(deliver_one::<CAPTURES>(
                    one,
                    port,
                    flows,
                    delivery,
                    counters,
                    &mut self.found,
                )),
            };
            self.empty.release(port.buffer_at(one.buffer));
            // The fast path makes one copy of at most the MTU, which the batch bounds.
            if let Some(work) = work {
                beyond += work.beyond_one(one.len as usize).cost();
                if bytes + beyond >= ITERATION_BYTES {
                    break;
                }
            }
        }
        (left.len() - waiting.as_slice().len(), bytes)
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
    counters: &mut DeviceCounters,
) -> Path {
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
    let Some(destination) = flows.lookup_plain(Direction::Received, &plain) else {
        counters.add(Count::RxNoMatch, 1);
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

/// Handles all other packets on the full path, and returns the copies that it made. `found` is
/// memory for the packet's receivers.
fn deliver_one<const CAPTURES: bool>(
    received: &Received,
    port: &DevicePort,
    flows: &mut FlowTable,
    delivery: &mut Delivery<'_>,
    counters: &mut DeviceCounters,
    found: &mut Vec<Destination>,
) -> Work {
    let mut work = Work::default();
    let mut prefix = [0; PREFIX_BYTES];
    let Some((read, headers)) = read_headers(received, port, &mut prefix) else {
        counters.add(Count::RxMalformed, 1);
        return work;
    };
    let piece = [Piece { offset: received.offset, len: received.len }];
    let source = Source { prefix: &[], memory: port.memory(), pieces: &piece };
    let packet = Packet { source, beginning: &prefix[..read], meta: received.meta };
    if CAPTURES {
        for destination in flows.captures() {
            work += delivery.deliver(*destination, &packet, 0);
        }
    }
    let Some(headers) = headers else {
        counters.add(Count::RxMalformed, 1);
        return work;
    };
    found.clear();
    if is_group(headers.destination) {
        flows.members(&headers, found);
    } else if let Some(destination) = flows.lookup(Direction::Received, &headers) {
        found.push(destination);
    }
    if CAPTURES {
        found.extend_from_slice(flows.promiscuous());
    }
    for destination in &*found {
        work += delivery.deliver(*destination, &packet, 0);
    }
    if found.is_empty() {
        counters.add(Count::RxNoMatch, 1);
    }
    work
}

/// Copies a packet's beginning and reads its headers there. Returns the number of bytes copied, and
/// the headers unless they are malformed; `None` if the packet is not in the pool.
fn read_headers(
    received: &Received,
    port: &DevicePort,
    prefix: &mut [u8; PREFIX_BYTES],
) -> Option<(usize, Option<Headers>)> {
    let len = received.len as usize;
    let mut read = len.min(FIRST_READ_BYTES);
    if !port.memory().copy_out(received.offset as usize, &mut prefix[..read]) {
        return None;
    }
    let mut headers = Headers::parse(&prefix[..read], len);
    if let Ok(first) = &headers
        && first.malformed == Some(Malformed::BeyondPrefix)
    {
        read = len.min(PREFIX_BYTES);
        if port.memory().copy_out(received.offset as usize, &mut prefix[..read]) {
            headers = Headers::parse(&prefix[..read], len);
        }
    }
    Some((read, headers.ok().filter(|headers| headers.malformed.is_none())))
}

#[cfg(test)]
mod tests;
