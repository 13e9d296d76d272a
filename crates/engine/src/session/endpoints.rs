//! The endpoints of a session, and their counters.

use std::net::IpAddr;

use towpath_device::VlanTag;
use towpath_packet::FlowRule;
use towpath_protocol::counters::{self, Endpoint as Count};
use towpath_protocol::layout::{ENDPOINT_COUNTERS, ENDPOINT_REVOKED_WORD};
use towpath_protocol::oob::OobAddress;
use towpath_queue::{OwnWords, Violation};

use crate::last_sent::LastSent;
use crate::remote::own_address::OwnAddress;
use crate::rights::Rights;

/// The engine's view of an endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The endpoint's queue pair.
    pub queue_pair: u32,
    /// The packets that the endpoint receives.
    pub rule: FlowRule,
    /// The packets that the endpoint may send.
    pub rights: Rights,
    /// Received packets, and microseconds, after which the engine notifies the application.
    pub coalescing: (u32, u32),
    /// `true` if the endpoint takes large packets and packets with partial checksums.
    pub offload: bool,
    /// The tag of the VLAN that the endpoint lies within. The application receives packets without
    /// the tag, and the engine or the device inserts it into packets that the endpoint sends.
    pub within: Option<VlanTag>,
    /// `true` if the endpoint has no flow rule: it captures, or receives everything.
    pub captures: bool,
    /// `true` if an earlier server opened the endpoint, and its counters continue.
    pub is_resumed: bool,
    /// The poll iteration for which `received` counts.
    pub iteration: u64,
    /// Packets received in that poll iteration.
    pub received: u32,
    /// For an endpoint that asks for link addresses, the number of requests that it may still make
    /// before an answer.
    pub requests_left: Option<u32>,
    /// The last plain packet that the endpoint sent.
    pub last_sent: LastSent,
    /// The endpoint's addresses for out-of-band messages; empty if it takes and sends none.
    pub oob: Box<[OobAddress]>,
    /// Those IP addresses of it that endpoints of other hosts may connect with; empty without the
    /// right to it.
    pub reachable: Box<[(IpAddr, OwnAddress)]>,
}

/// The endpoints of a session by number, and their counters.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// Empty once the session is under removal.
    all: Vec<Option<Box<Endpoint>>>,
    counters: OwnWords,
    /// The number of endpoints that the server closed, which the application reads.
    revoked: OwnWords,
}

impl Endpoints {
    pub(super) fn new(count: u32, counters: OwnWords, revoked: OwnWords) -> Endpoints {
        Endpoints { all: (0..count).map(|_| None).collect(), counters, revoked }
    }

    /// Returns an endpoint that is open.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&Endpoint> {
        self.all.get(number as usize)?.as_deref()
    }

    /// Returns an endpoint that is open.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Endpoint> {
        self.all.get_mut(number as usize)?.as_deref_mut()
    }

    /// Returns the endpoint that an application names; `None` if it has closed this endpoint.
    ///
    /// # Errors
    /// [`Violation::Endpoint`] if the session has no endpoints with this number.
    #[inline(always)]
    pub(crate) fn named(&self, number: u32) -> Result<Option<&Endpoint>, Violation> {
        self.all.get(number as usize).map(Option::as_deref).ok_or(Violation::Endpoint)
    }

    /// Enters an endpoint.
    pub(super) fn insert(&mut self, number: u32, endpoint: Box<Endpoint>) {
        self.all[number as usize] = Some(endpoint);
    }

    /// Removes an endpoint.
    pub(super) fn remove(&mut self, number: u32) -> Option<Box<Endpoint>> {
        self.all.get_mut(number as usize)?.take()
    }

    /// Removes all endpoints, at the session's end.
    pub(crate) fn take_all(&mut self) -> Vec<Option<Box<Endpoint>>> {
        std::mem::take(&mut self.all)
    }

    /// Returns the counters of all endpoints. [`counter_word`] has the index of each.
    #[inline(always)]
    pub(crate) fn counters(&mut self) -> &mut OwnWords {
        &mut self.counters
    }

    /// Adds to a counter of an endpoint.
    #[inline(always)]
    pub(crate) fn count(&mut self, number: u32, count: Count, by: u64) {
        counters::add(&mut self.counters, counter_word(number, count), by);
    }

    /// Returns a counter of an endpoint.
    #[cfg(test)]
    pub(crate) fn counted(&self, number: u32, count: Count) -> u64 {
        self.counters.get(counter_word(number, count))
    }

    /// Sets the counters of an endpoint to zero.
    pub(crate) fn reset_counters(&mut self, number: u32) {
        let first = number as usize * ENDPOINT_COUNTERS;
        for word in first..first + ENDPOINT_COUNTERS {
            self.counters.store(word, 0);
        }
    }

    /// Tells the application that the server closed an endpoint. Returns `false` if it has been told already.
    pub(super) fn tell_revoked(&mut self, number: u32) -> bool {
        let word = number as usize * ENDPOINT_COUNTERS + ENDPOINT_REVOKED_WORD;
        // An earlier server may have been killed between the two stores.
        if self.counters.get(word) == 1 && self.revoked.get(0) > 0 {
            return false;
        }
        self.counters.store(word, 1);
        let count = self.revoked.get(0) + 1;
        self.revoked.publish(0, count);
        true
    }

    /// Returns the number of requests for link addresses that an endpoint may make, if that is what
    /// it is for.
    #[inline]
    pub(crate) fn requests_left(&mut self, number: u32) -> Option<&mut u32> {
        self.get_mut(number)?.requests_left.as_mut()
    }

    /// Returns `true` if an endpoint receives packets without the tag of its VLAN.
    pub(crate) fn is_within_vlan(&self, number: u32) -> bool {
        self.get(number).is_some_and(|endpoint| endpoint.within.is_some())
    }

    /// Returns `true` if an endpoint is open, and takes out-of-band messages.
    pub(crate) fn takes_oob(&self, number: u32) -> bool {
        self.get(number).is_some_and(|endpoint| !endpoint.oob.is_empty())
    }

    /// Returns `true` if an endpoint may have connections with other hosts.
    pub(crate) fn is_reachable(&self, number: u32) -> bool {
        self.get(number).is_some_and(|endpoint| !endpoint.reachable.is_empty())
    }

    /// Returns the address of an endpoint from which it sends an out-of-band message to an IP
    /// address: of the same family and, for IPv6, link-local if that one is.
    pub(crate) fn oob_address(&self, number: u32, to: IpAddr) -> Option<OobAddress> {
        let endpoint = self.get(number)?;
        let is_local = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => (true, ip.is_link_local()),
            IpAddr::V6(ip) => (false, ip.is_unicast_link_local()),
        };
        let same_family = |one: &&OobAddress| one.ip.is_ipv4() == to.is_ipv4();
        let all = || endpoint.oob.iter().filter(same_family);
        all().find(|one| is_local(one.ip) == is_local(to)).or_else(|| all().next()).copied()
    }
}

/// Returns the index of an endpoint's counter among its session's.
#[inline]
pub(crate) fn counter_word(endpoint: u32, count: Count) -> usize {
    endpoint as usize * ENDPOINT_COUNTERS + count as usize
}
