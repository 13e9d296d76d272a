//! The configuration of a stack.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use towpath_packet::MacAddr;

/// The offloads that the link performs on sent frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// `true` if the link accepts frames with [`Checksum::Partial`](crate::Checksum::Partial).
    pub checksum: bool,
    /// `true` if the link accepts frames with [`Segmentation`](crate::Segmentation). Requires
    /// `checksum`.
    pub tcp_segmentation: bool,
    /// The largest frame that the link segments, in bytes, Ethernet header included. It must not
    /// exceed the room of an empty link, since TCP waits until the link has that room.
    pub max_frame_bytes: usize,
}

impl Default for Offload {
    /// Returns a link without offloads.
    fn default() -> Self {
        Offload { checksum: false, tcp_segmentation: false, max_frame_bytes: 65_535 }
    }
}

/// TCP's reaction to congestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Reno (RFC 5681).
    Reno,
    /// No congestion control: only the peer's window limits the sender. For private links without
    /// loss.
    None,
}

/// TCP's settings, the same for each connection.
#[derive(Clone, Copy, Debug)]
pub struct TcpConfig {
    /// The largest window that a connection announces, in bytes, and so the most that it receives
    /// before the application reads. A window begins with at most 256 KiB, and grows while the
    /// application reads as fast as data arrives. 4 KiB to 64 MiB, default 16 MiB.
    pub receive_buffer_bytes: usize,
    /// The largest window, in bytes, on a path with a round trip of less than 1 ms, unless the path
    /// itself holds more: there a window waits in queues of this host. At most
    /// `receive_buffer_bytes`, if that is less; a window still begins with 256 KiB if this is less.
    /// 4 KiB to 64 MiB. Default 1.5 MiB; over a session, three eighths of one lane's receive buffers.
    pub short_path_bytes: usize,
    /// The most that a connection holds of written data that the peer has not acknowledged, in
    /// bytes. The room begins with at most 256 KiB, and follows the congestion window. 4 KiB to
    /// 64 MiB, default 8 MiB.
    pub send_buffer_bytes: usize,
    /// Default CUBIC.
    pub congestion_control: CongestionControl,
    /// `true` if connections of this host ask for explicit congestion notification (RFC 3168).
    /// Connections of peers that ask always use it. Default `false`, as on Linux.
    pub ecn: bool,
    /// The longest time that an acknowledgement waits for data to go with. Default 10 ms, at most
    /// 500 ms (RFC 9293, 3.8.6.3). The stack acknowledges more than one full segment at once.
    pub ack_delay: Duration,
    /// The time for which the peer may acknowledge nothing new while data waits, before the stack
    /// gives the connection up; a peer whose window is closed has to answer probes. Default 900 s,
    /// as on Linux (RFC 9293, 3.8.3: at least 100 s). Retransmissions are up to a minute apart, so
    /// a shorter time allows few of them.
    pub user_timeout: Duration,
    /// The time that the handshake of an outgoing connection may take. Default 60 s.
    pub connect_timeout: Duration,
    /// The time that a listener keeps a half-open connection. Default 15 s.
    pub syn_received_timeout: Duration,
    /// The time for which a dropped connection may go without an acknowledgement of new data; then
    /// a reset ends it. A linger time replaces this time. Default 60 s.
    pub orphan_timeout: Duration,
    /// The time for which the stack keeps a closed connection's tuple (TIME-WAIT). Default 60 s.
    pub time_wait: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            receive_buffer_bytes: 16 << 20,
            short_path_bytes: 1536 << 10,
            send_buffer_bytes: 8 << 20,
            congestion_control: CongestionControl::Cubic,
            ecn: false,
            ack_delay: Duration::from_millis(10),
            user_timeout: Duration::from_secs(900),
            connect_timeout: Duration::from_secs(60),
            syn_received_timeout: Duration::from_secs(15),
            orphan_timeout: Duration::from_secs(60),
            time_wait: Duration::from_secs(60),
        }
    }
}

/// Probes of a silent peer (RFC 9293, 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The silence before the first probe; the stack takes at least 1 ms.
    pub idle: Duration,
    /// The time between two probes; the stack takes at least 1 ms.
    pub interval: Duration,
    /// The number of unanswered probes, after which the connection fails. At least 1 for a
    /// socket of `towpath-net`; with 0, the silence alone fails it.
    pub probes: u32,
}

impl KeepAlive {
    /// Returns nine probes at this interval, as on Linux, the first after the same silence.
    #[must_use]
    pub const fn every(interval: Duration) -> KeepAlive {
        KeepAlive { idle: interval, interval, probes: 9 }
    }
}

/// Limits of everything that the network or the application can make grow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// TCP connections, including half-open ones, without TIME-WAIT entries. Default 16 384.
    pub connections: usize,
    /// Half-open connections of all listeners together; beyond, the stack answers SYNs with cookies
    /// and keeps nothing (RFC 4987, 3.6). Default 2 048.
    pub half_open: usize,
    /// The memory of all connections' buffers together, in bytes. Default 256 MiB.
    pub tcp_buffer_bytes: usize,
    /// TIME-WAIT entries; at the limit the stack evicts the oldest. Default 32 768.
    pub time_wait: usize,
    /// UDP sockets, and as many TCP listeners. Default 4 096.
    pub sockets: usize,
    /// Memberships of UDP sockets in multicast groups. Default 1 024.
    pub memberships: usize,
    /// Neighbours (ARP, NDP). Default 1 024.
    pub neighbours: usize,
    /// Memory of the frames that wait for one neighbour's address, in bytes; at the limit the stack drops the oldest.
    /// Default 212 992, as on Linux (`unres_qlen_bytes`): two of the longest datagrams, or about
    /// 1 000 SYN-ACKs. A frame counts with 128 bytes of overhead, and one longer than 512 bytes with at least 2 176 bytes
    /// more.
    /// The frames of all neighbours together take at most `transmit_bytes`, or 256 KiB if that is more.
    pub pending_bytes: usize,
    /// Packets being reassembled from fragments. Default 64.
    pub reassemblies: usize,
    /// Bytes of all packets being reassembled. Default 4 MiB.
    pub reassembly_bytes: usize,
    /// The time to wait for a packet's fragments. Default 30 s (RFC 8200 says 60, Linux 30).
    pub reassembly_time: Duration,
    /// The memory of a UDP socket's receive queue, in bytes. A datagram takes its own bytes and 14
    /// (IPv4) or 38 (IPv6) for its header fields. Default 1 MiB.
    pub udp_receive_bytes: usize,
    /// Memory of the UDP frames of all sockets that wait to be sent, in bytes. A frame counts as in `pending_bytes`,
    /// with one exception: a short frame that has not waited for a neighbour's address counts with its buffer of 2 176
    /// bytes. The stack's own frames may take as much again. Default 2 MiB.
    pub transmit_bytes: usize,
    /// ICMP errors and TCP resets sent per second, on average. Default 1 000.
    pub errors_per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 16_384,
            half_open: 2_048,
            tcp_buffer_bytes: 256 << 20,
            time_wait: 32_768,
            sockets: 4_096,
            memberships: 1_024,
            neighbours: 1_024,
            pending_bytes: 212_992,
            reassemblies: 64,
            reassembly_bytes: 4 << 20,
            reassembly_time: Duration::from_secs(30),
            udp_receive_bytes: 1 << 20,
            transmit_bytes: 2 << 20,
            errors_per_second: 1_000,
        }
    }
}

/// A stack's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's Ethernet address.
    pub mac: MacAddr,
    /// The largest IP packet that the link carries, in bytes: 1280 to 65 535. Default 1500.
    pub mtu: usize,
    /// The host's IPv4 address and the length of its network's prefix.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// The gateway of IPv4 packets to other networks.
    pub ipv4_gateway: Option<Ipv4Addr>,
    /// `true` if the host has a link-local IPv6 address made of its Ethernet address (RFC 4291,
    /// appendix A). Default `true`.
    pub ipv6_link_local: bool,
    /// More IPv6 addresses, each with the length of its network's prefix.
    pub ipv6: Vec<(Ipv6Addr, u8)>,
    /// The gateway of IPv6 packets to other networks.
    pub ipv6_gateway: Option<Ipv6Addr>,
    /// The secret from which the stack derives ports, sequence numbers and packet identifications.
    /// It must differ for each stack; only a test uses the same seed again, to replay a run.
    /// Default 0.
    pub seed: u64,
    /// `true` if the addresses are those of another host, such as the kernel's, which owns the
    /// ports and answers for the addresses. The stack then neither announces nor defends the
    /// addresses, sends no fragments, and asks for the link address of every destination, whatever
    /// its network: the server knows the routes, and answers with the link address zero if there is
    /// none. Default `false`.
    pub shares_addresses: bool,
    /// `true` if [`Stack::next_unused_port`](crate::Stack::next_unused_port) reports TCP ports that
    /// nothing uses any more. Default `false`.
    pub reports_unused_ports: bool,
    /// The offloads that the link performs on sent frames.
    pub offload: Offload,
    /// TCP's settings.
    pub tcp: TcpConfig,
    /// The limits of the stack.
    pub limits: Limits,
}

impl Config {
    /// Returns the defaults for a host with this Ethernet address.
    #[must_use]
    pub fn new(mac: impl Into<MacAddr>) -> Self {
        Config {
            mac: mac.into(),
            mtu: 1500,
            ipv4: None,
            ipv4_gateway: None,
            ipv6_link_local: true,
            ipv6: Vec::new(),
            ipv6_gateway: None,
            shares_addresses: false,
            reports_unused_ports: false,
            seed: 0,
            offload: Offload::default(),
            tcp: TcpConfig::default(),
            limits: Limits::default(),
        }
    }

    /// Checks the configuration.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.mac.is_multicast() || self.mac.is_unspecified() {
            return Err(ConfigError::Mac);
        }
        if !(1280..=65_535).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if let Some((address, prefix)) = self.ipv4
            && (prefix > 32
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_loopback())
        {
            return Err(ConfigError::Ipv4(address, prefix));
        }
        for &(address, prefix) in &self.ipv6 {
            if prefix > 128
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_loopback()
            {
                return Err(ConfigError::Ipv6(address, prefix));
            }
        }
        let buffers = 4096..=(1 << 26);
        if !buffers.contains(&self.tcp.receive_buffer_bytes)
            || !buffers.contains(&self.tcp.short_path_bytes)
            || !buffers.contains(&self.tcp.send_buffer_bytes)
        {
            return Err(ConfigError::Buffer);
        }
        if self.tcp.ack_delay > Duration::from_millis(500) {
            return Err(ConfigError::AckDelay);
        }
        if self.offload.tcp_segmentation
            && (!self.offload.checksum || self.offload.max_frame_bytes < self.mtu + 14)
        {
            return Err(ConfigError::Offload);
        }
        Ok(())
    }
}

/// The error in a [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The Ethernet address is no station's address.
    #[error("the Ethernet address is a group address or zero")]
    Mac,
    /// The MTU is out of range.
    #[error(
        "an MTU of {0} is outside 1280 to 65535; give the interface one within, for a TAP with `towpath serve --mtu`"
    )]
    Mtu(usize),
    /// The IPv4 address cannot be a host's, or the prefix is too long.
    #[error("{0}/{1} is no host's address")]
    Ipv4(Ipv4Addr, u8),
    /// The IPv6 address cannot be a host's, or the prefix is too long.
    #[error("{0}/{1} is no host's address")]
    Ipv6(Ipv6Addr, u8),
    /// A TCP buffer is out of range.
    #[error("a TCP buffer is outside 4 KiB to 64 MiB")]
    Buffer,
    /// Acknowledgements may wait too long.
    #[error("acknowledgements may wait for at most 500 ms")]
    AckDelay,
    /// Segmentation is without checksum offload, or of frames below the MTU.
    #[error("segmentation needs checksum offload and frames larger than the MTU")]
    Offload,
}
