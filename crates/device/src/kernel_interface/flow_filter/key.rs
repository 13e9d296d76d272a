//! The key of a flow: the fields of a packet that a rule can name, and the mask of those that it
//! does name.

use std::net::IpAddr;

use crate::{FlowRule, FlowVlan};

/// Bytes of the fields of a packet. Numbers are in the host's order, addresses in the network's.
pub(super) const FIELDS_BYTES: usize = 48;
/// The offsets of the fields, in bytes.
pub(super) const MAC: usize = 0;
/// The VLAN's number; 0 for none.
pub(super) const VLAN: usize = 6;
pub(super) const ETHERTYPE: usize = 8;
pub(super) const PROTOCOL: usize = 10;
/// Bits: which of the other fields the packet has.
pub(super) const HAS: usize = 11;
/// The destination's port.
pub(super) const LOCAL_PORT: usize = 12;
/// The source's port.
pub(super) const REMOTE_PORT: usize = 14;
/// The destination's address; IPv4 in the first four bytes.
pub(super) const LOCAL_IP: usize = 16;
/// The source's address.
pub(super) const REMOTE_IP: usize = 32;

/// The packet has a valid IP header.
pub(super) const HAS_IP: u8 = 1;
/// That header is IPv6's.
pub(super) const HAS_IPV6: u8 = 2;
/// The packet has ports.
pub(super) const HAS_PORTS: u8 = 4;

/// The fields of a packet or of a rule, or a mask of them.
pub(super) type Fields = [u8; FIELDS_BYTES];

/// A key in the map of flows: fields, the number of their mask, and four zeros.
pub(super) const KEY_BYTES: usize = FIELDS_BYTES + 8;
pub(super) type Key = [u8; KEY_BYTES];

/// Returns a rule's key in the map of flows.
pub(super) fn key(fields: &Fields, mask_number: u32) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..FIELDS_BYTES].copy_from_slice(fields);
    key[FIELDS_BYTES..FIELDS_BYTES + 4].copy_from_slice(&mask_number.to_ne_bytes());
    key
}

/// Returns the number of the mask of a key.
pub(super) fn mask_number(key: &Key) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&key[FIELDS_BYTES..FIELDS_BYTES + 4]);
    u32::from_ne_bytes(number)
}

/// The fields and the mask of a rule, while they are put together.
struct Building {
    fields: Fields,
    mask: Fields,
}

impl Building {
    fn give(&mut self, at: usize, value: &[u8]) {
        self.fields[at..at + value.len()].copy_from_slice(value);
        self.mask[at..at + value.len()].fill(0xff);
    }

    fn require(&mut self, bits: u8, of: u8) {
        self.fields[HAS] |= bits;
        self.mask[HAS] |= of;
    }

    fn address(&mut self, at: usize, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => {
                self.give(at, &ip.octets());
                self.require(HAS_IP, HAS_IP | HAS_IPV6);
            }
            IpAddr::V6(ip) => {
                self.give(at, &ip.octets());
                self.require(HAS_IP | HAS_IPV6, HAS_IP | HAS_IPV6);
            }
        }
    }
}

/// Returns the fields that a rule names, and their mask.
pub(super) fn of_rule(rule: &FlowRule) -> (Fields, Fields) {
    let mut of = Building { fields: [0; FIELDS_BYTES], mask: [0; FIELDS_BYTES] };
    if let Some(mac) = rule.mac {
        of.give(MAC, &mac);
    }
    match rule.vlan {
        FlowVlan::Any => {}
        FlowVlan::Untagged => of.give(VLAN, &[0; 2]),
        FlowVlan::Number(number) => of.give(VLAN, &number.to_ne_bytes()),
    }
    if let Some(ethertype) = rule.ethertype {
        of.give(ETHERTYPE, &ethertype.to_ne_bytes());
    }
    if let Some(protocol) = rule.protocol {
        of.give(PROTOCOL, &[protocol]);
        of.require(HAS_IP, HAS_IP);
    }
    for (at, ip) in [(LOCAL_IP, rule.ip), (REMOTE_IP, rule.remote_ip)] {
        if let Some(ip) = ip {
            of.address(at, ip);
        }
    }
    for (at, port) in [(LOCAL_PORT, rule.port), (REMOTE_PORT, rule.remote_port)] {
        if let Some(port) = port {
            of.give(at, &port.to_ne_bytes());
            of.require(HAS_PORTS, HAS_PORTS);
        }
    }
    (of.fields, of.mask)
}
