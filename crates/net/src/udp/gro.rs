//! Several received datagrams in one buffer.

use std::io;

use super::UdpSocket;

impl UdpSocket {
    /// Sets whether [`UdpSocket::recv_datagram`] and [`UdpSocket::recv_many`] put several datagrams into one buffer, like
    /// `UDP_GRO` of udp(7). Default `false`. Clones of the socket share the option.
    ///
    /// A buffer then gets consecutive datagrams of equal length, of which the last one may be shorter, at most 64. They
    /// have the same sender, destination, type of service (congestion notification included) and time to live.
    /// [`ReceivedDatagram::stride`](crate::ReceivedDatagram::stride) is their length, and
    /// [`ReceivedDatagram::datagrams`](crate::ReceivedDatagram::datagrams) returns each of them. A datagram for which the
    /// buffer has no room any more comes with the next buffer. An empty datagram comes alone, and so does one that is
    /// longer than the buffer. The call waits for no second datagram.
    ///
    /// The methods that return only a length, such as [`UdpSocket::recv_from`], return one datagram each. With `UDP_GRO`,
    /// such calls of a kernel socket may return several.
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
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
    /// receiver.set_gro(true)?;
    /// let sender = UdpSocket::bind(&one, "10.0.0.1:0")?;
    /// let data: Vec<u8> = (0..50).collect();
    /// let mut datagrams = DatagramToSend::new(&data, receiver.local_addr()?);
    /// datagrams.segment_bytes = NonZeroUsize::new(20);
    /// sender.send_many(&[datagrams])?;
    ///
    /// let (mut buffer, mut lengths) = ([0; 65_535], Vec::new());
    /// while lengths.len() < 3 {
    ///     let received = receiver.recv_datagram(&mut buffer)?;
    ///     for datagram in received.datagrams(&buffer) {
    ///         lengths.push(datagram.len());
    ///     }
    /// }
    /// assert_eq!(lengths, [20, 20, 10]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_gro(&self, gro: bool) -> io::Result<()> {
        self.options()?.set_gro(gro);
        Ok(())
    }

    /// Returns the value set by [`UdpSocket::set_gro`].
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let host = switch.host()?;
    /// let socket = UdpSocket::bind(&host, "0.0.0.0:0")?;
    /// socket.set_gro(true)?;
    /// assert!(socket.gro()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn gro(&self) -> io::Result<bool> {
        Ok(self.options()?.has_gro())
    }
}
