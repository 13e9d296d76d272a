//! The IP addressing of connections: service identifiers of ports, the header in a request's
//! private data, and global identifiers (Linux, `drivers/infiniband/core/cma.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{be16, piece};

/// The length of [`IpHeader`] in a request's private data, in bytes.
const IP_HEADER_BYTES: usize = 36;
/// The bytes of a request's private data behind [`IpHeader`], for the application.
pub const USER_PRIVATE_BYTES: usize = PRIVATE_BYTES - IP_HEADER_BYTES;

const PRIVATE_BYTES: usize = 92;
/// The service identifiers of IP ports begin with these bits (Linux, `include/rdma/rdma_cm.h`).
const IP_SERVICE: u64 = 0x0000_0000_0100_0000;

/// Returns the service identifier of a port. `protocol`: 6 for TCP, 17 for UDP, whose port numbers
/// are independent.
#[must_use]
pub fn service_of(protocol: u8, port: u16) -> u64 {
    IP_SERVICE | u64::from(protocol) << 16 | u64::from(port)
}

/// Returns the protocol and the port that a service identifier is of, if it is of one.
#[must_use]
pub fn port_of_service(service: u64) -> Option<(u8, u16)> {
    (service & !0xff_ffff == IP_SERVICE).then_some(((service >> 16) as u8, service as u16))
}

/// The addresses that a request states in its private data. The destination port is in the service
/// identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The address of the side that connects.
    pub source: IpAddr,
    /// The address that it connects to, of the same family.
    pub destination: IpAddr,
    /// The port of the side that connects.
    pub source_port: u16,
}

impl IpHeader {
    /// Reads the header from a request's private data, and returns the bytes behind it, which are
    /// the application's. `None` if its version is not 0, or it is about neither IPv4 nor IPv6.
    #[must_use]
    pub fn read(private: &[u8; PRIVATE_BYTES]) -> Option<(IpHeader, &[u8])> {
        let (header, user) = private.split_first_chunk::<IP_HEADER_BYTES>()?;
        if header[0] != 0 {
            return None;
        }
        // An IPv4 address is at the end of the field for an IPv6 address.
        let address = |at: usize| -> Option<IpAddr> {
            match header[1] >> 4 {
                4 => Some(Ipv4Addr::from(piece::<4>(header, at + 12)).into()),
                6 => Some(Ipv6Addr::from(piece::<16>(header, at)).into()),
                _ => None,
            }
        };
        let header = IpHeader {
            source: address(4)?,
            destination: address(20)?,
            source_port: be16(header[2], header[3]),
        };
        Some((header, user))
    }

    /// Writes the header and the application's private data, with zeros behind it. `None` if that is
    /// longer than [`USER_PRIVATE_BYTES`], or the addresses are of two families.
    #[must_use]
    pub fn write(&self, user: &[u8]) -> Option<[u8; PRIVATE_BYTES]> {
        let mut private = [0; PRIVATE_BYTES];
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                private[1] = 4 << 4;
                private[16..20].copy_from_slice(&source.octets());
                private[32..36].copy_from_slice(&destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                private[1] = 6 << 4;
                private[4..20].copy_from_slice(&source.octets());
                private[20..36].copy_from_slice(&destination.octets());
            }
            _ => return None,
        }
        private[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        private[IP_HEADER_BYTES..].get_mut(..user.len())?.copy_from_slice(user);
        Some(private)
    }
}

/// Returns the global identifier of an address: the IPv6 address, or the IPv4 address mapped into
/// one (RFC 4291, section 2.5.5.2).
#[must_use]
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the address of a global identifier. A mapped IPv4 address is an IPv4 address.
#[must_use]
pub fn ip_of_gid(gid: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*gid).to_canonical()
}
