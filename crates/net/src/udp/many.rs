//! Several datagrams per call, and datagrams with the fields of their headers.

use std::io::{self, IoSliceMut};

use towpath_stack::SocketError;

use super::{Inner, UdpSocket};
use crate::{DatagramToSend, ReceivedDatagram, error};

impl UdpSocket {
    /// Receives a datagram with the fields of its header; the part beyond the buffer's length is lost, and
    /// [`ReceivedDatagram::datagram_bytes`] shows it. With [`UdpSocket::set_gro`], receives several of them.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.set_ttl(3)?;
    /// socket.send_to(b"question", "10.0.0.2:7")?;
    /// let mut buffer = [0; 4];
    /// let received = receiver.recv_datagram(&mut buffer)?;
    /// assert_eq!((received.len, received.datagram_bytes, received.ttl), (4, 8, 3));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_datagram(&self, buffer: &mut [u8]) -> io::Result<ReceivedDatagram> {
        let mut outcome = None;
        self.receive_each(&mut [IoSliceMut::new(buffer)], |received| outcome = Some(received))?;
        outcome.ok_or_else(|| error::socket(SocketError::WouldBlock))
    }

    /// Receives up to as many datagrams as there are buffers. Waits for the first as [`UdpSocket::recv_datagram`] does, and
    /// for none of the others. Replaces the content of `received` by these datagrams, one per buffer, and returns their
    /// number. `received` keeps its memory.
    ///
    /// The call locks the network once for all datagrams, as Linux's `recvmmsg` makes one system call. It returns 0 at once if
    /// `buffers` is empty. With [`UdpSocket::set_gro`], a buffer may hold several datagrams.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// use std::io::IoSliceMut;
    ///
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.send_to(b"question", "10.0.0.2:7")?;
    /// let (mut one, mut other, mut received) = ([0; 2048], [0; 2048], Vec::new());
    /// let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
    /// assert_eq!(receiver.recv_many(&mut buffers, &mut received)?, 1);
    /// println!("{} bytes from {}", received[0].len, received[0].from);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`]. An error after the first datagram comes with the next call.
    pub fn recv_many(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        received: &mut Vec<ReceivedDatagram>,
    ) -> io::Result<usize> {
        received.clear();
        self.receive_each(buffers, |datagram| received.push(datagram))
    }

    /// Receives as [`UdpSocket::recv_many`] does, and passes each datagram to `take`.
    pub(crate) fn receive_each(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        mut take: impl FnMut(ReceivedDatagram),
    ) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = self.inner();
        let shared = network.checked()?;
        if buffers.is_empty() {
            return Ok(0);
        }
        shared.block_on(waiter, options.reading(), false, |stack, _| {
            let merges = options.has_gro();
            for (buffer, count) in buffers.iter_mut().zip(0..) {
                // After the first datagram, an error stays in the socket: the call cannot return both.
                if count > 0 && !stack.udp_has_datagram(*id)? {
                    return Ok(count);
                }
                take(ReceivedDatagram::new(match merges {
                    true => stack.udp_recv_merged(*id, buffer)?,
                    false => stack.udp_recv(*id, buffer, false)?,
                }));
            }
            Ok(buffers.len())
        })
    }

    /// Sends datagrams in their order, until one fails or there is no more room. Waits for room for the first as
    /// [`UdpSocket::send_to`] does, and for none of the others. Returns the number of sent datagrams, which is at least 1
    /// unless `datagrams` is empty.
    ///
    /// The call locks the network once for all datagrams, as Linux's `sendmmsg` makes one system call. With
    /// [`DatagramToSend::segment_bytes`], one element of `datagrams` is several datagrams, which the call sends all or not
    /// at all.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// use towpath_net::DatagramToSend;
    ///
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// let to = receiver.local_addr()?;
    /// let datagrams = [DatagramToSend::new(b"one", to), DatagramToSend::new(b"another", to)];
    /// assert_eq!(socket.send_many(&datagrams)?, 2);
    /// assert_eq!(receiver.recv(&mut [0; 2048])?, 3);
    /// assert_eq!(receiver.recv(&mut [0; 2048])?, 7);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`] for the first datagram; [`io::ErrorKind::AddrNotAvailable`] if its source is not an address
    /// of the network, [`io::ErrorKind::InvalidInput`] if it is of another family than the receiver. If a later datagram
    /// fails, the call returns the number before it, and a call that begins with that datagram returns its error.
    pub fn send_many(&self, datagrams: &[DatagramToSend<'_>]) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = self.inner();
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
