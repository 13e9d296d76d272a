//! A loop that only validates, hashes and copies: the least that a switch between two programs
//! does.
//!
//! The loop has the shape of `switch`. One thread writes packets, puts descriptors into a bare
//! queue, and reads what comes back. The loop, on the other core, checks each descriptor's bounds,
//! hashes the packet's five-tuple, finds it in a table of as many flows, copies the packet, and
//! puts a descriptor into the queue back. No side trusts less, no buffer is accounted for, and
//! nothing is counted per endpoint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rtrb::{Consumer, Producer, RingBuffer};
use towpath_memory::{Mapping, Region};
use towpath_packet::build::Flow;
use towpath_testkit::pin;

use crate::bare::{buffer_stride, read_frame};
use crate::flow::{self, HEADER_BYTES};
use crate::switch::{BATCH, ENDPOINTS, ON_THE_WAY, RULES};

/// The most packets in flight, of each kind of the loop.
pub(super) const IN_FLIGHT: [u64; 2] = [ON_THE_WAY, 512];

/// Descriptors: the buffer, and the length.
type Descriptor = [u64; 2];
/// The five-tuple: addresses; ports and protocol.
type Key = [u64; 2];
/// The offset of the five-tuple's first byte, the protocol, and the bytes fetched from there on.
const TUPLE_AT: usize = 23;
const TUPLE_BYTES: usize = 16;
/// Packets between the prefetch of a packet and its use.
const AHEAD: usize = 4;

/// A hash table of flows with open addressing.
struct Table {
    slots: Vec<(Key, u64)>,
}

/// The key of a free slot.
const FREE: Key = [0, 0];

impl Table {
    /// Makes a table of at most half as many flows as slots.
    fn new(keys: impl ExactSizeIterator<Item = Key>) -> Table {
        let mut table = Table { slots: vec![(FREE, 0); (keys.len() * 2).next_power_of_two()] };
        for (number, key) in keys.enumerate() {
            let mut at = table.first(&key);
            while table.slots[at].0 != FREE {
                at = (at + 1) & (table.slots.len() - 1);
            }
            table.slots[at] = (key, number as u64 + 1);
        }
        table
    }

    #[inline(always)]
    fn first(&self, key: &Key) -> usize {
        let mixed = (key[0] ^ key[1].rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & (self.slots.len() - 1)
    }

    /// Returns the flow's number.
    #[inline(always)]
    fn find(&self, key: &Key) -> Option<u64> {
        let mut at = self.first(key);
        loop {
            let (found, number) = self.slots[at];
            // A free slot has number 0, and no packet's protocol is 0.
            if found == *key || found == FREE {
                return (number > 0).then_some(number);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

/// Returns the key of the bytes from [`TUPLE_AT`] on: protocol, checksum, addresses, ports.
#[inline(always)]
fn key_of(bytes: &[u8; TUPLE_BYTES]) -> Key {
    let number = u128::from_le_bytes(*bytes);
    let addresses = (number >> 24) as u64;
    let ports = (number >> 88) as u32;
    [addresses, u64::from(ports) << 8 | number as u64 & 0xff]
}

fn tuple(headers: &[u8]) -> anyhow::Result<Key> {
    let bytes = headers.get(TUPLE_AT..TUPLE_AT + TUPLE_BYTES).and_then(<[u8]>::first_chunk);
    Ok(key_of(bytes.context("headers without a five-tuple")?))
}

/// The loop's side: both queues and both memories.
struct Middle {
    from: Consumer<Descriptor>,
    source: std::sync::Arc<Mapping>,
    to: Producer<Descriptor>,
    target: Region,
    table: Table,
    /// Buffers of each memory, a power of two, and the distance between them.
    slots: usize,
    stride: usize,
    packet_bytes: u64,
}

impl Middle {
    /// Moves the packets that wait, at most a batch.
    #[inline]
    fn turn(&mut self) -> anyhow::Result<()> {
        let waiting = self.from.slots().min(BATCH).min(self.to.slots());
        if waiting == 0 {
            return Ok(());
        }
        let mut batch = [[0; 2]; BATCH];
        let batch = &mut batch[..waiting];
        let chunk = self.from.read_chunk(waiting)?;
        let (first, second) = chunk.as_slices();
        batch[..first.len()].copy_from_slice(first);
        batch[first.len()..].copy_from_slice(second);
        chunk.commit_all();
        let (slots, stride) = (self.slots, self.stride);
        let start = |buffer: u64| (buffer as usize & (slots - 1)) * stride;
        for [buffer, len] in batch.iter().take(AHEAD) {
            self.source.prefetch(start(*buffer), *len as usize % stride);
        }
        for place in 0..batch.len() {
            if let Some([buffer, len]) = batch.get(place + AHEAD) {
                self.source.prefetch(start(*buffer), *len as usize % stride);
                self.target.prefetch_to_write(start(*buffer), *len as usize % stride);
            }
            let [buffer, len] = batch[place];
            let valid =
                buffer < slots as u64 && (HEADER_BYTES as u64..=self.packet_bytes).contains(&len);
            ensure!(valid, "a descriptor outside of its memory");
            let offset = buffer as usize * stride;
            let mut bytes = [0; TUPLE_BYTES];
            ensure!(self.source.copy_out(offset + TUPLE_AT, &mut bytes), "no such buffer");
            let flow = self.table.find(&key_of(&bytes)).context("a packet of no flow")?;
            let copied = self.target.copy_from(offset, &self.source, offset, len as usize);
            ensure!(copied, "no such buffer");
            batch[place] = [buffer, flow << 32 | len];
        }
        let chunk = self.to.write_chunk_uninit(batch.len())?;
        chunk.fill_from_iter(batch.iter().copied());
        Ok(())
    }
}

/// The generator's and the sink's side.
struct Ends {
    to: Producer<Descriptor>,
    source: Region,
    from: Consumer<Descriptor>,
    target: std::sync::Arc<Mapping>,
    /// A packet of each sending endpoint.
    packets: Vec<Vec<u8>>,
    slots: usize,
    stride: usize,
    in_flight: u64,
    sent: u64,
    received: u64,
}

impl Ends {
    fn send(&mut self) {
        let Ok(chunk) = self.to.write_chunk_uninit(BATCH) else { return };
        let (source, packets) = (&mut self.source, &mut self.packets);
        let (slots, stride) = (self.slots, self.stride);
        let endpoints = packets.len();
        let descriptors = (self.sent..self.sent + BATCH as u64).map(|number| {
            let buffer = number as usize & (slots - 1);
            let packet = &mut packets[number as usize % endpoints];
            packet[HEADER_BYTES..].fill(number as u8);
            assert!(source.copy_in(buffer * stride, packet), "a buffer outside of its memory");
            [buffer as u64, packet.len() as u64]
        });
        self.sent += chunk.fill_from_iter(descriptors) as u64;
    }

    fn receive(&mut self, into: &mut [u8]) -> bool {
        let waiting = self.from.slots().min(BATCH);
        let Ok(chunk) = self.from.read_chunk(waiting) else { return false };
        let (first, second) = chunk.as_slices();
        for [buffer, len] in first.iter().chain(second) {
            let len = *len as u32 as usize;
            read_frame(&self.target, *buffer as usize * self.stride, &mut into[..len]);
        }
        chunk.commit_all();
        self.received += waiting as u64;
        waiting > 0
    }

    fn run(&mut self, window: Duration, packet_bytes: usize) -> anyhow::Result<f64> {
        let mut into = vec![0; packet_bytes];
        let start = Instant::now();
        let mut last = start;
        loop {
            if self.sent - self.received + BATCH as u64 <= self.in_flight {
                self.send();
            }
            let got = self.receive(&mut into);
            let now = Instant::now();
            if got {
                last = now;
            }
            ensure!(now - last < Duration::from_secs(5), "the loop moved no packet for 5 s");
            if now - start >= window {
                return Ok(self.received as f64 / (now - start).as_secs_f64() / 1e6);
            }
        }
    }
}

fn sides(packet_bytes: usize, in_flight: u64) -> anyhow::Result<(Ends, Middle)> {
    let (stride, slots) = (buffer_stride(packet_bytes), in_flight.next_power_of_two() as usize);
    let (source, target) = (Region::private(slots * stride)?, Region::private(slots * stride)?);
    let (there, back) = (RingBuffer::new(slots), RingBuffer::new(slots));
    let headers = |number: u16| {
        let flow = Flow::v4().ports(1000 + number, 2000 + number);
        flow::headers(&flow, packet_bytes - HEADER_BYTES)
    };
    let keys =
        (0..RULES).map(|number| tuple(&headers(number)?)).collect::<anyhow::Result<Vec<_>>>()?;
    let packets = (0..ENDPOINTS / 2).map(|number| {
        let mut packet = vec![0; packet_bytes];
        packet[..HEADER_BYTES].copy_from_slice(&headers(number)?);
        Ok(packet)
    });
    let middle = Middle {
        from: there.1,
        source: source.mapping().clone(),
        to: back.0,
        table: Table::new(keys.into_iter()),
        slots,
        stride,
        packet_bytes: packet_bytes as u64,
        target,
    };
    let ends = Ends {
        to: there.0,
        from: back.1,
        target: middle.target.mapping().clone(),
        packets: packets.collect::<anyhow::Result<_>>()?,
        source,
        slots,
        stride,
        in_flight,
        sent: 0,
        received: 0,
    };
    Ok((ends, middle))
}

/// Runs one window: the loop on the first core, generator and sink on the second. Returns millions
/// of packets per second.
pub(super) fn run(
    cores: (usize, usize),
    packet_bytes: usize,
    window: Duration,
    in_flight: u64,
) -> anyhow::Result<f64> {
    let (mut ends, mut middle) = sides(packet_bytes, in_flight)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let moving = scope.spawn(|| -> anyhow::Result<()> {
            pin(cores.0)?;
            while !over.load(Ordering::Relaxed) {
                middle.turn()?;
            }
            Ok(())
        });
        let ends = scope.spawn(|| {
            let rate =
                pin(cores.1).map_err(Into::into).and_then(|()| ends.run(window, packet_bytes));
            over.store(true, Ordering::Relaxed);
            rate
        });
        let rate = ends.join().ok().context("generator and sink failed")?;
        moving.join().ok().context("the loop failed")??;
        rate
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_is_copied_to_the_flow_of_its_ports() {
        let (mut ends, mut middle) = sides(64, ON_THE_WAY).unwrap();
        ends.send();
        middle.turn().unwrap();
        let mut got = Vec::new();
        let chunk = ends.from.read_chunk(BATCH).unwrap();
        for [buffer, flow] in chunk {
            let mut packet = [0; 64];
            assert!(ends.target.copy_out(buffer as usize * ends.stride, &mut packet));
            let port = u16::from_be_bytes([packet[34], packet[35]]);
            assert_eq!(flow >> 32, u64::from(port - 1000) + 1);
            assert_eq!(flow as u32, 64);
            got.push((port - 1000, packet[63]));
        }
        let expected: Vec<_> = (0..BATCH as u16).map(|n| (n % 32, n as u8)).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn a_descriptor_outside_of_the_memory_or_of_no_flow_is_refused() {
        for (descriptor, said) in [
            ([256, 64], "a descriptor outside of its memory"),
            ([0, 65], "a descriptor outside of its memory"),
            ([0, 41], "a descriptor outside of its memory"),
            ([0, 64], "a packet of no flow"),
        ] {
            let (mut ends, mut middle) = sides(64, ON_THE_WAY).unwrap();
            ends.to.push(descriptor).unwrap();
            assert_eq!(middle.turn().unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn every_flow_is_found_and_no_other() {
        let keys: Vec<Key> = (1..=1000).map(|n| [n, n << 32 | 17]).collect();
        let table = Table::new(keys.clone().into_iter());
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(table.find(key), Some(number as u64 + 1));
        }
        assert_eq!(table.find(&[1001, 17]), None);
    }
}
