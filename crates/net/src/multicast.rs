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
    /// ```no_run
    /// # fn main() -> std::io::Result<()> {
    /// # use std::net::Ipv4Addr;
    /// # use towpath_net::{Network, UdpSocket};
    /// let network = Network::attach("/run/towpath/tap0.sock").map_err(std::io::Error::other)?;
    /// let socket = UdpSocket::bind(&network, "0.0.0.0:5353")?;
    /// socket.join_multicast_v4(&Ipv4Addr::new(224, 0, 0, 251), &Ipv4Addr::UNSPECIFIED)?;
    /// socket.set_multicast_ttl_v4(255)?;
    /// let mut buffer = [0; 9000];
    /// let received = socket.recv_datagram(&mut buffer)?;
    /// println!("{} bytes from {} to {}", received.len, received.from, received.to);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`io::ErrorKind::InvalidInput`] if `group` is no multicast address, or of a family that the socket does not take;
    /// - [`io::ErrorKind::AddrNotAvailable`] if the network has no IPv4 address, or another one than `interface`;
    /// - [`io::ErrorKind::AddrInUse`] if the socket has already joined the group;
    /// - [`io::ErrorKind::QuotaExceeded`] if there are too many memberships
    ///   ([`Limits::memberships`](crate::Limits::memberships)), or too many endpoints where a grant limits the ports;
    /// - [`io::ErrorKind::PermissionDenied`] if the server does not allow the endpoint for IGMP that such a grant demands, or
    ///   has revoked the socket's port;
    /// - [`io::ErrorKind::Unsupported`] if the network shares the host's addresses.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.check_interface(*interface)?;
        self.join((*group).into())
    }

    /// Joins a multicast group of IPv6 as [`UdpSocket::join_multicast_v4`] does. `interface` is 0: a network has one
    /// interface, which has no index. Routers and switches learn of the group by MLD.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// use std::net::Ipv6Addr;
    ///
    /// let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3);
    /// let member = UdpSocket::bind(&peer, "[::]:5000")?;
    /// member.join_multicast_v6(&group, 0)?;
    /// UdpSocket::bind(&host, "[::]:0")?.send_to(b"to all", (group, 5000))?;
    /// assert_eq!(member.recv(&mut [0; 8])?, 6);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`]; [`io::ErrorKind::AddrNotAvailable`] if the network has no IPv6 address, or
    /// `interface` is not 0.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        check_index(interface)?;
        self.join((*group).into())
    }

    /// Leaves a group that [`UdpSocket::join_multicast_v4`] joined.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// use std::net::Ipv4Addr;
    ///
    /// let group = Ipv4Addr::new(239, 1, 2, 3);
    /// socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
    /// socket.leave_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
    /// // The socket is not a member any more.
    /// assert!(socket.leave_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED).is_err());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if `group` is no multicast address; [`io::ErrorKind::AddrNotAvailable`] if the socket
    /// has not joined the group, or the network has another address than `interface`.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.check_interface(*interface)?;
        self.leave((*group).into())
    }

    /// Leaves a group that [`UdpSocket::join_multicast_v6`] joined.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use std::net::Ipv6Addr;
    ///
    /// let socket = UdpSocket::bind(&host, "[::]:0")?;
    /// let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3);
    /// socket.join_multicast_v6(&group, 0)?;
    /// socket.leave_multicast_v6(&group, 0)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::leave_multicast_v4`].
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        check_index(interface)?;
        self.leave((*group).into())
    }

    /// Sets whether the sockets of this network receive the datagrams that this socket sends to their groups, of IPv4 and
    /// IPv6. Default `true`. Other applications of the server receive the datagrams in both cases, and so do the kernel's
    /// sockets on this host, but only over a TAP. Linux's option is about all sockets of the host.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use std::net::Ipv4Addr;
    ///
    /// let group = Ipv4Addr::new(239, 1, 2, 3);
    /// let member = UdpSocket::bind(&host, "0.0.0.0:5000")?;
    /// member.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.set_multicast_loop_v4(false)?;
    /// socket.send_to(b"not to this host", (group, 5000))?;
    /// member.set_nonblocking(true)?;
    /// assert!(member.recv(&mut [0; 16]).is_err());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.option(|options| options.multicast_loop = on)
    }

    /// Returns the value set by [`UdpSocket::set_multicast_loop_v4`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert!(socket.multicast_loop_v4()?);
    /// socket.set_multicast_loop_v4(false)?;
    /// assert!(!socket.multicast_loop_v4()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.option(|options| options.multicast_loop)
    }

    /// The same as [`UdpSocket::set_multicast_loop_v4`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let socket = UdpSocket::bind(&host, "[::]:0")?;
    /// // Other sockets of this network do not receive what this one sends to its groups.
    /// socket.set_multicast_loop_v6(false)?;
    /// assert!(!socket.multicast_loop_v6()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.set_multicast_loop_v4(on)
    }

    /// The same as [`UdpSocket::multicast_loop_v4`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let socket = UdpSocket::bind(&host, "[::]:0")?;
    /// assert!(socket.multicast_loop_v6()?);
    /// // There is one option for both families.
    /// socket.set_multicast_loop_v4(false)?;
    /// assert!(!socket.multicast_loop_v6()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.multicast_loop_v4()
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        let (shared, id) = self.shared()?;
        self.stack(|stack, id| stack.udp_may_join(id, group))?;
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
