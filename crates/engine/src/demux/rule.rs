//! The fields that flow rules ask of a packet, and the precedence of rules.

use std::net::IpAddr;

use towpath_packet::headers::{Headers, Network};
use towpath_packet::plain::{self, Plain, kind, link};
use towpath_packet::{FlowRule, FlowVlan};

/// Returns the fields that a rule gives.
#[must_use]
pub(crate) fn given_fields(rule: &FlowRule) -> Fields {
    let all = [
        (rule.mac.is_some(), MAC),
        (rule.vlan != FlowVlan::Any, VLAN),
        (rule.ethertype.is_some(), ETHERTYPE),
        (rule.protocol.is_some(), PROTOCOL),
        (rule.ip.is_some(), IP),
        (rule.port.is_some(), PORT),
        (rule.remote_ip.is_some(), REMOTE_IP),
        (rule.remote_port.is_some(), REMOTE_PORT),
    ];
    all.iter().filter(|(given, _)| *given).fold(0, |fields, (_, field)| fields | field)
}

/// Returns a rule's fields as a key.
#[must_use]
pub(crate) fn rule_key(rule: &FlowRule) -> Key {
    let ip = |ip: Option<IpAddr>| match ip {
        None => (0, 0),
        Some(IpAddr::V4(ip)) => (4, u128::from(ip.to_bits())),
        Some(IpAddr::V6(ip)) => (6, ip.to_bits()),
    };
    let (version, local) = ip(rule.ip);
    let (remote_version, remote) = ip(rule.remote_ip);
    let vlan = match rule.vlan {
        FlowVlan::Any | FlowVlan::Untagged => None,
        FlowVlan::Number(number) => Some(number),
    };
    [
        link(rule.mac.unwrap_or([0; 6]), vlan),
        kind(
            rule.ethertype.unwrap_or(0),
            rule.protocol.unwrap_or(0),
            version | remote_version,
            rule.port.unwrap_or(0),
        ) | u64::from(rule.remote_port.unwrap_or(0)) << REMOTE_PORT_AT,
        local as u64,
        (local >> 64) as u64,
        remote as u64,
        (remote >> 64) as u64,
    ]
}

/// A set of fields.
pub(crate) type Fields = u8;

// The order is that of precedence, the last the strongest.
pub(crate) const MAC: Fields = 1;
pub(crate) const VLAN: Fields = 2;
pub(crate) const ETHERTYPE: Fields = 4;
pub(crate) const PROTOCOL: Fields = 8;
pub(crate) const IP: Fields = 16;
pub(crate) const PORT: Fields = 32;
pub(crate) const REMOTE_IP: Fields = 64;
pub(crate) const REMOTE_PORT: Fields = 128;

/// The number of sets of fields.
pub(crate) const FIELD_SETS: usize = 256;

/// The index of each set, the more specific first. A set with more fields precedes one with fewer.
/// Among sets with equally many, the one with the strongest field in which they differ comes first.
pub(crate) const TABLE_INDEX: [u8; FIELD_SETS] = {
    let mut table_set = [0; FIELD_SETS];
    let mut one = 0;
    while one < FIELD_SETS {
        let mut other = 0;
        while other < FIELD_SETS {
            let (mine, theirs) = ((one as u8).count_ones(), (other as u8).count_ones());
            if theirs > mine || theirs == mine && other > one {
                table_set[one] += 1;
            }
            other += 1;
        }
        one += 1;
    }
    table_set
};

/// The parts of a packet that rules can ask for. The local side is stored as in [`plain::Key`],
/// with the remote port in the free bits of the second word. The remote IP address follows, low and
/// high.
pub(crate) type Key = [u64; 6];

const REMOTE_PORT_AT: u32 = 48;
/// The bits of a key's first word that are the MAC address.
pub(crate) const MAC_BITS: u64 = (1 << 48) - 1;

/// Returns the bits of a key that count for rules that give these fields.
pub(crate) const fn mask(fields: Fields) -> Key {
    const fn keep(given: bool, bits: u64) -> u64 {
        if given { bits } else { 0 }
    }
    let (ip, remote) = (fields & IP != 0, fields & REMOTE_IP != 0);
    [
        keep(fields & MAC != 0, MAC_BITS) | keep(fields & VLAN != 0, !MAC_BITS),
        keep(fields & ETHERTYPE != 0, 0xffff)
            | keep(fields & PROTOCOL != 0, 0xff << 16)
            | keep(ip || remote, 0xff << 24)
            | keep(fields & PORT != 0, 0xffff << 32)
            | keep(fields & REMOTE_PORT != 0, 0xffff << REMOTE_PORT_AT),
        keep(ip, u64::MAX),
        keep(ip, u64::MAX),
        keep(remote, u64::MAX),
        keep(remote, u64::MAX),
    ]
}

#[inline]
pub(crate) fn masked<const N: usize>(key: &Key, mask: &Key) -> [u64; N] {
    std::array::from_fn(|word| key[word] & mask[word])
}

/// The fields that a packet has, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookupKey {
    pub(crate) key: Key,
    pub(crate) has: Fields,
}

impl LookupKey {
    /// Reads a packet's headers; its destination is the local side.
    #[inline]
    pub(crate) fn of_packet(headers: &Headers) -> LookupKey {
        let mut has = MAC | VLAN | ETHERTYPE;
        let link = link(headers.destination, headers.vlan);
        let (version, protocol, local, remote, transport) = match &headers.network {
            Network::Ipv4(ip) => {
                let (local, remote) = (u128::from(ip.destination), u128::from(ip.source));
                (4, ip.protocol, local, remote, &ip.transport)
            }
            Network::Ipv6(ip) => (6, ip.protocol, ip.destination, ip.source, &ip.transport),
            Network::Arp(_) | Network::Other => {
                let kind = kind(headers.ethertype, 0, 0, 0);
                return LookupKey { key: [link, kind, 0, 0, 0, 0], has };
            }
        };
        has |= PROTOCOL | IP | REMOTE_IP;
        let mut ports = (0, 0);
        if let Some(both) = transport.ports() {
            ports = both;
            has |= PORT | REMOTE_PORT;
        }
        let kind = kind(headers.ethertype, protocol, version, ports.1)
            | u64::from(ports.0) << REMOTE_PORT_AT;
        let key =
            [link, kind, local as u64, (local >> 64) as u64, remote as u64, (remote >> 64) as u64];
        LookupKey { key, has }
    }

    /// Returns the first words of a plain packet's key: those of its local side.
    #[inline(always)]
    pub(crate) fn local(packet: &Plain) -> plain::Key {
        let [link, kind, low, high] = packet.destination;
        // Above the port, the second word of either side is empty.
        [link, kind | packet.source[1] >> 32 << REMOTE_PORT_AT, low, high]
    }

    /// Reads a plain packet.
    #[inline]
    pub(crate) fn of_plain(packet: &Plain) -> LookupKey {
        let [link, kind, low, high] = LookupKey::local(packet);
        let [_, _, remote_low, remote_high] = packet.source;
        LookupKey { key: [link, kind, low, high, remote_low, remote_high], has: Fields::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_specific_field_sets_come_first() {
        let mut command: Vec<Fields> = (0..=Fields::MAX).collect();
        command.sort_by_key(|fields| TABLE_INDEX[usize::from(*fields)]);
        assert_eq!(command.first(), Some(&Fields::MAX));
        assert_eq!(command.last(), Some(&0));
        for pair in command.windows(2) {
            let rank = |fields: Fields| (fields.count_ones(), fields);
            assert!(rank(pair[0]) > rank(pair[1]), "{pair:?}");
        }
        let before = |one: Fields, other: Fields| {
            TABLE_INDEX[usize::from(one)] < TABLE_INDEX[usize::from(other)]
        };
        assert!(before(MAC | PORT, MAC | IP) && before(MAC | IP, MAC | PROTOCOL));
        assert!(before(MAC | VLAN | PROTOCOL, REMOTE_IP | REMOTE_PORT), "more fields come first");
    }
}
