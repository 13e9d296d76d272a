//! The host whose addresses applications share: its ports, its routes and its neighbours.
//!
//! Applications that share an address of the host have single ports of it. The kernel keeps the
//! address: it answers ARP and ICMP echo, and has all other ports. For each port of an application
//! the server holds a kernel socket, so that no program on the host gets the port too.
//! The kernel's routes and neighbours hold for the applications as well (`neighbours`). The server
//! asks a process that has the privilege for each act that needs one (`keeper`).

mod neighbour_lookups;
mod neighbours;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use towpath_device::Info;
use towpath_engine::account::Account;
use towpath_engine::account::Party;
use towpath_engine::shares::{Exceeded, ShareLimits, Shares, Whose};
use towpath_netlink::{Address, HostWatch, Netlink};
use towpath_packet::FlowRule;
use towpath_protocol::message::Refusal;

use crate::addresses::Lease;
use crate::policy::{Policy, PortRange, Terms};
use crate::ports_in_use::{PortsInUse, free_ports};
use crate::refusal::Refused;
use neighbours::Neighbours;
use towpath_keeper::LogLimit;
use towpath_keeper::{FollowedInterface, KeeperAccess, PortProtocol, port_name};

/// The most granted ports that the server tries for a request with port 0.
const PORTS_TRIED: usize = 64;

/// What a server needs to share the addresses of its host's interface.
#[derive(Clone, Debug)]
pub struct HostAccess {
    keeper: KeeperAccess,
    interface: FollowedInterface,
}

impl HostAccess {
    /// Shares the addresses of `interface`, the one that the device serves, in the network
    /// namespace of the thread that starts the server. `keeper`: the server's keeper, which was
    /// started with `shares_host`.
    #[must_use]
    pub fn new(keeper: &KeeperAccess, interface: FollowedInterface) -> HostAccess {
        HostAccess { keeper: keeper.clone(), interface }
    }
}

/// The addresses of the interface that applications share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HostAddresses {
    ipv4: Option<(Ipv4Addr, u8)>,
    ipv6: Option<(Ipv6Addr, u8)>,
}

impl HostAddresses {
    /// Chooses the first IPv4 address of an interface, and the first IPv6 address that is not
    /// link-local. Lasting addresses come before passing ones; a tentative address is not chosen.
    fn of(index: u32, addresses: &[Address]) -> HostAddresses {
        let mut chosen = HostAddresses::default();
        let usable = |one: &&Address| one.index == index && !one.tentative;
        let lasting = addresses.iter().filter(usable).filter(|one| !one.passing);
        // If no address of a family lasts, one that does not.
        for one in lasting.chain(addresses.iter().filter(usable)) {
            match one.prefix.address() {
                IpAddr::V4(ip) => {
                    chosen.ipv4.get_or_insert((ip, one.prefix.len_bits()));
                }
                IpAddr::V6(ip) if !ip.is_unicast_link_local() => {
                    chosen.ipv6.get_or_insert((ip, one.prefix.len_bits()));
                }
                IpAddr::V6(_) => {}
            }
        }
        chosen
    }
}

/// A port that the server holds for an application.
#[derive(Debug)]
struct Held {
    _socket: OwnedFd,
    account: Account,
}

/// The host.
#[derive(Debug)]
pub(crate) struct Host {
    keeper: KeeperAccess,
    netlink: Netlink,
    watch: HostWatch,
    interface: String,
    index: u32,
    mac: [u8; 6],
    /// `true` if the device carries packets to the host's own sockets.
    reaches_itself: bool,
    addresses: HostAddresses,
    /// All addresses of the interface.
    interface_addresses: Vec<IpAddr>,
    ports: HashMap<(PortProtocol, SocketAddr), Held>,
    ports_in_use: PortsInUse<(PortProtocol, IpAddr)>,
    /// The number of ports of each user, and of the users that each group lets in.
    port_shares: Shares,
    /// Where the search for a free port of granted ranges begins.
    next_port: usize,
    neighbours: Neighbours,
    log: LogLimit<Party>,
}

impl Host {
    /// Begins to follow the host. `device`: the device on its interface.
    ///
    /// # Errors
    /// Fails if there is no such interface, or without descriptors.
    pub(crate) fn open(access: &HostAccess, device: &Info) -> io::Result<Host> {
        let failed = io::Error::other::<towpath_netlink::Error>;
        // Changes from here on are not missed.
        let watch = HostWatch::new().map_err(failed)?;
        let mut netlink = Netlink::open().map_err(failed)?;
        let known = access.interface.index;
        let index = known.map_or_else(|| netlink.index(&access.interface.name), Ok);
        let index = index.map_err(failed)?;
        let mut host = Host {
            keeper: access.keeper.clone(),
            netlink,
            watch,
            interface: access.interface.name.clone(),
            index,
            mac: device.mac,
            reaches_itself: device.can.tx_to_host,
            addresses: HostAddresses::default(),
            interface_addresses: Vec::new(),
            ports: HashMap::new(),
            ports_in_use: PortsInUse::default(),
            port_shares: Shares::default(),
            next_port: 0,
            neighbours: Neighbours::default(),
            log: LogLimit::default(),
        };
        host.read_addresses().map_err(failed)?;
        Ok(host)
    }

    fn read_addresses(&mut self) -> Result<(), towpath_netlink::Error> {
        let addresses = self.netlink.addresses()?;
        self.addresses = HostAddresses::of(self.index, &addresses);
        let own = addresses.iter().filter(|one| one.index == self.index);
        self.interface_addresses = own.map(|one| one.prefix.address()).collect();
        Ok(())
    }

    /// Notes the interface's new name.
    pub(crate) fn rename(&mut self, interface: &str) {
        interface.clone_into(&mut self.interface);
    }

    /// Returns the addresses that a session with these terms shares.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn lease(&self, terms: &Terms) -> Result<Lease, Refused> {
        let HostAddresses { ipv4, ipv6 } = self.addresses;
        if ipv4.is_none() && ipv6.is_none() {
            let text = format!(
                "attach: {} has no address to share; give it one (ip address add)",
                self.interface
            );
            return Err((Refusal::State, text));
        }
        let ipv4 = ipv4.filter(|(ip, _)| terms.allow_address((*ip).into()));
        let ipv6 = ipv6.filter(|(ip, _)| terms.allow_address((*ip).into()));
        if ipv4.is_none() && ipv6.is_none() {
            let text = format!(
                "attach: the policy does not grant the host's addresses on {} to your user; ask \
                 the administrator for a grant",
                self.interface
            );
            return Err((Refusal::Permission, text));
        }
        Ok(Lease::shared(self.mac, ipv4, ipv6))
    }

    /// Returns the addresses of a lease that the interface does not have, in words; `None` if the
    /// interface has all of them.
    fn lost_addresses_of(&self, lease: &Lease) -> Option<String> {
        let ipv4 = lease.ipv4.map(|(ip, _)| IpAddr::from(ip));
        let ipv6 = lease.ipv6.map(|(ip, _)| IpAddr::from(ip));
        let all = [ipv4, ipv6].into_iter().flatten();
        let lost = all.filter(|ip| !self.interface_addresses.contains(ip));
        lost.map(|ip| ip.to_string()).reduce(|all, ip| format!("{all} and {ip}"))
    }

    /// Holds the port of a rule for an account, or with port 0 one that the kernel, or the terms,
    /// choose. Returns the port.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn hold(
        &mut self,
        rule: &FlowRule,
        account: Account,
        terms: &Terms,
        policy: &Policy,
    ) -> Result<u16, Refused> {
        let Some((protocol, local)) = port_of(rule) else {
            return Err((Refusal::Malformed, "open: the rule has no port".into()));
        };
        if account.is_limited
            && let Some(text) = self.is_full(account, terms, policy)
        {
            return Err((Refusal::Limit, format!("open: {text}; close one")));
        }
        let granted = terms.ports.as_ref().filter(|_| local.port() == 0);
        let tried = match granted {
            Some(ranges) => self.free_of(ranges, protocol, rule),
            None => vec![local.port()],
        };
        let mut refused = Errno::ADDRINUSE;
        for port in tried {
            match self.keeper.hold(protocol, SocketAddr::new(local.ip(), port)) {
                Ok((socket, port)) => {
                    self.note(protocol, SocketAddr::new(local.ip(), port), socket, account);
                    return Ok(port);
                }
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => {
                    refused = errno;
                    break;
                }
            }
        }
        Err(explain(refused, rule, &self.interface))
    }

    /// Adopts the socket that holds the port of a resumed session's rule, and removes it from `ports`:
    /// sockets by name. Returns the name.
    ///
    /// # Errors
    /// Fails with the reason, in words.
    pub(crate) fn hold_again(
        &mut self,
        rule: &FlowRule,
        account: Account,
        ports: &mut HashMap<String, OwnedFd>,
    ) -> Result<String, String> {
        let (protocol, local) = port_of(rule).ok_or("its rule has no port")?;
        let name = port_name(protocol, local);
        let socket = ports.remove(&name);
        let socket = socket.ok_or_else(|| {
            format!("the keeper does not hold port {} of {}", local.port(), local.ip())
        })?;
        self.note(protocol, local, socket, account);
        Ok(name)
    }

    /// Notes the socket that holds a port for an account.
    fn note(
        &mut self,
        protocol: PortProtocol,
        local: SocketAddr,
        socket: OwnedFd,
        account: Account,
    ) {
        self.ports_in_use.add((protocol, local.ip()), local.port());
        self.port_shares.add(account);
        self.ports.insert((protocol, local), Held { _socket: socket, account });
    }

    /// Returns the reason why an account gets no further port.
    fn is_full(&self, account: Account, terms: &Terms, policy: &Policy) -> Option<String> {
        let limits = ShareLimits {
            user: policy.limits(terms).host_ports_per_user,
            group: policy.host_ports_per_group,
            granted: policy.host_ports,
            ..ShareLimits::NONE
        };
        let Exceeded { whose, most, .. } =
            self.port_shares.check_within(limits, account, 1).err()?;
        let ports = format!("{most} ports of the host, the most allowed");
        Some(match whose {
            Whose::Party(Party::User(uid) | Party::Administrator(uid)) => {
                format!("user {uid} has {ports} (host-ports-per-user)")
            }
            Whose::Party(Party::Group(group)) => {
                format!("the users let in by group {group} have {ports}")
            }
            Whose::Granted | Whose::All => format!("applications have {ports}"),
        })
    }

    /// Returns some ports of granted ranges that no application has, from another one each time.
    fn free_of(
        &mut self,
        ranges: &[PortRange],
        protocol: PortProtocol,
        rule: &FlowRule,
    ) -> Vec<u16> {
        let theirs = ranges.iter().filter(|range| Some(range.protocol) == rule.protocol);
        let ranges: Vec<_> = theirs.map(|range| range.first..=range.last).collect();
        let Some(ip) = rule.ip else { return Vec::new() };
        let ports: usize = ranges.iter().map(|range| range.len()).sum();
        let start = self.next_port.checked_rem(ports).unwrap_or(0);
        self.next_port = self.next_port.wrapping_add(PORTS_TRIED);
        let used = self.ports_in_use.of(&(protocol, ip));
        let used = |word| used.map_or(0, |ports| ports.word(word));
        let around = ranges_from(&ranges, start).into_iter();
        around.flat_map(|range| free_ports(range, used)).take(PORTS_TRIED).collect()
    }

    /// Releases the port of a rule.
    pub(crate) fn release(&mut self, rule: &FlowRule) {
        let Some(held) = port_of(rule).and_then(|port| self.ports.remove_entry(&port)) else {
            return;
        };
        let ((protocol, local), Held { account, .. }) = held;
        self.ports_in_use.remove(&(protocol, local.ip()), local.port());
        self.port_shares.give_back(account);
        // Without the keeper, the port is free as soon as this socket is closed.
        self.keeper.release(protocol, local);
    }
}

/// Returns the ports of ranges from the one at place `start` on, and then those before it.
fn ranges_from(ranges: &[RangeInclusive<u16>], start: usize) -> Vec<RangeInclusive<u16>> {
    let mut place = start;
    let (mut from, mut before) = (Vec::new(), Vec::new());
    for range in ranges {
        let skipped = place.min(range.len());
        place -= skipped;
        let mut rest = range.clone();
        if let Some(last) = skipped.checked_sub(1).and_then(|last| rest.nth(last)) {
            before.push(*range.start()..=last);
        }
        from.push(rest);
    }
    from.extend(before);
    from
}

/// Returns the port of a rule, if the kernel holds such ports.
fn port_of(rule: &FlowRule) -> Option<(PortProtocol, SocketAddr)> {
    Some((port_protocol(rule)?, SocketAddr::new(rule.ip?, rule.port?)))
}

/// Returns the protocol of a rule if it is one whose ports the kernel holds.
pub(crate) fn port_protocol(rule: &FlowRule) -> Option<PortProtocol> {
    match rule.protocol? {
        6 => Some(PortProtocol::Tcp),
        17 => Some(PortProtocol::Udp),
        _ => None,
    }
}

/// Returns the refusal for a port that the kernel does not give.
fn explain(errno: Errno, rule: &FlowRule, interface: &str) -> Refused {
    let protocol = if rule.protocol == Some(6) { "TCP" } else { "UDP" };
    if errno == Errno::ADDRINUSE && rule.port == Some(0) {
        let text = format!("open: no {protocol} port that your user may use is free; close one");
        return (Refusal::Limit, text);
    }
    let port = match (rule.port, rule.ip) {
        (Some(0), Some(ip)) => format!("any port of {ip}"),
        (Some(port), Some(ip)) => format!("port {port} of {ip}"),
        (port, None) => format!("port {}", port.unwrap_or(0)),
        (None, Some(_)) => "a port".to_owned(),
    };
    let (refusal, why) = match errno {
        Errno::ADDRINUSE => (
            Refusal::InUse,
            "a program of this host (ss -tuanp shows most), another server, or a connection that ended \
             within the last minute uses it; choose another port"
                .to_owned(),
        ),
        Errno::ADDRNOTAVAIL => (
            Refusal::State,
            format!("{interface} does not have the address any more; attach again"),
        ),
        Errno::MFILE => {
            let text = "the server or its keeper has no descriptor left; raise the limit (ulimit -n, \
                        LimitNOFILE=)";
            (Refusal::Limit, text.into())
        }
        Errno::NFILE => {
            (Refusal::Limit, "the host has no file left to open; raise fs.file-max".into())
        }
        Errno::PIPE | Errno::CONNRESET | Errno::AGAIN => {
            (
            Refusal::Device,
            "the server's keeper has ended or does not answer; restart the server".into(),
        )
        }
        Errno::ACCESS => (
            Refusal::Permission,
            "the server's keeper lacks CAP_NET_BIND_SERVICE; start the server with that \
             capability, or as root"
                .into(),
        ),
        other => (Refusal::Device, io::Error::from(other).to_string()),
    };
    (refusal, format!("open: {protocol} {port}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_at_a_place() {
        let ranges = [10..=13, 20..=20, 30..=31];
        let all: Vec<u16> = ranges.iter().cloned().flatten().collect();
        for start in 0..all.len() {
            let found: Vec<u16> = ranges_from(&ranges, start).into_iter().flatten().collect();
            assert_eq!(found, [&all[start..], &all[..start]].concat(), "{start}");
        }
        assert!(ranges_from(&[], 0).is_empty());
    }
}
