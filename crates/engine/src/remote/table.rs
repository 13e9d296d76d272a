//! The connections with other hosts, and whose turn it is.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use towpath_memory::Region;
use towpath_packet::ipv6::link_local;
use towpath_packet::mld::Query;
use towpath_packet::roce::Path;
use towpath_protocol::oob::OobAddress;

use super::connection::{Remote, State};
use super::groups::ReportedGroups;
use super::ledger::{MOST_CONNECTIONS, Recorded, RemoteLedger};
use super::link_addresses::LinkAddresses;
use super::lists::{Listed, Lists};
use super::own_address::OwnAddress;
use super::random::Random;
use crate::account::Account;
use crate::oob::connection::EndpointName;

/// The most requests of other hosts that wait for an answer of an application here: of one address, and for one
/// listening endpoint. [`Lists`] has the limits of users and groups.
const MOST_HALF_OPEN_PER_SOURCE: usize = 4;
const MOST_HALF_OPEN_PER_LISTENER: usize = 16;
/// How many connections there may be before none is asked for any more: the rest is for requests of other hosts.
const MOST_ASKED: usize = MOST_CONNECTIONS / 4 * 3;
/// The most frames that wait for the device, which are no packets of connections.
const MOST_OUTGOING: usize = 64;

/// The connections with other hosts.
#[derive(Debug)]
pub(crate) struct RemoteTable {
    ledger: Option<RemoteLedger>,
    /// The connections that an earlier server recorded, until they are restored.
    pub(super) left: Vec<(u32, Recorded)>,
    /// The most bytes of an IP packet that the device sends.
    pub(super) device_mtu: usize,
    pub(super) connections: HashMap<u32, Box<Remote>>,
    /// The QPNs by the communication manager's numbers: this side's, and the other side's.
    pub(super) by_local_id: HashMap<u32, u32>,
    pub(super) by_remote_id: HashMap<(IpAddr, u32), u32>,
    ready: VecDeque<u32>,
    timers: BTreeSet<(u64, u32)>,
    pub(super) lists: Lists,
    pub(super) own: HashMap<IpAddr, (OwnAddress, usize)>,
    pub(super) link_addresses: LinkAddresses,
    groups: ReportedGroups,
    random: Random,
    pub(super) outgoing: VecDeque<Vec<u8>>,
    /// Frames that had no room there.
    pub(super) dropped: u64,
    /// The time, in nanoseconds.
    pub(super) now: u64,
    pub(super) scratch: Vec<u8>,
    /// What tripwires have cost in this poll iteration, as a number of bytes moved.
    pub(super) touched: u64,
}

impl RemoteTable {
    /// Creates a table with the memory of its ledger, for a device that sends IP packets of up to `mtu`
    /// bytes. Without a ledger it takes no connections.
    pub(crate) fn new(ledger: Option<Region>, mtu: usize) -> RemoteTable {
        let (ledger, left) = ledger.map(RemoteLedger::open).unzip();
        RemoteTable {
            ledger,
            left: left.unwrap_or_default(),
            device_mtu: mtu,
            connections: HashMap::new(),
            by_local_id: HashMap::new(),
            by_remote_id: HashMap::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            lists: Lists::default(),
            own: HashMap::new(),
            link_addresses: LinkAddresses::default(),
            groups: ReportedGroups::default(),
            random: Random::default(),
            outgoing: VecDeque::new(),
            dropped: 0,
            now: 0,
            scratch: Vec::new(),
            touched: 0,
        }
    }

    /// `true` if there may be connections with other hosts.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.ledger.is_some()
    }

    /// Changes the most bytes of an IP packet; for connections that are made from now on.
    pub(crate) fn set_mtu(&mut self, bytes: usize) {
        self.device_mtu = bytes;
    }

    /// Lets other hosts reach the addresses of an endpoint.
    pub(crate) fn add_addresses(&mut self, reachable: &[(IpAddr, OwnAddress)]) {
        for (ip, address) in reachable.iter().filter(|_| self.ledger.is_some()) {
            self.own.entry(*ip).or_insert((*address, 0)).1 += 1;
            self.groups.join(self.now, address.mac, *ip);
        }
    }

    /// Ends that for an endpoint that is closed.
    pub(crate) fn remove_addresses(&mut self, reachable: &[(IpAddr, OwnAddress)]) {
        for (ip, _) in reachable.iter().filter(|_| self.ledger.is_some()) {
            if let Some((address, uses)) = self.own.get_mut(ip) {
                *uses -= 1;
                if *uses == 0 {
                    self.groups.leave(address.mac, *ip);
                    self.own.remove(ip);
                }
            }
        }
    }

    /// `true` if the addresses are those of an endpoint here, or of a connection whose endpoint is
    /// closed already: the other host has yet to confirm its end, or to learn of it.
    pub(super) fn is_own(&self, ip: IpAddr, mac: [u8; 6]) -> bool {
        self.own.get(&ip).is_some_and(|(own, _)| own.mac == mac) || self.lists.has_own(ip, mac)
    }

    /// Returns a QPN that no connection has.
    pub(super) fn new_qpn(&mut self) -> Option<u32> {
        if self.connections.len() >= MOST_CONNECTIONS {
            return None;
        }
        loop {
            let number = self.random.next() & 0xff_ffff;
            // 0 and 1 are those of management.
            if number > 1 && !self.connections.contains_key(&number) {
                return Some(number);
            }
        }
    }

    /// Returns a random number.
    pub(super) fn random(&mut self) -> u32 {
        self.random.next()
    }

    /// Returns a number for the communication manager that no connection has, and enters it.
    pub(super) fn new_local_id(&mut self, qpn: u32) -> u32 {
        loop {
            let number = self.random.next();
            if number != 0 && !self.by_local_id.contains_key(&number) {
                self.by_local_id.insert(number, qpn);
                return number;
            }
        }
    }

    /// `true` if one more request of another host may wait for an answer of a listener.
    pub(super) fn has_half_open_room(
        &self,
        source: IpAddr,
        listener: EndpointName,
        account: Account,
    ) -> bool {
        let (mut theirs, mut listeners) = (0, 0);
        for one in self.lists.half_open().filter_map(|qpn| self.connections.get(&qpn)) {
            if let State::Asked { listener: other, .. } = &one.state {
                theirs += usize::from(one.peer.ip == source);
                listeners += usize::from(*other == listener);
            }
        }
        theirs < MOST_HALF_OPEN_PER_SOURCE
            && listeners < MOST_HALF_OPEN_PER_LISTENER
            && self.lists.has_half_open_room(account)
    }

    /// `true` if an account may have one more connection.
    pub(super) fn has_account_room(&self, account: Account) -> bool {
        self.lists.has_room(account)
    }

    /// `true` if an account may have one more connection that an endpoint of it asks for.
    pub(super) fn has_room_for(&self, account: Account) -> bool {
        self.has_account_room(account) && self.connections.len() < MOST_ASKED
    }

    /// Returns the requests of other hosts that wait for an answer, and that `which` selects by their
    /// listener and by the address that the answer goes to.
    pub(super) fn waiting_requests(
        &self,
        which: impl Fn(EndpointName, OobAddress) -> bool,
    ) -> Vec<u32> {
        let waits = |qpn: &u32| match self.connections.get(qpn).map(|one| &one.state) {
            Some(State::Asked { listener, from, .. }) => which(*listener, *from),
            _ => false,
        };
        self.lists.half_open().filter(waits).collect()
    }

    /// Enters a connection, or puts it back, and notes what it has to do.
    pub(super) fn put(&mut self, qpn: u32, mut one: Box<Remote>) {
        let due = one.next_due();
        if due != one.due {
            if let Some(old) = one.due {
                self.timers.remove(&(old, qpn));
            }
            if let Some(new) = due {
                self.timers.insert((new, qpn));
            }
            one.due = due;
        }
        let listed = self.to_list(&one);
        if listed != one.listed {
            self.lists.change(qpn, &one.listed, &listed);
            one.listed = listed;
        }
        self.connections.insert(qpn, one);
    }

    /// Returns what a connection is to be listed for.
    fn to_list(&self, one: &Remote) -> Listed {
        let Path { source, source_mac, destination, .. } = one.path;
        let waits = matches!(one.state, State::Asking(_)) && one.path.destination_mac == [0; 6];
        let own = if waits { self.own.get(&source) } else { None };
        Listed {
            owner: one.owner,
            waits_for: own.map(|(own, _)| own.next_hop(source, destination)),
            is_half_open: matches!(one.state, State::Asked { .. }),
            account: one.account,
            own: Some((source, source_mac)),
        }
    }

    /// Takes a connection out, to change it.
    pub(super) fn take(&mut self, qpn: u32) -> Option<Box<Remote>> {
        self.connections.remove(&qpn)
    }

    /// Forgets a connection that was taken out.
    pub(super) fn drop_taken(&mut self, qpn: u32, one: &Remote) {
        if let Some(due) = one.due {
            self.timers.remove(&(due, qpn));
        }
        self.lists.change(qpn, &one.listed, &Listed::default());
        self.record(one.place, RemoteLedger::remove);
        self.by_local_id.remove(&one.local_id);
        let theirs = (one.peer.ip, one.remote_id);
        if self.by_remote_id.get(&theirs) == Some(&qpn) {
            self.by_remote_id.remove(&theirs);
        }
    }

    /// Notes that an endpoint is removed: another one may get its number.
    pub(crate) fn remove_owner(&mut self, owner: EndpointName) {
        for qpn in self.lists.of_owner(owner) {
            if let Some(one) = self.connections.get_mut(&qpn) {
                one.is_removed = true;
            }
        }
    }

    /// Records something of a connection that has a place in the ledger.
    pub(super) fn record(&mut self, place: Option<u32>, f: impl FnOnce(&mut RemoteLedger, u32)) {
        if let (Some(ledger), Some(place)) = (&mut self.ledger, place) {
            f(ledger, place);
        }
    }

    /// Gives a connection a place in the ledger.
    pub(super) fn add_to_ledger(&mut self, one: &Recorded) -> Option<u32> {
        self.ledger.as_mut()?.add(one)
    }

    /// Notes that a connection has something to do.
    pub(super) fn make_ready(&mut self, qpn: u32) {
        if let Some(one) = self.connections.get_mut(&qpn)
            && !std::mem::replace(&mut one.is_ready, true)
        {
            self.ready.push_back(qpn);
        }
    }

    /// Returns the next connection that has something to do.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        while let Some(qpn) = self.ready.pop_front() {
            if let Some(one) = self.connections.get_mut(&qpn) {
                one.is_ready = false;
                return Some(qpn);
            }
        }
        None
    }

    /// Makes the connections ready whose time has come.
    pub(super) fn wake_due(&mut self) {
        while let Some(&(due, qpn)) = self.timers.first()
            && due <= self.now
        {
            self.timers.pop_first();
            if let Some(one) = self.connections.get_mut(&qpn) {
                one.due = None;
            }
            self.make_ready(qpn);
        }
    }

    /// Sets the time, in nanoseconds.
    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// `true` if there is nothing to do before a frame arrives.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_work() && self.timers.is_empty() && self.groups.next_due().is_none()
    }

    /// `true` if there is something to send.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.outgoing.is_empty()
    }

    /// Returns when there is something to do without a packet, in nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let groups = self.groups.next_due().filter(|_| self.has_room_for_reports());
        let connections = self.timers.first().map(|(due, _)| *due);
        connections.into_iter().chain(groups).min()
    }

    /// Returns `true` if the other frames leave room for reports. Otherwise, reports wait.
    fn has_room_for_reports(&self) -> bool {
        self.outgoing.len() < MOST_OUTGOING / 2
    }

    /// Queues the reports of multicast groups that are due.
    pub(super) fn report_groups(&mut self) {
        if !self.has_room_for_reports() {
            return;
        }
        let random = &mut self.random;
        for (mac, report) in self.groups.due(self.now, || random.next_u64()) {
            // The lease of a session includes the link-local address.
            self.send_frame(report.frame(mac, link_local(mac)));
        }
    }

    /// Handles a query for multicast groups.
    pub(super) fn handle_query(&mut self, query: &Query) {
        let random = &mut self.random;
        self.groups.handle_query(self.now, query, || random.next_u64());
    }

    /// Queues a frame that is no packet of a connection. Drops and counts it if too many wait.
    pub(super) fn send_frame(&mut self, frame: Vec<u8>) {
        if self.outgoing.len() < MOST_OUTGOING {
            self.outgoing.push_back(frame);
        } else {
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// An application that ends its connection and then itself does not wait for the other host's answer.
    #[test]
    fn the_addresses_of_a_connection_stay_until_it_has_ended() {
        let ip = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        let mut table = RemoteTable::new(None, 1500);
        assert!(!table.is_own(ip(1), [2; 6]));
        let mut one = Box::new(Remote::for_tests());
        one.leave(0);
        table.put(9, one);
        assert!(table.is_own(ip(1), [2; 6]));
        assert!(!table.is_own(ip(1), [4; 6]) && !table.is_own(ip(2), [2; 6]));
        let one = table.take(9).unwrap();
        table.drop_taken(9, &one);
        assert!(!table.is_own(ip(1), [2; 6]));
    }
}
