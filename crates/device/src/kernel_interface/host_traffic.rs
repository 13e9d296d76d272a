//! Packets between applications and the kernel's own sockets of this host, if they share addresses.
//!
//! Such packets never pass the interface: the kernel sends what is for one of its own addresses
//! through the loopback interface. There a packet socket copies the packets of owned flows for the
//! driver, and a program drops them before they reach the network stack. The other way, the driver
//! sends what is for the interface's own MAC address through raw sockets (raw(7)).

mod program;

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType};
use towpath_bpf::{Error, Link, Map, MapKind, Program};
use towpath_netlink::Netlink;
use towpath_packet::checksum::complete;

use super::packet_socket::PacketSocket;
use crate::{Checksum, ETHERNET_HEADER_BYTES, EarlierObjects, FlowRule, Packet, Spaces};
use program::{COPY, DROP, KEY_BYTES, KEY_PORT, KEY_PROTOCOL, KEY_VERSION};

/// The name of both programs.
pub(crate) const PROGRAM_HOST: &str = "towpath_host";

/// The most flows.
const FLOWS: u32 = 65_536;
/// The size of the packet socket's ring, in bytes: 128 packets.
const RING_BYTES: u32 = 16 << 20;
/// The longest frame of the loopback interface: the longest IP packet and an Ethernet header.
pub(crate) const FRAME_BYTES: usize = 65_535 + ETHERNET_HEADER_BYTES;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// The names under which a keeper holds the attachment, the map of flows and the socket. Servers go on
/// with these, so the names have a number, which changes with the programs, the map or the ring.
const LINK: &str = "device-loopback-1";
const FLOWS_MAP: &str = "device-map-loopback-1";
const RING: &str = "device-ring-loopback-1";

/// See the module.
pub(crate) struct HostTraffic {
    mac: [u8; 6],
    /// The flows added so far, until those of an earlier server that are not among them are removed;
    /// then `None`.
    added: Mutex<Option<HashSet<[u8; KEY_BYTES]>>>,
    flows: Map,
    socket: Arc<PacketSocket>,
    raw_ipv4: OwnedFd,
    /// `None` on a host without IPv6.
    raw_ipv6: Option<OwnedFd>,
    link: OwnedFd,
}

/// A thread that opens the sockets and programs. The kernel makes this thread wait several times, so
/// the device opens its other parts meanwhile.
pub(crate) enum Opening {
    /// It is not wanted.
    None,
    /// An earlier server's.
    There(Box<HostTraffic>),
    Thread(JoinHandle<io::Result<HostTraffic>>),
}

impl Opening {
    /// Returns what the thread opened, if that was wanted and the kernel can. Otherwise appends a
    /// warning.
    pub(crate) fn finish(self, warnings: &mut Vec<String>) -> Option<HostTraffic> {
        let thread = match self {
            Opening::None => return None,
            Opening::There(there) => return Some(*there),
            Opening::Thread(thread) => thread,
        };
        let opened = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        opened
            .map_err(|cause| {
                warnings.push(format!(
                    "programs of this host and applications with its addresses do not reach each \
                     other ({cause}; Linux 6.6 is needed)"
                ));
            })
            .ok()
    }
}

impl HostTraffic {
    /// Begins to open the sockets and programs, if they are wanted, or goes on with those of an earlier
    /// server.
    pub(crate) fn begin(
        wanted: bool,
        mac: [u8; 6],
        owner: Option<u32>,
        earlier: &EarlierObjects,
    ) -> Opening {
        if !wanted {
            return Opening::None;
        }
        // If this fails, new ones take the place of the earlier ones, which are closed with the others
        // that no server took. What is wrong then fails, and is reported, there.
        if let Ok(Some(there)) = HostTraffic::of_earlier_server(mac, owner, earlier) {
            return Opening::There(Box::new(there));
        }
        Opening::Thread(std::thread::spawn(move || {
            let loopback = Netlink::open().and_then(|mut kernel| kernel.index("lo"));
            HostTraffic::open(loopback.map_err(io::Error::other)?, mac, owner)
        }))
    }

    /// Goes on with what an earlier server attached; `None` if there is none. The flows of that server
    /// stay until [`HostTraffic::remove_earlier_flows`].
    fn of_earlier_server(
        mac: [u8; 6],
        owner: Option<u32>,
        earlier: &EarlierObjects,
    ) -> io::Result<Option<HostTraffic>> {
        let (Some(link), Some(flows), Some(socket)) =
            (earlier.copy(LINK)?, earlier.copy(FLOWS_MAP)?, earlier.copy(RING)?)
        else {
            return Ok(None);
        };
        let flows = Map::from_fd(flows, MapKind::Hash, KEY_BYTES, 4)?;
        let drops = earlier.is_after_crash();
        // No interface joins anything by this socket, so it need not know the loopback's number.
        let socket = PacketSocket::of_earlier_server(socket, 0, FRAME_BYTES, RING_BYTES, drops);
        Ok(Some(HostTraffic {
            mac,
            added: Mutex::new(Some(HashSet::new())),
            flows,
            socket: Arc::new(socket),
            raw_ipv4: raw(AddressFamily::INET, owner)?,
            raw_ipv6: raw(AddressFamily::INET6, owner).ok(),
            link,
        }))
    }

    /// Removes the flows of an earlier server that no session of this one has.
    pub(crate) fn remove_earlier_flows(&self) {
        let mut added = self.added();
        let Some(added) = added.take() else { return };
        for key in self.flows.keys().unwrap_or_default() {
            if !added.contains(&key[..]) {
                // The kernel refuses nothing of this.
                let _ = self.flows.delete(&key);
            }
        }
    }

    /// Attaches to the loopback interface, by its number. `mac`: the MAC address of the interface
    /// whose addresses applications share. `owner`: the user that rules of the host's firewall see
    /// as the owner of applications' packets.
    ///
    /// # Errors
    /// Fails with `EINVAL` on kernels before Linux 6.6, and with the error of a system call.
    fn open(loopback: u32, mac: [u8; 6], owner: Option<u32>) -> io::Result<HostTraffic> {
        let flows = Map::create(MapKind::Hash, "towpath_ports", KEY_BYTES, 4, FLOWS)?;
        let map = flows.as_fd().as_raw_fd();
        let assembled = |verdicts| program::assemble(map, verdicts).map_err(io::Error::other);
        let copies = Program::load_socket_filter(PROGRAM_HOST, &assembled(COPY)?)?;
        let drops = Program::load_ingress(PROGRAM_HOST, &assembled(DROP)?)?;
        let socket = PacketSocket::open(loopback, FRAME_BYTES, RING_BYTES)?;
        socket.attach(&copies)?;
        Ok(HostTraffic {
            mac,
            added: Mutex::new(None),
            socket: Arc::new(socket),
            raw_ipv4: raw(AddressFamily::INET, owner)?,
            raw_ipv6: raw(AddressFamily::INET6, owner).ok(),
            link: Link::attach_ingress(&drops, loopback)?.into(),
            flows,
        })
    }

    fn added(&self) -> MutexGuard<'_, Option<HashSet<[u8; KEY_BYTES]>>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what must outlive the driver so that the kernel does not answer for owned flows,
    /// with the names under which a keeper holds it.
    pub(crate) fn objects(&self) -> [(&'static str, BorrowedFd<'_>); 3] {
        [(LINK, self.link.as_fd()), (FLOWS_MAP, self.flows.as_fd()), (RING, (*self.socket).as_fd())]
    }

    /// Returns the socket that copies the packets of owned flows.
    pub(crate) fn socket(&self) -> &Arc<PacketSocket> {
        &self.socket
    }

    /// Adds an owned flow, if it is one of a shared address.
    pub(crate) fn add(&self, rule: &FlowRule) -> Result<(), Error> {
        let Some(key) = self.key(rule) else { return Ok(()) };
        let mut added = self.added();
        if let Some(added) = added.as_mut() {
            added.insert(key);
        }
        self.flows.update(&key, &[0; 4])
    }

    /// Removes an owned flow.
    pub(crate) fn remove(&self, rule: &FlowRule) {
        if let Some(key) = self.key(rule) {
            // The kernel refuses nothing of this.
            let _ = self.flows.delete(&key);
        }
    }

    /// Returns the key of a flow; `None` if it has not the interface's MAC address, an IP address,
    /// a protocol and a port.
    fn key(&self, rule: &FlowRule) -> Option<[u8; KEY_BYTES]> {
        let (ip, protocol, port) = (rule.ip?, rule.protocol?, rule.port?);
        if rule.mac != Some(self.mac) {
            return None;
        }
        let mut key = [0; KEY_BYTES];
        key[KEY_VERSION] = match ip {
            IpAddr::V4(ip) => {
                key[..4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                key[..16].copy_from_slice(&ip.octets());
                6
            }
        };
        key[KEY_PROTOCOL] = protocol;
        key[KEY_PORT..KEY_PORT + 2].copy_from_slice(&port.to_be_bytes());
        Some(key)
    }

    /// Returns `true` for a packet to the host's own MAC address.
    #[inline]
    pub(crate) fn is_for_host(&self, spaces: &Spaces, packet: &Packet<'_>) -> bool {
        let mut to = [0; 6];
        packet.parts.first().is_some_and(|part| {
            part.len >= 6 && spaces.copy_out(part.space, part.offset, &mut to).is_ok()
        }) && to == self.mac
    }

    /// Sends a packet to the kernel's sockets, if it is from a shared address to the same address.
    /// A large packet goes in one piece. `buffer`: memory for the packet. Returns its length;
    /// `None` if it is dropped.
    pub(crate) fn send(
        &self,
        spaces: &Spaces,
        packet: &Packet<'_>,
        buffer: &mut Vec<u8>,
    ) -> Option<usize> {
        buffer.clear();
        for part in packet.parts {
            let from = buffer.len();
            if from + part.len as usize > FRAME_BYTES {
                return None;
            }
            buffer.resize(from + part.len as usize, 0);
            spaces.copy_out(part.space, part.offset, &mut buffer[from..]).ok()?;
        }
        if let Checksum::Partial { start, offset } = packet.meta.checksum {
            complete(buffer, start, offset).ok()?;
        }
        let (ethernet, ip) = buffer.split_at_checked(ETHERNET_HEADER_BYTES)?;
        let (socket, to) = match [ethernet[12], ethernet[13]] {
            ETHERTYPE_IPV4 => {
                let (from, to) = (ip.get(12..16)?, ip.get(16..20)?);
                let to = (from == to).then(|| Ipv4Addr::from([to[0], to[1], to[2], to[3]]))?;
                (&self.raw_ipv4, IpAddr::V4(to))
            }
            ETHERTYPE_IPV6 => {
                let (from, to) = (ip.get(8..24)?, ip.get(24..40)?);
                let to = to.first_chunk::<16>().filter(|to| **to == *from)?;
                (self.raw_ipv6.as_ref()?, IpAddr::V6(Ipv6Addr::from(*to)))
            }
            _ => return None,
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Full queues drop packets, like any host's. A rule of the host's firewall may, too.
        let sent = rustix::net::sendto(socket, ip, flags, &SocketAddr::new(to, 0));
        sent.is_ok().then_some(buffer.len())
    }
}

/// Opens a raw socket. Rules of the host's firewall see `owner` as the owner of its packets.
fn raw(family: AddressFamily, owner: Option<u32>) -> io::Result<OwnedFd> {
    let protocol = Some(Protocol::from_raw(RAW));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?;
    if let Some(owner) = owner {
        std::os::unix::fs::fchown(&socket, Some(owner), None)?;
    }
    Ok(socket)
}

/// `IPPROTO_RAW`: the sender writes the IP header.
const RAW: rustix::net::RawProtocol = match rustix::net::RawProtocol::new(255) {
    Some(raw) => raw,
    None => unreachable!(),
};
