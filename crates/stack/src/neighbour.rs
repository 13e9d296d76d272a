//! Who on the link has which IP address: one table for ARP and NDP (RFC 826, RFC 4861).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::outbox::{Frame, Outbox};
use crate::{Counters, Instant, TcpId};

/// How long a neighbour's word is taken without asking again (RFC 4861, 10: 30 s).
const REACHABLE: Duration = Duration::from_secs(30);
/// Between two questions.
const RETRY: Duration = Duration::from_secs(1);
/// Questions before giving up.
const TRIES: u8 = 3;

struct Entry {
    mac: Option<[u8; 6]>,
    confirmed: Instant,
    used: Instant,
    /// Questions asked since the last answer, and when the next is due.
    probe: Option<(u8, Instant)>,
    pending: VecDeque<Frame>,
    waiting: Vec<TcpId>,
}

/// What the table knows about a neighbour.
pub(crate) enum Lookup {
    /// Its station.
    Station([u8; 6]),
    /// It is being asked for.
    Asked,
}

/// A question to be sent.
pub(crate) struct Question {
    pub(crate) address: IpAddr,
    /// The station that is thought to have it; everybody when it is not known.
    pub(crate) station: Option<[u8; 6]>,
}

/// What became of those who waited for a neighbour.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Connections that may go on.
    pub(crate) resume: Vec<TcpId>,
    /// Connections whose next hop does not answer.
    pub(crate) failed: Vec<TcpId>,
}

/// The table.
pub(crate) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    /// Those with a question open.
    probing: Vec<IpAddr>,
    limit: usize,
    pending_limit: usize,
}

impl Neighbours {
    pub(crate) fn new(limit: usize, pending_limit: usize) -> Self {
        Neighbours { entries: HashMap::new(), probing: Vec::new(), limit, pending_limit }
    }

    /// Looks up a neighbour that something is to be sent to, and asks if need be.
    pub(crate) fn lookup(
        &mut self,
        now: Instant,
        address: IpAddr,
        outbox: &mut Outbox,
        counters: &mut Counters,
    ) -> Lookup {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.used = now;
            if entry.probe.is_none()
                && (entry.mac.is_none() || now.since(entry.confirmed) > REACHABLE)
            {
                entry.probe = Some((0, now));
                self.probing.push(address);
            }
            return match entry.mac {
                Some(mac) => Lookup::Station(mac),
                None => Lookup::Asked,
            };
        }
        if self.entries.len() >= self.limit {
            self.evict(outbox, counters);
        }
        self.entries.insert(address, Entry::new(None, now));
        self.entries.entry(address).and_modify(|entry| entry.probe = Some((0, now)));
        self.probing.push(address);
        Lookup::Asked
    }

    /// Forgets the neighbour that was not used for the longest time.
    fn evict(&mut self, outbox: &mut Outbox, counters: &mut Counters) {
        counters.neighbour_limit += 1;
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(ip, _)| *ip);
        if let Some(mut entry) = oldest.and_then(|address| self.entries.remove(&address)) {
            counters.neighbour_dropped += entry.pending.len() as u64;
            entry.pending.drain(..).for_each(|frame| outbox.recycle(frame.bytes));
            self.probing.retain(|address| Some(*address) != oldest);
        }
    }

    /// Lets a frame wait for its neighbour's address.
    pub(crate) fn hold(
        &mut self,
        address: IpAddr,
        frame: Frame,
        outbox: &mut Outbox,
        counters: &mut Counters,
    ) {
        let Some(entry) = self.entries.get_mut(&address) else {
            counters.neighbour_dropped += 1;
            return outbox.recycle(frame.bytes);
        };
        if entry.pending.len() >= self.pending_limit
            && let Some(oldest) = entry.pending.pop_front()
        {
            counters.neighbour_dropped += 1;
            outbox.recycle(oldest.bytes);
        }
        entry.pending.push_back(frame);
    }

    /// Lets a connection wait for its neighbour's address.
    pub(crate) fn wait(&mut self, address: IpAddr, id: TcpId) {
        if let Some(entry) = self.entries.get_mut(&address)
            && !entry.waiting.contains(&id)
        {
            entry.waiting.push(id);
        }
    }

    /// A neighbour told its station. `asked`: it was an answer to us, or about somebody we know;
    /// otherwise it is kept only while there is room.
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
        let Some(entry) = self.entries.get_mut(&address) else {
            if insert && self.entries.len() < self.limit {
                self.entries.insert(address, Entry::new(Some(mac), now));
            }
            return;
        };
        entry.mac = Some(mac);
        entry.confirmed = now;
        if entry.probe.take().is_some() {
            self.probing.retain(|probed| *probed != address);
        }
        // Those that waited go first: they are older than what waits in the outbox.
        for frame in entry.pending.drain(..).rev() {
            outbox.unpop(frame);
        }
        outcome.resume.append(&mut entry.waiting);
    }

    /// The questions that are due.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        outbox: &mut Outbox,
        counters: &mut Counters,
        outcome: &mut Outcome,
    ) -> Vec<Question> {
        let mut questions = Vec::new();
        let entries = &mut self.entries;
        self.probing.retain(|&address| {
            let Some(entry) = entries.get_mut(&address) else { return false };
            let Some((tries, at)) = entry.probe else { return false };
            if at > now {
                return true;
            }
            if tries < TRIES {
                entry.probe = Some((tries + 1, now + RETRY));
                questions.push(Question { address, station: entry.mac });
                return true;
            }
            if entry.mac.take().is_some() {
                // It moved or left: ask everybody before giving it up.
                entry.probe = Some((1, now + RETRY));
                questions.push(Question { address, station: None });
                return true;
            }
            counters.neighbour_failures += 1;
            counters.neighbour_dropped += entry.pending.len() as u64;
            entry.pending.drain(..).for_each(|frame| outbox.recycle(frame.bytes));
            outcome.failed.append(&mut entry.waiting);
            entries.remove(&address);
            false
        });
        questions
    }

    /// When the next question is due.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        let due = |address| self.entries.get(address).and_then(|entry| entry.probe);
        self.probing.iter().filter_map(due).map(|(_, at)| at).min()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Entry {
    fn new(mac: Option<[u8; 6]>, now: Instant) -> Self {
        Entry {
            mac,
            confirmed: now,
            used: now,
            probe: None,
            pending: VecDeque::new(),
            waiting: Vec::new(),
        }
    }
}
