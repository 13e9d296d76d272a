//! Half-open connections of listeners (SYN-RECEIVED), in a compact table (RFC 4987, 3.3): an entry
//! takes under 300 bytes on average, and a flood of SYNs fills no more than the table.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::sequence::Seq;
use super::tuple::Tuple;
use crate::{Instant, ListenerId};

/// The least time between two challenges of one entry's peer.
const CHALLENGE_PAUSE_MS: u16 = 500;
/// The maximum number of times that the answer to a SYN is sent again.
const REPEATS: usize = 6;
/// The number of entries that empty tables keep room for.
const KEPT: usize = 64;
/// The number of ended entries that a queue may hold.
const SLACK: usize = 64;

/// What the two SYNs agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// The initial sequence numbers: the peer's (IRS), and ours (ISS).
    pub(super) theirs: Seq,
    pub(super) ours: Seq,
    /// The peer's segment size, if it stated one.
    pub(super) mss: Option<u16>,
    /// The shift of the peer's windows, if it scales them.
    pub(super) shift: Option<u8>,
    pub(super) selective: bool,
    /// The peer's clock, if it uses timestamps.
    pub(super) clock: Option<u32>,
    pub(super) ecn: bool,
    /// The window of the peer's SYN.
    pub(super) window: u16,
}

/// A half-open connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfOpen {
    pub(super) listener: ListenerId,
    pub(super) agreement: Agreement,
    pub(super) since: Instant,
    /// The number of times that our answer was sent again.
    pub(super) repeats: u8,
    /// The time of the last acknowledgement that challenged a segment, in milliseconds after
    /// `since`.
    challenged: Option<u16>,
}

/// A tuple in little memory: both addresses, as those of IPv6, both ports, and 1 if they stand for
/// IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key([u8; 37]);

impl Key {
    fn of(tuple: &Tuple) -> Key {
        let mut bytes = [0; 37];
        for (end, at) in [(tuple.local, 0), (tuple.remote, 18)] {
            let octets = match end.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            bytes[at..at + 16].copy_from_slice(&octets);
            bytes[at + 16..at + 18].copy_from_slice(&end.port().to_be_bytes());
        }
        bytes[36] = u8::from(tuple.local.is_ipv4());
        Key(bytes)
    }

    fn tuple(&self) -> Tuple {
        let end = |at: usize| {
            let octets: [u8; 16] = std::array::from_fn(|byte| self.0[at + byte]);
            let v6 = Ipv6Addr::from(octets);
            let v4 = v6.to_ipv4_mapped().filter(|_| self.0[36] == 1);
            let port = u16::from_be_bytes([self.0[at + 16], self.0[at + 17]]);
            SocketAddr::new(v4.map_or(v6.into(), IpAddr::from), port)
        };
        Tuple { local: end(0), remote: end(18) }
    }
}

/// An entry's place in a queue: its time, and its initial number, by which the entry is recognized.
#[derive(Clone, Copy, Debug)]
struct Queued {
    at: Instant,
    key: Key,
    ours: Seq,
}

/// The table.
pub(super) struct HalfOpens {
    entries: HashMap<Key, HalfOpen>,
    /// Entries by the number of repetitions, each in the order of their next one. Entries that
    /// ended stay here until they come first.
    due: [VecDeque<Queued>; REPEATS + 1],
    lasts: Duration,
}

/// What became of an entry whose time has come.
pub(super) enum Due {
    /// Its answer is to be sent again.
    Repeat(Tuple, HalfOpen),
    /// It has lasted too long.
    Over(Tuple, HalfOpen),
}

impl HalfOpen {
    pub(super) fn new(listener: ListenerId, agreement: Agreement, since: Instant) -> HalfOpen {
        HalfOpen { listener, agreement, since, repeats: 0, challenged: None }
    }
}

impl HalfOpens {
    /// Creates the table. `lasts`: the time for which an entry is kept.
    pub(super) fn new(lasts: Duration) -> HalfOpens {
        HalfOpens { entries: HashMap::new(), due: Default::default(), lasts }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the tuples of all entries, in any order.
    pub(super) fn tuples(&self) -> impl Iterator<Item = Tuple> + '_ {
        self.entries.keys().map(Key::tuple)
    }

    pub(super) fn get(&self, tuple: &Tuple) -> Option<&HalfOpen> {
        self.entries.get(&Key::of(tuple))
    }

    /// Returns `true` if a challenge of the entry's peer is within the entry's own rate (RFC 5961,
    /// 7).
    pub(super) fn may_challenge(&mut self, now: Instant, tuple: &Tuple) -> bool {
        let Some(entry) = self.entries.get_mut(&Key::of(tuple)) else { return false };
        let millis = u16::try_from(now.since(entry.since).as_millis()).unwrap_or(u16::MAX);
        let may = entry.challenged.is_none_or(|at| millis - at >= CHALLENGE_PAUSE_MS);
        if may {
            entry.challenged = Some(millis);
        }
        may
    }

    pub(super) fn insert(&mut self, now: Instant, tuple: Tuple, entry: HalfOpen) {
        let key = Key::of(&tuple);
        self.queue(now, key, &entry);
        self.entries.insert(key, entry);
    }

    /// Queues an entry for its next repetition: after one second, then two, four and so on.
    fn queue(&mut self, now: Instant, key: Key, entry: &HalfOpen) {
        let repeats = usize::from(entry.repeats).min(REPEATS);
        let left = (entry.since + self.lasts).since(now);
        let pause = Duration::from_secs(1 << repeats).min(left);
        // Entries that ended early stay queued behind one that has not ended.
        if self.due[repeats].len() > 2 * self.entries.len() + SLACK {
            let entries = &self.entries;
            self.due[repeats].retain(|Queued { key, ours, .. }| {
                entries.get(key).is_some_and(|entry| is_queued(entry, *ours, repeats))
            });
        }
        let ours = entry.agreement.ours;
        self.due[repeats].push_back(Queued { at: now + pause, key, ours });
    }

    pub(super) fn remove(&mut self, tuple: &Tuple) -> Option<HalfOpen> {
        let entry = self.entries.remove(&Key::of(tuple))?;
        self.prune(usize::from(entry.repeats).min(REPEATS));
        Some(entry)
    }

    /// Removes the entries of a listener.
    pub(super) fn remove_of(
        &mut self,
        listener: ListenerId,
        mut removed: impl FnMut(Tuple, &HalfOpen),
    ) {
        self.entries.retain(|key, entry| {
            let stays = entry.listener != listener;
            if !stays {
                removed(key.tuple(), entry);
            }
            stays
        });
        (0..=REPEATS).for_each(|queue| self.prune(queue));
    }

    /// Forgets ended entries at the front of a queue.
    fn prune(&mut self, queue: usize) {
        while let Some(&Queued { key, ours, .. }) = self.due[queue].front() {
            if self.entries.get(&key).is_some_and(|entry| is_queued(entry, ours, queue)) {
                return;
            }
            self.due[queue].pop_front();
        }
        self.due[queue].shrink_to(KEPT);
        if self.entries.is_empty() {
            self.entries.shrink_to(KEPT);
        }
    }

    /// Returns the next entry whose time has come.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Due> {
        for queue in 0..=REPEATS {
            self.prune(queue);
            let Some(&Queued { at, key, .. }) = self.due[queue].front() else { continue };
            if at > now {
                continue;
            }
            self.due[queue].pop_front();
            let Some(mut entry) = self.entries.get(&key).copied() else { continue };
            if queue == REPEATS || now >= entry.since + self.lasts {
                self.entries.remove(&key);
                return Some(Due::Over(key.tuple(), entry));
            }
            entry.repeats += 1;
            self.queue(now, key, &entry);
            self.entries.insert(key, entry);
            return Some(Due::Repeat(key.tuple(), entry));
        }
        None
    }

    /// Returns when to call [`HalfOpens::next_due`].
    pub(super) fn poll_at(&self) -> Option<Instant> {
        self.due.iter().filter_map(|queue| queue.front()).map(|queued| queued.at).min()
    }
}

/// Returns `true` if the entry with this number waits in a queue.
fn is_queued(entry: &HalfOpen, ours: Seq, queue: usize) -> bool {
    entry.agreement.ours == ours && usize::from(entry.repeats).min(REPEATS) == queue
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        Tuple { local: ([10, 0, 0, 1], 80).into(), remote: ([10, 0, 0, 2], port).into() }
    }

    fn entry(since: Instant, ours: u32) -> HalfOpen {
        let agreement = Agreement {
            theirs: Seq(1),
            ours: Seq(ours),
            mss: None,
            shift: None,
            selective: false,
            clock: None,
            ecn: false,
            window: 0,
        };
        let listener = ListenerId { index: 0, generation: 1 };
        HalfOpen::new(listener, agreement, since)
    }

    #[test]
    fn an_entry_takes_under_350_bytes_at_the_worst_load() {
        let queued = size_of::<Queued>();
        let hashed = size_of::<(Key, HalfOpen)>() + 1;
        // A hash table is at least 7/16 full after it has grown, a queue at least half.
        let most = hashed * 16 / 7 + queued * 2;
        assert!(hashed + queued < 300 && most < 350, "{hashed} {queued} {most}");
        for (local, remote) in
            [("10.0.0.1:80", "10.0.0.2:9"), ("[fe80::1]:80", "[::ffff:1.2.3.4]:9")]
        {
            let tuple = Tuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
            assert_eq!(Key::of(&tuple).tuple(), tuple);
        }
    }

    #[test]
    fn answers_repeat_at_growing_intervals_and_end() {
        let mut table = HalfOpens::new(Duration::from_secs(15));
        table.insert(Instant::ZERO, tuple(1), entry(Instant::ZERO, 1));
        let mut at = Vec::new();
        while let Some(now) = table.poll_at() {
            at.push(now.as_micros() / 1_000_000);
            match table.next_due(now) {
                Some(Due::Repeat(..)) => {}
                Some(Due::Over(..)) => break,
                None => panic!("nothing was due"),
            }
        }
        assert_eq!((at, table.len(), table.poll_at()), (vec![1, 3, 7, 15], 0, None));
    }

    #[test]
    fn ended_entries_behind_a_live_one_are_bounded() {
        let mut table = HalfOpens::new(Duration::from_secs(15));
        table.insert(Instant::ZERO, tuple(1), entry(Instant::ZERO, 1));
        for number in 0..10_000 {
            table.insert(Instant::ZERO, tuple(2), entry(Instant::ZERO, number));
            table.remove(&tuple(2));
        }
        assert!(table.due[0].len() <= SLACK + 4, "{}", table.due[0].len());
    }

    #[test]
    fn ended_entries_wake_nothing() {
        let mut table = HalfOpens::new(Duration::from_secs(15));
        for port in 1..100 {
            table.insert(Instant::ZERO, tuple(port), entry(Instant::ZERO, port.into()));
        }
        for port in (1..100).rev() {
            assert!(table.remove(&tuple(port)).is_some());
        }
        assert_eq!((table.len(), table.poll_at()), (0, None));
        assert!(table.due.iter().all(VecDeque::is_empty));
    }
}
