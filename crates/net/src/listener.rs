//! The counterpart of `std::net::TcpListener`.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use towpath_stack::{ListenerId, SocketId};

use crate::driver::Core;
use crate::lock::lock;
use crate::options::{Options, each};
use crate::poller::Poller;
use crate::wait::Waiter;
use crate::{Network, PortProtocol, TcpStream, error};

/// The default limit of connections that wait to be accepted; [`TcpListener::bind_with`] sets
/// another limit.
const BACKLOG: usize = 1024;

/// A listener of a [`Network`], used like `std::net::TcpListener`.
pub struct TcpListener {
    inner: Arc<Inner>,
}

struct Inner {
    network: Network,
    id: ListenerId,
    waiter: Arc<Waiter>,
    options: Options,
}

impl TcpListener {
    /// Listens at an address of the network.
    ///
    /// # Errors
    /// If the address is not the network's, in use, or not allowed to this application.
    pub fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind_with(network, local, BACKLOG)
    }

    /// Listens as [`TcpListener::bind`] does, with at most the given number of connections waiting
    /// to be accepted.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind_with(
        network: &Network,
        local: impl ToSocketAddrs,
        backlog: usize,
    ) -> io::Result<TcpListener> {
        each(local, |local| {
            let listen = |core: &mut Core, _, local| core.stack.tcp_listen(local, backlog);
            let id = network.shared().with_port(PortProtocol::Tcp, local, listen)?;
            let waiter = network.register(SocketId::Listener(id));
            let options = Options::default();
            let inner = Inner { network: network.clone(), id, waiter, options };
            Ok(TcpListener { inner: Arc::new(inner) })
        })
    }

    /// Accepts the oldest waiting connection.
    ///
    /// Several threads may wait in this call, on one handle or on clones: each connection wakes one
    /// of them.
    ///
    /// # Errors
    /// If no connection waits and the listener is non-blocking, or if the link is dead.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Inner { network, id, waiter, options } = &*self.inner;
        let mut more = false;
        let accepted = network.shared().block_on(waiter, options.reading(), false, |stack, _| {
            let accepted = stack.tcp_accept(*id);
            more = stack.tcp_listener_readiness(*id).is_ok_and(|ready| ready.readable);
            accepted
        });
        // The stack has reported all waiting connections together, to this thread.
        if more {
            waiter.wake_one();
        }
        accepted.map(|(id, peer)| (TcpStream::new(network, id), peer))
    }

    /// Returns an endless iterator over accepted connections.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Returns the listener's local address.
    ///
    /// # Errors
    /// Never, while the listener lives.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.inner.network.shared().core().stack.tcp_listener_local(self.inner.id);
        local.map_err(error::socket)
    }

    /// Sets non-blocking mode, in which an accept that would have to wait fails with
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// Never.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.options.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Returns another handle to the same listener.
    ///
    /// # Errors
    /// Never.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener { inner: self.inner.clone() })
    }

    /// Registers the listener with a poller. If a connection already waits, the poller has an event
    /// at once.
    ///
    /// # Errors
    /// Never, while the listener lives.
    pub fn watch(&self, poller: &Poller, token: u64) -> io::Result<()> {
        let registration = poller.registration(token);
        let mut core = self.inner.network.shared().core();
        let ready = core.stack.tcp_listener_readiness(self.inner.id).map_err(error::socket)?;
        if ready.readable {
            registration.ready();
        }
        core.standby.polled = true;
        *lock(&self.inner.waiter.registration) = Some(registration);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.network.unregister(SocketId::Listener(self.id));
        let _ = self.network.shared().with(|core, now| core.stack.tcp_close_listener(now, self.id));
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
}
