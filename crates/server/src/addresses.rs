//! The addresses of sessions: a pool over the device's subnet.
//!
//! An application that returns gets its former addresses if they are free. Every other application
//! gets the addresses that have been free for the longest time. Packets for the last holder, and
//! neighbours' cache entries for it, persist for a while.

mod lease;
mod range;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::policy::{AddressRange, Reservation, Terms};
use range::Range;

pub(crate) use lease::{Holder, Lease};
pub use range::{Subnet, Subnets};

/// The reasons for which the pool gives no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// All leases are given.
    #[error(
        "no address is free in the device's subnet; end another application, or serve a larger \
         subnet"
    )]
    Full,
    /// The pool does not have the addresses of a session of an earlier server, or another session does.
    #[error("another session has the session's addresses, or the server does not give them")]
    Taken,
    /// All addresses that the policy grants to the user are given.
    #[error(
        "no address that the policy grants to your user is free; end another application, or ask \
         the administrator for a larger range"
    )]
    NoneGranted,
    /// Another session holds the wanted address.
    #[error("address {0} belongs to another session")]
    InUse(IpAddr),
    /// Another user held the wanted address until a short time ago.
    #[error("address {0} was another user's until just now; ask again in a minute")]
    Lately(IpAddr),
    /// The pool does not contain the wanted address.
    #[error("address {0} is not one that this device gives to applications; choose another")]
    Outside(IpAddr),
    /// The policy does not grant the wanted address.
    #[error("the policy does not grant address {0} to your user; leave it out, or ask for another")]
    NotGranted(IpAddr),
    /// The policy reserves the wanted address for another application.
    #[error("the policy reserves address {0} for another application; ask for another")]
    Reserved(IpAddr),
    /// Two reservations are of one address, or of its counterpart in the other family.
    #[error(
        "the policy reserves address {0} for two applications, directly or by the other family's \
         address that belongs to it; remove one reservation"
    )]
    ReservedTwice(IpAddr),
    /// The subnet leaves no addresses to give.
    #[error(
        "the {0} network has no room for applications; use a prefix of at most /30 (IPv4) or /120 \
         (IPv6), and a range of addresses inside of it"
    )]
    Subnet(&'static str),
}

/// Returned leases that the pool remembers with their holders.
const REMEMBERED: usize = 1024;

/// The time after its return for which the pool refuses a lease to another user that names its
/// address. Packets for the last holder may still arrive.
const STILL_THEIRS: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Released {
    host_number: u32,
    holder: Holder,
    at: Instant,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Pool {
    ipv4: Option<Range>,
    ipv6: Option<Range>,
    device_mac: [u8; 6],
    /// The indices given, each with the number of sessions that share it: a session and those that replace it.
    taken: BTreeMap<u32, u32>,
    /// Indices returned and free; the most recent one is at the back.
    released: VecDeque<Released>,
    /// Indices that only one holder gets.
    reserved: BTreeMap<u32, Holder>,
    /// The index at which the circular search for a free lease continues.
    next: u32,
    last: u32,
}

impl Pool {
    /// Creates a pool over these subnets; without any, leases have only a MAC address. The pool
    /// derives MAC addresses from the device's own, so that two servers on one network do not give
    /// the same.
    ///
    /// # Errors
    /// Fails with [`PoolError::Subnet`].
    pub(crate) fn new(subnets: Subnets, device_mac: [u8; 6]) -> Result<Pool, PoolError> {
        let mut last = (1 << 24) - 2;
        let range = |family, range: Option<Range>| range.ok_or(PoolError::Subnet(family));
        let number = |ip: Ipv4Addr| u128::from(ip.to_bits());
        let ipv4 = subnets.ipv4.map(|one| range("IPv4", Range::new(&one, 32, 30, number)));
        let number = |ip: Ipv6Addr| ip.to_bits();
        let ipv6 = subnets.ipv6.map(|one| range("IPv6", Range::new(&one, 128, 120, number)));
        let (ipv4, ipv6) = (ipv4.transpose()?, ipv6.transpose()?);
        for range in ipv4.iter().chain(&ipv6) {
            last = last.min(u32::try_from(range.count).unwrap_or(u32::MAX));
        }
        Ok(Pool {
            ipv4,
            ipv6,
            device_mac,
            taken: BTreeMap::new(),
            released: VecDeque::new(),
            reserved: BTreeMap::new(),
            next: 1,
            last,
        })
    }

    /// Reserves addresses, in place of those reserved before. A session keeps its address until it
    /// ends.
    ///
    /// # Errors
    /// Fails with [`PoolError::Outside`] or [`PoolError::ReservedTwice`], and changes nothing.
    pub(crate) fn reserve(&mut self, reservations: &[Reservation]) -> Result<(), PoolError> {
        let mut reserved = BTreeMap::new();
        for Reservation { uid, name, address } in reservations {
            let number = self.host_number_of(*address).ok_or(PoolError::Outside(*address))?;
            let holder = Holder { uid: *uid, name: name.clone() };
            if reserved.insert(number, holder).is_some() {
                return Err(PoolError::ReservedTwice(*address));
            }
        }
        self.reserved = reserved;
        Ok(())
    }

    /// Gives the wanted addresses, those reserved for the holder, its last ones, or those free for
    /// the longest time.
    ///
    /// # Errors
    /// Fails with [`PoolError`].
    pub(crate) fn lease(
        &mut self,
        holder: &Holder,
        wanted: Option<Ipv4Addr>,
        terms: &Terms,
    ) -> Result<Lease, PoolError> {
        let host_number = match wanted {
            Some(wanted) => self.wanted(holder, wanted.into(), terms)?,
            None => self
                .reserved_for(holder, terms)
                .or_else(|| self.had_by(holder, terms))
                .or_else(|| match &terms.addresses {
                    Some(ranges) => self.free_within(ranges, holder),
                    None => self.free_for_long(holder),
                })
                .or_else(|| self.released_first(holder, terms))
                .ok_or(match terms.addresses {
                    Some(_) => PoolError::NoneGranted,
                    None => PoolError::Full,
                })?,
        };
        Ok(self.give(host_number, terms))
    }

    /// Leases addresses by their index in the pool, 1 to `last`, to a session that this server
    /// resumes.
    ///
    /// # Errors
    /// Fails with [`PoolError::Taken`] if the pool does not have them, or another session does.
    pub(crate) fn lease_again(
        &mut self,
        host_number: u32,
        terms: &Terms,
    ) -> Result<Lease, PoolError> {
        if !(1..=self.last).contains(&host_number) || self.taken.contains_key(&host_number) {
            return Err(PoolError::Taken);
        }
        Ok(self.give(host_number, terms))
    }

    /// Returns the index of an address that a holder asks for, if it may have it.
    fn wanted(&self, holder: &Holder, wanted: IpAddr, terms: &Terms) -> Result<u32, PoolError> {
        let host_number = self.host_number_of(wanted).ok_or(PoolError::Outside(wanted))?;
        if !terms.allow_address(wanted) {
            return Err(PoolError::NotGranted(wanted));
        }
        if self.is_anothers(host_number, holder) {
            return Err(PoolError::Reserved(wanted));
        }
        if self.taken.contains_key(&host_number) {
            return Err(PoolError::InUse(wanted));
        }
        let lately = self.released.iter().find(|one| one.host_number == host_number);
        if lately.is_some_and(|one| one.holder.uid != holder.uid && one.at.elapsed() < STILL_THEIRS)
        {
            return Err(PoolError::Lately(wanted));
        }
        Ok(host_number)
    }

    /// Gives the addresses of a lease to one more session of its holder.
    ///
    /// # Errors
    /// Fails with [`PoolError::Taken`] if no session has the lease; [`PoolError::NotGranted`] if the terms do not allow all of
    /// its addresses; [`PoolError::Reserved`] if the policy now reserves these for another application.
    pub(crate) fn share(
        &mut self,
        lease: &Lease,
        holder: &Holder,
        terms: &Terms,
    ) -> Result<Lease, PoolError> {
        if lease.shared || !self.taken.contains_key(&lease.host_number) {
            return Err(PoolError::Taken);
        }
        let [ipv4, ipv6] = [lease.ipv4.map(|one| one.0.into()), lease.ipv6.map(|one| one.0.into())];
        let mut ips = [ipv4, ipv6].into_iter().flatten();
        if let Some(other) = ips.find(|ip: &IpAddr| !terms.allow_address(*ip)) {
            return Err(PoolError::NotGranted(other));
        }
        if self.is_anothers(lease.host_number, holder) {
            let ip = ipv4.or(ipv6).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            return Err(PoolError::Reserved(ip));
        }
        Ok(self.give(lease.host_number, terms))
    }

    /// Gives the addresses of an index, as far as the terms allow them.
    fn give(&mut self, host_number: u32, terms: &Terms) -> Lease {
        *self.taken.entry(host_number).or_default() += 1;
        self.released.retain(|one| one.host_number != host_number);
        let [_, a, b, c] = host_number.to_be_bytes();
        let [d, e, f, g, h, i] = self.device_mac;
        let ipv4 = self.ipv4.map(|range| (v4(range.at(host_number)), range));
        let ipv4 = ipv4.filter(|(ip, _)| terms.allow_address((*ip).into()));
        let ipv6 = self.ipv6.map(|range| (Ipv6Addr::from(range.at(host_number)), range));
        let ipv6 = ipv6.filter(|(ip, _)| terms.allow_address((*ip).into()));
        Lease {
            host_number,
            shared: false,
            mac: [0x02, d ^ e ^ f ^ g, h ^ i.rotate_left(3), a, b, c],
            ipv4: ipv4.map(|(ip, range)| (ip, range.bits)),
            ipv4_gateway: ipv4.and_then(|(_, range)| range.gateway).map(v4),
            ipv6: ipv6.map(|(ip, range)| (ip, range.bits)),
            ipv6_gateway: ipv6.and_then(|(_, range)| range.gateway).map(Ipv6Addr::from),
        }
    }

    /// Takes a lease back from its holder. A shared one is not the pool's. Returns `true` if no session has the lease
    /// any more.
    pub(crate) fn release(&mut self, lease: &Lease, holder: Holder) -> bool {
        let Entry::Occupied(mut sessions) = self.taken.entry(lease.host_number) else {
            return true;
        };
        *sessions.get_mut() -= 1;
        let is_last = *sessions.get() == 0;
        if is_last {
            sessions.remove();
            if self.released.len() == REMEMBERED {
                self.released.pop_front();
            }
            self.released.push_back(Released {
                host_number: lease.host_number,
                holder,
                at: Instant::now(),
            });
        }
        is_last
    }

    /// Returns the number of leases given.
    #[must_use]
    pub(crate) fn given(&self) -> usize {
        self.taken.len()
    }

    /// Returns the number of leases in the pool.
    #[must_use]
    pub(crate) fn size(&self) -> usize {
        let excluded = |range: &Range| range.excluded.map(|one| range.index_of(one?));
        let excluded: BTreeSet<u32> = self
            .ranges()
            .flat_map(excluded)
            .flatten()
            .filter(|host_number| *host_number <= self.last)
            .collect();
        self.last as usize - excluded.len()
    }

    fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.ipv4.iter().chain(&self.ipv6)
    }

    /// Returns both addresses of an index.
    fn addresses_of(&self, host_number: u32) -> [Option<IpAddr>; 2] {
        let ipv4 = self.ipv4.map(|range| IpAddr::V4(v4(range.at(host_number))));
        let ipv6 = self.ipv6.map(|range| IpAddr::V6(range.at(host_number).into()));
        [ipv4, ipv6]
    }

    /// Returns `true` if the terms allow an address of an index.
    fn is_granted(&self, host_number: u32, terms: &Terms) -> bool {
        terms.addresses.is_none()
            || self.addresses_of(host_number).iter().flatten().any(|ip| terms.allow_address(*ip))
    }

    /// Returns `true` if an index is reserved for another holder.
    fn is_anothers(&self, host_number: u32, holder: &Holder) -> bool {
        self.reserved.get(&host_number).is_some_and(|owner| owner != holder)
    }

    /// Returns a free index that is reserved for the holder.
    fn reserved_for(&self, holder: &Holder, terms: &Terms) -> Option<u32> {
        let theirs = self.reserved.iter().filter(|(_, owner)| *owner == holder);
        let mut numbers = theirs.map(|(number, _)| *number);
        numbers.find(|number| !self.taken.contains_key(number) && self.is_granted(*number, terms))
    }

    fn had_by(&self, holder: &Holder, terms: &Terms) -> Option<u32> {
        let theirs = self.released.iter().rev().filter(|one| one.holder == *holder);
        let mut numbers = theirs.map(|one| one.host_number);
        numbers.find(|number| !self.is_anothers(*number, holder) && self.is_granted(*number, terms))
    }

    /// Returns the index that has been free for the longest time of those that the pool remembers.
    fn released_first(&self, holder: &Holder, terms: &Terms) -> Option<u32> {
        let mut free = self.released.iter().map(|one| one.host_number);
        free.find(|number| !self.is_anothers(*number, holder) && self.is_granted(*number, terms))
    }

    /// Returns the next index around the pool that is free and was not held recently. The search
    /// reads at most as many indices as are taken, remembered, reserved and excluded, plus one.
    fn free_for_long(&mut self, holder: &Holder) -> Option<u32> {
        let lately: BTreeSet<u32> = self.released.iter().map(|one| one.host_number).collect();
        let around = (self.next..=self.last).chain(1..self.next);
        let most = self.taken.len() + lately.len() + self.reserved.len() + 5;
        let host_number =
            around.take(most).find(|number| self.is_free(*number, &lately, holder))?;
        self.next = host_number % self.last + 1;
        Some(host_number)
    }

    /// Returns the first index with an address in these ranges that is free and was not held
    /// recently. The search reads at most as many indices of each range as are taken, remembered,
    /// reserved and excluded, plus one.
    fn free_within(&self, ranges: &[AddressRange], holder: &Holder) -> Option<u32> {
        let lately: BTreeSet<u32> = self.released.iter().map(|one| one.host_number).collect();
        let most = self.taken.len() + lately.len() + self.reserved.len() + 5;
        ranges.iter().find_map(|range| {
            let mut within = self.indices(range)?.take(most);
            within.find(|number| self.is_free(*number, &lately, holder))
        })
    }

    fn is_free(&self, host_number: u32, lately: &BTreeSet<u32>, holder: &Holder) -> bool {
        !self.taken.contains_key(&host_number)
            && !lately.contains(&host_number)
            && !self.is_excluded(host_number)
            && !self.is_anothers(host_number, holder)
    }

    /// Returns the pool's indices with an address in a range.
    fn indices(&self, granted: &AddressRange) -> Option<std::ops::RangeInclusive<u32>> {
        let (range, first, last) = match (granted.first, granted.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                (self.ipv4?, u128::from(first.to_bits()), u128::from(last.to_bits()))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => (self.ipv6?, first.to_bits(), last.to_bits()),
            _ => return None,
        };
        let end = range.at(self.last);
        let (first, last) = (first.max(range.first), last.min(end));
        Some(range.index_of(first)?..=range.index_of(last)?)
    }

    /// Returns `true` if no application gets the addresses of an index: host or gateway has one.
    fn is_excluded(&self, host_number: u32) -> bool {
        self.ranges().any(|range| range.excludes(host_number))
    }

    /// Returns the addresses that the pool gives, in words.
    pub(crate) fn offered(&self) -> String {
        let mut numbers = 1..=self.last;
        let first = numbers.find(|number| !self.is_excluded(*number));
        let last = numbers.rfind(|number| !self.is_excluded(*number)).or(first);
        let Some((first, last)) = first.zip(last) else { return "no addresses".to_owned() };
        // The addresses of host and gateway may lie between the others.
        let own = self.ranges().flat_map(|range| {
            range.excluded.into_iter().flatten().filter_map(|number| range.index_of(number))
        });
        let own: BTreeSet<u32> = own.filter(|number| (first..last).contains(number)).collect();
        let family = |range: Range, shown: fn(u128) -> IpAddr| {
            let at = |number: u32| shown(range.at(number));
            let without = own.iter().map(|number| format!(" without {}", at(*number)));
            format!("{} to {}{}", at(first), at(last), without.collect::<String>())
        };
        let ipv4 = self.ipv4.map(|range| family(range, |number| v4(number).into()));
        let ipv6 = self.ipv6.map(|range| family(range, |number| Ipv6Addr::from(number).into()));
        ipv4.into_iter()
            .chain(ipv6)
            .reduce(|all, one| format!("{all}, and {one}"))
            .unwrap_or_else(|| "no addresses".to_owned())
    }

    fn host_number_of(&self, wanted: IpAddr) -> Option<u32> {
        let host_number = match wanted {
            IpAddr::V4(ip) => self.ipv4?.index_of(ip.to_bits().into())?,
            IpAddr::V6(ip) => self.ipv6?.index_of(ip.to_bits())?,
        };
        (host_number <= self.last && !self.is_excluded(host_number)).then_some(host_number)
    }
}

/// Returns the address of a number of 32 bits.
fn v4(number: u128) -> Ipv4Addr {
    Ipv4Addr::from_bits(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> Terms {
        Terms::default()
    }

    fn holder(name: &str) -> Holder {
        Holder { uid: 7, name: name.into() }
    }

    fn pool() -> Pool {
        let subnets = Subnets {
            ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 29)),
            ipv6: Some(Subnet::new("fd77::1".parse().unwrap(), 64)),
        };
        Pool::new(subnets, [2; 6]).unwrap()
    }

    #[test]
    fn addresses_are_leased_in_sequence_until_exhausted() {
        let mut pool = pool();
        assert_eq!(pool.size(), 5);
        let leases: Vec<_> =
            (0..5).map(|_| pool.lease(&holder("a"), None, &any()).unwrap()).collect();
        assert_eq!(leases[0].ipv4, Some(("10.77.0.2".parse().unwrap(), 29)));
        assert_eq!(leases[0].ipv6, Some(("fd77::2".parse().unwrap(), 64)));
        assert_eq!(leases[0].ipv4_gateway, Some("10.77.0.1".parse().unwrap()));
        assert_eq!(leases[4].ipv4, Some(("10.77.0.6".parse().unwrap(), 29)));
        assert_eq!(pool.lease(&holder("a"), None, &any()), Err(PoolError::Full));
        pool.release(&leases[2], holder("a"));
        assert_eq!(pool.given(), 4);
        assert_eq!(pool.lease(&holder("b"), None, &any()).unwrap(), leases[2], "there is no other");
    }

    #[test]
    fn former_holders_get_their_address_others_the_longest_free() {
        let mut pool = pool();
        let a = pool.lease(&holder("a"), None, &any()).unwrap();
        let b = pool.lease(&holder("b"), None, &any()).unwrap();
        pool.release(&b, holder("b"));
        pool.release(&a, holder("a"));
        let other_user = Holder { uid: 8, ..holder("a") };
        let c = pool.lease(&other_user, None, &any()).unwrap();
        assert!(c != a && c != b, "no holder had it before");
        assert_eq!(pool.lease(&holder("a"), None, &any()).unwrap(), a);
        pool.release(&a, holder("a"));
        let rest: Vec<_> =
            (0..2).map(|_| pool.lease(&holder("c"), None, &any()).unwrap()).collect();
        assert!(rest.iter().all(|one| *one != a && *one != b));
        assert_eq!(pool.lease(&holder("c"), None, &any()).unwrap(), b, "released before the other");
        assert_eq!(pool.lease(&holder("c"), None, &any()).unwrap(), a);
        assert_eq!(pool.lease(&holder("a"), None, &any()), Err(PoolError::Full));
    }

    #[test]
    fn remembered_leases_are_bounded_and_none_is_lost() {
        let mut pool = Pool::new(Subnets::default(), [2; 6]).unwrap();
        for round in 0..3 * REMEMBERED {
            let holder = holder(&round.to_string());
            let lease = pool.lease(&holder, None, &any()).unwrap();
            assert_eq!(lease.host_number as usize, round + 1, "a new one for each");
            pool.release(&lease, holder);
        }
        assert_eq!((pool.given(), pool.released.len()), (0, REMEMBERED));
        let subnets =
            Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 20)), ipv6: None };
        let mut pool = Pool::new(subnets, [2; 6]).unwrap();
        for _ in 0..2 {
            let leases: Vec<_> =
                (0..pool.size()).map(|_| pool.lease(&holder("x"), None, &any()).unwrap()).collect();
            assert_eq!(pool.lease(&holder("x"), None, &any()), Err(PoolError::Full));
            assert!(leases.iter().all(|lease| pool.release(lease, holder("x"))));
        }
    }

    #[test]
    fn a_shared_lease_lasts_until_its_last_session() {
        let mut pool = pool();
        let first = pool.lease(&holder("a"), None, &any()).unwrap();
        let second = pool.share(&first, &holder("a"), &any()).unwrap();
        assert_eq!((first, pool.given()), (second, 1));
        assert!(!pool.release(&first, holder("a")));
        assert_eq!(pool.lease_again(first.host_number(), &any()), Err(PoolError::Taken));
        assert!(pool.released.is_empty(), "the other session has the addresses");
        assert!(pool.release(&second, holder("a")));
        assert_eq!((pool.given(), pool.released.len()), (0, 1));
        assert_eq!(pool.share(&first, &holder("a"), &any()), Err(PoolError::Taken));
        let shared = Lease::shared([2; 6], first.ipv4, None);
        let refused = pool.share(&shared, &holder("a"), &any());
        assert_eq!(refused, Err(PoolError::Taken), "not the pool's");
    }

    #[test]
    fn a_requested_address_is_leased_if_free() {
        let mut pool = pool();
        let wanted: Ipv4Addr = "10.77.0.5".parse().unwrap();
        assert_eq!(
            pool.lease(&holder("a"), Some(wanted), &any()).unwrap().ipv4,
            Some((wanted, 29))
        );
        assert_eq!(
            pool.lease(&holder("a"), Some(wanted), &any()),
            Err(PoolError::InUse(wanted.into()))
        );
        let lease = pool.lease(&holder("b"), Some("10.77.0.6".parse().unwrap()), &any()).unwrap();
        pool.release(&lease, holder("b"));
        let other = Holder { uid: 8, name: "b".into() };
        let address = lease.ipv4.unwrap().0;
        assert_eq!(
            pool.lease(&other, Some(address), &any()),
            Err(PoolError::Lately(address.into()))
        );
        assert_eq!(
            pool.lease(&holder("another"), Some(address), &any()),
            Ok(lease),
            "the same user"
        );
        for outside in ["10.77.0.0", "10.77.0.1", "10.77.0.7", "10.77.1.2", "8.8.8.8"] {
            let outside = outside.parse().unwrap();
            let refused = pool.lease(&holder("a"), Some(outside), &any());
            assert_eq!(refused, Err(PoolError::Outside(outside.into())));
        }
    }

    #[test]
    fn a_range_of_a_network_is_leased() {
        let ipv4 = Subnet {
            gateway: Some("192.0.2.101".parse().unwrap()),
            leases: Some(("192.0.2.100".parse().unwrap(), "192.0.2.103".parse().unwrap())),
            ..Subnet::new("192.0.2.7".parse::<Ipv4Addr>().unwrap(), 24)
        };
        let ipv6 = Subnet {
            gateway: None,
            leases: Some(("2001:db8::f0".parse().unwrap(), "2001:db8::ff".parse().unwrap())),
            ..Subnet::new("2001:db8::7".parse::<Ipv6Addr>().unwrap(), 64)
        };
        let subnets = Subnets { ipv4: Some(ipv4), ipv6: Some(ipv6) };
        let mut pool = Pool::new(subnets, [2; 6]).unwrap();
        assert_eq!(pool.size(), 3);
        let leases: Vec<_> =
            (0..3).map(|_| pool.lease(&holder("a"), None, &any()).unwrap()).collect();
        let given: Vec<String> = leases
            .iter()
            .map(|one| format!("{} {}", one.ipv4.unwrap().0, one.ipv6.unwrap().0))
            .collect();
        let expected =
            ["192.0.2.100 2001:db8::f0", "192.0.2.102 2001:db8::f2", "192.0.2.103 2001:db8::f3"];
        assert_eq!(given, expected, "the second one is the gateway's");
        assert_eq!(leases[0].ipv4_gateway, Some("192.0.2.101".parse().unwrap()));
        assert_eq!((leases[0].ipv4.unwrap().1, leases[0].ipv6_gateway), (24, None));
        assert_eq!(pool.lease(&holder("b"), None, &any()), Err(PoolError::Full));
        for outside in ["192.0.2.99", "192.0.2.101", "192.0.2.104", "192.0.2.7"] {
            let outside = outside.parse().unwrap();
            let refused = pool.lease(&holder("a"), Some(outside), &any());
            assert_eq!(refused, Err(PoolError::Outside(outside.into())));
        }
        let block = Subnet {
            leases: Some(("192.0.2.0".parse().unwrap(), "192.0.2.255".parse().unwrap())),
            ..Subnet::new("192.0.2.7".parse::<Ipv4Addr>().unwrap(), 24)
        };
        let pool = Pool::new(Subnets { ipv4: Some(block), ipv6: None }, [2; 6]).unwrap();
        assert_eq!(pool.size(), 253);
        let elsewhere = Subnet {
            leases: Some(("192.0.3.1".parse().unwrap(), "192.0.3.9".parse().unwrap())),
            ..block
        };
        let pool = Pool::new(Subnets { ipv4: Some(elsewhere), ipv6: None }, [2; 6]);
        assert_eq!(pool.unwrap_err(), PoolError::Subnet("IPv4"));
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn granted(ranges: &[(&str, &str)]) -> Terms {
        let range =
            |(first, last): &(&str, &str)| AddressRange { first: ip(first), last: ip(last) };
        Terms { addresses: Some(ranges.iter().map(range).collect()), ..Terms::default() }
    }

    #[test]
    fn a_user_gets_only_the_addresses_of_its_grant() {
        let mut pool = pool();
        let terms = granted(&[("10.77.0.0", "10.77.0.3"), ("10.77.0.6", "10.77.9.9")]);
        let mut given = Vec::new();
        for _ in 0..3 {
            let lease = pool.lease(&holder("a"), None, &terms).unwrap();
            assert_eq!((lease.ipv6, lease.ipv6_gateway), (None, None), "no family but IPv4");
            assert!(lease.ipv4_gateway.is_some());
            given.push(lease.ipv4.unwrap().0.to_string());
        }
        assert_eq!(given, ["10.77.0.2", "10.77.0.3", "10.77.0.6"]);
        assert_eq!(pool.lease(&holder("a"), None, &terms), Err(PoolError::NoneGranted));
        let wanted = "10.77.0.4".parse().unwrap();
        let refused = pool.lease(&holder("a"), Some(wanted), &terms);
        assert_eq!(refused, Err(PoolError::NotGranted(wanted.into())));
        let lease = pool.lease(&holder("a"), None, &granted(&[("fd77::5", "fd77::5")])).unwrap();
        assert_eq!((lease.ipv4, lease.ipv6), (None, Some(("fd77::5".parse().unwrap(), 64))));
        // It had this address, which the terms do not name.
        pool.release(&lease, holder("a"));
        let narrow = granted(&[("10.77.0.4", "10.77.0.4")]);
        assert_eq!(pool.lease(&holder("a"), None, &narrow).unwrap().ipv4.unwrap().0, wanted);
        let far = granted(&[("fd77::1:0:0", "fd77::ffff:ffff:ffff")]);
        assert_eq!(pool.lease(&holder("a"), None, &far), Err(PoolError::NoneGranted));
        let outside = granted(&[("192.0.2.1", "192.0.2.9")]);
        assert_eq!(pool.lease(&holder("a"), None, &outside), Err(PoolError::NoneGranted));
    }

    #[test]
    fn a_reserved_address_is_one_applications() {
        let mut pool = pool();
        let reservation = |name: &str, address: &str| Reservation {
            uid: 7,
            name: name.into(),
            address: ip(address),
        };
        pool.reserve(&[reservation("web", "10.77.0.4"), reservation("dns", "fd77::2")]).unwrap();
        let web = pool.lease(&holder("web"), None, &any()).unwrap();
        assert_eq!(web.ipv4.unwrap().0, ip("10.77.0.4"));
        assert_eq!(
            pool.lease(&holder("dns"), None, &any()).unwrap().ipv6.unwrap().0,
            ip("fd77::2")
        );
        let second = pool.lease(&holder("web"), None, &any()).unwrap();
        assert_eq!(second.ipv4.unwrap().0, ip("10.77.0.3"), "its own one is in use");
        pool.release(&web, holder("web"));
        let same_name = Holder { uid: 8, ..holder("web") };
        let rest = [5, 6].map(|last| Ipv4Addr::new(10, 77, 0, last));
        for address in rest {
            let lease = pool.lease(&same_name, None, &any()).unwrap();
            assert_eq!(lease.ipv4.unwrap().0, address);
        }
        assert_eq!(pool.lease(&same_name, None, &any()), Err(PoolError::Full));
        let wanted = "10.77.0.4".parse().unwrap();
        let refused = pool.lease(&same_name, Some(wanted), &any());
        assert_eq!(refused, Err(PoolError::Reserved(wanted.into())));
        assert_eq!(
            pool.lease(&holder("web"), Some(wanted), &any()).unwrap().ipv4.unwrap().0,
            wanted
        );
        // A policy with an error changes nothing.
        let twice = [reservation("web", "10.77.0.5"), reservation("dns", "fd77::5")];
        assert_eq!(pool.reserve(&twice), Err(PoolError::ReservedTwice(ip("fd77::5"))));
        for outside in ["10.77.0.1", "10.77.0.7", "192.0.2.1", "fd77::1:0:0"] {
            let refused = pool.reserve(&[reservation("web", outside)]);
            assert_eq!(refused, Err(PoolError::Outside(ip(outside))));
        }
        assert_eq!(pool.reserved.len(), 2);
        assert_eq!(pool.offered(), "10.77.0.2 to 10.77.0.6, and fd77::2 to fd77::6");
    }

    #[test]
    fn the_given_addresses_are_named_without_those_of_the_host() {
        let own = |address: &str| Subnet::new(address.parse().unwrap(), 29);
        let given = |subnet| {
            let subnets = Subnets { ipv4: Some(subnet), ipv6: None };
            Pool::new(subnets, [2; 6]).unwrap().offered()
        };
        assert_eq!(given(own("10.77.0.1")), "10.77.0.2 to 10.77.0.6");
        assert_eq!(given(own("10.77.0.6")), "10.77.0.1 to 10.77.0.5");
        assert_eq!(given(own("10.77.0.3")), "10.77.0.1 to 10.77.0.6 without 10.77.0.3");
        let one = "10.77.0.4".parse().unwrap();
        let alone = Subnet { leases: Some((one, one)), ..own("10.77.0.1") };
        assert_eq!(given(alone), "10.77.0.4 to 10.77.0.4");
        assert_eq!(Pool::new(Subnets::default(), [2; 6]).unwrap().offered(), "no addresses");
    }

    #[test]
    fn without_subnets_there_are_still_macs() {
        let mut pool = Pool::new(Subnets::default(), [2; 6]).unwrap();
        let (a, b) = (
            pool.lease(&holder("a"), None, &any()).unwrap(),
            pool.lease(&holder("a"), None, &any()).unwrap(),
        );
        assert_ne!(a.mac, b.mac);
        assert_eq!(a.mac[0] & 3, 2, "unicast, locally administered");
        assert_eq!(a.ipv4, None);
        let narrow =
            Subnets { ipv4: Some(Subnet::new("10.0.0.1".parse().unwrap(), 31)), ipv6: None };
        assert_eq!(Pool::new(narrow, [2; 6]).unwrap_err(), PoolError::Subnet("IPv4"));
    }
}
