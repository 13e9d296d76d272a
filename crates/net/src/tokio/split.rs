//! The two halves of a split stream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::TcpStream;

/// The reading half of a stream that is split for one task: [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The writing half of a stream that is split for one task: [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// The reading half of a stream that is split for two tasks: [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// The writing half of a stream that is split for two tasks: [`TcpStream::into_split`]. Its drop closes this side's
/// direction.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<TcpStream>,
    /// `true` if the drop closes the direction.
    closes: bool,
}

/// Two halves that are not of the same stream.
#[derive(Debug, thiserror::Error)]
#[error("the halves are of different streams")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl TcpStream {
    /// Splits the stream into borrowed halves, for one task.
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
    /// # stream.shutdown().await?;
    /// let (mut reader, mut writer) = accepted.split();
    /// // Both halves in one task: each byte goes back to the peer.
    /// tokio::io::copy(&mut reader, &mut writer).await?;
    /// stream.read_exact(&mut [0; 8]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits the stream into halves for two tasks. The drop of the writing half closes this side's direction.
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
    /// let (mut reader, mut writer) = accepted.into_split();
    /// let writing = tokio::spawn(async move { writer.write_all(b"greeting").await });
    /// stream.write_all(b"question").await?;
    /// reader.read_exact(&mut [0; 8]).await?;
    /// writing.await??;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        (OwnedReadHalf(stream.clone()), OwnedWriteHalf { stream, closes: true })
    }
}

impl OwnedReadHalf {
    /// Makes the stream of its two halves again.
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
    /// let (reader, writer) = accepted.into_split();
    /// let accepted = reader.reunite(writer).map_err(std::io::Error::other)?;
    /// assert_eq!(accepted.peer_addr()?, stream.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If they are not of the same stream; the error has both.
    pub fn reunite(self, mut other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.0, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        other.closes = false;
        drop(other);
        // No third handle exists.
        Arc::try_unwrap(self.0).map_err(|stream| {
            let closes = true;
            ReuniteError(OwnedReadHalf(stream.clone()), OwnedWriteHalf { stream, closes })
        })
    }
}

impl OwnedWriteHalf {
    /// Drops the half without closing this side's direction. The direction then closes with the other half.
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
    /// let (reader, mut writer) = accepted.into_split();
    /// writer.write_all(b"the last word, and the direction stays open").await?;
    /// writer.forget();
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget(mut self) {
        self.closes = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.closes {
            let _ = self.stream.shut_down();
        }
    }
}

/// Implements `AsRef<TcpStream>` and `AsyncRead` for a reading half.
macro_rules! reads {
    ($($half:ty),*) => {$(
        impl AsRef<TcpStream> for $half {
            fn as_ref(&self) -> &TcpStream {
                &self.0
            }
        }

        impl AsyncRead for $half {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.0.poll_read_by(context, buffer)
            }
        }
    )*};
}

/// Implements `AsRef<TcpStream>` and `AsyncWrite` for a writing half. `$stream`: the half's field with the stream.
macro_rules! writes {
    ($($half:ty, $stream:tt);*) => {$(
        impl AsRef<TcpStream> for $half {
            fn as_ref(&self) -> &TcpStream {
                &self.$stream
            }
        }

        impl AsyncWrite for $half {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.$stream.poll_write_by(context, data)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                parts: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.$stream.poll_write_parts_by(context, parts)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.$stream.flushed())
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.$stream.shut_down())
            }
        }
    )*};
}

reads!(ReadHalf<'_>, OwnedReadHalf);
writes!(WriteHalf<'_>, 0; OwnedWriteHalf, stream);
