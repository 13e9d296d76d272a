//! The counterpart of `tokio::net::TcpListener`.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use tokio::net::ToSocketAddrs;

use super::names::each;
use super::stream::TcpStream;
use crate::Network;
use crate::readiness::Interest;
use crate::tasks::{poll_io, repeat};
use crate::watch::private::Watchable;
use crate::watchers::TaskDirection;

/// A listener of a [`Network`], used like `tokio::net::TcpListener`.
#[derive(Debug)]
pub struct TcpListener {
    listener: crate::TcpListener,
}

impl TcpListener {
    /// Listens at an address of the network: see [`TcpListener::bind`](crate::TcpListener::bind).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::tokio::TcpListener;
    ///
    /// let listener = TcpListener::bind(&host, "0.0.0.0:80").await?;
    /// assert_eq!(listener.local_addr()?.port(), 80);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the address is not the network's, in use, or not allowed to this application.
    pub async fn bind(network: &Network, local: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let bind = |local| TcpListener::new(crate::TcpListener::bind(network, local)?);
        each(network, local, bind).await
    }

    /// Makes a listener of tasks of one that was configured by other calls.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::BindOptions;
    /// use towpath_net::tokio::TcpListener;
    ///
    /// let mut options = BindOptions::default();
    /// options.backlog = 16;
    /// let listener = towpath_net::TcpListener::bind_with(&host, "0.0.0.0:80", options)?;
    /// let listener = TcpListener::new(listener)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn new(listener: crate::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(true)?;
        listener.socket_ref().start_watching()?;
        Ok(TcpListener { listener })
    }

    /// Returns the non-blocking listener, which shares its readiness and options with this one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// // The options are those of the other listener.
    /// listener.get_ref().set_ttl(255)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get_ref(&self) -> &crate::TcpListener {
        &self.listener
    }

    /// Returns the non-blocking listener.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// let listener = listener.into_inner();
    /// // For a thread that blocks.
    /// listener.set_nonblocking(false)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn into_inner(self) -> crate::TcpListener {
        self.listener
    }

    /// Accepts the oldest waiting connection. Several tasks may wait; a connection wakes all of them, and one gets it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// let stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// let (_accepted, peer) = listener.accept().await?;
    /// assert_eq!(peer, stream.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the link is dead, or the port was revoked.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted =
            repeat(self.listener.socket_ref(), Interest::READABLE, || self.listener.accept());
        let (stream, peer) = accepted.await?;
        Ok((TcpStream::new(stream)?, peer))
    }

    /// Accepts a connection, for one task at a time: the last one that polled is woken.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// use std::future::poll_fn;
    ///
    /// let stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// let (_accepted, peer) = poll_fn(|context| listener.poll_accept(context)).await?;
    /// assert_eq!(peer, stream.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accept = || self.listener.accept();
        let accepted = poll_io(&self.listener.socket_ref(), context, TaskDirection::Read, accept);
        accepted.map(|accepted| {
            let (stream, peer) = accepted?;
            Ok((TcpStream::new(stream)?, peer))
        })
    }

    /// Returns the listener's local address.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// use towpath_net::tokio::TcpListener;
    ///
    /// let listener = TcpListener::bind(&host, "10.0.0.1:0").await?;
    /// println!("listening at port {}", listener.local_addr()?.port());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(feature = "axum")]
impl axum::serve::Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    /// Accepts the next connection. `axum` has no way to pass on an error, so after one (a dead link, a revoked port, a
    /// fork) this call never returns. End the service by `with_graceful_shutdown`, or when the task that drives the network
    /// ends.
    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        match TcpListener::accept(self).await {
            Ok(accepted) => accepted,
            Err(_) => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
