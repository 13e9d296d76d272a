//! Neighbours: the Ethernet address of an IP address (`RTM_NEWNEIGH`, `linux/neighbour.h`).
#![forbid(unsafe_code)]

use std::net::IpAddr;

use crate::error::Error;
use crate::message::{NLM_F_CREATE, NLM_F_REPLACE};
use crate::prefix;
use crate::socket::Netlink;

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

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
            // `struct ndmsg`: family, index, state, flags, type.
            let mut part = [0; 12];
            part[0] = prefix::family(address);
            part[4..8].copy_from_slice(&index.to_ne_bytes());
            part[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
            request.fixed(&part);
            request.attribute(NDA_DST, &prefix::octets(&address));
            if let Some(mac) = mac {
                request.attribute(NDA_LLADDR, &mac);
            }
        })
    }
}
