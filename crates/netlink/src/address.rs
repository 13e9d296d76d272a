//! IP addresses of interfaces (`RTM_NEWADDR` and its kin, `linux/if_addr.h`).
#![forbid(unsafe_code)]

use crate::error::Error;
use crate::message::{Attributes, Malformed, NLM_F_CREATE, NLM_F_EXCL, Request, u8_at, u32_at};
use crate::prefix::{self, Prefix};
use crate::socket::Netlink;

pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
const IFADDRMSG_BYTES: usize = 8;

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The interface's number.
    pub index: u32,
    /// The address, with its network's prefix.
    pub prefix: Prefix,
    /// `true` if the address is not usable yet: the kernel still checks whether another host has it
    /// (RFC 4862).
    pub tentative: bool,
    /// `true` if the address will not last, or is not for new connections: a temporary one (RFC
    /// 8981), a deprecated one, one that another host has, or a secondary one of IPv4.
    pub passing: bool,
}

impl Netlink {
    /// Returns all IPv4 and IPv6 addresses of the namespace.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        self.dump(
            "list the addresses",
            RTM_GETADDR,
            RTM_NEWADDR,
            |request| request.fixed(&[0; IFADDRMSG_BYTES]),
            read_address,
        )
    }

    /// Adds an address to an interface, usable at once: IPv6 without duplicate address detection.
    ///
    /// # Errors
    /// Any [`Error`]; `EEXIST` if the interface has the address already.
    pub fn add_address(&mut self, name: &str, prefix: Prefix) -> Result<(), Error> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.change_address("add an address to", name, prefix, RTM_NEWADDR, flags)
    }

    /// Removes an address from an interface.
    ///
    /// # Errors
    /// Any [`Error`]; `EADDRNOTAVAIL` if the interface does not have the address.
    pub fn delete_address(&mut self, name: &str, prefix: Prefix) -> Result<(), Error> {
        self.change_address("delete an address of", name, prefix, RTM_DELADDR, 0)
    }

    fn change_address(
        &mut self,
        operation: &'static str,
        name: &str,
        prefix: Prefix,
        kind: u16,
        flags: u16,
    ) -> Result<(), Error> {
        let index = self.index(name)?;
        let subject = format!("{name} ({prefix})");
        self.carry_out(operation, &subject, kind, flags, |request| {
            write_address(request, index, prefix);
        })
    }
}

fn write_address(request: &mut Request, index: u32, prefix: Prefix) {
    let mut part = [0; IFADDRMSG_BYTES];
    part[0] = prefix.family();
    part[1] = prefix.len_bits();
    part[4..8].copy_from_slice(&index.to_ne_bytes());
    request.fixed(&part);
    let octets = prefix::octets(&prefix.address());
    request.attribute(IFA_LOCAL, &octets);
    request.attribute(IFA_ADDRESS, &octets);
    if prefix.address().is_ipv6() {
        request.attribute_u32(IFA_FLAGS, IFA_F_NODAD);
    }
}

/// Reads an address from an `RTM_NEWADDR` message.
pub(crate) fn read_address(body: &[u8]) -> Result<Option<Address>, Malformed> {
    let (Some(len_bits), Some(flags), Some(index)) =
        (u8_at(body, 1), u8_at(body, 2), u32_at(body, 4))
    else {
        return Err(Malformed("an address without prefix length and index"));
    };
    let mut flags = u32::from(flags);
    let (mut local, mut address) = (None, None);
    for attribute in Attributes::after(body, IFADDRMSG_BYTES)? {
        let (kind, value) = attribute?;
        match kind {
            IFA_LOCAL => local = Some(prefix::read(value)?),
            IFA_ADDRESS => address = Some(prefix::read(value)?),
            IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
            _ => {}
        }
    }
    // On a point-to-point interface the other attribute is the peer's address.
    let Some(own) = local.or(address) else { return Ok(None) };
    let prefix = Prefix::new(own, len_bits).map_err(|_| Malformed("a prefix too long"))?;
    let passing = flags & (IFA_F_TEMPORARY | IFA_F_DEPRECATED | IFA_F_DADFAILED) != 0;
    Ok(Some(Address { index, prefix, tentative: flags & IFA_F_TENTATIVE != 0, passing }))
}
