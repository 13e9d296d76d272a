//! Neighbours: the Ethernet address of an IP address (`RTM_NEWNEIGH`, `linux/neighbour.h`).
#![forbid(unsafe_code)]

use std::net::IpAddr;

use rustix::io::Errno;

use crate::error::Error;
use crate::message::{
    Attributes, Malformed, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, Request, u8_at, u16_at, u32_at,
};
use crate::prefix;
use crate::socket::Netlink;

pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_FAILED: u16 = 0x20;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NTF_USE: u8 = 0x01;

/// `struct ndmsg`: family, index, state, flags, type.
const NDMSG_BYTES: usize = 12;

/// The state of a neighbour, as the kernel knows it (RFC 4861, 7.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reachability {
    /// The kernel knows no Ethernet address; it may be asking for one.
    Unknown,
    /// The Ethernet address is confirmed, or permanent.
    Confirmed([u8; 6]),
    /// The Ethernet address was right some time ago.
    Stale([u8; 6]),
    /// The neighbour did not answer.
    Failed,
}

/// An entry of the kernel's neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface's number.
    pub index: u32,
    /// The neighbour's IP address.
    pub address: IpAddr,
    /// Its state.
    pub reachability: Reachability,
}

impl Netlink {
    /// Sets a permanent neighbour entry: the Ethernet address of an IP address on an interface. The
    /// kernel then sends no request for it (ARP, RFC 826; neighbour discovery, RFC 4861).
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn add_neighbour(
        &mut self,
        name: &str,
        address: IpAddr,
        mac: [u8; 6],
    ) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.change_neighbour("add a neighbour to", name, address, Some(mac), RTM_NEWNEIGH, flags)
    }

    /// Removes a neighbour.
    ///
    /// # Errors
    /// Any [`Error`]; `ENOENT` if there is no such entry.
    pub fn delete_neighbour(&mut self, name: &str, address: IpAddr) -> Result<(), Error> {
        self.change_neighbour("delete a neighbour of", name, address, None, RTM_DELNEIGH, 0)
    }

    /// Returns the kernel's entry of a neighbour on the interface with this number, if there is one
    /// (Linux 5.0).
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn neighbour(&mut self, index: u32, address: IpAddr) -> Result<Option<Neighbour>, Error> {
        let mut request = Request::new(RTM_GETNEIGH, NLM_F_ACK);
        request.fixed(&ndmsg(index, address, 0, 0));
        request.attribute(NDA_DST, &prefix::octets(&address));
        let mut found = None;
        let subject = address.to_string();
        let answer = self.ask("look up the neighbour", &subject, request, &mut |message| {
            if message.kind == RTM_NEWNEIGH {
                found = read_neighbour(message.body)?;
            }
            Ok(())
        });
        match answer {
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
            answer => answer.map(|()| found),
        }
    }

    /// Has the kernel ask for a neighbour's Ethernet address, or confirm it, as if it had a packet
    /// for the neighbour. The answer comes as an event of a [`HostWatch`](crate::HostWatch).
    ///
    /// # Errors
    /// Any [`Error`]; `EPERM` without `CAP_NET_ADMIN`.
    pub fn probe_neighbour(&mut self, index: u32, address: IpAddr) -> Result<(), Error> {
        let subject = address.to_string();
        self.carry_out("probe", &subject, RTM_NEWNEIGH, NLM_F_CREATE, |request| {
            request.fixed(&ndmsg(index, address, 0, NTF_USE));
            request.attribute(NDA_DST, &prefix::octets(&address));
        })
    }

    fn change_neighbour(
        &mut self,
        operation: &'static str,
        name: &str,
        address: IpAddr,
        mac: Option<[u8; 6]>,
        kind: u16,
        flags: u16,
    ) -> Result<(), Error> {
        let index = self.index(name)?;
        let subject = format!("{name} ({address})");
        self.carry_out(operation, &subject, kind, flags, |request| {
            request.fixed(&ndmsg(index, address, NUD_PERMANENT, 0));
            request.attribute(NDA_DST, &prefix::octets(&address));
            if let Some(mac) = mac {
                request.attribute(NDA_LLADDR, &mac);
            }
        })
    }
}

fn ndmsg(index: u32, address: IpAddr, state: u16, flags: u8) -> [u8; NDMSG_BYTES] {
    let mut part = [0; NDMSG_BYTES];
    part[0] = prefix::family(address);
    part[4..8].copy_from_slice(&index.to_ne_bytes());
    part[8..10].copy_from_slice(&state.to_ne_bytes());
    part[10] = flags;
    part
}

/// Reads an entry from an `RTM_NEWNEIGH` or `RTM_DELNEIGH` message; `None` if it is not of IPv4 or
/// IPv6, or has no address.
pub(crate) fn read_neighbour(body: &[u8]) -> Result<Option<Neighbour>, Malformed> {
    let (Some(family), Some(index), Some(state)) =
        (u8_at(body, 0), u32_at(body, 4), u16_at(body, 8))
    else {
        return Err(Malformed("a neighbour without its fixed part"));
    };
    if !matches!(i32::from(family), libc::AF_INET | libc::AF_INET6) {
        return Ok(None);
    }
    let (mut address, mut mac) = (None, None);
    for attribute in Attributes::after(body, NDMSG_BYTES)? {
        let (kind, value) = attribute?;
        match kind {
            NDA_DST => address = Some(prefix::read(value)?),
            // Other kinds of interfaces have addresses of other lengths.
            NDA_LLADDR => mac = <[u8; 6]>::try_from(value).ok(),
            _ => {}
        }
    }
    let reachability = match (state, mac) {
        (_, Some(mac)) if state & (NUD_REACHABLE | NUD_PERMANENT | NUD_NOARP) != 0 => {
            Reachability::Confirmed(mac)
        }
        (_, Some(mac)) if state & (NUD_STALE | NUD_DELAY | NUD_PROBE) != 0 => {
            Reachability::Stale(mac)
        }
        _ if state & NUD_FAILED != 0 => Reachability::Failed,
        _ => Reachability::Unknown,
    };
    Ok(address.map(|address| Neighbour { index, address, reachability }))
}
