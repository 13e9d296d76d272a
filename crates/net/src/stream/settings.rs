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
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// use std::time::Duration;
    ///
    /// // The drop waits for at most 5 s until the peer has all data.
    /// stream.set_linger(Some(Duration::from_secs(5)))?;
    /// // The drop resets the connection.
    /// stream.set_linger(Some(Duration::ZERO))?;
    /// # std::io::Result::Ok(())
    /// ```
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
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// use std::time::Duration;
    ///
    /// assert_eq!(stream.linger()?, None);
    /// stream.set_linger(Some(Duration::from_secs(5)))?;
    /// assert_eq!(stream.linger()?, Some(Duration::from_secs(5)));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.stack(Stack::tcp_linger)
    }

    /// Sets whether the stack sends small segments at once instead of collecting them (Nagle's
    /// algorithm).
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// // Each request leaves at once, although the previous one is not acknowledged.
    /// stream.set_nodelay(true)?;
    /// stream.write_all(b"request 1")?;
    /// stream.write_all(b"request 2")?;
    /// let mut bytes = [0; 18];
    /// accepted.read_exact(&mut bytes)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.stack(|stack, id| stack.tcp_set_nodelay(id, nodelay))
    }

    /// Returns the value set by [`TcpStream::set_nodelay`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// assert!(!stream.nodelay()?);
    /// stream.set_nodelay(true)?;
    /// assert!(stream.nodelay()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.stack(Stack::tcp_nodelay)
    }

    /// Sets whether the stack holds small segments back until they are full, for at most 200 ms (`TCP_CORK`). `false`, the
    /// default, also sends what was held back, as far as [`TcpStream::set_nodelay`] allows it.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// stream.set_cork(true)?;
    /// stream.write_all(b"header")?;
    /// stream.write_all(b"body")?;
    /// // Now both leave, in one segment.
    /// stream.set_cork(false)?;
    /// let mut bytes = [0; 10];
    /// accepted.read_exact(&mut bytes)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        self.stack(|stack, id| stack.tcp_set_cork(id, cork))
    }

    /// Returns the value set by [`TcpStream::set_cork`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// assert!(!stream.cork()?);
    /// stream.set_cork(true)?;
    /// assert!(stream.cork()?);
    /// # std::io::Result::Ok(())
    /// ```
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
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// // The peer's Nagle algorithm does not wait for a delayed acknowledgement.
    /// accepted.set_quickack(true)?;
    /// stream.write_all(b"half of ")?;
    /// stream.write_all(b"a request")?;
    /// let mut bytes = [0; 17];
    /// accepted.read_exact(&mut bytes)?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.stack(|stack, id| stack.tcp_set_quickack(id, quickack))
    }

    /// Returns the value set by [`TcpStream::set_quickack`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// assert!(!stream.quickack()?);
    /// stream.set_quickack(true)?;
    /// assert!(stream.quickack()?);
    /// # std::io::Result::Ok(())
    /// ```
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
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// use std::time::Duration;
    /// use towpath_net::KeepAlive;
    ///
    /// assert_eq!(stream.keep_alive()?, None);
    /// let (idle, interval) = (Duration::from_secs(60), Duration::from_secs(10));
    /// let probes = KeepAlive { idle, interval, probes: 6 };
    /// stream.set_keep_alive(Some(probes))?;
    /// assert_eq!(stream.keep_alive()?, Some(probes));
    /// # std::io::Result::Ok(())
    /// ```
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
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// use std::time::Duration;
    ///
    /// stream.set_user_timeout(Some(Duration::from_secs(30)))?;
    /// server.end(Duration::ZERO);
    /// stream.write_all(b"to a peer that has vanished")?;
    /// // The hosts' clock: the test does not wait.
    /// switch.advance(Duration::from_secs(31));
    /// let error = stream.take_error()?.unwrap();
    /// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = options::not_zero(timeout, "None is the network's timeout")?;
        self.stack(|stack, id| stack.tcp_set_user_timeout(id, timeout))
    }

    /// Returns the value set by [`TcpStream::set_user_timeout`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// use std::time::Duration;
    ///
    /// assert_eq!(stream.user_timeout()?, None);
    /// stream.set_user_timeout(Some(Duration::from_secs(30)))?;
    /// assert_eq!(stream.user_timeout()?, Some(Duration::from_secs(30)));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        self.stack(Stack::tcp_user_timeout)
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6) of sent packets. Default 64.
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// // For a neighbour: no router forwards the packets.
    /// stream.set_ttl(1)?;
    /// assert_eq!(stream.ttl()?, 1);
    /// // 0 and values above 255 are refused.
    /// assert!(stream.set_ttl(0).is_err());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If it is outside 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = options::hop_limit(ttl)?;
        self.stack(|stack, id| stack.tcp_set_hop_limit(id, ttl))
    }

    /// Returns the value set by [`TcpStream::set_ttl`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// assert_eq!(stream.ttl()?, 64);
    /// stream.set_ttl(255)?;
    /// assert_eq!(stream.ttl()?, 255);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn ttl(&self) -> io::Result<u32> {
        self.stack(Stack::tcp_hop_limit).map(u32::from)
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of sent packets, without its two lowest bits, which are for
    /// congestion notification. Default 0.
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// // Lower effort (RFC 8622): code point 1, above the two bits of congestion notification.
    /// stream.set_tos(1 << 2)?;
    /// assert_eq!(stream.tos()?, 4);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If it is over 255.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        let class = options::traffic_class(tos)?;
        self.stack(|stack, id| stack.tcp_set_traffic_class(id, class))
    }

    /// Returns the value set by [`TcpStream::set_tos`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// assert_eq!(stream.tos()?, 0);
    /// stream.set_tos(0xb8)?;
    /// assert_eq!(stream.tos()?, 0xb8);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn tos(&self) -> io::Result<u32> {
        self.stack(Stack::tcp_traffic_class).map(u32::from)
    }

    /// Returns what the connection has learned of its path: sizes, windows and times.
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
    /// accepted.read(&mut [0; 8])?;
    /// let info = stream.info()?;
    /// println!("{info:?}");
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn info(&self) -> io::Result<TcpInfo> {
        self.stack(Stack::tcp_info)
    }

    /// Returns `true` if the handshake has ended, also if it failed and ended the connection.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// // The switch loses the answer to the SYN.
    /// switch.set_filter(|frame| match frame.from {
    ///     1 => towpath_net::testing::Fate::Lose,
    ///     _ => towpath_net::testing::Fate::Deliver,
    /// });
    /// let stream = TcpStream::connect_nonblocking(&client, "10.0.0.1:80".parse().unwrap())?;
    /// assert!(!stream.is_connected()?);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never, while the stream lives.
    pub fn is_connected(&self) -> io::Result<bool> {
        Ok(self.stack(Stack::tcp_state)? != TcpState::Connecting)
    }

    /// Takes the pending error, if any.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// assert!(stream.take_error()?.is_none());
    /// accepted.abort();
    /// let reset = stream.read(&mut [0; 8]);
    /// // The read has returned the error, and so has taken it.
    /// assert!(reset.is_err() && stream.take_error()?.is_none());
    /// # std::io::Result::Ok(())
    /// ```
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
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// stream.set_nonblocking(true)?;
    /// let error = stream.read(&mut [0; 8]).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.options()?.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Sets the timeout of reading.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// use std::time::Duration;
    ///
    /// stream.set_read_timeout(Some(Duration::from_millis(10)))?;
    /// let error = stream.read(&mut [0; 8]).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options()?.set_read_timeout(timeout)
    }

    /// Sets the timeout of writing.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use towpath_net::{TcpListener, TcpStream};
    /// # let switch = towpath_net::testing::Switch::new();
    /// # let (server, client) = (switch.host()?, switch.host()?);
    /// # let listener = TcpListener::bind(&server, "10.0.0.1:80")?;
    /// # let mut stream = TcpStream::connect(&client, "10.0.0.1:80")?;
    /// # let (mut accepted, _) = listener.accept()?;
    /// use std::time::Duration;
    ///
    /// stream.set_write_timeout(Some(Duration::from_millis(10)))?;
    /// // The peer reads nothing, so its window and this side's buffer fill.
    /// let error = loop {
    ///     if let Err(error) = stream.write(&[0; 65_536]) {
    ///         break error;
    ///     }
    /// };
    /// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.options()?.set_write_timeout(timeout)
    }

    /// Returns the value set by [`TcpStream::set_read_timeout`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// use std::time::Duration;
    ///
    /// assert_eq!(stream.read_timeout()?, None);
    /// stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    /// assert_eq!(stream.read_timeout()?, Some(Duration::from_secs(5)));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.options()?.read_timeout())
    }

    /// Returns the value set by [`TcpStream::set_write_timeout`].
    ///
    /// ```
    /// # let host = towpath_net::testing::Switch::new().host()?;
    /// # let listener = towpath_net::TcpListener::bind(&host, "10.0.0.1:80")?;
    /// # let stream = towpath_net::TcpStream::connect(&host, "10.0.0.1:80")?;
    /// use std::time::Duration;
    ///
    /// assert_eq!(stream.write_timeout()?, None);
    /// stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    /// assert_eq!(stream.write_timeout()?, Some(Duration::from_secs(5)));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Never.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.options()?.write_timeout())
    }
}
