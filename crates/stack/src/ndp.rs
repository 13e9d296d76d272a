//! Neighbour discovery for IPv6 (RFC 4861): solicitations and advertisements.

use std::net::Ipv6Addr;

pub(crate) use towpath_packet::ipv6::{link_local, solicited_node};

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
/// Length of a message with a link address option, in bytes.
pub(crate) const MESSAGE_BYTES: usize = 32;
/// The required hop limit of all messages: only a neighbour can send it (RFC 4861, 7.1).
pub(crate) const HOP_LIMIT: u8 = 255;

/// All hosts of the link (RFC 4291, 2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ndp {
    /// Asks for the link address of this address.
    Solicitation {
        /// The address in question.
        target: Ipv6Addr,
        /// Link address of the asking host.
        link: Option<[u8; 6]>,
    },
    /// Announces that the sender has this address.
    Advertisement {
        /// The address.
        target: Ipv6Addr,
        /// Link address of its owner.
        link: Option<[u8; 6]>,
        /// `true` if it answers a solicitation.
        solicited: bool,
    },
}

impl Ndp {
    /// Parses an ICMPv6 message. Returns `Err` for a malformed message of neighbour discovery, and
    /// `Ok(None)` for other messages and those that the stack ignores (routers, redirects).
    pub(crate) fn parse(message: &[u8]) -> Result<Option<Ndp>, ()> {
        let kind = message[0];
        if kind != SOLICITATION && kind != ADVERTISEMENT {
            return Ok(None);
        }
        if message.len() < 24 || message[1] != 0 {
            return Err(());
        }
        let mut target = [0; 16];
        target.copy_from_slice(&message[8..24]);
        let target = Ipv6Addr::from(target);
        if target.is_multicast() {
            return Err(());
        }
        let wanted = if kind == SOLICITATION { SOURCE_LINK_ADDRESS } else { TARGET_LINK_ADDRESS };
        let mut link = None;
        let mut options = &message[24..];
        while !options.is_empty() {
            let len = usize::from(*options.get(1).ok_or(())?) * 8;
            if len == 0 || len > options.len() {
                return Err(());
            }
            if options[0] == wanted && len == 8 {
                link = options[2..8].try_into().ok();
            }
            options = &options[len..];
        }
        Ok(Some(if kind == SOLICITATION {
            Ndp::Solicitation { target, link }
        } else {
            Ndp::Advertisement { target, link, solicited: message[4] & 0x40 != 0 }
        }))
    }

    /// Returns the message without its checksum.
    pub(crate) fn write(&self) -> [u8; MESSAGE_BYTES] {
        let mut message = [0; MESSAGE_BYTES];
        let (target, link, option) = match *self {
            Ndp::Solicitation { target, link } => {
                message[0] = SOLICITATION;
                (target, link, SOURCE_LINK_ADDRESS)
            }
            Ndp::Advertisement { target, link, solicited } => {
                message[0] = ADVERTISEMENT;
                // Override: receivers replace their entry for this address.
                message[4] = if solicited { 0x60 } else { 0x20 };
                (target, link, TARGET_LINK_ADDRESS)
            }
        };
        message[8..24].copy_from_slice(&target.octets());
        message[24..26].copy_from_slice(&[option, 1]);
        message[26..32].copy_from_slice(&link.unwrap_or([0; 6]));
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_messages_read_back() {
        let target = link_local([2, 0, 0, 0, 0, 9]);
        let link = Some([2, 0, 0, 0, 0, 1]);
        for message in [
            Ndp::Solicitation { target, link },
            Ndp::Advertisement { target, link, solicited: true },
            Ndp::Advertisement { target, link, solicited: false },
        ] {
            assert_eq!(Ndp::parse(&message.write()), Ok(Some(message)));
        }
    }

    #[test]
    fn an_option_of_no_length_is_refused() {
        let target = link_local([2, 0, 0, 0, 0, 9]);
        let mut message = Ndp::Solicitation { target, link: None }.write();
        message[25] = 0;
        assert_eq!(Ndp::parse(&message), Err(()));
    }
}
