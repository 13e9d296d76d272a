//! The endpoints of a session that has single ports: one for each, and those that every host needs.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use towpath_client::{Endpoint, Info, OpenError, Refusal, Rule, Session};
use towpath_stack::SocketError;

use crate::{LinkError, PortProtocol};

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_IGMP: u8 = 2;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const NEIGHBOUR_SOLICITATION: u8 = 135;
/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;

/// A local port of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Port {
    protocol: u8,
    is_ipv4: bool,
    port: u16,
}

/// An open port.
struct Open {
    endpoint: Endpoint,
    /// The sockets that use it; 1 for TCP.
    sockets: u32,
    /// `true` if the server has closed the endpoint, and the network knows it.
    is_reported: bool,
}

/// The endpoints for packets without a port.
enum Base {
    /// The session has its own addresses. IGMP has an endpoint once a socket has joined a group.
    Own {
        arp: Option<Endpoint>,
        icmp: Option<Endpoint>,
        icmpv6: Option<Endpoint>,
        igmp: Option<Endpoint>,
    },
    /// The session shares the host's addresses, and asks the server for link addresses.
    Shared { neighbours: Endpoint },
}

/// See the module.
pub(super) struct Ports {
    base: Base,
    /// What the rules of all endpoints have in common.
    rule: Rule,
    open: HashMap<Port, Open>,
    /// The number of endpoints that the server had closed at the last look, and the ports that are
    /// still to be reported.
    revoked: (u64, Vec<Port>),
    /// The packets that closed ports had lost.
    lost_by_closed: u64,
}

impl Ports {
    /// Opens the endpoints that every host needs. `rule`: what all have in common.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(super) fn new(session: &mut Session, rule: Rule) -> Result<Ports, OpenError> {
        let (shared, has_ipv4) = (session.info().shared, session.info().ipv4.is_some());
        let base = if shared {
            Base::Shared { neighbours: session.open(&Rule::neighbours())? }
        } else {
            let arp = rule.ethertype(ETHERTYPE_ARP).with_group();
            let icmp = rule.ethertype(ETHERTYPE_IPV4).protocol(PROTOCOL_ICMP);
            let icmpv6 = rule.ethertype(ETHERTYPE_IPV6).protocol(PROTOCOL_ICMPV6);
            let needs_ipv6 = session.info().ipv6.is_some();
            Base::Own {
                arp: open_base(session, &arp, has_ipv4)?,
                icmp: open_base(session, &icmp.with_group(), has_ipv4)?,
                icmpv6: open_base(session, &icmpv6.with_group(), needs_ipv6)?,
                igmp: None,
            }
        };
        Ok(Ports { base, rule, open: HashMap::new(), revoked: (0, Vec::new()), lost_by_closed: 0 })
    }

    /// Returns `true` if the host may use IPv6.
    pub(super) fn has_ipv6(&self) -> bool {
        !matches!(self.base, Base::Own { icmpv6: None, .. })
    }

    /// Returns `true` if the session has addresses of a family.
    fn has_family(&self, info: &Info, is_ipv4: bool) -> bool {
        match (is_ipv4, info.shared) {
            (true, _) => info.ipv4.is_some(),
            (false, true) => info.ipv6.is_some(),
            (false, false) => self.has_ipv6(),
        }
    }

    /// Opens a port. Returns its address, and `true` if it was not open before.
    pub(super) fn open(
        &mut self,
        session: &mut Session,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> io::Result<(SocketAddr, bool)> {
        let wanted = Port::new(protocol, local);
        if let Some(open) = self.open.get_mut(&wanted) {
            if open.is_reported {
                return Err(crate::error::socket(SocketError::Revoked));
            }
            if protocol == PortProtocol::Udp {
                open.sockets += 1;
            }
            return Ok((local, false));
        }
        if local.ip().is_unspecified() && !self.has_family(session.info(), local.is_ipv4()) {
            // A socket for every address of a family of which there is none.
            return Ok((local, false));
        }
        let rule = rule(self.rule, session.info(), wanted, local.ip())?;
        let endpoint = session.open(&rule.with_offload()).map_err(refused)?;
        let opened = SocketAddr::new(local.ip(), endpoint.port());
        self.open
            .insert(Port::new(protocol, opened), Open { endpoint, sockets: 1, is_reported: false });
        Ok((opened, true))
    }

    /// Opens the endpoint that reports groups of a family, if it is not open.
    pub(super) fn open_groups(&mut self, session: &mut Session, is_ipv4: bool) -> io::Result<()> {
        match &mut self.base {
            Base::Own { igmp, .. }
                if is_ipv4 && igmp.is_none_or(|endpoint| session.is_revoked(endpoint)) =>
            {
                let rule = self.rule.ethertype(ETHERTYPE_IPV4).protocol(PROTOCOL_IGMP);
                *igmp = Some(session.open(&rule.with_group()).map_err(refused)?);
                Ok(())
            }
            // MLD is ICMPv6. The stack of a host with shared addresses joins no groups.
            _ => Ok(()),
        }
    }

    /// Closes a port, once no socket uses it.
    pub(super) fn close(
        &mut self,
        session: &mut Session,
        protocol: PortProtocol,
        local: SocketAddr,
    ) {
        let port = Port::new(protocol, local);
        let Some(open) = self.open.get_mut(&port) else { return };
        open.sockets -= 1;
        if open.sockets == 0 {
            let endpoint = open.endpoint;
            self.open.remove(&port);
            // The session may be over, and with it the endpoint.
            let _ = session.close(endpoint);
            // The engine counts for the endpoint until it is closed.
            self.lost_by_closed += session.counters(endpoint).rx_dropped();
        }
    }

    /// Returns how many packets for all ports so far the server dropped.
    pub(super) fn lost(&self, session: &Session) -> u64 {
        let open = self.open.values().map(|open| session.counters(open.endpoint).rx_dropped());
        self.lost_by_closed + open.sum::<u64>()
    }

    /// Returns the next open port whose endpoint the server has closed.
    pub(super) fn next_revoked(&mut self, session: &Session) -> Option<(PortProtocol, bool, u16)> {
        let (seen, waiting) = &mut self.revoked;
        let now = session.revoked_endpoints();
        if *seen != now {
            *seen = now;
            for (port, open) in &mut self.open {
                if !open.is_reported && session.is_revoked(open.endpoint) {
                    open.is_reported = true;
                    waiting.push(*port);
                }
            }
        }
        let Port { protocol, is_ipv4, port } = waiting.pop()?;
        let protocol = if protocol == PROTOCOL_TCP { PortProtocol::Tcp } else { PortProtocol::Udp };
        Some((protocol, is_ipv4, port))
    }

    /// Returns the endpoint of a frame of the stack, by its source.
    pub(super) fn endpoint_of(&self, frame: &[u8]) -> Option<Endpoint> {
        let (is_ipv4, protocol, transport) = match be16(frame, 12)? {
            ETHERTYPE_IPV4 => {
                let header = usize::from(frame.get(ETHERNET_BYTES)? & 0x0f) * 4;
                (true, *frame.get(ETHERNET_BYTES + 9)?, ETHERNET_BYTES + header)
            }
            // The stack sends no extension headers, apart from those of fragments, and from hop-by-hop options
            // before an MLD report.
            ETHERTYPE_IPV6 => match *frame.get(ETHERNET_BYTES + 6)? {
                HOP_BY_HOP => {
                    let (at, options) = (ETHERNET_BYTES + 40, frame.get(ETHERNET_BYTES + 40..)?);
                    (false, *options.first()?, at + 8 + usize::from(*options.get(1)?) * 8)
                }
                protocol => (false, protocol, ETHERNET_BYTES + 40),
            },
            _ => {
                return match self.base {
                    Base::Own { arp, .. } => arp,
                    Base::Shared { neighbours } => Some(neighbours),
                };
            }
        };
        match (&self.base, protocol) {
            (_, PROTOCOL_TCP | PROTOCOL_UDP) => {
                let port = Port { protocol, is_ipv4, port: be16(frame, transport)? };
                self.open.get(&port).map(|open| open.endpoint)
            }
            (Base::Own { icmp, .. }, PROTOCOL_ICMP) => *icmp,
            (Base::Own { icmpv6, .. }, PROTOCOL_ICMPV6) => *icmpv6,
            (Base::Own { igmp, .. }, PROTOCOL_IGMP) => *igmp,
            // The server takes only solicitations, and counts any other message against the session.
            (Base::Shared { neighbours }, PROTOCOL_ICMPV6) => {
                (*frame.get(transport)? == NEIGHBOUR_SOLICITATION).then_some(*neighbours)
            }
            _ => None,
        }
    }
}

impl Port {
    fn new(protocol: PortProtocol, local: SocketAddr) -> Port {
        let protocol = match protocol {
            PortProtocol::Tcp => PROTOCOL_TCP,
            PortProtocol::Udp => PROTOCOL_UDP,
        };
        Port { protocol, is_ipv4: local.is_ipv4(), port: local.port() }
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Opens an endpoint that the host needs, or can do without.
fn open_base(
    session: &mut Session,
    rule: &Rule,
    is_needed: bool,
) -> Result<Option<Endpoint>, OpenError> {
    match session.open(rule) {
        Err(OpenError::Refused { refusal: Refusal::Permission, .. }) if !is_needed => Ok(None),
        other => other.map(Some),
    }
}

/// Returns the flow rule of a port, from what all have in common.
fn rule(common: Rule, info: &Info, port: Port, local: IpAddr) -> io::Result<Rule> {
    let rule = common.protocol(port.protocol).port(port.port);
    if !info.shared {
        let ethertype = if port.is_ipv4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        let rule = rule.ethertype(ethertype);
        return Ok(if port.protocol == PROTOCOL_UDP { rule.with_group() } else { rule });
    }
    let own = match local {
        IpAddr::V4(_) => info.ipv4.map(|(ip, _)| IpAddr::from(ip)),
        IpAddr::V6(_) => info.ipv6.map(|(ip, _)| IpAddr::from(ip)),
    };
    match own {
        Some(own) if local.is_unspecified() || local == own => Ok(rule.ip(own)),
        _ => {
            let has: Vec<String> = [info.ipv4.map(|(ip, _)| ip.to_string())]
                .into_iter()
                .chain([info.ipv6.map(|(ip, _)| ip.to_string())])
                .flatten()
                .collect();
            let text = format!(
                "{local} is no address of this session, which shares {}; use one of these",
                has.join(" and ")
            );
            Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text))
        }
    }
}

/// Returns the error of `std::io` for a port that the server did not open.
pub(super) fn refused(error: OpenError) -> io::Error {
    let kind = match &error {
        OpenError::Refused { refusal: Refusal::InUse, .. } => io::ErrorKind::AddrInUse,
        OpenError::Refused { refusal: Refusal::Permission, .. } => io::ErrorKind::PermissionDenied,
        OpenError::Refused { refusal: Refusal::Limit, .. } => io::ErrorKind::QuotaExceeded,
        OpenError::Lost(lost) => return crate::error::link(&LinkError::from(*lost)),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
