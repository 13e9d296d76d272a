//! The largest packets that paths carry, as routers told (RFC 1191, RFC 8201).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::Instant;

/// Paths remembered; beyond that one gives way.
const LIMIT: usize = 1024;
/// How long a router's word is taken (RFC 1191, 6.3: ten minutes).
const LIFETIME: Duration = Duration::from_secs(600);
/// Less than this no IPv4 router has a reason to say (RFC 1191 has 68; 552 is what Linux takes).
const LEAST_V4: usize = 552;
/// What every IPv6 link carries (RFC 8200, 5).
const LEAST_V6: usize = 1280;

/// The table.
pub(crate) struct PathMtus {
    link: usize,
    paths: HashMap<IpAddr, (usize, Instant)>,
}

impl PathMtus {
    pub(crate) fn new(link: usize) -> Self {
        PathMtus { link, paths: HashMap::new() }
    }

    /// The largest packet to `address`, in bytes.
    pub(crate) fn mtu(&self, now: Instant, address: IpAddr) -> usize {
        match self.paths.get(&address) {
            Some(&(mtu, until)) if now < until => mtu,
            _ => self.link,
        }
    }

    /// A router said that packets to `address` may be `mtu` bytes at most. Whether that is news.
    pub(crate) fn lower(&mut self, now: Instant, address: IpAddr, mtu: usize) -> bool {
        let least = if address.is_ipv4() { LEAST_V4 } else { LEAST_V6 };
        let mtu = mtu.max(least);
        if mtu >= self.mtu(now, address) {
            return false;
        }
        if self.paths.len() >= LIMIT && !self.paths.contains_key(&address) {
            self.paths.retain(|_, (_, until)| now < *until);
            if self.paths.len() >= LIMIT
                && let Some(any) = self.paths.keys().next().copied()
            {
                self.paths.remove(&any);
            }
        }
        self.paths.insert(address, (mtu, now + LIFETIME));
        true
    }
}
