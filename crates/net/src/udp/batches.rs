//! Several datagrams per call, and the header fields of received datagrams.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;

use towpath_stack::{Outgoing, Received, SocketError};

use super::{Inner, UdpSocket};

/// A datagram that [`UdpSocket::recv_datagram`] or [`UdpSocket::recv_many`] received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedDatagram {
    /// The number of bytes in the buffer.
    pub len: usize,
    /// The datagram's length. It exceeds `len` if the buffer was too short; the rest is lost.
    pub datagram_bytes: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address to which it was sent: one of the network's, or a broadcast address.
    pub to: IpAddr,
    /// The type of service (IPv4) or traffic class (IPv6), 0 to 255. The lowest two bits are those of congestion
    /// notification (RFC 3168).
    pub tos: u8,
    /// The time to live (IPv4) or hop limit (IPv6) with which it arrived, 0 to 255.
    pub ttl: u8,
}

impl ReceivedDatagram {
    pub(super) fn new(received: Received) -> ReceivedDatagram {
        let Received { len, datagram_bytes, from, to, traffic_class, hop_limit } = received;
        ReceivedDatagram { len, datagram_bytes, from, to, tos: traffic_class, ttl: hop_limit }
    }
}

/// A datagram for [`UdpSocket::send_many`]. Fields that are `None` are those of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramToSend<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// The receiver; `None` for the peer to which the socket is connected.
    pub to: Option<SocketAddr>,
    /// The source address, one of the network's: for an answer, the address to which the question was sent
    /// ([`ReceivedDatagram::to`]).
    pub from: Option<IpAddr>,
    /// The type of service (IPv4) or traffic class (IPv6), 0 to 255, congestion notification included.
    pub tos: Option<u8>,
    /// The time to live (IPv4) or hop limit (IPv6), 1 to 255.
    pub ttl: Option<NonZeroU8>,
}

impl<'a> DatagramToSend<'a> {
    /// Returns a datagram to an address.
    #[must_use]
    pub fn new(data: &'a [u8], to: SocketAddr) -> DatagramToSend<'a> {
        DatagramToSend { to: Some(to), ..DatagramToSend::to_peer(data) }
    }

    /// Returns a datagram to the peer to which the socket is connected.
    #[must_use]
    pub fn to_peer(data: &'a [u8]) -> DatagramToSend<'a> {
        DatagramToSend { data, to: None, from: None, tos: None, ttl: None }
    }

    fn outgoing(&self) -> Outgoing<'a> {
        let DatagramToSend { data, to, from, tos, ttl } = *self;
        Outgoing { data, to, from, traffic_class: tos, hop_limit: ttl.map(NonZeroU8::get) }
    }
}

impl UdpSocket {
    /// Receives up to as many datagrams as there are buffers. Waits for the first as [`UdpSocket::recv_datagram`] does, and
    /// for none of the others. Replaces the content of `received` by these datagrams, one per buffer, and returns their
    /// number. `received` keeps its memory.
    ///
    /// All datagrams together cost one lock of the network, as they cost one system call with Linux's `recvmmsg`.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`]. An error after the first datagram comes with the next call.
    pub fn recv_many(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        received: &mut Vec<ReceivedDatagram>,
    ) -> io::Result<usize> {
        received.clear();
        let Inner { network, id, waiter, options } = self.inner();
        let shared = network.checked()?;
        if buffers.is_empty() {
            return Ok(0);
        }
        shared.block_on(waiter, options.reading(), false, |stack, _| {
            for buffer in buffers.iter_mut() {
                // After a datagram, the call must take no error: it could not return it.
                if !received.is_empty() && !stack.udp_has_datagram(*id)? {
                    break;
                }
                received.push(ReceivedDatagram::new(stack.udp_recv(*id, buffer, false)?));
            }
            Ok(received.len())
        })
    }

    /// Sends datagrams in their order, until one fails or there is no more room. Waits for room for the first as
    /// [`UdpSocket::send_to`] does, and for none of the others. Returns the number of sent datagrams, which is at least 1
    /// unless `datagrams` is empty.
    ///
    /// All datagrams together cost one lock of the network, as they cost one system call with Linux's `sendmmsg`.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`] for the first datagram; [`io::ErrorKind::AddrNotAvailable`] if its source is not an address
    /// of the network. If a later one fails, the call returns the number before it, and
    /// a call that begins with that datagram returns its error.
    pub fn send_many(&self, datagrams: &[DatagramToSend<'_>]) -> io::Result<usize> {
        let Inner { network, id, waiter, options } = self.inner();
        let shared = network.checked()?;
        if datagrams.is_empty() {
            return Ok(0);
        }
        shared.block_on(waiter, options.writing(), true, |stack, now| {
            for (datagram, sent) in datagrams.iter().zip(0..) {
                match stack.udp_send_with(now, *id, &datagram.outgoing()) {
                    Ok(()) => {}
                    Err(error) if sent == 0 => return Err(error),
                    Err(_) => return Ok::<usize, SocketError>(sent),
                }
            }
            Ok(datagrams.len())
        })
    }
}
