//! The multicast groups that this host listens to: those of neighbour discovery, and those that UDP sockets have joined.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use towpath_packet::{igmp, mld};

use crate::bindings::Bound;
use crate::checksum::Sum;
use crate::host::{Host, stays_in_host};
use crate::ip::{self, Packet};
use crate::{Instant, SocketError, ndp};

/// A time in the past, in microseconds: a report with it is due at the next poll.
const AT_ONCE: u64 = 0;

/// The groups, the number of sockets in each, and when to report the groups.
pub(crate) struct Memberships {
    sockets: HashMap<IpAddr, usize>,
    ipv4: igmp::Groups,
    ipv6: mld::Groups,
}

impl Memberships {
    /// Creates the memberships of a host, which listens to the groups of its addresses. The kernel reports the groups of
    /// shared addresses.
    pub(crate) fn new(host: &Host, now: Instant) -> Memberships {
        let mut ipv6 = mld::Groups::default();
        if !host.config.shares_addresses {
            let own = host.ipv6.iter().map(|&(address, _)| ndp::solicited_node(address));
            own.for_each(|group| ipv6.join(now.as_micros(), group));
        }
        Memberships { sockets: HashMap::new(), ipv4: igmp::Groups::default(), ipv6 }
    }

    /// Returns `true` if this host receives what it sends to a group.
    pub(crate) fn loops(&self, group: IpAddr) -> bool {
        self.has(group) || is_of_all(group)
    }

    /// Returns `true` if a socket has joined a group.
    pub(crate) fn has(&self, group: IpAddr) -> bool {
        self.sockets.contains_key(&group)
    }

    /// Returns the number of memberships of all sockets.
    pub(crate) fn len(&self) -> usize {
        self.sockets.values().sum()
    }

    /// Records that a socket has joined a group. A report is due at the next poll if the socket is the first.
    pub(crate) fn join(&mut self, host: &Host, group: IpAddr) {
        let sockets = self.sockets.entry(group).or_default();
        *sockets += 1;
        // Those of all hosts are never reported, and those for solicitations always (RFC 3376, 5; RFC 3810, 6).
        if *sockets > 1 || host.is_own_group(group) || stays_in_host(group) {
            return;
        }
        match group {
            IpAddr::V4(group) => self.ipv4.join(AT_ONCE, group),
            IpAddr::V6(group) => self.ipv6.join(AT_ONCE, group),
        }
    }

    /// Records that a socket has left a group. A report is due at the next poll if the socket was the last.
    pub(crate) fn leave(&mut self, host: &Host, group: IpAddr) {
        let Some(sockets) = self.sockets.get_mut(&group) else { return };
        *sockets -= 1;
        if *sockets > 0 {
            return;
        }
        self.sockets.remove(&group);
        // The host still listens to these.
        if host.is_own_group(group) {
            return;
        }
        match group {
            IpAddr::V4(group) => self.ipv4.leave(AT_ONCE, group),
            IpAddr::V6(group) => self.ipv6.leave(AT_ONCE, group),
        }
    }

    /// Handles a query for the groups that this host listens to (RFC 3810, 6.2).
    pub(crate) fn mld(&mut self, now: Instant, host: &mut Host, packet: &Packet<'_>) {
        host.counters.mld_received += 1;
        let is_near = matches!(packet.src, IpAddr::V6(src) if src.is_unicast_link_local())
            && packet.hop_limit == 1
            && ip::has_router_alert(packet);
        match mld::Query::parse(packet.payload).filter(|_| is_near) {
            Some(query) => {
                let random = || host.random.next();
                let is_handled = self.ipv6.handle_query(now.as_micros(), random, &query);
                host.counters.group_queries_limited += u64::from(!is_handled);
            }
            None => host.counters.rx_malformed += 1,
        }
    }

    /// Handles a query for the groups that this host listens to (RFC 3376, 5.2). It goes to all hosts of the link, or to the
    /// group that it asks for. That of a switch may come from 0.0.0.0 (RFC 4541, 2.1.1). Queries of version 1 have no router
    /// alert (RFC 1112, appendix I).
    pub(crate) fn igmp(&mut self, now: Instant, host: &mut Host, packet: &Packet<'_>) {
        host.counters.igmp_received += 1;
        if Sum::default().add(packet.payload).folded() != 0xffff {
            host.counters.rx_checksum += 1;
            return;
        }
        // Reports of other hosts, and messages among routers, go to groups that a socket has joined.
        if packet.payload.first() != Some(&igmp::QUERY) {
            return;
        }
        let query = igmp::Query::parse(packet.payload).filter(|query| {
            // No router forwards packets to all hosts. A sender beyond the link could send other packets with any time to
            // live.
            let is_to_all = packet.dst == IpAddr::V4(igmp::ALL_SYSTEMS);
            let is_to_group = query.group().map(IpAddr::V4) == Some(packet.dst);
            (is_to_all || is_to_group && host.is_near(packet.src))
                && packet.hop_limit == 1
                && (query.is_v1() || ip::has_router_alert(packet))
        });
        match query {
            Some(query) => {
                let random = || host.random.next();
                let is_handled = self.ipv4.handle_query(now.as_micros(), random, &query);
                host.counters.group_queries_limited += u64::from(!is_handled);
            }
            None => host.counters.rx_malformed += 1,
        }
    }

    /// Returns `true` if a report is due since a socket joined or left a group.
    pub(crate) fn has_changed(&self) -> bool {
        self.ipv4.poll_at_us() == Some(AT_ONCE) || self.ipv6.poll_at_us() == Some(AT_ONCE)
    }

    /// Returns the time of the next reports.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        let times = [self.ipv4.poll_at_us(), self.ipv6.poll_at_us()];
        times.into_iter().flatten().min().map(Instant::from_micros)
    }

    /// Queues the frames of the reports that are due. Returns `true` if there are any.
    pub(crate) fn poll(&mut self, now: Instant, host: &mut Host) -> bool {
        let v4 = self.ipv4.due(now.as_micros(), || host.random.next());
        let v6 = self.ipv6.due(now.as_micros(), || host.random.next());
        let mac = host.config.mac.octets();
        if let Some((own, _)) = host.config.ipv4 {
            for report in &v4 {
                host.counters.igmp_sent += 1;
                host.send_to_group(report.frame(mac, own));
            }
        }
        // A host without a link-local address must also receive solicitations for its addresses, and reports from `::`
        // (RFC 3590).
        let own = host.ipv6.iter().map(|&(address, _)| address);
        let link_local = own.clone().find(Ipv6Addr::is_unicast_link_local);
        let source = link_local.unwrap_or(Ipv6Addr::UNSPECIFIED);
        for report in &v6 {
            host.counters.mld_sent += 1;
            host.send_to_group(report.frame(mac, source));
        }
        !v4.is_empty() || !v6.is_empty()
    }
}

fn is_of_all(group: IpAddr) -> bool {
    group == IpAddr::V4(igmp::ALL_SYSTEMS) || group == IpAddr::V6(ndp::ALL_NODES)
}

/// The groups that a socket has joined.
#[derive(Default)]
pub(crate) struct JoinedGroups(Vec<IpAddr>);

impl JoinedGroups {
    /// Checks whether the socket may join a group; see [`Stack::udp_join`](crate::Stack::udp_join). `bound`: its address.
    pub(crate) fn may_join(
        &self,
        host: &Host,
        memberships: &Memberships,
        bound: &Bound,
        group: IpAddr,
    ) -> Result<(), SocketError> {
        if !group.is_multicast() || !bound.takes(group.is_ipv4()) {
            return Err(SocketError::NotGroup);
        }
        if host.config.shares_addresses {
            return Err(SocketError::NoGroups);
        }
        let has_address =
            if group.is_ipv4() { host.config.ipv4.is_some() } else { !host.ipv6.is_empty() };
        if !has_address {
            return Err(SocketError::AddressNotAvailable);
        }
        if self.0.contains(&group) {
            return Err(SocketError::AlreadyJoined);
        }
        if memberships.len() >= host.config.limits.memberships {
            return Err(SocketError::LimitReached);
        }
        Ok(())
    }

    /// Joins a group. The caller has checked that the socket may.
    pub(crate) fn join(&mut self, host: &Host, memberships: &mut Memberships, group: IpAddr) {
        self.0.push(group);
        memberships.join(host, group);
    }

    /// Leaves a group.
    pub(crate) fn leave(
        &mut self,
        host: &Host,
        memberships: &mut Memberships,
        group: IpAddr,
    ) -> Result<(), SocketError> {
        if !group.is_multicast() {
            return Err(SocketError::NotGroup);
        }
        let at = self.0.iter().position(|one| *one == group);
        self.0.swap_remove(at.ok_or(SocketError::NotJoined)?);
        memberships.leave(host, group);
        Ok(())
    }

    pub(crate) fn leave_all(&mut self, host: &Host, memberships: &mut Memberships) {
        self.0.drain(..).for_each(|group| memberships.leave(host, group));
    }

    /// Returns `true` if the socket receives datagrams to an address. Each socket receives those to all hosts of the link.
    pub(crate) fn receives(&self, dst: IpAddr) -> bool {
        !dst.is_multicast() || is_of_all(dst) || self.0.contains(&dst)
    }
}
