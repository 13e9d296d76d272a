//! The addresses of sessions: a pool over the device's subnet.
//!
//! An application that returns gets its former addresses if they are free. Every other application
//! gets the addresses that have been free for the longest time. Packets for the last holder, and
//! neighbours' cache entries for it, persist for a while.

use std::collections::{BTreeSet, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::rights::Addresses;

/// The networks from which the server gives addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subnets {
    /// IPv4.
    pub ipv4: Option<Subnet<Ipv4Addr>>,
    /// IPv6.
    pub ipv6: Option<Subnet<Ipv6Addr>>,
}

/// A network from which the server gives addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet<A> {
    /// The address of the host, or of the gateway, in this network. No application gets it.
    pub own: A,
    /// The prefix length: 1 to 30 for IPv4, 1 to 120 for IPv6.
    pub bits: u8,
    /// The gateway to other networks.
    pub gateway: Option<A>,
    /// The first and the last address for applications; `None` for all of the network.
    pub leases: Option<(A, A)>,
}

impl<A: Copy> Subnet<A> {
    /// Creates a subnet whose addresses are all for applications, but for that of its gateway.
    #[must_use]
    pub const fn new(gateway: A, bits: u8) -> Subnet<A> {
        Subnet { own: gateway, bits, gateway: Some(gateway), leases: None }
    }
}

/// The addresses of one family that a pool gives, as numbers.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u128,
    /// The number of addresses, those of host and gateway included.
    count: u128,
    bits: u8,
    /// The addresses that no application gets.
    excluded: [Option<u128>; 2],
    gateway: Option<u128>,
}

impl Range {
    /// Returns the range of a subnet of addresses of `width` bits; `None` if it has no room.
    fn new<A: Copy>(
        subnet: &Subnet<A>,
        (width, most): (u8, u8),
        number: impl Fn(A) -> u128,
    ) -> Option<Range> {
        let bits = subnet.bits;
        if !(1..=most).contains(&bits) {
            return None;
        }
        let own = number(subnet.own);
        let hosts = (1u128 << (width - bits)) - 1;
        let network = own & !hosts;
        // The network's first address is no host's, and the last one is IPv4's for broadcast.
        let (lowest, highest) = (network + 1, network + hosts - 1);
        let (first, last) = match subnet.leases {
            Some((first, last)) => (number(first).max(lowest), number(last).min(highest)),
            None => (lowest, highest),
        };
        let gateway = subnet.gateway.map(number);
        let count = last.checked_sub(first)? + 1;
        Some(Range { first, count, bits, excluded: [Some(own), gateway], gateway })
    }

    /// Returns the address of an index, from 1.
    fn at(&self, index: u32) -> u128 {
        self.first + u128::from(index) - 1
    }

    /// Returns the index of an address.
    fn index_of(&self, address: u128) -> Option<u32> {
        let index = address.checked_sub(self.first)?;
        (index < self.count).then_some(u32::try_from(index).ok()? + 1)
    }

    fn excludes(&self, index: u32) -> bool {
        self.excluded.contains(&Some(self.at(index)))
    }
}

/// Addresses given to a session, by index in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    host_number: u32,
    /// The session's MAC address, locally administered.
    pub mac: [u8; 6],
    /// The session's IPv4 address and prefix length.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// The IPv4 gateway.
    pub ipv4_gateway: Option<Ipv4Addr>,
    /// The session's IPv6 address and prefix length.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// The IPv6 gateway.
    pub ipv6_gateway: Option<Ipv6Addr>,
}

impl Lease {
    /// Returns the addresses that a session with this lease may send from.
    #[must_use]
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            ipv4: self.ipv4.map(|(ip, _)| ip.to_bits()),
            ipv6: [self.ipv6.map(|(ip, _)| ip.to_bits()), Some(link_local(self.mac).to_bits())],
        }
    }
}

/// Returns the link-local address made from a MAC address (RFC 4291, appendix A).
#[must_use]
pub(crate) fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The reasons for which the pool gives no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// All leases are given.
    #[error(
        "no address is free in the device's subnet; end another application, or serve a larger \
         subnet"
    )]
    Full,
    /// Another session holds the wanted address.
    #[error("address {0} belongs to another session")]
    InUse(Ipv4Addr),
    /// Another user held the wanted address until a short time ago.
    #[error("address {0} was another user's until just now; ask again in a minute")]
    Lately(Ipv4Addr),
    /// The pool does not contain the wanted address.
    #[error("address {0} is not one that this device's subnet has for applications")]
    Outside(Ipv4Addr),
    /// The subnet leaves no addresses to give.
    #[error(
        "the {0} network has no room for applications; use a prefix of at most /30 (IPv4) or /120 \
         (IPv6), and a range of addresses inside of it"
    )]
    Subnet(&'static str),
}

/// The holder of a lease: an application, identified by its user and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The application's user.
    pub uid: u32,
    /// The name of the application's session.
    pub name: String,
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
    taken: BTreeSet<u32>,
    /// Indices returned and free; the most recent one is at the back.
    released: VecDeque<Released>,
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
        let ipv4 = subnets.ipv4.map(|one| range("IPv4", Range::new(&one, (32, 30), number)));
        let number = |ip: Ipv6Addr| ip.to_bits();
        let ipv6 = subnets.ipv6.map(|one| range("IPv6", Range::new(&one, (128, 120), number)));
        let (ipv4, ipv6) = (ipv4.transpose()?, ipv6.transpose()?);
        for range in ipv4.iter().chain(&ipv6) {
            last = last.min(u32::try_from(range.count).unwrap_or(u32::MAX));
        }
        Ok(Pool {
            ipv4,
            ipv6,
            device_mac,
            taken: BTreeSet::new(),
            released: VecDeque::new(),
            next: 1,
            last,
        })
    }

    /// Gives the wanted addresses, the holder's last ones, or those free for the longest time.
    ///
    /// # Errors
    /// Fails with [`PoolError`].
    pub(crate) fn lease(
        &mut self,
        holder: &Holder,
        wanted: Option<Ipv4Addr>,
    ) -> Result<Lease, PoolError> {
        let host_number = match wanted {
            None => self
                .had_by(holder)
                .or_else(|| self.free_for_long())
                .or_else(|| self.released.front().map(|one| one.host_number))
                .ok_or(PoolError::Full)?,
            Some(wanted) => {
                let host_number = self.host_number_of(wanted).ok_or(PoolError::Outside(wanted))?;
                if self.taken.contains(&host_number) {
                    return Err(PoolError::InUse(wanted));
                }
                let lately = self.released.iter().find(|one| one.host_number == host_number);
                if lately.is_some_and(|one| {
                    one.holder.uid != holder.uid && one.at.elapsed() < STILL_THEIRS
                }) {
                    return Err(PoolError::Lately(wanted));
                }
                host_number
            }
        };
        self.taken.insert(host_number);
        self.released.retain(|one| one.host_number != host_number);
        let [_, a, b, c] = host_number.to_be_bytes();
        let [d, e, f, g, h, i] = self.device_mac;
        Ok(Lease {
            host_number,
            mac: [0x02, d ^ e ^ f ^ g, h ^ i.rotate_left(3), a, b, c],
            ipv4: self.ipv4.map(|range| (v4(range.at(host_number)), range.bits)),
            ipv4_gateway: self.ipv4.and_then(|range| range.gateway).map(v4),
            ipv6: self.ipv6.map(|range| (range.at(host_number).into(), range.bits)),
            ipv6_gateway: self.ipv6.and_then(|range| range.gateway).map(Ipv6Addr::from),
        })
    }

    /// Takes a lease back from its holder.
    pub(crate) fn release(&mut self, lease: &Lease, holder: Holder) {
        if self.taken.remove(&lease.host_number) {
            if self.released.len() == REMEMBERED {
                self.released.pop_front();
            }
            self.released.push_back(Released {
                host_number: lease.host_number,
                holder,
                at: Instant::now(),
            });
        }
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

    fn had_by(&self, holder: &Holder) -> Option<u32> {
        self.released.iter().rev().find(|one| one.holder == *holder).map(|one| one.host_number)
    }

    /// Returns the next index around the pool that is free and was not held recently. The search
    /// reads at most as many indices as are taken, remembered and excluded, plus one.
    fn free_for_long(&mut self) -> Option<u32> {
        let lately: BTreeSet<u32> = self.released.iter().map(|one| one.host_number).collect();
        let around = (self.next..=self.last).chain(1..self.next);
        let free = |host_number: &u32| {
            !self.taken.contains(host_number)
                && !lately.contains(host_number)
                && !self.is_excluded(*host_number)
        };
        let host_number = around.take(self.taken.len() + lately.len() + 5).find(free)?;
        self.next = host_number % self.last + 1;
        Some(host_number)
    }

    /// Returns `true` if no application gets the addresses of an index: host or gateway has one.
    fn is_excluded(&self, host_number: u32) -> bool {
        self.ranges().any(|range| range.excludes(host_number))
    }

    fn host_number_of(&self, wanted: Ipv4Addr) -> Option<u32> {
        let host_number = self.ipv4?.index_of(wanted.to_bits().into())?;
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
        let leases: Vec<_> = (0..5).map(|_| pool.lease(&holder("a"), None).unwrap()).collect();
        assert_eq!(leases[0].ipv4, Some(("10.77.0.2".parse().unwrap(), 29)));
        assert_eq!(leases[0].ipv6, Some(("fd77::2".parse().unwrap(), 64)));
        assert_eq!(leases[0].ipv4_gateway, Some("10.77.0.1".parse().unwrap()));
        assert_eq!(leases[4].ipv4, Some(("10.77.0.6".parse().unwrap(), 29)));
        assert_eq!(pool.lease(&holder("a"), None), Err(PoolError::Full));
        pool.release(&leases[2], holder("a"));
        assert_eq!(pool.given(), 4);
        assert_eq!(pool.lease(&holder("b"), None).unwrap(), leases[2], "there is no other");
    }

    #[test]
    fn former_holders_get_their_address_others_the_longest_free() {
        let mut pool = pool();
        let a = pool.lease(&holder("a"), None).unwrap();
        let b = pool.lease(&holder("b"), None).unwrap();
        pool.release(&b, holder("b"));
        pool.release(&a, holder("a"));
        let other_user = Holder { uid: 8, ..holder("a") };
        let c = pool.lease(&other_user, None).unwrap();
        assert!(c != a && c != b, "no holder had it before");
        assert_eq!(pool.lease(&holder("a"), None).unwrap(), a);
        pool.release(&a, holder("a"));
        let rest: Vec<_> = (0..2).map(|_| pool.lease(&holder("c"), None).unwrap()).collect();
        assert!(rest.iter().all(|one| *one != a && *one != b));
        assert_eq!(pool.lease(&holder("c"), None).unwrap(), b, "released before the other");
        assert_eq!(pool.lease(&holder("c"), None).unwrap(), a);
        assert_eq!(pool.lease(&holder("a"), None), Err(PoolError::Full));
    }

    #[test]
    fn remembered_leases_are_bounded_and_none_is_lost() {
        let mut pool = Pool::new(Subnets::default(), [2; 6]).unwrap();
        for round in 0..3 * REMEMBERED {
            let holder = holder(&round.to_string());
            let lease = pool.lease(&holder, None).unwrap();
            assert_eq!(lease.host_number as usize, round + 1, "a new one for each");
            pool.release(&lease, holder);
        }
        assert_eq!((pool.given(), pool.released.len()), (0, REMEMBERED));
        let subnets =
            Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 20)), ipv6: None };
        let mut pool = Pool::new(subnets, [2; 6]).unwrap();
        for _ in 0..2 {
            let leases: Vec<_> =
                (0..pool.size()).map(|_| pool.lease(&holder("x"), None).unwrap()).collect();
            assert_eq!(pool.lease(&holder("x"), None), Err(PoolError::Full));
            leases.iter().for_each(|lease| pool.release(lease, holder("x")));
        }
    }

    #[test]
    fn a_requested_address_is_leased_if_free() {
        let mut pool = pool();
        let wanted: Ipv4Addr = "10.77.0.5".parse().unwrap();
        assert_eq!(pool.lease(&holder("a"), Some(wanted)).unwrap().ipv4, Some((wanted, 29)));
        assert_eq!(pool.lease(&holder("a"), Some(wanted)), Err(PoolError::InUse(wanted)));
        let lease = pool.lease(&holder("b"), Some("10.77.0.6".parse().unwrap())).unwrap();
        pool.release(&lease, holder("b"));
        let other = Holder { uid: 8, name: "b".into() };
        let address = lease.ipv4.unwrap().0;
        assert_eq!(pool.lease(&other, Some(address)), Err(PoolError::Lately(address)));
        assert_eq!(pool.lease(&holder("another"), Some(address)), Ok(lease), "the same user");
        for outside in ["10.77.0.0", "10.77.0.1", "10.77.0.7", "10.77.1.2", "8.8.8.8"] {
            let outside = outside.parse().unwrap();
            assert_eq!(pool.lease(&holder("a"), Some(outside)), Err(PoolError::Outside(outside)));
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
        let leases: Vec<_> = (0..3).map(|_| pool.lease(&holder("a"), None).unwrap()).collect();
        let given: Vec<String> = leases
            .iter()
            .map(|one| format!("{} {}", one.ipv4.unwrap().0, one.ipv6.unwrap().0))
            .collect();
        let expected =
            ["192.0.2.100 2001:db8::f0", "192.0.2.102 2001:db8::f2", "192.0.2.103 2001:db8::f3"];
        assert_eq!(given, expected, "the second one is the gateway's");
        assert_eq!(leases[0].ipv4_gateway, Some("192.0.2.101".parse().unwrap()));
        assert_eq!((leases[0].ipv4.unwrap().1, leases[0].ipv6_gateway), (24, None));
        assert_eq!(pool.lease(&holder("b"), None), Err(PoolError::Full));
        for outside in ["192.0.2.99", "192.0.2.101", "192.0.2.104", "192.0.2.7"] {
            let outside = outside.parse().unwrap();
            assert_eq!(pool.lease(&holder("a"), Some(outside)), Err(PoolError::Outside(outside)));
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

    #[test]
    fn without_subnets_there_are_still_macs() {
        let mut pool = Pool::new(Subnets::default(), [2; 6]).unwrap();
        let (a, b) =
            (pool.lease(&holder("a"), None).unwrap(), pool.lease(&holder("a"), None).unwrap());
        assert_ne!(a.mac, b.mac);
        assert_eq!(a.mac[0] & 3, 2, "unicast, locally administered");
        assert_eq!(a.ipv4, None);
        let narrow =
            Subnets { ipv4: Some(Subnet::new("10.0.0.1".parse().unwrap(), 31)), ipv6: None };
        assert_eq!(Pool::new(narrow, [2; 6]).unwrap_err(), PoolError::Subnet("IPv4"));
    }
}
