//! An address with the length of its network prefix.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::Error;
use crate::message::Malformed;

/// An address and the number of leading bits that identify its network, as in `192.0.2.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    len_bits: u8,
}

impl Prefix {
    /// The destination of an IPv4 default route: every address.
    pub const DEFAULT_V4: Prefix =
        Prefix { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), len_bits: 0 };

    /// The destination of an IPv6 default route: every address.
    pub const DEFAULT_V6: Prefix =
        Prefix { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), len_bits: 0 };

    /// Creates an address in a network of `len_bits` leading bits.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the address has fewer bits.
    pub fn new(address: IpAddr, len_bits: u8) -> Result<Prefix, Error> {
        if len_bits > bits(address) {
            let value = format!("{address}/{len_bits}");
            return Err(Error::BadValue { what: "prefix", value });
        }
        Ok(Prefix { address, len_bits })
    }

    /// Creates a prefix of a single address: `/32` or `/128`.
    #[must_use]
    pub fn host(address: IpAddr) -> Prefix {
        Prefix { address, len_bits: bits(address) }
    }

    /// Returns the address, including its host bits.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of leading bits that identify the network.
    #[must_use]
    pub fn len_bits(&self) -> u8 {
        self.len_bits
    }

    /// Returns the network: the same prefix with host bits of zero.
    #[must_use]
    pub fn network(&self) -> Prefix {
        let host_bits = u32::from(bits(self.address) - self.len_bits);
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Prefix { address, len_bits: self.len_bits }
    }

    /// Returns `true` if an address is in this network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && Prefix { address, ..*self }.network() == self.network()
    }

    pub(crate) fn family(&self) -> u8 {
        family(self.address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len_bits)
    }
}

impl FromStr for Prefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Prefix, Error> {
        let bad = || Error::BadValue { what: "prefix", value: text.to_owned() };
        let (address, len) = text.split_once('/').ok_or_else(bad)?;
        Prefix::new(address.parse().map_err(|_| bad())?, len.parse().map_err(|_| bad())?)
    }
}

pub(crate) fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

/// Returns the address as a message contains it.
pub(crate) fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Reads an address from a message; the length determines the family.
pub(crate) fn read(value: &[u8]) -> Result<IpAddr, Malformed> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        return Ok(IpAddr::from(octets));
    }
    match <[u8; 16]>::try_from(value) {
        Ok(octets) => Ok(IpAddr::from(octets)),
        Err(_) => Err(Malformed("an IP address of neither 4 nor 16 bytes")),
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
