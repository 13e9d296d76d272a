//! The counterpart of `tokio::net::TcpStream`.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::ToSocketAddrs;

use super::names::addresses;
use crate::Network;
use crate::readiness::{Interest, Ready};
use crate::tasks::{poll_io, repeat, wait_ready};
use crate::watch::private::Watchable;
use crate::watchers::TaskDirection;

/// A TCP connection of a [`Network`], used like `tokio::net::TcpStream`.
///
/// Its options are those of the [`TcpStream`](crate::TcpStream) that [`TcpStream::get_ref`] returns.
#[derive(Debug)]
pub struct TcpStream {
    stream: crate::TcpStream,
}

impl TcpStream {
    /// Connects to a peer.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// stream.write_all(b"question").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no route leads to the address, no socket listens there or the peer does not answer; if the application has
    /// no port left.
    pub async fn connect(network: &Network, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let mut last = None;
        for address in addresses(network, to).await? {
            match TcpStream::connect_one(network, address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(crate::options::no_address))
    }

    async fn connect_one(network: &Network, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::new(crate::TcpStream::connect_nonblocking(network, to)?)?;
        stream.writable().await?;
        match stream.stream.take_error()? {
            None => Ok(stream),
            Some(error) => Err(error),
        }
    }

    /// Makes a stream of tasks of one that was configured by other calls. It may still be connecting.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// let (from, to) = ("0.0.0.0:179".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
    /// let stream = towpath_net::TcpStream::connect_nonblocking_from(&host, from, to)?;
    /// stream.set_nodelay(true)?;
    /// let stream = TcpStream::new(stream)?;
    /// stream.writable().await?;
    /// assert!(stream.get_ref().is_connected()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub fn new(stream: crate::TcpStream) -> io::Result<TcpStream> {
        stream.set_nonblocking(true)?;
        stream.socket_ref().start_watching()?;
        Ok(TcpStream { stream })
    }

    /// Returns the non-blocking stream, which shares its data and options with this one.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// // The options are those of the other stream.
    /// stream.get_ref().set_nodelay(true)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get_ref(&self) -> &crate::TcpStream {
        &self.stream
    }

    /// Returns the non-blocking stream.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// let stream = stream.into_inner();
    /// // For a thread that blocks.
    /// stream.set_nonblocking(false)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn into_inner(self) -> crate::TcpStream {
        self.stream
    }

    /// Waits until the stream is ready for something that the interest concerns.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// use towpath_net::Interest;
    ///
    /// let ready = stream.ready(Interest::READABLE | Interest::WRITABLE).await?;
    /// // The peer has sent nothing, and there is room.
    /// assert!(ready.is_writable() && !ready.is_readable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Forked`](crate::LinkError::Forked).
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        wait_ready(self.stream.socket_ref(), interest).await
    }

    /// Waits until a read does not wait.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// stream.write_all(b"question").await?;
    /// accepted.readable().await?;
    /// assert_eq!(accepted.try_read(&mut [0; 64])?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::ready`].
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(|_| ())
    }

    /// Waits until a write does not wait.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// stream.writable().await?;
    /// let written = stream.try_write(b"question")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::ready`].
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(|_| ())
    }

    /// Reads without waiting.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// let error = stream.try_read(&mut [0; 64]).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without data; as reading.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(buffer)
    }

    /// Writes without waiting.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// // The buffer for sent data has room.
    /// assert_eq!(stream.try_write(b"question")?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without room; as writing.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        (&self.stream).write(data)
    }

    /// Copies the next data without removing it.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// stream.write_all(b"question").await?;
    /// let mut first = [0; 1];
    /// accepted.peek(&mut first).await?;
    /// assert_eq!(&first, b"q");
    /// // The byte is still there.
    /// accepted.read_exact(&mut [0; 8]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As reading.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        repeat(self.stream.socket_ref(), Interest::READABLE, || self.stream.peek(buffer)).await
    }

    /// Returns the peer's address.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// assert_eq!(stream.peer_addr()?, "10.0.0.1:80".parse().unwrap());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::peer_addr`](crate::TcpStream::peer_addr).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Returns this side's address.
    ///
    /// ```
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # use towpath_net::tokio::{TcpListener, TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = TcpListener::bind(&host, "10.0.0.1:80").await?;
    /// # let mut stream = TcpStream::connect(&host, "10.0.0.1:80").await?;
    /// # let (mut accepted, _) = listener.accept().await?;
    /// assert_eq!(stream.local_addr()?, accepted.peer_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::local_addr`](crate::TcpStream::local_addr).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    pub(super) fn poll_read_by(
        &self,
        context: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = || (&self.stream).read(buffer.initialize_unfilled());
        poll_io(&self.stream.socket_ref(), context, TaskDirection::Read, read)
            .map(|count| count.map(|count| buffer.advance(count)))
    }

    pub(super) fn poll_write_by(
        &self,
        context: &Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        poll_io(&self.stream.socket_ref(), context, TaskDirection::Write, || {
            (&self.stream).write(data)
        })
    }

    pub(super) fn poll_write_parts_by(
        &self,
        context: &Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = || (&self.stream).write_vectored(parts);
        poll_io(&self.stream.socket_ref(), context, TaskDirection::Write, write)
    }

    pub(super) fn shut_down(&self) -> io::Result<()> {
        match self.stream.shutdown(Shutdown::Write) {
            // The connection is over: there is nothing left to shut down.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    /// Checks that this process was not forked, which is all that flushing has to do: the stack sends without it.
    pub(super) fn flushed(&self) -> io::Result<()> {
        self.stream.socket_ref().network().map(|_| ())
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_by(context, buffer)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by(context, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts_by(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.flushed())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut_down())
    }
}
