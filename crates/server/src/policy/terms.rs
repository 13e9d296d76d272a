//! The terms of a grant: the addresses, ports, ethertypes and limits of a user.

use std::net::IpAddr;

use towpath_engine::commands::Listening;
use towpath_engine::reach::Reach;
use towpath_engine::roles::Roles;
use towpath_packet::FlowRule;
use towpath_packet::headers::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_ICMP, PROTOCOL_ICMPV6};
use towpath_packet::igmp::PROTOCOL_IGMP;
use towpath_protocol::settings::Setting;

/// The first port that needs no privilege by default (ip(7), `ip_unprivileged_port_start`).
const UNPRIVILEGED_PORT: u16 = 1024;

/// The rights of the users of a grant. The default terms allow all that an application may do with
/// addresses of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The addresses that sessions may get, of their own or of the host's; `None` for any that the
    /// server has for applications. A session gets no address of a family that is not named. A
    /// session with addresses of its own always has the link-local IPv6 address of its MAC address.
    pub addresses: Option<Vec<AddressRange>>,
    /// The local ports of endpoints; `None` for any, and of the host's own addresses any from 1024
    /// on. With `Some`, an endpoint for IP packets has a protocol and one of these ports, or is for
    /// ICMP, ICMPv6 or IGMP.
    pub ports: Option<Vec<PortRange>>,
    /// The ethertypes of endpoints; `None` for any. With `Some`, an endpoint has an ethertype, or a
    /// field of IP.
    pub ethertypes: Option<Vec<u16>>,
    /// The parts in the network's operation that sessions may play.
    pub roles: Roles,
    /// The users with whose sessions endpoints exchange out-of-band messages.
    pub out_of_band: Reach,
    /// `true` if endpoints with out-of-band messages may have connections with other hosts.
    pub rdma: bool,
    /// `true` if endpoints may receive a copy of each packet of the device.
    pub capture: bool,
    /// `true` if endpoints may be promiscuous, and receive for any MAC address. With limited ports
    /// or ethertypes, a promiscuous endpoint sends nothing.
    pub promiscuous: bool,
    /// The hardware queues, by number, that a session may have to itself.
    pub own_queues: Vec<u32>,
    /// Concurrent sessions of one user. This and the other limits lower those of the
    /// [`Policy`](super::Policy), and cannot raise them.
    pub sessions_per_user: Option<usize>,
    /// Endpoints of one session.
    pub endpoints_per_session: Option<u32>,
    /// Bytes of memory that all sessions of one user may have together.
    pub bytes_per_user: Option<usize>,
    /// Bytes of memory that one session may have.
    pub session_bytes: Option<usize>,
    /// Ports of the host's own addresses that one user may hold.
    pub host_ports_per_user: Option<usize>,
    /// Initial settings of each endpoint, such as a rate.
    pub settings: Vec<(Setting, u64)>,
    /// Forbidden packets per second of a session: packets that its rights do not allow. The engine
    /// drops and counts them; the server closes a session that exceeds the limit. `None` for no
    /// limit.
    pub forbidden_packets_per_second: Option<u32>,
}

/// Addresses of one family, from the first to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The first address.
    pub first: IpAddr,
    /// The last address, of the same family.
    pub last: IpAddr,
}

impl AddressRange {
    /// Returns `true` if the range contains an address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.first.is_ipv4() && self.first <= ip && ip <= self.last
    }
}

/// Ports of one protocol, from the first to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The IP protocol.
    pub protocol: u8,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl Terms {
    /// Returns the terms of root and the server's user: everything.
    #[must_use]
    pub fn administrator() -> Terms {
        let out_of_band = Reach::All;
        Terms {
            roles: Roles::ALL,
            out_of_band,
            rdma: true,
            capture: true,
            promiscuous: true,
            ..Terms::default()
        }
    }

    /// Returns `true` if endpoints may send and receive on each port and with each ethertype.
    pub(crate) fn allow_every_flow(&self) -> bool {
        self.ports.is_none() && self.ethertypes.is_none()
    }

    /// Returns `true` if a session may have an address.
    #[must_use]
    pub fn allow_address(&self, ip: IpAddr) -> bool {
        self.addresses.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(ip)))
    }

    /// Checks that the terms allow an endpoint with this rule, or this way of listening. `group`:
    /// it also receives packets to groups.
    ///
    /// # Errors
    /// Fails with the reason and the remedy.
    pub(crate) fn check(
        &self,
        rule: &FlowRule,
        listening: Option<Listening>,
        group: bool,
    ) -> Result<(), String> {
        let ask = "or ask the administrator for a grant";
        match listening {
            Some(Listening::Capture) if !self.capture => {
                return Err(format!("your user may not capture; capture as root, {ask}"));
            }
            Some(Listening::Promiscuous) if !self.promiscuous => {
                return Err(format!(
                    "your user may not open promiscuous endpoints; run the application as root, {ask}"
                ));
            }
            Some(Listening::LinkControl) if !self.allow_every_flow() => {
                return Err(format!(
                    "your user may use only some ports or ethertypes, and so no endpoint for link control; leave it out, {ask}"
                ));
            }
            Some(_) => return Ok(()),
            None => {}
        }
        if rule.mac.is_none() && !self.promiscuous {
            return Err(format!(
                "your user may not open an endpoint for every MAC address; use the session's own, {ask}"
            ));
        }
        self.check_ethertype(rule, group).map_err(|text| format!("{text}, {ask}"))?;
        self.check_port(rule).map_err(|text| format!("{text}, {ask}"))
    }

    /// Checks that the terms allow a port of the host's own address. Ports that programs on the
    /// host may not bind without a privilege need a grant that names them.
    ///
    /// # Errors
    /// Fails with the reason and the remedy.
    pub(crate) fn check_shared(&self, rule: &FlowRule) -> Result<(), String> {
        match rule.port {
            Some(port @ 1..UNPRIVILEGED_PORT) if self.ports.is_none() => Err(format!(
                "your user may use port {port} of the host's address only with a grant that names \
                 it; give a port from {UNPRIVILEGED_PORT} on, or ask the administrator for a grant"
            )),
            _ => Ok(()),
        }
    }

    fn check_ethertype(&self, rule: &FlowRule, group: bool) -> Result<(), String> {
        let Some(granted) = &self.ethertypes else { return Ok(()) };
        // Packets to a group need not match the local address.
        let ip = rule.ip.filter(|_| !group);
        let asks_for_ip = FlowRule { ip, ..*rule }.asks_for_ip();
        let wanted = match (rule.ethertype, ip) {
            (Some(ethertype), _) => vec![ethertype],
            (None, Some(IpAddr::V4(_))) => vec![ETHERTYPE_IPV4],
            (None, Some(IpAddr::V6(_))) => vec![ETHERTYPE_IPV6],
            (None, None) if asks_for_ip => vec![ETHERTYPE_IPV4, ETHERTYPE_IPV6],
            (None, None) => {
                return Err("the rule has no ethertype; give one that your user may use".to_owned());
            }
        };
        match wanted.iter().find(|one| !granted.contains(one)) {
            Some(other) => {
                Err(format!("your user may not use ethertype {other:#06x}; give another one"))
            }
            None => Ok(()),
        }
    }

    fn check_port(&self, rule: &FlowRule) -> Result<(), String> {
        let Some(granted) = &self.ports else { return Ok(()) };
        // Frames other than IP have no port.
        let is_ip = |ethertype| matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
        if rule.ethertype.is_some_and(|ethertype| !is_ip(ethertype)) {
            return Ok(());
        }
        match (rule.protocol, rule.port) {
            (Some(PROTOCOL_ICMP | PROTOCOL_ICMPV6 | PROTOCOL_IGMP), _) => Ok(()),
            // The server chooses one of the ports.
            (Some(protocol), Some(0)) => match granted.iter().any(|one| one.protocol == protocol) {
                true => Ok(()),
                false => Err(format!("your user may use no port of protocol {protocol}")),
            },
            (Some(protocol), Some(port)) => {
                let fits = |range: &PortRange| {
                    range.protocol == protocol && (range.first..=range.last).contains(&port)
                };
                match granted.iter().any(fits) {
                    true => Ok(()),
                    false => Err(format!(
                        "your user may not use port {port} of protocol {protocol}; give another one"
                    )),
                }
            }
            _ => Err("the rule has no protocol or no local port; give both, as your user may use \
                      them"
                .to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_packet::FlowVlan;
    use towpath_packet::headers::ETHERTYPE_ARP;

    use super::*;

    fn rule() -> FlowRule {
        FlowRule { mac: Some([2, 0, 0, 0, 0, 1]), vlan: FlowVlan::Untagged, ..FlowRule::default() }
    }

    fn tcp(port: u16) -> FlowRule {
        FlowRule { protocol: Some(6), port: Some(port), ..rule() }
    }

    #[test]
    fn default_terms_allow_all_but_others_packets() {
        let (granted, administrator) = (Terms::default(), Terms::administrator());
        for rule in [rule(), tcp(80), FlowRule { ethertype: Some(0x88b5), ..rule() }] {
            assert_eq!(granted.check(&rule, None, false), Ok(()));
        }
        let any = FlowRule { mac: None, ..rule() };
        assert!(granted.check(&any, None, false).unwrap_err().contains("every MAC"));
        for listening in [Listening::Capture, Listening::Promiscuous] {
            assert!(
                granted.check(&rule(), Some(listening), false).unwrap_err().contains("may not")
            );
            assert_eq!(administrator.check(&rule(), Some(listening), false), Ok(()));
        }
        assert_eq!(administrator.check(&any, None, false), Ok(()));
    }

    #[test]
    fn ports_are_those_of_the_grant() {
        let range = |protocol, first, last| PortRange { protocol, first, last };
        let ports = vec![range(6, 80, 80), range(6, 8000, 8999), range(17, 53, 53)];
        let terms = Terms { ports: Some(ports), ..Terms::default() };
        for allowed in [
            tcp(80),
            tcp(8000),
            tcp(8999),
            FlowRule { protocol: Some(17), port: Some(53), ..rule() },
            FlowRule { protocol: Some(PROTOCOL_ICMP), ..rule() },
            FlowRule { protocol: Some(PROTOCOL_ICMPV6), ..rule() },
            FlowRule { protocol: Some(PROTOCOL_IGMP), ..rule() },
            FlowRule { ethertype: Some(ETHERTYPE_ARP), ..rule() },
            FlowRule { ethertype: Some(0x88b5), ..rule() },
            FlowRule { ethertype: Some(ETHERTYPE_IPV4), ..tcp(80) },
        ] {
            assert_eq!(terms.check(&allowed, None, false), Ok(()), "{allowed:?}");
        }
        for (refused, part) in [
            (tcp(81), "port 81 of protocol 6"),
            (tcp(7999), "port 7999"),
            (tcp(9000), "port 9000"),
            (FlowRule { protocol: Some(17), ..tcp(80) }, "port 80 of protocol 17"),
            (FlowRule { protocol: None, ..tcp(80) }, "no protocol or no local port"),
            (FlowRule { port: None, ..tcp(80) }, "no protocol or no local port"),
            (FlowRule { protocol: Some(47), ..rule() }, "no protocol or no local port"),
            (rule(), "no protocol or no local port"),
            (
                FlowRule { ethertype: Some(ETHERTYPE_IPV6), ..rule() },
                "no protocol or no local port",
            ),
            (
                FlowRule { remote_port: Some(80), protocol: Some(6), ..rule() },
                "no protocol or no local port",
            ),
        ] {
            let text = terms.check(&refused, None, false).unwrap_err();
            assert!(text.contains(part) && text.contains("administrator"), "{refused:?}: {text}");
        }
    }

    #[test]
    fn ethertypes_are_those_of_the_grant() {
        let terms = Terms { ethertypes: Some(vec![ETHERTYPE_IPV4, 0x88b5]), ..Terms::default() };
        let ip = |ip: &str| FlowRule { ip: Some(ip.parse().unwrap()), ..rule() };
        for allowed in [FlowRule { ethertype: Some(0x88b5), ..rule() }, ip("192.0.2.1")] {
            assert_eq!(terms.check(&allowed, None, false), Ok(()), "{allowed:?}");
        }
        let group = terms.check(&ip("192.0.2.1"), None, true).unwrap_err();
        assert!(group.contains("no ethertype"), "packets to groups have any: {group}");
        for (refused, part) in [
            (rule(), "no ethertype"),
            (ip("2001:db8::1"), "0x86dd"),
            (tcp(80), "0x86dd"),
            (FlowRule { ethertype: Some(ETHERTYPE_ARP), ..rule() }, "0x0806"),
        ] {
            let text = terms.check(&refused, None, false).unwrap_err();
            assert!(text.contains(part), "{refused:?}: {text}");
        }
    }

    #[test]
    fn addresses_are_those_of_the_grant() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let range = |first, last| AddressRange { first: ip(first), last: ip(last) };
        let addresses = vec![range("192.0.2.8", "192.0.2.11"), range("2001:db8::8", "2001:db8::8")];
        let terms = Terms { addresses: Some(addresses), ..Terms::default() };
        for (address, allowed) in [
            ("192.0.2.7", false),
            ("192.0.2.8", true),
            ("192.0.2.11", true),
            ("192.0.2.12", false),
            ("2001:db8::8", true),
            ("2001:db8::9", false),
        ] {
            assert_eq!(terms.allow_address(ip(address)), allowed, "{address}");
            assert!(Terms::default().allow_address(ip(address)));
        }
    }
}
