//! The multicast groups of UDP sockets.

use std::net::IpAddr;

use super::Udp;
use crate::host::Host;
use crate::memberships::Memberships;
use crate::{SocketError, UdpId, ndp};

impl Udp {
    /// Records that a socket has joined a group.
    pub(crate) fn join(
        &mut self,
        host: &Host,
        memberships: &mut Memberships,
        id: UdpId,
        group: IpAddr,
    ) -> Result<(), SocketError> {
        let socket = self.get(id)?;
        if !group.is_multicast() || !socket.bound.takes(group.is_ipv4()) {
            return Err(SocketError::InvalidAddress);
        }
        if host.config.shares_addresses {
            return Err(SocketError::NoGroups);
        }
        let has_address =
            if group.is_ipv4() { host.config.ipv4.is_some() } else { !host.ipv6.is_empty() };
        if !has_address {
            return Err(SocketError::AddressNotAvailable);
        }
        if socket.groups.contains(&group) {
            return Err(SocketError::AddressInUse);
        }
        if memberships.len() >= host.config.limits.memberships {
            return Err(SocketError::LimitReached);
        }
        socket.groups.push(group);
        memberships.join(group);
        Ok(())
    }

    /// Records that a socket has left a group.
    pub(crate) fn leave(
        &mut self,
        host: &Host,
        memberships: &mut Memberships,
        id: UdpId,
        group: IpAddr,
    ) -> Result<(), SocketError> {
        let socket = self.get(id)?;
        if !group.is_multicast() {
            return Err(SocketError::InvalidAddress);
        }
        let at = socket.groups.iter().position(|one| *one == group);
        socket.groups.swap_remove(at.ok_or(SocketError::AddressNotAvailable)?);
        memberships.leave(host, group);
        Ok(())
    }
}

/// Returns `true` if a socket with these memberships receives datagrams to an address. Each socket receives those to all
/// nodes.
pub(super) fn receives(groups: &[IpAddr], dst: IpAddr) -> bool {
    !dst.is_multicast() || dst == IpAddr::V6(ndp::ALL_NODES) || groups.contains(&dst)
}
