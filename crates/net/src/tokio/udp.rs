//! The counterpart of `tokio::net::UdpSocket`.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;
use tokio::net::ToSocketAddrs;

use super::names::each;
use crate::options::{first_success, no_address};
use crate::readiness::{Interest, Ready};
use crate::tasks::{poll_io, repeat, wait_ready};
use crate::watch::private::Watchable;
use crate::watchers::TaskDirection;
use crate::{DatagramToSend, Network, ReceivedDatagram};

/// A UDP socket of a [`Network`], used like `tokio::net::UdpSocket`.
///
/// Its options are those of the [`UdpSocket`](crate::UdpSocket) that [`UdpSocket::get_ref`] returns. Any number of
/// tasks may send and receive by reference; the methods that begin with `poll` are for one task per direction.
#[derive(Debug)]
pub struct UdpSocket {
    socket: crate::UdpSocket,
}

impl UdpSocket {
    /// Binds a socket to an address of the network: see [`UdpSocket::bind`](crate::UdpSocket::bind).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::tokio::UdpSocket;
    ///
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:53").await?;
    /// assert_eq!(socket.local_addr()?.port(), 53);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the address is not the network's, in use, or not allowed to this application.
    pub async fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let bind = |local| UdpSocket::new(crate::UdpSocket::bind(network, local)?);
        each(network, local, bind).await
    }

    /// Makes a socket of tasks of one that was configured by other calls.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::tokio::UdpSocket;
    ///
    /// let socket = towpath_net::UdpSocket::bind(&host, "0.0.0.0:67")?;
    /// socket.set_broadcast(true)?;
    /// let socket = UdpSocket::new(socket)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn new(socket: crate::UdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(true)?;
        socket.socket_ref().start_watching()?;
        Ok(UdpSocket { socket })
    }

    /// Returns the non-blocking socket, which shares its datagrams and options with this one.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// // The options are those of the other socket.
    /// socket.get_ref().set_ttl(3)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get_ref(&self) -> &crate::UdpSocket {
        &self.socket
    }

    /// Returns the non-blocking socket.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// let socket = socket.into_inner();
    /// // For a thread that blocks.
    /// socket.set_nonblocking(false)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn into_inner(self) -> crate::UdpSocket {
        self.socket
    }

    /// Sets the peer of [`UdpSocket::send`]. From now on the socket receives only from that peer.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.connect("10.0.0.1:7").await?;
    /// sender.send(b"question").await?;
    /// assert_eq!(socket.recv(&mut [0; 64]).await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no route leads to the peer.
    pub async fn connect(&self, peer: impl ToSocketAddrs) -> io::Result<()> {
        self.socket.socket_ref().network()?;
        let addresses = tokio::net::lookup_host(peer).await?;
        first_success(addresses, |peer| self.socket.connect(peer))
    }

    /// Waits until the socket is ready for something that the interest concerns.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// use towpath_net::Interest;
    ///
    /// let ready = sender.ready(Interest::READABLE | Interest::WRITABLE).await?;
    /// assert!(ready.is_writable() && !ready.is_readable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        wait_ready(self.socket.socket_ref(), interest).await
    }

    /// Sends a datagram to the connected peer.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.connect("10.0.0.1:7").await?;
    /// assert_eq!(sender.send(b"question").await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send`](crate::UdpSocket::send).
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        repeat(self.socket.socket_ref(), Interest::WRITABLE, || self.socket.send(data)).await
    }

    /// Sends a datagram, to the first address if there are several.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.send_to(b"question", "10.0.0.1:7").await?;
    /// let (len, from) = socket.recv_from(&mut [0; 64]).await?;
    /// assert_eq!((len, from), (8, sender.local_addr()?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`](crate::UdpSocket::send_to).
    pub async fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        self.socket.socket_ref().network()?;
        let first = tokio::net::lookup_host(to).await?.next();
        let first = first.ok_or_else(no_address)?;
        repeat(self.socket.socket_ref(), Interest::WRITABLE, || self.socket.send_to(data, first))
            .await
    }

    /// Receives a datagram from the connected peer; the part beyond the buffer's length is lost.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.send_to(b"longer than the buffer", "10.0.0.1:7").await?;
    /// assert_eq!(socket.recv(&mut [0; 6]).await?, 6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the peer refused a sent datagram, or the link is dead.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        repeat(self.socket.socket_ref(), Interest::READABLE, || self.socket.recv(buffer)).await
    }

    /// Receives a datagram; the part beyond the buffer's length is lost.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.send_to(b"question", "10.0.0.1:7").await?;
    /// let mut datagram = [0; 2048];
    /// let (len, from) = socket.recv_from(&mut datagram).await?;
    /// socket.send_to(&datagram[..len], from).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        repeat(self.socket.socket_ref(), Interest::READABLE, || self.socket.recv_from(buffer)).await
    }

    /// Receives a datagram with the fields of its header, or several if
    /// [`UdpSocket::set_gro`](crate::UdpSocket::set_gro) of [`UdpSocket::get_ref`] is on.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.get_ref().set_ttl(3)?;
    /// sender.send_to(b"question", "10.0.0.1:7").await?;
    /// let received = socket.recv_datagram(&mut [0; 64]).await?;
    /// assert_eq!((received.len, received.ttl), (8, 3));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub async fn recv_datagram(&self, buffer: &mut [u8]) -> io::Result<ReceivedDatagram> {
        let receive = || self.socket.recv_datagram(buffer);
        repeat(self.socket.socket_ref(), Interest::READABLE, receive).await
    }

    /// Waits for a datagram, and receives as many as have arrived and have buffers: see
    /// [`UdpSocket::recv_many`](crate::UdpSocket::recv_many).
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// use std::io::IoSliceMut;
    ///
    /// sender.send_to(b"question", "10.0.0.1:7").await?;
    /// let (mut one, mut other, mut received) = ([0; 2048], [0; 2048], Vec::new());
    /// let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
    /// assert_eq!(socket.recv_many(&mut buffers, &mut received).await?, 1);
    /// println!("{} bytes from {}", received[0].len, received[0].from);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub async fn recv_many(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        received: &mut Vec<ReceivedDatagram>,
    ) -> io::Result<usize> {
        let receive = || self.socket.recv_many(buffers, received);
        repeat(self.socket.socket_ref(), Interest::READABLE, receive).await
    }

    /// Waits for room, and sends as many datagrams as find room: see
    /// [`UdpSocket::send_many`](crate::UdpSocket::send_many).
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// use towpath_net::DatagramToSend;
    ///
    /// let to = socket.local_addr()?;
    /// let datagrams = [DatagramToSend::new(b"one", to), DatagramToSend::new(b"another", to)];
    /// assert_eq!(sender.send_many(&datagrams).await?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_many`](crate::UdpSocket::send_many).
    pub async fn send_many(&self, datagrams: &[DatagramToSend<'_>]) -> io::Result<usize> {
        let send = || self.socket.send_many(datagrams);
        repeat(self.socket.socket_ref(), Interest::WRITABLE, send).await
    }

    /// Copies the next datagram without removing it.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.send_to(b"question", "10.0.0.1:7").await?;
    /// let (_, from) = socket.peek_from(&mut [0; 1]).await?;
    /// // The datagram is still there.
    /// assert_eq!(socket.recv_from(&mut [0; 64]).await?, (8, from));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        repeat(self.socket.socket_ref(), Interest::READABLE, || self.socket.peek_from(buffer)).await
    }

    /// Receives a datagram without waiting.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// let error = socket.try_recv_from(&mut [0; 64]).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without a datagram; as [`UdpSocket::recv`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.recv_from(buffer)
    }

    /// Sends a datagram without waiting.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// assert_eq!(sender.try_send_to(b"question", socket.local_addr()?)?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without room; as [`UdpSocket::send_to`].
    pub fn try_send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket.send_to(data, to)
    }

    /// Receives a datagram from the connected peer, for one task at a time.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// use std::future::poll_fn;
    /// use tokio::io::ReadBuf;
    ///
    /// sender.send_to(b"question", "10.0.0.1:7").await?;
    /// let mut memory = [0; 2048];
    /// let mut buffer = ReadBuf::new(&mut memory);
    /// poll_fn(|context| socket.poll_recv(context, &mut buffer)).await?;
    /// assert_eq!(buffer.filled(), b"question");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_recv_from(context, buffer).map(|received| received.map(|_| ()))
    }

    /// Receives a datagram, for one task at a time.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// use std::future::poll_fn;
    /// use tokio::io::ReadBuf;
    ///
    /// sender.send_to(b"question", "10.0.0.1:7").await?;
    /// let mut memory = [0; 2048];
    /// let mut buffer = ReadBuf::new(&mut memory);
    /// let from = poll_fn(|context| socket.poll_recv_from(context, &mut buffer)).await?;
    /// assert_eq!((buffer.filled(), from), (&b"question"[..], sender.local_addr()?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let receive = || self.socket.recv_from(buffer.initialize_unfilled());
        let received = poll_io(&self.socket.socket_ref(), context, TaskDirection::Read, receive);
        received.map(|received| {
            let (count, from) = received?;
            buffer.advance(count);
            Ok(from)
        })
    }

    /// Sends a datagram, for one task at a time.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// use std::future::poll_fn;
    ///
    /// let to = socket.local_addr()?;
    /// let sent = poll_fn(|context| sender.poll_send_to(context, b"question", to)).await?;
    /// assert_eq!(sent, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        let send = || self.socket.send_to(data, to);
        poll_io(&self.socket.socket_ref(), context, TaskDirection::Write, send)
    }

    /// Returns the socket's address and port.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::tokio::UdpSocket;
    ///
    /// let socket = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// println!("the network chose port {}", socket.local_addr()?.port());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the peer to which the socket is connected.
    ///
    /// ```
    /// # use towpath_net::tokio::UdpSocket;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "10.0.0.1:7").await?;
    /// # let sender = UdpSocket::bind(&host, "10.0.0.1:0").await?;
    /// sender.connect("10.0.0.1:7").await?;
    /// assert_eq!(sender.peer_addr()?, socket.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }
}
