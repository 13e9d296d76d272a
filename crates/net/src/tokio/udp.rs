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
    /// # Errors
    /// If the address is not the network's, in use, or not allowed to this application.
    pub async fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let bind = |local| UdpSocket::new(crate::UdpSocket::bind(network, local)?);
        each(network, local, bind).await
    }

    /// Makes a socket of tasks of one that was configured by other calls.
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn new(socket: crate::UdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(true)?;
        socket.socket_ref().start_watching()?;
        Ok(UdpSocket { socket })
    }

    /// Returns the non-blocking socket, which shares its datagrams and options with this one.
    #[must_use]
    pub fn get_ref(&self) -> &crate::UdpSocket {
        &self.socket
    }

    /// Returns the non-blocking socket.
    #[must_use]
    pub fn into_inner(self) -> crate::UdpSocket {
        self.socket
    }

    /// Sets the peer of [`UdpSocket::send`]. From now on the socket receives only from that peer.
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
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        wait_ready(self.socket.socket_ref(), interest).await
    }

    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    /// As [`UdpSocket::send`](crate::UdpSocket::send).
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        repeat(self.socket.socket_ref(), Interest::WRITABLE, || self.socket.send(data)).await
    }

    /// Sends a datagram, to the first address if there are several.
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
    /// # Errors
    /// If the peer refused a sent datagram, or the link is dead.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        repeat(self.socket.socket_ref(), Interest::READABLE, || self.socket.recv(buffer)).await
    }

    /// Receives a datagram; the part beyond the buffer's length is lost.
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        repeat(self.socket.socket_ref(), Interest::READABLE, || self.socket.recv_from(buffer)).await
    }

    /// Receives a datagram with the fields of its header, or several if
    /// [`UdpSocket::set_gro`](crate::UdpSocket::set_gro) of [`UdpSocket::get_ref`] is on.
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
    /// # Errors
    /// As [`UdpSocket::send_many`](crate::UdpSocket::send_many).
    pub async fn send_many(&self, datagrams: &[DatagramToSend<'_>]) -> io::Result<usize> {
        let send = || self.socket.send_many(datagrams);
        repeat(self.socket.socket_ref(), Interest::WRITABLE, send).await
    }

    /// Copies the next datagram without removing it.
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        repeat(self.socket.socket_ref(), Interest::READABLE, || self.socket.peek_from(buffer)).await
    }

    /// Receives a datagram without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without a datagram; as [`UdpSocket::recv`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.recv_from(buffer)
    }

    /// Sends a datagram without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without room; as [`UdpSocket::send_to`].
    pub fn try_send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket.send_to(data, to)
    }

    /// Receives a datagram from the connected peer, for one task at a time.
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
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the peer to which the socket is connected.
    ///
    /// # Errors
    /// If the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }
}
