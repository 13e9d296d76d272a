//! What the next server needs of the connections with other hosts, in memory that outlives this one.
//!
//! Each connection has a place. What its peer must not see carried out twice, and must not lose, is
//! recorded before the packet that acknowledges it: how far the peer's requests are carried out, and
//! up to which slot of the transmit queue those of the endpoint here are acknowledged. Each is one
//! word, so a server that is killed leaves the state before or after.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use towpath_memory::{Region, own_words};
use towpath_packet::roce::{Path, cm};
use towpath_protocol::oob::OobAddress;
use towpath_queue::{OwnWords, PeerWords};
use towpath_rdma::responder::{Progress, Writing};
use towpath_rdma::{Psn, Range};

use crate::oob::connection::EndpointName;

/// The most connections, half-open ones included.
pub(super) const MOST_CONNECTIONS: usize = 1024;
/// The words of a place.
const PLACE_WORDS: usize = 32;
/// The layout's number, in the first word of the memory.
const LAYOUT: u64 = 0x746f_7770_6174_6801;
/// Words before the first place.
const HEADER_WORDS: usize = 16;

/// The bytes of the ledger.
pub const LEDGER_BYTES: usize = (HEADER_WORDS + MOST_CONNECTIONS * PLACE_WORDS) * 8;

/// `VALID`, and this side's QPN; written last.
const QPN: usize = 0;
const OWNER: usize = 1;
/// The peer's QPN, the bytes of payload per packet, and the reads that may be under way.
const PEER: usize = 2;
/// The numbers of the communication manager.
const IDS: usize = 3;
const TRANSACTION: usize = 4;
/// Protocol and port of the peer's endpoint, and the UDP port that packets come from.
const PORTS: usize = 5;
/// IP addresses, two words each.
const PEER_IP: usize = 6;
const OWN_IP: usize = 8;
const PEER_MAC: usize = 10;
const OWN_MAC: usize = 11;
/// `VALID` if there is a slot, the slot behind the last acknowledged one, and the number of the
/// packet that comes next.
const ACKNOWLEDGED: usize = 16;
/// The number of the last probe, a packet that asks whether the peer is there.
const PROBE: usize = 17;
/// The peer's next packet, and the number of its complete requests.
const EXPECTED: usize = 18;
/// Its write that is under way: key and length, address, and first packet with `VALID`.
const WRITING: usize = 19;
/// A message that is put into the endpoint's queue: its packet, and its index there.
const DELIVERY: usize = 22;

const VALID: u64 = 1 << 63;
const PSN_BITS: u32 = 24;
const PSN_MASK: u64 = (1 << PSN_BITS) - 1;

/// A connection as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) qpn: u32,
    pub(super) owner: EndpointName,
    pub(super) peer: OobAddress,
    pub(super) path: Path,
    pub(super) destination: u32,
    pub(super) mtu: u32,
    pub(super) reads: u32,
    pub(super) local_id: u32,
    pub(super) remote_id: u32,
    pub(super) transaction: u64,
    pub(super) acknowledged: Acknowledged,
    pub(super) probe: Option<Psn>,
    pub(super) progress: Progress,
    /// The packet and the index of the last message for the endpoint's queue.
    pub(super) delivery: Option<(Psn, u32)>,
}

/// How far the requests of the endpoint here are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// The slot behind the last one that is.
    pub(super) slot: Option<u32>,
    /// The number of the packet that comes next.
    pub(super) next: Psn,
}

/// The ledger of connections with other hosts.
#[derive(Debug)]
pub(crate) struct RemoteLedger {
    words: OwnWords,
    free: Vec<u32>,
}

impl RemoteLedger {
    /// Takes over the memory, new or of an earlier server. Also returns what that recorded.
    pub(super) fn open(region: Region) -> (RemoteLedger, Vec<(u32, Recorded)>) {
        let words = own_words(region);
        let is_known = words.get(0) == LAYOUT;
        let mut ledger = RemoteLedger { words, free: Vec::new() };
        let mut all = Vec::new();
        for place in (0..MOST_CONNECTIONS as u32).rev() {
            match ledger.read(place).filter(|_| is_known) {
                Some(recorded) => all.push((place, recorded)),
                None => ledger.remove(place),
            }
        }
        // Last: the successor of a server that is killed before this clears the places again.
        ledger.words.publish(0, LAYOUT);
        (ledger, all)
    }

    fn at(place: u32, word: usize) -> usize {
        HEADER_WORDS + place as usize * PLACE_WORDS + word
    }

    fn get(&self, place: u32, word: usize) -> u64 {
        self.words.get(RemoteLedger::at(place, word))
    }

    fn store(&mut self, place: u32, word: usize, value: u64) {
        self.words.store(RemoteLedger::at(place, word), value);
    }

    fn publish(&mut self, place: u32, word: usize, value: u64) {
        self.words.publish(RemoteLedger::at(place, word), value);
    }

    /// Records a new connection. Returns its place; `None` if there is none.
    pub(super) fn add(&mut self, one: &Recorded) -> Option<u32> {
        let place = self.free.pop()?;
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let peer =
            u64::from(one.destination) | u64::from(one.mtu) << 24 | u64::from(one.reads) << 48;
        let ports = u64::from(one.peer.protocol) << 32
            | u64::from(one.peer.port) << 16
            | u64::from(one.path.source_port);
        for (word, value) in [
            (OWNER, pair(one.owner.session, one.owner.endpoint)),
            (PEER, peer),
            (IDS, pair(one.local_id, one.remote_id)),
            (TRANSACTION, one.transaction),
            (PORTS, ports),
            (PEER_MAC, mac_word(one.path.destination_mac)),
            (OWN_MAC, mac_word(one.path.source_mac)),
            (PROBE, 0),
            (DELIVERY, 0),
        ] {
            self.store(place, word, value);
        }
        for (word, ip) in [(PEER_IP, one.path.destination), (OWN_IP, one.path.source)] {
            let bits = u128::from_be_bytes(cm::gid_of(ip));
            self.store(place, word, (bits >> 64) as u64);
            self.store(place, word + 1, bits as u64);
        }
        self.acknowledge(place, &one.acknowledged);
        self.set_progress(place, &one.progress);
        self.publish(place, QPN, VALID | u64::from(one.qpn));
        Some(place)
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, place: u32) {
        // A reader of what a later connection stores here also sees that this one is gone.
        self.words.publish_ahead(RemoteLedger::at(place, QPN), 0);
        self.free.push(place);
    }

    /// Records how far the requests of the endpoint here are acknowledged.
    pub(super) fn acknowledge(&mut self, place: u32, to: &Acknowledged) {
        let slot = to.slot.map_or(0, |slot| VALID | u64::from(slot) << PSN_BITS);
        self.publish(place, ACKNOWLEDGED, slot | u64::from(to.next.number()));
    }

    /// Records the last probe.
    pub(super) fn set_probe(&mut self, place: u32, psn: Psn) {
        self.publish(place, PROBE, VALID | u64::from(psn.number()));
    }

    /// Records that the last probe is acknowledged.
    pub(super) fn clear_probe(&mut self, place: u32) {
        self.publish(place, PROBE, 0);
    }

    /// Records how far the peer's requests are carried out.
    pub(super) fn set_progress(&mut self, place: u32, progress: &Progress) {
        if let Some(Writing { range, first }) = progress.writing {
            let word = VALID | u64::from(first.number());
            if self.get(place, WRITING + 2) != word {
                self.publish(place, WRITING + 2, 0);
                self.store(place, WRITING, u64::from(range.key) << 32 | range.len);
                self.store(place, WRITING + 1, range.address);
                self.publish(place, WRITING + 2, word);
            }
        }
        let expected = u64::from(progress.expected.number());
        self.publish(place, EXPECTED, u64::from(progress.messages) << PSN_BITS | expected);
        if progress.writing.is_none() {
            self.publish(place, WRITING + 2, 0);
        }
    }

    /// Records that a message is about to be put into the endpoint's queue.
    pub(super) fn deliver(&mut self, place: u32, psn: Psn, index: u32) {
        let psn = u64::from(psn.number()) << 32;
        self.publish(place, DELIVERY, VALID | psn | u64::from(index));
    }

    fn read(&self, place: u32) -> Option<Recorded> {
        read_place(|word| self.get(place, word))
    }
}

/// Returns the peers of all connections by this side's QPNs, with the endpoints that have them, for a
/// report of another thread than the engine's. A connection that begins or ends meanwhile may be
/// missing.
pub fn peers(words: &PeerWords) -> HashMap<u32, (EndpointName, OobAddress)> {
    let peer = |place| {
        let read = |qpn| {
            let word = |word| words.fetch(RemoteLedger::at(place, word));
            (qpn & VALID != 0).then(|| ((qpn & !VALID) as u32, (owner_of(word), peer_of(word))))
        };
        // A QPN is random: a place does not get the same one again meanwhile.
        words.observe_around(RemoteLedger::at(place, QPN), read).flatten()
    };
    (0..MOST_CONNECTIONS as u32).filter_map(peer).collect()
}

/// Returns the endpoint of a place, of which `word` returns a word.
fn owner_of(word: impl Fn(usize) -> u64) -> EndpointName {
    let owner = word(OWNER);
    EndpointName { session: (owner >> 32) as u32, endpoint: owner as u32 }
}

/// Returns the peer's address. A place's first words are stored once, those of each packet are on other
/// lines.
fn peer_of(word: impl Fn(usize) -> u64) -> OobAddress {
    let ports = word(PORTS);
    OobAddress {
        ip: ip_of(&word, PEER_IP),
        protocol: (ports >> 32) as u8,
        port: (ports >> 16) as u16,
    }
}

fn ip_of(word: impl Fn(usize) -> u64, at: usize) -> IpAddr {
    let bits = u128::from(word(at)) << 64 | u128::from(word(at + 1));
    cm::ip_of_gid(&Ipv6Addr::from_bits(bits).octets())
}

/// Reads a place of the ledger, of which `word` returns a word.
fn read_place(word: impl Fn(usize) -> u64) -> Option<Recorded> {
    let valid = |value: u64| (value & VALID != 0).then_some(value & !VALID);
    let psn = |value: u64| Psn::new((value & PSN_MASK) as u32);
    let qpn = valid(word(QPN))? as u32;
    let (peer, ids, ports) = (word(PEER), word(IDS), word(PORTS));
    let path = Path {
        source_mac: mac_of(word(OWN_MAC)),
        destination_mac: mac_of(word(PEER_MAC)),
        source: ip_of(&word, OWN_IP),
        destination: ip_of(&word, PEER_IP),
        source_port: ports as u16,
        ecn: true,
    };
    let mtu = (peer >> 24) as u32 & 0xff_ffff;
    if !mtu.is_power_of_two() {
        return None;
    }
    let (acknowledged, expected) = (word(ACKNOWLEDGED), word(EXPECTED));
    let slot = valid(acknowledged).map(|value| (value >> PSN_BITS) as u32);
    let expected_psn = psn(expected);
    let writing = valid(word(WRITING + 2)).map(psn).and_then(|first| {
        let (named, address) = (word(WRITING), word(WRITING + 1));
        let range = Range { key: (named >> 32) as u32, address, len: named & 0xffff_ffff };
        let done = first.to(expected_psn);
        let is_under_way = done > 0 && u64::from(done.unsigned_abs()) * u64::from(mtu) < range.len;
        is_under_way.then_some(Writing { range, first })
    });
    let messages = (expected >> PSN_BITS) as u32 & 0xff_ffff;
    Some(Recorded {
        qpn,
        owner: owner_of(&word),
        peer: peer_of(&word),
        path,
        destination: (peer & PSN_MASK) as u32,
        mtu,
        reads: (peer >> 48) as u32,
        local_id: (ids >> 32) as u32,
        remote_id: ids as u32,
        transaction: word(TRANSACTION),
        acknowledged: Acknowledged { slot, next: psn(acknowledged) },
        probe: valid(word(PROBE)).map(psn),
        progress: Progress { expected: expected_psn, messages, writing },
        delivery: valid(word(DELIVERY)).map(|value| (psn(value >> 32), value as u32)),
    })
}

fn mac_word(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn mac_of(word: u64) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
    [a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use towpath_memory::peer_words;

    use super::*;

    fn recorded(qpn: u32, ip: [&str; 2]) -> Recorded {
        let [source, destination]: [IpAddr; 2] = ip.map(|ip| ip.parse().unwrap());
        let path = Path {
            source_mac: [2, 3, 4, 5, 6, 7],
            destination_mac: [8, 9, 10, 11, 12, 13],
            source,
            destination,
            source_port: 0xc123,
            ecn: true,
        };
        Recorded {
            qpn,
            owner: EndpointName { session: 77, endpoint: 3 },
            peer: OobAddress { ip: destination, protocol: 6, port: 7174 },
            path,
            destination: 0xab_cdef,
            mtu: 4096,
            reads: 16,
            local_id: 0x1234_5678,
            remote_id: u32::MAX,
            transaction: u64::MAX,
            acknowledged: Acknowledged { slot: None, next: Psn::new(0xff_ffff) },
            probe: None,
            progress: Progress { expected: Psn::new(9), messages: 0xff_fffe, writing: None },
            delivery: None,
        }
    }

    /// Returns the ledger, and two further views of its memory: one for reports, and one for the next
    /// server.
    fn ledger() -> (RemoteLedger, PeerWords, impl Fn() -> Vec<(u32, Recorded)>) {
        let file = towpath_memory::SharedFile::create("ledger", LEDGER_BYTES).unwrap();
        let region = file.map_writable().unwrap();
        let view = peer_words(region.mapping());
        let (ledger, left) = RemoteLedger::open(region);
        assert!(left.is_empty());
        (ledger, view, move || RemoteLedger::open(file.map_writable().unwrap()).1)
    }

    #[test]
    fn the_next_server_reads_what_was_recorded() {
        let (mut ledger, view, next) = ledger();
        let one = recorded(2, ["192.0.2.1", "192.0.2.2"]);
        let mut other = recorded(0xff_ffff, ["2001:db8::1", "2001:db8::2"]);
        let (first, second) = (ledger.add(&one).unwrap(), ledger.add(&other).unwrap());
        other.acknowledged = Acknowledged { slot: Some(u32::MAX), next: Psn::new(0) };
        ledger.acknowledge(second, &other.acknowledged);
        other.probe = Some(Psn::new(0));
        ledger.set_probe(second, Psn::new(0));
        let range = Range { key: 5, address: 1 << 40, len: 10_000 };
        let writing = Some(Writing { range, first: Psn::new(0xff_ffff) });
        other.progress = Progress { expected: Psn::new(1), messages: 0, writing };
        ledger.set_progress(second, &other.progress);
        other.delivery = Some((Psn::new(7), 0xffff_fff0));
        ledger.deliver(second, Psn::new(7), 0xffff_fff0);
        let mut left = next();
        left.sort_by_key(|one| one.0 != first);
        assert_eq!(left, [(first, one), (second, other)]);
        let listed = |one: &Recorded| (one.qpn, (one.owner, one.peer));
        assert_eq!(peers(&view), HashMap::from([listed(&one), listed(&other)]));
        // The last packet of the write ends it.
        other.progress = Progress { expected: Psn::new(2), messages: 1, writing: None };
        ledger.set_progress(second, &other.progress);
        ledger.remove(first);
        assert_eq!(peers(&view), HashMap::from([listed(&other)]));
        assert_eq!(next(), [(second, other)]);
    }

    #[test]
    fn places_are_used_again_and_another_layout_is_not_read() {
        let (mut ledger, _, next) = ledger();
        let one = recorded(2, ["192.0.2.1", "192.0.2.2"]);
        let places: Vec<u32> = (0..MOST_CONNECTIONS).map(|_| ledger.add(&one).unwrap()).collect();
        assert_eq!(ledger.add(&one), None);
        ledger.remove(places[7]);
        assert_eq!(ledger.add(&one), Some(places[7]));
        ledger.words.publish(0, LAYOUT + 1);
        assert!(next().is_empty());
    }
}
