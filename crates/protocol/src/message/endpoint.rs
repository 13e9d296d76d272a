//! The messages that open and close endpoints.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Asks for an endpoint.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Open {
    /// The fields below that count: `RULE_…`.
    pub given: u32,
    /// The session's queue pair that the endpoint uses.
    pub queue_pair: u32,
    /// `OPEN_…`.
    pub flags: u32,
    /// VLAN identifier, 1 to 4094; if not given, only packets without a tag match, or with
    /// [`RULE_ANY_VLAN`] all packets.
    pub vlan: u16,
    /// Ethertype, 0x0600 upward.
    pub ethertype: u16,
    /// Local MAC address; if not given, the session's own, or with [`RULE_ANY_MAC`] any.
    pub mac: [u8; 6],
    /// IP protocol: 6 TCP, 17 UDP, ...
    pub protocol: u8,
    /// 4 or 6: the version of the addresses.
    pub ip_version: u8,
    /// Local IP address; an IPv4 address in the first four bytes.
    pub ip: [u8; 16],
    /// Remote IP address, of the same version.
    pub remote_ip: [u8; 16],
    /// Local port; with [`RULE_PORT`], 0 asks the server to choose one.
    pub port: u16,
    /// Remote port.
    pub remote_port: u16,
    /// The number of the request among those of the session, from 1; 0 for none. If its predecessor
    /// carried the request out, a server that resumed the session answers with the endpoint that
    /// the request opened.
    pub sequence: u32,
}

/// [`Open::mac`] counts.
pub const RULE_MAC: u32 = 1;
/// [`Open::vlan`] counts.
pub const RULE_VLAN: u32 = 2;
/// [`Open::ethertype`] counts.
pub const RULE_ETHERTYPE: u32 = 4;
/// [`Open::ip`] counts.
pub const RULE_IP: u32 = 8;
/// [`Open::protocol`] counts.
pub const RULE_PROTOCOL: u32 = 16;
/// [`Open::port`] counts; without a protocol, for each protocol that has ports.
pub const RULE_PORT: u32 = 32;
/// [`Open::remote_ip`] counts.
pub const RULE_REMOTE_IP: u32 = 64;
/// [`Open::remote_port`] counts.
pub const RULE_REMOTE_PORT: u32 = 128;
/// Any MAC address, not only the session's own; needs the right to. Excludes [`RULE_MAC`].
pub const RULE_ANY_MAC: u32 = 256;
/// With a tag of any VLAN, or without. Excludes [`RULE_VLAN`].
pub const RULE_ANY_VLAN: u32 = 512;
/// All `RULE_…` bits.
pub const RULE_ALL: u32 = 1023;

/// Also receives broadcast and multicast that the rest of the rule matches.
pub const OPEN_GROUP: u32 = 1;
/// Takes large packets and partial checksums with their metadata.
pub const OPEN_OFFLOAD: u32 = 2;
/// Receives each packet of the device, for any destination; needs the right to.
pub const OPEN_PROMISCUOUS: u32 = 4;
/// Receives a copy of each packet, sent or received, and sends none; needs the right to.
pub const OPEN_CAPTURE: u32 = 8;
/// Asks the server for link addresses. The server answers the ARP requests and neighbour
/// solicitations that the endpoint sends; none of them reaches the device. For sessions that share
/// the host's addresses, at most one for each; excludes a flow rule.
pub const OPEN_NEIGHBOURS: u32 = 16;
/// Lies within the VLAN of the rule: the application receives and sends packets without the tag.
/// The server, or the device, removes and inserts it. Needs [`RULE_VLAN`].
pub const OPEN_WITHIN_VLAN: u32 = 32;
/// Takes and sends out-of-band messages ([`crate::oob`]). Needs [`RULE_PROTOCOL`] and
/// [`RULE_PORT`], without remote fields and VLAN.
pub const OPEN_OUT_OF_BAND: u32 = 64;
/// Takes the flow rule over from an endpoint of a session that has the same addresses and user, and that has sent a
/// hand-over message. The engine gives the rule to the new endpoint and closes the earlier one between two packets.
/// Without such an endpoint, opens as usual. Excludes [`OPEN_OUT_OF_BAND`] and ways to listen without a rule.
pub const OPEN_TAKE_OVER: u32 = 128;
/// Receives a copy of each ARP, ICMP and ICMPv6 packet, and of each later fragment, to the session's MAC address which
/// another session with that address receives. For sessions with addresses of their own; excludes a flow rule. The
/// endpoint may send what an endpoint of a rule without fields may send.
pub const OPEN_LINK_CONTROL: u32 = 256;
/// All `OPEN_…` bits.
pub const OPEN_ALL: u32 = 511;

/// The server opened an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Opened {
    /// Its number in the session, which descriptors contain.
    pub endpoint: u32,
    /// Its local port, if its rule has one; else 0.
    pub port: u32,
}

/// Closes an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Close {
    /// Its number in the session.
    pub endpoint: u32,
}
