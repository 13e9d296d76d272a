//! The neighbour cache, which maps IP addresses to link addresses. One table serves ARP and NDP
//! (RFC 826, RFC 4861).

//!
//! The cost of a packet, an answer and a timer does not depend on the number of neighbours. The
//! table finds entries by address, evicts them in the order of their last use, and sends requests
//! in the order of their time.

mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::outbox::{Frame, Outbox};
use crate::{Counters, Instant, TcpId};
use table::Table;

/// The time that the stack trusts a neighbour's answer without asking again (RFC 4861, 10: 30 s).
const REACHABLE: Duration = Duration::from_secs(30);
/// The time between two requests.
const RETRY: Duration = Duration::from_secs(1);
/// The number of requests before the stack gives up.
const TRIES: u8 = 3;
/// The maximum number of neighbours requested or given up per poll.
const BUDGET: usize = 64;
/// The minimum number of bytes that may wait for neighbours, even if the limit of waiting frames is
/// lower.
const LEAST_HELD_BYTES: usize = 1 << 18;

/// The longest frame, in bytes, that is copied into an allocation of its exact length while it waits.
const SHORT_BYTES: usize = 512;

#[derive(Default)]
struct Entry {
    mac: Option<[u8; 6]>,
    confirmed: Instant,
    /// The number of requests since the last answer, and the time of the next.
    probe: Option<(u8, Instant)>,
    pending: VecDeque<Frame>,
    /// The cost of these frames.
    pending_bytes: usize,
    waiting: BTreeSet<TcpId>,
}

/// The table's answer about a neighbour.
pub(crate) enum Lookup {
    /// The neighbour's link address.
    Station([u8; 6]),
    /// A request is pending.
    Asked,
}

/// A request to send.
pub(crate) struct Question {
    pub(crate) address: IpAddr,
    /// The station that had the address; `None` if unknown, so that the request goes to all
    /// stations.
    pub(crate) station: Option<[u8; 6]>,
}

/// The fate of the frames that waited for a neighbour.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Connections that may resume.
    pub(crate) resume: Vec<TcpId>,
    /// Connections whose next hop does not answer.
    pub(crate) failed: Vec<TcpId>,
}

/// The table.
pub(crate) struct Neighbours {
    table: Table<Entry>,
    /// Neighbours with a pending request, by the time of the next one.
    probing: BTreeSet<(Instant, u32)>,
    limit: usize,
    /// The limit of the cost of frames that wait for one neighbour.
    pending_limit: usize,
    /// The cost of all frames that wait for a neighbour, and its limit.
    held_bytes: usize,
    held_limit: usize,
    /// The number of these frames.
    held: usize,
}

impl Neighbours {
    pub(crate) fn new(limit: usize, pending_limit: usize, held_limit: usize) -> Self {
        Neighbours {
            table: Table::new(),
            probing: BTreeSet::new(),
            limit,
            pending_limit,
            held_bytes: 0,
            held_limit: held_limit.max(LEAST_HELD_BYTES),
            held: 0,
        }
    }

    /// Looks up a neighbour, and schedules a request if necessary.
    pub(crate) fn lookup(
        &mut self,
        now: Instant,
        address: IpAddr,
        outbox: &mut Outbox,
        counters: &mut Counters,
    ) -> Lookup {
        let Some(index) = self.table.find(address) else {
            if self.table.len() >= self.limit
                && let Some(oldest) = self.table.oldest()
            {
                counters.neighbour_limit += 1;
                self.remove(oldest, outbox, counters);
            }
            let index = self.table.insert(address, Entry::default());
            self.set_probe(index, Some((0, now)));
            return Lookup::Asked;
        };
        self.table.touch(index);
        let Some((_, entry)) = self.table.get(index) else { return Lookup::Asked };
        let mac = entry.mac;
        let stale = mac.is_none() || now.since(entry.confirmed) > REACHABLE;
        if entry.probe.is_none() && stale {
            self.set_probe(index, Some((0, now)));
        }
        mac.map_or(Lookup::Asked, Lookup::Station)
    }

    /// Sets the next request for a neighbour, or none.
    fn set_probe(&mut self, index: u32, probe: Option<(u8, Instant)>) {
        let Some((_, entry)) = self.table.get(index) else { return };
        if let Some((_, at)) = std::mem::replace(&mut entry.probe, probe) {
            self.probing.remove(&(at, index));
        }
        if let Some((_, at)) = probe {
            self.probing.insert((at, index));
        }
    }

    /// Removes a neighbour and drops the frames that wait for it. Returns the connections that wait
    /// for it.
    fn remove(
        &mut self,
        index: u32,
        outbox: &mut Outbox,
        counters: &mut Counters,
    ) -> BTreeSet<TcpId> {
        self.set_probe(index, None);
        let Some(entry) = self.table.remove(index) else { return BTreeSet::new() };
        counters.neighbour_dropped += entry.pending.len() as u64;
        self.held -= entry.pending.len();
        for frame in entry.pending {
            self.held_bytes -= frame.cost();
            outbox.recycle(frame.bytes);
        }
        entry.waiting
    }

    /// Holds a frame until its neighbour's address is known. At the neighbour's limit the frame
    /// replaces the oldest ones. At the limit of all neighbours together the frame is dropped.
    pub(crate) fn hold(
        &mut self,
        address: IpAddr,
        mut frame: Frame,
        outbox: &mut Outbox,
        counters: &mut Counters,
    ) {
        let found = self.table.find(address).and_then(|index| self.table.get(index));
        let Some((_, entry)) = found else {
            counters.neighbour_dropped += 1;
            return outbox.recycle(frame.bytes);
        };
        // A short frame, such as the answer to a SYN, waits in an allocation of its exact length.
        if frame.bytes.len() <= SHORT_BYTES {
            let short = frame.bytes.as_slice().to_vec();
            outbox.recycle(std::mem::replace(&mut frame.bytes, short));
        }
        let cost = frame.cost();
        while entry.pending_bytes + cost > self.pending_limit
            && let Some(oldest) = entry.pending.pop_front()
        {
            counters.neighbour_dropped += 1;
            entry.pending_bytes -= oldest.cost();
            self.held_bytes -= oldest.cost();
            self.held -= 1;
            outbox.recycle(oldest.bytes);
        }
        if self.held_bytes + cost > self.held_limit {
            counters.neighbour_dropped += 1;
            return outbox.recycle(frame.bytes);
        }
        self.held_bytes += cost;
        self.held += 1;
        entry.pending_bytes += cost;
        entry.pending.push_back(frame);
    }

    /// Returns the number of frames that wait for a neighbour.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns these frames. Visits all neighbours, unless there are no such frames.
    pub(crate) fn held_frames(&self) -> impl Iterator<Item = &Frame> {
        let entries = (self.held > 0).then(|| self.table.entries());
        entries.into_iter().flatten().flat_map(|entry| &entry.pending)
    }

    /// Drops all frames that wait for a neighbour. Returns their number.
    pub(crate) fn drop_held(&mut self) -> usize {
        while let Some(oldest) = self.table.oldest() {
            self.set_probe(oldest, None);
            self.table.remove(oldest);
        }
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// Makes a connection wait for its neighbour's address.
    pub(crate) fn wait(&mut self, address: IpAddr, id: TcpId) {
        if let Some((_, entry)) = self.table.find(address).and_then(|index| self.table.get(index)) {
            entry.waiting.insert(id);
        }
    }

    /// Records a neighbour's link address. With `insert`, also adds a new neighbour, if there is
    /// room.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: [u8; 6],
        insert: bool,
        outbox: &mut Outbox,
        outcome: &mut Outcome,
    ) {
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return;
        }
        let Some(index) = self.table.find(address) else {
            if insert && self.table.len() < self.limit {
                let entry = Entry { mac: Some(mac), confirmed: now, ..Entry::default() };
                self.table.insert(address, entry);
            }
            return;
        };
        self.set_probe(index, None);
        let Some((_, entry)) = self.table.get(index) else { return };
        entry.mac = Some(mac);
        entry.confirmed = now;
        // The waiting frames go first: they are older than those in the outbox.
        self.held_bytes -= std::mem::take(&mut entry.pending_bytes);
        self.held -= entry.pending.len();
        // The queue's own memory goes, too: no account has it.
        for frame in std::mem::take(&mut entry.pending).into_iter().rev() {
            outbox.unpop(frame);
        }
        outcome.resume.extend(std::mem::take(&mut entry.waiting));
    }

    /// Gives a neighbour up at once.
    pub(crate) fn give_up(
        &mut self,
        address: IpAddr,
        outbox: &mut Outbox,
        counters: &mut Counters,
        outcome: &mut Outcome,
    ) {
        if let Some(index) = self.table.find(address) {
            counters.neighbour_failures += 1;
            outcome.failed.extend(self.remove(index, outbox, counters));
        }
    }

    /// Returns due requests, and gives up neighbours that did not answer, a bounded number per
    /// call. [`Neighbours::poll_at`] tells whether there are more.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        outbox: &mut Outbox,
        counters: &mut Counters,
        outcome: &mut Outcome,
    ) -> Vec<Question> {
        let mut questions = Vec::new();
        for _ in 0..BUDGET {
            let Some(&(_, index)) = self.probing.first().filter(|(at, _)| *at <= now) else {
                break;
            };
            let Some((address, entry)) = self.table.get(index) else { break };
            let tries = entry.probe.map_or(0, |(tries, _)| tries);
            let next = if tries < TRIES {
                tries + 1
            } else if entry.mac.take().is_some() {
                // The neighbour moved or left: ask all stations before giving it up.
                1
            } else {
                counters.neighbour_failures += 1;
                outcome.failed.extend(self.remove(index, outbox, counters));
                continue;
            };
            questions.push(Question { address, station: entry.mac });
            self.set_probe(index, Some((next, now + RETRY)));
        }
        questions
    }

    /// Returns when the next request is due.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        self.probing.first().map(|&(at, _)| at)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }
}
