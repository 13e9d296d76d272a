//! The path of a received frame.

use std::net::IpAddr;

use towpath_packet::{igmp, mld};

use super::Stack;
use crate::arp::Arp;
use crate::checksum::Sum;
use crate::host::{Host, stays_in_host};
use crate::icmp::{self, Message, Problem, Report};
use crate::ip::{self, Header, Packet, Parameter, Refusal};
use crate::ndp::{self, Ndp};
use crate::outbox::NextHop;
use crate::{Checksum, Instant, Meta, ethernet};

/// The link address in an answer to a host that shares its addresses, if no route leads to the
/// destination or the next hop does not answer.
const NO_LINK_ADDRESS: [u8; 6] = [0; 6];

/// Time between two defences of an address (RFC 5227, 2.4 (b)).
const DEFEND_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);

/// Returns `true` for a message of neighbour discovery, of routers or of multicast groups (ICMPv6, IGMP).
fn is_of_link(packet: &Packet<'_>) -> bool {
    if packet.src.is_ipv4() {
        return packet.protocol == igmp::PROTOCOL_IGMP;
    }
    packet.protocol == ip::ICMPV6
        && packet.payload.first().is_some_and(|kind| matches!(kind, 130..=137 | 143))
}

/// Returns `true` if the stack has to verify the TCP or UDP checksum.
fn must_verify(meta: &Meta) -> bool {
    meta.segmentation.is_none() && meta.checksum == Checksum::Full
}

impl Stack {
    /// Processes a frame from the link: an Ethernet header and its payload, without frame check
    /// sequence. The frame may be a large one that a device has merged. The stack verifies the
    /// checksum of a TCP or UDP packet only if `meta` says that no device has verified it.
    pub fn input(&mut self, now: Instant, frame: &[u8], meta: Meta) {
        self.host.counters.rx_frames += 1;
        self.host.counters.rx_bytes += frame.len() as u64;
        self.process(now, frame, meta, false);
    }

    /// Processes a bounded number of the frames that this host has sent to itself. Returns `true` if there were any.
    pub(super) fn receive_own(&mut self, now: Instant) -> bool {
        let count = self.host.own_frames.len();
        for _ in 0..count {
            let Some((frame, meta)) = self.host.own_frames.pop() else { break };
            self.host.counters.own_frames += 1;
            self.process(now, &frame, meta, true);
            self.host.own_frames.recycle(frame);
        }
        count > 0
    }

    /// Processes a frame of the link, or one from this host to itself (`is_own`).
    fn process(&mut self, now: Instant, frame: &[u8], meta: Meta, is_own: bool) {
        let counters = &mut self.host.counters;
        if frame.len() < ethernet::HEADER_BYTES {
            counters.rx_malformed += 1;
            return;
        }
        let (header, payload) = frame.split_at(ethernet::HEADER_BYTES);
        let group = header[0] & 1 != 0;
        if !group && header[..6] != self.host.config.mac.octets() {
            counters.rx_other_station += 1;
            return;
        }
        let ethertype = u16::from_be_bytes([header[12], header[13]]);
        let large = meta.segmentation.is_some();
        let parsed = match ethertype {
            ethernet::ARP => return self.arp(now, payload),
            ethernet::IPV4 => ip::parse_v4(payload, large),
            ethernet::IPV6 => ip::parse_v6(payload, large),
            _ => {
                counters.rx_ethertype += 1;
                return;
            }
        };
        let packet = match parsed {
            Ok(packet) => packet,
            Err(refusal) => {
                *match refusal {
                    Refusal::Malformed => &mut counters.rx_malformed,
                    Refusal::Checksum => &mut counters.rx_ip_checksum,
                    Refusal::Extension => &mut counters.rx_extension,
                    Refusal::Parameter(parameter) => {
                        return self.refuse_parameter(now, payload, group, parameter);
                    }
                } += 1;
                return;
            }
        };
        if !self.accepts(&packet, is_own) {
            return;
        }
        let Some(part) = packet.fragment else {
            return self.deliver(now, &packet, group, must_verify(&meta));
        };
        let counters = &mut self.host.counters;
        if let Some(whole) = self.reassembly.add(now, &packet, part, counters) {
            let read = if packet.src.is_ipv4() { ip::parse_v4 } else { ip::parse_v6 };
            match read(&whole, false) {
                // Messages of the link come in one piece (RFC 6980, 5): a switch that inspects them sees no fragments.
                Ok(packet) if packet.fragment.is_none() && !is_of_link(&packet) => {
                    self.deliver(now, &packet, group, true);
                }
                Err(Refusal::Parameter(parameter)) => {
                    self.refuse_parameter(now, &whole, group, parameter);
                }
                _ => self.host.counters.rx_malformed += 1,
            }
        }
    }

    /// Returns `true` if the packet's addresses are valid for this host. Only a packet from this host (`is_own`) may have an
    /// address of this host as source.
    fn accepts(&mut self, packet: &Packet<'_>, is_own: bool) -> bool {
        let host = &mut self.host;
        let is_igmp = packet.protocol == igmp::PROTOCOL_IGMP && packet.src.is_ipv4();
        let dst_ok = match packet.dst {
            group if group.is_multicast() => {
                (self.memberships.has(group) || host.is_own_group(group))
                    && (is_own || !stays_in_host(group))
            }
            dst => host.is_ours(dst) || host.is_broadcast(dst),
        };
        if !dst_ok {
            host.counters.rx_other_address += 1;
            return false;
        }
        // A packet from the unspecified address can only be duplicate address detection (RFC 4862,
        // 5.4), or a switch's query for groups (RFC 4541, 2.1.1).
        let asking = packet.src.is_unspecified()
            && (packet.protocol == ip::ICMPV6 && packet.src.is_ipv6() || is_igmp);
        // An application could take such an address of the link for that of an IPv4 host, or its own.
        let is_mapped = |address: IpAddr| address.to_canonical() != address;
        let is_forged = host.is_only_ours(packet.src) && !is_own
            || is_mapped(packet.src)
            || is_mapped(packet.dst);
        if !(host.is_host(packet.src) || asking) || is_forged {
            host.counters.rx_bad_source += 1;
            return false;
        }
        true
    }

    /// Passes a whole packet to its protocol. `group`: `true` if the packet was sent to a group.
    fn deliver(&mut self, now: Instant, packet: &Packet<'_>, group: bool, verify: bool) {
        let unicast = !group && self.host.is_ours(packet.dst);
        match packet.protocol {
            ip::TCP if unicast => self.tcp.dispatch(now, &mut self.host, packet, verify),
            ip::TCP => self.host.counters.rx_other_address += 1,
            ip::UDP => {
                if !self.udp.dispatch(&mut self.host, packet, verify) && unicast {
                    self.report(now, packet, Report::Port);
                }
            }
            igmp::PROTOCOL_IGMP if packet.src.is_ipv4() => {
                self.memberships.igmp(now, &mut self.host, packet)
            }
            ip::ICMP if packet.src.is_ipv4() => self.icmp(now, packet, unicast, verify),
            ip::ICMPV6 if packet.src.is_ipv6() => self.icmp(now, packet, unicast, verify),
            _ => {
                self.host.counters.rx_protocol += 1;
                // "No next header" is a valid value, not an unknown protocol (RFC 8200, 4.7).
                if unicast && packet.protocol != 59 {
                    self.report(now, packet, Report::Protocol(packet.protocol_at));
                }
            }
        }
    }

    fn arp(&mut self, now: Instant, payload: &[u8]) {
        let Some(arp) = Arp::parse(payload) else {
            self.host.counters.rx_malformed += 1;
            return;
        };
        self.host.counters.arp_received += 1;
        let Some((ours, _)) = self.host.config.ipv4 else { return };
        let (mac, ip) = arp.sender;
        if ip == ours && !self.host.config.shares_addresses {
            if mac != self.host.config.mac.octets() {
                self.defend(now, ours.into());
            }
            return;
        }
        let asks_us = arp.request && arp.target.1 == ours;
        if !ip.is_unspecified() && self.host.is_host(ip.into()) {
            self.learn(now, ip.into(), mac, asks_us);
        }
        if asks_us && mac[0] & 1 == 0 {
            let sender = (self.host.config.mac.octets(), ours);
            self.send_arp(Arp { request: false, sender, target: arp.sender }, mac);
        }
    }

    /// Records a neighbour's link address. With `insert`, also adds a new neighbour.
    fn learn(&mut self, now: Instant, address: IpAddr, mac: [u8; 6], insert: bool) {
        let Host { outbox, counters, neighbours, config, .. } = &mut self.host;
        if config.shares_addresses && mac == NO_LINK_ADDRESS {
            neighbours.give_up(address, outbox, counters, &mut self.outcome);
        } else {
            neighbours.learn(now, address, mac, insert, outbox, &mut self.outcome);
        }
    }

    /// Handles another station's claim on one of our addresses: counts the claim, and defends the
    /// address at a limited rate per address (RFC 5227, 2.4).
    fn defend(&mut self, now: Instant, address: IpAddr) {
        self.host.counters.address_conflicts += 1;
        if self.defended.get(&address).is_none_or(|&at| now.since(at) >= DEFEND_INTERVAL) {
            self.defended.insert(address, now);
            self.announce(now, address);
        }
    }

    fn icmp(&mut self, now: Instant, packet: &Packet<'_>, unicast: bool, verify: bool) {
        let message = packet.payload;
        if message.len() < 8 {
            self.host.counters.rx_malformed += 1;
            return;
        }
        if verify {
            let sum = match packet.protocol {
                ip::ICMP => Sum::default(),
                protocol => Sum::pseudo(packet.src, packet.dst, protocol, message.len()),
            };
            if sum.add(message).folded() != 0xffff {
                self.host.counters.rx_checksum += 1;
                return;
            }
        }
        if packet.src.is_ipv6() {
            if message[0] == mld::QUERY {
                return self.memberships.mld(now, &mut self.host, packet);
            }
            match Ndp::parse(message) {
                Ok(Some(ndp)) if packet.hop_limit == ndp::HOP_LIMIT => {
                    return self.ndp(now, packet, ndp);
                }
                Ok(None) if !packet.src.is_unspecified() => {}
                _ => {
                    self.host.counters.rx_malformed += 1;
                    return;
                }
            }
        }
        self.host.counters.icmp_received += 1;
        // The stack answers no IPv4 broadcast, because that would allow a smurf attack (RFC 1122, 3.2.2.6). It answers IPv6
        // requests to its own groups (RFC 4443, 4.2): routers do not forward those, so the request comes from the link. The
        // groups of sockets may be routed.
        let is_own_group = packet.src.is_ipv6() && self.host.is_own_group(packet.dst);
        match icmp::parse(packet.src, message) {
            Message::EchoRequest
                if unicast || is_own_group && !self.host.config.shares_addresses =>
            {
                self.echo(now, packet);
            }
            Message::Error(problem, quoted) => self.problem(now, packet.src, problem, &quoted),
            Message::Unreadable => self.host.counters.icmp_errors_unmatched += 1,
            Message::EchoRequest | Message::Other => {}
        }
    }

    /// Echoes the bytes of an echo request.
    fn echo(&mut self, now: Instant, packet: &Packet<'_>) {
        let Some(route) = self.host.route(packet.src) else {
            self.host.counters.no_route += 1;
            return;
        };
        let message = packet.payload;
        // The code is zero in each usual request, and is echoed as on Linux.
        let mut head = [icmp::echo_reply(packet.src), message[1], 0, 0, 0, 0, 0, 0];
        head[4..8].copy_from_slice(&message[4..8]);
        let header = Header {
            src: if packet.dst.is_multicast() { route.src } else { packet.dst },
            dst: packet.src,
            protocol: packet.protocol,
            hop_limit: ip::HOP_LIMIT,
            traffic_class: 0,
            payload_bytes: message.len(),
            fragment: None,
        };
        self.host.counters.icmp_echoes += 1;
        self.host.send(now, header, route.to, &mut head, &message[8..], 2);
    }

    /// Handles an error about a packet of ours.
    fn problem(&mut self, now: Instant, from: IpAddr, problem: Problem, quoted: &icmp::Quoted) {
        // A forger that does not see our packets could lower every path's MTU. So the stack accepts
        // the message only about a packet that a socket has in flight (RFC 5927, 4.1; RFC 8201, 4).
        // It checks with the socket before it changes the path.
        // Only this host sees what it sends to itself.
        let is_foreign = self.host.is_only_ours(quoted.dst) && !self.host.is_only_ours(from);
        let is_possible =
            self.host.is_ours(quoted.src) && !is_foreign && !problem.contradicts(quoted);
        let known = is_possible
            && match quoted.protocol {
                ip::TCP => self.tcp.problem(now, &mut self.host, problem, quoted),
                ip::UDP => self.udp.problem(now, &mut self.host, problem, quoted),
                _ => false,
            };
        if !known {
            self.host.counters.icmp_errors_unmatched += 1;
            return;
        }
        if let Problem::TooBig(said) = problem {
            // An old router does not report the MTU: take the next lower common size (RFC 1191, 7).
            let plateaus = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_280, 1_006, 576];
            let guess = || plateaus.into_iter().find(|&mtu| mtu < quoted.len).unwrap_or(576);
            let mtu = if said == 0 { guess() } else { said };
            if self.host.paths.lower(now, quoted.dst, mtu) {
                self.host.counters.path_mtu_lowered += 1;
                if quoted.protocol == ip::TCP {
                    self.tcp.problem(now, &mut self.host, problem, quoted);
                }
            }
        }
    }

    fn ndp(&mut self, now: Instant, packet: &Packet<'_>, ndp: Ndp) {
        self.host.counters.ndp_received += 1;
        let (IpAddr::V6(src), mac) = (packet.src, self.host.config.mac.octets()) else { return };
        match ndp {
            Ndp::Solicitation { target, link } => {
                if !self.host.is_ours(target.into()) {
                    return;
                }
                if src.is_unspecified() {
                    // Another host is about to take our address, and asks whether it may. Each such question is
                    // answered, to all stations (RFC 4861, 7.2.4; RFC 4862, 5.4.3).
                    self.host.counters.address_conflicts += 1;
                    return self.announce(now, target.into());
                }
                if let Some(link) = link {
                    self.learn(now, src.into(), link, true);
                }
                let message = Ndp::Advertisement { target, link: Some(mac), solicited: true };
                let to = match link {
                    Some(link) if link[0] & 1 == 0 => NextHop::Station(link),
                    _ => NextHop::Neighbour(src.into()),
                };
                self.send_ndp(now, message, target, src, to);
            }
            Ndp::Advertisement { target, link, solicited: _ } => {
                if self.host.is_ours(target.into()) && !self.host.config.shares_addresses {
                    if link != Some(mac) {
                        self.defend(now, target.into());
                    }
                    return;
                }
                if let Some(link) = link {
                    self.learn(now, target.into(), link, false);
                }
            }
        }
    }

    /// Drops a packet for a part of its headers, and reports that part to the sender (RFC 8200, 4; RFC 4443, 3.4;
    /// RFC 1122, 3.2.1.8).
    fn refuse_parameter(&mut self, now: Instant, bytes: &[u8], group: bool, parameter: Parameter) {
        let packet = ip::outline(bytes);
        if !self.accepts(&packet, false) {
            return;
        }
        self.host.counters.rx_extension += 1;
        let unicast = !group && self.host.is_ours(packet.dst);
        // A later fragment has no beginning of the packet to report about.
        let is_later = packet.fragment.is_some_and(|part| part.offset > 0);
        let Some((protocol, payload)) = ip::beyond_extensions(&packet) else { return };
        if !is_later && (unicast || parameter.even_to_group) {
            let packet = Packet { protocol, payload, ..packet };
            self.report(now, &packet, Report::Parameter(parameter));
        }
    }

    /// Reports an unwanted packet to its sender, at a limited rate, and never about an ICMP error (RFC 1122, 3.2.2;
    /// RFC 4443, 2.4). The caller excludes packets to groups, except for an option of type 10 (RFC 8200, 4.2).
    fn report(&mut self, now: Instant, packet: &Packet<'_>, report: Report) {
        let icmp = icmp::protocol(packet.src);
        if packet.protocol == icmp
            && packet.payload.first().is_none_or(|&kind| icmp::is_error(packet.src, kind))
        {
            return;
        }
        // The host whose addresses these are reports what it receives itself.
        if self.host.config.shares_addresses {
            return;
        }
        let Some(route) = self.host.route(packet.src) else {
            self.host.counters.no_route += 1;
            return;
        };
        if !self.host.may_refuse(now) {
            return;
        }
        let quote = packet.bytes.len().min(icmp::quote_bytes(packet.src));
        let mut head = report.head(packet.src);
        let header = Header {
            src: if packet.dst.is_multicast() { route.src } else { packet.dst },
            dst: packet.src,
            protocol: icmp,
            hop_limit: ip::HOP_LIMIT,
            traffic_class: 0,
            payload_bytes: head.len() + quote,
            fragment: None,
        };
        self.host.counters.icmp_errors_sent += 1;
        self.host.send(now, header, route.to, &mut head, &packet.bytes[..quote], 2);
    }
}
