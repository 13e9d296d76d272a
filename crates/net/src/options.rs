//! Options common to sockets of all kinds.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use towpath_stack::BindMode;

use crate::Network;
use crate::lock::lock;
use crate::wait::Patience;

/// What a program chooses before a socket is bound: for [`TcpListener::bind_with`](crate::TcpListener::bind_with) and
/// [`UdpSocket::bind_with`](crate::UdpSocket::bind_with).
///
/// A listener for each thread, all of them on one port:
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use towpath_net::{BindOptions, Network, TcpListener};
///
/// let network = Network::attach("/run/towpath/eth0.sock")?;
/// let mut options = BindOptions::default();
/// options.reuse_port = true;
/// std::thread::scope(|threads| {
///     for _ in 0..4 {
///         let listener = TcpListener::bind_with(&network, "0.0.0.0:80", options)?;
///         threads.spawn(move || {
///             while let Ok((_stream, peer)) = listener.accept() {
///                 println!("{peer}");
///             }
///         });
///     }
///     std::io::Result::Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BindOptions {
    /// The most connections of a listener that wait to be accepted. Default 1024; 0 counts as 1. A UDP socket ignores it.
    pub backlog: usize,
    /// `true` if a socket at `[::]` takes IPv6 only, so that another one may have the port at `0.0.0.0` (`IPV6_V6ONLY`;
    /// RFC 3493, 5.3). Default `false`, as on Linux. Sockets at other addresses ignore it.
    pub only_v6: bool,
    /// `true` if other sockets of the network with this option may be bound to the same address and port (`SO_REUSEPORT`), for
    /// instance one per thread. Each peer's address and port choose one of the listeners, or one of the UDP sockets without
    /// a peer; sockets at the network's address come before those at the unspecified address. A UDP socket that is
    /// connected to the sender comes first. Sockets at `[::]` that take both families and those at `0.0.0.0` share
    /// the peers of IPv4. A datagram visits the sockets of its port in turn, so a port of thousands of
    /// connected sockets is slow. Each UDP socket receives the datagrams to
    /// broadcast addresses and to its groups. When a listener is dropped, the connections that wait in it are reset.
    /// Default `false`.
    pub reuse_port: bool,
}

impl BindOptions {
    pub(crate) fn mode(&self) -> BindMode {
        BindMode { is_dual: !self.only_v6, reuse_port: self.reuse_port }
    }
}

impl Default for BindOptions {
    fn default() -> BindOptions {
        BindOptions { backlog: 1024, only_v6: false, reuse_port: false }
    }
}

/// Returns the IPv4 address of a socket at `[::]` that takes both families.
pub(crate) fn of_ipv4(local: SocketAddr) -> Option<SocketAddr> {
    let is_any = local.is_ipv6() && local.ip().is_unspecified();
    is_any.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()))
}

/// The options that clones of a socket share.
#[derive(Default)]
pub(crate) struct Options {
    nonblocking: AtomicBool,
    gro: AtomicBool,
    read_timeout: Mutex<Option<Duration>>,
    write_timeout: Mutex<Option<Duration>>,
}

impl Options {
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gro(&self, gro: bool) {
        self.gro.store(gro, Ordering::Relaxed);
    }

    pub(crate) fn has_gro(&self) -> bool {
        self.gro.load(Ordering::Relaxed)
    }

    pub(crate) fn reading(&self) -> Patience {
        self.patience(*lock(&self.read_timeout))
    }

    pub(crate) fn writing(&self) -> Patience {
        self.patience(*lock(&self.write_timeout))
    }

    fn patience(&self, timeout: Option<Duration>) -> Patience {
        if self.is_nonblocking() {
            return Patience::None;
        }
        let until = timeout.and_then(|timeout| StdInstant::now().checked_add(timeout));
        until.map_or(Patience::Forever, Patience::Until)
    }

    pub(crate) fn read_timeout(&self) -> Option<Duration> {
        *lock(&self.read_timeout)
    }

    pub(crate) fn write_timeout(&self) -> Option<Duration> {
        *lock(&self.write_timeout)
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *lock(&self.read_timeout) = not_zero(timeout, "use set_nonblocking")?;
        Ok(())
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *lock(&self.write_timeout) = not_zero(timeout, "use set_nonblocking")?;
        Ok(())
    }
}

/// Refuses a timeout of zero, as `std::net` does. `remedy`: what to use instead.
pub(crate) fn not_zero(timeout: Option<Duration>, remedy: &str) -> io::Result<Option<Duration>> {
    if timeout == Some(Duration::ZERO) {
        let message = format!("a timeout of zero: {remedy}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(timeout)
}

/// Returns a time to live as the hop limit that it is.
pub(crate) fn hop_limit(ttl: u32) -> io::Result<u8> {
    u8::try_from(ttl).ok().filter(|&limit| limit > 0).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "a time to live is from 1 to 255")
    })
}

/// Returns a type of service as the traffic class that it is.
pub(crate) fn traffic_class(tos: u32) -> io::Result<u8> {
    u8::try_from(tos).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, "a type of service is from 0 to 255")
    })
}

/// Calls `f` with each address of `to` until a call succeeds. In a child made by `fork`, fails before the
/// resolver is called.
pub(crate) fn each<R>(
    network: &Network,
    to: impl ToSocketAddrs,
    f: impl FnMut(SocketAddr) -> io::Result<R>,
) -> io::Result<R> {
    network.checked()?;
    first_success(to.to_socket_addrs()?, f)
}

/// Calls `f` with each address until a call succeeds. Returns the last error otherwise.
pub(crate) fn first_success<R>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    mut f: impl FnMut(SocketAddr) -> io::Result<R>,
) -> io::Result<R> {
    let mut last = None;
    for address in addresses {
        match f(address) {
            Ok(result) => return Ok(result),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(no_address))
}

/// Returns the error of a name without addresses.
pub(crate) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name resolves to no address")
}
