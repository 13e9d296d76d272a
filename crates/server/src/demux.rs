//! Demultiplexing: which endpoint a packet is for.
//!
//! A flow rule names the local side of a packet, destination of what comes in and source of what
//! goes out, and may name the remote one. It has eight fields, and any may be left out:
//!
//! | field | left out |
//! |---|---|
//! | MAC address | any; for administrators |
//! | VLAN | any and none; "none" is a value of the field |
//! | ethertype, protocol | any |
//! | local IP address, local port | any; also packets that have none |
//! | remote IP address, remote port | any; also packets that have none |
//!
//! **Which of several matching rules wins** depends on what they give, never on when they came: one
//! that gives more fields before one that gives fewer; of as many fields, the one that has the
//! strongest of those in which they differ, and remote port is stronger than remote IP address,
//! then port, IP address, protocol, ethertype, VLAN, MAC address. Two rules that give the same
//! fields and match the same packet are the same rule, and the second one is refused.
//!
//! **What a lookup costs.** Rules that give the same fields share one hash table. The packet's MAC
//! address leads to the tables that its rules are in, and these and those of rules without a MAC
//! address are asked in the order of precedence: at most [`SETS_PER_MAC`] each, in practice one to
//! three, however many other sessions' rules there are. So who opens endpoints of many kinds slows
//! down what is for its own address, within that bound, and nobody else. Where the device's rules
//! together give no more than two sets of fields, both are asked at once. Packets that come in
//! trains are spared all of it by the last-flow [cache](FlowCache).
//!
//! **Broadcast and multicast** go to every endpoint that asked for them and whose rule matches but for
//! the local addresses. They are found in hash tables of their own, one for each set of the other
//! fields that members' rules give, at most `GROUP_TABLES`: a packet looks at no rule of other
//! ports, protocols or VLANs, however many there are.

mod cache;
mod groups;
mod hash;
mod rule;
mod sets;
#[cfg(test)]
mod tests;

use towpath_packet::headers::Headers;
use towpath_packet::plain::Plain;

use cache::Last;
use groups::Groups;
use hash::Table;
use rule::{FIELD_SETS, Fields, Key, Looked, MAC_BITS, PLACES, REMOTE_IP, mask, masked};

pub use cache::{FlowCache, FlowCounts, REST, WINDOW};

pub use rule::{Rule, Vlan};
pub(crate) use sets::SETS_PER_MAC;
pub(crate) use sets::Sets;

/// An endpoint, named by session and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// The session's place in the engine.
    pub session: u32,
    /// The endpoint's number in its session.
    pub endpoint: u32,
}

/// Which way a packet goes. Each has a last flow of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the device.
    Received = 0,
    /// From an application.
    Sent = 1,
}

/// Whether a MAC address is broadcast or multicast.
#[inline]
#[must_use]
pub(crate) fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Tables that are asked at once, without the way by the MAC address, if there are no more.
const FEW: usize = 2;

/// Sets of fields, by their places: a bit each.
type Places = [u64; FIELD_SETS / 64];

fn places(sets: impl Iterator<Item = Fields>) -> Places {
    let mut places = Places::default();
    for fields in sets {
        let place = usize::from(PLACES[usize::from(fields)]);
        places[place / 64] |= 1 << (place % 64);
    }
    places
}

/// The rules that give the same fields.
#[derive(Debug)]
struct Rules {
    fields: Fields,
    mask: Key,
    /// Those without a remote IP address,
    local: Table<4, Destination>,
    /// and those with one.
    remote: Table<6, Destination>,
}

impl Rules {
    fn new(fields: Fields) -> Rules {
        let (local, remote) = (Table::default(), Table::default());
        Rules { fields, mask: mask(fields), local, remote }
    }

    #[inline]
    fn lookup(&self, seed: u64, key: &Key) -> Option<Destination> {
        if self.fields & REMOTE_IP == 0 {
            self.local.lookup(seed, &masked(key, &self.mask))
        } else {
            self.remote.lookup(seed, &masked(key, &self.mask))
        }
    }

    fn insert(&mut self, seed: u64, key: &Key, destination: Destination) -> bool {
        if self.fields & REMOTE_IP == 0 {
            self.local.insert(seed, masked(key, &self.mask), destination)
        } else {
            self.remote.insert(seed, masked(key, &self.mask), destination)
        }
    }

    fn remove(&mut self, seed: u64, key: &Key, destination: Destination) -> bool {
        let theirs = |found: &Destination| *found == destination;
        if self.fields & REMOTE_IP == 0 {
            self.local.remove(seed, &masked(key, &self.mask), theirs)
        } else {
            self.remote.remove(seed, &masked(key, &self.mask), theirs)
        }
    }
}

/// All flow rules of a device.
#[derive(Debug)]
pub struct FlowTable {
    /// By place.
    rules: Vec<Rules>,
    /// The tables that each MAC address' rules are in.
    macs: Table<1, Places>,
    /// The tables of rules without a MAC address.
    without_mac: Places,
    /// The places of all tables with rules, where they are so few that the MAC address needs not be
    /// asked; else nothing.
    few: Option<Vec<u8>>,
    /// What any rule asks for: the rest of a packet makes no difference.
    counts: Key,
    fields: Fields,
    sets: Sets,
    last: [Last; 2],
    /// Who receives broadcast and multicast.
    groups: Groups,
    /// Endpoints that receive every packet of the device.
    pub promiscuous: Vec<Destination>,
    /// Endpoints that receive a copy of every packet in either direction.
    pub captures: Vec<Destination>,
    /// As if there were such endpoints, even where there are none.
    pub assumes_taps: bool,
    seed: u64,
}

impl FlowTable {
    /// An empty table. The seed keeps a peer that may choose rules from choosing colliding ones.
    #[must_use]
    pub fn new(seed: u64, cache: FlowCache) -> FlowTable {
        let mut rules: Vec<Rules> = (0..=Fields::MAX).map(Rules::new).collect();
        rules.sort_by_key(|one| PLACES[usize::from(one.fields)]);
        FlowTable {
            rules,
            macs: Table::default(),
            without_mac: Places::default(),
            few: Some(Vec::new()),
            counts: Key::default(),
            fields: 0,
            sets: Sets::default(),
            last: [Last::new(cache), Last::new(cache)],
            groups: Groups::default(),
            promiscuous: Vec::new(),
            captures: Vec::new(),
            assumes_taps: false,
            seed,
        }
    }

    /// Changes the cache's setting.
    pub fn set_cache(&mut self, setting: FlowCache) {
        for last in &mut self.last {
            last.set(setting);
        }
    }

    /// What lookups came to, of one way.
    #[must_use]
    pub fn counts(&self, way: Way) -> FlowCounts {
        self.last[way as usize].counts()
    }

    /// Adds a rule. Answers `false`, and changes nothing, when somebody has the same, or when the
    /// rules of its MAC address give [`SETS_PER_MAC`] other sets of fields already.
    pub fn insert(&mut self, rule: &Rule, group: bool, destination: Destination) -> bool {
        if !self.sets.has_room(rule) {
            return false;
        }
        let place = usize::from(PLACES[usize::from(rule.given())]);
        if !self.rules[place].insert(self.seed, &rule.key(), destination) {
            return false;
        }
        self.sets.add(rule);
        self.tables_changed(rule);
        if group {
            self.groups.insert(self.seed, rule, destination);
        }
        true
    }

    /// Takes a rule away.
    pub fn remove(&mut self, rule: &Rule, destination: Destination) {
        let place = usize::from(PLACES[usize::from(rule.given())]);
        if self.rules[place].remove(self.seed, &rule.key(), destination) {
            self.sets.remove(rule);
            self.tables_changed(rule);
        }
        self.groups.remove(self.seed, rule, destination);
    }

    /// A rule came or went: which tables are to be asked.
    fn tables_changed(&mut self, rule: &Rule) {
        let theirs = places(self.sets.of(rule.mac));
        match rule.mac {
            None => self.without_mac = theirs,
            Some(_) => {
                let key = [rule.key()[0] & MAC_BITS];
                self.macs.remove(self.seed, &key, |_| true);
                if theirs != Places::default() {
                    self.macs.insert(self.seed, key, theirs);
                }
            }
        }
        let mut all: Vec<u8> = self.sets.all().map(|fields| PLACES[usize::from(fields)]).collect();
        all.sort_unstable();
        self.few = (all.len() <= FEW).then_some(all);
        self.fields = self.sets.all().fold(0, |all, fields| all | fields);
        self.counts = mask(self.fields);
        for last in &mut self.last {
            last.forget();
        }
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
        self.promiscuous.is_empty() && self.captures.is_empty() && !self.assumes_taps
    }

    /// The endpoint whose rule matches the packet's destination, the most specific rule first.
    #[inline]
    #[must_use]
    pub fn lookup(&mut self, way: Way, headers: &Headers) -> Option<Destination> {
        self.look_up(way, &Looked::of_packet(headers))
    }

    /// The same for a plain packet.
    #[inline]
    #[must_use]
    pub fn lookup_plain(&mut self, way: Way, packet: &Plain) -> Option<Destination> {
        self.look_up(way, &Looked::of_plain(packet))
    }

    #[inline]
    fn look_up(&mut self, way: Way, looked: &Looked) -> Option<Destination> {
        let last = &mut self.last[way as usize];
        last.count(self.few.is_some());
        if !last.compares {
            return self.find(looked);
        }
        // Packets that differ in nothing that any rule asks for are of one flow.
        let looked =
            Looked { key: masked(&looked.key, &self.counts), has: looked.has & self.fields };
        if let Some(found) = last.ask(&looked) {
            return found;
        }
        let found = self.find(&looked);
        self.last[way as usize].remember(&looked, found);
        found
    }

    #[inline]
    fn find(&self, looked: &Looked) -> Option<Destination> {
        let Some(few) = &self.few else { return self.find_by_mac(looked) };
        few.iter().find_map(|place| self.find_in(usize::from(*place), looked))
    }

    #[inline(never)]
    fn find_by_mac(&self, looked: &Looked) -> Option<Destination> {
        let mut places = self.without_mac;
        if let Some(theirs) = self.macs.lookup(self.seed, &[looked.key[0] & MAC_BITS]) {
            for (all, theirs) in places.iter_mut().zip(theirs) {
                *all |= theirs;
            }
        }
        for (number, mut word) in places.into_iter().enumerate() {
            while word != 0 {
                let place = number * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                if let Some(found) = self.find_in(place, looked) {
                    return Some(found);
                }
            }
        }
        None
    }

    #[inline]
    fn find_in(&self, place: usize, looked: &Looked) -> Option<Destination> {
        let rules = &self.rules[place];
        // Most packets have all that there is to ask for.
        if rules.fields & !looked.has != 0 {
            return None;
        }
        rules.lookup(self.seed, &looked.key)
    }

    /// Appends everybody that receives a broadcast or multicast packet, in their order.
    #[inline]
    pub fn members(&self, headers: &Headers, found: &mut Vec<Destination>) {
        if !self.groups.is_empty() {
            self.groups.append(self.seed, &Looked::of_packet(headers), found);
        }
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.iter().map(|rules| rules.local.used() + rules.remote.used()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
