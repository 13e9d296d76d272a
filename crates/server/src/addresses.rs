//! The addresses of sessions: a pool over the device's subnet.
//!
//! An application that returns gets its former addresses if they are free. Every other application
//! gets the addresses that have been free for the longest time. Packets for the last holder, and
//! neighbours' cache entries for it, persist for a while.

use std::collections::{BTreeSet, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::rights::Addresses;

/// A subnet from which the server gives addresses. The device's own address is in it and is the
/// gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subnets {
    /// IPv4: the device's address and the prefix length, 1 to 30.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// IPv6: the device's address and the prefix length, 1 to 120.
    pub ipv6: Option<(Ipv6Addr, u8)>,
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
        "subnet {0} has no room for applications; use a prefix of at most /30 (IPv4) or /120 (IPv6)"
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
    subnets: Subnets,
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
        if let Some((_, prefix)) = subnets.ipv4 {
            if !(1..=30).contains(&prefix) {
                return Err(PoolError::Subnet("IPv4"));
            }
            // The network's address and the broadcast address are excluded.
            last = last.min(((1u64 << (32 - prefix)) - 2) as u32);
        }
        if let Some((_, prefix)) = subnets.ipv6 {
            if !(1..=120).contains(&prefix) {
                return Err(PoolError::Subnet("IPv6"));
            }
            last = last.min(((1u128 << (128 - u32::from(prefix)).min(32)) - 2) as u32);
        }
        Ok(Pool {
            subnets,
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
            ipv4: self
                .subnets
                .ipv4
                .map(|(own, prefix)| (ipv4_at(own, prefix, host_number), prefix)),
            ipv4_gateway: self.subnets.ipv4.map(|(own, _)| own),
            ipv6: self
                .subnets
                .ipv6
                .map(|(own, prefix)| (ipv6_at(own, prefix, host_number), prefix)),
            ipv6_gateway: self.subnets.ipv6.map(|(own, _)| own),
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
        let own = [
            self.subnets.ipv4.map(|(own, prefix)| own.to_bits() & !(u32::MAX << (32 - prefix))),
            self.subnets.ipv6.and_then(|(own, prefix)| {
                u32::try_from(own.to_bits() & !(u128::MAX << (128 - prefix))).ok()
            }),
        ];
        let own: BTreeSet<u32> = own
            .into_iter()
            .flatten()
            .filter(|host_number| (1..=self.last).contains(host_number))
            .collect();
        self.last as usize - own.len()
    }

    fn had_by(&self, holder: &Holder) -> Option<u32> {
        self.released.iter().rev().find(|one| one.holder == *holder).map(|one| one.host_number)
    }

    /// Returns the next index around the pool that is free and was not held recently. The search
    /// reads at most as many indices as are taken, remembered and the device's own, plus one.
    fn free_for_long(&mut self) -> Option<u32> {
        let lately: BTreeSet<u32> = self.released.iter().map(|one| one.host_number).collect();
        let around = (self.next..=self.last).chain(1..self.next);
        let free = |host_number: &u32| {
            !self.taken.contains(host_number)
                && !lately.contains(host_number)
                && !self.is_own(*host_number)
        };
        let host_number = around.take(self.taken.len() + lately.len() + 3).find(free)?;
        self.next = host_number % self.last + 1;
        Some(host_number)
    }

    /// Returns `true` if the device itself has one of the addresses of an index.
    fn is_own(&self, host_number: u32) -> bool {
        self.subnets.ipv4.is_some_and(|(own, prefix)| ipv4_at(own, prefix, host_number) == own)
            || self
                .subnets
                .ipv6
                .is_some_and(|(own, prefix)| ipv6_at(own, prefix, host_number) == own)
    }

    fn host_number_of(&self, wanted: Ipv4Addr) -> Option<u32> {
        let (own, prefix) = self.subnets.ipv4?;
        let host_number = wanted.to_bits() ^ network4(own, prefix);
        ((1..=self.last).contains(&host_number) && !self.is_own(host_number)).then_some(host_number)
    }
}

fn network4(own: Ipv4Addr, prefix: u8) -> u32 {
    own.to_bits() & (u32::MAX << (32 - prefix))
}

fn ipv4_at(own: Ipv4Addr, prefix: u8, host_number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(network4(own, prefix) | host_number)
}

fn ipv6_at(own: Ipv6Addr, prefix: u8, host_number: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits((own.to_bits() & (u128::MAX << (128 - prefix))) | u128::from(host_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(name: &str) -> Holder {
        Holder { uid: 7, name: name.into() }
    }

    fn pool() -> Pool {
        let subnets = Subnets {
            ipv4: Some(("10.77.0.1".parse().unwrap(), 29)),
            ipv6: Some(("fd77::1".parse().unwrap(), 64)),
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
        let subnets = Subnets { ipv4: Some(("10.77.0.1".parse().unwrap(), 20)), ipv6: None };
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
    fn without_subnets_there_are_still_macs() {
        let mut pool = Pool::new(Subnets::default(), [2; 6]).unwrap();
        let (a, b) =
            (pool.lease(&holder("a"), None).unwrap(), pool.lease(&holder("a"), None).unwrap());
        assert_ne!(a.mac, b.mac);
        assert_eq!(a.mac[0] & 3, 2, "unicast, locally administered");
        assert_eq!(a.ipv4, None);
        let narrow = Subnets { ipv4: Some(("10.0.0.1".parse().unwrap(), 31)), ipv6: None };
        assert_eq!(Pool::new(narrow, [2; 6]).unwrap_err(), PoolError::Subnet("IPv4"));
    }
}
