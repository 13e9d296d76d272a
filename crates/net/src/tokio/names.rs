//! The addresses of names, by the runtime's resolver.

use std::io;
use std::net::SocketAddr;

use tokio::net::ToSocketAddrs;

use crate::Network;

/// Returns the addresses of a name, at least one.
pub(super) async fn addresses(
    network: &Network,
    of: impl ToSocketAddrs,
) -> io::Result<Vec<SocketAddr>> {
    network.checked()?;
    let addresses: Vec<_> = tokio::net::lookup_host(of).await?.collect();
    if addresses.is_empty() { Err(crate::options::no_address()) } else { Ok(addresses) }
}

/// Calls `f` with each address of a name until a call succeeds.
pub(super) async fn each<R>(
    network: &Network,
    of: impl ToSocketAddrs,
    f: impl FnMut(SocketAddr) -> io::Result<R>,
) -> io::Result<R> {
    crate::options::first_success(addresses(network, of).await?, f)
}
