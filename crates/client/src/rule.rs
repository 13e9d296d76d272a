//! The packets that an endpoint receives and may send.

use std::net::IpAddr;

use towpath_packet::MacAddr;
use towpath_protocol::message::{self, Open};

use crate::ids::QueuePair;

/// A flow rule and the properties of an endpoint. A field that a rule leaves out matches anything,
/// except MAC address and VLAN. By default these are the session's own address, and no tag;
/// [`Rule::any_mac`] and [`Rule::any_vlan`] make them match anything too.
///
/// The rule also limits the packets that the endpoint sends: their source matches the local fields,
/// and their destination the remote fields. Also where a rule leaves fields out, the packets have
/// the session's own addresses as source.
///
/// The server delivers a packet that several rules match to the most specific one: the rule with
/// the most fields. Of rules with equally many fields, the server compares remote port, remote
/// address, port, address, protocol, ethertype, VLAN and MAC address in this order. At the first
/// field in which the rules differ, the rule that has it wins. `Rule::new()` has two fields, MAC
/// address and VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    mac: Option<MacAddr>,
    vlan: Option<u16>,
    ethertype: Option<u16>,
    ip: Option<IpAddr>,
    protocol: Option<u8>,
    port: Option<u16>,
    remote_ip: Option<IpAddr>,
    remote_port: Option<u16>,
    any: u32,
    flags: u32,
    queue_pair: QueuePair,
}

impl Rule {
    /// Matches every packet to the session's MAC address without a VLAN tag.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let all_of_the_session = Rule::new();
    /// assert_eq!(all_of_the_session, Rule::default());
    /// ```
    #[must_use]
    pub fn new() -> Rule {
        Rule::default()
    }

    /// Matches every packet of the device, whatever its destination. For root and the server's
    /// user.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let all_of_the_device = Rule::promiscuous();
    /// ```
    #[must_use]
    pub fn promiscuous() -> Rule {
        Rule { flags: message::OPEN_PROMISCUOUS, ..Rule::default() }
    }

    /// Captures every packet, received or sent, with full checksums. For root and the server's
    /// user.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let copies = Rule::capture();
    /// ```
    #[must_use]
    pub fn capture() -> Rule {
        Rule { flags: message::OPEN_CAPTURE, ..Rule::default() }
    }

    /// Asks the server for link addresses, in a session that shares the host's addresses
    /// ([`Info::shared`](crate::Info::shared)). The session sends ARP requests and neighbour
    /// solicitations on the endpoint, for any destination. The server answers each with the link
    /// address of the next hop by the host's routes. The answer is zero if no route over the
    /// interface leads there, or if the next hop does not answer. The server answers again by
    /// itself when the route or the link address changes. A session has at most one such endpoint,
    /// and 64 requests that wait.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let questions = Rule::neighbours();
    /// ```
    #[must_use]
    pub fn neighbours() -> Rule {
        Rule { flags: message::OPEN_NEIGHBOURS, ..Rule::default() }
    }

    /// Receives no packets by a rule, but copies of the link control of the session's MAC address: ARP, ICMP and ICMPv6
    /// packets, and later fragments, that another session with this address receives. See
    /// [`Session::hand_over`](crate::Session::hand_over). The rule has no field but the VLAN. The server closes the endpoint
    /// when the last other session with the address ends. The endpoint may send what an endpoint of [`Rule::new`] may send.
    /// A session has at most one such endpoint.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use towpath_client::{Options, Rule, Session};
    /// let mut session = Session::attach("/run/towpath/eth0.sock", &Options::default())?;
    /// let control = session.open(&Rule::new().link_control())?;
    /// session.hand_over()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn link_control(self) -> Rule {
        Rule { flags: self.flags | message::OPEN_LINK_CONTROL, ..self }
    }

    /// Takes the rule over from the endpoint that has the same rule in a session which this session replaces
    /// ([`Options::replace`](crate::Options::replace)). Each packet reaches one of the two endpoints. The server closes the
    /// earlier endpoint ([`Session::is_revoked`](crate::Session::is_revoked)). If no endpoint has the rule, it opens as usual.
    /// Not for endpoints with out-of-band messages.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use towpath_client::{Options, Rule, Session};
    ///
    /// let replace = Some(Duration::from_secs(60));
    /// let options = Options { name: "web".to_owned(), replace, ..Options::default() };
    /// let mut session = Session::attach("/run/towpath/eth0.sock", &options)?;
    /// let endpoint = session.open(&Rule::new().udp(7).taken_over())?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn taken_over(self) -> Rule {
        Rule { flags: self.flags | message::OPEN_TAKE_OVER, ..self }
    }

    /// Matches packets to this MAC address instead of the session's. For root and the server's
    /// user.
    ///
    /// ```
    /// use towpath_client::{MacAddr, Rule};
    ///
    /// let rule = Rule::new().mac(MacAddr::BROADCAST);
    /// assert_eq!(rule, Rule::new().mac([0xff; 6]));
    /// ```
    #[must_use]
    pub fn mac(self, mac: impl Into<MacAddr>) -> Rule {
        Rule { mac: Some(mac.into()), any: self.any & !message::RULE_ANY_MAC, ..self }
    }

    /// Matches packets to any MAC address except a group's. The endpoint still sends only from the
    /// session's own address. For root and the server's user.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let rule = Rule::new().any_mac().ethertype(0x88b5);
    /// ```
    #[must_use]
    pub fn any_mac(self) -> Rule {
        Rule { mac: None, any: self.any | message::RULE_ANY_MAC, ..self }
    }

    /// Matches packets with this VLAN tag, 1 to 4094. The tag is in the bytes of the packets that
    /// the application receives and sends.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let tagged = Rule::new().vlan(7);
    /// ```
    #[must_use]
    pub fn vlan(self, vlan: u16) -> Rule {
        let flags = self.flags & !message::OPEN_WITHIN_VLAN;
        Rule { vlan: Some(vlan), any: self.any & !message::RULE_ANY_VLAN, flags, ..self }
    }

    /// Matches the same packets as [`Rule::vlan`], 1 to 4094, and puts the endpoint within the VLAN:
    /// the application receives and sends packets without the tag, as over a VLAN interface of Linux
    /// (`eth0.7`). The server or the device removes the outer tag, and with it its priority, and
    /// inserts a tag of IEEE 802.1Q (0x8100) of priority 0. The engine drops a packet to send that
    /// has a tag already, and counts it (`tx_dropped_outside_rule`). A received packet with a tag of a
    /// service provider (802.1ad) counts as `rx_dropped_unusable`. Lengths are without the tag,
    /// and the tag does not count towards the MTU. Any session may open any VLAN, except one that
    /// shares the host's addresses.
    ///
    /// ```
    /// # use towpath_client::Rule;
    /// let inside = Rule::new().udp(9000).within_vlan(7);
    /// assert_ne!(inside, Rule::new().udp(9000).vlan(7));
    /// ```
    #[must_use]
    pub fn within_vlan(self, vlan: u16) -> Rule {
        let rule = self.vlan(vlan);
        Rule { flags: rule.flags | message::OPEN_WITHIN_VLAN, ..rule }
    }

    /// Matches packets with any VLAN tag, and packets without one.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let rule = Rule::new().any_vlan().udp(9000);
    /// ```
    #[must_use]
    pub fn any_vlan(self) -> Rule {
        let flags = self.flags & !message::OPEN_WITHIN_VLAN;
        Rule { vlan: None, any: self.any | message::RULE_ANY_VLAN, flags, ..self }
    }

    /// Matches packets of this ethertype, 0x0600 upward.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let experiments = Rule::new().ethertype(0x88b5);
    /// ```
    #[must_use]
    pub fn ethertype(self, ethertype: u16) -> Rule {
        Rule { ethertype: Some(ethertype), ..self }
    }

    /// Matches packets to this address of the session.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let rule = Rule::new().udp(53).ip("10.77.0.2".parse()?);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn ip(self, ip: IpAddr) -> Rule {
        Rule { ip: Some(ip), ..self }
    }

    /// Matches packets of this IP protocol.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let icmp = Rule::new().ethertype(0x0800).protocol(1);
    /// ```
    #[must_use]
    pub fn protocol(self, protocol: u8) -> Rule {
        Rule { protocol: Some(protocol), ..self }
    }

    /// Matches packets to this port. The rule's protocol applies; without one, the rule matches
    /// TCP, UDP and SCTP. With the protocol TCP or UDP, port 0 asks the server to choose a free
    /// port, which [`Endpoint::port`](crate::Endpoint::port) returns.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let sctp = Rule::new().protocol(132).port(5000);
    /// ```
    #[must_use]
    pub fn port(self, port: u16) -> Rule {
        Rule { port: Some(port), ..self }
    }

    /// Matches packets from this address, of the same family as [`Rule::ip`] if both are given.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let rule = Rule::new().udp(53).remote_ip("10.77.0.1".parse()?);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn remote_ip(self, ip: IpAddr) -> Rule {
        Rule { remote_ip: Some(ip), ..self }
    }

    /// Matches packets from this port, as [`Rule::port`].
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let answers = Rule::new().udp(4000).remote_port(53);
    /// ```
    #[must_use]
    pub fn remote_port(self, port: u16) -> Rule {
        Rule { remote_port: Some(port), ..self }
    }

    /// Matches UDP packets to this port.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// assert_eq!(Rule::new().udp(53), Rule::new().protocol(17).port(53));
    /// ```
    #[must_use]
    pub fn udp(self, port: u16) -> Rule {
        Rule { protocol: Some(17), port: Some(port), ..self }
    }

    /// Matches TCP packets to this port.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// assert_eq!(Rule::new().tcp(80), Rule::new().protocol(6).port(80));
    /// ```
    #[must_use]
    pub fn tcp(self, port: u16) -> Rule {
        Rule { protocol: Some(6), port: Some(port), ..self }
    }

    /// Also matches broadcast and multicast packets that the rest of the rule matches.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let rule = Rule::new().udp(5353).with_group();
    /// ```
    #[must_use]
    pub fn with_group(self) -> Rule {
        Rule { flags: self.flags | message::OPEN_GROUP, ..self }
    }

    /// Accepts large packets and partial checksums, with their [`crate::Meta`]. Otherwise the
    /// server completes the checksums and segments the packets to the MTU.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let rule = Rule::new().tcp(80).with_offload();
    /// ```
    #[must_use]
    pub fn with_offload(self) -> Rule {
        Rule { flags: self.flags | message::OPEN_OFFLOAD, ..self }
    }

    /// Also takes and sends out-of-band messages ([`crate::Oob::send`]), in a session with
    /// [`crate::Options::oob_slots`]. The endpoint's address for them is the local side of the rule,
    /// which has a protocol and a port, and no remote fields and no VLAN. Without an address, the rule
    /// stands for all addresses of the session. The endpoint receives the packets that the rule
    /// matches, too: a program that wants none takes them all the same ([`crate::Receiver::receive`]),
    /// since they are news for a wait.
    ///
    /// ```
    /// use towpath_client::Rule;
    ///
    /// let rule = Rule::new().udp(7).out_of_band();
    /// ```
    #[must_use]
    pub fn out_of_band(self) -> Rule {
        Rule { flags: self.flags | message::OPEN_OUT_OF_BAND, ..self }
    }

    /// Returns `true` if the endpoint takes and sends out-of-band messages.
    pub(crate) fn is_out_of_band(&self) -> bool {
        self.flags & message::OPEN_OUT_OF_BAND != 0
    }

    /// Uses this queue pair of the session, [`QueuePair::FIRST`] by default. The server refuses a queue
    /// pair that the session does not have.
    ///
    /// ```
    /// use towpath_client::{QueuePair, Rule};
    ///
    /// let rule = Rule::new().udp(53).queue_pair(QueuePair::new(1));
    /// ```
    #[must_use]
    pub fn queue_pair(self, queue_pair: QueuePair) -> Rule {
        Rule { queue_pair, ..self }
    }

    pub(crate) fn uses(&self) -> QueuePair {
        self.queue_pair
    }

    pub(crate) fn to_message(self) -> Open {
        let mut open = Open {
            given: self.any,
            queue_pair: self.queue_pair.number(),
            flags: self.flags,
            vlan: self.vlan.unwrap_or(0),
            ethertype: self.ethertype.unwrap_or(0),
            mac: self.mac.unwrap_or_default().octets(),
            protocol: self.protocol.unwrap_or(0),
            ip_version: 0,
            ip: [0; 16],
            remote_ip: [0; 16],
            port: self.port.unwrap_or(0),
            remote_port: self.remote_port.unwrap_or(0),
            sequence: 0,
        };
        for (ip, octets) in [(self.ip, &mut open.ip), (self.remote_ip, &mut open.remote_ip)] {
            match ip {
                None => {}
                Some(IpAddr::V4(ip)) => octets[..4].copy_from_slice(&ip.octets()),
                Some(IpAddr::V6(ip)) => *octets = ip.octets(),
            }
        }
        open.ip_version = match (self.ip, self.remote_ip) {
            // Two families have no version in common: the server refuses the rule.
            (Some(local), Some(remote)) if local.is_ipv4() != remote.is_ipv4() => 0,
            (Some(ip), _) | (None, Some(ip)) => {
                if ip.is_ipv4() {
                    4
                } else {
                    6
                }
            }
            (None, None) => 0,
        };
        for (given, field) in [
            (self.mac.is_some(), message::RULE_MAC),
            (self.vlan.is_some(), message::RULE_VLAN),
            (self.ethertype.is_some(), message::RULE_ETHERTYPE),
            (self.ip.is_some(), message::RULE_IP),
            (self.protocol.is_some(), message::RULE_PROTOCOL),
            (self.port.is_some(), message::RULE_PORT),
            (self.remote_ip.is_some(), message::RULE_REMOTE_IP),
            (self.remote_port.is_some(), message::RULE_REMOTE_PORT),
        ] {
            if given {
                open.given |= field;
            }
        }
        open
    }
}
