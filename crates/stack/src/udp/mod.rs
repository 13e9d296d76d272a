//! UDP sockets (RFC 768).

mod datagram;
mod options;
mod queue;
mod receiving;
mod recent;
mod segments;
mod socket;

use std::net::SocketAddr;

use crate::bindings::{BindMode, Bindings, Bound};
use crate::checksum::Sum;
use crate::host::Host;
use crate::icmp::{Problem, Quoted};
use crate::ip::{self, Header, Packet};
use crate::memberships::{JoinedGroups, Memberships};
use crate::outbox::NextHop;
use crate::random::Random;
use crate::{Flow, Instant, Readiness, SocketError, SocketId, SocketInfo, UdpId, path};
pub use datagram::{Outgoing, Received};
pub use options::UdpOptions;
use queue::Queue;
use recent::Recent;
pub use segments::MOST_SEGMENTS;
use segments::Pieces;
use socket::{Datagram, HEADER_BYTES, Socket};

/// All UDP sockets.
pub(crate) struct Udp {
    sockets: Vec<Option<Socket>>,
    free: Vec<u32>,
    generation: u32,
    bindings: Bindings<u32>,
    /// Sockets that found no room to send, each at most once.
    waiting: Vec<UdpId>,
    recent: Recent,
    /// `true` if another host has taken over the addresses.
    handed_over: bool,
}

impl Udp {
    pub(crate) fn new() -> Self {
        Udp {
            sockets: Vec::new(),
            free: Vec::new(),
            generation: 0,
            bindings: Bindings::new(),
            waiting: Vec::new(),
            recent: Recent::new(),
            handed_over: false,
        }
    }

    fn get(&mut self, id: UdpId) -> Result<&mut Socket, SocketError> {
        self.sockets
            .get_mut(id.index as usize)
            .and_then(Option::as_mut)
            .filter(|socket| socket.generation == id.generation)
            .ok_or(SocketError::NoSocket)
    }

    pub(crate) fn bind(
        &mut self,
        host: &mut Host,
        local: SocketAddr,
        mode: BindMode,
    ) -> Result<UdpId, SocketError> {
        let ip = local.ip();
        if !(ip.is_unspecified() || ip.is_multicast() || host.is_ours(ip)) {
            return Err(SocketError::AddressNotAvailable);
        }
        if self.bindings.len() >= host.config.limits.sockets {
            return Err(SocketError::LimitReached);
        }
        let index = self.free.last().copied().unwrap_or(self.sockets.len() as u32);
        let bound = self.bindings.bind(Bound::new(local, mode), index, &mut host.random)?;
        self.generation += 1;
        let generation = self.generation;
        let socket = Socket {
            generation,
            bound,
            peer: None,
            queue: Queue::new(host.config.limits.udp_receive_bytes, local.is_ipv4()),
            dropped: 0,
            error: None,
            revoked: false,
            handed_over: self.handed_over,
            told: false,
            waits: false,
            options: UdpOptions::default(),
            groups: JoinedGroups::default(),
        };
        if self.free.pop().is_some() {
            self.sockets[index as usize] = Some(socket);
        } else {
            self.sockets.push(Some(socket));
        }
        Ok(UdpId { index, generation })
    }

    pub(crate) fn close(
        &mut self,
        host: &Host,
        memberships: &mut Memberships,
        id: UdpId,
    ) -> Result<(), SocketError> {
        let socket = self.get(id)?;
        let bound = socket.bound;
        socket.groups.leave_all(host, memberships);
        self.sockets[id.index as usize] = None;
        self.free.push(id.index);
        self.bindings.unbind(bound, id.index);
        Ok(())
    }

    pub(crate) fn connect(
        &mut self,
        host: &Host,
        id: UdpId,
        peer: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        let socket = self.get(id)?;
        let peer = peer.map(|peer| socket.bound.meant(peer));
        if let Some(peer) = peer {
            if peer.port() == 0 || !socket.bound.takes(peer.is_ipv4()) {
                return Err(SocketError::InvalidAddress);
            }
            host.route(peer.ip()).ok_or(SocketError::Unreachable)?;
        }
        socket.peer = peer;
        Ok(())
    }

    pub(crate) fn send(
        &mut self,
        now: Instant,
        host: &mut Host,
        memberships: &Memberships,
        id: UdpId,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), SocketError> {
        let Outgoing { data, to, from, traffic_class, hop_limit, segment_bytes } = *outgoing;
        let socket = self.get(id)?;
        let to = to.map(|to| socket.bound.meant(to));
        let to = to.or(socket.peer).ok_or(SocketError::NotConnected)?;
        if to.port() == 0 || !socket.bound.takes(to.is_ipv4()) {
            return Err(SocketError::InvalidAddress);
        }
        let route = host.route(to.ip()).ok_or(SocketError::Unreachable)?;
        let options = socket.options;
        if !options.broadcast && host.is_broadcast(to.ip()) {
            return Err(SocketError::BroadcastNotEnabled);
        }
        let src = datagram::source(host, &socket.bound, &route, from)?;
        let pieces = Pieces::new(data, segment_bytes);
        let len = pieces.longest();
        let header = Header {
            src,
            dst: to.ip(),
            protocol: ip::UDP,
            hop_limit: hop_limit.unwrap_or(options.hop_limit_to(to.ip())).max(1),
            traffic_class: traffic_class.unwrap_or(options.traffic_class),
            payload_bytes: len,
            fragment: None,
        };
        let mtu = host.paths.mtu(now, to.ip());
        let fragments = options.fragments && !host.config.shares_addresses;
        let cost = pieces.cost(&header, mtu, fragments)?;
        // A call that could not send anyway leaves the error to the next one.
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        let ports = (socket.bound.local.port(), to.port());
        if !host.outbox.has_room_for(cost) {
            if !std::mem::replace(&mut socket.waits, true) {
                self.waiting.push(id);
            }
            return Err(SocketError::WouldBlock);
        }
        // Every allowed path MTU has room for a shorter datagram.
        if socket.peer != Some(to) && header.len() + len > path::least(to.ip()) {
            self.recent.note(now, &host.random, id, SocketAddr::new(to.ip(), to.port()));
        }
        host.counters.udp_sent += pieces.count() as u64;
        let is_multicast = to.ip().is_multicast();
        if route.to == NextHop::Own && is_multicast && !options.multicast_loop {
            return Ok(());
        }
        let is_looped = is_multicast && options.multicast_loop && memberships.loops(to.ip());
        let is_looped = is_looped && route.to != NextHop::Own && !host.config.shares_addresses;
        let mut send_to = |hop| {
            pieces.iter().all(|piece| {
                let mut head = datagram::header(ports, HEADER_BYTES + piece.len());
                host.send(now, header, hop, &mut head, piece, 6)
            })
        };
        let is_sent = send_to(route.to);
        if is_sent && is_looped {
            send_to(NextHop::Own);
        }
        if is_sent { Ok(()) } else { Err(SocketError::WouldBlock) }
    }

    /// Reports the sockets that wait for room in the outbox, once half of it is free: enough to
    /// justify a wake-up.
    pub(crate) fn room(&mut self, host: &mut Host) {
        if self.waiting.is_empty() || !host.outbox.half_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        for id in waiting.drain(..) {
            if let Ok(socket) = self.get(id) {
                socket.waits = false;
                host.news.push_back(SocketId::Udp(id));
            }
        }
        self.waiting = waiting;
    }

    pub(crate) fn readiness(&mut self, host: &Host, id: UdpId) -> Result<Readiness, SocketError> {
        let socket = self.get(id)?;
        socket.told = false;
        let error = socket.error.is_some() || socket.revoked;
        let readable = !socket.queue.is_empty() || error || socket.is_handed_over();
        // A socket that found no room for a longer datagram waits for more.
        let writable = error || !socket.waits && host.outbox.has_room(2048);
        if !writable && !std::mem::replace(&mut socket.waits, true) {
            self.waiting.push(id);
        }
        Ok(Readiness { readable, writable, error, ..Readiness::default() })
    }

    /// Returns all sockets.
    pub(crate) fn list(&self) -> impl Iterator<Item = SocketInfo> + '_ {
        self.sockets.iter().zip(0..).filter_map(|(socket, index)| {
            let Socket { generation, bound, peer, queue, .. } = socket.as_ref()?;
            let id = SocketId::Udp(UdpId { index, generation: *generation });
            let received = queue.used();
            let local = bound.local;
            Some(SocketInfo { id, local, peer: *peer, state: None, received, unsent: 0 })
        })
    }

    /// Returns the addresses of the sockets that have a peer.
    pub(crate) fn flows<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = Flow> + 'a {
        let connected =
            self.sockets.iter().flatten().filter_map(|one| Some((one.bound, one.peer?)));
        connected.filter_map(|(bound, remote)| {
            let own = Some(bound.local.ip()).filter(|ip| !ip.is_unspecified());
            let source = own.or_else(|| Some(host.route(remote.ip())?.src))?;
            let local = SocketAddr::new(source, bound.local.port());
            Some(Flow { protocol: ip::UDP, local, remote })
        })
    }

    /// Fails receiving by the sockets that have no peer, once they have no datagram left.
    pub(crate) fn hand_over(&mut self, host: &mut Host) {
        self.handed_over = true;
        for (socket, index) in self.sockets.iter_mut().zip(0..) {
            let Some(socket) = socket else { continue };
            socket.handed_over = true;
            let id = UdpId { index, generation: socket.generation };
            host.news.push_back(SocketId::Udp(id));
        }
    }

    pub(crate) fn bound(&mut self, id: UdpId) -> Result<SocketAddr, SocketError> {
        Ok(self.get(id)?.bound.local)
    }

    pub(crate) fn local(&mut self, host: &Host, id: UdpId) -> Result<SocketAddr, SocketError> {
        let Socket { bound, peer, .. } = self.get(id)?;
        let peer = peer.filter(|_| bound.local.ip().is_unspecified());
        let route = peer.and_then(|peer| host.route(peer.ip()));
        let source =
            route.map(|route| SocketAddr::new(bound.shown_ip(route.src), bound.local.port()));
        Ok(source.unwrap_or(bound.local))
    }

    pub(crate) fn peer(&mut self, id: UdpId) -> Result<Option<SocketAddr>, SocketError> {
        let socket = self.get(id)?;
        Ok(socket.peer.map(|peer| socket.bound.shown(peer)))
    }

    pub(crate) fn dropped(&mut self, id: UdpId) -> Result<u64, SocketError> {
        Ok(self.get(id)?.dropped)
    }

    /// Returns a socket's groups and its address.
    pub(crate) fn groups(&mut self, id: UdpId) -> Result<(&mut JoinedGroups, Bound), SocketError> {
        let socket = self.get(id)?;
        if socket.revoked {
            Err(SocketError::Revoked)
        } else {
            Ok((&mut socket.groups, socket.bound))
        }
    }

    pub(crate) fn options(&mut self, id: UdpId) -> Result<&mut UdpOptions, SocketError> {
        Ok(&mut self.get(id)?.options)
    }

    pub(crate) fn take_error(&mut self, id: UdpId) -> Result<Option<SocketError>, SocketError> {
        Ok(self.get(id)?.take_error())
    }

    /// Fails all operations of the sockets of a port, apart from receiving what they have.
    pub(crate) fn revoke(
        &mut self,
        host: &mut Host,
        memberships: &mut Memberships,
        is_ipv4: bool,
        port: u16,
    ) {
        for (socket, index) in self.sockets.iter_mut().zip(0..) {
            let Some(socket) = socket else { continue };
            if socket.bound.takes(is_ipv4) && socket.bound.local.port() == port {
                socket.revoked = true;
                socket.groups.leave_all(host, memberships);
                let id = UdpId { index, generation: socket.generation };
                host.news.push_back(SocketId::Udp(id));
            }
        }
    }

    /// Handles a received datagram. Returns `false` if no socket receives it.
    pub(crate) fn dispatch(&mut self, host: &mut Host, packet: &Packet<'_>, verify: bool) -> bool {
        let payload = packet.payload;
        if payload.len() < HEADER_BYTES {
            host.counters.rx_malformed += 1;
            return true;
        }
        let be16 = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
        let (src_port, dst_port, len, sum) = (be16(0), be16(2), usize::from(be16(4)), be16(6));
        if len < HEADER_BYTES || len > payload.len() {
            host.counters.rx_malformed += 1;
            return true;
        }
        let payload = &payload[..len];
        // Over IPv4 a sender may omit the checksum; over IPv6 it must not.
        if verify && (sum != 0 || packet.src.is_ipv6()) {
            let pseudo = Sum::pseudo(packet.src, packet.dst, ip::UDP, len);
            if sum == 0 || pseudo.add(payload).folded() != 0xffff {
                host.counters.rx_checksum += 1;
                return true;
            }
        }
        let datagram = Datagram { packet, from: SocketAddr::new(packet.src, src_port), payload };
        let mut is_received = false;
        if packet.dst.is_multicast() || host.is_broadcast(packet.dst) {
            for &index in self.bindings.all(packet.dst, dst_port) {
                let Some(socket) = self.sockets[index as usize].as_mut() else { continue };
                if socket.accepts(&datagram) {
                    socket.receive(host, index, &datagram);
                    is_received = true;
                }
            }
        } else if let Some(index) = self.receiver(&host.random, &datagram, dst_port)
            && let Some(socket) = self.sockets[index as usize].as_mut()
        {
            socket.receive(host, index, &datagram);
            is_received = true;
        }
        host.counters.udp_no_socket += u64::from(!is_received);
        is_received
    }

    fn receiver(&self, random: &Random, datagram: &Datagram<'_>, port: u16) -> Option<u32> {
        let lists = self.bindings.find(datagram.packet.dst, port);
        let get = |index: u32| self.sockets.get(index as usize)?.as_ref();
        socket::receiver(lists, get, random, datagram)
    }

    /// Handles an ICMP error about a datagram of ours. Returns `true` if a socket sent the
    /// datagram: a socket connected to the destination or, for [`Problem::TooBig`], one that
    /// recently sent a large datagram there.
    pub(crate) fn problem(
        &mut self,
        now: Instant,
        host: &mut Host,
        problem: Problem,
        quoted: &Quoted,
    ) -> bool {
        let to = SocketAddr::new(quoted.dst, quoted.dst_port);
        let error = match problem {
            Problem::Refused => SocketError::Refused,
            Problem::Unreachable => SocketError::Unreachable,
            Problem::TooBig(_) => {
                let mut ids = self.senders(quoted);
                return ids.any(|(id, connected)| {
                    connected || self.recent.contains(now, &host.random, id, to)
                });
            }
        };
        // Only a connected socket can know which of its datagrams the error is about (RFC 1122,
        // 4.1.3.3).
        let Some((id, _)) = self.senders(quoted).find(|(_, connected)| *connected) else {
            return false;
        };
        if let Ok(socket) = self.get(id) {
            socket.error = Some(error);
            if !std::mem::replace(&mut socket.told, true) {
                host.news.push_back(SocketId::Udp(id));
            }
        }
        true
    }

    /// Returns the sockets that may have sent a packet, each with `true` if it is connected to the packet's destination.
    fn senders(&self, quoted: &Quoted) -> impl Iterator<Item = (UdpId, bool)> {
        let to = (quoted.dst, quoted.dst_port);
        let sockets = self.bindings.all(quoted.src, quoted.src_port);
        sockets.filter_map(move |&index| {
            let socket = self.sockets.get(index as usize)?.as_ref()?;
            let connected = socket.peer.is_some_and(|peer| (peer.ip(), peer.port()) == to);
            Some((UdpId { index, generation: socket.generation }, connected))
        })
    }
}
