//! The receive path of sessions' own queues. The device put each packet into a buffer of the
//! session, so the engine copies none: it reads the headers, finds the endpoint, and gives the
//! buffer to the application.
//!
//! The engine lends the device most of the buffers that the session's first queue pair provides,
//! and keeps the others for packets that come another way. It copies a packet that spans several
//! buffers, that it must segment, that is for another queue pair, or that a capture receives.

use towpath_device::{Checksum, DeviceError, Received};
use towpath_memory::Mapping;
use towpath_packet::headers::PREFIX_BYTES;
use towpath_protocol::counters::Device as Count;
use towpath_protocol::settings::{Setting, Values};

use crate::clock::clock_ns;
use crate::delivery::{Delivery, InPlace, Placed};
use crate::demux::{Destination, FlowTable, is_group};
use crate::device_counters::DeviceCounters;
use crate::own::Returned;
use crate::port::DevicePort;
use crate::session::Session;
use crate::sessions::SessionTable;
use crate::work::{ITERATION_BYTES, Work};

use super::headers::{flow_of, read_headers};
use super::located::{FRONT_BYTES, locate};
use crate::source::{Packet, Piece};

/// The engine keeps one in so many of a queue pair's buffers for packets that it copies.
const KEPT: u32 = 4;
/// The least and the longest time after which the engine looks for buffers of a session whose queue
/// has few. The application does not tell the engine that it provided some.
const LEAST_PAUSE_NS: u64 = 1_000_000;
const LONGEST_PAUSE_NS: u64 = 64_000_000;

/// The buffers of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Supply {
    /// The most buffers that the device had.
    most: u32,
    /// The pause before the engine looks again; 0 for a queue with enough buffers.
    pause_ns: u64,
}

/// The receive path of the own queues.
#[derive(Debug)]
pub(crate) struct OwnRx {
    /// The buffers of a batch, and the number of those whose packets are done. The rest waits for
    /// the next poll iteration.
    received: Vec<Received>,
    done: usize,
    pieces: Vec<Piece>,
    found: Vec<Destination>,
    /// Packets that the engine takes from each queue per poll iteration, and the upper limit.
    batch: usize,
    most: usize,
    /// The limit of a poll iteration, as a number of bytes.
    limit: u64,
    /// The queue of that batch, or the first one of the next poll iteration.
    next: usize,
    /// `true` if a queue may have more packets than the last poll iteration took.
    was_full: bool,
    /// By the queues' numbers.
    supplies: Vec<Supply>,
}

impl OwnRx {
    /// Creates the path. The engine takes at most `most` packets from each queue per poll
    /// iteration.
    pub(crate) fn new(most: usize, values: &Values) -> OwnRx {
        OwnRx {
            received: Vec::new(),
            done: 0,
            pieces: Vec::new(),
            found: Vec::new(),
            batch: most.min(values.get(Setting::RxBatch) as usize),
            most,
            limit: ITERATION_BYTES,
            next: 0,
            was_full: false,
            supplies: Vec::new(),
        }
    }

    /// Changes the number of packets per queue and poll iteration.
    pub(crate) fn set_batch(&mut self, packets: usize) {
        self.batch = packets.min(self.most);
    }

    /// Returns `true` if packets of a batch wait for the next poll iteration, because this one used
    /// up its budget.
    pub(crate) fn has_left(&self) -> bool {
        self.done < self.received.len()
    }

    /// Returns `true` if a queue may have more packets than the last poll iteration took.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    /// Forgets a queue, with the packets of it that wait.
    pub(crate) fn forget(&mut self, number: usize) {
        if self.next == number {
            self.received.clear();
            self.done = 0;
        }
        // The next poll iteration finds out, if there is another queue.
        self.was_full = false;
        if let Some(supply) = self.supplies.get_mut(number) {
            *supply = Supply::default();
        }
    }

    /// Returns the time at which the engine looks for buffers again, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let pauses = self.supplies.iter().map(|supply| supply.pause_ns).filter(|pause| *pause > 0);
        pauses.min().map(|pause| clock_ns() + pause)
    }

    /// Takes a batch from each queue, in turn, until the poll iteration reaches its limit
    /// ([`ITERATION_BYTES`]). Returns the number of packets.
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
        let end = port.own().0.end();
        self.supplies.resize(end.max(self.supplies.len()), Supply::default());
        self.was_full = false;
        let first = if self.next < end { self.next } else { 0 };
        let (mut packets, mut cost) = (0, 0);
        for number in (first..end).chain(0..first) {
            let Some((key, _)) = port.own().0.get(number) else { continue };
            if !self.has_left() {
                self.supply(number, key, port, delivery);
                let (own, spaces) = port.own();
                self.received.clear();
                self.done = 0;
                let count = own.poll(number, spaces, &mut self.received, self.batch)?;
                self.was_full |= count >= self.batch;
            }
            self.next = number;
            let (own, _) = port.own();
            let Some((key, memory)) = own.get(number) else { continue };
            let (pieces, found) = (&mut self.pieces, &mut self.found);
            let mut queue = Queue { key, memory, flows, delivery, counters, pieces, found };
            let mut bytes = 0;
            for packet in Received::packets(&self.received[self.done..]) {
                let work = queue.deliver(packet);
                let len: usize = packet.iter().map(|one| one.len as usize).sum();
                self.done += packet.len();
                packets += 1;
                bytes += len as u64;
                cost += len as u64 + work.beyond_one(len).cost();
                if cost >= self.limit {
                    break;
                }
            }
            counters.add(Count::RxBytes, bytes);
            if cost >= self.limit {
                // Other queues may have packets, too.
                self.was_full = true;
                break;
            }
        }
        if !self.has_left() {
            self.next = first + 1;
        }
        counters.add(Count::RxPackets, packets as u64);
        Ok(packets)
    }

    /// Lends a queue buffers of its session, unless it has most of them already.
    fn supply(
        &mut self,
        number: usize,
        key: u32,
        port: &mut DevicePort,
        delivery: &mut Delivery<'_>,
    ) {
        let supply = &mut self.supplies[number];
        let (sessions, notifier) = delivery.parts();
        let works = port.own().0.works(number);
        let living = |session: &&mut Session| {
            works && !session.is_closing() && session.violation().is_none()
        };
        let Some(session) = sessions.get_mut(key).filter(living) else {
            supply.pause_ns = 0;
            return;
        };
        let side = &mut session.receive;
        if supply.most > 0 && side.queue(0).lent() > supply.most - supply.most / 8 {
            return;
        }
        if !side.observe(0, 0) {
            // The notifier condemns a session whose application violated the protocol.
            notifier.touch(side, key, 0);
            return;
        }
        let (pool, receive) = (side.pool(), side.queue(0));
        let mut offsets = [0; 64];
        loop {
            let keeps = (receive.available() + receive.lent()) / KEPT;
            let most = receive.available().saturating_sub(keeps).min(offsets.len() as u32);
            let mut count = 0;
            while count < most as usize
                && let Some(buffer) = receive.lend()
            {
                offsets[count] = buffer * pool.frame_bytes();
                count += 1;
            }
            let (own, spaces) = port.own();
            let taken = own.fill(number, spaces, &offsets[..count]);
            for offset in &offsets[taken..count] {
                receive.take_back(offset / pool.frame_bytes());
            }
            if taken < offsets.len() {
                break;
            }
        }
        let lent = receive.lent();
        supply.most = supply.most.max(lent);
        supply.pause_ns = if lent > supply.most / 4 {
            0
        } else {
            (supply.pause_ns * 2).clamp(LEAST_PAUSE_NS, LONGEST_PAUSE_NS)
        };
    }
}

/// Gives sessions the buffers back that a reset of their queues returned.
pub(crate) fn take_back(returned: Returned, sessions: &mut SessionTable) {
    for (key, offsets) in returned {
        if let Some(session) = sessions.get_mut(key) {
            give_back(session, offsets.into_iter());
        }
    }
}

/// Gives a session lent buffers back, by their offsets.
fn give_back(session: &mut Session, offsets: impl Iterator<Item = u32>) {
    let frame_bytes = session.receive.pool().frame_bytes();
    for offset in offsets {
        session.receive.queue(0).take_back(offset / frame_bytes);
    }
}

/// The queue whose packets are handled, and what that needs.
struct Queue<'a, 'd> {
    /// The key of its session, and its memory.
    key: u32,
    memory: &'a Mapping,
    flows: &'a mut FlowTable,
    delivery: &'a mut Delivery<'d>,
    counters: &'a mut DeviceCounters,
    pieces: &'a mut Vec<Piece>,
    found: &'a mut Vec<Destination>,
}

impl Queue<'_, '_> {
    /// Handles a packet that the device put into buffers of the session. Returns the copies that the
    /// engine made.
    fn deliver(&mut self, buffers: &[Received]) -> Work {
        if let Some(Checksum::Partial { .. }) = buffers.first().map(|one| one.meta.checksum) {
            self.counters.add(Count::RxPartial, 1);
        }
        let (given, work) = self.hand_over(buffers);
        if !given && let Some(session) = self.delivery.session(self.key) {
            give_back(session, buffers.iter().map(|one| one.buffer));
        }
        work
    }

    /// Returns `true` if the application has the packet's buffer now, and the copies that the
    /// engine made.
    fn hand_over(&mut self, buffers: &[Received]) -> (bool, Work) {
        let mut work = Work::default();
        let mut front = [0; FRONT_BYTES];
        let (source, meta) = match locate(buffers, self.memory, self.pieces, &mut front) {
            Ok(located) => located,
            Err(reason) => {
                self.counters.add(reason, 1);
                return (false, work);
            }
        };
        let mut prefix = [0; PREFIX_BYTES];
        let Some((read, headers)) = read_headers(&source, &mut prefix) else {
            self.counters.add(Count::RxMalformed, 1);
            return (false, work);
        };
        let packet = Packet { source, beginning: &prefix[..read], meta };
        for destination in self.flows.captures() {
            work += self.delivery.deliver(*destination, &packet, 0);
        }
        let Some(headers) = headers else {
            self.counters.add(Count::RxMalformed, 1);
            return (false, work);
        };
        for destination in self.flows.promiscuous() {
            work += self.delivery.deliver_tagged(*destination, &packet);
        }
        if is_group(headers.destination) {
            // A device that cannot choose packets by their flows.
            self.counters.add(Count::RxGroup, 1);
            self.found.clear();
            self.flows.members(&headers, self.found);
            for destination in &*self.found {
                work += self.delivery.deliver_tagged(*destination, &packet);
            }
            if self.found.is_empty() && self.flows.promiscuous().is_empty() {
                self.counters.add(Count::RxNoMatch, 1);
            }
            return (false, work);
        }
        // The flow filter lets no other session's packets in. An endpoint may have closed since.
        let found = flow_of(&headers, packet.beginning, self.flows);
        let Some(destination) = found.filter(|found| found.session == self.key) else {
            if self.flows.promiscuous().is_empty() {
                self.counters.add(Count::RxNoMatch, 1);
            }
            return (false, work);
        };
        // A copy removes a priority tag that the device left in the packet.
        let is_priority = headers.is_priority_tagged();
        if let [one] = buffers
            && (one.tag.is_some() || !is_priority)
        {
            let Received { offset, buffer, len, .. } = *one;
            let tag_removed = one.tag.is_some() && !is_priority;
            let placed = Placed { offset, buffer, len, tag_removed };
            match self.delivery.deliver_in_place(destination, placed, one.meta) {
                InPlace::Given => return (true, work),
                InPlace::Dropped => return (false, work),
                InPlace::NeedsCopy => {}
            }
        }
        work += self.delivery.deliver_tagged(destination, &packet);
        (false, work)
    }
}

#[cfg(test)]
mod tests;
