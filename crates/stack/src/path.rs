//! Path MTUs, as routers report them (RFC 1191, RFC 8201).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use crate::Instant;

/// The maximum number of paths in the table; a further one replaces the oldest.
const LIMIT: usize = 1024;
/// The time that the stack trusts a router's report (RFC 1191, 6.3: ten minutes).
const LIFETIME: Duration = Duration::from_secs(600);
/// No IPv4 router has a reason to report less (RFC 1191 has 68; 552 is the limit of Linux).
const LEAST_V4: usize = 552;
/// The MTU that every IPv6 link supports (RFC 8200, 5).
pub(crate) const LEAST_V6: usize = 1280;

/// Returns the least MTU of a path to `address` that the stack accepts, in bytes.
pub(crate) fn least(address: IpAddr) -> usize {
    if address.is_ipv4() { LEAST_V4 } else { LEAST_V6 }
}

/// The table.
pub(crate) struct PathMtus {
    link: usize,
    paths: HashMap<IpAddr, (usize, Instant)>,
    /// The same addresses, ordered by the expiry of their entries.
    ends: BTreeSet<(Instant, IpAddr)>,
}

impl PathMtus {
    pub(crate) fn new(link: usize) -> Self {
        PathMtus { link, paths: HashMap::new(), ends: BTreeSet::new() }
    }

    /// Returns the largest packet to `address`, in bytes.
    pub(crate) fn mtu(&self, now: Instant, address: IpAddr) -> usize {
        match self.paths.get(&address) {
            Some(&(mtu, until)) if now < until => mtu,
            _ => self.link,
        }
    }

    /// Handles a router's report that packets to `address` may have at most `mtu` bytes. Returns
    /// `true` if that lowers the path's MTU.
    pub(crate) fn lower(&mut self, now: Instant, address: IpAddr, mtu: usize) -> bool {
        let mtu = mtu.max(least(address));
        if mtu >= self.mtu(now, address) {
            return false;
        }
        if let Some((_, until)) = self.paths.remove(&address) {
            self.ends.remove(&(until, address));
        }
        // Removes expired entries, and one more if there are too many.
        while let Some(&(until, oldest)) = self.ends.first()
            && (until <= now || self.paths.len() >= LIMIT)
        {
            self.ends.pop_first();
            self.paths.remove(&oldest);
        }
        let until = now + LIFETIME;
        self.paths.insert(address, (mtu, until));
        self.ends.insert((until, address));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: usize) -> IpAddr {
        [10, 1, (number >> 8) as u8, number as u8].into()
    }

    #[test]
    fn entries_are_bounded_in_number_and_time() {
        let mut paths = PathMtus::new(1500);
        let at = |millis: usize| Instant::from_millis(millis as u64);
        for number in 0..5000 {
            assert!(paths.lower(at(number), ip(number), 1400));
            assert!(paths.lower(at(number), ip(number), 1300), "lowered again");
            assert!(paths.paths.len() <= LIMIT && paths.ends.len() == paths.paths.len());
        }
        // The oldest entries were evicted.
        assert_eq!(paths.mtu(at(5000), ip(5000 - LIMIT - 1)), 1500);
        assert_eq!(paths.mtu(at(5000), ip(5000 - LIMIT)), 1300);
        assert_eq!(paths.mtu(at(5000), ip(4999)), 1300);
        // All entries expire, and the next report removes them.
        assert_eq!(paths.mtu(at(604_999), ip(4999)), 1500);
        assert!(paths.lower(at(604_999), ip(1), 1400));
        assert_eq!((paths.paths.len(), paths.ends.len()), (1, 1));
    }

    #[test]
    fn no_path_is_narrower_than_its_ip_version_allows() {
        let mut paths = PathMtus::new(1500);
        assert!(paths.lower(Instant::ZERO, ip(1), 68));
        assert_eq!(paths.mtu(Instant::ZERO, ip(1)), LEAST_V4);
        assert!(!paths.lower(Instant::ZERO, ip(1), 600), "a report does not raise an MTU");
    }
}
