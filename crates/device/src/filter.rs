//! The packets that a device receives for the server. The control part takes filters, so that
//! unwanted packets cost no buffer and no copy. Without them, the engine filters in software.

use std::io;
use std::net::IpAddr;

use towpath_packet::{Headers, Network};

/// Packets that the server wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Filter {
    /// Packets to a MAC address: one of the host's own, or that of a multicast group.
    Address([u8; 6]),
    /// Packets to every group, broadcast included.
    AllGroups,
    /// All packets, whatever the other filters say (promiscuous mode).
    Everything,
    /// Packets of a flow.
    Flow(FlowRule),
}

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

/// A rule for received packets. A packet matches if it has every given field with the given value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowRule {
    /// The destination's MAC address.
    pub mac: Option<[u8; 6]>,
    /// The VLAN.
    pub vlan: FlowVlan,
    /// The ethertype behind a VLAN tag.
    pub ethertype: Option<u16>,
    /// The destination's IP address.
    pub ip: Option<IpAddr>,
    /// The IP protocol.
    pub protocol: Option<u8>,
    /// The destination port.
    pub port: Option<u16>,
    /// The source's IP address.
    pub remote_ip: Option<IpAddr>,
    /// The source port.
    pub remote_port: Option<u16>,
}

/// The reason why a device did not add a filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The device does not filter by this kind: it receives packets with any value of it.
    #[error("the device does not filter by this kind")]
    Unsupported,
    /// The device has no room for another filter of this kind. With [`Filter::Everything`] it
    /// receives the packets.
    #[error("the device has no room for another filter")]
    Full,
    /// The device has no room for another filter of this kind, and [`Filter::Everything`] does not replace it.
    #[error("the device has no room for another filter, and cannot receive everything instead")]
    NoRoom,
    /// The device did not add the filter, and [`Filter::Everything`] does not replace it.
    #[error("the device did not add a filter: {0}")]
    Failed(#[source] io::Error),
}

/// Returns the number of addresses among filters.
pub(crate) fn addresses_in(filters: &[Filter]) -> usize {
    filters.iter().filter(|one| matches!(one, Filter::Address(_))).count()
}

impl FlowRule {
    /// Returns `true` if a packet matches.
    #[must_use]
    pub fn matches(&self, headers: &Headers) -> bool {
        let (remote_ip, ip) = match &headers.network {
            Network::Ipv4(ip) => (Some(v4(ip.source)), Some(v4(ip.destination))),
            Network::Ipv6(ip) => (Some(v6(ip.source)), Some(v6(ip.destination))),
            Network::Arp(_) | Network::Other => (None, None),
        };
        let (remote_port, port) = headers.ports().unzip();
        let vlan = match self.vlan {
            FlowVlan::Any => true,
            FlowVlan::Untagged => headers.vlan.is_none(),
            FlowVlan::Number(number) => headers.vlan == Some(number),
        };
        vlan && fits(self.mac, Some(headers.destination))
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
    use towpath_packet::build::{Flow, Tcp};

    use super::*;

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
