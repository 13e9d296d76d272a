//! Endpoints of sessions that share their MAC address with another session, and need the packets that keep the link
//! working.
//!
//! Two sessions have one address while one replaces the other. The answers of neighbours and the messages of routers are
//! for both, and no flow rule tells them apart. So each session gets a copy.

use std::collections::HashMap;

use towpath_packet::headers::{
    ETHERTYPE_ARP, Fragment, Headers, Network, PROTOCOL_ICMP, PROTOCOL_ICMPV6,
};
use towpath_packet::{FlowRule, FlowVlan};

use super::destination::Destination;

/// A MAC address and the VLAN's number.
type Place = ([u8; 6], Option<u16>);

/// The bits of a VLAN tag that are the VLAN's number (IEEE 802.1Q, 9.6).
const NUMBER: u16 = 0x0fff;

/// The endpoints by their MAC addresses and VLANs.
#[derive(Debug, Default)]
pub(crate) struct Companions {
    by_place: HashMap<Place, Vec<Destination>>,
}

impl Companions {
    /// Adds an endpoint, by the MAC address and the VLAN of a rule. A rule for several of either has no companions.
    pub(crate) fn insert(&mut self, rule: &FlowRule, destination: Destination) {
        let vlan = match rule.vlan {
            FlowVlan::Any => return,
            FlowVlan::Untagged => None,
            FlowVlan::Number(number) => Some(number),
        };
        if let Some(mac) = rule.mac {
            self.by_place.entry((mac, vlan)).or_default().push(destination);
        }
    }

    /// Removes an endpoint, if it is here.
    pub(crate) fn remove(&mut self, destination: Destination) {
        self.by_place.retain(|_, all| {
            all.retain(|one| *one != destination);
            !all.is_empty()
        });
    }

    /// Returns `true` if there are no such endpoints, as usual.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Appends the endpoints that get a copy of a packet: ARP, ICMP, ICMPv6, or a later fragment, which has no ports. Leaves
    /// out those of the sessions that receive the packet already.
    #[cold]
    #[inline(never)]
    pub(crate) fn append(&self, headers: &Headers, found: &mut Vec<Destination>) {
        let is_for_all = headers.ethertype == ETHERTYPE_ARP
            || matches!(headers.protocol(), Some(PROTOCOL_ICMP | PROTOCOL_ICMPV6))
            || is_later_fragment(headers);
        if !is_for_all {
            return;
        }
        let place = (headers.destination, headers.vlan.map(|tag| tag & NUMBER));
        for one in self.by_place.get(&place).into_iter().flatten() {
            if found.iter().all(|receiver| receiver.session != one.session) {
                found.push(*one);
            }
        }
    }
}

fn is_later_fragment(headers: &Headers) -> bool {
    let fragment = match headers.network {
        Network::Ipv4(ip) => ip.fragment,
        Network::Ipv6(ip) => ip.fragment,
        _ => return false,
    };
    matches!(fragment, Fragment::Later { .. })
}

#[cfg(test)]
mod tests {
    use towpath_packet::build::Flow;

    use super::*;

    fn parse(frame: &[u8]) -> Headers {
        Headers::parse(frame, frame.len()).unwrap()
    }

    fn copies(companions: &Companions, headers: &Headers, found: &[Destination]) -> Vec<u32> {
        let mut all = found.to_vec();
        companions.append(headers, &mut all);
        all[found.len()..].iter().map(|one| one.session).collect()
    }

    #[test]
    fn link_control_packets_reach_each_session_of_an_address_once() {
        let flow = Flow::v4();
        let of = |session| Destination { session, endpoint: 3 };
        let rule = FlowRule {
            mac: Some(flow.destination_mac),
            vlan: FlowVlan::Untagged,
            ..FlowRule::default()
        };
        let mut companions = Companions::default();
        assert!(companions.is_empty());
        companions.insert(&rule, of(1));
        companions.insert(&rule, of(2));
        companions.insert(&FlowRule { vlan: FlowVlan::Number(7), ..rule }, of(4));
        companions.insert(&FlowRule { vlan: FlowVlan::Any, ..rule }, of(5));
        companions.insert(&FlowRule { mac: None, ..rule }, of(6));
        let answer = parse(&flow.i_have());
        assert_eq!(copies(&companions, &answer, &[of(1)]), [2], "session 1 receives it already");
        assert_eq!(copies(&companions, &answer, &[of(9)]), [1, 2]);
        let echo = flow.echo(true, 1, 1, b"x");
        assert_eq!(copies(&companions, &parse(&echo), &[]), [1, 2]);
        let echo = Flow::v6().macs(flow.source_mac, flow.destination_mac).echo(true, 1, 1, b"x");
        assert_eq!(copies(&companions, &parse(&echo), &[]), [1, 2]);
        // The tag's priority does not count.
        let echo = flow.vlan(0x6007).echo(true, 1, 1, b"x");
        assert_eq!(copies(&companions, &parse(&echo), &[]), [4]);
        assert_eq!(copies(&companions, &parse(&flow.udp(b"x")), &[]), []);
        let elsewhere = flow.macs(flow.source_mac, [2, 0, 0, 0, 0, 99]).i_have();
        assert_eq!(copies(&companions, &parse(&elsewhere), &[]), []);
        companions.remove(of(1));
        companions.remove(of(4));
        assert_eq!(copies(&companions, &answer, &[]), [2]);
        companions.remove(of(2));
        assert!(companions.is_empty());
    }
}
