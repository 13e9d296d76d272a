//! Flow rules: the fields that the packets of a flow have.

use std::net::IpAddr;

use crate::headers::{Headers, Network};

/// The VLANs whose packets match a flow rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowVlan {
    /// Any VLAN, and none.
    #[default]
    Any,
    /// No VLAN: untagged, or with a tag that carries only a priority (IEEE 802.1Q, 9.6).
    Untagged,
    /// One VLAN, 1 to 4094.
    Number(u16),
}

impl FlowVlan {
    /// Returns `true` if a packet of this VLAN matches.
    #[inline]
    #[must_use]
    pub fn matches(self, vlan: Option<u16>) -> bool {
        match self {
            FlowVlan::Any => true,
            FlowVlan::Untagged => vlan.is_none(),
            FlowVlan::Number(number) => vlan == Some(number),
        }
    }
}

/// The fields that a packet must match. A rule may omit any field, which then does not count.
///
/// The local side is the destination of a received packet and the source of a sent one; the remote
/// side is the opposite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowRule {
    /// Local MAC address.
    pub mac: Option<[u8; 6]>,
    /// VLAN.
    pub vlan: FlowVlan,
    /// Ethertype, behind a VLAN tag.
    pub ethertype: Option<u16>,
    /// Local IP address.
    pub ip: Option<IpAddr>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Local port, of any protocol that has ports.
    pub port: Option<u16>,
    /// Remote IP address.
    pub remote_ip: Option<IpAddr>,
    /// Remote port.
    pub remote_port: Option<u16>,
}

impl FlowRule {
    /// Returns `true` if the rule asks for more than the Ethernet header's fields.
    #[must_use]
    pub fn asks_for_ip(&self) -> bool {
        let addresses = self.ip.is_some() || self.remote_ip.is_some();
        let ports = self.port.is_some() || self.remote_port.is_some();
        addresses || self.protocol.is_some() || ports
    }

    /// Returns `true` if a received packet matches.
    #[must_use]
    pub fn matches(&self, headers: &Headers) -> bool {
        let (remote_ip, ip) = match &headers.network {
            Network::Ipv4(ip) => (Some(v4(ip.source)), Some(v4(ip.destination))),
            Network::Ipv6(ip) => (Some(v6(ip.source)), Some(v6(ip.destination))),
            Network::Arp(_) | Network::Other => (None, None),
        };
        let (remote_port, port) = headers.ports().unzip();
        self.vlan.matches(headers.vlan)
            && fits(self.mac, Some(headers.destination))
            && fits(self.ethertype, Some(headers.ethertype))
            && fits(self.ip, ip)
            && fits(self.protocol, headers.protocol())
            && fits(self.port, port)
            && fits(self.remote_ip, remote_ip)
            && fits(self.remote_port, remote_port)
    }
}

fn v4(bits: u32) -> IpAddr {
    IpAddr::V4(bits.into())
}

fn v6(bits: u128) -> IpAddr {
    IpAddr::V6(bits.into())
}

/// Returns `true` if a field is not given, or the packet has it with the given value.
fn fits<T: PartialEq>(given: Option<T>, has: Option<T>) -> bool {
    given.is_none() || given == has
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{Flow, Tcp};

    fn headers(frame: &[u8]) -> Headers {
        Headers::parse(frame, frame.len()).unwrap()
    }

    #[test]
    fn a_packet_has_every_given_field() {
        let flow = Flow::v4().ports(1000, 2000).vlan(7);
        let udp = headers(&flow.udp(b"hello"));
        let all = FlowRule {
            mac: Some(flow.destination_mac),
            vlan: FlowVlan::Number(7),
            ethertype: Some(0x0800),
            ip: Some(flow.destination),
            protocol: Some(17),
            port: Some(2000),
            remote_ip: Some(flow.source),
            remote_port: Some(1000),
        };
        assert!(all.matches(&udp) && FlowRule::default().matches(&udp));
        for other in [
            FlowRule { mac: Some([2; 6]), ..all },
            FlowRule { vlan: FlowVlan::Untagged, ..all },
            FlowRule { vlan: FlowVlan::Number(8), ..all },
            FlowRule { ethertype: Some(0x0806), ..all },
            FlowRule { ip: Some(flow.source), ..all },
            FlowRule { protocol: Some(6), ..all },
            FlowRule { port: Some(1000), ..all },
            FlowRule { remote_ip: Some(flow.destination), ..all },
            FlowRule { remote_port: Some(2000), ..all },
        ] {
            assert!(!other.matches(&udp), "{other:?}");
        }
        let priority = headers(&Flow::v6().vlan(0xe000).tcp(&Tcp::default(), b"hello"));
        let untagged = FlowRule { vlan: FlowVlan::Untagged, ..FlowRule::default() };
        assert!(untagged.matches(&priority), "a priority alone");
        let mut unknown = vec![0; 60];
        unknown[12..14].copy_from_slice(&[0x88, 0xb5]);
        let port = FlowRule { port: Some(0), ..FlowRule::default() };
        assert!(!port.matches(&headers(&unknown)), "a packet without the field");
    }
}
