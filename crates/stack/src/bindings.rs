//! Ownership of local addresses and ports.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::SocketError;
use crate::random::Random;

/// Ports for sockets that name none (RFC 6335, 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Addresses and ports, and the sockets bound to them. An unspecified address stands for every
/// address of its family.
pub(crate) struct Bindings<T> {
    bound: HashMap<(IpAddr, u16), T>,
    /// The number of sockets bound to a port, at any address of a family (`true`: IPv4).
    ports: HashMap<(bool, u16), u32>,
}

fn unspecified(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Returns every ephemeral port once, starting at a random one.
pub(crate) fn ephemeral_ports(random: &mut Random) -> impl Iterator<Item = u16> + use<> {
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    let start = (random.next() % u64::from(count)) as u32;
    (0..count).map(move |step| EPHEMERAL.start() + ((start + step) % count) as u16)
}

impl<T> Bindings<T> {
    pub(crate) fn new() -> Self {
        Bindings { bound: HashMap::new(), ports: HashMap::new() }
    }

    /// Returns `true` if a socket at `address` would conflict with another socket.
    pub(crate) fn is_taken(&self, address: IpAddr, port: u16) -> bool {
        if address.is_unspecified() {
            return self.ports.contains_key(&(address.is_ipv4(), port));
        }
        self.bound.contains_key(&(address, port))
            || self.bound.contains_key(&(unspecified(address), port))
    }

    /// Binds an address. If the port is zero, chooses a free port for which `taken` returns
    /// `false`. Returns the port.
    pub(crate) fn bind(
        &mut self,
        local: SocketAddr,
        what: T,
        random: &mut Random,
        taken: impl Fn(u16) -> bool,
    ) -> Result<u16, SocketError> {
        let ip = local.ip();
        let port = match local.port() {
            0 => ephemeral_ports(random).find(|&port| !self.is_taken(ip, port) && !taken(port)),
            port => Some(port).filter(|&port| !self.is_taken(ip, port)),
        };
        let port = port.ok_or(SocketError::AddressInUse)?;
        self.bound.insert((ip, port), what);
        *self.ports.entry((ip.is_ipv4(), port)).or_default() += 1;
        Ok(port)
    }

    pub(crate) fn unbind(&mut self, local: SocketAddr) {
        if self.bound.remove(&(local.ip(), local.port())).is_none() {
            return;
        }
        let key = (local.is_ipv4(), local.port());
        if let Some(count) = self.ports.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.ports.remove(&key);
            }
        }
    }

    /// Finds the socket that receives packets for this address and port.
    pub(crate) fn find(&self, address: IpAddr, port: u16) -> Option<&T> {
        self.bound.get(&(address, port)).or_else(|| self.bound.get(&(unspecified(address), port)))
    }

    pub(crate) fn len(&self) -> usize {
        self.bound.len()
    }
}
