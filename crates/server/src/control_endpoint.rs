//! An endpoint, as the control thread knows it.

use std::net::IpAddr;

use towpath_device::{TagProtocol, VlanTag};
use towpath_engine::commands::Listening;
use towpath_engine::remote::own_address::OwnAddress;
use towpath_engine::rights::Addresses;
use towpath_packet::headers::PROTOCOL_UDP;
use towpath_packet::roce::UDP_PORT;
use towpath_packet::{FlowRule, FlowVlan};
use towpath_protocol::oob::OobAddress;
use towpath_protocol::settings::Values;

use crate::addresses::Lease;
use crate::policy::{Roles, Terms};

/// The control thread's view of an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControlEndpoint {
    /// The packets that the endpoint receives.
    pub(crate) rule: FlowRule,
    /// The way in which the endpoint listens without a rule.
    pub(crate) listening: Option<Listening>,
    /// `true` if the endpoint has no rule, because it asks for link addresses.
    pub(crate) is_for_neighbours: bool,
    /// `true` if the endpoint also receives broadcast and multicast.
    pub(crate) group: bool,
    /// `true` if the endpoint takes large packets and packets with partial checksums.
    pub(crate) offload: bool,
    /// `true` if the endpoint receives and sends packets without the tag of its rule's VLAN.
    pub(crate) within_vlan: bool,
    /// The endpoint's queue pair.
    pub(crate) queue_pair: u32,
    /// `true` if the endpoint may send, within its rule.
    pub(crate) sends: bool,
    /// The parts in the network that the endpoint may play, and whether its ethertype needs none.
    pub(crate) roles: (Roles, bool),
    /// `true` if the server closed the endpoint because the policy changed. It receives and sends
    /// nothing. Its number stays in use until the application closes the endpoint.
    pub(crate) revoked: bool,
    /// `true` if the endpoint takes and sends out-of-band messages.
    pub(crate) out_of_band: bool,
    /// The endpoint's addresses for out-of-band messages.
    pub(crate) oob: Vec<OobAddress>,
    /// The IP addresses at which endpoints of other hosts may connect with this one.
    pub(crate) reachable: Vec<(IpAddr, OwnAddress)>,
    /// The number of the request that opened the endpoint.
    pub(crate) sequence: u32,
    /// The endpoint's settings.
    pub(crate) settings: Values,
    /// The priority that the endpoint was granted; the application may go below it, and back.
    pub(crate) granted_priority: u64,
}

impl ControlEndpoint {
    /// Returns `true` if the endpoint receives by its flow rule.
    pub(crate) fn has_rule(&self) -> bool {
        self.listening.is_none() && !self.is_for_neighbours
    }

    /// Returns the endpoint's addresses for out-of-band messages, in a session with these
    /// addresses: none if the endpoint takes none, or has an address that is not the session's.
    pub(crate) fn oob_addresses(&self, session: &Addresses) -> Vec<OobAddress> {
        let all = oob_addresses(&self.rule, session);
        all.filter(|_| self.out_of_band).collect()
    }

    /// Returns `true` if the endpoint's rule is for the port of connections with other hosts.
    pub(crate) fn is_rdma(&self) -> bool {
        self.rule.port == Some(UDP_PORT) && self.rule.protocol.is_none_or(|one| one == PROTOCOL_UDP)
    }

    /// Lets endpoints of other hosts connect with this one, if it takes out-of-band messages, its user has
    /// the right to it, and its address is not the host's, whose UDP port 4791 is the kernel's.
    pub(crate) fn allow_other_hosts(&mut self, lease: &Lease, terms: &Terms) {
        if !self.out_of_band || !terms.rdma || lease.shared {
            return;
        }
        let ipv4 =
            lease.ipv4.map(|(ip, bits)| (IpAddr::V4(ip), bits, lease.ipv4_gateway.map(IpAddr::V4)));
        let ipv6 =
            lease.ipv6.map(|(ip, bits)| (IpAddr::V6(ip), bits, lease.ipv6_gateway.map(IpAddr::V6)));
        let all = [ipv4, ipv6].into_iter().flatten();
        let all = all.filter(|(ip, ..)| self.rule.ip.is_none_or(|own| own == *ip));
        let mac = lease.mac;
        self.reachable =
            all.map(|(ip, bits, gateway)| (ip, OwnAddress { mac, bits, gateway })).collect();
    }

    /// Returns the tag of the VLAN that the endpoint lies within, as it is in packets that the
    /// endpoint sends.
    pub(crate) fn tag(&self) -> Option<VlanTag> {
        match self.rule.vlan {
            FlowVlan::Number(control) if self.within_vlan => {
                Some(VlanTag { protocol: TagProtocol::Customer, control })
            }
            _ => None,
        }
    }
}

/// Returns the addresses of a flow rule for out-of-band messages, in a session with these
/// addresses.
pub(crate) fn oob_addresses(
    rule: &FlowRule,
    session: &Addresses,
) -> impl Iterator<Item = OobAddress> + use<> {
    let (local, ports) = (rule.ip, rule.protocol.zip(rule.port));
    let ips = session.all().filter(move |ip| local.is_none_or(|own| own == *ip));
    ips.filter_map(move |ip| ports.map(|(protocol, port)| OobAddress { ip, protocol, port }))
}

#[cfg(test)]
impl ControlEndpoint {
    /// Makes an endpoint that receives the packets of a rule, for tests.
    pub(crate) fn of_rule(rule: FlowRule) -> ControlEndpoint {
        ControlEndpoint { rule, sends: true, ..ControlEndpoint::default() }
    }
}
