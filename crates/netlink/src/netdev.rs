//! The offloads that a driver has for AF_XDP sockets without copies: the family `netdev` of generic
//! netlink (`linux/genetlink.h`, `linux/netdev.h`; Documentation/netlink/specs/netdev.yaml).

use crate::error::Error;
use crate::generic::{HEADER_BYTES, question};
use crate::message::{Attributes, Malformed};
use crate::socket::Netlink;

/// `NETDEV_CMD_DEV_GET`, and its attributes.
const GET_DEVICE: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
/// `NETDEV_XSK_FLAGS_TX_CHECKSUM`.
const TX_CHECKSUM: u64 = 2;

/// What an interface's driver does for AF_XDP sockets that work without copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XskFeatures {
    /// `true` if it completes checksums of sent packets (`tx-checksum`).
    pub tx_checksum: bool,
}

impl Netlink {
    /// Asks what an interface's driver does for AF_XDP sockets without copies, over a socket of its
    /// own. The interface is one of this thread's network namespace. A kernel that does not know
    /// the question (before Linux 6.8) has no such features.
    ///
    /// # Errors
    /// When the kernel refuses to answer, or the interface does not exist.
    pub fn xsk_features(index: u32) -> Result<XskFeatures, Error> {
        let mut kernel = Netlink::generic()?;
        let family = match kernel.family("netdev") {
            Ok(family) => family.number,
            Err(Error::Refused { errno: rustix::io::Errno::NOENT, .. }) => {
                return Ok(XskFeatures::default());
            }
            Err(error) => return Err(error),
        };
        let mut request = question(family, GET_DEVICE);
        request.attribute_u32(NETDEV_A_DEV_IFINDEX, index);
        let mut features = XskFeatures::default();
        kernel.ask("asking for AF_XDP features", "", request, &mut |message| {
            features = read_features(message.body)?;
            Ok(())
        })?;
        Ok(features)
    }
}

pub(crate) fn read_features(body: &[u8]) -> Result<XskFeatures, Malformed> {
    let mut features = XskFeatures::default();
    for attribute in Attributes::after(body, HEADER_BYTES)? {
        let (kind, value) = attribute?;
        if kind == NETDEV_A_DEV_XSK_FEATURES {
            let bits = value.first_chunk().ok_or(Malformed("features shorter than 64 bits"))?;
            features.tx_checksum = u64::from_ne_bytes(*bits) & TX_CHECKSUM != 0;
        }
    }
    Ok(features)
}
