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
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use towpath_stack::MOST_SEGMENTS;

use crate::readiness::Interest;
use crate::tasks::{TaskRegistration, poll_io};
use crate::watch::private::Watchable;
use crate::watchers::TaskDirection;
use crate::{DatagramToSend, ReceivedDatagram, UdpSocket};

/// A UDP socket for `quinn::Endpoint::new_with_abstract_socket`.
///
/// A call sends or receives up to 64 datagrams in one buffer ([`DatagramToSend::segment_bytes`],
/// [`UdpSocket::set_gro`]). The socket sends no fragments ([`UdpSocket::set_dont_fragment`]), so quinn looks for the
/// path's MTU (RFC 9000, 14.3).
#[derive(Debug)]
pub struct Socket {
    socket: UdpSocket,
    /// The type of service without the bits of congestion notification.
    service: u8,
}

impl Socket {
    /// Makes a socket for quinn of a bound one, and sets [`UdpSocket::set_gro`] and
    /// [`UdpSocket::set_dont_fragment`] there. Its datagrams have the type of service that the bound one has now; QUIC sets
    /// the bits of congestion notification (RFC 9000, 13.4).
    ///
    /// ```
    /// # fn start(
    /// #     bound: towpath_net::UdpSocket,
    /// #     config: quinn::EndpointConfig,
    /// # ) -> std::io::Result<quinn::Endpoint> {
    /// use std::sync::Arc;
    /// use towpath_net::quinn::Socket;
    ///
    /// // Expedited forwarding, for all datagrams of the endpoint, which only connects.
    /// bound.set_tos(46 << 2)?;
    /// let (socket, runtime) = (Arc::new(Socket::new(bound)?), Arc::new(quinn::TokioRuntime));
    /// quinn::Endpoint::new_with_abstract_socket(config, None, socket, runtime)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn new(socket: UdpSocket) -> io::Result<Socket> {
        socket.set_nonblocking(true)?;
        socket.set_gro(true)?;
        socket.set_dont_fragment(true)?;
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
        datagram.segment_bytes = transmit.segment_size.and_then(NonZeroUsize::new);
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
        let most = buffers.len().min(meta.len());
        let receive = || {
            let mut meta = meta.iter_mut();
            self.socket.receive_each(&mut buffers[..most], |received| {
                let ReceivedDatagram { len, stride, from, to, tos, .. } = received;
                let (ecn, dst_ip) = (EcnCodepoint::from_bits(tos), Some(to));
                if let Some(meta) = meta.next() {
                    *meta = RecvMeta { addr: from, len, stride, ecn, dst_ip };
                }
            })
        };
        poll_io(&self.socket.socket_ref(), context, TaskDirection::Read, receive)
    }

    fn max_transmit_segments(&self) -> usize {
        MOST_SEGMENTS
    }

    fn max_receive_segments(&self) -> usize {
        MOST_SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
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
