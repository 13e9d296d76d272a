//! Looks for an interface by the number or the name that the server knows.
#![forbid(unsafe_code)]

use towpath_netlink::{Link, Netlink};
use towpath_server::FollowedInterface;

/// Returns the kernel's description of an interface: by its number, or by its name if the number is not known.
pub(super) fn link_of(
    kernel: &mut Netlink,
    interface: &FollowedInterface,
) -> Result<Link, towpath_netlink::Error> {
    match interface.index {
        Some(index) => kernel.link_at(index),
        None => kernel.link(&interface.name),
    }
}
