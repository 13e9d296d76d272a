//! Families of generic netlink, which the kernel numbers as it starts (`linux/genetlink.h`).
#![forbid(unsafe_code)]

use crate::error::Error;
use crate::message::{Attributes, Malformed, NLM_F_ACK, Request, text, u16_at, u32_at};
use crate::socket::Netlink;

/// `struct genlmsghdr`: command, version, and two unused bytes.
pub(crate) const HEADER_BYTES: usize = 4;

/// The family that knows the numbers of the other families (`GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`).
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
/// Attributes inside of each multicast group.
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;

/// A family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) number: u16,
    /// The multicast groups, with their names.
    pub(crate) groups: Vec<(String, u32)>,
}

impl Netlink {
    /// Opens a socket of generic netlink.
    pub(crate) fn generic() -> Result<Netlink, Error> {
        Netlink::of_protocol(Some(rustix::net::netlink::GENERIC))
    }

    /// Returns a family of generic netlink.
    pub(crate) fn family(&mut self, name: &str) -> Result<Family, Error> {
        const OPERATION: &str = "finding a family of generic netlink";
        let mut request = question(CONTROL, GET_FAMILY);
        request.attribute_text(CTRL_ATTR_FAMILY_NAME, name);
        let mut family = None;
        self.ask(OPERATION, name, request, &mut |message| {
            family = read_family(message.body)?;
            Ok(())
        })?;
        family.ok_or(Error::Malformed { operation: OPERATION, cause: "a family without a number" })
    }
}

/// Begins a request that is acknowledged.
pub(crate) fn question(family: u16, command: u8) -> Request {
    let mut request = Request::new(family, NLM_F_ACK);
    request.fixed(&[command, 1, 0, 0]);
    request
}

pub(crate) fn read_family(body: &[u8]) -> Result<Option<Family>, Malformed> {
    let (mut number, mut groups) = (None, Vec::new());
    for attribute in Attributes::after(body, HEADER_BYTES)? {
        let (kind, value) = attribute?;
        match kind {
            CTRL_ATTR_FAMILY_ID => {
                number = Some(u16_at(value, 0).ok_or(Malformed("a family's number is too short"))?);
            }
            CTRL_ATTR_MCAST_GROUPS => {
                for group in Attributes::of(value) {
                    groups.extend(read_group(group?.1)?);
                }
            }
            _ => {}
        }
    }
    Ok(number.map(|number| Family { number, groups }))
}

fn read_group(value: &[u8]) -> Result<Option<(String, u32)>, Malformed> {
    let (mut name, mut number) = (None, None);
    for attribute in Attributes::of(value) {
        let (kind, value) = attribute?;
        match kind {
            CTRL_ATTR_MCAST_GRP_NAME => name = Some(text(value)),
            CTRL_ATTR_MCAST_GRP_ID => number = u32_at(value, 0),
            _ => {}
        }
    }
    Ok(name.zip(number))
}
