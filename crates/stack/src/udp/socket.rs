//! One UDP socket, and what it receives.

use std::net::SocketAddr;

use super::options::UdpOptions;
use super::queue::{Arrived, Queue};
use crate::bindings::{self, Bound};
use crate::host::Host;
use crate::ip::Packet;
use crate::memberships::JoinedGroups;
use crate::random::Random;
use crate::{SocketError, SocketId, UdpId};

/// The header's length, in bytes.
pub(super) const HEADER_BYTES: usize = 8;

/// A datagram that arrived, with its checksum checked.
#[derive(Clone, Copy)]
pub(super) struct Datagram<'a> {
    pub(super) packet: &'a Packet<'a>,
    pub(super) from: SocketAddr,
    /// The UDP header and the data.
    pub(super) payload: &'a [u8],
}

/// A UDP socket.
pub(super) struct Socket {
    pub(super) generation: u32,
    pub(super) bound: Bound,
    /// The peer, by an IPv4 address if it is an IPv4 host.
    pub(super) peer: Option<SocketAddr>,
    pub(super) queue: Queue,
    pub(super) dropped: u64,
    pub(super) error: Option<SocketError>,
    /// `true` if the port belongs to this host no more.
    pub(super) revoked: bool,
    /// `true` if another host has taken over the addresses, and datagrams arrive only from the peer.
    pub(super) handed_over: bool,
    pub(super) told: bool,
    /// `true` if the socket is in the list of sockets that found no room to send.
    pub(super) waits: bool,
    pub(super) options: UdpOptions,
    pub(super) groups: JoinedGroups,
}

impl Socket {
    /// Takes the pending error. That of a revoked port stays.
    pub(super) fn take_error(&mut self) -> Option<SocketError> {
        self.error.take().or(self.revoked.then_some(SocketError::Revoked))
    }

    /// Returns `true` if no further datagram can arrive, because another host has taken over the addresses.
    pub(super) fn is_handed_over(&self) -> bool {
        self.handed_over && self.peer.is_none()
    }

    /// Returns `true` if the socket receives a datagram: it has no other peer, and has joined the group, if it is for one.
    pub(super) fn accepts(&self, datagram: &Datagram<'_>) -> bool {
        let from = (datagram.from.ip(), datagram.from.port());
        self.peer.is_none_or(|peer| (peer.ip(), peer.port()) == from)
            && self.groups.receives(datagram.packet.dst)
    }

    /// Queues a datagram, and reports the socket. `index`: that of the socket's id.
    pub(super) fn receive(&mut self, host: &mut Host, index: u32, datagram: &Datagram<'_>) {
        let Datagram { packet, from, payload } = *datagram;
        let (from, to) = (self.bound.shown(from), self.bound.shown_ip(packet.dst));
        let Packet { traffic_class, hop_limit, .. } = *packet;
        let arrived = Arrived { from, to, traffic_class, hop_limit };
        if !self.queue.push(&arrived, &payload[HEADER_BYTES..]) {
            self.dropped += 1;
            host.counters.udp_queue_full += 1;
            return;
        }
        host.counters.udp_received += 1;
        if !std::mem::replace(&mut self.told, true) {
            host.news.push_back(SocketId::Udp(UdpId { index, generation: self.generation }));
        }
    }
}

/// Returns the socket for a datagram to one host: the one that is connected to the sender, or else one without a peer, at
/// the host's address before the unspecified one. `lists`: the indices of the sockets at these two addresses.
pub(super) fn receiver<'a>(
    lists: [&[u32]; 2],
    get: impl Fn(u32) -> Option<&'a Socket>,
    random: &Random,
    datagram: &Datagram<'_>,
) -> Option<u32> {
    let key = ("UDP", datagram.from, datagram.packet.dst);
    let mut without_peer = None;
    for sockets in lists {
        let accepts = |index: u32| get(index).filter(|socket| socket.accepts(datagram));
        let has_peer = |index: &u32| accepts(*index).is_some_and(|socket| socket.peer.is_some());
        if let Some(connected) = sockets.iter().copied().find(has_peer) {
            return Some(connected);
        }
        let is_open = |index| accepts(index).is_some_and(|one| sockets.len() == 1 || !one.revoked);
        without_peer = without_peer.or_else(|| bindings::choose(sockets, random, &key, is_open));
    }
    without_peer
}
