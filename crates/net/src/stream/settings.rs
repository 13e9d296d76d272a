//! The settings of a connection.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_stack::{KeepAlive, Stack, TcpInfo, TcpState};

use super::TcpStream;
use crate::error;
use crate::options::{self, Options};

impl TcpStream {
    fn options(&self) -> io::Result<&Options> {
        self.inner.network.checked()?;
        Ok(&self.inner.options)
    }

    /// Sets what dropping the last handle does with data that the peer has not acknowledged.
    ///
    /// | linger time | the drop |
    /// |---|---|
    /// | `None`, the default | returns at once; the stack sends the data in the background |
    /// | zero | resets the connection; the data is lost |
    /// | another time, blocking stream | waits until the peer has the data, at most for this time; then a reset ends the connection |
    /// | another time, non-blocking stream | returns at once; the stack sends in the background for this time, then a reset ends the connection |
    ///
    /// The kernel's sockets differ in two ways: they also wait if they are non-blocking, and after
    /// the time they send on in the background. The stack ends with the program, so a wait that
    /// fails tells the peer, and an event loop never waits.
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.stack(|stack, id| stack.tcp_set_linger(id, linger))?;
        let lingers = linger.is_some_and(|linger| !linger.is_zero());
        self.inner.lingers.store(lingers, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the value set by [`TcpStream::set_linger`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.stack(Stack::tcp_linger)
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

    /// Sets whether the stack holds small segments back until they are full, for at most 200 ms (`TCP_CORK`). `false`, the
    /// default, also sends what was held back, as far as [`TcpStream::set_nodelay`] allows it.
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        self.stack(|stack, id| stack.tcp_set_cork(id, cork))
    }

    /// Returns the value set by [`TcpStream::set_cork`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn cork(&self) -> io::Result<bool> {
        self.stack(Stack::tcp_cork)
    }

    /// Sets whether the stack acknowledges all data at once, and not up to
    /// [`TcpConfig::ack_delay`](crate::TcpConfig::ack_delay) later. Default `false`. Unlike with `TCP_QUICKACK` of the
    /// kernel, the value stays.
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.stack(|stack, id| stack.tcp_set_quickack(id, quickack))
    }

    /// Returns the value set by [`TcpStream::set_quickack`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn quickack(&self) -> io::Result<bool> {
        self.stack(Stack::tcp_quickack)
    }

    /// Sets the probes of a silent peer; `None`, the default, disables them. If the peer answers
    /// none of them, reads and writes fail with [`io::ErrorKind::TimedOut`].
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use towpath_net::KeepAlive;
    ///
    /// # fn set(stream: towpath_net::TcpStream) -> std::io::Result<()> {
    /// let (idle, interval) = (Duration::from_secs(60), Duration::from_secs(10));
    /// stream.set_keep_alive(Some(KeepAlive { idle, interval, probes: 6 }))
    /// # }
    /// ```
    ///
    /// # Errors
    /// If one of the two times, or the number of probes, is zero.
    pub fn set_keep_alive(&self, keep_alive: Option<KeepAlive>) -> io::Result<()> {
        if let Some(KeepAlive { idle, interval, probes }) = keep_alive
            && (idle.is_zero() || interval.is_zero() || probes == 0)
        {
            let message = "keep-alive without time or probes: use None to disable it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let id = self.inner.id;
        let shared = self.inner.network.checked()?;
        let set = shared.with(|core, now| core.stack.tcp_set_keep_alive(now, id, keep_alive));
        set.map_err(error::socket)
    }

    /// Returns the value set by [`TcpStream::set_keep_alive`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn keep_alive(&self) -> io::Result<Option<KeepAlive>> {
        self.stack(Stack::tcp_keep_alive)
    }

    /// Sets the time for which written data may stay unacknowledged by a silent peer, after which
    /// the connection fails with [`io::ErrorKind::TimedOut`]; `None`, the default, means
    /// [`TcpConfig::user_timeout`](crate::TcpConfig::user_timeout).
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = options::not_zero(timeout, "None is the network's timeout")?;
        self.stack(|stack, id| stack.tcp_set_user_timeout(id, timeout))
    }

    /// Returns the value set by [`TcpStream::set_user_timeout`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        self.stack(Stack::tcp_user_timeout)
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6) of sent packets. Default 64.
    ///
    /// # Errors
    /// If it is outside 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = options::hop_limit(ttl)?;
        self.stack(|stack, id| stack.tcp_set_hop_limit(id, ttl))
    }

    /// Returns the value set by [`TcpStream::set_ttl`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn ttl(&self) -> io::Result<u32> {
        self.stack(Stack::tcp_hop_limit).map(u32::from)
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of sent packets, without its two lowest bits, which are for
    /// congestion notification. Default 0.
    ///
    /// # Errors
    /// If it is over 255.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        let class = options::traffic_class(tos)?;
        self.stack(|stack, id| stack.tcp_set_traffic_class(id, class))
    }

    /// Returns the value set by [`TcpStream::set_tos`].
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn tos(&self) -> io::Result<u32> {
        self.stack(Stack::tcp_traffic_class).map(u32::from)
    }

    /// Returns what the connection has learned of its path: sizes, windows and times.
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn info(&self) -> io::Result<TcpInfo> {
        self.stack(Stack::tcp_info)
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
        match self.stack(Stack::tcp_take_error)? {
            Some(error) => Ok(Some(error::socket(error))),
            // A connect on a link that has died neither succeeds nor fails in the stack.
            None => Ok(self.inner.network.checked()?.check_link().err()),
        }
    }

    /// Sets non-blocking mode, in which calls that would have to wait fail with
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// Never.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.options()?.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Sets the timeout of reading.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options()?.set_read_timeout(timeout)
    }

    /// Sets the timeout of writing.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options()?.set_write_timeout(timeout)
    }

    /// Returns the value set by [`TcpStream::set_read_timeout`].
    ///
    /// # Errors
    /// Never.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.options()?.read_timeout())
    }

    /// Returns the value set by [`TcpStream::set_write_timeout`].
    ///
    /// # Errors
    /// Never.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.options()?.write_timeout())
    }
}
