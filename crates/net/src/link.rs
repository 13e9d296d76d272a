//! The carrier of a network's frames.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use towpath_client::{Lost, MacAddr};
use towpath_stack::{Meta, Offload};

use crate::Replacement;

/// The properties of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkInfo {
    /// The Ethernet address to send from.
    pub mac: MacAddr,
    /// The largest IP packet, in bytes.
    pub mtu: usize,
    /// The offloads that the link performs on sent frames.
    pub offload: Offload,
}

/// Tells the network whether it may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Armed {
    /// A frame arrived while arming: poll again.
    Work,
    /// No frame waits: the descriptor becomes readable when one arrives.
    Sleep {
        /// `true` if the network must poll the descriptor for writing too, which indicates room for
        /// frames.
        writable: bool,
    },
}

/// The reason why a link is dead. Errors of sockets contain it:
///
/// ```
/// use std::io;
/// use towpath_net::{LinkError, Lost};
///
/// /// Returns `true` if attaching again can help.
/// fn may_attach_again(error: &io::Error) -> bool {
///     let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
///     matches!(cause, Some(LinkError::Lost(Lost::ServerGone | Lost::AddressGone)))
/// }
/// # assert!(!may_attach_again(&io::Error::other("another error")));
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The session with the driver server is over.
    #[error(transparent)]
    Lost(Lost),
    /// The other side, a server or an interface, is gone.
    #[error("the link is gone: {0}")]
    Gone(Arc<str>),
    /// A system call failed.
    #[error("the link failed: {0}")]
    Failed(Arc<std::io::Error>),
    /// This process is a child made by `fork`: the network or the poller belongs to its parent.
    #[error(
        "this process was forked, and its networks and pollers belong to its parent; make new ones in \
         this process"
    )]
    Forked,
}

impl From<std::io::Error> for LinkError {
    fn from(error: std::io::Error) -> Self {
        LinkError::Failed(Arc::new(error))
    }
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A carrier of frames: a session with a driver server ([`SessionLink`](crate::SessionLink)), or
/// for example a TAP device, by an implementation of your own.
///
/// One thread at a time calls the link, under the network's lock for the link. The network also
/// calls `receive`, `room`, `transmit` and `unsent` under the stack's lock, so they must make no
/// system call; `prepare`, `flush`, `arm` and `disarm` may.
///
/// A round consists of `prepare`, `receive`, any number of `transmit`, and `flush`. The network
/// calls `arm` before it sleeps, and `disarm` afterwards.
///
/// Two hosts at the ends of a pair of datagram sockets, with a frame in each datagram:
///
/// ```
/// use std::io;
/// use std::os::fd::OwnedFd;
/// use std::os::unix::net::UnixDatagram;
/// use towpath_net::{Armed, Config, Link, LinkError, LinkInfo, Meta, Network, Offload, UdpSocket};
///
/// struct End {
///     mac: [u8; 6],
///     socket: UnixDatagram,
///     received: Vec<Vec<u8>>,
///     accepted: Vec<Vec<u8>>,
/// }
///
/// impl Link for End {
///     fn info(&self) -> LinkInfo {
///         LinkInfo { mac: self.mac.into(), mtu: 1500, offload: Offload::default() }
///     }
///
///     fn sleep_fd(&self) -> io::Result<OwnedFd> {
///         Ok(self.socket.try_clone()?.into())
///     }
///
///     // Makes the system calls, so that `receive` needs none.
///     fn prepare(&mut self) -> Result<(), LinkError> {
///         let mut frame = [0; 1514];
///         loop {
///             match self.socket.recv(&mut frame) {
///                 Ok(len) => self.received.push(frame[..len].to_vec()),
///                 Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
///                 Err(error) => return Err(error.into()),
///             }
///         }
///     }
///
///     fn receive(
///         &mut self,
///         budget: usize,
///         take: &mut dyn FnMut(&[u8], Meta),
///     ) -> Result<usize, LinkError> {
///         let count = self.received.len().min(budget);
///         self.received.drain(..count).for_each(|frame| take(&frame, Meta::FULL));
///         Ok(count)
///     }
///
///     fn room(&mut self, _: usize) -> bool {
///         true
///     }
///
///     fn transmit(&mut self, len: usize, _: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool {
///         let mut frame = vec![0; len];
///         fill(&mut frame);
///         self.accepted.push(frame);
///         true
///     }
///
///     fn flush(&mut self) -> Result<(), LinkError> {
///         // A full socket loses the frame, as a wire may.
///         self.accepted.drain(..).for_each(|frame| drop(self.socket.send(&frame)));
///         Ok(())
///     }
///
///     // The descriptor is readable while a datagram waits, so no wake-up has to be requested.
///     fn arm(&mut self, _: bool) -> Result<Armed, LinkError> {
///         self.prepare()?;
///         let has_frames = !self.received.is_empty();
///         Ok(if has_frames { Armed::Work } else { Armed::Sleep { writable: false } })
///     }
/// }
///
/// fn host(socket: UnixDatagram, number: u8) -> io::Result<Network> {
///     socket.set_nonblocking(true)?;
///     let mac = [2, 0, 0, 0, 0, number];
///     let mut config = Config::new(mac);
///     config.ipv4 = Some(([10, 0, 0, number].into(), 24));
///     let end = End { mac, socket, received: Vec::new(), accepted: Vec::new() };
///     Network::builder().on(Box::new(end), config)
/// }
///
/// # fn main() -> io::Result<()> {
/// let (one, other) = UnixDatagram::pair()?;
/// let (one, other) = (host(one, 1)?, host(other, 2)?);
/// let receiver = UdpSocket::bind(&other, "10.0.0.2:7")?;
/// UdpSocket::bind(&one, "10.0.0.1:0")?.send_to(b"question", "10.0.0.2:7")?;
/// assert_eq!(receiver.recv(&mut [0; 8])?, 8);
/// # Ok(())
/// # }
/// ```
pub trait Link: Send {
    /// Returns the link's properties, which do not change.
    fn info(&self) -> LinkInfo;

    /// Returns a descriptor to sleep on, which is readable while frames wait and the link is armed.
    /// It is a copy, since one thread sleeps on it while others use the link.
    ///
    /// # Errors
    /// If the descriptor cannot be copied.
    fn sleep_fd(&self) -> std::io::Result<OwnedFd>;

    /// Makes the system calls, if any, that fetch received frames.
    ///
    /// # Errors
    /// If the link is dead.
    fn prepare(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Passes at most `budget` received frames to `take`, oldest first. Returns their number.
    ///
    /// # Errors
    /// If the link is dead.
    fn receive(
        &mut self,
        budget: usize,
        take: &mut dyn FnMut(&[u8], Meta),
    ) -> Result<usize, LinkError>;

    /// Returns whether frames have arrived, without a system call; `None` if the link cannot tell.
    /// Then no thread spins before it sleeps.
    ///
    /// # Errors
    /// If the link is dead.
    fn has_news(&mut self) -> Result<Option<bool>, LinkError> {
        Ok(None)
    }

    /// Returns `true` if the link has room for a frame of `len` bytes. An empty link must return
    /// `true` for the largest frame that [`LinkInfo::offload`] names.
    fn room(&mut self, len: usize) -> bool;

    /// Accepts a frame of `len` bytes, which `fill` writes completely. Returns `false` if there is
    /// no room. The link calls `fill` once, or not at all without room.
    fn transmit(&mut self, len: usize, meta: Meta, fill: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Sends the accepted frames, or notifies the process that sends them.
    ///
    /// # Errors
    /// If the link is dead.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Returns how many accepted frames, or pieces of frames, would be lost if the link ended now. By default 0, for a
    /// link that has sent all accepted frames once `flush` has returned.
    ///
    /// # Errors
    /// If the link is dead.
    fn unsent(&mut self) -> Result<usize, LinkError> {
        Ok(0)
    }

    /// Returns how many frames for this network were lost before [`Link::receive`] could return them: no
    /// receive buffer was free, or more frames arrived than the link takes at a time. The default, 0, is for a link that
    /// does not count them.
    fn lost(&self) -> u64 {
        0
    }

    /// Returns `true` if frames are sent in the order in which the link accepted them. By default `true`; a session with
    /// several lanes has a queue for each.
    fn sends_in_order(&self) -> bool {
        true
    }

    /// Requests a wake-up, then checks once more for frames. `blocked`: `true` if a frame waits for
    /// room.
    ///
    /// # Errors
    /// If the link is dead.
    fn arm(&mut self, blocked: bool) -> Result<Armed, LinkError>;

    /// Cancels the request for a wake-up.
    fn disarm(&mut self) {}

    /// Returns `true` if the network must open each local port before it uses the port.
    fn opens_ports(&self) -> bool {
        false
    }

    /// Opens a local port for a socket, or with port 0 one that the link chooses. Returns the
    /// socket's address with the port, and `true` if the port was not open before. A TCP port that
    /// is open already stays so; a UDP port counts its sockets.
    ///
    /// # Errors
    /// If the port is in use elsewhere, is not allowed, or the link is dead.
    fn open_port(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
    ) -> io::Result<(SocketAddr, bool)> {
        let _ = protocol;
        Ok((local, false))
    }

    /// Prepares to send and receive IGMP or MLD, before a socket joins a group of the family (`true`: IPv4). Links that need
    /// no preparation keep this default.
    ///
    /// # Errors
    /// If the reports are not allowed, or the link is dead.
    fn open_groups(&mut self, is_ipv4: bool) -> io::Result<()> {
        let _ = is_ipv4;
        Ok(())
    }

    /// Returns the next open port, with its protocol and `true` for IPv4, that the link has taken
    /// away since the last call. The network fails the sockets of the port, and closes it.
    fn next_revoked_port(&mut self) -> Option<(PortProtocol, bool, u16)> {
        None
    }

    /// Returns the link's part in the replacement of a network by another one. By default `None`: the link cannot be replaced.
    fn replacement(&mut self) -> Option<&mut dyn Replacement> {
        None
    }

    /// Closes a local port. A UDP port stays open while other sockets use it.
    fn close_port(&mut self, protocol: PortProtocol, local: SocketAddr) {
        let _ = (protocol, local);
    }
}
