//! QUIC by quinn over a network's UDP sockets (feature `quinn`).
//!
//! ```no_run
//! # async fn run(
//! #     endpoint_config: quinn::EndpointConfig,
//! #     server_config: quinn::ServerConfig,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use towpath_net::quinn::Socket;
//! use towpath_net::{Network, UdpSocket};
//!
//! let network = Network::attach("/run/towpath/eth0.sock")?;
//! let socket = Socket::new(UdpSocket::bind(&network, "0.0.0.0:443")?)?;
//! let endpoint = quinn::Endpoint::new_with_abstract_socket(
//!     endpoint_config,
//!     Some(server_config),
//!     Arc::new(socket),
//!     Arc::new(quinn::TokioRuntime),
//! )?;
//! while let Some(incoming) = endpoint.accept().await {
//!     println!("{}", incoming.remote_address());
//! }
//! # Ok(())
//! # }
//! ```

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::readiness::Interest;
use crate::tasks::{TaskRegistration, poll_io};
use crate::watch::private::Watchable;
use crate::watchers::TaskDirection;
use crate::{DatagramToSend, ReceivedDatagram, UdpSocket};

/// A UDP socket for `quinn::Endpoint::new_with_abstract_socket`.
///
/// It sends and receives a datagram at a time. The stack fragments datagrams beyond the path's MTU, so quinn leaves its
/// packets at their initial size.
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    /// The type of service without the bits of congestion notification.
    service: u8,
}

impl Socket {
    /// Makes a socket for quinn of a bound one. Its datagrams have the type of service that the bound one has now; QUIC sets
    /// the bits of congestion notification (RFC 9000, 13.4).
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn new(socket: UdpSocket) -> io::Result<Socket> {
        socket.set_nonblocking(true)?;
        socket.socket_ref().start_watching()?;
        let service = socket.tos()? as u8 & !3;
        Ok(Socket { socket, service })
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { socket: self, registration: TaskRegistration::default() })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut datagram = DatagramToSend::new(transmit.contents, transmit.destination);
        datagram.from = transmit.src_ip;
        datagram.tos = transmit.ecn.map(|ecn| self.service | ecn as u8);
        match self.socket.send_many(&[datagram]) {
            Ok(_) => Ok(()),
            // An error would end the connection's task. To QUIC, a datagram that cannot be sent is a lost one.
            Err(error) if !ends(error.kind()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let outcome = match received {
                0 => {
                    let receive = || self.socket.recv_datagram(buffer);
                    poll_io(&self.socket.socket_ref(), context, TaskDirection::Read, receive)
                }
                _ => Poll::Ready(self.socket.recv_datagram(buffer)),
            };
            match outcome {
                Poll::Ready(Ok(ReceivedDatagram { len, from, to, tos, .. })) => {
                    let ecn = EcnCodepoint::from_bits(tos);
                    *meta = RecvMeta { addr: from, len, stride: len, ecn, dst_ip: Some(to) };
                    received += 1;
                }
                Poll::Ready(Err(error)) if received == 0 => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => break,
            }
        }
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Returns `true` for an error that quinn has to know: no room at present, or a network that has ended.
fn ends(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::NetworkDown)
}

/// Waits for room to send, for one task.
#[derive(Debug)]
struct Writable {
    socket: Arc<Socket>,
    registration: TaskRegistration,
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Writable { socket, registration } = &mut *self;
        let socket = socket.socket.socket_ref();
        registration.register(&socket, Interest::WRITABLE, context)?;
        let ready = socket.start_watching()?.of_interest(Interest::WRITABLE);
        if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        self.registration.end(&self.socket.socket.socket_ref());
    }
}
