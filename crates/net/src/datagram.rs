//! Datagrams with their header fields.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU8, NonZeroUsize};

use towpath_stack::{Outgoing, Received};

/// A datagram that [`UdpSocket::recv_datagram`](crate::UdpSocket::recv_datagram) or
/// [`UdpSocket::recv_many`](crate::UdpSocket::recv_many) received.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::IoSliceMut;
/// use towpath_net::{DatagramToSend, Network, UdpSocket};
///
/// let network = Network::attach("/run/towpath/eth0.sock")?;
/// let socket = UdpSocket::bind(&network, "0.0.0.0:7")?;
/// let mut memory = vec![[0; 2048]; 16];
/// let mut received = Vec::new();
/// loop {
///     let mut buffers: Vec<_> = memory.iter_mut().map(|one| IoSliceMut::new(one)).collect();
///     socket.recv_many(&mut buffers, &mut received)?;
///     let answers: Vec<_> = received
///         .iter()
///         .zip(&buffers)
///         .map(|(one, buffer)| DatagramToSend::new(&buffer[..one.len], one.from))
///         .collect();
///     let mut sent = 0;
///     while sent < answers.len() {
///         // Leaves out an answer that has no way, for instance to port 0.
///         sent += socket.send_many(&answers[sent..]).unwrap_or(1);
///     }
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedDatagram {
    /// The number of bytes in the buffer.
    pub len: usize,
    /// The length in bytes of each datagram in the buffer, except the last, which may be shorter. Equals `len`, for one
    /// datagram, unless [`UdpSocket::set_gro`](crate::UdpSocket::set_gro) is on.
    pub stride: usize,
    /// The length of the datagrams in the buffer. It exceeds `len` if the buffer was too short for one datagram; the rest is
    /// lost.
    pub datagram_bytes: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address to which it was sent: one of the network's, a broadcast address, or with IPv6 a group address.
    pub to: IpAddr,
    /// The type of service (IPv4) or traffic class (IPv6), 0 to 255. The lowest two bits are those of congestion
    /// notification (RFC 3168).
    pub tos: u8,
    /// The time to live (IPv4) or hop limit (IPv6) with which it arrived, 0 to 255.
    pub ttl: u8,
}

impl ReceivedDatagram {
    pub(crate) fn new(received: Received) -> ReceivedDatagram {
        let Received { len, stride, datagram_bytes, from, to, traffic_class, hop_limit } = received;
        let (tos, ttl) = (traffic_class, hop_limit);
        ReceivedDatagram { len, stride, datagram_bytes, from, to, tos, ttl }
    }

    /// Returns the datagrams in the buffer that the call filled, at least one.
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (host, peer) = (switch.host()?, switch.host()?);
    /// # let receiver = UdpSocket::bind(&peer, "10.0.0.2:7")?;
    /// UdpSocket::bind(&host, "0.0.0.0:0")?.send_to(b"question", "10.0.0.2:7")?;
    /// let mut buffer = [0; 65_535];
    /// let received = receiver.recv_datagram(&mut buffer)?;
    /// let datagrams: Vec<&[u8]> = received.datagrams(&buffer).collect();
    /// assert_eq!(datagrams, [b"question"]);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Panics
    /// If `buffer` is shorter than `len`.
    pub fn datagrams<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (first, rest) = buffer[..self.len].split_at(self.stride.min(self.len));
        std::iter::once(first).chain(rest.chunks(self.stride.max(1)))
    }
}

/// A datagram for [`UdpSocket::send_many`](crate::UdpSocket::send_many), or several to one receiver. Fields that are `None`
/// are those of the socket.
///
/// An answer from the address of the network to which the question was sent, with another time to live:
///
/// ```
/// use std::net::IpAddr;
/// use std::num::NonZeroU8;
/// use towpath_net::{DatagramToSend, ReceivedDatagram};
///
/// /// `own`: the network's addresses.
/// fn answer<'a>(
///     own: &[IpAddr],
///     question: &ReceivedDatagram,
///     data: &'a [u8],
/// ) -> DatagramToSend<'a> {
///     let mut answer = DatagramToSend::new(data, question.from);
///     answer.from = Some(question.to).filter(|to| own.contains(to));
///     answer.ttl = NonZeroU8::new(255);
///     answer
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramToSend<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// The receiver; `None` for the peer to which the socket is connected.
    pub to: Option<SocketAddr>,
    /// The source address, one of the network's: for an answer, the address to which the question was sent
    /// ([`ReceivedDatagram::to`]), unless that is a broadcast or group address.
    pub from: Option<IpAddr>,
    /// The type of service (IPv4) or traffic class (IPv6), 0 to 255, congestion notification included.
    pub tos: Option<u8>,
    /// The time to live (IPv4) or hop limit (IPv6), 1 to 255.
    pub ttl: Option<NonZeroU8>,
    /// The length in bytes of the datagrams into which the network cuts the data; the last datagram may be shorter
    /// (`UDP_SEGMENT` of udp(7)). `None`, the default, for one datagram. The network sends all of these datagrams or, without room, none. It does not fragment
    /// them.
    ///
    /// Limits: 64 datagrams; 65 507 bytes in all over IPv4, and 65 527 over IPv6; for each datagram the path's MTU, without
    /// the IP and the UDP header. Beyond a limit, sending fails with [`InvalidInput`](std::io::ErrorKind::InvalidInput).
    /// Linux then fails with `EINVAL` or `EMSGSIZE`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::num::NonZeroUsize;
    /// use towpath_net::testing::Switch;
    /// use towpath_net::{DatagramToSend, UdpSocket};
    ///
    /// let switch = Switch::new();
    /// let (one, other) = (switch.host()?, switch.host()?);
    /// let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
    /// let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    ///
    /// let data = [1; 3000];
    /// let mut datagrams = DatagramToSend::new(&data, receiver.local_addr()?);
    /// datagrams.segment_bytes = NonZeroUsize::new(1200);
    /// assert_eq!(sender.send_many(&[datagrams])?, 1);
    ///
    /// let mut buffer = [0; 2048];
    /// for len in [1200, 1200, 600] {
    ///     assert_eq!(receiver.recv(&mut buffer)?, len);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub segment_bytes: Option<NonZeroUsize>,
}

impl<'a> DatagramToSend<'a> {
    /// Returns a datagram to an address.
    ///
    /// ```
    /// # use towpath_net::DatagramToSend;
    /// let mut datagram = DatagramToSend::new(b"question", "10.0.0.2:53".parse()?);
    /// // Expedited forwarding, for this datagram only.
    /// datagram.tos = Some(46 << 2);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn new(data: &'a [u8], to: SocketAddr) -> DatagramToSend<'a> {
        DatagramToSend { to: Some(to), ..DatagramToSend::to_peer(data) }
    }

    /// Returns a datagram to the peer to which the socket is connected.
    ///
    /// ```
    /// # use towpath_net::{DatagramToSend, UdpSocket};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.connect("10.0.0.1:9")?;
    /// let datagrams = [&b"one"[..], b"another"].map(DatagramToSend::to_peer);
    /// assert_eq!(socket.send_many(&datagrams)?, 2);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn to_peer(data: &'a [u8]) -> DatagramToSend<'a> {
        DatagramToSend { data, to: None, from: None, tos: None, ttl: None, segment_bytes: None }
    }

    pub(crate) fn outgoing(&self) -> Outgoing<'a> {
        let DatagramToSend { data, to, from, tos, ttl, segment_bytes } = *self;
        let segment_bytes = segment_bytes.map(NonZeroUsize::get);
        let hop_limit = ttl.map(NonZeroU8::get);
        Outgoing { data, to, from, traffic_class: tos, hop_limit, segment_bytes }
    }
}
