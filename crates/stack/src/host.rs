//! State that every protocol of the stack needs: addresses, routes, the outbox, counters, sockets
//! to report.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_packet::{AnswerRate, igmp};

use crate::checksum::Sum;
use crate::fragment::{self, Making};
use crate::ip::Header;
use crate::neighbour::Neighbours;
use crate::outbox::{Frame, NextHop, Outbox};
use crate::own_frames::OwnFrames;
use crate::path::PathMtus;
use crate::random::Random;
use crate::{Checksum, Config, Counters, Instant, Meta, SocketId, ethernet, ip, ndp};

/// Returns `true` for a group of interface-local or reserved scope, whose packets leave no host (RFC 4291, 2.7).
pub(crate) fn stays_in_host(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(v6) if v6.is_multicast() && v6.octets()[1] & 0xf < 2)
}

/// The route to a destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// The local address in use.
    pub(crate) src: IpAddr,
    pub(crate) to: NextHop,
}

/// See the module.
pub(crate) struct Host {
    pub(crate) config: Config,
    /// Every IPv6 address, the link-local one included, with its prefix.
    pub(crate) ipv6: Vec<(Ipv6Addr, u8)>,
    pub(crate) counters: Counters,
    pub(crate) outbox: Outbox,
    pub(crate) own_frames: OwnFrames,
    pub(crate) neighbours: Neighbours,
    pub(crate) paths: PathMtus,
    pub(crate) random: Random,
    pub(crate) errors: AnswerRate,
    /// Sockets to report to the application, each at most once.
    pub(crate) news: VecDeque<SocketId>,
}

fn nanos(now: Instant) -> u64 {
    now.as_micros().saturating_mul(1000)
}

fn same_net_v4(a: Ipv4Addr, b: Ipv4Addr, prefix: u8) -> bool {
    let differ = a.to_bits() ^ b.to_bits();
    differ.checked_shr(32 - u32::from(prefix)).unwrap_or(0) == 0
}

fn same_net_v6(a: Ipv6Addr, b: Ipv6Addr, prefix: u8) -> bool {
    let differ = a.to_bits() ^ b.to_bits();
    differ.checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
}

impl Host {
    pub(crate) fn new(config: Config, now: Instant) -> Self {
        let mut ipv6 = Vec::new();
        if config.ipv6_link_local {
            ipv6.push((ndp::link_local(config.mac.octets()), 64));
        }
        ipv6.extend_from_slice(&config.ipv6);
        let limits = &config.limits;
        Host {
            ipv6,
            counters: Counters::default(),
            outbox: Outbox::new(limits.transmit_bytes),
            own_frames: OwnFrames::new(),
            neighbours: Neighbours::new(
                limits.neighbours,
                limits.pending_bytes,
                limits.transmit_bytes,
            ),
            paths: PathMtus::new(config.mtu),
            random: Random::new(config.seed),
            errors: AnswerRate::new(limits.errors_per_second, nanos(now)),
            news: VecDeque::new(),
            config,
        }
    }

    /// Returns `true` if the stack may send another ICMP error or reset now. Counts a refusal.
    pub(crate) fn may_refuse(&mut self, now: Instant) -> bool {
        let may = self.errors.take(nanos(now), self.random.next());
        self.counters.errors_limited += u64::from(!may);
        may
    }

    /// Returns `true` if the address is one of ours.
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.config.ipv4.is_some_and(|(ours, _)| ours == v4),
            IpAddr::V6(v6) => self.ipv6.iter().any(|(ours, _)| *ours == v6),
        }
    }

    /// Returns `true` for a broadcast address of our network.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(v4) = address else { return false };
        v4.is_broadcast()
            || self.config.ipv4.is_some_and(|(ours, prefix)| {
                // A /31 or /32 has no broadcast address (RFC 3021).
                let host = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
                prefix < 31 && v4.to_bits() == ours.to_bits() | host
            })
    }

    /// Returns `true` for a group that this host always listens to: that of all hosts of the link, or that for solicitations
    /// of an address.
    pub(crate) fn is_own_group(&self, group: IpAddr) -> bool {
        match group {
            IpAddr::V4(v4) => v4 == igmp::ALL_SYSTEMS,
            IpAddr::V6(v6) => {
                v6 == ndp::ALL_NODES
                    || self.ipv6.iter().any(|&(ours, _)| ndp::solicited_node(ours) == v6)
            }
        }
    }

    /// Returns `true` for an IPv4 address in this host's network.
    pub(crate) fn is_near(&self, address: IpAddr) -> bool {
        let IpAddr::V4(v4) = address else { return false };
        self.config.ipv4.is_some_and(|(ours, prefix)| same_net_v4(ours, v4, prefix))
    }

    /// Returns `true` if the address can belong to one host, and so be a packet's source.
    pub(crate) fn is_host(&self, address: IpAddr) -> bool {
        !address.is_unspecified()
            && !address.is_multicast()
            && !address.is_loopback()
            && !self.is_broadcast(address)
    }

    /// Returns `true` for an address of ours that no other host has.
    pub(crate) fn is_only_ours(&self, address: IpAddr) -> bool {
        self.is_ours(address) && !self.config.shares_addresses
    }

    /// Returns the route to `dst`; `None` if there is no address of its family or no gateway.
    pub(crate) fn route(&self, dst: IpAddr) -> Option<Route> {
        // An IPv6 address of an IPv4 host never leaves this host (RFC 4038, 4.2).
        if dst.is_unspecified() || dst.is_loopback() || dst.to_canonical() != dst {
            return None;
        }
        if self.is_only_ours(dst) {
            return Some(Route { src: dst, to: NextHop::Own });
        }
        match dst {
            IpAddr::V4(v4) => {
                let (ours, prefix) = self.config.ipv4?;
                let to = if self.is_broadcast(dst) {
                    NextHop::Station(ethernet::BROADCAST)
                } else if v4.is_multicast() {
                    NextHop::Station(ethernet::multicast(dst))
                } else if self.config.shares_addresses || same_net_v4(ours, v4, prefix) {
                    NextHop::Neighbour(dst)
                } else {
                    NextHop::Neighbour(self.config.ipv4_gateway?.into())
                };
                Some(Route { src: ours.into(), to })
            }
            IpAddr::V6(v6) => {
                let local = v6.is_unicast_link_local() || v6.is_multicast();
                let on_link =
                    self.ipv6.iter().find(|&&(ours, prefix)| same_net_v6(ours, v6, prefix));
                let global = || self.ipv6.iter().find(|(ours, _)| !ours.is_unicast_link_local());
                // A source's scope is at least the destination's, if possible (RFC 6724, 5, rule 2): the one of a group
                // is in its address (RFC 4291, 2.7).
                let stays_on_link =
                    v6.is_unicast_link_local() || v6.is_multicast() && v6.octets()[1] & 0xf <= 2;
                let (src, _) = match on_link {
                    Some(found) => found,
                    None if stays_on_link => self.ipv6.first()?,
                    None => global().or(self.ipv6.first())?,
                };
                let to = if stays_in_host(dst) {
                    NextHop::Own
                } else if v6.is_multicast() {
                    NextHop::Station(ethernet::multicast(dst))
                } else if self.config.shares_addresses || on_link.is_some() || local {
                    NextHop::Neighbour(dst)
                } else {
                    NextHop::Neighbour(self.config.ipv6_gateway?.into())
                };
                Some(Route { src: (*src).into(), to })
            }
        }
    }

    /// Queues a frame for the multicast MAC address in its header.
    pub(crate) fn send_to_group(&mut self, bytes: Vec<u8>) {
        let to = NextHop::Station(*bytes.first_chunk().unwrap_or(&ethernet::BROADCAST));
        let taken = self.outbox.push(Frame { bytes, meta: Meta::FULL, to });
        self.counters.transmit_limit += u64::from(!taken);
    }

    /// Sends a packet of two parts, fragmented if it exceeds the path's MTU. `sum_at` is the
    /// checksum's offset in the first part; the field holds zero. Returns `true` if the outbox took
    /// the packet.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        mut header: Header,
        to: NextHop,
        first: &mut [u8],
        rest: &[u8],
        sum_at: usize,
    ) -> bool {
        let len = first.len() + rest.len();
        let mtu = self.paths.mtu(now, header.dst);
        // Only ICMP over IPv4 has no pseudo-header.
        let pseudo = match header.protocol {
            ip::ICMP => Sum::default(),
            protocol => Sum::pseudo(header.src, header.dst, protocol, len),
        };
        header.payload_bytes = len;
        let whole = header.len() + len <= mtu;
        let covers = matches!(header.protocol, ip::UDP | ip::TCP);
        let (sum, meta) = if whole && self.config.offload.checksum && covers {
            let start = (ethernet::HEADER_BYTES + header.len()) as u16;
            let checksum = Checksum::Partial { start, offset: sum_at as u16 };
            (pseudo.folded(), Meta { checksum, segmentation: None })
        } else {
            let sum = pseudo.add(first).add(rest).finish();
            // Zero would mean "no checksum" (RFC 768).
            let sum = if sum == 0 && header.protocol == ip::UDP { 0xffff } else { sum };
            (sum, Meta::FULL)
        };
        first[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        let making = Making { header, to, mtu, id: self.random.next() as u32, meta };
        let taken = fragment::push(&making, &[first, rest], &mut self.outbox, &mut self.counters);
        self.counters.transmit_limit += u64::from(!taken);
        taken
    }
}
