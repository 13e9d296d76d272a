//! The multicast options of UDP sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_stack::Stack;

use crate::{UdpSocket, error};

impl UdpSocket {
    /// Joins a multicast group of IPv4: the socket receives the datagrams to it. `interface` is `0.0.0.0` or the network's
    /// address. Routers and switches learn of the group by IGMP. The membership ends with the socket.
    ///
    /// Unlike a kernel socket, the socket receives no datagrams to groups that only other sockets have joined.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the address is no group's; [`io::ErrorKind::AddrNotAvailable`] if the network has no
    /// IPv4 address or another one than `interface`; [`io::ErrorKind::AddrInUse`] if the socket has joined the group already;
    /// [`io::ErrorKind::QuotaExceeded`] if there are too many memberships
    /// ([`Limits::memberships`](crate::Limits::memberships)); [`io::ErrorKind::Unsupported`] if the network shares the host's
    /// addresses.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.check_interface(*interface)?;
        self.join((*group).into())
    }

    /// Joins a multicast group of IPv6 as [`UdpSocket::join_multicast_v4`] does. `interface` is 0: a network has one
    /// interface, which has no index. Routers and switches learn of the group by MLD.
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`].
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        check_index(interface)?;
        self.join((*group).into())
    }

    /// Leaves a group that [`UdpSocket::join_multicast_v4`] joined.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the address is no group's; [`io::ErrorKind::AddrNotAvailable`] if the socket has
    /// not joined the group, or the network has another address than `interface`.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.check_interface(*interface)?;
        self.leave((*group).into())
    }

    /// Leaves a group that [`UdpSocket::join_multicast_v6`] joined.
    ///
    /// # Errors
    /// As [`UdpSocket::leave_multicast_v4`].
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        check_index(interface)?;
        self.leave((*group).into())
    }

    /// Sets whether sockets of this network receive what this socket sends to groups that they have joined, for both IPv4
    /// and IPv6. Default `true`. Other applications of the host receive it in any case.
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.option(|options| options.multicast_loop = on)
    }

    /// Returns the value set by [`UdpSocket::set_multicast_loop_v4`].
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.option(|options| options.multicast_loop)
    }

    /// The same as [`UdpSocket::set_multicast_loop_v4`].
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.set_multicast_loop_v4(on)
    }

    /// The same as [`UdpSocket::multicast_loop_v4`].
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.multicast_loop_v4()
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        let (shared, id) = self.shared()?;
        shared.open_groups(group.is_ipv4())?;
        shared.with(|core, _| core.stack.udp_join(id, group)).map_err(error::socket)
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        let (shared, id) = self.shared()?;
        shared.with(|core, _| core.stack.udp_leave(id, group)).map_err(error::socket)
    }

    /// Checks that an address names the network's only interface.
    fn check_interface(&self, interface: Ipv4Addr) -> io::Result<()> {
        let is_own = |stack: &mut Stack, _| {
            Ok(stack.addresses().any(|(address, _)| address == IpAddr::V4(interface)))
        };
        if interface.is_unspecified() || self.stack(is_own)? {
            return Ok(());
        }
        let message =
            "no interface of the network has this address: pass 0.0.0.0, or the network's address";
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message))
    }
}

/// Checks that an index names a network's only interface.
fn check_index(interface: u32) -> io::Result<()> {
    if interface == 0 {
        return Ok(());
    }
    let message = "a network has one interface, which has no index: pass 0";
    Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message))
}
