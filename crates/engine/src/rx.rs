//! The receive path, from the device to the applications.
//!
//! | file | does |
//! |---|---|
//! | `fast.rs` | the fast path: plain packets for one endpoint |
//! | `full.rs` | the full path: all other packets, and all packets while there are captures |
//! | `headers.rs`, `located.rs` | the headers of a packet, and the location of its bytes |
//! | `own.rs` | packets of hardware queues that sessions have to themselves |

mod fast;
mod full;
mod headers;
mod located;
pub(crate) mod own;

use towpath_device::{Checksum, DeviceError, MAX_PARTS, Received};
use towpath_protocol::counters::Device as Count;
use towpath_protocol::settings::{Setting, Values};
use towpath_queue::buffers::FreeBuffers;

use crate::delivery::Delivery;
use crate::demux::FlowTable;
use crate::device_counters::DeviceCounters;
use crate::port::DevicePort;
use crate::remote::Inbox;
use crate::work::ITERATION_BYTES;
use fast::{FastOutcome, deliver_plain};
use full::{Scratch, deliver_located, deliver_one};
use located::packet_buffers;

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
                FastOutcome::NotPlain
            } else {
                deliver_plain(one, port, flows, delivery, inbox, counters)
            };
            let mut len = one.len as usize;
            let scratch = &mut self.scratch;
            let work = match path {
                FastOutcome::Delivered | FastOutcome::NoMatch | FastOutcome::OtherHost => None,
                FastOutcome::Segmented(work) => Some(work),
                FastOutcome::NotPlain if one.is_whole() => {
                    let found = &mut scratch.found;
                    Some(deliver_one::<CAPTURES>(
                        one, port, flows, delivery, inbox, counters, found,
                    ))
                }
                FastOutcome::NotPlain => {
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

#[cfg(test)]
mod tests;
