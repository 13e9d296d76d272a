//! The flow rules, ports and out-of-band addresses of all open endpoints.

use std::collections::HashMap;

use towpath_engine::demux::{SETS_PER_MAC, Sets};
use towpath_packet::FlowRule;
use towpath_protocol::message::Refusal;
use towpath_protocol::oob::OobAddress;

use crate::addresses::Lease;
use crate::control_endpoint::{ControlEndpoint, oob_addresses};
use crate::policy::{PortRange, Terms};
use crate::ports_in_use::{Ports, PortsInUse, free_ports};
use crate::refusal::Refused;

/// The flow rules of all sessions, and the ports and out-of-band addresses of their endpoints.
#[derive(Debug, Default)]
pub(crate) struct RulesInUse {
    /// The owner of each flow rule.
    owners: HashMap<FlowRule, u32>,
    sets: Sets,
    /// The ports of flow rules, by the rules without their ports.
    ports: PortsInUse<FlowRule>,
    /// The ports at which endpoints take out-of-band messages, by the addresses without their ports.
    oob_ports: PortsInUse<OobAddress>,
    /// `true` if endpoints may connect with other hosts.
    has_rdma: bool,
}

fn without_port(rule: &FlowRule) -> FlowRule {
    FlowRule { port: None, ..*rule }
}

impl RulesInUse {
    /// Begins without endpoints. `has_rdma`: `true` if endpoints may connect with other hosts.
    pub(crate) fn new(has_rdma: bool) -> RulesInUse {
        RulesInUse { has_rdma, ..RulesInUse::default() }
    }

    /// Returns `true` if endpoints may connect with other hosts.
    pub(crate) fn has_rdma(&self) -> bool {
        self.has_rdma
    }

    /// Checks that the port of an endpoint is not the server's own.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn check_reserved_port(&self, opened: &ControlEndpoint) -> Result<(), Refused> {
        if !self.has_rdma || !opened.is_rdma() {
            return Ok(());
        }
        let text = "open: UDP port 4791 is the server's, for connections with other hosts; choose \
                    another port";
        Err((Refusal::InUse, text.to_owned()))
    }

    /// Returns the session that has a flow rule.
    pub(crate) fn owner_of(&self, rule: &FlowRule) -> Option<u32> {
        self.owners.get(rule).copied()
    }

    /// Checks that no other endpoint has the flow rule of a new one, and that the engines have room for it. `lease`: that
    /// of the endpoint's session.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn check(&self, opened: &ControlEndpoint, lease: &Lease) -> Result<(), Refused> {
        if !opened.has_rule() {
            return Ok(());
        }
        if let Some(owner) = self.owner_of(&opened.rule) {
            let text = match opened.rule.port.filter(|_| lease.shared) {
                Some(port) => format!(
                    "open: an application has port {port} already (session {owner}); choose another port"
                ),
                None => format!("open: session {owner} has an endpoint with the same flow rule"),
            };
            return Err((Refusal::InUse, text));
        }
        if !self.sets.has_room(&opened.rule) {
            let text = format!(
                "open: the flow rules of this MAC address give {SETS_PER_MAC} different sets of \
                 fields, which is the limit; give the same fields as another rule"
            );
            return Err((Refusal::Limit, text));
        }
        Ok(())
    }

    /// Checks that no other endpoint has an address of a new one for out-of-band messages. `lease`: that of the
    /// endpoint's session.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn check_oob(&self, opened: &ControlEndpoint, lease: &Lease) -> Result<(), Refused> {
        if !opened.out_of_band {
            return Ok(());
        }
        let addresses = opened.oob_addresses(&lease.addresses());
        if addresses.is_empty() {
            let text = "open: out-of-band messages at an address that was not given to the session; \
                        leave the address out of the rule";
            return Err((Refusal::Permission, text.to_owned()));
        }
        match self.oob_in_use(&addresses) {
            Some(address) => {
                let text = format!(
                    "open: another endpoint takes out-of-band messages at {address}; close it, or \
                     choose another port"
                );
                Err((Refusal::InUse, text))
            }
            None => Ok(()),
        }
    }

    /// Returns the first of these addresses at which an endpoint takes out-of-band messages.
    fn oob_in_use<'a>(&self, addresses: &'a [OobAddress]) -> Option<&'a OobAddress> {
        let mut addresses = addresses.iter();
        addresses.find(|one| self.oob_ports.contains(&OobAddress { port: 0, ..**one }, one.port))
    }

    /// Enters the rule, the port and the out-of-band addresses of an open endpoint.
    pub(crate) fn enter(&mut self, opened: &ControlEndpoint, session: u32) {
        for address in &opened.oob {
            self.oob_ports.add(OobAddress { port: 0, ..*address }, address.port);
        }
        if opened.has_rule() {
            self.owners.insert(opened.rule, session);
            if let Some(port) = opened.rule.port {
                self.ports.add(without_port(&opened.rule), port);
            }
            self.sets.add(&opened.rule);
        }
    }

    /// Forgets the rule, the port and the out-of-band addresses of an endpoint.
    pub(crate) fn forget(&mut self, opened: &ControlEndpoint) {
        if opened.has_rule() {
            self.owners.remove(&opened.rule);
            if let Some(port) = opened.rule.port {
                self.ports.remove(&without_port(&opened.rule), port);
            }
            self.sets.remove(&opened.rule);
        }
        for address in &opened.oob {
            self.oob_ports.remove(&OobAddress { port: 0, ..*address }, address.port);
        }
    }

    /// Returns a port for an endpoint whose rule has none: of those that the terms name, or else of the dynamic
    /// ports (RFC 6335, 6).
    pub(crate) fn free_port(
        &self,
        opened: &ControlEndpoint,
        lease: &Lease,
        terms: &Terms,
    ) -> Option<u16> {
        let rule = &opened.rule;
        let session = opened.out_of_band.then(|| lease.addresses());
        let oob = session.iter().flat_map(|session| oob_addresses(rule, session));
        let by_rule = self.ports.of(&without_port(rule));
        let by_oob = oob.filter_map(|address| self.oob_ports.of(&address));
        let used: Vec<&Ports> = by_rule.into_iter().chain(by_oob).collect();
        let bits = |word| used.iter().fold(0, |bits, ports| bits | ports.word(word));
        let dynamic = PortRange { protocol: rule.protocol?, first: 49_152, last: u16::MAX };
        let ranges = terms.ports.as_deref().unwrap_or(std::slice::from_ref(&dynamic));
        let theirs = ranges.iter().filter(|range| range.protocol == dynamic.protocol);
        let mut free = theirs.flat_map(|range| free_ports(range.first.max(1)..=range.last, &bits));
        free.next()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use towpath_packet::headers::PROTOCOL_UDP;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    /// Returns an endpoint with UDP at a port.
    fn udp(port: Option<u16>) -> ControlEndpoint {
        let rule = FlowRule {
            mac: Some(MAC),
            ip: Some(IP.into()),
            protocol: Some(PROTOCOL_UDP),
            port,
            ..FlowRule::default()
        };
        ControlEndpoint::of_rule(rule)
    }

    /// Returns an endpoint as [`udp`] does, which takes out-of-band messages.
    fn out_of_band(port: u16, lease: &Lease) -> ControlEndpoint {
        let mut opened = ControlEndpoint { out_of_band: true, ..udp(Some(port)) };
        opened.oob = opened.oob_addresses(&lease.addresses());
        opened
    }

    #[test]
    fn an_endpoint_has_its_rule_and_its_addresses_until_it_is_closed() {
        let (mut rules, lease) = (RulesInUse::default(), Lease::shared(MAC, Some((IP, 24)), None));
        let first = out_of_band(7, &lease);
        assert_eq!(first.oob.len(), 1);
        assert_eq!((rules.owner_of(&first.rule), rules.oob_in_use(&first.oob)), (None, None));
        rules.enter(&first, 5);
        assert_eq!(rules.owner_of(&first.rule), Some(5));
        assert_eq!(rules.oob_in_use(&first.oob), Some(&first.oob[0]));
        let other = out_of_band(8, &lease);
        assert_eq!((rules.owner_of(&other.rule), rules.oob_in_use(&other.oob)), (None, None));
        let refusal =
            |rules: &RulesInUse, opened: &ControlEndpoint| rules.check(opened, &lease).err();
        let (refused, text) = refusal(&rules, &first).unwrap();
        assert!(refused == Refusal::InUse && text.contains("port 7 already (session 5)"), "{text}");
        assert_eq!(refusal(&rules, &other), None);
        let (refused, text) = rules.check_oob(&first, &lease).unwrap_err();
        assert!(refused == Refusal::InUse && text.contains("10.0.0.1:7"), "{text}");
        assert_eq!(rules.check_oob(&other, &lease), Ok(()));
        rules.forget(&first);
        assert_eq!((refusal(&rules, &first), rules.check_oob(&first, &lease)), (None, Ok(())));
        let elsewhere = Lease::shared(MAC, None, None);
        assert_eq!(rules.check_oob(&first, &elsewhere).unwrap_err().0, Refusal::Permission);
    }

    /// A port is in use by a rule, and for an endpoint that takes out-of-band messages also by such an
    /// endpoint of another rule.
    #[test]
    fn a_free_port_is_none_of_a_rule_or_of_an_out_of_band_address() {
        let (mut rules, lease) = (RulesInUse::default(), Lease::shared(MAC, Some((IP, 24)), None));
        let terms = Terms {
            ports: Some(vec![PortRange { protocol: PROTOCOL_UDP, first: 100, last: 101 }]),
            ..Terms::default()
        };
        let any = udp(Some(0));
        assert_eq!(rules.free_port(&any, &lease, &terms), Some(100));
        rules.enter(&udp(Some(100)), 5);
        assert_eq!(rules.free_port(&any, &lease, &terms), Some(101));
        let mut other = out_of_band(101, &lease);
        other.rule.mac = None;
        rules.enter(&other, 6);
        assert_eq!(rules.free_port(&any, &lease, &terms), Some(101), "of another rule");
        assert_eq!(rules.free_port(&out_of_band(0, &lease), &lease, &terms), None);
        rules.forget(&udp(Some(100)));
        assert_eq!(rules.free_port(&out_of_band(0, &lease), &lease, &terms), Some(100));
    }

    #[test]
    fn without_terms_a_free_port_is_a_dynamic_one() {
        let (rules, lease) = (RulesInUse::default(), Lease::shared(MAC, Some((IP, 24)), None));
        let free = rules.free_port(&udp(Some(0)), &lease, &Terms::default());
        assert_eq!(free, Some(49_152));
        assert_eq!(
            rules.free_port(
                &ControlEndpoint::of_rule(FlowRule::default()),
                &lease,
                &Terms::default()
            ),
            None
        );
    }
}
