//! The link addresses of other hosts, as far as they are known.

use std::collections::HashMap;
use std::net::IpAddr;

/// Other hosts whose link address the engine knows.
const MOST: usize = 1024;
/// How long it holds, in nanoseconds.
const HOLDS_NS: u64 = 60_000_000_000;

/// The link addresses of other hosts.
#[derive(Debug, Default)]
pub(super) struct LinkAddresses {
    known: HashMap<IpAddr, ([u8; 6], u64)>,
}

impl LinkAddresses {
    /// Returns the link address of a host.
    pub(super) fn get(&self, ip: IpAddr, now: u64) -> Option<[u8; 6]> {
        let (mac, at) = self.known.get(&ip)?;
        (now < at + HOLDS_NS).then_some(*mac)
    }

    pub(super) fn put(&mut self, ip: IpAddr, mac: [u8; 6], now: u64) {
        if self.known.len() >= MOST && !self.known.contains_key(&ip) {
            self.known.clear();
        }
        self.known.insert(ip, (mac, now));
    }
}
