//! What an endpoint may send.
//!
//! Checked on the server's own copy of the headers, and that copy is what is sent. The default is
//! nothing: an endpoint sends from the addresses that its session was given and inside of its flow
//! rule, and never what would speak for a router, a bridge or a neighbour.

use std::net::IpAddr;

use towpath_packet::headers::{
    ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, Fragment, Headers, Network, PROTOCOL_ICMPV6,
};
use towpath_packet::plain::{Plain, kind, link};
use towpath_packet::transport::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, Transport};

use crate::demux::Rule;
use towpath_protocol::counters;

/// Why a packet may not be sent: the counter that it raises.
pub type Refused = counters::Endpoint;

/// The addresses given to a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Its IPv4 address.
    pub ipv4: Option<u32>,
    /// Its IPv6 addresses: the one given, and the link-local one made from its MAC address.
    pub ipv6: [Option<u128>; 2],
}

impl Addresses {
    /// Whether an address is among them.
    #[must_use]
    pub fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.ipv4 == Some(ip.to_bits()),
            IpAddr::V6(ip) => self.ipv6.contains(&Some(ip.to_bits())),
        }
    }
}

/// What an endpoint may send.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    rule: Rule,
    addresses: Addresses,
    nothing: bool,
    plain: PlainRights,
}

/// The same for plain packets, made ready to be compared.
#[derive(Clone, Copy, Debug)]
struct PlainRights {
    link: u64,
    /// What counts of the second word, and what it must be.
    mask: u64,
    kind: u64,
}

impl PlainRights {
    fn new(rule: &Rule) -> PlainRights {
        let all = |given: bool, word: u64| if given { word } else { 0 };
        PlainRights {
            link: link(rule.mac, rule.vlan),
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
    /// Inside of its rule, from its session's addresses, or from the rule's own one.
    #[must_use]
    pub fn new(rule: Rule, addresses: Addresses) -> Rights {
        let addresses = match rule.ip {
            None => addresses,
            Some(IpAddr::V4(ip)) => Addresses { ipv4: Some(ip.to_bits()), ipv6: [None; 2] },
            Some(IpAddr::V6(ip)) => Addresses { ipv4: None, ipv6: [Some(ip.to_bits()), None] },
        };
        Rights { rule, addresses, nothing: false, plain: PlainRights::new(&rule) }
    }

    /// Nothing at all: endpoints that only capture.
    #[must_use]
    pub fn nothing(rule: Rule) -> Rights {
        let plain = PlainRights::new(&rule);
        Rights { rule, addresses: Addresses::default(), nothing: true, plain }
    }

    /// Whether a plain packet may be sent; why not is [`Rights::check`]'s to say.
    #[inline]
    #[must_use]
    pub fn allow(&self, packet: &Plain) -> bool {
        let [link, kind, low, high] = packet.source;
        let ours = if kind >> 24 & 0xff == 4 {
            self.addresses.ipv4.map(u64::from) == Some(low)
        } else {
            self.addresses.ipv6.contains(&Some(u128::from(high) << 64 | u128::from(low)))
        };
        ours && !self.nothing
            && link == self.plain.link
            && kind & self.plain.mask == self.plain.kind
    }

    /// Checks a packet by its headers.
    ///
    /// # Errors
    /// The counter of what is wrong.
    #[inline]
    pub fn check(&self, headers: &Headers) -> Result<(), Refused> {
        if self.nothing {
            return Err(Refused::TxOutsideRule);
        }
        if headers.source != self.rule.mac {
            return Err(Refused::TxSourceMac);
        }
        // A tag within a tag would hide what is inside from every check.
        if headers.vlan != self.rule.vlan
            || matches!(headers.ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN)
        {
            return Err(Refused::TxOutsideRule);
        }
        if headers.malformed.is_some() {
            return Err(Refused::TxMalformed);
        }
        // Below 0x0600 is a length: what bridges and their like say to each other.
        if headers.ethertype < 0x600
            || self.rule.ethertype.is_some_and(|ethertype| ethertype != headers.ethertype)
        {
            return Err(Refused::TxOutsideRule);
        }
        let (protocol, fragment, transport) = match &headers.network {
            Network::Arp(arp) => {
                if self.rule.protocol.is_some() || self.rule.ip.is_some() {
                    return Err(Refused::TxOutsideRule);
                }
                if arp.sender_mac != self.rule.mac {
                    return Err(Refused::TxSourceMac);
                }
                // 0.0.0.0 asks whether anybody has the address (RFC 5227).
                let ours = arp.sender_ip == 0 || self.addresses.ipv4 == Some(arp.sender_ip);
                return if ours { Ok(()) } else { Err(Refused::TxSourceAddress) };
            }
            Network::Other => {
                let within = self.rule.protocol.is_none() && self.rule.ip.is_none();
                return if within { Ok(()) } else { Err(Refused::TxOutsideRule) };
            }
            Network::Ipv4(ip) => {
                if self.addresses.ipv4 != Some(ip.source) {
                    return Err(Refused::TxSourceAddress);
                }
                (ip.protocol, ip.fragment, &ip.transport)
            }
            Network::Ipv6(ip) => {
                if ip.protocol == PROTOCOL_ICMPV6 {
                    self.check_icmpv6(ip.source, &ip.transport)?;
                } else if !self.addresses.ipv6.contains(&Some(ip.source)) {
                    return Err(Refused::TxSourceAddress);
                }
                (ip.protocol, ip.fragment, &ip.transport)
            }
        };
        if self.rule.protocol.is_some_and(|given| given != protocol) {
            return Err(Refused::TxOutsideRule);
        }
        if let Some(port) = self.rule.port {
            // A later fragment has no port to be checked by.
            let from = transport.ports().map(|(source, _)| source);
            if from != Some(port) || matches!(fragment, Fragment::Later { .. }) {
                return Err(Refused::TxOutsideRule);
            }
        }
        Ok(())
    }

    fn check_icmpv6(&self, source: u128, transport: &Transport) -> Result<(), Refused> {
        const ROUTER_ADVERTISEMENT: u8 = 134;
        const REDIRECT: u8 = 137;
        let ours = self.addresses.ipv6.contains(&Some(source));
        let allowed = match transport {
            // `::` asks whether anybody has the address (RFC 4862, 5.4.2).
            Transport::Neighbour { kind: NEIGHBOUR_SOLICITATION, target } if source == 0 => {
                self.addresses.ipv6.contains(&Some(*target))
            }
            Transport::Neighbour { kind: NEIGHBOUR_ADVERTISEMENT, target } => {
                ours && self.addresses.ipv6.contains(&Some(*target))
            }
            Transport::Icmp { kind: ROUTER_ADVERTISEMENT | REDIRECT, .. } => {
                return Err(Refused::TxOutsideRule);
            }
            // Fragments could be put together to any of the above, which hosts ignore in
            // fragments (RFC 6980).
            _ => ours,
        };
        if allowed { Ok(()) } else { Err(Refused::TxSourceAddress) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::build::Flow;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn rule() -> Rule {
        Rule { mac: MAC, vlan: None, ethertype: None, ip: None, protocol: None, port: None }
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
        rights.check(&Headers::parse(frame, frame.len()).unwrap())
    }

    #[test]
    fn sources_are_checked() {
        let flow = flow();
        let rights = Rights::new(rule(), addresses(&flow));
        assert_eq!(check(&rights, &flow.udp(b"x")), Ok(()));
        let forged = Flow { source_mac: [2, 0, 0, 0, 0, 8], ..flow };
        assert_eq!(check(&rights, &forged.udp(b"x")), Err(Refused::TxSourceMac));
        let forged = Flow { source: "192.0.2.77".parse().unwrap(), ..flow };
        assert_eq!(check(&rights, &forged.udp(b"x")), Err(Refused::TxSourceAddress));
        let port = Rule { protocol: Some(17), port: Some(flow.source_port), ..rule() };
        let rights = Rights::new(port, addresses(&flow));
        assert_eq!(check(&rights, &flow.udp(b"x")), Ok(()));
        let forged = Flow { source_port: flow.source_port ^ 1, ..flow };
        assert_eq!(check(&rights, &forged.udp(b"x")), Err(Refused::TxOutsideRule));
        let rights = Rights::new(Rule { vlan: Some(5), ..rule() }, addresses(&flow));
        assert_eq!(check(&rights, &flow.udp(b"x")), Err(Refused::TxOutsideRule));
        assert_eq!(check(&Rights::nothing(rule()), &flow.udp(b"x")), Err(Refused::TxOutsideRule));
    }

    #[test]
    fn a_tag_within_a_tag_is_refused() {
        let rights = Rights::new(Rule { vlan: Some(5), ..rule() }, Addresses::default());
        let mut frame = vec![0xff; 6];
        frame.extend_from_slice(&MAC);
        frame.extend_from_slice(&[0x81, 0, 0, 5, 0x81, 0, 0, 6, 8, 0]);
        frame.resize(60, 0);
        assert_eq!(check(&rights, &frame), Err(Refused::TxOutsideRule));
        // And lengths instead of ethertypes: bridges talk so.
        let rights = Rights::new(rule(), Addresses::default());
        let mut frame = vec![1, 0x80, 0xc2, 0, 0, 0];
        frame.extend_from_slice(&MAC);
        frame.extend_from_slice(&[0, 38]);
        frame.resize(60, 0);
        assert_eq!(check(&rights, &frame), Err(Refused::TxOutsideRule));
    }
}
