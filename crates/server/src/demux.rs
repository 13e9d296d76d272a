//! Demultiplexing: which endpoint a packet is for.
//!
//! A flow rule names the local side of a packet: destination of what comes in, source of what goes
//! out. MAC address and VLAN always count; ethertype, IP address, protocol and port where given.
//! Rules that give the same fields share one hash table, and a lookup asks the tables of the
//! more specific ones first: at most sixteen, in practice two or three.

use std::net::IpAddr;

use towpath_packet::headers::{Headers, Network};
use towpath_packet::plain::{Key, Plain, kind, link};

/// What a packet must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Local MAC address.
    pub mac: [u8; 6],
    /// VLAN, or `None` for packets without.
    pub vlan: Option<u16>,
    /// Ethertype, if it counts.
    pub ethertype: Option<u16>,
    /// Local IP address, if it counts.
    pub ip: Option<IpAddr>,
    /// IP protocol, if it counts.
    pub protocol: Option<u8>,
    /// Local port, if it counts; only with a protocol.
    pub port: Option<u16>,
}

/// An endpoint, named by session and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The session's place in the engine.
    pub session: u32,
    /// The endpoint's number in its session.
    pub endpoint: u32,
}

const ETHERTYPE: u8 = 1;
const PROTOCOL: u8 = 2;
const IP: u8 = 4;
const PORT: u8 = 8;

/// What of a packet rules can ask for.
#[derive(Clone, Copy)]
struct Fields {
    link: u64,
    ethertype: u16,
    protocol: u8,
    ip_version: u8,
    port: u16,
    ip: u128,
    has: u8,
}

impl Fields {
    fn of_rule(rule: &Rule) -> Fields {
        let mut has = 0;
        let (ip_version, ip) = match rule.ip {
            None => (0, 0),
            Some(IpAddr::V4(ip)) => (4, u128::from(ip.to_bits())),
            Some(IpAddr::V6(ip)) => (6, ip.to_bits()),
        };
        has |= if rule.ethertype.is_some() { ETHERTYPE } else { 0 };
        has |= if rule.protocol.is_some() { PROTOCOL } else { 0 };
        has |= if rule.ip.is_some() { IP } else { 0 };
        has |= if rule.port.is_some() { PORT } else { 0 };
        Fields {
            link: link(rule.mac, rule.vlan),
            ethertype: rule.ethertype.unwrap_or(0),
            protocol: rule.protocol.unwrap_or(0),
            ip_version,
            port: rule.port.unwrap_or(0),
            ip,
            has,
        }
    }

    /// The destination side of a packet.
    #[inline]
    fn of_packet(headers: &Headers) -> Fields {
        let mut fields = Fields {
            link: link(headers.destination, headers.vlan),
            ethertype: headers.ethertype,
            protocol: 0,
            ip_version: 0,
            port: 0,
            ip: 0,
            has: ETHERTYPE,
        };
        let transport = match &headers.network {
            Network::Ipv4(ip) => {
                fields.ip = u128::from(ip.destination);
                fields.protocol = ip.protocol;
                fields.ip_version = 4;
                fields.has |= IP | PROTOCOL;
                &ip.transport
            }
            Network::Ipv6(ip) => {
                fields.ip = ip.destination;
                fields.protocol = ip.protocol;
                fields.ip_version = 6;
                fields.has |= IP | PROTOCOL;
                &ip.transport
            }
            Network::Arp(_) | Network::Other => return fields,
        };
        if let Some((_, destination)) = transport.ports() {
            fields.port = destination;
            fields.has |= PORT;
        }
        fields
    }

    /// All of it as a key; a table's mask leaves what its rules ask for.
    #[inline]
    fn key(&self) -> Key {
        [
            self.link,
            kind(self.ethertype, self.protocol, self.ip_version, self.port),
            self.ip as u64,
            (self.ip >> 64) as u64,
        ]
    }
}

/// What of a key counts in a table of rules that give these fields.
const fn mask(fields: u8) -> Key {
    const fn keep(given: bool, bits: u64) -> u64 {
        if given { bits } else { 0 }
    }
    let ip = fields & IP != 0;
    [
        u64::MAX,
        keep(fields & ETHERTYPE != 0, 0xffff)
            | keep(fields & PROTOCOL != 0, 0xff << 16)
            | keep(ip, 0xff << 24)
            | keep(fields & PORT != 0, 0xffff << 32),
        keep(ip, u64::MAX),
        keep(ip, u64::MAX),
    ]
}

#[inline]
fn masked(key: &Key, mask: &Key) -> Key {
    [key[0] & mask[0], key[1] & mask[1], key[2] & mask[2], key[3] & mask[3]]
}

/// Whether a MAC address is broadcast or multicast.
#[inline]
#[must_use]
pub fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Who receives broadcast and multicast.
#[derive(Clone, Copy, Debug)]
struct Member {
    vlan: Option<u16>,
    ethertype: Option<u16>,
    protocol: Option<u8>,
    port: Option<u16>,
    destination: Destination,
}

/// The rules that give the same fields.
#[derive(Debug)]
struct Rules {
    has: u8,
    mask: Key,
    table: Table,
}

/// All flow rules of a device.
#[derive(Debug)]
pub struct FlowTable {
    tables: Vec<Rules>,
    members: Vec<Member>,
    /// Endpoints that receive every packet of the device.
    pub promiscuous: Vec<Destination>,
    /// Endpoints that receive a copy of every packet in either direction.
    pub captures: Vec<Destination>,
    seed: u64,
}

impl FlowTable {
    /// An empty table. The seed keeps a peer that may choose rules from choosing colliding ones.
    #[must_use]
    pub fn new(seed: u64) -> FlowTable {
        FlowTable {
            tables: Vec::new(),
            members: Vec::new(),
            promiscuous: Vec::new(),
            captures: Vec::new(),
            seed,
        }
    }

    /// Adds a rule. Answers `false`, and changes nothing, when somebody has the same.
    pub fn insert(&mut self, rule: &Rule, group: bool, destination: Destination) -> bool {
        let fields = Fields::of_rule(rule);
        let place = match self.tables.iter().position(|rules| rules.has == fields.has) {
            Some(place) => place,
            None => {
                let place = self
                    .tables
                    .iter()
                    .position(|rules| specificity(rules.has) < specificity(fields.has))
                    .unwrap_or(self.tables.len());
                let (has, mask) = (fields.has, mask(fields.has));
                self.tables.insert(place, Rules { has, mask, table: Table::default() });
                place
            }
        };
        if !self.tables[place].table.insert(self.seed, fields.key(), destination) {
            return false;
        }
        if group {
            self.members.push(Member {
                vlan: rule.vlan,
                ethertype: rule.ethertype,
                protocol: rule.protocol,
                port: rule.port,
                destination,
            });
        }
        true
    }

    /// Takes a rule away.
    pub fn remove(&mut self, rule: &Rule, destination: Destination) {
        let fields = Fields::of_rule(rule);
        if let Some(place) = self.tables.iter().position(|rules| rules.has == fields.has) {
            let table = &mut self.tables[place].table;
            table.remove(self.seed, fields.key(), destination);
            if table.used == 0 {
                self.tables.remove(place);
            }
        }
        self.members.retain(|member| member.destination != destination);
    }

    /// Takes away what an endpoint has beside its rule.
    pub fn remove_taps(&mut self, destination: Destination) {
        self.promiscuous.retain(|one| *one != destination);
        self.captures.retain(|one| *one != destination);
    }

    /// Whether nobody gets packets beside those that rules name.
    #[inline]
    #[must_use]
    pub fn has_no_taps(&self) -> bool {
        self.promiscuous.is_empty() && self.captures.is_empty()
    }

    /// The endpoint whose rule matches the packet's destination, the most specific rule first.
    #[inline]
    #[must_use]
    pub fn lookup(&self, headers: &Headers) -> Option<Destination> {
        let fields = Fields::of_packet(headers);
        self.find(&fields.key(), fields.has)
    }

    /// The same for a plain packet.
    #[inline]
    #[must_use]
    pub fn lookup_plain(&self, packet: &Plain) -> Option<Destination> {
        self.find(&packet.destination, ETHERTYPE | PROTOCOL | IP | PORT)
    }

    #[inline]
    fn find(&self, key: &Key, has: u8) -> Option<Destination> {
        for rules in &self.tables {
            if rules.has & !has == 0
                && let Some(found) = rules.table.lookup(self.seed, &masked(key, &rules.mask))
            {
                return Some(found);
            }
        }
        None
    }

    /// Appends everybody that receives a broadcast or multicast packet.
    pub fn members(&self, headers: &Headers, found: &mut Vec<Destination>) {
        let fields = Fields::of_packet(headers);
        for member in &self.members {
            if member.vlan == headers.vlan
                && member.ethertype.is_none_or(|ethertype| ethertype == headers.ethertype)
                && member.protocol.is_none_or(|protocol| {
                    fields.has & PROTOCOL != 0 && protocol == fields.protocol
                })
                && member.port.is_none_or(|port| fields.has & PORT != 0 && port == fields.port)
            {
                found.push(member.destination);
            }
        }
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.iter().map(|rules| rules.table.used).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

/// Port before address before protocol before ethertype.
fn specificity(has: u8) -> (u32, u8) {
    (has.count_ones(), has)
}

/// A hash table with open addressing, at most half full.
#[derive(Debug, Default)]
struct Table {
    slots: Vec<Option<(Key, Destination)>>,
    used: usize,
}

#[inline]
fn hash(seed: u64, key: &Key) -> usize {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let low = fold(key[0] ^ seed, key[1] ^ MIX);
    let high = fold(key[2] ^ seed.rotate_left(32), key[3] ^ MIX);
    fold(low ^ seed, high ^ MIX) as usize
}

/// Word by word: a comparison of all at once would wait until the key, just written in words, has
/// reached the cache.
#[inline]
fn same(found: &Key, key: &Key) -> bool {
    found[0] == key[0] && found[1] == key[1] && found[2] == key[2] && found[3] == key[3]
}

impl Table {
    #[inline]
    fn lookup(&self, seed: u64, key: &Key) -> Option<Destination> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = hash(seed, key) & mask;
        // At most half full: there is always an empty slot to stop at.
        loop {
            match self.slots.get(place)? {
                None => return None,
                Some((found, destination)) if same(found, key) => return Some(*destination),
                Some(_) => place = (place + 1) & mask,
            }
        }
    }

    fn insert(&mut self, seed: u64, key: Key, destination: Destination) -> bool {
        if self.lookup(seed, &key).is_some() {
            return false;
        }
        if (self.used + 1) * 2 > self.slots.len() {
            let larger = (self.slots.len() * 2).max(16);
            let old = std::mem::replace(&mut self.slots, vec![None; larger]);
            for (key, destination) in old.into_iter().flatten() {
                self.place(seed, key, destination);
            }
        }
        self.place(seed, key, destination);
        self.used += 1;
        true
    }

    fn place(&mut self, seed: u64, key: Key, destination: Destination) {
        let mask = self.slots.len() - 1;
        let mut place = hash(seed, &key) & mask;
        while self.slots[place].is_some() {
            place = (place + 1) & mask;
        }
        self.slots[place] = Some((key, destination));
    }

    fn remove(&mut self, seed: u64, key: Key, destination: Destination) {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = hash(seed, &key) & mask;
        loop {
            match self.slots.get(place) {
                None | Some(None) => return,
                Some(Some(found)) if *found == (key, destination) => break,
                Some(Some(_)) => place = (place + 1) & mask,
            }
        }
        self.used -= 1;
        // Those that follow move up, so that no lookup stops before them.
        let mut hole = place;
        let mut next = (place + 1) & mask;
        while let Some((key, _)) = self.slots[next] {
            let home = hash(seed, &key) & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn rule(mac: u8) -> Rule {
        Rule {
            mac: [2, 0, 0, 0, 0, mac],
            vlan: None,
            ethertype: None,
            ip: None,
            protocol: None,
            port: None,
        }
    }

    fn to(endpoint: u32) -> Destination {
        Destination { session: 0, endpoint }
    }

    fn udp(mac: u8, port: u16) -> Headers {
        let flow = towpath_packet::build::Flow {
            destination_mac: [2, 0, 0, 0, 0, mac],
            destination_port: port,
            ..towpath_packet::build::Flow::v4()
        };
        let frame = flow.udp(b"x");
        Headers::parse(&frame, frame.len()).unwrap()
    }

    #[test]
    fn the_more_specific_rule_wins() {
        let mut table = FlowTable::new(1);
        assert!(table.insert(&rule(1), false, to(0)));
        let port = Rule { protocol: Some(17), port: Some(53), ..rule(1) };
        assert!(table.insert(&port, false, to(1)));
        assert!(!table.insert(&port, false, to(2)), "the same rule twice");
        assert_eq!(table.lookup(&udp(1, 53)), Some(to(1)));
        assert_eq!(table.lookup(&udp(1, 54)), Some(to(0)));
        assert_eq!(table.lookup(&udp(2, 53)), None);
        table.remove(&port, to(2));
        assert_eq!(table.lookup(&udp(1, 53)), Some(to(1)), "somebody else's remove");
        table.remove(&port, to(1));
        assert_eq!(table.lookup(&udp(1, 53)), Some(to(0)));
        table.remove(&rule(1), to(0));
        assert!(table.is_empty());
    }

    #[test]
    fn vlans_are_apart() {
        let mut table = FlowTable::new(1);
        assert!(table.insert(&Rule { vlan: Some(7), ..rule(1) }, true, to(0)));
        assert!(table.insert(&rule(1), true, to(1)));
        let untagged = udp(1, 53);
        let tagged = Headers { vlan: Some(7), ..untagged };
        assert_eq!(table.lookup(&untagged), Some(to(1)));
        assert_eq!(table.lookup(&tagged), Some(to(0)));
        let mut found = Vec::new();
        table.members(&tagged, &mut found);
        assert_eq!(found, [to(0)]);
    }

    proptest! {
        #[test]
        fn a_table_against_a_map(steps in proptest::collection::vec((any::<bool>(), 0..40u64), 1..400)) {
            let mut table = Table::default();
            let mut oracle = HashMap::new();
            for (insert, key) in steps {
                let key = [key, 0, 0, 0];
                if insert {
                    let new = !oracle.contains_key(&key);
                    prop_assert_eq!(table.insert(5, key, to(key[0] as u32)), new);
                    oracle.insert(key, to(key[0] as u32));
                } else {
                    table.remove(5, key, to(key[0] as u32));
                    oracle.remove(&key);
                }
                prop_assert_eq!(table.used, oracle.len());
                for key in 0..40 {
                    let key = [key, 0, 0, 0];
                    prop_assert_eq!(table.lookup(5, &key), oracle.get(&key).copied());
                }
            }
        }
    }
}
