//! UDP sockets.

use std::net::{IpAddr, SocketAddr};

use crate::stack::Stack;
use crate::udp::{Outgoing, Received, UdpOptions};
use crate::{BindMode, Instant, Readiness, SocketError, UdpId};

/// UDP.
///
/// Every operation fails with [`SocketError::NoSocket`] if the id is no longer valid.
impl Stack {
    /// Binds a UDP socket to an address of this host, or to that of a multicast group. An unspecified address stands for every address of its family, port 0
    /// for any free port. A socket at `[::]` does not receive IPv4: see [`Stack::udp_bind_with`].
    ///
    /// # Errors
    /// If the address is neither ours nor a group's, or in use, or there are too many sockets.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, SocketError> {
        self.udp_bind_with(local, BindMode::default())
    }

    /// Binds a socket as [`Stack::udp_bind`] does, in a mode. Of several sockets that reuse a port, the one that is connected
    /// to the sender receives a datagram; or else each sender's address and port choose one of those without a peer. Each
    /// of them receives the datagrams to broadcast addresses and to its groups.
    ///
    /// # Errors
    /// As [`Stack::udp_bind`].
    pub fn udp_bind_with(
        &mut self,
        local: SocketAddr,
        mode: BindMode,
    ) -> Result<UdpId, SocketError> {
        self.udp.bind(&mut self.host, local, mode)
    }

    /// Closes a socket and drops its received datagrams.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_close(&mut self, id: UdpId) -> Result<(), SocketError> {
        self.udp.close(&self.host, &mut self.memberships, id)
    }

    /// Sets the peer to which the socket sends by default, and from which alone it receives; `None`
    /// removes the peer.
    ///
    /// # Errors
    /// If the peer's address is of the other family, its port is 0, or there is no route.
    pub fn udp_connect(&mut self, id: UdpId, peer: Option<SocketAddr>) -> Result<(), SocketError> {
        self.udp.connect(&self.host, id, peer)
    }

    /// Sends a datagram, to the connected peer unless `to` names another destination. It may be up
    /// to 65 507 bytes long over IPv4, 65 527 over IPv6; the stack fragments a datagram that
    /// exceeds the path's MTU.
    ///
    /// # Errors
    /// If there is no room now, no route or no destination, if the datagram is too long, or if an
    /// ICMP error about an earlier datagram arrived.
    pub fn udp_send(
        &mut self,
        now: Instant,
        id: UdpId,
        data: &[u8],
        to: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        self.udp_send_with(now, id, &Outgoing::new(data, to))
    }

    /// Sends a datagram with its own header fields; with [`Outgoing::segment_bytes`], several datagrams. There is room for all
    /// of these or for none.
    ///
    /// # Errors
    /// As [`Stack::udp_send`], and if the source is not an address of this host. With `segment_bytes`: if there would be more
    /// than [`MOST_SEGMENTS`](crate::MOST_SEGMENTS) datagrams, a datagram would exceed the path's MTU, or the data exceeds
    /// the longest datagram.
    pub fn udp_send_with(
        &mut self,
        now: Instant,
        id: UdpId,
        outgoing: &Outgoing<'_>,
    ) -> Result<(), SocketError> {
        self.udp.send(now, &mut self.host, &self.memberships, id, outgoing)
    }

    /// Takes the oldest datagram, or with `peek` copies and keeps it.
    ///
    /// # Errors
    /// If there is no datagram, or an ICMP error arrived.
    pub fn udp_recv(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
        peek: bool,
    ) -> Result<Received, SocketError> {
        self.udp.recv(id, buffer, peek)
    }

    /// Takes the oldest datagram, and those behind it that are of the same sender, destination, traffic class, hop limit and
    /// length, while `buffer` has room, at most [`MOST_SEGMENTS`](crate::MOST_SEGMENTS) in all. A shorter one is the last.
    /// An empty datagram comes alone.
    ///
    /// # Errors
    /// As [`Stack::udp_recv`].
    pub fn udp_recv_merged(
        &mut self,
        id: UdpId,
        buffer: &mut [u8],
    ) -> Result<Received, SocketError> {
        self.udp.recv_merged(id, buffer)
    }

    /// Returns `true` if a datagram waits.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_has_datagram(&mut self, id: UdpId) -> Result<bool, SocketError> {
        self.udp.has_datagram(id)
    }

    /// Returns the operations that are possible without waiting.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_readiness(&mut self, id: UdpId) -> Result<Readiness, SocketError> {
        self.udp.readiness(&self.host, id)
    }

    /// Returns the socket's address and port. Of a socket that is connected and bound to an unspecified address, the address
    /// is the source of its datagrams.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_local(&mut self, id: UdpId) -> Result<SocketAddr, SocketError> {
        self.udp.local(&self.host, id)
    }

    /// Returns the address and port to which the socket is bound.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_bound(&mut self, id: UdpId) -> Result<SocketAddr, SocketError> {
        self.udp.bound(id)
    }

    /// Returns the peer to which the socket is connected.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_peer(&mut self, id: UdpId) -> Result<Option<SocketAddr>, SocketError> {
        self.udp.peer(id)
    }

    /// Returns the socket's options, to read and to change.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_options(&mut self, id: UdpId) -> Result<&mut UdpOptions, SocketError> {
        self.udp.options(id)
    }

    /// Joins a multicast group: the socket receives the datagrams to it. Routers and switches learn of the group by IGMP
    /// or MLD at the next poll.
    ///
    /// # Errors
    /// If there is no such socket, or its port has been revoked; if the address is no group's, or of a family that the socket
    /// does not take; if this host has no address of the family, or shares its addresses; if the socket has joined the group
    /// already, or all sockets are in too many groups ([`Limits::memberships`](crate::Limits::memberships)).
    pub fn udp_join(&mut self, id: UdpId, group: IpAddr) -> Result<(), SocketError> {
        self.udp_may_join(id, group)?;
        let (groups, _) = self.udp.groups(id)?;
        groups.join(&self.host, &mut self.memberships, group);
        Ok(())
    }

    /// Checks whether [`Stack::udp_join`] would succeed now.
    ///
    /// # Errors
    /// As [`Stack::udp_join`].
    pub fn udp_may_join(&mut self, id: UdpId, group: IpAddr) -> Result<(), SocketError> {
        let (groups, bound) = self.udp.groups(id)?;
        groups.may_join(&self.host, &self.memberships, &bound, group)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// If there is no such socket, the address is no group's, or the socket has not joined the group.
    pub fn udp_leave(&mut self, id: UdpId, group: IpAddr) -> Result<(), SocketError> {
        let (groups, _) = self.udp.groups(id)?;
        groups.leave(&self.host, &mut self.memberships, group)
    }

    /// Returns the number of datagrams dropped because the receive queue was full.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_dropped(&mut self, id: UdpId) -> Result<u64, SocketError> {
        self.udp.dropped(id)
    }

    /// Takes the pending error, if any.
    ///
    /// # Errors
    /// If there is no such socket.
    pub fn udp_take_error(&mut self, id: UdpId) -> Result<Option<SocketError>, SocketError> {
        self.udp.take_error(id)
    }
}
