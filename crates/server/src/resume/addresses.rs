//! The addresses of a session in its record.

use std::net::{Ipv4Addr, Ipv6Addr};

use towpath_queue::{OwnWords, PeerWords};

use crate::addresses::Lease;

/// The words of the record.
const HOST_NUMBER: usize = 11;
const MAC: usize = 12;
const IPV4: usize = 13;
const IPV6: usize = 15;

/// The bit that marks an address as given.
const GIVEN: u64 = 1 << 63;

/// The addresses of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedAddresses {
    /// The index in the pool.
    pub(crate) host_number: u32,
    pub(crate) shared: bool,
    pub(crate) mac: [u8; 6],
    pub(crate) ipv4: Option<(Ipv4Addr, u8)>,
    pub(crate) ipv6: Option<(Ipv6Addr, u8)>,
}

impl RecordedAddresses {
    pub(crate) fn of(lease: &Lease) -> RecordedAddresses {
        let Lease { shared, mac, ipv4, ipv6, .. } = *lease;
        RecordedAddresses { host_number: lease.host_number(), shared, mac, ipv4, ipv6 }
    }

    /// Writes the addresses into a new record, except `shared`, which is one of the record's flags.
    pub(super) fn write(&self, words: &mut OwnWords) {
        words.store(HOST_NUMBER, self.host_number.into());
        let [a, b, c, d, e, f] = self.mac;
        words.store(MAC, u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
        if let Some((ip, prefix)) = self.ipv4 {
            words.store(IPV4, GIVEN | u64::from(ip.to_bits()) | u64::from(prefix) << 32);
        }
        if let Some((ip, prefix)) = self.ipv6 {
            words.store(IPV6, ip.to_bits() as u64);
            words.store(IPV6 + 1, (ip.to_bits() >> 64) as u64);
            words.store(IPV6 + 2, GIVEN | u64::from(prefix));
        }
    }

    /// Reads the addresses from a record. `shared`: the record's flag.
    pub(super) fn read(words: &PeerWords, shared: bool) -> RecordedAddresses {
        let get = |index| words.fetch(index);
        let [a, b, c, d, e, f, ..] = get(MAC).to_le_bytes();
        let has = |index| get(index) & GIVEN != 0;
        let ipv4 = || (Ipv4Addr::from_bits(get(IPV4) as u32), (get(IPV4) >> 32) as u8);
        let ipv6 = u128::from(get(IPV6)) | u128::from(get(IPV6 + 1)) << 64;
        RecordedAddresses {
            host_number: get(HOST_NUMBER) as u32,
            shared,
            mac: [a, b, c, d, e, f],
            ipv4: has(IPV4).then(ipv4),
            ipv6: has(IPV6 + 2).then(|| (Ipv6Addr::from_bits(ipv6), get(IPV6 + 2) as u8)),
        }
    }
}
