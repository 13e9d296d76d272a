//! The control thread's part: link addresses for sessions, and changes of the host.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use towpath_engine::account::Account;
use towpath_engine::account::Party;
use towpath_engine::commands::Command;
use towpath_engine::neighbours::NeighbourRequest;
use towpath_netlink::{HostEvent, Reachability};
use towpath_packet::build::Flow;
use towpath_protocol::layout::CLOSED_ADDRESS_GONE;
use tracing::warn;

use super::Host;
use super::neighbours::{Asker, Delivery};
use crate::addresses::Lease;
use crate::connection::Connection;
use crate::control::Control;
use crate::engines::Reply;

/// Requests and earlier answers that the control thread looks at per wake-up. Each takes some
/// system calls.
const LOOKUPS_PER_WAKE_UP: usize = 16;

/// The next hop on the route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextHop {
    /// Its link address is known.
    Known(IpAddr, [u8; 6]),
    /// The kernel does not know its link address.
    Unknown(IpAddr),
    /// No route over the interface leads to the destination.
    None,
}

impl Host {
    /// Returns the descriptor that is readable when the host changes.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Returns the time until the control thread must call [`Control::look_up_neighbours`].
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        match self.neighbours.has_work() {
            true => Some(Duration::ZERO),
            false => self.neighbours.next_deadline(Instant::now()),
        }
    }

    /// Asks the kernel for the next hop to a destination. The source of the packets decides, too:
    /// rules may name it.
    fn next_hop(&mut self, target: IpAddr, lease: &Lease) -> NextHop {
        let source = match target {
            IpAddr::V4(_) => lease.ipv4.map(|(ip, _)| ip.into()),
            IpAddr::V6(_) => lease.ipv6.map(|(ip, _)| ip.into()),
        };
        if source == Some(target) && self.reaches_itself {
            return NextHop::Known(target, self.mac);
        }
        if source.is_none() || self.interface_addresses.contains(&target) {
            return NextHop::None;
        }
        let route = match self.netlink.route_to(target, source) {
            Ok(Some(route)) if route.link == self.index => route,
            Ok(_) => return NextHop::None,
            Err(error) => {
                self.warn(format_args!("the route to {target}: {error}"));
                return NextHop::None;
            }
        };
        let next_hop = route.gateway.unwrap_or(target);
        let entry = self.netlink.neighbour(self.index, next_hop).unwrap_or_default();
        match entry.map(|entry| entry.reachability) {
            Some(Reachability::Confirmed(mac)) => NextHop::Known(next_hop, mac),
            Some(Reachability::Stale(mac)) => {
                // The session may use it while the kernel confirms it.
                self.probe(next_hop);
                NextHop::Known(next_hop, mac)
            }
            Some(Reachability::Unknown | Reachability::Failed) | None => NextHop::Unknown(next_hop),
        }
    }

    /// Forgets an endpoint that asked for link addresses.
    pub(crate) fn forget_endpoint(&mut self, asker: Asker) {
        self.neighbours.forget_endpoint(asker);
    }

    fn probe(&mut self, next_hop: IpAddr) {
        if let Err(errno) = self.keeper.probe(next_hop) {
            self.warn(format_args!("asking for the link address of {next_hop}: {errno}"));
        }
    }

    /// Logs a warning, within the limit of lines that applications can cause.
    fn warn(&mut self, text: std::fmt::Arguments<'_>) {
        if self.log.allows(Party::Administrator(0)) {
            warn!("{text}");
        }
    }
}

impl Control {
    /// Takes a request for a link address.
    pub(crate) fn queue_neighbour_request(&mut self, request: NeighbourRequest) {
        let Some((account, _)) = self.asker_of(request) else { return };
        if let Some(host) = self.addresses.host_mut() {
            host.neighbours.queue(account, request);
        }
    }

    /// Returns the account and the addresses of the session that made a request, if its endpoint is
    /// still open.
    fn asker_of(&self, request: NeighbourRequest) -> Option<(Account, Lease)> {
        let connection = self.connections.of_session(request.session)?;
        let session = connection.live()?;
        let is_open = session.endpoints.get(request.endpoint)?.is_for_neighbours;
        is_open.then_some((connection.application.account, session.lease))
    }

    /// Looks a destination up for a session. Returns the answer, if the session must get one now. `answers`: 1
    /// if the session made the request, 0 if the server checks an earlier answer.
    fn look_up(&mut self, request: NeighbourRequest, answers: u32) -> Option<Delivery> {
        let (account, lease) = self.asker_of(request)?;
        let host = self.addresses.host_mut()?;
        let deliver = |mac| Delivery { to: request, mac, answered: answers };
        match host.next_hop(request.target, &lease) {
            NextHop::Known(next_hop, mac) => {
                let is_news = host.neighbours.learn(request, next_hop, mac);
                (is_news || answers > 0).then_some(deliver(Some(mac)))
            }
            NextHop::Unknown(next_hop) => {
                if !host.neighbours.waits_for(next_hop) {
                    if !host.neighbours.may_wait(account) {
                        return (answers > 0).then_some(deliver(None));
                    }
                    host.probe(next_hop);
                }
                host.neighbours.wait(account, request, next_hop, answers, Instant::now());
                None
            }
            NextHop::None => {
                let was_known = host.neighbours.forget(request);
                (was_known || answers > 0).then_some(deliver(None))
            }
        }
    }

    /// Sends answers to the sessions' endpoints.
    fn deliver_neighbours(&mut self, deliveries: impl IntoIterator<Item = Delivery>) {
        for Delivery { to, mac, answered } in deliveries {
            let NeighbourRequest { session, endpoint, target } = to;
            let asker = self.connections.of_session(session).and_then(Connection::session);
            let Some(lease) = asker.map(|one| &one.lease) else { continue };
            let packet = answer(target, mac.unwrap_or_default(), lease).map(Vec::into_boxed_slice);
            let command = Command::AnswerNeighbour { session, endpoint, packet, answered };
            // Applications ask on the first lane.
            self.engines.command_each(vec![command], Reply::Nothing);
        }
    }

    /// Reads the changes of the host.
    pub(crate) fn host_events(&mut self) {
        let Some(host) = self.addresses.host_mut() else { return };
        let mut events = Vec::new();
        host.watch.events(&mut events);
        let mut addresses_changed = false;
        let mut deliveries = Vec::new();
        for event in events {
            match event {
                HostEvent::Neighbour(one) if one.index != host.index => {}
                HostEvent::Neighbour(one) => match one.reachability {
                    Reachability::Confirmed(mac) | Reachability::Stale(mac) => {
                        deliveries.extend(host.neighbours.found(one.address, mac));
                    }
                    Reachability::Failed => deliveries.extend(host.neighbours.failed(one.address)),
                    Reachability::Unknown => {}
                },
                HostEvent::Routes => host.neighbours.check_all(),
                HostEvent::Addresses | HostEvent::Lost => {
                    addresses_changed = true;
                    host.neighbours.check_all();
                }
            }
        }
        self.deliver_neighbours(deliveries);
        if addresses_changed {
            self.close_sessions_without_address();
        }
    }

    /// Looks at requests, and at earlier answers after a change of the host, a few at a time. Gives
    /// up requests that have waited for too long.
    pub(crate) fn look_up_neighbours(&mut self) {
        for lookup in 0..LOOKUPS_PER_WAKE_UP {
            let Some(host) = self.addresses.host_mut() else { return };
            // In turn, so that requests that never end hold up no check.
            let next = host.neighbours.next_lookup(lookup % 2 == 0);
            let Some((request, answers)) = next else { break };
            let delivery = self.look_up(request, answers);
            self.deliver_neighbours(delivery);
        }
        let Some(host) = self.addresses.host_mut() else { return };
        let late = host.neighbours.expire(Instant::now());
        self.deliver_neighbours(late);
    }

    /// Ends the sessions whose addresses the host does not have any more.
    fn close_sessions_without_address(&mut self) {
        let Some(host) = self.addresses.host_mut() else { return };
        if let Err(error) = host.read_addresses() {
            warn!("{error}");
            return;
        }
        for token in self.connections.of_all() {
            let lease = self.connections.session(token).map(|one| one.lease);
            let Some(host) = self.addresses.host() else { return };
            let shared = lease.filter(|lease| lease.shared);
            if let Some(lost) = shared.and_then(|lease| host.lost_addresses_of(&lease)) {
                let why = format!("the host lost its address {lost}");
                self.close_session(token, CLOSED_ADDRESS_GONE, &why);
            }
        }
    }
}

/// Makes the answer to a session's request: the destination announces the link address of the next
/// hop, or zero if there is none. `None` if the session has no address of the destination's family.
fn answer(target: IpAddr, mac: [u8; 6], lease: &Lease) -> Option<Vec<u8>> {
    let own = match target {
        IpAddr::V4(_) => lease.ipv4.map(|(ip, _)| IpAddr::from(ip)),
        IpAddr::V6(_) => lease.ipv6.map(|(ip, _)| IpAddr::from(ip)),
    }?;
    Some(Flow::v4().macs(mac, lease.mac).addresses(target, own).i_have())
}
