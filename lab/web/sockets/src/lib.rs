//! The kernel's sockets under the names of `towpath-net`, as far as the example `web` uses them. So
//! one source serves a directory over both.

#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

pub use std::net::TcpStream;

/// The host's own network.
#[derive(Debug)]
pub struct Network;

impl Network {
    /// Returns the host's network; there is no server to attach to.
    ///
    /// # Errors
    /// None.
    pub fn attach(_: impl AsRef<Path>) -> io::Result<Network> {
        Ok(Network)
    }

    /// Returns the addresses that stand for all of the host's.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener(std::net::TcpListener);

impl TcpListener {
    /// Listens at an address. A second listener of the same port, for IPv6, gets a free port
    /// instead: the kernel's first one may take both families.
    ///
    /// # Errors
    /// Those of [`std::net::TcpListener::bind`].
    pub fn bind(_: &Network, at: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let at: Vec<SocketAddr> = at.to_socket_addrs()?.collect();
        let free = |at: &SocketAddr| SocketAddr::new(at.ip(), 0);
        let bound = std::net::TcpListener::bind(&at[..]).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse if at.iter().all(SocketAddr::is_ipv6) => {
                std::net::TcpListener::bind(&at.iter().map(free).collect::<Vec<_>>()[..])
            }
            _ => Err(error),
        });
        Ok(TcpListener(bound?))
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of [`std::net::TcpListener::accept`].
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept()
    }
}
