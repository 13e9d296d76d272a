//! Ownership of local addresses and ports.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::SocketError;
use crate::random::Random;

/// Ports for sockets that name none (RFC 6335, 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Returns the IPv6 address of an IPv4 host (RFC 4291, 2.5.5.2).
pub(crate) fn mapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        v6 @ IpAddr::V6(_) => v6,
    }
}

/// An address that a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) local: SocketAddr,
    /// `true` for `[::]` with IPv4: a dual-stack socket (RFC 3493, 3.7).
    pub(crate) is_dual: bool,
}

impl Bound {
    /// Returns the binding of a socket to `local`. Only at `[::]` a socket may also take IPv4.
    pub(crate) fn new(local: SocketAddr, only_v6: bool) -> Bound {
        Bound { local, is_dual: !only_v6 && local.is_ipv6() && local.ip().is_unspecified() }
    }

    /// Returns `true` if the socket exchanges packets of a family.
    pub(crate) fn takes(&self, is_ipv4: bool) -> bool {
        self.is_dual || self.local.is_ipv4() == is_ipv4
    }

    /// Returns an address as the application sees it: that of an IPv4 host as an IPv6 address with the prefix
    /// `::ffff:0:0/96` at a dual-stack socket.
    pub(crate) fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(_) => SocketAddr::new(self.shown_ip(address.ip()), address.port()),
            // With its scope.
            SocketAddr::V6(_) => address,
        }
    }

    pub(crate) fn shown_ip(&self, address: IpAddr) -> IpAddr {
        if self.is_dual { mapped(address) } else { address }
    }

    /// Returns the address that an application means: that of the IPv4 host, if it names one by an IPv6 address.
    pub(crate) fn meant(&self, address: SocketAddr) -> SocketAddr {
        match address.ip().to_canonical() {
            IpAddr::V4(v4) if self.is_dual => SocketAddr::new(v4.into(), address.port()),
            _ => address,
        }
    }

    /// Returns the addresses that no other socket may have.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let port = self.local.port();
        let of_ipv4 = self.is_dual.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
        [self.local].into_iter().chain(of_ipv4)
    }
}

/// Addresses and ports, and the sockets bound to them. An unspecified address stands for every
/// address of its family.
pub(crate) struct Bindings<T> {
    bound: HashMap<(IpAddr, u16), T>,
    /// The number of sockets.
    sockets: usize,
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

impl<T: Copy> Bindings<T> {
    pub(crate) fn new() -> Self {
        Bindings { bound: HashMap::new(), sockets: 0, ports: HashMap::new() }
    }

    /// Returns `true` if a socket at `address` would conflict with another socket.
    pub(crate) fn is_taken(&self, address: IpAddr, port: u16) -> bool {
        if address.is_unspecified() {
            return self.ports.contains_key(&(address.is_ipv4(), port));
        }
        self.bound.contains_key(&(address, port))
            || self.bound.contains_key(&(unspecified(address), port))
    }

    /// Binds a socket. If the port is zero, chooses a free port. Returns the binding with its port.
    pub(crate) fn bind(
        &mut self,
        mut wanted: Bound,
        what: T,
        random: &mut Random,
    ) -> Result<Bound, SocketError> {
        let is_free = |port| !wanted.addresses().any(|one| self.is_taken(one.ip(), port));
        let port = match wanted.local.port() {
            0 => ephemeral_ports(random).find(|&port| is_free(port)),
            port => Some(port).filter(|&port| is_free(port)),
        };
        wanted.local.set_port(port.ok_or(SocketError::AddressInUse)?);
        for local in wanted.addresses() {
            self.bound.insert((local.ip(), local.port()), what);
            *self.ports.entry((local.is_ipv4(), local.port())).or_default() += 1;
        }
        self.sockets += 1;
        Ok(wanted)
    }

    /// Releases the address of a socket that is bound.
    pub(crate) fn unbind(&mut self, bound: Bound) {
        for local in bound.addresses() {
            self.bound.remove(&(local.ip(), local.port()));
            let key = (local.is_ipv4(), local.port());
            if let Some(count) = self.ports.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.ports.remove(&key);
                }
            }
        }
        self.sockets -= 1;
    }

    /// Finds the socket that receives packets for this address and port.
    pub(crate) fn find(&self, address: IpAddr, port: u16) -> Option<&T> {
        self.bound.get(&(address, port)).or_else(|| self.bound.get(&(unspecified(address), port)))
    }

    pub(crate) fn len(&self) -> usize {
        self.sockets
    }
}
