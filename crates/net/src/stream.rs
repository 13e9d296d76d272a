//! The counterpart of `std::net::TcpStream`.

mod closing;
mod settings;
mod transfer;

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::{SocketError, SocketId, Stack, TcpId};

use crate::options::{Options, each};
use crate::readiness::Ready;
use crate::wait::{Patience, Waiter};
use crate::watch::private::Watchable;
use crate::watch::{SocketRef, Source};
use crate::{Network, PortProtocol, error, options};

/// The maximum number of bytes copied at once, during which the thread holds the stack's lock.
const CHUNK: usize = 128 * 1024;

/// A TCP connection of a [`Network`], used like `std::net::TcpStream`.
///
/// Threads may share a stream: one thread reads while another one writes.
///
/// Dropping the last handle closes the connection in the background. The stack still sends written
/// data while the network lives ([`Network::drain`]); [`TcpStream::set_linger`] makes the drop wait
/// for that, or reset the connection. A drop with received data that was not read resets it, too.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::{Read, Write};
/// use std::time::Duration;
/// use towpath_net::{Network, TcpStream};
///
/// let network = Network::attach("/run/towpath/eth0.sock")?;
/// let mut stream = TcpStream::connect(&network, "10.77.0.1:80")?;
/// stream.set_read_timeout(Some(Duration::from_secs(5)))?;
/// stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
/// let mut response = Vec::new();
/// stream.read_to_end(&mut response)?;
/// # Ok(())
/// # }
/// ```
pub struct TcpStream {
    inner: Arc<Inner>,
}

struct Inner {
    network: Network,
    id: TcpId,
    waiter: Arc<Waiter>,
    options: Options,
    /// `true` if dropping the stream may wait.
    lingers: AtomicBool,
}

impl TcpStream {
    pub(crate) fn new(network: &Network, id: TcpId) -> TcpStream {
        let waiter = network.register(SocketId::Tcp(id));
        let options = Options::default();
        let lingers = AtomicBool::new(false);
        TcpStream {
            inner: Arc::new(Inner { network: network.clone(), id, waiter, options, lingers }),
        }
    }

    /// Connects to a peer.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// stream.write_all(b"question")?;
    /// // No socket listens at this port, so the peer resets the connection.
    /// let error = TcpStream::connect(&client, "10.0.0.1:81").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If no route leads to the address, no socket listens there or the peer does not answer; if
    /// the application has no port left.
    pub fn connect(network: &Network, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        each(network, to, |to| Self::start(network, None, to, (None, Patience::Forever)))
    }

    /// Connects to a peer, and waits at most `timeout`.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// use std::time::Duration;
    ///
    /// // The server vanishes without a sign.
    /// server.end(Duration::ZERO);
    /// let address = "10.0.0.1:80".parse().unwrap();
    /// let outcome = TcpStream::connect_timeout(&client, &address, Duration::from_millis(10));
    /// assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; [`io::ErrorKind::TimedOut`] if the peer did not answer in time;
    /// [`io::ErrorKind::InvalidInput`] if the timeout is zero.
    pub fn connect_timeout(
        network: &Network,
        to: &SocketAddr,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        options::not_zero(Some(timeout), "use connect_nonblocking")?;
        let until = StdInstant::now().checked_add(timeout);
        let patience = until.map_or(Patience::Forever, Patience::Until);
        Self::start(network, None, *to, (Some(timeout), patience))
    }

    /// Connects to a peer from a local address and port, as `bind` before `connect` does. With port 0, or with the
    /// unspecified address, the stack chooses that part.
    ///
    /// ```no_run
    /// use towpath_net::{Network, TcpStream};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let network = Network::attach("/run/towpath/eth0.sock")?;
    /// let stream = TcpStream::connect_from(&network, "0.0.0.0:179".parse()?, "192.0.2.1:179".parse()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; [`io::ErrorKind::AddrInUse`] if a listener, or a connection to the same peer, has the port;
    /// [`io::ErrorKind::AddrNotAvailable`] if the network does not have the address; [`io::ErrorKind::InvalidInput`] if the
    /// two addresses are of different families.
    pub fn connect_from(
        network: &Network,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<TcpStream> {
        Self::start(network, Some(from), to, (None, Patience::Forever))
    }

    /// Starts to connect without waiting: the stream is writable once connected. The stream is
    /// non-blocking; [`TcpStream::set_nonblocking`] changes that.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_net::{Events, Interest, Network, Poller, TcpStream, Trigger};
    ///
    /// let network = Network::attach("/run/towpath/eth0.sock")?;
    /// let stream = TcpStream::connect_nonblocking(&network, "10.77.0.1:80".parse()?)?;
    /// let poller = Poller::new()?;
    /// poller.register(&stream, 0, Interest::WRITABLE, Trigger::Edge)?;
    /// poller.wait(&mut Events::default(), None)?;
    /// // The connection's error, if it failed.
    /// if let Some(error) = stream.take_error()? {
    ///     return Err(error.into());
    /// }
    /// println!("connected to {}", stream.peer_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no route leads to the address.
    pub fn connect_nonblocking(network: &Network, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::new(network, Self::begin(network, None, to, None)?);
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Starts to connect as [`TcpStream::connect_nonblocking`] does, from a local address and port.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// let (from, to) = ("0.0.0.0:179".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
    /// let stream = TcpStream::connect_nonblocking_from(&client, from, to)?;
    /// let (_accepted, peer) = listener.accept()?;
    /// assert_eq!((peer, stream.local_addr()?), ("10.0.0.2:179".parse().unwrap(), peer));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::connect_from`], if this is known at once.
    pub fn connect_nonblocking_from(
        network: &Network,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<TcpStream> {
        let stream = TcpStream::new(network, Self::begin(network, Some(from), to, None)?);
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Starts a connection. By default, the network chooses the local port.
    fn begin(
        network: &Network,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Option<Duration>,
    ) -> io::Result<TcpId> {
        if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
            return Err(error::socket(SocketError::InvalidAddress));
        }
        // The peer may be an IPv4 host by its IPv6 address.
        let any = match to.ip().to_canonical() {
            IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
            IpAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
        };
        let is_mapped = to.is_ipv6() && any.is_ipv4();
        let from = from.map(|from| match from.ip() {
            ip if is_mapped && ip.is_unspecified() => SocketAddr::new(any.ip(), from.port()),
            ip => SocketAddr::new(ip.to_canonical(), from.port()),
        });
        network.checked()?.with_port(
            PortProtocol::Tcp,
            from.unwrap_or(any),
            false,
            |core, now, local| {
                // The stack chooses the port unless the link has.
                let local = (from.is_some() || local.port() != 0).then_some(local);
                core.stack.tcp_connect(now, to, local, timeout)
            },
        )
    }

    fn start(
        network: &Network,
        from: Option<SocketAddr>,
        to: SocketAddr,
        (timeout, patience): (Option<Duration>, Patience),
    ) -> io::Result<TcpStream> {
        let stream = TcpStream::new(network, Self::begin(network, from, to, timeout)?);
        let inner = &stream.inner;
        let made = network.checked()?.block_on(&inner.waiter, patience, true, |stack, _| {
            let ready = stack.tcp_readiness(inner.id)?;
            if let Some(error) = stack.tcp_take_error(inner.id)? {
                return Err(error);
            }
            if ready.writable { Ok(()) } else { Err(SocketError::WouldBlock) }
        });
        match made {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(error::socket(SocketError::TimedOut))
            }
            made => made.map(|()| stream),
        }
    }

    fn stack<R>(
        &self,
        f: impl FnOnce(&mut Stack, TcpId) -> Result<R, SocketError>,
    ) -> io::Result<R> {
        let id = self.inner.id;
        self.inner.network.checked()?.with(|core, _| f(&mut core.stack, id)).map_err(error::socket)
    }

    fn receive(&self, buffer: &mut [u8], peek: bool) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = &*self.inner;
        let shared = network.checked()?;
        if buffer.is_empty() {
            return Ok(0);
        }
        let len = buffer.len().min(2 * CHUNK);
        let buffer = &mut buffer[..len];
        shared.block_on(waiter, options.reading(), false, |stack, now| {
            if peek { stack.tcp_peek(now, *id, buffer) } else { stack.tcp_recv(now, *id, buffer) }
        })
    }

    fn transmit(&self, data: &[u8]) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = &*self.inner;
        let data = &data[..data.len().min(CHUNK)];
        network
            .checked()?
            .block_on(waiter, options.writing(), true, |stack, _| stack.tcp_send(*id, data))
    }

    /// Writes data that is urgent up to its end (RFC 9293, 3.8.5): the peer learns of it also while
    /// its window is closed. The data stays in the stream. New protocols should not use it
    /// (RFC 6093, 5).
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// stream.write_all(b"lines")?;
    /// stream.send_urgent(b"!")?;
    /// let mut bytes = [0; 6];
    /// accepted.read_exact(&mut bytes)?;
    /// assert_eq!(&bytes, b"lines!");
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As writing.
    pub fn send_urgent(&self, data: &[u8]) -> io::Result<usize> {
        let Inner { network, id, waiter, options, .. } = &*self.inner;
        let data = &data[..data.len().min(CHUNK)];
        network
            .checked()?
            .block_on(waiter, options.writing(), true, |stack, _| stack.tcp_send_urgent(*id, data))
    }

    /// Returns the number of bytes to read until the end of the peer's urgent data; `None` without
    /// urgent data. Reads return urgent data like any other, in order.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// assert_eq!(accepted.urgent()?, None);
    /// stream.send_urgent(b"stop")?;
    /// accepted.peek(&mut [0; 1])?;
    /// // The urgent data ends with the fourth byte from here.
    /// assert_eq!(accepted.urgent()?, Some(4));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn urgent(&self) -> io::Result<Option<usize>> {
        self.stack(Stack::tcp_urgent)
    }

    /// Copies the next data without removing it.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// stream.write_all(b"question")?;
    /// let mut first = [0; 1];
    /// accepted.peek(&mut first)?;
    /// let mut all = [0; 8];
    /// accepted.read_exact(&mut all)?;
    /// assert_eq!((first[0], &all), (b'q', b"question"));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As reading.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer, true)
    }

    /// Returns the peer's address.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// assert_eq!(stream.peer_addr()?, "10.0.0.1:80".parse().unwrap());
    /// assert_eq!(accepted.peer_addr()?, stream.local_addr()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] before the peer has answered a connect, and once the connection is over: after a
    /// reset, or once both sides have ended their direction.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stack(Stack::tcp_peer)
    }

    /// Returns this side's address.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// let own = stream.local_addr()?;
    /// assert_eq!(own.ip().to_string(), "10.0.0.2");
    /// println!("the network chose port {}", own.port());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.stack(Stack::tcp_addresses)?.0)
    }

    /// Closes one direction or both. The stack still sends data written before. While the stream connects, the call ends
    /// the attempt, and the next read or write fails with [`io::ErrorKind::ConnectionReset`].
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// use std::net::Shutdown;
    ///
    /// stream.write_all(b"all that this side sends")?;
    /// stream.shutdown(Shutdown::Write)?;
    /// let mut received = Vec::new();
    /// accepted.read_to_end(&mut received)?;
    /// // The other direction is still open.
    /// accepted.write_all(b"answer")?;
    /// assert_eq!(stream.read(&mut [0; 8])?, 6);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If there is no connection any more.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => towpath_stack::Shutdown::Read,
            Shutdown::Write => towpath_stack::Shutdown::Write,
            Shutdown::Both => towpath_stack::Shutdown::Both,
        };
        let id = self.inner.id;
        let shared = self.inner.network.checked()?;
        shared.with(|core, now| core.stack.tcp_shutdown(now, id, how)).map_err(error::socket)
    }

    /// Ends the connection at once, with a reset. Unsent data is lost.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// stream.abort();
    /// let error = accepted.read(&mut [0; 8]).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn abort(self) {
        let Inner { network, id, waiter, .. } = &*self.inner;
        if let Ok(shared) = network.checked() {
            let _ = shared.with(|core, now| core.stack.tcp_abort(now, *id));
            waiter.tell(Ready::DEAD);
        }
    }

    /// Returns another handle to the same connection.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// let mut reader = accepted.try_clone()?;
    /// let thread = std::thread::spawn(move || reader.read(&mut [0; 8]));
    /// // This thread writes meanwhile.
    /// accepted.write_all(b"answer")?;
    /// stream.write_all(b"question")?;
    /// assert_eq!(thread.join().unwrap()?, 8);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        self.inner.network.checked()?;
        Ok(TcpStream { inner: self.inner.clone() })
    }
}

impl Source for TcpStream {}

impl Watchable for TcpStream {
    fn socket_ref(&self) -> SocketRef<'_> {
        let Inner { network, id, waiter, .. } = &*self.inner;
        SocketRef::new(network, SocketId::Tcp(*id), waiter)
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStream")
            .field("local", &self.local_addr().ok())
            .field("peer", &self.peer_addr().ok())
            .finish()
    }
}
