//! The packets that an endpoint may send.
//!
//! The engine checks its own copy of the headers, and sends that copy. By default, an endpoint
//! sends only from the addresses given to its session and within its flow rule. It sends only the
//! packets of ordinary stations, unless its session's grant names other parts in the network (`roles.rs`). A field
//! omitted from a rule widens reception; an omitted source address means the session's own.

mod refused;
mod roles;

use std::net::IpAddr;

use towpath_packet::headers::{
    Arp, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, Fragment, Headers, Ip, Network, PROTOCOL_ICMPV6,
};
use towpath_packet::mld;
use towpath_packet::plain::{Plain, kind, link};
use towpath_packet::transport::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Transport};
use towpath_packet::{FlowRule, FlowVlan};

use crate::roles::Roles;
use roles::Asked;

pub(crate) use refused::Refused;

/// The addresses given to a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The session's IPv4 address.
    pub ipv4: Option<u32>,
    /// The session's IPv6 addresses: the one given, and the link-local one made from its MAC
    /// address.
    pub ipv6: [Option<u128>; 2],
}

impl Addresses {
    /// Returns all addresses.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let ipv4 = self.ipv4.map(|ip| IpAddr::V4(ip.into()));
        let ipv6 = self.ipv6.into_iter().flatten().map(|ip| IpAddr::V6(ip.into()));
        ipv4.into_iter().chain(ipv6)
    }

    /// Returns `true` if the session has the address.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.ipv4 == Some(ip.to_bits()),
            IpAddr::V6(ip) => self.ipv6.contains(&Some(ip.to_bits())),
        }
    }
}

/// The packets that an endpoint may send.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    rule: FlowRule,
    /// The rule's MAC address, or the session's own.
    mac: [u8; 6],
    addresses: Addresses,
    sends: Sends,
    /// The parts in the network's operation that the endpoint may play.
    roles: Roles,
    /// The rule's ethertype, if the session's grant names it.
    ethertype: Option<u16>,
    plain: PlainRights,
}

/// What an endpoint sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    /// Packets within its rule.
    ByRule,
    /// Packets without a tag; the engine or the device inserts that of the rule's VLAN after the check.
    WithinVlan,
    /// No packet.
    Nothing,
}

/// The link of VLAN 65535: no plain packet has it, because a plain packet has no VLAN tag.
const NO_LINK: u64 = link([0; 6], Some(u16::MAX));

/// The same rights for plain packets, prepared for comparison.
#[derive(Clone, Copy, Debug)]
struct PlainRights {
    link: u64,
    /// The mask of the second word, and its required value under the mask.
    mask: u64,
    kind: u64,
    /// The mask and the required value for the destination.
    remote_mask: u64,
    remote_kind: u64,
    /// The required remote IP address, low and high.
    remote_ip: Option<[u64; 2]>,
}

impl PlainRights {
    fn new(rule: &FlowRule, mac: [u8; 6]) -> PlainRights {
        let all = |given: bool, word: u64| if given { word } else { 0 };
        let remote = rule.remote_ip.map(|ip| match ip {
            IpAddr::V4(ip) => (4, [u64::from(ip.to_bits()), 0]),
            IpAddr::V6(ip) => (6, [ip.to_bits() as u64, (ip.to_bits() >> 64) as u64]),
        });
        let version = remote.map_or(0, |(version, _)| version);
        PlainRights {
            // Plain packets have no tag: an endpoint that must tag sends none.
            link: match rule.vlan {
                FlowVlan::Any | FlowVlan::Untagged => link(mac, None),
                FlowVlan::Number(number) => link(mac, Some(number)),
            },
            remote_mask: all(remote.is_some(), kind(0, 0, u8::MAX, 0))
                | all(rule.remote_port.is_some(), kind(0, 0, 0, u16::MAX)),
            remote_kind: kind(0, 0, version, rule.remote_port.unwrap_or(0)),
            remote_ip: remote.map(|(_, ip)| ip),
            mask: all(rule.ethertype.is_some(), kind(u16::MAX, 0, 0, 0))
                | all(rule.protocol.is_some(), kind(0, u8::MAX, 0, 0))
                | all(rule.port.is_some(), kind(0, 0, 0, u16::MAX)),
            kind: kind(
                rule.ethertype.unwrap_or(0),
                rule.protocol.unwrap_or(0),
                0,
                rule.port.unwrap_or(0),
            ),
        }
    }
}

impl Rights {
    /// Permits packets within the rule, from the session's addresses (`mac` among them) or from the
    /// rule's own.
    #[must_use]
    pub fn new(rule: FlowRule, mac: [u8; 6], addresses: Addresses) -> Rights {
        let mac = rule.mac.unwrap_or(mac);
        let addresses = match rule.ip {
            None => addresses,
            Some(IpAddr::V4(ip)) => Addresses { ipv4: Some(ip.to_bits()), ipv6: [None; 2] },
            Some(IpAddr::V6(ip)) => Addresses { ipv4: None, ipv6: [Some(ip.to_bits()), None] },
        };
        let plain = PlainRights::new(&rule, mac);
        let sends = Sends::ByRule;
        Rights { rule, mac, addresses, sends, roles: Roles::NONE, ethertype: None, plain }
    }

    /// Also permits the packets of these roles.
    #[must_use]
    pub fn with_roles(self, roles: Roles) -> Rights {
        Rights { roles, ..self }
    }

    /// Also permits frames with the rule's ethertype, because a grant names it.
    #[must_use]
    pub fn with_named_ethertype(self) -> Rights {
        Rights { ethertype: self.rule.ethertype, ..self }
    }

    /// Permits the same packets without the tag of the rule's VLAN, which the engine or the device
    /// inserts after the check, and permits no packet with a tag.
    #[must_use]
    pub fn within_vlan(self) -> Rights {
        let rule = FlowRule { vlan: FlowVlan::Untagged, ..self.rule };
        // A packet with the tag is not plain. So the plain packets of the endpoint also take the
        // full path, which inserts the tag.
        let plain = PlainRights { link: NO_LINK, ..self.plain };
        let sends = match self.sends {
            Sends::Nothing => Sends::Nothing,
            Sends::ByRule | Sends::WithinVlan => Sends::WithinVlan,
        };
        Rights { rule, sends, plain, ..self }
    }

    /// Permits requests for link addresses, which go to the server only.
    #[must_use]
    pub fn neighbours(mac: [u8; 6], addresses: Addresses) -> Rights {
        let rule = FlowRule { vlan: FlowVlan::Untagged, ..FlowRule::default() };
        let rights = Rights::new(rule, mac, addresses);
        // No plain packet is such a request.
        let plain = PlainRights { link: NO_LINK, ..rights.plain };
        Rights { plain, ..rights }
    }

    /// Permits nothing, for endpoints that only capture.
    #[must_use]
    pub fn nothing() -> Rights {
        let rights = Rights::new(FlowRule::default(), [0; 6], Addresses::default());
        let plain = PlainRights { link: NO_LINK, ..rights.plain };
        Rights { sends: Sends::Nothing, plain, ..rights }
    }

    /// Returns `true` if a plain packet may be sent. Otherwise [`Rights::check`] gives the reason,
    /// or permits the packet after all.
    #[inline]
    #[must_use]
    pub fn allow(&self, packet: &Plain) -> bool {
        let [link, kind, low, high] = packet.source;
        let ours = if kind >> 24 & 0xff == 4 {
            self.addresses.ipv4.map(u64::from) == Some(low)
        } else {
            self.addresses.ipv6.contains(&Some(u128::from(high) << 64 | u128::from(low)))
        };
        ours && link == self.plain.link
            && kind & self.plain.mask == self.plain.kind
            && packet.destination[1] & self.plain.remote_mask == self.plain.remote_kind
            && self.plain.remote_ip.is_none_or(|ip| packet.destination[2..] == ip)
            && (!roles::may_concern(packet) || self.roles == Roles::ALL)
    }

    /// Checks a packet by its headers, which were read from its first bytes.
    ///
    /// # Errors
    /// Fails with the counter of the violation.
    #[inline]
    pub fn check<'a>(
        &self,
        headers: &Headers,
        bytes: impl FnOnce() -> &'a [u8],
    ) -> Result<(), Refused> {
        self.check_link(headers)?;
        if self.roles != Roles::ALL && roles::concerns(headers) {
            let asked = Asked { roles: self.roles, ethertype: self.ethertype, mac: self.mac };
            roles::check(headers, bytes(), &asked)?;
        }
        match &headers.network {
            Network::Arp(arp) => self.check_arp(arp),
            Network::Other => {
                let outside = self.rule.asks_for_ip();
                if outside { Err(Refused::TxOutsideRule) } else { Ok(()) }
            }
            Network::Ipv4(ip) => {
                if self.addresses.ipv4 != Some(ip.source) {
                    return Err(Refused::TxSourceAddress);
                }
                self.check_destination(ip, IpAddr::V4(ip.destination.into()))
            }
            Network::Ipv6(ip) => {
                if ip.protocol == PROTOCOL_ICMPV6 {
                    self.check_icmpv6(ip)?;
                } else if !self.addresses.ipv6.contains(&Some(ip.source)) {
                    return Err(Refused::TxSourceAddress);
                }
                self.check_destination(ip, IpAddr::V6(ip.destination.into()))
            }
        }
    }

    /// Checks the Ethernet header, and that the packet is not malformed.
    #[inline]
    fn check_link(&self, headers: &Headers) -> Result<(), Refused> {
        match self.sends {
            Sends::ByRule => {}
            // The engine would insert a second tag.
            Sends::WithinVlan if !headers.is_tagged() => {}
            Sends::WithinVlan | Sends::Nothing => return Err(Refused::TxOutsideRule),
        }
        if headers.source != self.mac {
            return Err(Refused::TxSourceMac);
        }
        // A tag within a tag would hide the inner packet from every check.
        if !self.rule.vlan.matches(headers.vlan)
            || matches!(headers.ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN)
        {
            return Err(Refused::TxOutsideRule);
        }
        if headers.malformed.is_some() {
            return Err(Refused::TxMalformed);
        }
        // Values below 0x0600 are lengths, which bridges and similar devices use among themselves.
        if headers.ethertype < 0x600
            || self.rule.ethertype.is_some_and(|ethertype| ethertype != headers.ethertype)
        {
            return Err(Refused::TxOutsideRule);
        }
        Ok(())
    }

    #[inline]
    fn check_arp(&self, arp: &Arp) -> Result<(), Refused> {
        if self.rule.asks_for_ip() {
            return Err(Refused::TxOutsideRule);
        }
        if arp.sender_mac != self.mac {
            return Err(Refused::TxSourceMac);
        }
        // The sender address 0.0.0.0 asks whether a host has the target address (RFC 5227).
        let ours = arp.sender_ip == 0 || self.addresses.ipv4 == Some(arp.sender_ip);
        if ours { Ok(()) } else { Err(Refused::TxSourceAddress) }
    }

    /// Checks the protocol, the ports and the remote address of an IP packet against the rule.
    #[inline]
    fn check_destination<A>(&self, ip: &Ip<A>, remote: IpAddr) -> Result<(), Refused> {
        if self.rule.protocol.is_some_and(|given| given != ip.protocol)
            || self.rule.remote_ip.is_some_and(|given| given != remote)
        {
            return Err(Refused::TxOutsideRule);
        }
        // A later fragment has no port to check.
        let is_later = matches!(ip.fragment, Fragment::Later { .. });
        let ports = ip.transport.ports().filter(|_| !is_later);
        let (from, to) = (ports.map(|(source, _)| source), ports.map(|(_, to)| to));
        if self.rule.port.is_some() && self.rule.port != from
            || self.rule.remote_port.is_some() && self.rule.remote_port != to
        {
            return Err(Refused::TxOutsideRule);
        }
        Ok(())
    }

    fn check_icmpv6(&self, ip: &Ip<u128>) -> Result<(), Refused> {
        let source = ip.source;
        let ours = self.addresses.ipv6.contains(&Some(source));
        let allowed = match &ip.transport {
            // The source `::` asks whether a host has the target address (RFC 4862, 5.4.2).
            Transport::Neighbour { kind: NEIGHBOUR_SOLICITATION, target } if source == 0 => {
                self.addresses.ipv6.contains(&Some(*target))
            }
            // A host without a link-local address reports its groups, and their end, from `::`
            // (RFC 3590; RFC 3810, 5.2.13).
            Transport::Icmp { kind, .. } if source == 0 && mld::is_report(*kind) => {
                ip.hops == 1 && self.addresses.ipv6.iter().any(Option::is_some)
            }
            Transport::Neighbour { kind: NEIGHBOUR_ADVERTISEMENT, target } => {
                ours && self.addresses.ipv6.contains(&Some(*target))
            }
            _ => ours,
        };
        if allowed { Ok(()) } else { Err(Refused::TxSourceAddress) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use towpath_packet::build::Flow;
    use towpath_packet::headers::PREFIX_BYTES;
    use towpath_packet::ipv6::solicited_node;
    use towpath_packet::mld::Groups;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn rule() -> FlowRule {
        FlowRule { mac: Some(MAC), vlan: FlowVlan::Untagged, ..FlowRule::default() }
    }

    fn flow() -> Flow {
        Flow { source_mac: MAC, ..Flow::v4() }
    }

    fn addresses(flow: &Flow) -> Addresses {
        match flow.source {
            IpAddr::V4(ip) => Addresses { ipv4: Some(ip.to_bits()), ipv6: [None; 2] },
            IpAddr::V6(ip) => Addresses { ipv4: None, ipv6: [Some(ip.to_bits()), None] },
        }
    }

    fn check(rights: &Rights, frame: &[u8]) -> Result<(), Refused> {
        let looked = &frame[..frame.len().min(PREFIX_BYTES)];
        rights.check(&Headers::parse(looked, frame.len()).unwrap(), || looked)
    }

    /// RFC 3590: from `::` only with the hop limit of a report, and only for a session that has IPv6.
    #[test]
    fn multicast_reports_may_come_from_no_address() {
        let flow = Flow { source_mac: MAC, ..Flow::v6() };
        let rights = Rights::new(rule(), MAC, addresses(&flow));
        let mut groups = Groups::default();
        groups.join(0, solicited_node(Ipv6Addr::LOCALHOST));
        let [report] = &groups.due(0, || 0)[..] else { panic!() };
        let mut frame = report.frame(MAC, Ipv6Addr::UNSPECIFIED);
        assert_eq!(check(&rights, &frame), Ok(()));
        let without = Rights::new(rule(), MAC, addresses(&Flow { source_mac: MAC, ..Flow::v4() }));
        assert_eq!(check(&without, &frame), Err(Refused::TxSourceAddress));
        frame[21] = 2;
        assert_eq!(check(&rights, &frame), Err(Refused::TxSourceAddress));
        // The end of a group in MLDv1, and another message from `::`.
        (frame[21], frame[62]) = (1, 132);
        assert_eq!(check(&rights, &frame), Ok(()));
        frame[62] = 128;
        assert_eq!(check(&rights, &frame), Err(Refused::TxSourceAddress));
    }

    #[test]
    fn sources_are_checked() {
        let flow = flow();
        let rights = Rights::new(rule(), MAC, addresses(&flow));
        assert_eq!(check(&rights, &flow.udp(b"x")), Ok(()));
        let forged = Flow { source_mac: [2, 0, 0, 0, 0, 8], ..flow };
        assert_eq!(check(&rights, &forged.udp(b"x")), Err(Refused::TxSourceMac));
        let forged = Flow { source: "192.0.2.77".parse().unwrap(), ..flow };
        assert_eq!(check(&rights, &forged.udp(b"x")), Err(Refused::TxSourceAddress));
        let port = FlowRule { protocol: Some(17), port: Some(flow.source_port), ..rule() };
        let rights = Rights::new(port, MAC, addresses(&flow));
        assert_eq!(check(&rights, &flow.udp(b"x")), Ok(()));
        let forged = Flow { source_port: flow.source_port ^ 1, ..flow };
        assert_eq!(check(&rights, &forged.udp(b"x")), Err(Refused::TxOutsideRule));
        let rights =
            Rights::new(FlowRule { vlan: FlowVlan::Number(5), ..rule() }, MAC, addresses(&flow));
        assert_eq!(check(&rights, &flow.udp(b"x")), Err(Refused::TxOutsideRule));
        assert_eq!(check(&Rights::nothing(), &flow.udp(b"x")), Err(Refused::TxOutsideRule));
    }

    /// These rights permit no packet, even with addresses, and from the MAC address that they are
    /// made with.
    #[test]
    fn empty_rights_permit_no_packet_on_either_path() {
        for base in [flow(), Flow::v6()] {
            let flow = Flow { source_mac: [0; 6], ..base };
            let rights = Rights { addresses: addresses(&flow), ..Rights::nothing() };
            assert_eq!(both(&rights, &flow.udp(b"x")), Err(Refused::TxOutsideRule));
            let any_role = rights.with_roles(Roles::ALL);
            assert_eq!(both(&any_role, &flow.udp(b"x")), Err(Refused::TxOutsideRule));
            let within = Rights { addresses: addresses(&flow), ..Rights::nothing().within_vlan() };
            assert_eq!(both(&within, &flow.udp(b"x")), Err(Refused::TxOutsideRule));
        }
    }

    #[test]
    fn a_tag_within_a_tag_is_refused() {
        let rights = Rights::new(
            FlowRule { vlan: FlowVlan::Number(5), ..rule() },
            MAC,
            Addresses::default(),
        );
        let mut frame = vec![0xff; 6];
        frame.extend_from_slice(&MAC);
        frame.extend_from_slice(&[0x81, 0, 0, 5, 0x81, 0, 0, 6, 8, 0]);
        frame.resize(60, 0);
        assert_eq!(check(&rights, &frame), Err(Refused::TxOutsideRule));
        // The check also refuses lengths in place of ethertypes, which bridges use.
        let rights = Rights::new(rule(), MAC, Addresses::default());
        let mut frame = vec![1, 0x80, 0xc2, 0, 0, 0];
        frame.extend_from_slice(&MAC);
        frame.extend_from_slice(&[0, 38]);
        frame.resize(60, 0);
        assert_eq!(check(&rights, &frame), Err(Refused::TxOutsideRule));
    }

    /// An endpoint within a VLAN sends packets without a tag, none of which takes the fast path.
    #[test]
    fn within_a_vlan_no_packet_has_a_tag() {
        let flow = flow();
        let rule = FlowRule { vlan: FlowVlan::Number(5), ..rule() };
        let rights = Rights::new(rule, MAC, addresses(&flow)).within_vlan();
        let frame = flow.udp(b"x");
        assert_eq!(check(&rights, &frame), Ok(()));
        let plain = towpath_packet::plain::read(&frame, frame.len()).unwrap();
        assert!(!rights.allow(&plain));
        for tag in [5, 6, 0, 0xe000] {
            let tagged = flow.vlan(tag).udp(b"x");
            assert_eq!(check(&rights, &tagged), Err(Refused::TxOutsideRule), "{tag}");
        }
        let forged = Flow { source_mac: [2, 0, 0, 0, 0, 8], ..flow };
        assert_eq!(check(&rights, &forged.udp(b"x")), Err(Refused::TxSourceMac));
    }

    /// Returns the result of both checks of a frame; the fast check applies only to plain ones.
    fn both(rights: &Rights, frame: &[u8]) -> Result<(), Refused> {
        let outcome = check(rights, frame);
        if let Some(plain) = towpath_packet::plain::read(frame, frame.len()) {
            assert_eq!(rights.allow(&plain), outcome.is_ok());
        }
        outcome
    }

    #[test]
    fn wildcards_of_a_rule_still_require_the_sessions_addresses() {
        let flow = flow();
        let rights = Rights::new(FlowRule::default(), MAC, addresses(&flow));
        assert_eq!(both(&rights, &flow.udp(b"x")), Ok(()));
        assert_eq!(both(&rights, &flow.vlan(7).udp(b"x")), Ok(()), "any VLAN");
        let forged = Flow { source_mac: [2, 0, 0, 0, 0, 8], ..flow };
        assert_eq!(both(&rights, &forged.udp(b"x")), Err(Refused::TxSourceMac));
        assert_eq!(both(&rights, &forged.who_has()), Err(Refused::TxSourceMac));
        let forged = Flow { source: "192.0.2.77".parse().unwrap(), ..flow };
        assert_eq!(both(&rights, &forged.udp(b"x")), Err(Refused::TxSourceAddress));
    }

    #[test]
    fn packets_must_go_to_the_remote_side_of_the_rule() {
        for base in [flow(), Flow { source_mac: MAC, ..Flow::v6() }] {
            let rule = FlowRule {
                remote_ip: Some(base.destination),
                remote_port: Some(base.destination_port),
                ..rule()
            };
            let rights = Rights::new(rule, MAC, addresses(&base));
            assert_eq!(both(&rights, &base.udp(b"x")), Ok(()));
            let other = base.ports(base.source_port, base.destination_port ^ 1);
            assert_eq!(both(&rights, &other.udp(b"x")), Err(Refused::TxOutsideRule));
            let other = Flow { destination: base.source, ..base };
            assert_eq!(both(&rights, &other.udp(b"x")), Err(Refused::TxOutsideRule));
            let no_port = base.echo(true, 1, 1, b"x");
            assert_eq!(both(&rights, &no_port), Err(Refused::TxOutsideRule));
            let arp = flow().who_has();
            assert_eq!(both(&rights, &arp), Err(Refused::TxOutsideRule));
            // This rule gives a port without a protocol.
            let rule = FlowRule { port: Some(base.source_port), ..FlowRule::default() };
            let rights = Rights::new(rule, MAC, addresses(&base));
            assert_eq!(both(&rights, &base.udp(b"x")), Ok(()));
            assert_eq!(both(&rights, &base.tcp(&Default::default(), b"x")), Ok(()));
            let other = base.ports(base.source_port ^ 1, 9);
            assert_eq!(both(&rights, &other.udp(b"x")), Err(Refused::TxOutsideRule));
            assert_eq!(both(&rights, &base.echo(true, 1, 1, b"x")), Err(Refused::TxOutsideRule));
        }
    }
}
