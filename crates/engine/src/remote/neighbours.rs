//! Link addresses: those of other hosts, and answers for endpoints here.
//!
//! Endpoints may have no stack of their own, so the engine answers for their addresses, and asks for
//! others. An endpoint with a stack answers the same.

use std::net::IpAddr;

use towpath_packet::build::Flow;
use towpath_packet::headers::{Headers, Network};
use towpath_packet::mld;
use towpath_packet::roce::UDP_PORT;
use towpath_packet::transport::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Transport};

use super::table::RemoteTable;

/// `true` if a packet is for connections with other hosts, tells of a link address, or asks for multicast groups.
pub(crate) fn concerns(headers: &Headers) -> bool {
    match (&headers.network, headers.transport()) {
        (Network::Arp(_), _) => true,
        (Network::Ipv6(_), Transport::Neighbour { .. }) => true,
        (Network::Ipv6(_), Transport::Icmp { kind: mld::QUERY, .. }) => true,
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
            None if self.lists.waiting_for(asker).next().is_none() => return,
            None => {}
        }
        self.link_addresses.put(asker, mac, self.now);
        let waiting: Vec<u32> = self.lists.waiting_for(asker).collect();
        waiting.into_iter().for_each(|qpn| self.make_ready(qpn));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use towpath_protocol::oob::OobAddress;

    use super::super::ledger::LEDGER_BYTES;
    use super::super::own_address::OwnAddress;
    use super::*;
    use crate::account::Account;
    use crate::oob::connection::EndpointName;

    const OWN: [u8; 6] = [2; 6];
    const ACCOUNT: Account = Account { uid: 9, group: None, is_limited: true };

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    /// A host of the network answers that it has an address.
    fn answers(table: &mut RemoteTable, from: u8) {
        let mac = [4, 0, 0, 0, 0, from];
        let frame = Flow::v4().macs(mac, OWN).addresses(ip(from), ip(1)).i_have();
        table.neighbour_frame(&Headers::parse(&frame, frame.len()).unwrap());
    }

    /// Only the answer of the host that packets go to first counts, and only the connections that
    /// wait for it go on.
    #[test]
    fn an_answer_is_for_the_connections_that_wait_for_it() {
        let ledger = towpath_memory::Region::private(LEDGER_BYTES).unwrap();
        let mut table = RemoteTable::new(Some(ledger), 1_500);
        let gateway = Some(ip(254));
        table.add_addresses(&[(ip(1), OwnAddress { mac: OWN, bits: 24, gateway })]);
        let owner = EndpointName { session: 1, endpoint: 0 };
        let address = |ip| OobAddress { ip, protocol: 6, port: 7 };
        let [near, far] = [ip(2), Ipv4Addr::new(198, 51, 100, 7).into()]
            .map(|peer| table.request(owner, ACCOUNT, address(ip(1)), address(peer), b"").unwrap());
        let ready = |table: &mut RemoteTable| {
            let mut ready: Vec<u32> = std::iter::from_fn(|| table.next_ready()).collect();
            ready.sort_unstable();
            ready
        };
        assert_eq!(ready(&mut table).len(), 2);
        answers(&mut table, 7);
        assert!(ready(&mut table).is_empty());
        assert_eq!(table.link_addresses.get(ip(7), 0), None);
        answers(&mut table, 254);
        assert_eq!(ready(&mut table), [far]);
        answers(&mut table, 2);
        assert_eq!(ready(&mut table), [near]);
        // Once it has the address, it waits for no other answer.
        let mut one = table.take(far).unwrap();
        assert!(table.attempt(&mut one));
        assert_eq!(one.path.destination_mac, [4, 0, 0, 0, 0, 254]);
        table.put(far, one);
        answers(&mut table, 254);
        assert!(ready(&mut table).is_empty());
        // Nor does one that has ended.
        let one = table.take(near).unwrap();
        table.drop_taken(near, &one);
        answers(&mut table, 2);
        assert!(ready(&mut table).is_empty());
        assert_eq!(table.lists.of(ACCOUNT), 1);
    }
}
