//! Sockets in a `mio::Poll` (feature `mio`).
//!
//! `mio` knows descriptors only, and a socket of a [`Network`](crate::Network) has none. So a [`Socket`] makes an
//! eventfd, which `mio` watches by edges and no program reads; each event of the socket writes to it. Consequences:
//!
//! - An event says that something happened to the socket, in a direction of its registration. It does not say which:
//!   each event is readable, and also writable if the registration asks for that. Try the directions of the
//!   registration until `WouldBlock`, as with any edge.
//! - A closed direction and an error show in the call, and not in the event: `is_read_closed`, `is_write_closed` and
//!   `is_error` are always `false`.
//! - With [`Driving::Application`](crate::Driving::Application), no thread of the library drives the network: register the
//!   descriptor of [`Network::work_fd`](crate::Network::work_fd) by `mio::unix::SourceFd`, and call
//!   [`Network::turn`](crate::Network::turn) once at the start and at each of its events.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use mio::{Events, Interest, Poll, Token};
//! use towpath_net::mio::Socket;
//! use towpath_net::{Network, UdpSocket};
//!
//! let network = Network::attach("/run/towpath/eth0.sock")?;
//! let socket = UdpSocket::bind(&network, "0.0.0.0:7")?;
//! socket.set_nonblocking(true)?;
//! let mut socket = Socket::new(socket);
//! let mut poll = Poll::new()?;
//! poll.registry().register(&mut socket, Token(0), Interest::READABLE)?;
//! let mut events = Events::with_capacity(64);
//! let mut buffer = [0; 2048];
//! loop {
//!     poll.poll(&mut events, None)?;
//!     loop {
//!         match socket.recv_from(&mut buffer) {
//!             // Without room to send, the answer is lost, as on a wire.
//!             Ok((count, from)) => drop(socket.send_to(&buffer[..count], from)),
//!             Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
//!             Err(error) => return Err(error.into()),
//!         }
//!     }
//! }
//! # }
//! ```

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Registry, Token};
use rustix::event::EventfdFlags;

use crate::readiness::Interest;
use crate::watch::Source;

/// A socket that a `mio::Poll` can watch. Set it to be non-blocking. It gives access to the socket in it.
#[derive(Debug)]
pub struct Socket<S: Source> {
    socket: S,
    /// The eventfd that a poll watches.
    registered: Option<Arc<OwnedFd>>,
}

impl<S: Source> Socket<S> {
    /// Makes a socket for `mio` of a [`TcpStream`](crate::TcpStream), a [`TcpListener`](crate::TcpListener) or a
    /// [`UdpSocket`](crate::UdpSocket).
    ///
    /// ```
    /// # use towpath_net::UdpSocket;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use mio::{Events, Interest, Poll, Token};
    /// use towpath_net::mio::Socket;
    ///
    /// let mut socket = Socket::new(UdpSocket::bind(&host, "10.0.0.1:7")?);
    /// socket.set_nonblocking(true)?;
    /// let mut poll = Poll::new()?;
    /// poll.registry().register(&mut socket, Token(0), Interest::READABLE)?;
    /// socket.send_to(b"to this socket", "10.0.0.1:7")?;
    /// poll.poll(&mut Events::with_capacity(1), None)?;
    /// assert_eq!(socket.recv(&mut [0; 64])?, 14);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn new(socket: S) -> Socket<S> {
        Socket { socket, registered: None }
    }

    /// Has the socket's events write to a descriptor, in place of an earlier interest.
    fn watch(&self, descriptor: &Arc<OwnedFd>, interest: mio::Interest) -> io::Result<()> {
        let target = self.socket.socket_ref();
        target.network()?;
        let interest = of_mio(interest);
        let mut watchers = target.watchers();
        watchers.descriptors.retain(|(_, other)| !Arc::ptr_eq(other, descriptor));
        watchers.descriptors.push((interest, descriptor.clone()));
        drop(watchers);
        if !target.start_watching()?.of_interest(interest).is_empty() {
            rustix::io::write(descriptor, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Has no further event write to the descriptor.
    fn leave(&self, descriptor: &Arc<OwnedFd>) {
        let target = self.socket.socket_ref();
        if target.network().is_ok() {
            let mut watchers = target.watchers();
            watchers.descriptors.retain(|(_, other)| !Arc::ptr_eq(other, descriptor));
        }
    }
}

/// Returns the interest in an eventfd: the kernel tells of a write only those that watch for reading.
fn edges(interest: mio::Interest) -> mio::Interest {
    interest | mio::Interest::READABLE
}

/// Returns the interest of the same directions.
fn of_mio(interest: mio::Interest) -> Interest {
    let mut all = [
        (interest.is_readable(), Interest::READABLE),
        (interest.is_writable(), Interest::WRITABLE),
        (interest.is_priority(), Interest::PRIORITY),
    ]
    .into_iter()
    .filter_map(|(is_wanted, one)| is_wanted.then_some(one));
    // The other interests of `mio` exist only on BSD.
    let first = all.next().unwrap_or(Interest::READABLE);
    all.fold(first, |all, one| all | one)
}

impl<S: Source> mio::event::Source for Socket<S> {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interest: mio::Interest,
    ) -> io::Result<()> {
        if self.registered.is_some() {
            let text = "the socket is registered already; use reregister to change that";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        self.socket.socket_ref().network()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = Arc::new(rustix::event::eventfd(0, flags)?);
        registry.register(&mut SourceFd(&descriptor.as_raw_fd()), token, edges(interest))?;
        if let Err(error) = self.watch(&descriptor, interest) {
            self.leave(&descriptor);
            let _ = registry.deregister(&mut SourceFd(&descriptor.as_raw_fd()));
            return Err(error);
        }
        self.registered = Some(descriptor);
        Ok(())
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interest: mio::Interest,
    ) -> io::Result<()> {
        let descriptor = self.registered.as_ref().ok_or_else(not_registered)?;
        registry.reregister(&mut SourceFd(&descriptor.as_raw_fd()), token, edges(interest))?;
        self.watch(descriptor, interest)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        let descriptor = self.registered.take().ok_or_else(not_registered)?;
        self.leave(&descriptor);
        registry.deregister(&mut SourceFd(&descriptor.as_raw_fd()))
    }
}

fn not_registered() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the socket is not registered")
}

impl<S: Source> Drop for Socket<S> {
    fn drop(&mut self) {
        if let Some(descriptor) = self.registered.take() {
            self.leave(&descriptor);
        }
    }
}

impl<S: Source> Deref for Socket<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.socket
    }
}

impl<S: Source> DerefMut for Socket<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.socket
    }
}
