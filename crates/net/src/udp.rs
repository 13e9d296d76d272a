//! The counterpart of `std::net::UdpSocket`.

mod gro;
mod many;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use towpath_stack::{Received, SocketError, SocketId, Stack, UdpId, UdpOptions};

use crate::driver::{Core, SharedNetwork};
use crate::options::{self, BindOptions, Options, each, no_address, of_ipv4};
use crate::wait::Waiter;
use crate::watch::private::Watchable;
use crate::watch::{SocketRef, Source};
use crate::{Network, PortProtocol, error};

struct Inner {
    network: Network,
    id: UdpId,
    waiter: Arc<Waiter>,
    options: Arc<Options>,
    /// `true` if it takes both families at `[::]`.
    is_dual: bool,
}

/// A UDP socket of a [`Network`], used like `std::net::UdpSocket`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use towpath_net::{Network, UdpSocket};
///
/// let network = Network::attach("/run/towpath/eth0.sock")?;
/// let socket = UdpSocket::bind(&network, "0.0.0.0:7")?;
/// let mut datagram = [0; 2048];
/// loop {
///     let (bytes, from) = socket.recv_from(&mut datagram)?;
///     // The answer may have no way, for instance to port 0.
///     let _ = socket.send_to(&datagram[..bytes], from);
/// }
/// # }
/// ```
pub struct UdpSocket {
    inner: Arc<Closing>,
}

/// Closes the socket with its last handle.
struct Closing(Inner);

impl Drop for Closing {
    fn drop(&mut self) {
        let Some(shared) = self.0.network.unregister(SocketId::Udp(self.0.id)) else { return };
        let local = shared.with(|core, _| {
            let local = core.stack.udp_bound(self.0.id);
            let _ = core.stack.udp_close(self.0.id);
            local
        });
        let Ok(local) = local else { return };
        shared.close_udp_port(local);
        if let Some(of_ipv4) = of_ipv4(local).filter(|_| self.0.is_dual) {
            shared.close_udp_port(of_ipv4);
        }
    }
}

impl UdpSocket {
    /// Binds a socket to an address of the network, or to that of a multicast group, which the socket still has to join. An
    /// unspecified address stands for all addresses
    /// of its family, port 0 for any free port. A socket at `[::]` also exchanges datagrams with IPv4 hosts, whose addresses
    /// then have the prefix `::ffff:0:0/96` ([`BindOptions::only_v6`]).
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:53")?;
    /// assert_eq!(socket.local_addr()?.port(), 53);
    /// // The same port of IPv4 is taken.
    /// let error = UdpSocket::bind(&host, "10.0.0.1:53").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the address is neither the network's nor a group's, in use, or not allowed to this application.
    pub fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::bind_with(network, local, BindOptions::default())
    }

    /// Binds a socket as [`UdpSocket::bind`] does, with options.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::BindOptions;
    ///
    /// let mut options = BindOptions::default();
    /// options.only_v6 = true;
    /// let _ipv6 = UdpSocket::bind_with(&host, "[::]:53", options)?;
    /// // The port is free for IPv4.
    /// let _ipv4 = UdpSocket::bind(&host, "0.0.0.0:53")?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub fn bind_with(
        network: &Network,
        local: impl ToSocketAddrs,
        options: BindOptions,
    ) -> io::Result<UdpSocket> {
        let is_dual = !options.only_v6;
        each(network, local, |local| {
            let bind = |core: &mut Core, _, local| core.stack.udp_bind_with(local, options.mode());
            let id = network.checked()?.with_port(PortProtocol::Udp, local, is_dual, bind)?;
            let waiter = network.register(SocketId::Udp(id));
            let options = Arc::new(Options::default());
            let inner = Inner { network: network.clone(), id, waiter, options, is_dual };
            Ok(UdpSocket { inner: Arc::new(Closing(inner)) })
        })
    }

    fn inner(&self) -> &Inner {
        &self.inner.0
    }

    fn options(&self) -> io::Result<&Options> {
        self.inner().network.checked()?;
        Ok(&self.inner().options)
    }

    pub(crate) fn shared(&self) -> io::Result<(&SharedNetwork, UdpId)> {
        Ok((self.inner().network.checked()?, self.inner().id))
    }

    pub(crate) fn stack<R>(
        &self,
        f: impl FnOnce(&mut Stack, UdpId) -> Result<R, SocketError>,
    ) -> io::Result<R> {
        let (shared, id) = self.shared()?;
        f(&mut shared.core().stack, id).map_err(error::socket)
    }

    pub(crate) fn option<T>(&self, f: impl FnOnce(&mut UdpOptions) -> T) -> io::Result<T> {
        self.stack(|stack, id| stack.udp_options(id).map(f))
    }

    /// Sets the peer of [`UdpSocket::send`]. From now on the socket receives only from that peer.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.connect("10.0.0.2:7")?;
    /// socket.send(b"question")?;
    /// let (_, from) = receiver.recv_from(&mut [0; 8])?;
    /// receiver.send_to(b"answer", from)?;
    /// assert_eq!(socket.recv(&mut [0; 8])?, 6);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If no route leads to the peer.
    pub fn connect(&self, peer: impl ToSocketAddrs) -> io::Result<()> {
        each(&self.inner().network, peer, |peer| {
            self.stack(|stack, id| stack.udp_connect(id, Some(peer)))?;
            self.inner().network.checked().map(SharedNetwork::flows_changed)
        })
    }

    /// Sends a datagram, to the first address if there are several. The stack fragments a datagram
    /// that exceeds the path's MTU.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.send_to(b"question", "10.0.0.2:7")?;
    /// let mut datagram = [0; 2048];
    /// let (len, from) = receiver.recv_from(&mut datagram)?;
    /// assert_eq!((&datagram[..len], from.port()), (&b"question"[..], socket.local_addr()?.port()));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If no route leads to the address, the datagram is too long, or the write timeout passed;
    /// [`io::ErrorKind::PermissionDenied`] if it is a broadcast address
    /// ([`UdpSocket::set_broadcast`]).
    pub fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        self.inner().network.checked()?;
        let first = to.to_socket_addrs()?.next().ok_or_else(no_address)?;
        self.send_one(data, Some(first))
    }

    /// Sends a datagram to the connected peer.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// use std::io::ErrorKind;
    ///
    /// // No socket of the host has this port, so its stack refuses the first datagram.
    /// socket.connect("10.0.0.1:9")?;
    /// socket.send(b"first")?;
    /// assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`], and if the socket is not connected or the peer refused an earlier
    /// datagram.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.send_one(data, None)
    }

    fn send_one(&self, data: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = self.inner();
        network.checked()?.block_on(waiter, options.writing(), true, |stack, now| {
            stack.udp_send(now, *id, data, to)
        })?;
        Ok(data.len())
    }

    fn receive(&self, buffer: &mut [u8], peek: bool) -> io::Result<Received> {
        let Inner { network, id, waiter, options, .. } = self.inner();
        network.checked()?.block_on(waiter, options.reading(), false, |stack, _| {
            stack.udp_recv(*id, buffer, peek)
        })
    }

    /// Receives a datagram; the part beyond the buffer's length is lost.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// UdpSocket::bind(&host, "0.0.0.0:9000")?.send_to(b"longer than the buffer", "10.0.0.2:7")?;
    /// let mut datagram = [0; 6];
    /// let (len, from) = receiver.recv_from(&mut datagram)?;
    /// assert_eq!((&datagram[..len], from), (&b"longer"[..], "10.0.0.1:9000".parse().unwrap()));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the read timeout passed, or the peer refused a sent datagram.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buffer, false).map(|received| (received.len, received.from))
    }

    /// Copies the next datagram without removing it.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// UdpSocket::bind(&host, "0.0.0.0:9000")?.send_to(b"question", "10.0.0.2:7")?;
    /// let mut buffer = [0; 2048];
    /// let (len, from) = receiver.peek_from(&mut buffer)?;
    /// assert_eq!(receiver.recv_from(&mut buffer)?, (len, from));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buffer, true).map(|received| (received.len, received.from))
    }

    /// Copies the next datagram from the connected peer without removing it.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:9000")?;
    /// receiver.connect("10.0.0.1:9000")?;
    /// socket.send_to(b"question", "10.0.0.2:7")?;
    /// let mut first = [0; 1];
    /// receiver.peek(&mut first)?;
    /// assert_eq!((&first, receiver.recv(&mut [0; 2048])?), (b"q", 8));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, true).map(|received| received.len)
    }

    /// Receives a datagram from the connected peer.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:9000")?;
    /// receiver.connect("10.0.0.1:9000")?;
    /// socket.send_to(b"question", "10.0.0.2:7")?;
    /// let mut buffer = [0; 2048];
    /// let len = receiver.recv(&mut buffer)?;
    /// assert_eq!(&buffer[..len], b"question");
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, false).map(|received| received.len)
    }

    /// Returns the socket's address and port. Once it is connected, the source of its datagrams is in place of an unspecified
    /// address.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// let chosen = socket.local_addr()?;
    /// assert!(chosen.ip().is_unspecified() && chosen.port() != 0);
    /// socket.connect("10.0.0.9:7")?;
    /// assert_eq!(socket.local_addr()?.to_string(), format!("10.0.0.1:{}", chosen.port()));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stack(Stack::udp_local)
    }

    /// Returns the peer to which the socket is connected.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert!(socket.peer_addr().is_err());
    /// socket.connect("10.0.0.9:7")?;
    /// assert_eq!(socket.peer_addr()?, "10.0.0.9:7".parse().unwrap());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.stack(Stack::udp_peer)?;
        peer.ok_or_else(|| error::socket(SocketError::NotConnected))
    }

    /// Takes the pending error, if any.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert!(socket.take_error()?.is_none());
    /// socket.connect("10.0.0.1:9")?;
    /// socket.send(b"to a port without a socket")?;
    /// // The answer, an ICMP message, may take a while.
    /// let error = loop {
    ///     if let Some(error) = socket.take_error()? {
    ///         break error;
    ///     }
    /// };
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.stack(Stack::udp_take_error)?.map(error::socket))
    }

    /// Returns the number of datagrams dropped because the receive queue was full. [`Network::lost`] counts frames that
    /// were lost before they reached the stack.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let before = receiver.dropped()?;
    /// // ... the program has no time to receive ...
    /// if receiver.dropped()? > before {
    ///     eprintln!("the queue was full: receive sooner, or more datagrams per call");
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn dropped(&self) -> io::Result<u64> {
        self.stack(Stack::udp_dropped)
    }

    /// Sets non-blocking mode, in which calls that would have to wait fail with
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.set_nonblocking(true)?;
    /// let error = socket.recv(&mut [0; 2048]).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.options()?.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Sets the timeout of receiving.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// use std::io::ErrorKind;
    /// use std::time::Duration;
    ///
    /// socket.set_read_timeout(Some(Duration::from_millis(10)))?;
    /// assert_eq!(socket.recv(&mut [0; 2048]).unwrap_err().kind(), ErrorKind::WouldBlock);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options()?.set_read_timeout(timeout)
    }

    /// Sets the timeout of sending.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// use std::time::Duration;
    ///
    /// socket.set_write_timeout(Some(Duration::from_millis(10)))?;
    /// // Fails with `WouldBlock` if there is no room for 10 ms.
    /// socket.send_to(b"question", "10.0.0.1:7")?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options()?.set_write_timeout(timeout)
    }

    /// Returns the value set by [`UdpSocket::set_read_timeout`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// use std::time::Duration;
    ///
    /// assert_eq!(socket.read_timeout()?, None);
    /// socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    /// assert_eq!(socket.read_timeout()?, Some(Duration::from_secs(5)));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.options()?.read_timeout())
    }

    /// Returns the value set by [`UdpSocket::set_write_timeout`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// use std::time::Duration;
    ///
    /// assert_eq!(socket.write_timeout()?, None);
    /// socket.set_write_timeout(Some(Duration::from_secs(5)))?;
    /// assert_eq!(socket.write_timeout()?, Some(Duration::from_secs(5)));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.options()?.write_timeout())
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6) of datagrams to other addresses than
    /// multicast groups. Default 64.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// // At most two routers forward the datagram.
    /// socket.set_ttl(3)?;
    /// socket.send_to(b"near", "10.0.0.2:7")?;
    /// assert_eq!(receiver.recv_datagram(&mut [0; 8])?.ttl, 3);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If it is outside 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = options::hop_limit(ttl)?;
        self.option(|options| options.hop_limit = ttl)
    }

    /// Returns the value set by [`UdpSocket::set_ttl`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert_eq!(socket.ttl()?, 64);
    /// socket.set_ttl(1)?;
    /// assert_eq!(socket.ttl()?, 1);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn ttl(&self) -> io::Result<u32> {
        self.option(|options| options.hop_limit).map(u32::from)
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of sent packets, congestion notification included. Default 0.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// // Expedited forwarding (RFC 3246): code point 46, above the two bits of congestion notification.
    /// socket.set_tos(46 << 2)?;
    /// socket.send_to(b"voice", "10.0.0.2:7")?;
    /// assert_eq!(receiver.recv_datagram(&mut [0; 8])?.tos, 184);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If it is over 255.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        let class = options::traffic_class(tos)?;
        self.option(|options| options.traffic_class = class)
    }

    /// Returns the value set by [`UdpSocket::set_tos`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert_eq!(socket.tos()?, 0);
    /// socket.set_tos(0xb8)?;
    /// assert_eq!(socket.tos()?, 0xb8);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn tos(&self) -> io::Result<u32> {
        self.option(|options| options.traffic_class).map(u32::from)
    }

    /// Sets whether sending a datagram that exceeds the path's MTU fails with [`io::ErrorKind::InvalidInput`]
    /// (`IP_MTU_DISCOVER` of ip(7), `IPV6_DONTFRAG` of RFC 3542, 11.2), and no fragments of it are sent. Default `false`. The
    /// path's MTU is that of the network, until a router reports a smaller one. Protocols that look for the MTU
    /// themselves use this, such as QUIC (RFC 9000, 14). The network never fragments with addresses of the host.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let host = switch.host()?;
    /// use std::io::ErrorKind;
    ///
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.set_dont_fragment(true)?;
    /// let too_long = socket.send_to(&[0; 1500], "10.0.0.2:7").unwrap_err();
    /// assert_eq!(too_long.kind(), ErrorKind::InvalidInput);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn set_dont_fragment(&self, dont_fragment: bool) -> io::Result<()> {
        self.option(|options| options.fragments = !dont_fragment)
    }

    /// Returns the value set by [`UdpSocket::set_dont_fragment`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let host = switch.host()?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert!(!socket.dont_fragment()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn dont_fragment(&self) -> io::Result<bool> {
        self.option(|options| !options.fragments)
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6) of datagrams to multicast groups. Default
    /// 1: they stay on the link.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// use std::net::Ipv4Addr;
    ///
    /// let group = Ipv4Addr::new(239, 1, 2, 3);
    /// let member = UdpSocket::bind(&peer, "0.0.0.0:5000")?;
    /// member.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.set_multicast_ttl_v4(8)?;
    /// socket.send_to(b"to all", (group, 5000))?;
    /// assert_eq!(member.recv_datagram(&mut [0; 8])?.ttl, 8);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If it is outside 1 to 255. The kernel also takes 0, for datagrams that stay on this host;
    /// the kernel's sockets would not receive them here.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        let ttl = options::hop_limit(ttl)?;
        self.option(|options| options.multicast_hop_limit = ttl)
    }

    /// Returns the value set by [`UdpSocket::set_multicast_ttl_v4`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert_eq!(socket.multicast_ttl_v4()?, 1);
    /// socket.set_multicast_ttl_v4(32)?;
    /// assert_eq!(socket.multicast_ttl_v4()?, 32);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.option(|options| options.multicast_hop_limit).map(u32::from)
    }

    /// Sets whether the socket may send to broadcast addresses. Default `false`.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// let any = UdpSocket::bind(&peer, "0.0.0.0:67")?;
    /// assert!(socket.send_to(b"refused", "255.255.255.255:67").is_err());
    /// socket.set_broadcast(true)?;
    /// socket.send_to(b"to all", "255.255.255.255:67")?;
    /// assert_eq!(any.recv(&mut [0; 8])?, 6);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.option(|options| options.broadcast = broadcast)
    }

    /// Returns the value set by [`UdpSocket::set_broadcast`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// assert!(!socket.broadcast()?);
    /// socket.set_broadcast(true)?;
    /// assert!(socket.broadcast()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the socket lives.
    pub fn broadcast(&self) -> io::Result<bool> {
        self.option(|options| options.broadcast)
    }

    /// Returns another handle to the same socket.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let handle = receiver.try_clone()?;
    /// let thread = std::thread::spawn(move || handle.recv(&mut [0; 2048]));
    /// UdpSocket::bind(&host, "0.0.0.0:0")?.send_to(b"question", "10.0.0.2:7")?;
    /// assert_eq!(thread.join().unwrap()?, 8);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        self.inner().network.checked()?;
        Ok(UdpSocket { inner: self.inner.clone() })
    }
}

impl Source for UdpSocket {}

impl Watchable for UdpSocket {
    fn socket_ref(&self) -> SocketRef<'_> {
        let Inner { network, id, waiter, .. } = self.inner();
        SocketRef::new(network, SocketId::Udp(*id), waiter)
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket").field("local", &self.local_addr().ok()).finish()
    }
}
