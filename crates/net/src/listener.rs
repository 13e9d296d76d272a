//! The counterpart of `std::net::TcpListener`.

use std::io;
use std::iter::FusedIterator;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use towpath_stack::{ListenerId, SocketId};

use crate::driver::Core;
use crate::options::{self, BindOptions, Options, each};
use crate::wait::Waiter;
use crate::watch::private::Watchable;
use crate::watch::{SocketRef, Source};
use crate::{Network, PortProtocol, TcpStream, error};

/// The stack's default time to live.
const DEFAULT_TTL: u8 = 64;

/// A listener of a [`Network`], used like `std::net::TcpListener`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::Write;
/// use towpath_net::{Network, TcpListener};
///
/// let network = Network::attach("/run/towpath/eth0.sock")?;
/// let listener = TcpListener::bind(&network, "0.0.0.0:13")?;
/// loop {
///     let (mut stream, peer) = listener.accept()?;
///     // The peer may be gone already.
///     let _ = writeln!(stream, "you are {peer}");
/// }
/// # }
/// ```
pub struct TcpListener {
    inner: Arc<Inner>,
}

struct Inner {
    network: Network,
    id: ListenerId,
    waiter: Arc<Waiter>,
    options: Options,
    /// The time to live of accepted connections' packets.
    ttl: AtomicU8,
}

impl TcpListener {
    /// Listens at an address of the network. An unspecified address stands for all addresses of its
    /// family. A listener at `[::]` also accepts connections of IPv4 hosts, whose addresses then have the prefix
    /// `::ffff:0:0/96` ([`BindOptions::only_v6`]). Port 0 is any free port.
    ///
    /// A port is free unless a listener has it: connections of an earlier listener, also those in
    /// TIME-WAIT, do not hinder a new one, as with `std::net` on Unix, which sets `SO_REUSEADDR`.
    ///
    /// ```
    /// # use towpath_net::TcpListener;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// // Both families: IPv4 peers have addresses such as ::ffff:10.0.0.2.
    /// let listener = TcpListener::bind(&host, "[::]:80")?;
    /// let error = TcpListener::bind(&host, "10.0.0.1:80").unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the address is not the network's, in use, or not allowed to this application.
    pub fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind_with(network, local, BindOptions::default())
    }

    /// Listens as [`TcpListener::bind`] does, with options.
    ///
    /// ```
    /// # use towpath_net::TcpListener;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::BindOptions;
    ///
    /// let mut options = BindOptions::default();
    /// options.backlog = 16;
    /// options.reuse_port = true;
    /// // For two threads, each with a listener of its own.
    /// let first = TcpListener::bind_with(&host, "0.0.0.0:80", options)?;
    /// let second = TcpListener::bind_with(&host, "0.0.0.0:80", options)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind_with(
        network: &Network,
        local: impl ToSocketAddrs,
        options: BindOptions,
    ) -> io::Result<TcpListener> {
        each(network, local, |local| {
            let listen = |core: &mut Core, _, local| {
                core.replacing.check()?;
                core.stack.tcp_listen_with(local, options.mode(), options.backlog)
            };
            let is_dual = options.mode().is_dual;
            let id = network.checked()?.with_port(PortProtocol::Tcp, local, is_dual, listen)?;
            let waiter = network.register(SocketId::Listener(id));
            let (options, ttl) = (Options::default(), AtomicU8::new(DEFAULT_TTL));
            let inner = Inner { network: network.clone(), id, waiter, options, ttl };
            Ok(TcpListener { inner: Arc::new(inner) })
        })
    }

    /// Returns the listener's state, unless this process is a child made by `fork`.
    fn checked(&self) -> io::Result<&Inner> {
        self.inner.network.checked()?;
        Ok(&self.inner)
    }

    /// Accepts the oldest waiting connection.
    ///
    /// Several threads may wait in this call, on one handle or on clones: each connection wakes one
    /// of them.
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// let stream = TcpStream::connect(&host, "10.0.0.1:80")?;
    /// let (_accepted, peer) = listener.accept()?;
    /// assert_eq!(peer, stream.local_addr()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If no connection waits and the listener is non-blocking, or if the link is dead.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Inner { network, id, waiter, options, ttl } = &*self.inner;
        let shared = network.checked()?;
        let mut more = false;
        let ttl = ttl.load(Ordering::Relaxed);
        let accepted = shared.block_on(waiter, options.reading(), false, |stack, _| {
            let accepted = stack.tcp_accept(*id);
            more = stack.tcp_listener_readiness(*id).is_ok_and(|ready| ready.readable);
            if let Ok((stream, _)) = accepted {
                stack.tcp_set_hop_limit(stream, ttl)?;
            }
            accepted
        });
        // The stack has reported all waiting connections together, to this thread.
        if more {
            waiter.wake_one();
        }
        accepted.map(|(id, peer)| (TcpStream::new(network, id), peer))
    }

    /// Returns an endless iterator over accepted connections.
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// let _stream = TcpStream::connect(&host, "10.0.0.1:80")?;
    /// for accepted in listener.incoming() {
    ///     println!("{}", accepted?.peer_addr()?);
    ///     # break;
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Turns the listener into an endless iterator over accepted connections.
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// let _stream = TcpStream::connect(&host, "10.0.0.1:80")?;
    /// // The iterator owns the listener, so a thread can have it.
    /// let mut incoming = listener.into_incoming();
    /// let thread = std::thread::spawn(move || incoming.next().unwrap()?.peer_addr());
    /// println!("{}", thread.join().unwrap()?);
    /// # std::io::Result::Ok(())
    /// ```
    #[must_use]
    pub fn into_incoming(self) -> IntoIncoming {
        IntoIncoming { listener: self }
    }

    /// Returns the listener's local address.
    ///
    /// ```
    /// # use towpath_net::TcpListener;
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// let listener = TcpListener::bind(&host, "10.0.0.1:0")?;
    /// println!("listening at port {}", listener.local_addr()?.port());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the listener lives.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.inner.network.checked()?.core().stack.tcp_listener_local(self.inner.id);
        local.map_err(error::socket)
    }

    /// Sets non-blocking mode, in which an accept that would have to wait fails with
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// listener.set_nonblocking(true)?;
    /// let error = listener.accept().unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.checked()?.options.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6) of the packets of connections accepted from
    /// now on. Default 64. The answer to a SYN always has 64.
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// listener.set_ttl(255)?;
    /// let _stream = TcpStream::connect(&host, "10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.0.ttl()?, 255);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If it is outside 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.checked()?.ttl.store(options::hop_limit(ttl)?, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the value set by [`TcpListener::set_ttl`].
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// assert_eq!(listener.ttl()?, 64);
    /// listener.set_ttl(32)?;
    /// assert_eq!(listener.ttl()?, 32);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.checked()?.ttl.load(Ordering::Relaxed).into())
    }

    /// Takes the pending error: always `None`, since a listener has none. [`TcpListener::accept`]
    /// returns the error of a dead link or a revoked port, and continues to do so.
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// assert!(listener.take_error()?.is_none());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.checked().map(|_| None)
    }

    /// Returns another handle to the same listener.
    ///
    /// ```
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80")?;
    /// let _stream = TcpStream::connect(&host, "10.0.0.1:80")?;
    /// let handle = listener.try_clone()?;
    /// // A connection is for one of the two handles.
    /// handle.accept()?;
    /// listener.set_nonblocking(true)?;
    /// assert!(listener.accept().is_err());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        self.checked()?;
        Ok(TcpListener { inner: self.inner.clone() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(shared) = self.network.unregister(SocketId::Listener(self.id)) {
            let _ = shared.with(|core, now| core.stack.tcp_close_listener(now, self.id));
        }
    }
}

impl Source for TcpListener {}

impl Watchable for TcpListener {
    fn socket_ref(&self) -> SocketRef<'_> {
        let Inner { network, id, waiter, .. } = &*self.inner;
        SocketRef::new(network, SocketId::Listener(*id), waiter)
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local_addr().ok()).finish()
    }
}

/// An iterator over accepted connections: [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

impl FusedIterator for Incoming<'_> {}

/// An iterator over accepted connections that owns the listener: [`TcpListener::into_incoming`].
#[derive(Debug)]
pub struct IntoIncoming {
    listener: TcpListener,
}

impl Iterator for IntoIncoming {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

impl FusedIterator for IntoIncoming {}
