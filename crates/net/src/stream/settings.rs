//! The settings of a connection.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_stack::{Stack, TcpState};

use super::TcpStream;
use crate::error;

impl TcpStream {
    /// Sets the linger time. With `Some(Duration::ZERO)`, dropping the stream resets the
    /// connection, as on Linux. Other durations have no effect: a drop never waits, but
    /// [`Network::drain`] does.
    ///
    /// # Errors
    /// Never.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.inner.abort.store(linger == Some(Duration::ZERO), Ordering::Relaxed);
        Ok(())
    }

    /// Sets whether the stack sends small segments at once instead of collecting them (Nagle's
    /// algorithm).
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.stack(|stack, id| stack.tcp_set_nodelay(id, nodelay))
    }

    /// Returns the value set by [`TcpStream::set_nodelay`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.stack(Stack::tcp_nodelay)
    }

    /// Probes a silent peer every `interval`, and gives up after ten intervals without an answer.
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_keep_alive(&self, interval: Option<Duration>) -> io::Result<()> {
        let id = self.inner.id;
        let shared = self.inner.network.shared();
        let probes = interval.map(towpath_stack::KeepAlive::every);
        let set = shared.with(|core, now| core.stack.tcp_set_keep_alive(now, id, probes));
        set.map_err(error::socket)
    }

    /// Returns `true` if the handshake has ended, also if it failed and ended the connection.
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn is_connected(&self) -> io::Result<bool> {
        Ok(self.stack(Stack::tcp_state)? != TcpState::Connecting)
    }

    /// Takes the pending error, if any.
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.stack(Stack::tcp_take_error)?.map(error::socket))
    }

    /// Sets non-blocking mode, in which calls that would have to wait fail with
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// Never.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.options.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Sets the timeout of reading.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.options.set_read_timeout(timeout)
    }

    /// Sets the timeout of writing.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.options.set_write_timeout(timeout)
    }

    /// Returns the value set by [`TcpStream::set_read_timeout`].
    ///
    /// # Errors
    /// Never.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.inner.options.read_timeout())
    }

    /// Returns the value set by [`TcpStream::set_write_timeout`].
    ///
    /// # Errors
    /// Never.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.inner.options.write_timeout())
    }
}
