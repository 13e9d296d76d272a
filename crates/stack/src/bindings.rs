//! Ownership of local addresses and ports.

use std::collections::HashMap;
use std::hash::Hash;
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

/// How a socket is bound to its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindMode {
    /// `true` if a socket at `[::]` also takes IPv4: the addresses of IPv4 hosts then have the prefix `::ffff:0:0/96`
    /// (RFC 3493, 3.7). Sockets at other addresses ignore it.
    pub is_dual: bool,
    /// `true` if other sockets may be bound to the same address and port, all in this mode (`SO_REUSEPORT` of Linux).
    pub reuse_port: bool,
}

/// An address that a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) local: SocketAddr,
    /// `true` for `[::]` with IPv4: a dual-stack socket (RFC 3493, 3.7).
    pub(crate) is_dual: bool,
    /// `true` if other sockets may share the port.
    reuse_port: bool,
}

impl Bound {
    /// Returns the binding of a socket to `local`. Only at `[::]` a socket may also take IPv4.
    pub(crate) fn new(local: SocketAddr, mode: BindMode) -> Bound {
        let is_dual = mode.is_dual && local.is_ipv6() && local.ip().is_unspecified();
        Bound { local, is_dual, reuse_port: mode.reuse_port }
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

/// The sockets that are bound to one address and port. There are several only if each of them reuses the port.
struct Sharing<T> {
    sockets: Vec<T>,
    reuse_port: bool,
}

/// The numbers of sockets that are bound to a port.
#[derive(Clone, Copy, Default)]
struct Users {
    all: u32,
    /// Those that reuse the port.
    reusing: u32,
}

/// Addresses and ports, and the sockets bound to them. An unspecified address stands for every
/// address of its family.
pub(crate) struct Bindings<T> {
    bound: HashMap<(IpAddr, u16), Sharing<T>>,
    /// The number of sockets.
    sockets: usize,
    /// The sockets bound to a port, at any address of a family (`true`: IPv4).
    ports: HashMap<(bool, u16), Users>,
}

fn unspecified(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Returns one of the sockets at one address and port, of those that are open: always the same for the same key, in a way that
/// the network cannot predict.
pub(crate) fn choose<T: Copy>(
    sockets: &[T],
    random: &Random,
    key: &impl Hash,
    is_open: impl Fn(T) -> bool,
) -> Option<T> {
    if let [one] = *sockets {
        return Some(one).filter(|one| is_open(*one));
    }
    let open = || sockets.iter().copied().filter(|one| is_open(*one));
    let choice = random.keyed(key).checked_rem(open().count() as u64)?;
    open().nth(choice as usize)
}

/// Returns every ephemeral port once, starting at a random one.
pub(crate) fn ephemeral_ports(random: &mut Random) -> impl Iterator<Item = u16> + use<> {
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    let start = (random.next() % u64::from(count)) as u32;
    (0..count).map(move |step| EPHEMERAL.start() + ((start + step) % count) as u16)
}

impl<T: Copy + PartialEq> Bindings<T> {
    pub(crate) fn new() -> Self {
        Bindings { bound: HashMap::new(), sockets: 0, ports: HashMap::new() }
    }

    /// Returns `true` if a socket at `address` that does not reuse the port would conflict with another socket.
    pub(crate) fn is_taken(&self, address: IpAddr, port: u16) -> bool {
        self.conflicts(address, port, false)
    }

    fn conflicts(&self, address: IpAddr, port: u16, reuse_port: bool) -> bool {
        if address.is_unspecified() {
            let users = self.ports.get(&(address.is_ipv4(), port)).copied().unwrap_or_default();
            return users.all > if reuse_port { users.reusing } else { 0 };
        }
        [address, unspecified(address)].into_iter().any(|address| {
            let there = self.bound.get(&(address, port));
            there.is_some_and(|there| !(reuse_port && there.reuse_port))
        })
    }

    /// Binds a socket. If the port is zero, chooses a port that no socket has. Returns the binding with its port.
    pub(crate) fn bind(
        &mut self,
        mut wanted: Bound,
        what: T,
        random: &mut Random,
    ) -> Result<Bound, SocketError> {
        let is_free = |port, reuse_port| {
            !wanted.addresses().any(|one| self.conflicts(one.ip(), port, reuse_port))
        };
        let port = match wanted.local.port() {
            0 => ephemeral_ports(random).find(|&port| is_free(port, false)),
            port => Some(port).filter(|&port| is_free(port, wanted.reuse_port)),
        };
        wanted.local.set_port(port.ok_or(SocketError::AddressInUse)?);
        let reuse_port = wanted.reuse_port;
        for local in wanted.addresses() {
            let new = || Sharing { sockets: Vec::new(), reuse_port };
            let there = self.bound.entry((local.ip(), local.port())).or_insert_with(new);
            there.sockets.push(what);
            let users = self.ports.entry((local.is_ipv4(), local.port())).or_default();
            users.all += 1;
            users.reusing += u32::from(reuse_port);
        }
        self.sockets += 1;
        Ok(wanted)
    }

    /// Releases the address of a socket that is bound.
    pub(crate) fn unbind(&mut self, bound: Bound, what: T) {
        for local in bound.addresses() {
            let key = (local.ip(), local.port());
            if let Some(there) = self.bound.get_mut(&key) {
                there.sockets.retain(|one| *one != what);
                if there.sockets.is_empty() {
                    self.bound.remove(&key);
                }
            }
            let key = (local.is_ipv4(), local.port());
            if let Some(users) = self.ports.get_mut(&key) {
                users.all -= 1;
                users.reusing -= u32::from(bound.reuse_port);
                if users.all == 0 {
                    self.ports.remove(&key);
                }
            }
        }
        self.sockets -= 1;
    }

    /// Returns the sockets for packets to an address and port: those at the address, and those at the unspecified address.
    pub(crate) fn find(&self, address: IpAddr, port: u16) -> [&[T]; 2] {
        match self.bound.get(&(address, port)) {
            // A socket that does not reuse its port has no other one beside it.
            Some(there) if !there.reuse_port => [&there.sockets, &[]],
            there => {
                let specific = there.map_or(&[][..], |there| &there.sockets);
                let any = self.bound.get(&(unspecified(address), port));
                [specific, any.map_or(&[][..], |there| &there.sockets)]
            }
        }
    }

    /// Returns all sockets for packets to an address and port.
    pub(crate) fn all(&self, address: IpAddr, port: u16) -> impl Iterator<Item = &T> {
        self.find(address, port).into_iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.sockets
    }
}
