//! Demultiplexing: the engine's choice of the endpoint that receives a packet.
//!
//! A flow rule names the local side of a packet: the destination of a received packet, and the
//! source of a sent one. The rule may also name the remote side. A rule has eight fields and may
//! omit any of them:
//!
//! | field | if omitted |
//! |---|---|
//! | MAC address | any; for administrators |
//! | VLAN | any and none; "none" is a value of the field |
//! | ethertype, protocol | any |
//! | local IP address, local port | any; also packets that have none |
//! | remote IP address, remote port | any; also packets that have none |
//!
//! **Precedence of matching rules** depends on the fields that the rules give, never on their age.
//! A rule with more fields precedes a rule with fewer. Among rules with equally many fields, the
//! table compares the fields in which they differ, and the rule with the strongest of these wins.
//! The order from the strongest field is: remote port, remote IP address, port, IP address,
//! protocol, ethertype, VLAN, MAC address. Two rules that give the same fields and match the same
//! packet are the same rule, and the table refuses the second one.
//!
//! **Cost of a lookup.** Rules that give the same fields share one hash table. The packet's MAC
//! address leads to the tables that hold its rules. The lookup reads these tables, and those of
//! rules without a MAC address, in the order of precedence. It reads at most [`SETS_PER_MAC`] of
//! each kind, in practice one to three, however many rules other sessions have. A session that
//! opens endpoints of many kinds therefore slows down only the packets of its own address, within
//! that bound. If the device's rules together give at most two sets of fields, the lookup reads
//! their tables directly, without the MAC address. Packets that arrive in trains skip the lookup
//! through the last-flow [cache](FlowCache) of their class.
//!
//! **Broadcast and multicast** packets go to every endpoint that asked for them and whose rule
//! matches except for the local addresses. These endpoints are in separate hash tables, one for
//! each set of the other fields that members' rules give, at most `GROUP_TABLES`. A packet reads no
//! rule of other ports, protocols or VLANs, however many exist.

mod cache;
mod companions;
mod destination;
mod groups;
mod hash;
mod rule;
mod rule_table;
mod sets;
#[cfg(test)]
mod tests;

use towpath_packet::FlowRule;
use towpath_packet::headers::Headers;
use towpath_packet::plain::Plain;

use crate::freed::FreedTable;
use cache::{CLASSES, Last, class_of};
use companions::Companions;
use groups::Groups;
use hash::Table;
use rule::{
    Fields, Key, LookupKey, MAC_BITS, REMOTE_IP, TABLE_INDEX, given_fields, mask, masked, rule_key,
};
use rule_table::{Rules, TableSet, table_set};

pub use destination::Destination;

pub use cache::{FlowCache, FlowCounts, REST, WINDOW};

pub use sets::SETS_PER_MAC;
pub use sets::Sets;

/// The direction of a packet. Each direction has its own last flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Received = 0,
    /// From an application.
    Sent = 1,
}

/// Returns `true` if a MAC address is broadcast or multicast.
#[inline]
#[must_use]
pub(crate) fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Returns the place in [`FlowTable::last`] of a direction and a packet's class. `kind` is the second
/// word of the packet's key.
#[inline(always)]
fn place_of(direction: Direction, kind: u64) -> usize {
    (direction as usize * CLASSES) | class_of(kind)
}

/// The number of tables up to which a lookup reads all of them, without the MAC address.
const FEW: usize = 2;

/// All flow rules of a device.
#[derive(Debug)]
pub struct FlowTable {
    /// Rules by table index.
    rules: Vec<Rules>,
    /// The tables that hold each MAC address' rules.
    macs: Table<1, TableSet>,
    /// The tables of rules without a MAC address.
    without_mac: TableSet,
    /// The indices of all tables with rules, if these are so few that a lookup need not use the MAC
    /// address; otherwise `None`.
    few: Option<Vec<u8>>,
    /// The index of the table with rules, if it is the only one and its rules have no remote IP
    /// address.
    only: Option<u8>,
    /// The key bits that any rule asks for; a lookup ignores the rest of a packet.
    counts: Key,
    fields: Fields,
    sets: Sets,
    /// By direction and class of traffic; see [`place_of`].
    last: [Last; 2 * CLASSES],
    /// Receivers of broadcast and multicast packets.
    groups: Groups,
    /// Endpoints that receive every packet of the device.
    promiscuous: Vec<Destination>,
    /// Endpoints that receive a copy of every packet in either direction.
    captures: Vec<Destination>,
    /// `true` if the engine behaves as if such endpoints existed, even where there are none.
    assumes_captures: bool,
    /// Endpoints that get copies of link-control packets.
    companions: Companions,
    /// The freed leases, for packets that no rule matches.
    freed: FreedTable,
    seed: u64,
    /// The number of changes of the rules.
    changes: u64,
}

impl FlowTable {
    /// Creates an empty table. The seed keeps a peer that may choose rules from choosing colliding
    /// ones.
    #[must_use]
    pub fn new(seed: u64, cache: FlowCache) -> FlowTable {
        let mut rules: Vec<Rules> = (0..=Fields::MAX).map(Rules::new).collect();
        rules.sort_by_key(|one| TABLE_INDEX[usize::from(one.fields)]);
        FlowTable {
            rules,
            macs: Table::default(),
            without_mac: TableSet::default(),
            few: Some(Vec::new()),
            only: None,
            counts: Key::default(),
            fields: 0,
            sets: Sets::default(),
            last: std::array::from_fn(|_| Last::new(cache)),
            groups: Groups::default(),
            promiscuous: Vec::new(),
            captures: Vec::new(),
            assumes_captures: false,
            companions: Companions::default(),
            freed: FreedTable::new(seed),
            seed,
            changes: 0,
        }
    }

    #[inline]
    pub(crate) fn freed_mut(&mut self) -> &mut FreedTable {
        &mut self.freed
    }

    /// Registers an endpoint that gets a copy of each link-control packet to the MAC address and the VLAN of its rule.
    pub(crate) fn add_companion(&mut self, rule: &FlowRule, destination: Destination) {
        self.companions.insert(rule, destination);
    }

    /// Appends the endpoints that get a copy of a packet to one host, beside its receivers in `found`.
    #[inline]
    pub(crate) fn append_companions(&self, headers: &Headers, found: &mut Vec<Destination>) {
        if !self.companions.is_empty() {
            self.companions.append(headers, found);
        }
    }

    /// Changes the cache's setting. Each endpoint then forgets its last packet.
    pub fn set_cache(&mut self, setting: FlowCache) {
        self.changes += 1;
        for last in &mut self.last {
            last.set(setting);
        }
    }

    /// Returns the results of lookups in one direction.
    #[must_use]
    pub fn counts(&self, direction: Direction) -> FlowCounts {
        let begin = direction as usize * CLASSES;
        let classes = self.last[begin..begin + CLASSES].iter().map(Last::counts);
        classes.fold(FlowCounts::default(), std::ops::Add::add)
    }

    /// Returns the results of lookups of a packet's class in one direction.
    #[must_use]
    pub fn class_counts(&self, direction: Direction, packet: &Plain) -> FlowCounts {
        self.last[place_of(direction, packet.destination[1])].counts()
    }

    /// Returns the results of all lookups, how many classes of traffic have had some, each direction apart, and
    /// for how many of these the cache is used. Few classes have lookups.
    #[must_use]
    pub(crate) fn summary(&self) -> (FlowCounts, u64, u64) {
        let seen = self.last.iter().filter(|last| last.lookups() > 0);
        seen.fold((FlowCounts::default(), 0, 0), |(counts, seen, used), last| {
            (counts + last.counts(), seen + 1, used + u64::from(last.is_used()))
        })
    }

    /// Adds a rule. Returns `false` and changes nothing if the same rule exists, or if the rules of
    /// its MAC address already give [`SETS_PER_MAC`] other sets of fields.
    pub fn insert(&mut self, rule: &FlowRule, group: bool, destination: Destination) -> bool {
        if !self.sets.has_room(rule) {
            return false;
        }
        let table_index = usize::from(TABLE_INDEX[usize::from(given_fields(rule))]);
        if !self.rules[table_index].insert(self.seed, &rule_key(rule), destination) {
            return false;
        }
        self.sets.add(rule);
        self.tables_changed(rule);
        if group {
            self.groups.insert(self.seed, rule, destination);
        }
        true
    }

    /// Removes a rule.
    pub fn remove(&mut self, rule: &FlowRule, destination: Destination) {
        let table_index = usize::from(TABLE_INDEX[usize::from(given_fields(rule))]);
        if self.rules[table_index].remove(self.seed, &rule_key(rule), destination) {
            self.sets.remove(rule);
            self.tables_changed(rule);
        }
        self.groups.remove(self.seed, rule, destination);
    }

    /// Updates the set of tables that lookups read, after a rule was added or removed.
    fn tables_changed(&mut self, rule: &FlowRule) {
        let theirs = table_set(self.sets.of(rule.mac));
        match rule.mac {
            None => self.without_mac = theirs,
            Some(_) => {
                let key = [rule_key(rule)[0] & MAC_BITS];
                self.macs.remove(self.seed, &key, |_| true);
                if theirs != TableSet::default() {
                    self.macs.insert(self.seed, key, theirs);
                }
            }
        }
        let mut all: Vec<u8> =
            self.sets.all().map(|fields| TABLE_INDEX[usize::from(fields)]).collect();
        all.sort_unstable();
        let local = |index: &u8| self.rules[usize::from(*index)].fields & REMOTE_IP == 0;
        self.only = if let [only] = all[..] { Some(only).filter(local) } else { None };
        self.few = (all.len() <= FEW).then_some(all);
        self.fields = self.sets.all().fold(0, |all, fields| all | fields);
        self.counts = mask(self.fields);
        for last in &mut self.last {
            last.forget();
        }
        self.changes += 1;
    }

    /// Returns the number of changes of the rules so far. The results of lookups stay the same
    /// while it does.
    #[inline]
    #[must_use]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns `true` if the setting of the cache allows to remember the results of lookups.
    #[inline]
    #[must_use]
    pub(crate) fn may_remember(&self, direction: Direction) -> bool {
        self.last[direction as usize * CLASSES].is_allowed()
    }

    /// Removes an endpoint's registrations beside its rule.
    pub(crate) fn remove_captures(&mut self, destination: Destination) {
        self.promiscuous.retain(|one| *one != destination);
        self.captures.retain(|one| *one != destination);
        self.companions.remove(destination);
    }

    /// Registers an endpoint that receives every packet of the device.
    pub fn add_promiscuous(&mut self, destination: Destination) {
        self.promiscuous.push(destination);
    }

    /// Returns the endpoints that receive every packet of the device.
    #[inline]
    #[must_use]
    pub fn promiscuous(&self) -> &[Destination] {
        &self.promiscuous
    }

    /// Registers an endpoint that receives a copy of every packet in either direction.
    pub fn add_capture(&mut self, destination: Destination) {
        self.captures.push(destination);
    }

    /// Returns the endpoints that receive a copy of every packet in either direction.
    #[inline]
    #[must_use]
    pub fn captures(&self) -> &[Destination] {
        &self.captures
    }

    /// Makes the engine behave as if such endpoints existed.
    pub fn assume_captures(&mut self, assumed: bool) {
        self.assumes_captures = assumed;
    }

    /// Returns `true` if only endpoints named by rules receive packets.
    #[inline]
    #[must_use]
    pub(crate) fn has_no_captures(&self) -> bool {
        self.promiscuous.is_empty() && self.captures.is_empty() && !self.assumes_captures
    }

    /// Returns the endpoint whose rule matches the packet's destination; the most specific rule
    /// wins.
    #[inline]
    #[must_use]
    pub fn lookup(&mut self, direction: Direction, headers: &Headers) -> Option<Destination> {
        self.look_up(direction, &LookupKey::of_packet(headers))
    }

    /// Does the same for a plain packet.
    #[inline(always)]
    #[must_use]
    pub fn lookup_plain(&mut self, direction: Direction, packet: &Plain) -> Option<Destination> {
        let Some(only) = self.only else {
            return self.look_up(direction, &LookupKey::of_plain(packet));
        };
        let last = &mut self.last[place_of(direction, packet.destination[1])];
        let rules = &self.rules[usize::from(only)];
        last.count(|| true);
        // A plain packet has every field.
        let key = rules.local_key(packet);
        if !last.compares {
            return rules.local.lookup(self.seed, &key);
        }
        if let Some(found) = last.ask_local(&key, self.fields) {
            return found;
        }
        let found = rules.local.lookup(self.seed, &key);
        last.remember_local(&key, self.fields, found);
        found
    }

    #[inline]
    fn look_up(&mut self, direction: Direction, lookup_key: &LookupKey) -> Option<Destination> {
        let place = place_of(direction, lookup_key.key[1]);
        let last = &mut self.last[place];
        last.count(|| self.few.is_some());
        if !last.compares {
            return self.find(lookup_key);
        }
        // Packets that are equal in all fields that any rule asks for belong to one flow.
        let lookup_key = LookupKey {
            key: masked(&lookup_key.key, &self.counts),
            has: lookup_key.has & self.fields,
        };
        if let Some(found) = last.ask(&lookup_key) {
            return found;
        }
        let found = self.find(&lookup_key);
        self.last[place].remember(&lookup_key, found);
        found
    }

    #[inline]
    fn find(&self, lookup_key: &LookupKey) -> Option<Destination> {
        let Some(few) = &self.few else { return self.find_by_mac(lookup_key) };
        few.iter().find_map(|table_index| self.find_in(usize::from(*table_index), lookup_key))
    }

    #[inline(never)]
    fn find_by_mac(&self, lookup_key: &LookupKey) -> Option<Destination> {
        let mut table_set = self.without_mac;
        if let Some(theirs) = self.macs.lookup(self.seed, &[lookup_key.key[0] & MAC_BITS]) {
            for (all, theirs) in table_set.iter_mut().zip(theirs) {
                *all |= theirs;
            }
        }
        for (number, mut word) in table_set.into_iter().enumerate() {
            while word != 0 {
                let table_index = number * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                if let Some(found) = self.find_in(table_index, lookup_key) {
                    return Some(found);
                }
            }
        }
        None
    }

    #[inline]
    fn find_in(&self, table_index: usize, lookup_key: &LookupKey) -> Option<Destination> {
        let rules = &self.rules[table_index];
        // Most packets have every field that rules ask for.
        if rules.fields & !lookup_key.has != 0 {
            return None;
        }
        rules.lookup(self.seed, &lookup_key.key)
    }

    /// Appends every receiver of a broadcast or multicast packet, in their order.
    #[inline]
    pub fn members(&self, headers: &Headers, found: &mut Vec<Destination>) {
        if !self.groups.is_empty() {
            self.groups.append(self.seed, &LookupKey::of_packet(headers), found);
        }
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.iter().map(|rules| rules.local.used() + rules.remote.used()).sum()
    }

    /// Returns `true` if the table has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
