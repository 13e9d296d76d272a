//! The acts for which a server has no privilege: its keeper carries them out on request.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use towpath_device::xdp::unbound_socket;
use towpath_netlink::Netlink;

use super::held::Held;
use super::interface::Interface;
use super::port_holder::{PortProtocol, hold, port_name};
use super::wire::{
    ALLOW_XDP, HOLD_TCP, HOLD_UDP, PROBE, RELEASE_TCP, RELEASE_UDP, Request, XDP_SOCKET,
};

/// The result of a request.
#[derive(Default)]
pub(super) struct Done {
    pub(super) value: u32,
    /// A port that the keeper holds from now on, and its name; the server gets a copy.
    pub(super) port: Option<(String, OwnedFd)>,
    /// A socket that only the server holds.
    pub(super) socket: Option<OwnedFd>,
}

/// The privileged acts that a server may request.
pub(super) struct PrivilegedActs {
    /// `true` if the server shares the interface's addresses.
    shares_host: bool,
    /// Opened at the first request that needs it.
    netlink: Option<Netlink>,
    /// `None` if the server may have no AF_XDP sockets; otherwise, `true` if these poll the hardware.
    xdp_sockets: Option<bool>,
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn errno_of_netlink(error: &towpath_netlink::Error) -> Errno {
    error.errno().unwrap_or(Errno::IO)
}

impl PrivilegedActs {
    pub(super) fn new(shares_host: bool, xdp_sockets: Option<bool>) -> PrivilegedActs {
        PrivilegedActs { shares_host, netlink: None, xdp_sockets }
    }

    pub(super) fn xdp_sockets(&self) -> Option<bool> {
        self.xdp_sockets
    }

    /// Carries a request out. `was_ready`: `true` once a server has served, which may no longer choose its kind of
    /// sockets.
    ///
    /// # Errors
    /// Fails with the error for the server's answer; `EBADMSG` for a request that is no privileged act.
    pub(super) fn carry_out(
        &mut self,
        request: &Request,
        interface: &mut Interface,
        held: &mut Held,
        was_ready: bool,
    ) -> Result<Done, Errno> {
        match request.kind {
            HOLD_TCP => self.hold(PortProtocol::Tcp, request, interface, held),
            HOLD_UDP => self.hold(PortProtocol::Udp, request, interface, held),
            RELEASE_TCP => release(PortProtocol::Tcp, request, held),
            RELEASE_UDP => release(PortProtocol::Udp, request, held),
            PROBE => self.probe(request, interface),
            ALLOW_XDP if !was_ready => {
                self.xdp_sockets = Some(request.port == 1);
                Ok(Done::default())
            }
            ALLOW_XDP => Err(Errno::PERM),
            XDP_SOCKET => {
                let busy_poll = self.xdp_sockets.ok_or(Errno::OPNOTSUPP)?;
                let made = unbound_socket(index_of(interface)?, busy_poll);
                let socket = Some(made.map_err(|error| errno_of(&error))?);
                Ok(Done { socket, ..Done::default() })
            }
            _ => Err(Errno::BADMSG),
        }
    }

    /// Returns the interface whose addresses the server shares, and a socket to ask the kernel about it.
    fn host(&mut self, interface: &mut Interface) -> Result<(u32, &mut Netlink), Errno> {
        if !self.shares_host {
            return Err(Errno::OPNOTSUPP);
        }
        let index = index_of(interface)?;
        let netlink = match &mut self.netlink {
            Some(netlink) => netlink,
            none => none.insert(Netlink::open().map_err(|_| Errno::NODEV)?),
        };
        Ok((index, netlink))
    }

    /// Has the kernel confirm a neighbour.
    fn probe(&mut self, request: &Request, interface: &mut Interface) -> Result<Done, Errno> {
        let (index, netlink) = self.host(interface)?;
        let ip = request.address().ok_or(Errno::BADMSG)?;
        let outcome = netlink.probe_neighbour(index, ip);
        outcome.map(|()| Done::default()).map_err(|error| errno_of_netlink(&error))
    }

    fn hold(
        &mut self,
        protocol: PortProtocol,
        request: &Request,
        interface: &mut Interface,
        held: &Held,
    ) -> Result<Done, Errno> {
        let (index, netlink) = self.host(interface)?;
        let local = SocketAddr::new(request.address().ok_or(Errno::BADMSG)?, request.port);
        let addresses = netlink.addresses().map_err(|error| errno_of_netlink(&error))?;
        let mut own = addresses.iter().filter(|one| one.index == index);
        if !own.any(|one| one.prefix.address() == local.ip()) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        if !held.has_room() {
            return Err(Errno::MFILE);
        }
        let (socket, port) = hold(protocol, local).map_err(|error| errno_of(&error))?;
        let name = port_name(protocol, SocketAddr::new(local.ip(), port));
        Ok(Done { value: u32::from(port), port: Some((name, socket)), socket: None })
    }
}

fn index_of(interface: &mut Interface) -> Result<u32, Errno> {
    interface.index().map_err(|error| error.errno().unwrap_or(Errno::NODEV))
}

fn release(protocol: PortProtocol, request: &Request, held: &mut Held) -> Result<Done, Errno> {
    let ip = request.address().ok_or(Errno::BADMSG)?;
    held.remove(&port_name(protocol, SocketAddr::new(ip, request.port)));
    Ok(Done::default())
}
