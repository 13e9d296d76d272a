//! Link addresses: those of other hosts, and answers for endpoints here.
//!
//! Endpoints may have no stack of their own, so the engine answers for their addresses, and asks for
//! others. An endpoint with a stack answers the same.

use std::net::IpAddr;

use towpath_packet::build::Flow;
use towpath_packet::headers::{Headers, Network};
use towpath_packet::roce::UDP_PORT;
use towpath_packet::transport::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Transport};

use super::table::{RemoteTable, State};

/// `true` if a packet is for connections with other hosts, or tells of a link address.
pub(crate) fn concerns(headers: &Headers) -> bool {
    match (&headers.network, headers.transport()) {
        (Network::Arp(_), _) => true,
        (Network::Ipv6(_), Transport::Neighbour { .. }) => true,
        (_, Transport::Udp { destination, .. }) => destination == UDP_PORT,
        _ => false,
    }
}

impl RemoteTable {
    /// Returns the link address for packets from an address here; `None` if it is not known, and
    /// asks for it.
    pub(super) fn link_address(&mut self, own: IpAddr, to: IpAddr) -> Option<[u8; 6]> {
        let (address, _) = *self.own.get(&own)?;
        let hop = address.next_hop(own, to);
        if let Some(mac) = self.link_addresses.get(hop, self.now) {
            return Some(mac);
        }
        let flow = Flow::v4().macs(address.mac, [0; 6]).addresses(own, hop);
        self.send_frame(flow.who_has());
        None
    }

    /// Handles a frame of ARP or neighbour discovery; ignores any other, and one within a VLAN.
    pub(super) fn neighbour_frame(&mut self, headers: &Headers) {
        if headers.is_tagged() {
            return;
        }
        let (asked, asker, mac) = match &headers.network {
            Network::Arp(arp) => {
                let sender = (IpAddr::V4(arp.sender_ip.into()), arp.sender_mac);
                let asked = (arp.operation == 1).then(|| IpAddr::V4(arp.target_ip.into()));
                (asked, sender.0, sender.1)
            }
            Network::Ipv6(ip) => match ip.transport {
                Transport::Neighbour { kind: NEIGHBOUR_SOLICITATION, target } => {
                    let asker = IpAddr::V6(ip.source.into());
                    (Some(IpAddr::V6(target.into())), asker, headers.source)
                }
                Transport::Neighbour { kind: NEIGHBOUR_ADVERTISEMENT, target } => {
                    (None, IpAddr::V6(target.into()), headers.source)
                }
                _ => return,
            },
            Network::Ipv4(_) | Network::Other => return,
        };
        // No router forwards a packet with this limit (RFC 4861, section 7.1).
        let is_near = match &headers.network {
            Network::Ipv6(ip) => ip.hops == 255,
            _ => true,
        };
        if !is_near || asker.is_unspecified() || mac[0] & 1 != 0 || self.own.contains_key(&asker) {
            return;
        }
        match asked {
            Some(asked) => {
                let Some((own, _)) = self.own.get(&asked) else { return };
                let flow = Flow::v4().macs(own.mac, mac).addresses(asked, asker);
                self.send_frame(flow.i_have());
            }
            None if !self.awaits(asker) => return,
            None => {}
        }
        self.link_addresses.put(asker, mac, self.now);
        self.learnt();
    }

    /// `true` if a connection waits for the link address of a host.
    fn awaits(&self, ip: IpAddr) -> bool {
        self.connections.values().any(|one| {
            let own = self.own.get(&one.path.source);
            let hop = own.map(|(own, _)| own.next_hop(one.path.source, one.path.destination));
            matches!(one.state, State::Asking(_)) && hop == Some(ip)
        })
    }

    /// Lets connections go on that waited for a link address.
    fn learnt(&mut self) {
        let waits = |one: &super::table::Remote| {
            matches!(one.state, State::Asking(_)) && one.path.destination_mac == [0; 6]
        };
        let all = self.connections.iter().filter(|(_, one)| waits(one));
        let all: Vec<u32> = all.map(|(qpn, _)| *qpn).collect();
        for qpn in all {
            self.make_ready(qpn);
        }
    }
}
