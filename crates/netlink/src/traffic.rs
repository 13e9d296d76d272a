//! The packets that an interface has sent, by the kernel's count (`struct rtnl_link_stats64`, `linux/if_link.h`).
#![forbid(unsafe_code)]

use crate::error::Error;
use crate::link::{IFINFOMSG_BYTES, IFLA_IFNAME, RTM_GETLINK, RTM_NEWLINK, check_name, ifinfomsg};
use crate::message::{Attributes, Malformed, NLM_F_ACK, Request};
use crate::socket::Netlink;

const IFLA_STATS64: u16 = 23;
/// The indexes of `tx_packets` and `tx_bytes`, in words of 8 bytes.
const TX_PACKETS: usize = 1;
const TX_BYTES: usize = 3;

/// The packets that an interface has sent. For a TAP, these are the packets that its reader has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The number of packets.
    pub packets: u64,
    /// Their bytes, with link headers.
    pub bytes: u64,
}

impl Netlink {
    /// Returns the count of the packets that an interface has sent since it was created.
    ///
    /// # Errors
    /// [`Error::NoSuchLink`], [`Error::BadName`], or any other [`Error`].
    pub fn sent(&mut self, name: &str) -> Result<Sent, Error> {
        check_name(name)?;
        let mut request = Request::new(RTM_GETLINK, NLM_F_ACK);
        request.fixed(&ifinfomsg(0, 0, 0));
        request.attribute_text(IFLA_IFNAME, name);
        let mut found = None;
        self.ask("count the packets of", name, request, &mut |message| {
            if message.kind == RTM_NEWLINK {
                found = read_sent(message.body)?;
            }
            Ok(())
        })?;
        found.ok_or_else(|| Error::NoSuchLink { name: name.to_owned() })
    }
}

fn read_sent(body: &[u8]) -> Result<Option<Sent>, Malformed> {
    for attribute in Attributes::after(body, IFINFOMSG_BYTES)? {
        let (kind, value) = attribute?;
        if kind == IFLA_STATS64 {
            let word = |at: usize| {
                let bytes = value.get(at * 8..)?.first_chunk()?;
                Some(u64::from_ne_bytes(*bytes))
            };
            return Ok(word(TX_PACKETS)
                .zip(word(TX_BYTES))
                .map(|(packets, bytes)| Sent { packets, bytes }));
        }
    }
    Ok(None)
}
