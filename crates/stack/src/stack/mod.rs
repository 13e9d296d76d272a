//! The stack: received frames, frames to send, and the sockets' interface.

mod input;
mod output;
mod sockets;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use crate::arp::Arp;
use crate::ethernet;
use crate::host::Host;
use crate::ip::{self, Header};
use crate::memberships::Memberships;
use crate::ndp::{self, Ndp};
use crate::neighbour::{Outcome, Question};
use crate::outbox::{Frame, NextHop};
use crate::reassembly::Reassembly;
use crate::tcp::Tcp;
use crate::udp::Udp;
use crate::{Config, ConfigError, Counters, Flow, Instant, Meta, SocketId, SocketInfo};

/// A host on an Ethernet. See the crate's documentation.
pub struct Stack {
    host: Host,
    udp: Udp,
    tcp: Tcp,
    reassembly: Reassembly,
    /// Connections affected by neighbours' answers since the last poll.
    outcome: Outcome,
    /// `true` if the link had no room at the last poll.
    blocked: bool,
    /// The time when the stack last defended each address against an unsolicited claim.
    defended: HashMap<IpAddr, Instant>,
    memberships: Memberships,
}

impl Stack {
    /// Creates a stack. It announces its addresses at the first poll.
    ///
    /// # Errors
    /// If the configuration contradicts itself or is out of range.
    pub fn new(config: Config, now: Instant) -> Result<Stack, ConfigError> {
        config.check()?;
        let limits = config.limits;
        let host = Host::new(config, now);
        let tcp = Tcp::new(&host, now);
        let reassembly =
            Reassembly::new(limits.reassemblies, limits.reassembly_bytes, limits.reassembly_time);
        let memberships = Memberships::new(&host, now);
        let mut stack = Stack {
            host,
            udp: Udp::new(),
            tcp,
            reassembly,
            outcome: Outcome::default(),
            blocked: false,
            defended: HashMap::new(),
            memberships,
        };
        let addresses: Vec<_> = stack.addresses().map(|(address, _)| address).collect();
        for address in addresses {
            stack.announce(now, address);
        }
        Ok(stack)
    }

    /// Announces one of our addresses to all stations on the link (RFC 5227, 2.3; RFC 4861, 7.2.6). Does
    /// nothing if the addresses are shared: the kernel announces those.
    fn announce(&mut self, now: Instant, address: IpAddr) {
        if self.host.config.shares_addresses {
            return;
        }
        match address {
            IpAddr::V4(ours) => {
                let sender = (self.host.config.mac.octets(), ours);
                let arp = Arp { request: true, sender, target: ([0; 6], ours) };
                self.send_arp(arp, ethernet::BROADCAST);
            }
            IpAddr::V6(target) => {
                let link = Some(self.host.config.mac.octets());
                let message = Ndp::Advertisement { target, link, solicited: false };
                let to = NextHop::Station(ethernet::multicast(ndp::ALL_NODES.into()));
                self.send_ndp(now, message, target, ndp::ALL_NODES, to);
            }
        }
    }

    fn send_arp(&mut self, arp: Arp, station: [u8; 6]) {
        let mut bytes = self.host.outbox.buffer();
        arp.write(&mut bytes, station);
        self.host.counters.arp_sent += 1;
        let frame = Frame { bytes, meta: Meta::FULL, to: NextHop::Station(station) };
        if !self.host.outbox.push(frame) {
            self.host.counters.transmit_limit += 1;
        }
    }

    fn send_ndp(&mut self, now: Instant, message: Ndp, src: Ipv6Addr, dst: Ipv6Addr, to: NextHop) {
        let header = Header {
            src: src.into(),
            dst: dst.into(),
            protocol: ip::ICMPV6,
            hop_limit: ndp::HOP_LIMIT,
            traffic_class: 0,
            payload_bytes: ndp::MESSAGE_BYTES,
            fragment: None,
        };
        self.host.counters.ndp_sent += 1;
        self.host.send(now, header, to, &mut message.write(), &[], 2);
    }

    /// Asks for the link address of an IP address.
    fn ask(&mut self, now: Instant, question: Question) {
        let mac = self.host.config.mac.octets();
        match question.address {
            IpAddr::V4(target) => {
                let Some((ours, _)) = self.host.config.ipv4 else { return };
                let arp = Arp { request: true, sender: (mac, ours), target: ([0; 6], target) };
                self.send_arp(arp, question.station.unwrap_or(ethernet::BROADCAST));
            }
            IpAddr::V6(target) => {
                let Some(route) = self.host.route(target.into()) else { return };
                let IpAddr::V6(src) = route.src else { return };
                let group = ndp::solicited_node(target);
                let (dst, station) = match question.station {
                    Some(station) => (target, station),
                    None => (group, ethernet::multicast(group.into())),
                };
                let message = Ndp::Solicitation { target, link: Some(mac) };
                self.send_ndp(now, message, src, dst, NextHop::Station(station));
            }
        }
    }

    /// Returns when to call [`Stack::poll`] next: `now` if frames wait to be sent and the link had
    /// room; `None` if nothing is due before a frame arrives or the application calls.
    ///
    /// Frames that wait for room in the link ([`Stack::is_blocked`]) do not count: only the caller
    /// knows when the link has room again.
    #[must_use]
    pub fn poll_at(&self, now: Instant) -> Option<Instant> {
        if self.wants_poll() {
            return Some(now);
        }
        let tcp = if self.blocked { None } else { self.tcp.poll_at(now) };
        let groups = self.memberships.poll_at();
        let neighbours = self.host.neighbours.poll_at();
        [neighbours, self.reassembly.poll_at(), groups, tcp].into_iter().flatten().min()
    }

    /// Returns `true` if frames wait to be sent at once.
    #[must_use]
    pub fn wants_poll(&self) -> bool {
        !self.host.own_frames.is_empty()
            || self.memberships.has_changed()
            || !self.blocked
                && (!self.host.outbox.is_empty()
                    || self.tcp.wants_poll()
                    || !self.outcome.resume.is_empty()
                    || !self.outcome.failed.is_empty())
    }

    /// Returns `true` if frames wait for room in the link.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Returns the number of frames that wait for a neighbour's answer, or for room in the link: datagrams, fragments
    /// and the stack's own answers, and a report of groups that have changed. Data of TCP connections does not count.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.host.outbox.len()
            + self.host.neighbours.held()
            + self.host.own_frames.len()
            + usize::from(self.memberships.has_changed())
    }

    /// Returns, for each UDP datagram that [`Stack::unsent`] counts, whether it is of IPv4, and its local port. Visits all
    /// neighbours and frames.
    pub fn unsent_udp_ports(&self) -> impl Iterator<Item = (bool, u16)> {
        let frames = self.host.outbox.frames().chain(self.host.neighbours.held_frames());
        frames.filter_map(Frame::udp_port)
    }

    /// Drops all frames that wait, and counts them ([`Counters::unsent_at_end`]): the host ends.
    pub fn drop_unsent(&mut self) {
        let mut dropped = self.host.neighbours.drop_held();
        while let Some(frame) = self.host.outbox.pop() {
            self.host.outbox.recycle(frame.bytes);
            dropped += 1;
        }
        while let Some((frame, _)) = self.host.own_frames.pop() {
            self.host.own_frames.recycle(frame);
            dropped += 1;
        }
        self.host.counters.unsent_at_end += dropped as u64;
    }

    /// Returns the next socket whose readiness may have changed, if any. The stack reports a socket
    /// once, until the caller has checked it: by its readiness, or by an operation that would have
    /// had to wait.
    pub fn next_news(&mut self) -> Option<SocketId> {
        self.host.news.pop_front()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.host.counters
    }

    /// Returns the next local TCP port that no listener, connection or TIME-WAIT entry uses any
    /// more, with `true` for IPv4, if the configuration asks for such reports
    /// ([`Config::reports_unused_ports`]).
    pub fn next_unused_port(&mut self) -> Option<(bool, u16)> {
        self.tcp.next_unused_port()
    }

    /// Fails the sockets of a TCP port with [`SocketError::Revoked`](crate::SocketError::Revoked):
    /// the port belongs to this host no more.
    pub fn tcp_revoke(&mut self, now: Instant, is_ipv4: bool, port: u16) {
        self.tcp.revoke(now, &mut self.host, is_ipv4, port);
    }

    /// Fails the sockets of a UDP port with [`SocketError::Revoked`](crate::SocketError::Revoked).
    pub fn udp_revoke(&mut self, is_ipv4: bool, port: u16) {
        self.udp.revoke(&mut self.host, &mut self.memberships, is_ipv4, port);
    }

    /// Returns the addresses of all connections, except half-open ones, and of UDP sockets with a peer.
    pub fn flows(&self) -> impl Iterator<Item = Flow> + '_ {
        self.tcp.flows().chain(self.udp.flows(&self.host))
    }

    /// Returns the addresses of half-open connections, which listeners have yet to give out.
    pub fn half_open_flows(&self) -> impl Iterator<Item = Flow> + '_ {
        self.tcp.half_open_flows()
    }

    /// Fails a connection that has begun here with [`SocketError::AddressInUse`](crate::SocketError::AddressInUse), because
    /// another host with the same addresses has its flow.
    pub fn tcp_refuse(&mut self, now: Instant, flow: &Flow) {
        self.tcp.refuse_flow(now, &mut self.host, flow);
    }

    /// Fails the listeners, and receiving by UDP sockets without a peer, with
    /// [`SocketError::HandedOver`](crate::SocketError::HandedOver), after what has arrived: another host has taken over the
    /// addresses.
    pub fn hand_over(&mut self) {
        self.tcp.hand_over(&mut self.host);
        self.udp.hand_over(&mut self.host);
    }

    /// Returns all sockets: those bound to UDP ports, listeners, and the connections that an application has or has not
    /// accepted yet.
    pub fn sockets(&self) -> impl Iterator<Item = SocketInfo> + '_ {
        self.udp.list().chain(self.tcp.list())
    }

    /// Returns the number of TCP connections (half-open ones included, those in TIME-WAIT not), and
    /// of TIME-WAIT entries.
    #[must_use]
    pub fn tcp_sizes(&self) -> (usize, usize) {
        self.tcp.counts()
    }

    /// Returns the number of bytes in the buffers of TCP connections, and the memory allocated for
    /// such buffers.
    #[must_use]
    pub fn tcp_buffer_bytes(&self) -> (usize, usize) {
        self.tcp.buffer_bytes()
    }

    /// Returns the number of neighbours known or asked for.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        self.host.neighbours.len()
    }

    /// Returns the number of bytes held for incomplete packets.
    #[must_use]
    pub fn reassembly_bytes(&self) -> usize {
        self.reassembly.bytes()
    }

    /// Returns every IP address of this host with its prefix's length.
    pub fn addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        let v4 = self.host.config.ipv4.map(|(address, prefix)| (address.into(), prefix));
        v4.into_iter()
            .chain(self.host.ipv6.iter().map(|&(address, prefix)| (address.into(), prefix)))
    }
}
